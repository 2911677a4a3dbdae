/* attention_cached.cu - attention of a few new positions to a text's earlier ones, whose keys and values are in a
 * cache.
 *
 * One row at a time reads all keys and values once and computes next to nothing, so they are spread over many blocks,
 * as in Flash-Decoding (Dao et al. 2023). Keys come in chunks of THREADS, counted from the text's beginning. Chunk c
 * belongs to split c % n_splits, and a block is one split of one row and head. It keeps a running maximum and sum
 * (attention/simt/simt.cu), and `combine` adds up the splits in their order. How many splits there are depends on the
 * limits alone, and how many positions came before is read from device memory: so a CUDA graph serves every position,
 * and a row has the same bits however many rows are computed with it.
 *
 * LANES threads share a key: each holds some packs of the query and of the row's result. A chunk takes two passes, over
 * keys and over values, with the chunk's probabilities in shared memory between them.
 *
 * New keys and values are read from qkv. The blocks of split 0 copy them to the cache, which no block reads there.
 */
#include "train/kernels/cuda/pack.cuh"

#define THREADS ZERO_CACHED_CHUNK
#define WARPS (THREADS / ZERO_WARP)
#define MAX_ELEMS (ZERO_ATTENTION_MAX_HEAD_DIM / ZERO_WARP) /* of a head that a thread holds */
#define AT_ONCE 4                                           /* keys for which a thread loads before it computes */

/* What a block needs to find its row, head and keys. */
typedef struct place {
    int first, n, hidden; /* keys hidden .. n are seen; those from `first` on are new */
    size_t row, width;    /* elements from one row of qkv, or of the cache, to the next */
    size_t q, k;          /* offsets: of q in qkv, of the head's key in a row of the cache */
    size_t new_k;         /* of the head's key in a row of qkv */
} place_t;

static __device__ __forceinline__ place_t place_of(const zero_cached_t &c, int head, int t)
{
    place_t p;
    size_t kv_head = head / (c.n_heads / c.n_kv_heads), q_elems = (size_t)c.n_heads * c.head_dim;
    p.first = -c.starts[0];
    p.n = p.first + t + 1;
    p.hidden = c.window > 0 && c.window < p.n ? p.n - c.window : 0;
    p.width = 2 * (size_t)c.n_kv_heads * c.head_dim;
    p.row = q_elems + p.width;
    p.q = t * p.row + (size_t)head * c.head_dim;
    p.k = kv_head * c.head_dim;
    p.new_k = q_elems + p.k;
    return p;
}

/* Sums or maxima over the block, in a fixed order; every thread gets the result. `shared` holds WARPS numbers, which
 * were last read before a barrier. */
template <typename F>
static __device__ __forceinline__ float block_reduce(float x, float *shared, float start, F combine)
{
#pragma unroll
    for (int offset = ZERO_WARP / 2; offset > 0; offset /= 2)
        x = combine(x, __shfl_xor_sync(ZERO_FULL_WARP, x, offset));
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = x;
    __syncthreads();
    x = start;
#pragma unroll
    for (int i = 0; i < WARPS; ++i)
        x = combine(x, shared[i]);
    return x;
}

/* Calls use(u, values) for up to AT_ONCE keys, base + u * step < end, after it has loaded them all; `row` gives a key's
 * address. */
template <int N, typename T, typename R, typename U>
static __device__ __forceinline__ void for_keys(int base, int step, int end, int offset, bool mine, R row, U use)
{
    zero_pack<T, N> loaded[AT_ONCE] = {};
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u)
        if (mine && base + u * step < end)
            loaded[u] = zero_load<N>(row(base + u * step), offset);
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u)
        if (mine && base + u * step < end)
            use(u, loaded[u]);
}

/* Split blockIdx.x of head blockIdx.y and row first_row + blockIdx.z. partials NULL: there is one split, and `out` gets
 * its result. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    attend(T *out, float *partials, T *cache, const T *qkv, zero_cached_t c, float scale)
{
    constexpr int PACKS = MAX_ELEMS / N;
    __shared__ float probs[THREADS], maxima[WARPS], sums[WARPS], parts[THREADS * MAX_ELEMS];
    zero_may_launch_next();
    int split = blockIdx.x, head = blockIdx.y, t = c.first_row + blockIdx.z, thread = threadIdx.x;
    int lane = thread % c.lanes, group = thread / c.lanes, groups = THREADS / c.lanes, n_packs = c.head_dim / N;
    place_t p = place_of(c, head, t);
    size_t values_behind = (size_t)c.n_kv_heads * c.head_dim;
    if (split == 0 && head % (c.n_heads / c.n_kv_heads) == 0 && thread < c.head_dim) {
        const T *from = qkv + t * p.row + p.new_k + thread;
        T *to = cache + (p.first + t) * p.width + p.k + thread;
        to[0] = from[0];
        to[values_behind] = from[values_behind];
    }
    auto key_at = [&](int key) -> const T * {
        return key < p.first ? cache + key * p.width + p.k : qkv + (key - p.first) * p.row + p.new_k;
    };
    auto value_at = [&](int key) { return key_at(key) + values_behind; };
    zero_pack<T, N> q[PACKS] = {};
    float acc[PACKS][N] = {}, max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
        if (lane + i * c.lanes < n_packs)
            q[i] = zero_load<N>(qkv, p.q + (size_t)(lane + i * c.lanes) * N);
    for (int chunk = p.hidden / THREADS + split; chunk * THREADS < p.n; chunk += c.n_splits) {
        int base = chunk * THREADS, end = min(base + THREADS, p.n);
        for (int key = base + group; key < base + THREADS; key += AT_ONCE * groups) {
            float dots[AT_ONCE] = {};
#pragma unroll
            for (int i = 0; i < PACKS; ++i)
                for_keys<N, T>(key, groups, end, (lane + i * c.lanes) * N, lane + i * c.lanes < n_packs, key_at,
                               [&](int u, const zero_pack<T, N> &k) {
#pragma unroll
                                   for (int j = 0; j < N; ++j)
                                       dots[u] = fmaf(q[i][j], k[j], dots[u]);
                               });
            for (int offset = c.lanes / 2; offset > 0; offset /= 2)
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u)
                    dots[u] += __shfl_xor_sync(ZERO_FULL_WARP, dots[u], offset);
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u)
                if (lane == 0 && key + u * groups < base + THREADS)
                    probs[key + u * groups - base] = dots[u] * scale;
        }
        __syncthreads();
        bool seen = p.hidden <= base + thread && base + thread < end;
        float score = seen ? probs[thread] : -INFINITY;
        float new_max =
            fmaxf(max, block_reduce(score, maxima, -INFINITY, [](float a, float b) { return fmaxf(a, b); }));
        float shift = new_max > -INFINITY ? new_max : 0.0f; /* else no key so far is seen */
        float prob = seen ? expf(score - shift) : 0.0f, rescale = expf(max - shift);
        probs[thread] = prob;
        sum = fmaf(sum, rescale, block_reduce(prob, sums, 0.0f, [](float a, float b) { return a + b; }));
        max = new_max;
