/* head.cuh - what attention's kernels share: where a head's rows are, and which keys a query sees.
 *
 * A mask takes away each query's first keys, never fewer than from the query before.
 */
#ifndef ZERO_ATTENTION_HEAD_CUH
#define ZERO_ATTENTION_HEAD_CUH

#include "train/kernels/cuda/pack.cuh"

/* One head of one sequence. The stride of its rows, in elements, is `width` (q, k, v) or `out_width`. */
typedef struct head {
    size_t q, k, v, out, lse; /* offsets of row 0 in qkv, out and logsumexp */
    size_t width, out_width;
} head_t;

typedef struct sizes {
    int n_batch, seq_len, n_heads, n_kv_heads, head_dim;
} sizes_t;

static __device__ __forceinline__ head_t head_at(sizes_t s, int batch, int head)
{
    size_t width = (size_t)(s.n_heads + 2 * s.n_kv_heads) * s.head_dim, first = (size_t)batch * s.seq_len * width;
    int kv_head = head / (s.n_heads / s.n_kv_heads);
    head_t h;
    h.q = first + (size_t)head * s.head_dim;
    h.k = first + (size_t)(s.n_heads + kv_head) * s.head_dim;
    h.v = first + (size_t)(s.n_heads + s.n_kv_heads + kv_head) * s.head_dim;
    h.out = ((size_t)batch * s.seq_len * s.n_heads + head) * s.head_dim;
    h.lse = ((size_t)batch * s.n_heads + head) * s.seq_len;
    h.width = width;
    h.out_width = (size_t)s.n_heads * s.head_dim;
    return h;
}

/* What queries do not see: zero_mask_t, of all sequences. window 0: none. */
typedef struct mask {
    const int32_t *starts;
    int window;
} mask_t;

/* Returns the first key that query t sees, whose document begins at `start`. */
static __device__ __forceinline__ int first_key_from(mask_t m, int start, int t)
{
    return m.window > 0 ? max(start, t - m.window + 1) : start;
}

/* Returns the first key that a query sees; of rows beyond the sequence that of its last. */
static __device__ __forceinline__ int first_key(mask_t m, sizes_t s, int batch, int query)
{
    int t = min(query, s.seq_len - 1);
    return first_key_from(m, m.starts != nullptr ? m.starts[(size_t)batch * s.seq_len + t] : 0, t);
}

/* ---- Launching ---- */

static inline mask_t mask_of(const zero_mask_t *mask)
{
    return {mask->starts, (int)mask->window};
}

static inline sizes_t sizes_of(const zero_attention_shape_t *shape)
{
    return {(int)shape->n_batch, (int)shape->seq_len, (int)shape->n_heads, (int)shape->n_kv_heads,
            (int)shape->head_dim};
}

/* A compile-time number as an argument. */
template <int N> struct constant {
    static constexpr int value = N;
};

/* Allows a kernel to use more than 48 KiB of shared memory, if it needs that much. */
static inline cudaError_t allow_shared(const void *kernel, size_t n_bytes)
{
    return n_bytes <= 48 << 10
               ? cudaSuccess
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
}

#endif
