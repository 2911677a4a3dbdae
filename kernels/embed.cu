/* embed.cu - token and position embedding on CUDA.
 *
 * Backward turns the scatter around: a stable sort brings the positions of each token together in ascending order
 * (CUB's radix sort), then each occurring token's row is summed by one block along its run, in fp32, and rounded once.
 * No two blocks write one element; the order is the positions'.
 */
#include "kernels/pack.cuh"

#include <cub/device/device_radix_sort.cuh>

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
#pragma unroll
    for (int k = 0; k < N; ++k) {
        float sum = zero_to_float(x.elem[k]);
        if (position_table != nullptr)
            sum += zero_to_float(p.elem[k]);
        x.elem[k] = zero_from_float<T>(token < 0 ? NAN : sum);
    }
    zero_store(out, i * N, x);
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

static __global__ void __launch_bounds__(THREADS) count_up(uint32_t *positions, size_t n_rows)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_rows)
        positions[i] = (uint32_t)i;
}

/* CUB's own scratch, by a bound that holds on every GPU so that plans need none: histograms and look-back tables of a
 * few passes of 8 bits, and a second pair of buffers. */
static size_t cub_bytes(size_t n_rows)
{
    return ((size_t)4 << 20) + 16 * n_rows;
}

extern "C" size_t zero_embed_sort_bytes(size_t n_rows)
{
    return cub_bytes(n_rows) + n_rows * sizeof(uint32_t);
}

extern "C" cudaError_t zero_launch_embed_sort(cudaStream_t stream, void *scratch, size_t scratch_bytes,
                                              uint32_t *sorted, uint32_t *order, const int32_t *tokens, size_t n_rows,
                                              size_t vocab_size)
{
    uint32_t *positions = (uint32_t *)scratch;
    void *own = positions + zero_divide_up(n_rows, 64) * 64;
    size_t wanted = 0, have = scratch_bytes - ((char *)own - (char *)scratch);
    int n_bits = 1;
    while (n_bits < 32 && (vocab_size - 1) >> n_bits != 0)
        ++n_bits;
    const uint32_t *keys = (const uint32_t *)tokens;
    cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, wanted, keys, sorted, positions, order, (int)n_rows, 0,
                                                        n_bits, stream);
    if (error != cudaSuccess)
        return error;
    if (wanted > have)
        return cudaErrorMemoryAllocation;
    count_up<<<(unsigned)zero_divide_up(n_rows, THREADS), THREADS, 0, stream>>>(positions, n_rows);
    return cub::DeviceRadixSort::SortPairs(own, wanted, keys, sorted, positions, order, (int)n_rows, 0, n_bits, stream);
}

/* ---- Backward: sums ---- */

#define ROWS_AHEAD 8 /* rows whose loads are in flight together */

/* Block i takes the run that starts at i, if one does; blockIdx.y and the threads take columns. */
template <typename T, int N>
static __global__ void sum_tokens(zero_grad_t dtokens, const T *dout, const uint32_t *sorted, const uint32_t *order,
                                  size_t n_rows, size_t dim, size_t vocab_size)
{
    size_t start = blockIdx.x, column = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * N;
    uint32_t token = sorted[start];
    if ((start > 0 && sorted[start - 1] == token) || token >= vocab_size || column >= dim)
        return;
    float sum[N] = {};
    for (size_t i = start; i < n_rows && sorted[i] == token; i += ROWS_AHEAD) {
        zero_pack<T, N> rows[ROWS_AHEAD];
        bool mine[ROWS_AHEAD];
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r) {
            mine[r] = i + r < n_rows && sorted[i + r] == token;
            if (mine[r])
                rows[r] = zero_load<N>(dout, (size_t)order[i + r] * dim + column);
        }
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r)
#pragma unroll
            for (int k = 0; k < N; ++k)
                if (mine[r])
                    sum[k] += zero_to_float(rows[r].elem[k]);
    }
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
            sum[k] += zero_to_float(pack.elem[k]);
    }
    zero_put_grad(dpositions, at, sum);
}

template <int N, typename T>
static cudaError_t launch_tokens(cudaStream_t stream, zero_grad_t dtokens, const T *dout, const uint32_t *sorted,
                                 const uint32_t *order, size_t n_rows, size_t dim, size_t vocab_size)
{
    size_t packs = dim / N, threads = packs < THREADS ? zero_divide_up(packs, ZERO_WARP) * ZERO_WARP : THREADS;
    dim3 grid((unsigned)n_rows, (unsigned)zero_divide_up(packs, threads));
    sum_tokens<T, N><<<grid, (unsigned)threads, 0, stream>>>(dtokens, dout, sorted, order, n_rows, dim, vocab_size);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_embed_tokens_backward(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t dtokens,
                                                         const void *dout, const uint32_t *sorted,
                                                         const uint32_t *order, size_t n_rows, size_t dim,
                                                         size_t vocab_size)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(dout) && dim % N == 0)
            return launch_tokens<N>(stream, dtokens, (const T *)dout, sorted, order, n_rows, dim, vocab_size);
        return launch_tokens<1>(stream, dtokens, (const T *)dout, sorted, order, n_rows, dim, vocab_size);
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
