/* backend.h - a way to compute attention on CUDA: a row of attention_cuda.c's table, which each folder next to this
 * file fills.
 */
#ifndef ZERO_ATTENTION_BACKEND_H
#define ZERO_ATTENTION_BACKEND_H

#include "train/kernels/cuda/context.h"

/* Optional functions may be NULL. For shapes, contexts and `why` see kernels.h. */
typedef struct zero_attention_backend {
    const char *name;
    /* Optional: for what the context keeps of this backend. destroy also after a create that failed or did not run. */
    zero_status_t (*create)(zero_model_context_t *ctx);
    void (*destroy)(zero_model_context_t *ctx);
    /* Optional: asked after zero_attention_takes, where that leaves a doubt. */
    bool (*serves)(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);
    /* Returns the most bytes that a call within the limits takes, 0 if it serves none. */
    size_t (*workspace)(const zero_model_limits_t *limits);
    /* Optional: returns the bytes of a backward pass, where a shape within the limits can take more than theirs. */
    size_t (*backward_bytes)(const zero_attention_shape_t *shape);
    /* mask: never NULL, and its window 0 or below seq_len. */
    zero_status_t (*forward)(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                             void *out, float *logsumexp, const void *qkv);
    zero_status_t (*backward)(zero_model_context_t *ctx, const zero_attention_shape_t *shape, const zero_mask_t *mask,
                              void *dqkv, const void *dout, const void *qkv, const void *out, const float *logsumexp);
} zero_attention_backend_t;

/* Returns the sequences of the largest attention within the limits. */
static inline size_t zero_attention_most_sequences(const zero_model_limits_t *limits)
{
    return limits->n_batch > 0 ? limits->n_batch : limits->n_rows / limits->seq_len;
}

/* Returns the largest sizes of attention within the limits. */
static inline zero_attention_shape_t zero_attention_largest(const zero_model_limits_t *limits)
{
    return (zero_attention_shape_t){zero_attention_most_sequences(limits), limits->seq_len, limits->n_heads,
                                    limits->n_kv_heads, limits->head_dim};
}

/* Returns the workspace of backends whose backward needs delta alone, fp32 [n_batch, n_heads, seq_len]. */
static inline size_t zero_attention_delta_workspace(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(zero_attention_most_sequences(limits) * limits->seq_len * limits->n_heads *
                              sizeof(float));
}

/* Allocates delta in the workspace. */
static inline zero_status_t zero_attention_delta(zero_model_context_t *ctx, const zero_attention_shape_t *shape,
                                                 float **delta)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    return zero_scratch_alloc(&scratch, shape->n_batch * shape->n_heads * shape->seq_len * sizeof **delta, delta);
}

extern const zero_attention_backend_t zero_attention_hopper, zero_attention_cudnn, zero_attention_mma,
    zero_attention_simt;

#endif
