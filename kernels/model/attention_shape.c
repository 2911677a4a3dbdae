/* attention_shape.c - see attention_shape.h. */
#include "kernels/model/attention_shape.h"

#include <stdio.h>

/* Head sizes that cuDNN's fused kernels take, forward and backward: up to 128 in every version since 9.0, up to 256 on
 * Hopper in later ones. */
#define CUDNN_MAX_HEAD_DIM ((size_t)256)
/* Elements of 16 bytes, which both kernels move at once. */
#define HEAD_DIM_STEP ((size_t)8)

/* Returns whether `who` takes heads of up to `most` elements in this dtype. */
static bool may_serve(const char *who, zero_dtype_t dtype, size_t head_dim, size_t most, char why[ZERO_MODEL_WHY])
{
    char unread[ZERO_MODEL_WHY];
    if (why == NULL)
        why = unread;
    if (dtype == ZERO_FP32)
        snprintf(why, ZERO_MODEL_WHY, "%s it in bf16 and fp16, not in fp32: use precision bf16", who);
    else if (head_dim % HEAD_DIM_STEP != 0 || head_dim > most)
        snprintf(
            why, ZERO_MODEL_WHY,
            "heads of %zu elements are %s %zu: choose a number of heads that makes them a multiple of %zu, at most %zu",
            head_dim, head_dim > most ? "more than" : "not a multiple of", head_dim > most ? most : HEAD_DIM_STEP,
            HEAD_DIM_STEP, most);
    else
        return true;
    return false;
}

bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    return may_serve("cuDNN computes", dtype, s->head_dim, CUDNN_MAX_HEAD_DIM, why);
}

bool zero_attention_mma_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    return may_serve("tensor cores compute", dtype, s->head_dim, ZERO_ATTENTION_MMA_MAX_HEAD_DIM, why);
}
