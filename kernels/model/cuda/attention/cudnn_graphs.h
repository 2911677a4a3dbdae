/* cudnn_graphs.h - cuDNN's graphs of attention, forward and backward. */
#ifndef ZERO_CUDNN_GRAPHS_H
#define ZERO_CUDNN_GRAPHS_H

#include "kernels/model/cuda/attention/cudnn_slices.h"
#include "kernels/model/cuda/cudnn/graph.h"

/* Ids of the tensors in memory. */
enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_LSE, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_MINUS_INF, ID_ONE };

/* Add the operations of a slice. Scalars, bound when the plan runs: 1/sqrt(head_dim), -infinity and, backward, 1. */
void zero_attention_forward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, zero_attention_slice_t slice);
void zero_attention_backward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s,
                                   zero_attention_slice_t slice);

#endif
