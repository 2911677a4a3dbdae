/* attention_cuda.c - which of three backends computes attention on CUDA: cuDNN where it serves the shape and no mask
 * hides anything, else our own kernel for tensor cores, else simt.cu, which takes everything. Backward has a fourth: on
 * Hopper backward_causal.cu takes cuDNN's place for heads of 64 and 128.
 */
#include <stdio.h>

#include "kernels/model/cuda/attention/attention_cudnn.h"
#include "kernels/model/cuda/table_entries.h"

zero_status_t zero_cuda_attention_create(zero_model_context_t *ctx)
{
#ifdef ZERO_HAVE_CUDNN
    zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    if (cuda->dtype != ZERO_FP32)
        return zero_cudnn_create(ctx, &cuda->cudnn);
#endif
    (void)ctx;
    return ZERO_OK;
}

void zero_cuda_attention_destroy(zero_model_context_t *ctx)
{
#ifdef ZERO_HAVE_CUDNN
    zero_cudnn_destroy(zero_model_cuda(ctx)->cudnn);
#endif
    (void)ctx;
}

size_t zero_cuda_attention_workspace(const zero_model_limits_t *limits)
{
    size_t own = zero_scratch_bytes(limits->n_rows * limits->n_heads * sizeof(float)); /* delta */
    bool causal = zero_attention_causal_serves(limits->dtype, limits->head_dim);
    if (causal) {
        size_t bytes = zero_scratch_bytes(zero_attention_causal_backward_bytes(limits->n_rows / limits->seq_len, limits->seq_len,
                                                                      limits->n_heads, limits->head_dim));
        own = own > bytes ? own : bytes;
    }
#ifdef ZERO_HAVE_CUDNN
    size_t cudnn = limits->dtype == ZERO_FP32 ? 0 : zero_cudnn_workspace(limits, causal);
    return own > cudnn ? own : cudnn;
#else
    return own;
#endif
}

zero_status_t zero_cuda_check_attention(const zero_attention_shape_t *s)
{
    if (s->n_kv_heads == 0 || s->n_heads % s->n_kv_heads != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "attention: %zu heads cannot share %zu key/value heads", s->n_heads,
                         s->n_kv_heads);
    if (s->head_dim > ZERO_ATTENTION_MAX_HEAD_DIM)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "attention: heads of %zu elements; on CUDA %d is the most",
                         s->head_dim, ZERO_ATTENTION_MAX_HEAD_DIM);
    return ZERO_OK;
}

/* Returns the mask without what hides nothing. */
static zero_mask_t effective_mask(const zero_mask_t *mask, size_t seq_len)
{
    zero_mask_t m = mask != NULL ? *mask : (zero_mask_t){0};
    if (m.window >= seq_len)
        m.window = 0;
    return m;
}

static bool hides_something(const zero_mask_t *effective)
{
    return effective->starts != NULL || effective->window > 0;
}

/* Returns whether cuDNN computes what no mask hides; else `why`, unless NULL, says why not. In fp32 there is no cuDNN
 * context, and zero_cudnn_may_serve refuses every shape. */
static bool cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
#ifdef ZERO_HAVE_CUDNN
    return zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, why) && zero_cudnn_serves(ctx, shape, why);
#else
    (void)ctx, (void)shape;
    if (why != NULL)
        snprintf(why, ZERO_MODEL_WHY,
                 "this program was built without cuDNN: install its development files (for example "
                 "libcudnn9-dev-cuda-13) and build it again");
    return false;
#endif
}

static bool aligned(const void *data)
{
    return (uintptr_t)data % 16 == 0;
}

static bool mma_serves(const zero_model_context_t *ctx, const zero_attention_shape_t *shape)
{
    return zero_attention_mma_may_serve(zero_model_cuda(ctx)->dtype, shape, NULL);
}

