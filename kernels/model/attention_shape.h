/* attention_shape.h - the sizes of attention, and which of them fast kernels compute: pure arithmetic, in every build.
 */
#ifndef ZERO_ATTENTION_SHAPE_H
#define ZERO_ATTENTION_SHAPE_H

#include "kernels/model/model.h"

typedef struct zero_attention_shape {
    size_t n_batch, seq_len, n_heads, n_kv_heads, head_dim;
} zero_attention_shape_t;

/* Returns whether cuDNN may be asked for attention of these sizes. If not, `why` (unless NULL) says what prevents it
 * and which sizes would do. */
bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

/* Returns the same of our own kernel for tensor cores. */
#define ZERO_ATTENTION_MMA_MAX_HEAD_DIM 128
bool zero_attention_mma_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

#endif
