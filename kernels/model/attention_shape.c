/* attention_shape.c - see attention_shape.h. */
#include "kernels/model/attention_shape.h"

#include <stdio.h>

/* Head sizes that its fused kernels take, forward and backward: up to 128 in every version since 9.0, up to 256 on
 * Hopper in later ones. */
#define HEAD_DIM_STEP ((size_t)8)
#define HEAD_DIM_MAX ((size_t)256)

bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    char unread[ZERO_MODEL_WHY];
    if (why == NULL)
        why = unread;
    if (dtype == ZERO_FP32)
        snprintf(why, ZERO_MODEL_WHY, "cuDNN computes it in bf16 and fp16, not in fp32: use precision bf16");
    else if (s->head_dim % HEAD_DIM_STEP != 0 || s->head_dim > HEAD_DIM_MAX)
        snprintf(
            why, ZERO_MODEL_WHY,
            "heads of %zu elements are %s %zu: choose a number of heads that makes them a multiple of %zu, at most %zu",
            s->head_dim, s->head_dim > HEAD_DIM_MAX ? "more than" : "not a multiple of",
            s->head_dim > HEAD_DIM_MAX ? HEAD_DIM_MAX : HEAD_DIM_STEP, HEAD_DIM_STEP, HEAD_DIM_MAX);
    else
        return true;
    return false;
}
