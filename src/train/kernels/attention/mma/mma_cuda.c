/* mma_cuda.c - attention by tensor cores, with and without masks, as a backend.
 */
#include "train/kernels/attention/backend.h"

static zero_status_t forward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                             void *out, float *logsumexp, const void *qkv)
{
    ZERO_TRY_CUDA(zero_launch_attention_mma(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, out, logsumexp, qkv,
                                            mask, shape));
    return ZERO_OK;
}

static zero_status_t backward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                              void *dqkv, const void *dout, const void *qkv, const void *out, const float *logsumexp)
{
    float *delta;
    ZERO_TRY(zero_attention_delta(ctx, shape, &delta));
    ZERO_TRY_CUDA(zero_launch_attention_mma_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv, delta,
                                                     dout, qkv, out, logsumexp, mask, shape));
    return ZERO_OK;
}

const zero_attention_backend_t zero_attention_mma = {
    .name = "mma",
    .workspace = zero_attention_delta_workspace,
    .forward = forward,
    .backward = backward,
};
