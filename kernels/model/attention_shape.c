/* attention_shape.c - see attention_shape.h. */
#include "kernels/model/attention_shape.h"

#include <stdio.h>

/* cuDNN masks other lengths wrongly in some versions (9.15 and before, backward). */
#define POSITIONS ((size_t)128)
/* What its fused kernels take of a head in every version since 9.0, forward and backward. */
#define HEAD_STEP ((size_t)8)
#define HEAD_MOST ((size_t)128)

static void explain_length(size_t seq_len, char why[ZERO_MODEL_WHY])
{
    size_t below = seq_len / POSITIONS * POSITIONS, above = below + POSITIONS;
    int n =
        snprintf(why, ZERO_MODEL_WHY, "sequences of %zu positions are no multiple of %zu: take ", seq_len, POSITIONS);
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
        snprintf(why, ZERO_MODEL_WHY, "cuDNN's is for bf16 and fp16, not fp32: take precision bf16");
    else if (s->seq_len % POSITIONS != 0)
        explain_length(s->seq_len, why);
    else if (s->head_dim % HEAD_STEP != 0 || s->head_dim > HEAD_MOST)
        snprintf(why, ZERO_MODEL_WHY,
                 "heads of %zu elements are %s %zu: take as many heads as make them a multiple of %zu, %zu at most",
                 s->head_dim, s->head_dim > HEAD_MOST ? "more than" : "no multiple of",
                 s->head_dim > HEAD_MOST ? HEAD_MOST : HEAD_STEP, HEAD_STEP, HEAD_MOST);
    else
        return true;
    return false;
}
