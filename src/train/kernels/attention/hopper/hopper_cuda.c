/* hopper_cuda.c - Hopper's kernels for attention that no mask hides, as a backend.
 */
#include "train/kernels/attention/backend.h"

static size_t workspace(const zero_model_limits_t *limits)
{
    const zero_attention_shape_t largest = zero_attention_largest(limits);
    if (!zero_attention_hopper_heads(limits->dtype, limits->head_dim) || !zero_attention_is_hopper())
        return 0;
    return zero_scratch_bytes(zero_attention_causal_backward_bytes(&largest));
}

static zero_status_t forward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                             void *out, float *logsumexp, const void *qkv)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    void *memory;
    (void)mask; /* it hides nothing */
    ZERO_TRY(zero_scratch_alloc(&scratch, ZERO_ATTENTION_CAUSAL_FORWARD_BYTES, &memory));
    ZERO_TRY_CUDA(zero_launch_attention_causal(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, out, logsumexp,
                                               memory, qkv, shape));
    return ZERO_OK;
}

static zero_status_t backward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                              void *dqkv, const void *dout, const void *qkv, const void *out, const float *logsumexp)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    void *memory;
    (void)mask;
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_attention_causal_backward_bytes(shape), &memory));
    ZERO_TRY_CUDA(zero_launch_attention_causal_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv,
                                                        memory, dout, qkv, out, logsumexp, shape));
    return ZERO_OK;
}

const zero_attention_backend_t zero_attention_hopper = {
    .name = "hopper",
    .workspace = workspace,
    /* More than the limits' shape takes, if tiles of shorter sequences are less full. */
    .backward_bytes = zero_attention_causal_backward_bytes,
    .forward = forward,
    .backward = backward,
};
