/* attention_cudnn.h - attention by cuDNN, in builds that have it. */
#ifndef ZERO_ATTENTION_CUDNN_H
#define ZERO_ATTENTION_CUDNN_H

#include "train/kernels/attention/cudnn/cudnn_graph.h"
#include "train/kernels/common.h"
#include "train/kernels/cuda/context.h"

/* Returns the workspace that runs within the limits take, or 0 if cuDNN does not serve them. */
size_t zero_cudnn_workspace(const zero_model_limits_t *limits);

/* ---- cudnn slices ---- */
/* How attention's backward pass is cut for cuDNN, and what workspace that takes: pure arithmetic.
 *
 * cuDNN's deterministic backward writes dS to memory, 16 bits for each pair of query and key. To bound that, backward
 * runs on a slice of the sequences and heads at a time, each with its own dQ, dK and dV. The last blocks of a slice's
 * kernels leave most of the GPU idle; so slices run side by side in several streams, each with its own workspace.
 *
 * Sequences whose length does not suit cuDNN are padded: copied into the workspace, with zeros behind them. Queries do
 * not see later keys, and a gradient of zero contributes nothing, so what is behind a sequence changes no result. */

/* The sequences and heads that run at a time, out of a shape's; strides are those of the whole shape. */
typedef struct zero_attention_slice {
    size_t n_batch, n_heads, n_kv_heads;
} zero_attention_slice_t;

/* Streams in which slices run side by side. */
#define ZERO_ATTENTION_LANES 4

/* How backward is cut. */
typedef struct zero_attention_slices {
    zero_attention_slice_t slice;
    size_t n_lanes, bytes; /* bytes: of one lane's workspace */
} zero_attention_slices_t;

/* The most that slices side by side take together, unless one key/value head with its query heads takes more.
 *
 * Measured on an H200, deterministic backward in ms (2026-11-23, cuDNN 9.14); GB: what the slices at work take.
 *
 *                                          one after another           side by side
 *     2 x 4096, 32/8 heads of 128    2.08 (0.6 GB), 1.60 (2.3)   1.73 (2 of 0.3 GB), 1.57 (2 of 0.6)
 *     1 x 8192, 32/8 heads of 128    4.58 (0.6 GB), 2.97 (4.4)   3.12 (2 of 0.6 GB), 2.96 (3 of 0.6)
 *     4 x 4096, 32/8 heads of 64     3.14 (0.6 GB), 2.28 (4.4)   2.34 (2 of 0.6 GB)
 *     16 x 1024, 25 heads of 64      0.66 (0.4 GB), 0.62 (0.8)   0.61 (2 of 0.4 GB), 0.65 (4 of 0.1)
 *
 * With the same memory two slices at a time are as fast as four smaller ones, or faster. */
#define ZERO_ATTENTION_SLICES_MAX_BYTES ((size_t)1600 << 20)

/* Returns how `bytes` are used best. What fits at once is one slice, which stays in the context's stream. Else several
 * lanes, as many sequences and heads at a time as fit, in few slices. */
zero_attention_slices_t zero_attention_slices_within(const zero_attention_shape_t *s, size_t bytes);
/* Returns the bytes of delta, fp32 [n_batch, n_heads, seq_len]. */
size_t zero_attention_delta_bytes(const zero_attention_shape_t *s);
/* Returns the shape that cuDNN computes. */
zero_attention_shape_t zero_attention_padded(zero_attention_shape_t s);
/* Returns the workspace of a call's padded copies; p is s padded. */
size_t zero_attention_copies_bytes(const zero_attention_shape_t *s, const zero_attention_shape_t *p);

/* Returns the elements of a row of qkv. */
static inline size_t zero_attention_width(const zero_attention_shape_t *s)
{
    return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
}

/* ---- cudnn graphs ---- */
/* CuDNN's graphs of attention, forward and backward. */

/* Ids of the tensors in memory. */
enum { ID_Q = 1, ID_K, ID_V, ID_OUT, ID_LSE, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_DELTA, ID_SCALE, ID_MINUS_INF, ID_ONE };

/* Add the operations of a slice. Scalars, bound when the plan runs: 1/sqrt(head_dim), -infinity and, backward, 1. */
void zero_attention_forward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s, zero_attention_slice_t slice);
void zero_attention_backward_graph(zero_cudnn_graph_t *g, const zero_attention_shape_t *s,
                                   zero_attention_slice_t slice);

#endif
