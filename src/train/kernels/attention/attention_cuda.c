/* attention_cuda.c - which of four backends computes attention on CUDA. Where no mask hides anything: on Hopper, for
 * heads of 64 and 128, forward_causal_mma.cu and backward_causal.cu; else cuDNN, if it serves the shape. For the rest
 * our own kernels for tensor cores, or else simt.cu, which takes everything.
 */
#include <stdio.h>

#include "train/kernels/attention/cudnn/attention_cudnn.h"
#include "train/kernels/cuda/context.h"

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
    const zero_attention_shape_t largest = {limits->n_rows / limits->seq_len, limits->seq_len, limits->n_heads,
                                            limits->n_kv_heads, limits->head_dim};
    size_t own = zero_scratch_bytes(limits->n_rows * limits->n_heads * sizeof(float)), fast = 0; /* own: delta */
    if (zero_attention_causal_serves(limits->dtype, limits->head_dim))
        fast = zero_scratch_bytes(zero_attention_causal_backward_bytes(&largest));
#ifdef ZERO_HAVE_CUDNN
    else if (limits->dtype != ZERO_FP32)
        fast = zero_cudnn_workspace(limits);
#endif
    return own > fast ? own : fast;
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

/* Returns whether Hopper's kernels compute what no mask hides: the sequences and tiles of queries fit a grid. */
static bool causal_serves(const zero_model_context_t *ctx, const zero_attention_shape_t *s)
{
    const size_t most = UINT16_MAX;
    return zero_attention_causal_serves(zero_model_cuda(ctx)->dtype, s->head_dim) && s->n_batch <= most &&
           s->seq_len <= most * 64;
}

/* Returns whether cuDNN computes what no mask hides; else `why`, unless NULL, says why not. In fp32 there is no cuDNN
 * context, and zero_cudnn_may_serve refuses every shape. Heads that Hopper's kernels take are not cuDNN's. */
static bool cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
#ifdef ZERO_HAVE_CUDNN
    return !zero_attention_causal_serves(zero_model_cuda(ctx)->dtype, shape->head_dim) &&
           zero_cudnn_may_serve(zero_model_cuda(ctx)->dtype, shape, why) && zero_cudnn_serves(ctx, shape, why);
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

bool zero_cuda_attention_is_slow(zero_model_context_t *ctx, const zero_mask_t *mask,
                                 const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    if (hides_something(&effective))
        return !zero_attention_mma_may_serve(zero_model_cuda(ctx)->dtype, shape, why);
    return !causal_serves(ctx, shape) && !cudnn_serves(ctx, shape, why) && !mma_serves(ctx, shape);
}

static zero_status_t causal_forward(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *out,
                                    float *logsumexp, const void *qkv)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    void *workspace;
    ZERO_TRY(zero_scratch_alloc(&scratch, ZERO_ATTENTION_CAUSAL_FORWARD_BYTES, &workspace));
    ZERO_TRY_CUDA(zero_launch_attention_causal(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, out, logsumexp,
                                               workspace, qkv, s));
    return ZERO_OK;
}

zero_status_t zero_cuda_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    ZERO_TRY(zero_cuda_check_attention(shape));
    bool hides = hides_something(&effective), all_aligned = aligned(qkv) && aligned(out);
    if (!hides && all_aligned && causal_serves(ctx, shape))
        return causal_forward(ctx, shape, out, logsumexp, qkv);
#ifdef ZERO_HAVE_CUDNN
    if (!hides && aligned(qkv) && cudnn_serves(ctx, shape, NULL))
        return zero_cudnn_attention(ctx, shape, out, logsumexp, qkv);
#endif
    bool mma = mma_serves(ctx, shape) && all_aligned;
    ZERO_TRY_CUDA((mma ? zero_launch_attention_mma : zero_launch_attention)(
        zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, out, logsumexp, qkv, &effective, shape));
    return ZERO_OK;
}

static zero_status_t causal_backward(zero_model_context_t *ctx, const zero_attention_shape_t *s, void *dqkv,
                                     const void *dout, const void *qkv, const void *out, const float *logsumexp,
                                     size_t n_bytes)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    void *workspace;
    ZERO_TRY(zero_scratch_alloc(&scratch, n_bytes, &workspace));
    ZERO_TRY_CUDA(zero_launch_attention_causal_backward(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv,
                                                        workspace, dout, qkv, out, logsumexp, s));
    return ZERO_OK;
}

zero_status_t zero_cuda_attention_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const float *logsumexp, const zero_mask_t *mask,
                                           const zero_attention_shape_t *shape)
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    ZERO_TRY(zero_cuda_check_attention(shape));
    bool hides = hides_something(&effective);
    bool all_aligned = aligned(qkv) && aligned(out) && aligned(dout) && aligned(dqkv);
    size_t causal_bytes = zero_attention_causal_backward_bytes(shape);
    /* More than the limits' shape takes, if tiles of shorter sequences are less full. */
    bool fits = zero_scratch_bytes(causal_bytes) <= zero_cuda_scratch(ctx).bytes_left;
    if (!hides && all_aligned && fits && causal_serves(ctx, shape))
        return causal_backward(ctx, shape, dqkv, dout, qkv, out, logsumexp, causal_bytes);
#ifdef ZERO_HAVE_CUDNN
    if (!hides && aligned(qkv) && cudnn_serves(ctx, shape, NULL))
        return zero_cudnn_attention_backward(ctx, shape, dqkv, dout, qkv, out, logsumexp);
#endif
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    float *delta;
    ZERO_TRY(zero_scratch_alloc(&scratch, shape->n_batch * shape->n_heads * shape->seq_len * sizeof *delta, &delta));
    bool mma = mma_serves(ctx, shape) && all_aligned;
    ZERO_TRY_CUDA((mma ? zero_launch_attention_mma_backward
                       : zero_launch_attention_backward)(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dqkv,
                                                         delta, dout, qkv, out, logsumexp, &effective, shape));
    return ZERO_OK;
}
