/* embed.cu - token and position embedding on CUDA.
 *
 * Backward turns the scatter around: the positions of each token are brought together in ascending order, a run,
 * then each occurring token's row is summed by one block along its run, in fp32, and rounded once. No two blocks write
 * one element; the order is the positions'. For the runs, tokens are counted and positions dropped into their token's
 * bucket in whatever order atomics give (of integers: no sum depends on it), and then each bucket is ranked by
 * position, which makes the order the one there is. Ranking takes time quadratic in the longest bucket, but spread over
 * as many threads.
 */
#include "kernels/pack.cuh"

#define THREADS 256

/* ---- Forward ---- */

/* A token below 0 gives NaN rather than a read outside the table, whose height is not known here. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    embed(T *out, const int32_t *tokens, const T *token_table, const T *position_table, size_t seq_len, size_t dim,
          size_t n_packs)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_packs)
        return;
    size_t row_packs = dim / N, row = i / row_packs, column = i % row_packs * N;
    int32_t token = tokens[row];
    zero_pack<T, N> x = zero_load<N>(token_table, (size_t)(token < 0 ? 0 : token) * dim + column), p = {};
    if (position_table != nullptr)
        p = zero_load<N>(position_table, row % seq_len * dim + column);
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k)
        sum[k] = token < 0 ? NAN : position_table != nullptr ? x[k] + p[k] : x[k];
    zero_store(out, i * N, sum);
}

template <int N, typename T>
static cudaError_t launch_embed(cudaStream_t stream, T *out, const int32_t *tokens, const T *token_table,
                                const T *position_table, size_t n_rows, size_t seq_len, size_t dim)
{
    size_t n_packs = n_rows * (dim / N);
    embed<T, N><<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>(
        out, tokens, token_table, position_table, seq_len, dim, n_packs);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_embed(cudaStream_t stream, zero_dtype_t dtype, void *out, const int32_t *tokens,
                                         const void *token_table, const void *position_table, size_t n_rows,
                                         size_t seq_len, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(out) && zero_aligned(token_table) && zero_aligned(position_table) && dim % N == 0)
            return launch_embed<N>(stream, (T *)out, tokens, (const T *)token_table, (const T *)position_table, n_rows,
                                   seq_len, dim);
        return launch_embed<1>(stream, (T *)out, tokens, (const T *)token_table, (const T *)position_table, n_rows,
                               seq_len, dim);
    });
}

/* ---- Backward: the tokens' order ---- */

/* The last bucket holds what is no token of the vocabulary. */
static __device__ __forceinline__ uint32_t bucket_of(int32_t token, size_t vocab_size)
{
    return token >= 0 && (size_t)token < vocab_size ? (uint32_t)token : (uint32_t)vocab_size;
}

static __global__ void __launch_bounds__(THREADS)
    count_tokens(uint32_t *counts, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_rows)
        atomicAdd(&counts[bucket_of(tokens[i], vocab_size)], 1u);
}

/* Gives every bucket a stretch of its own, next to each other in whatever order they come: runs are summed one by one,
 * so where they lie makes no difference. next starts as a copy of starts. */
static __global__ void __launch_bounds__(THREADS)
    place_buckets(uint32_t *starts, uint32_t *next, uint32_t *n_placed, const uint32_t *counts, size_t n_buckets)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_buckets && counts[i] > 0)
        starts[i] = next[i] = atomicAdd(n_placed, counts[i]);
}

static __global__ void __launch_bounds__(THREADS)
    fill_buckets(uint32_t *unordered, uint32_t *next, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_rows)
        unordered[atomicAdd(&next[bucket_of(tokens[i], vocab_size)], 1u)] = (uint32_t)i;
}

static __global__ void __launch_bounds__(THREADS)
    rank_buckets(uint32_t *sorted, uint32_t *order, const uint32_t *unordered, const uint32_t *starts,
                 const uint32_t *counts, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_rows)
        return;
    uint32_t position = unordered[i], bucket = bucket_of(tokens[position], vocab_size);
    uint32_t start = starts[bucket], count = counts[bucket], rank = 0;
#pragma unroll 8
    for (uint32_t j = 0; j < count; ++j)
        rank += unordered[start + j] < position;
    order[start + rank] = position;
    sorted[start + rank] = bucket;
}

/* counts of every bucket and the number placed, starts and next of every bucket, positions by bucket */
extern "C" size_t zero_embed_sort_bytes(size_t n_rows, size_t vocab_size)
{
    return (3 * (vocab_size + 1) + 1 + n_rows) * sizeof(uint32_t);
}

extern "C" cudaError_t zero_launch_embed_sort(cudaStream_t stream, uint32_t *scratch, uint32_t *sorted, uint32_t *order,
                                              const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t n_buckets = vocab_size + 1;
    uint32_t *counts = scratch, *n_placed = counts + n_buckets, *starts = n_placed + 1, *next = starts + n_buckets;
    uint32_t *unordered = next + n_buckets;
    unsigned n_blocks = (unsigned)zero_divide_up(n_rows, THREADS);
    cudaError_t error = cudaMemsetAsync(counts, 0, (n_buckets + 1) * sizeof *counts, stream);
    if (error != cudaSuccess)
        return error;
    count_tokens<<<n_blocks, THREADS, 0, stream>>>(counts, tokens, n_rows, vocab_size);
    place_buckets<<<(unsigned)zero_divide_up(n_buckets, THREADS), THREADS, 0, stream>>>(starts, next, n_placed, counts,
                                                                                        n_buckets);
    fill_buckets<<<n_blocks, THREADS, 0, stream>>>(unordered, next, tokens, n_rows, vocab_size);
    rank_buckets<<<n_blocks, THREADS, 0, stream>>>(sorted, order, unordered, starts, counts, tokens, n_rows,
                                                   vocab_size);
    return cudaGetLastError();
}

