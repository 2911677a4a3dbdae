/* attention_cached.c - attention of new positions to those before them, on the CPU, with the keys and values of all
 * kept in a cache. For generating: where a text begins, this is attention; then rows are few, so each head's scores are
 * dot products in a thread's scratch. Threads take heads. One thread computes each output element, in a fixed order.
 */
#include "kernels/model/model_cpu.h"

#include <omp.h>
#include <string.h>

#include "kernels/model/vector_math.h"

/* One query head at one position: `keys` and the rows of the cache are `width` elements apart, values behind keys. */
static void attend(float *out, const float *q, const float *keys, const float *values, size_t width, size_t n,
                   size_t head_dim, float *scores)
{
    const float scale = 1.0f / sqrtf((float)head_dim);
    for (size_t t = 0; t < n; ++t)
        scores[t] = scale * zero_row_dot(q, keys + t * width, head_dim);
    float max = zero_row_max(scores, n), inverse = 1.0f / zero_row_exp(scores, n, max);
    memset(out, 0, head_dim * sizeof *out);
    for (size_t t = 0; t < n; ++t) {
        const float *value = values + t * width, weight = scores[t] * inverse;
#pragma omp simd
        for (size_t d = 0; d < head_dim; ++d)
            out[d] = zero_multiply_add(weight, value[d], out[d]);
    }
}

/* Appends the keys and values of qkv's rows to the cache. */
static void put_rows(float *cache, const float *qkv, size_t first, size_t n_new, size_t row, size_t width)
{
    for (size_t t = 0; t < n_new; ++t)
        memcpy(cache + (first + t) * width, qkv + (t + 1) * row - width, width * sizeof *cache);
}

zero_status_t ZERO_MODEL_FN(attention_cached)(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                              const void *qkv, const zero_mask_t *mask, size_t n_new, size_t n_heads,
                                              size_t n_kv_heads, size_t head_dim)
{
    size_t width = 2 * n_kv_heads * head_dim, row = n_heads * head_dim + width, window = mask->window;
    size_t first = mask->starts != NULL ? (size_t) - (int64_t)mask->starts[0] : 0, n_all = first + n_new;
    put_rows(cache, qkv, first, n_new, row, width);
    if (first == 0)
        return ZERO_MODEL_FN(attention)(ctx, out, logsumexp, qkv, &(zero_mask_t){.window = window}, 1, n_new, n_heads,
                                        n_kv_heads, head_dim);
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t bytes = zero_scratch_bytes(n_all * sizeof(float)), n_buffers = scratch.bytes_left / bytes;
    size_t n_wanted = (size_t)omp_get_max_threads(), n_threads = n_buffers < n_wanted ? n_buffers : n_wanted;
    float *scores;
    ZERO_TRY(zero_scratch_take(&scratch, (n_threads == 0 ? 1 : n_threads) * bytes, &scores));
#pragma omp parallel for schedule(static) num_threads((int)n_threads)
    for (size_t head = 0; head < n_heads; ++head) {
        const float *keys = (float *)cache + head / (n_heads / n_kv_heads) * head_dim;
        const float *values = keys + n_kv_heads * head_dim;
        float *own = scores + (size_t)omp_get_thread_num() * (bytes / sizeof(float));
        for (size_t t = 0; t < n_new; ++t) {
            size_t n = first + t + 1, hidden = window > 0 && window < n ? n - window : 0;
            attend((float *)out + (t * n_heads + head) * head_dim, (const float *)qkv + t * row + head * head_dim,
                   keys + hidden * width, values + hidden * width, width, n - hidden, head_dim, own);
        }
    }
    return ZERO_OK;
}
