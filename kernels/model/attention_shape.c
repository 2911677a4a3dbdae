/* attention_shape.c - see attention_shape.h. */
#include "kernels/model/attention_shape.h"

#include <stdio.h>

/* Sequences must be multiples of this: some versions of cuDNN mask other lengths wrongly (9.15 and before, backward).
 */
#define POSITIONS ((size_t)128)
/* Head sizes that its fused kernels take in every version since 9.0, forward and backward. */
#define HEAD_DIM_STEP ((size_t)8)
#define HEAD_DIM_MAX ((size_t)128)

static void explain_length(size_t seq_len, char why[ZERO_MODEL_WHY])
{
    size_t below = seq_len / POSITIONS * POSITIONS, above = below + POSITIONS;
    int n =
        snprintf(why, ZERO_MODEL_WHY, "sequences of %zu positions are not a multiple of %zu: use ", seq_len, POSITIONS);
    if (below > 0)
        n += snprintf(why + n, ZERO_MODEL_WHY - (size_t)n, "%zu or ", below);
    snprintf(why + n, ZERO_MODEL_WHY - (size_t)n, "%zu", above);
}

bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *s, char why[ZERO_MODEL_WHY])
{
    char unread[ZERO_MODEL_WHY];
    if (why == NULL)
        why = unread;
    if (dtype == ZERO_FP32)
        snprintf(why, ZERO_MODEL_WHY, "cuDNN computes it in bf16 and fp16, not in fp32: use precision bf16");
    else if (s->seq_len % POSITIONS != 0)
        explain_length(s->seq_len, why);
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
