/* attention_cached_cuda.c - attention of positions that continue a text, on CUDA. Where the text begins it is the usual
 * one, as fast as in training, and the keys and values are copied to the cache. Later it is attention_cached.cu's, as
 * many rows at a time as the workspace has partial sums for: at least one.
 */
#include "train/kernels/cuda/context.h"

#define BLOCKS_WANTED ((size_t)(2 * ZERO_SMS)) /* for one row */
#define MAX_ROWS ((size_t)65535)               /* of a launch: the grid's z */

/* Returns how many blocks share a head of a row, in a context for texts of up to seq_len positions. */
static size_t n_splits(size_t seq_len, size_t n_heads)
{
    size_t n_chunks = (seq_len + ZERO_CACHED_CHUNK - 1) / ZERO_CACHED_CHUNK, most = BLOCKS_WANTED / n_heads;
    return n_chunks < most ? n_chunks : most > 1 ? most : 1;
}

/* Returns the bytes of a row's partial sums: fp32 [n_heads, n_splits, head_dim + ZERO_CACHED_STATS]. */
static size_t row_bytes(size_t seq_len, size_t n_heads, size_t head_dim)
{
    return n_heads * n_splits(seq_len, n_heads) * (head_dim + ZERO_CACHED_STATS) * sizeof(float);
}

size_t zero_cuda_cached_workspace(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(row_bytes(limits->seq_len, limits->n_heads, limits->head_dim));
}

static zero_status_t begin_text(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache, const void *qkv,
                                size_t window, const zero_attention_shape_t *shape)
{
    const zero_mask_t mask = {.window = window};
    size_t size = zero_dtype_size(zero_model_cuda(ctx)->dtype), kept = 2 * shape->n_kv_heads * shape->head_dim * size;
    size_t skipped = shape->n_heads * shape->head_dim * size;
    ZERO_TRY_CUDA(cudaMemcpy2DAsync(cache, kept, (const char *)qkv + skipped, skipped + kept, kept, shape->seq_len,
                                    cudaMemcpyDeviceToDevice, zero_model_stream(ctx)));
    return zero_cuda_attention(ctx, out, logsumexp, qkv, &mask, shape);
}

zero_status_t zero_cuda_attention_cached(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                         const void *qkv, const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    const zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    if (mask->starts == NULL)
        return begin_text(ctx, out, logsumexp, cache, qkv, mask->window, shape);
    ZERO_TRY(zero_cuda_check_attention(shape));
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    zero_cached_t cached = {.starts = mask->starts,
                            .n_heads = (int)shape->n_heads,
                            .n_kv_heads = (int)shape->n_kv_heads,
                            .head_dim = (int)shape->head_dim,
                            .window = mask->window < INT32_MAX ? (int)mask->window : 0,
                            .n_splits = (int)n_splits(cuda->seq_len, shape->n_heads)};
    size_t bytes = row_bytes(cuda->seq_len, shape->n_heads, shape->head_dim), most = scratch.bytes_left / bytes;
    size_t n_at_once = most < 1 ? 1 : most < shape->seq_len ? most : shape->seq_len;
    n_at_once = n_at_once < MAX_ROWS ? n_at_once : MAX_ROWS;
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, n_at_once * bytes, &partials));
    for (size_t row = 0; row < shape->seq_len; row += n_at_once) {
        cached.first_row = (int)row;
        ZERO_TRY_CUDA(
            zero_launch_attention_cached(zero_model_stream(ctx), cuda->dtype, out, partials, cache, qkv, &cached,
                                         (int)(shape->seq_len - row < n_at_once ? shape->seq_len - row : n_at_once)));
    }
    return ZERO_OK;
}
