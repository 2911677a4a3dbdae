/* attention_shape.h - the sizes of attention, and for which of them cuDNN is asked: pure arithmetic, in every build. */
#ifndef ZERO_ATTENTION_SHAPE_H
#define ZERO_ATTENTION_SHAPE_H

#include "kernels/model/model.h"

typedef struct zero_attention_shape {
    size_t n_batch, seq_len, n_heads, n_kv_heads, head_dim;
} zero_attention_shape_t;

/* Whether cuDNN may be asked for attention of these sizes. Where not, `why` (NULL: nobody asks) says what stands in the
 * way and what would do. */
bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

#endif