/* ---- Backward: sums ---- */

#define ROWS_AHEAD 8 /* rows whose loads are in flight together */
#define SPLIT 4      /* stretches that a run is cut into */

/* Block i takes the run that starts at i, if one does; blockIdx.y and the lanes take columns. The run is cut into SPLIT
 * stretches, of which each warp sums one in order; the stretches are added in order. */
template <typename T, int N>
static __global__ void __launch_bounds__(ZERO_WARP *SPLIT)
    sum_tokens(zero_grad_t dtokens, const T *dout, const uint32_t *counts, const uint32_t *sorted,
               const uint32_t *order, size_t dim, size_t vocab_size)
{
    __shared__ float sums[SPLIT - 1][N][ZERO_WARP];
    size_t start = blockIdx.x, column = ((size_t)blockIdx.y * ZERO_WARP + threadIdx.x) * N;
    uint32_t token = sorted[start];
    if ((start > 0 && sorted[start - 1] == token) || token >= vocab_size)
        return; /* the whole block */
    uint32_t count = counts[token], y = threadIdx.y;
    uint32_t first = (uint32_t)((uint64_t)y * count / SPLIT), last = (uint32_t)((uint64_t)(y + 1) * count / SPLIT);
    float sum[N] = {};
    if (column < dim) {
        for (uint32_t i = first; i < last; i += ROWS_AHEAD) {
            zero_pack<T, N> rows[ROWS_AHEAD];
#pragma unroll
            for (uint32_t r = 0; r < ROWS_AHEAD; ++r)
                if (i + r < last)
                    rows[r] = zero_load<N>(dout, (size_t)order[start + i + r] * dim + column);
#pragma unroll
            for (uint32_t r = 0; r < ROWS_AHEAD; ++r)
#pragma unroll
                for (int k = 0; k < N; ++k)
                    if (i + r < last)
                        sum[k] += rows[r][k];
        }
    }
    if (y > 0) {
#pragma unroll
        for (int k = 0; k < N; ++k)
            sums[y - 1][k][threadIdx.x] = sum[k];
    }
    __syncthreads();
    if (y > 0 || column >= dim)
        return;
    for (int stretch = 0; stretch < SPLIT - 1; ++stretch)
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum[k] += sums[stretch][k][threadIdx.x];
    zero_put_grad(dtokens, token * dim + column, sum);
}

/* dpositions[t] = sum of dout[b, t] over b, in order. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_positions(zero_grad_t dpositions, const T *dout, size_t n_batch, size_t n_elems)
{
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (at >= n_elems)
        return;
    float sum[N] = {};
#pragma unroll 4
    for (size_t batch = 0; batch < n_batch; ++batch) {
        zero_pack<T, N> pack = zero_load<N>(dout, batch * n_elems + at);
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum[k] += pack[k];
    }
    zero_put_grad(dpositions, at, sum);
}

template <int N, typename T>
static cudaError_t launch_tokens(cudaStream_t stream, zero_grad_t dtokens, const T *dout, const uint32_t *counts,
                                 const uint32_t *sorted, const uint32_t *order, size_t n_rows, size_t dim,
                                 size_t vocab_size)
{
    dim3 grid((unsigned)n_rows, (unsigned)zero_divide_up(dim / N, ZERO_WARP)), block(ZERO_WARP, SPLIT);
    sum_tokens<T, N><<<grid, block, 0, stream>>>(dtokens, dout, counts, sorted, order, dim, vocab_size);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_embed_tokens_backward(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t dtokens,
                                                         const void *dout, const uint32_t *scratch,
                                                         const uint32_t *sorted, const uint32_t *order, size_t n_rows,
                                                         size_t dim, size_t vocab_size)
{
    const uint32_t *counts = scratch; /* as zero_launch_embed_sort lays it out */
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(dout) && dim % N == 0)
            return launch_tokens<N>(stream, dtokens, (const T *)dout, counts, sorted, order, n_rows, dim, vocab_size);
        return launch_tokens<1>(stream, dtokens, (const T *)dout, counts, sorted, order, n_rows, dim, vocab_size);
    });
}

extern "C" cudaError_t zero_launch_embed_positions_backward(cudaStream_t stream, zero_dtype_t dtype,
                                                            zero_grad_t dpositions, const void *dout, size_t n_batch,
                                                            size_t seq_len, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        size_t n_elems = seq_len * dim;
        if (zero_aligned(dout) && n_elems % N == 0)
            sum_positions<T, N><<<(unsigned)zero_divide_up(n_elems, THREADS * N), THREADS, 0, stream>>>(
                dpositions, (const T *)dout, n_batch, n_elems);
        else
            sum_positions<T, 1><<<(unsigned)zero_divide_up(n_elems, THREADS), THREADS, 0, stream>>>(
                dpositions, (const T *)dout, n_batch, n_elems);
        return cudaGetLastError();
    });
}