bool zero_cuda_attention_is_slow(zero_model_context_t *ctx, const zero_mask_t *mask, size_t n_batch, size_t seq_len,
                                 size_t n_heads, size_t n_kv_heads, size_t head_dim, char why[ZERO_MODEL_WHY])
{
    zero_attention_shape_t shape = {n_batch, seq_len, n_heads, n_kv_heads, head_dim};
    zero_mask_t effective = effective_mask(mask, seq_len);
    if (hides_something(&effective))
        return !zero_attention_mma_may_serve(zero_model_cuda(ctx)->dtype, &shape, why);
    return !cudnn_serves(ctx, &shape, why) && !mma_serves(ctx, &shape);
}

zero_status_t zero_cuda_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, size_t n_batch, size_t seq_len, size_t n_heads,
                                  size_t n_kv_heads, size_t head_dim)
{
    zero_attention_shape_t shape = {n_batch, seq_len, n_heads, n_kv_heads, head_dim};
    zero_mask_t effective = effective_mask(mask, seq_len);
    ZERO_TRY(zero_cuda_check_attention(&shape));
#ifdef ZERO_HAVE_CUDNN
    if (!hides_something(&effective) && aligned(qkv) && cudnn_serves(ctx, &shape, NULL))
        return zero_cudnn_attention(ctx, &shape, out, logsumexp, qkv);
#endif
    bool mma = mma_serves(ctx, &shape) && aligned(qkv) && aligned(out);
    ZERO_TRY_CUDA((mma ? zero_launch_attention_mma
                       : zero_launch_attention)(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, out, logsumexp,
                                                qkv, &effective, n_batch, seq_len, n_heads, n_kv_heads, head_dim));
    return ZERO_OK;
}

/* Returns whether backward_causal.cu can compute the shape: its grid, and its bytes in the scratch that is left. */
static bool causal_fits(const zero_model_context_t *ctx, const zero_attention_shape_t *s, size_t n_bytes)
{
    return s->n_batch <= UINT16_MAX && s->seq_len <= UINT16_MAX * (size_t)64 &&
           zero_scratch_bytes(n_bytes) <= zero_cuda_scratch(ctx).bytes_left;
}

zero_status_t zero_cuda_attention_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const float *logsumexp, const zero_mask_t *mask,
                                           size_t n_batch, size_t seq_len, size_t n_heads, size_t n_kv_heads,
                                           size_t head_dim)
{
    zero_attention_shape_t shape = {n_batch, seq_len, n_heads, n_kv_heads, head_dim};
    zero_mask_t effective = effective_mask(mask, seq_len);
    ZERO_TRY(zero_cuda_check_attention(&shape));
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    bool all_aligned = aligned(qkv) && aligned(out) && aligned(dout) && aligned(dqkv);
    bool causal = zero_attention_causal_serves(zero_model_cuda(ctx)->dtype, head_dim);
    size_t causal_bytes = zero_attention_causal_backward_bytes(n_batch, seq_len, n_heads, head_dim);
    if (causal && !hides_something(&effective) && all_aligned && causal_fits(ctx, &shape, causal_bytes)) {
        void *workspace;
        ZERO_TRY(zero_scratch_take(&scratch, causal_bytes, &workspace));
        ZERO_TRY_CUDA(zero_launch_attention_causal_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv,
                                                            workspace, dout, qkv, out, logsumexp, n_batch, seq_len,
                                                            n_heads, n_kv_heads, head_dim));
        return ZERO_OK;
    }
#ifdef ZERO_HAVE_CUDNN
    if (!causal && !hides_something(&effective) && aligned(qkv) && cudnn_serves(ctx, &shape, NULL))
        return zero_cudnn_attention_backward(ctx, &shape, dqkv, dout, qkv, out, logsumexp);
#endif
    float *delta;
    ZERO_TRY(zero_scratch_take(&scratch, n_batch * n_heads * seq_len * sizeof *delta, &delta));
    bool mma = mma_serves(ctx, &shape) && all_aligned;
    ZERO_TRY_CUDA((mma ? zero_launch_attention_mma_backward : zero_launch_attention_backward)(
        zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv, delta, dout, qkv, out, logsumexp, &effective,
        n_batch, seq_len, n_heads, n_kv_heads, head_dim));
    return ZERO_OK;
}
