/* attention_cuda.c - which backend computes attention on CUDA: the first of the table that serves the call. Where no
 * mask hides anything: on Hopper, for heads of 64 and 128, its own kernels; else cuDNN, if it serves the shape. For the
 * rest our own kernels for tensor cores, or else simt.cu, which takes everything.
 */
#include <stdio.h>

#include "train/kernels/attention/backend.h"

#ifndef ZERO_HAVE_CUDNN
static bool not_built(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
    (void)ctx, (void)shape;
    if (why != NULL)
        snprintf(why, ZERO_MODEL_WHY,
                 "this program was built without cuDNN: install its development files (for example "
                 "libcudnn9-dev-cuda-13) and build it again");
    return false;
}

static size_t no_workspace(const zero_model_limits_t *limits)
{
    (void)limits;
    return 0;
}

static const zero_attention_backend_t zero_attention_no_cudnn = {
    .name = "cuDNN", .serves = not_built, .workspace = no_workspace};
#endif

static const zero_attention_backend_t *const BACKENDS[ZERO_ATTENTION_KINDS] = {
    [ZERO_ATTENTION_HOPPER] = &zero_attention_hopper,
#ifdef ZERO_HAVE_CUDNN
    [ZERO_ATTENTION_CUDNN] = &zero_attention_cudnn,
#else
    [ZERO_ATTENTION_CUDNN] = &zero_attention_no_cudnn,
#endif
    [ZERO_ATTENTION_MMA] = &zero_attention_mma,
    [ZERO_ATTENTION_SIMT] = &zero_attention_simt,
};

zero_status_t zero_cuda_attention_create(zero_model_context_t *ctx)
{
    for (int kind = 0; kind < ZERO_ATTENTION_KINDS; ++kind)
        if (BACKENDS[kind]->create != NULL)
            ZERO_TRY(BACKENDS[kind]->create(ctx));
    return ZERO_OK;
}

void zero_cuda_attention_destroy(zero_model_context_t *ctx)
{
    for (int kind = 0; kind < ZERO_ATTENTION_KINDS; ++kind)
        if (BACKENDS[kind]->destroy != NULL)
            BACKENDS[kind]->destroy(ctx);
}

size_t zero_cuda_attention_workspace(const zero_model_limits_t *limits)
{
    size_t most = 0;
    for (int kind = 0; kind < ZERO_ATTENTION_KINDS; ++kind) {
        size_t bytes = BACKENDS[kind]->workspace(limits);
        most = bytes > most ? bytes : most;
    }
    return most;
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

static bool aligned(const void *data)
{
    return (uintptr_t)data % 16 == 0;
}

/* Returns a call whose tensors are aligned. */
static zero_attention_call_t call_of(const zero_model_context_t *ctx, const zero_mask_t *effective,
                                     const zero_attention_shape_t *shape)
{
    return (zero_attention_call_t){.dtype = zero_model_cuda(ctx)->dtype,
                                   .shape = *shape,
                                   .is_hopper = zero_attention_is_hopper(),
                                   .hides = effective->starts != NULL || effective->window > 0,
                                   .qkv_aligned = true,
                                   .all_aligned = true};
}

/* Returns the kind that computes the call. In `why`, unless NULL, is what prevented the first that gave a reason. */
static zero_attention_kind_t choose(zero_model_context_t *ctx, const zero_attention_call_t *call, bool is_backward,
                                    char why[ZERO_MODEL_WHY])
{
    size_t bytes_left = zero_cuda_scratch(ctx).bytes_left;
    for (int kind = 0; kind < ZERO_ATTENTION_SIMT; ++kind) {
        const zero_attention_backend_t *b = BACKENDS[kind];
        char *reason = why != NULL && why[0] == 0 ? why : NULL;
        bool fits = !is_backward || b->backward_bytes == NULL ||
                    zero_scratch_bytes(b->backward_bytes(&call->shape)) <= bytes_left;
        if (fits && zero_attention_takes(kind, call, reason) &&
            (b->serves == NULL || b->serves(ctx, &call->shape, reason)))
            return kind;
    }
    return ZERO_ATTENTION_SIMT;
}

bool zero_cuda_attention_is_slow(zero_model_context_t *ctx, const zero_mask_t *mask,
                                 const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY])
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    zero_attention_call_t call = call_of(ctx, &effective, shape);
    why[0] = 0;
    return choose(ctx, &call, false, why) == ZERO_ATTENTION_SIMT;
}

zero_status_t zero_cuda_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    ZERO_TRY(zero_cuda_check_attention(shape));
    zero_attention_call_t call = call_of(ctx, &effective, shape);
    call.qkv_aligned = aligned(qkv);
    call.all_aligned = aligned(qkv) && aligned(out);
    return BACKENDS[choose(ctx, &call, false, NULL)]->forward(ctx, shape, &effective, out, logsumexp, qkv);
}

zero_status_t zero_cuda_attention_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const float *logsumexp, const zero_mask_t *mask,
                                           const zero_attention_shape_t *shape)
{
    zero_mask_t effective = effective_mask(mask, shape->seq_len);
    ZERO_TRY(zero_cuda_check_attention(shape));
    zero_attention_call_t call = call_of(ctx, &effective, shape);
    call.qkv_aligned = aligned(qkv);
    call.all_aligned = aligned(qkv) && aligned(out) && aligned(dout) && aligned(dqkv);
    return BACKENDS[choose(ctx, &call, true, NULL)]->backward(ctx, shape, &effective, dqkv, dout, qkv, out, logsumexp);
}