#pragma unroll
        for (int i = 0; i < PACKS; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j)
                acc[i][j] *= rescale;
        for (int key = base + group; key < end; key += AT_ONCE * groups)
#pragma unroll
            for (int i = 0; i < PACKS; ++i)
                for_keys<N, T>(key, groups, end, (lane + i * c.lanes) * N, lane + i * c.lanes < n_packs, value_at,
                               [&](int u, const zero_pack<T, N> &v) {
                                   float weight = probs[key + u * groups - base];
#pragma unroll
                                   for (int j = 0; j < N; ++j)
                                       acc[i][j] = fmaf(weight, v[j], acc[i][j]);
                               });
        __syncthreads(); /* probs have been read */
    }
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
            if (lane + i * c.lanes < n_packs)
                parts[group * c.head_dim + (lane + i * c.lanes) * N + j] = acc[i][j];
    __syncthreads();
    if (thread >= c.head_dim)
        return;
    float total = 0.0f;
    for (int g = 0; g < groups; ++g)
        total += parts[g * c.head_dim + thread];
    if (partials == nullptr) {
        out[((size_t)t * c.n_heads + head) * c.head_dim + thread] = zero_from_float<T>(total / sum);
        return;
    }
    float *mine =
        partials + (((size_t)blockIdx.z * c.n_heads + head) * c.n_splits + split) * (c.head_dim + ZERO_CACHED_STATS);
    mine[ZERO_CACHED_STATS + thread] = total;
    if (thread == 0) {
        mine[0] = max;
        mine[1] = sum;
    }
}

/* Head blockIdx.x of row first_row + blockIdx.y; a thread owns an element. Some split has seen a key. */
template <typename T>
static __global__ void __launch_bounds__(ZERO_ATTENTION_MAX_HEAD_DIM)
    combine(T *out, const float *partials, zero_cached_t c)
{
    zero_wait_for_last();
    int head = blockIdx.x, t = c.first_row + blockIdx.y, d = threadIdx.x, stride = c.head_dim + ZERO_CACHED_STATS;
    const float *splits = partials + ((size_t)blockIdx.y * c.n_heads + head) * c.n_splits * stride;
    float max = -INFINITY, sum = 0.0f, total = 0.0f;
    if (d >= c.head_dim)
        return;
    for (int i = 0; i < c.n_splits; ++i)
        max = fmaxf(max, splits[i * stride]);
    for (int i = 0; i < c.n_splits; ++i) {
        float weight = expf(splits[i * stride] - max);
        sum = fmaf(weight, splits[i * stride + 1], sum);
        total = fmaf(weight, splits[i * stride + ZERO_CACHED_STATS + d], total);
    }
    out[((size_t)t * c.n_heads + head) * c.head_dim + d] = zero_from_float<T>(total / sum);
}

/* Returns the least power of two that is at least n, and at most a warp. */
static int lanes_for(int n)
{
    int lanes = 1;
    while (lanes < n && lanes < ZERO_WARP)
        lanes *= 2;
    return lanes;
}

extern "C" cudaError_t zero_launch_attention_cached(cudaStream_t stream, zero_dtype_t dtype, void *out, float *partials,
                                                    void *cache, const void *qkv, const zero_cached_t *shape,
                                                    int n_rows)
{
    float scale = 1.0f / sqrtf((float)shape->head_dim);
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        bool packs = zero_aligned(qkv) && zero_aligned(cache) && shape->head_dim % N == 0;
        zero_cached_t c = *shape;
        c.lanes = lanes_for(packs ? c.head_dim / N : c.head_dim);
        dim3 grid((unsigned)c.n_splits, (unsigned)c.n_heads, (unsigned)n_rows);
        auto kernel = packs ? attend<T, N> : attend<T, 1>;
        kernel<<<grid, THREADS, 0, stream>>>((T *)out, c.n_splits > 1 ? partials : nullptr, (T *)cache, (const T *)qkv,
                                             c, scale);
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess || c.n_splits == 1)
            return error;
        dim3 heads((unsigned)c.n_heads, (unsigned)n_rows);
        unsigned threads = (unsigned)(zero_divide_up((size_t)c.head_dim, ZERO_WARP) * ZERO_WARP);
        return zero_launch_next(stream, combine<T>, heads, dim3(threads), (T *)out, (const float *)partials, c);
    });
}
