/* projection_norm.cu - RMSNorm of all of q and of all of k in a row on CUDA, as in OLMo 2 (Zhang & Sennrich 2019,
 * arXiv:1910.07467).
 *
 * A block takes q or k of a row at a time; its threads take turns with packs, twice: for the sums and for the result,
 * which the caches hold between. Backward: a fixed number of blocks takes turns with the rows. A thread always has the
 * same columns, whose sums of dy h it adds to the block's row of partials; column_sum.cu adds these rows. Which rows a
 * block takes depends on their number alone, so the bits are the same in every run.
 */
#include <type_traits>

#include "train/kernels/cuda/pack.cuh"

#define THREADS 256
#define WARPS (THREADS / ZERO_WARP)

/* Returns the sum over the block, in a fixed tree; every thread gets it. `shared` must not be in use. */
static __device__ __forceinline__ float block_sum(float x, float *shared)
{
    x = zero_warp_sum(x);
    __syncthreads(); /* all have read the last sums */
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = x;
    __syncthreads();
    float sum = shared[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w)
        sum += shared[w];
    return sum;
}

/* q or k: where it is in a row, how wide, and its weight. */
template <typename T> struct projection {
    size_t first, width, row_elems;
    const T *weight;

    __device__ __forceinline__ projection(const zero_projection_norm_t &norm, bool is_k)
        : first(is_k ? norm.q_width : 0), width(is_k ? norm.k_width : norm.q_width),
          row_elems(norm.q_width + 2 * norm.k_width), weight((const T *)(is_k ? norm.k_weight : norm.q_weight))
    {
    }
};

template <typename T, int N>
static __device__ __forceinline__ float row_rstd(const T *x, size_t width, float eps, float *shared)
{
    float squares = 0.0f;
    for (size_t at = (size_t)threadIdx.x * N; at < width; at += (size_t)THREADS * N) {
        zero_pack<T, N> in = zero_load<N>(x, at);
#pragma unroll
        for (int i = 0; i < N; ++i)
            squares = fmaf(in[i], in[i], squares);
    }
    return 1.0f / sqrtf(block_sum(squares, shared) / (float)width + eps);
}

/* Row blockIdx.x: q if blockIdx.y is 0, else k, and v, which is copied. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) projection_norm(T *y, zero_projection_norm_t norm)
{
    __shared__ float shared[WARPS];
    const projection<T> own(norm, blockIdx.y == 1);
    const T *x = (const T *)norm.qkv + blockIdx.x * own.row_elems + own.first;
    T *out = y + blockIdx.x * own.row_elems + own.first;
    float rstd = row_rstd<T, N>(x, own.width, norm.eps, shared);
    for (size_t at = (size_t)threadIdx.x * N; at < own.width; at += (size_t)THREADS * N) {
        zero_pack<T, N> in = zero_load<N>(x, at), w = zero_load<N>(own.weight, at);
        float values[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            values[i] = in[i] * rstd * (w[i] + norm.offset);
        zero_store(out, at, values);
    }
    for (size_t at = (size_t)threadIdx.x * N; blockIdx.y == 1 && at < own.width; at += (size_t)THREADS * N)
        zero_store_pack<N>(out, own.width + at, zero_load<N>(x, own.width + at));
}

/* Computes, with h = x rstd and g = dy w, rstd (g - h mean(g h)) in place of dy, for rows blockIdx.x, + gridDim.x, ...
 */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    projection_norm_backward(T *dqkv, float *q_partials, float *k_partials, zero_projection_norm_t norm)
{
    __shared__ float shared[WARPS];
    const projection<T> own(norm, blockIdx.y == 1);
    float *sums = (blockIdx.y == 1 ? k_partials : q_partials) + blockIdx.x * own.width;
    for (size_t row = blockIdx.x; row < norm.n_rows; row += gridDim.x) {
        const T *x = (const T *)norm.qkv + row * own.row_elems + own.first;
        T *dy = dqkv + row * own.row_elems + own.first;
        float rstd = row_rstd<T, N>(x, own.width, norm.eps, shared), gh = 0.0f;
        for (size_t at = (size_t)threadIdx.x * N; at < own.width; at += (size_t)THREADS * N) {
            zero_pack<T, N> in = zero_load<N>(x, at), w = zero_load<N>(own.weight, at), d = zero_load<N>(dy, at);
            zero_pack<float, N> before = {};
            float sum[N];
            if (row != blockIdx.x)
                before = zero_load<N>(sums, at);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float h = in[i] * rstd;
                gh = fmaf(d[i] * (w[i] + norm.offset), h, gh);
                sum[i] = fmaf(d[i], h, before[i]);
            }
            zero_store(sums, at, sum);
        }
        float gh_mean = block_sum(gh, shared) / (float)own.width;
        for (size_t at = (size_t)threadIdx.x * N; at < own.width; at += (size_t)THREADS * N) {
            zero_pack<T, N> in = zero_load<N>(x, at), w = zero_load<N>(own.weight, at), d = zero_load<N>(dy, at);
            float values[N];
#pragma unroll
            for (int i = 0; i < N; ++i)
                values[i] = rstd * fmaf(-gh_mean, in[i] * rstd, d[i] * (w[i] + norm.offset));
            zero_store(dy, at, values);
        }
    }
}

/* Calls f with the length of a pack as a compile-time constant. Partials are in the workspace, so they are aligned. */
template <typename T, typename F>
static cudaError_t with_packs(const zero_projection_norm_t *norm, const void *other, F f)
{
    constexpr int N = 16 / sizeof(T);
    if (zero_aligned(norm->qkv) && zero_aligned(other) && zero_aligned(norm->q_weight) &&
        zero_aligned(norm->k_weight) && norm->q_width % N == 0 && norm->k_width % N == 0)
        f(std::integral_constant<int, N>());
    else
        f(std::integral_constant<int, 1>());
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_projection_norm(cudaStream_t stream, zero_dtype_t dtype, void *y,
                                                   const zero_projection_norm_t *norm)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(norm, y, [&](auto n) {
            projection_norm<T, n><<<dim3((unsigned)norm->n_rows, 2), THREADS, 0, stream>>>((T *)y, *norm);
        });
    });
}

extern "C" cudaError_t zero_launch_projection_norm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv,
                                                            float *q_partials, float *k_partials,
                                                            const zero_projection_norm_t *norm)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(norm, dqkv, [&](auto n) {
            projection_norm_backward<T, n>
                <<<dim3((unsigned)zero_projection_norm_parts(norm->n_rows), 2), THREADS, 0, stream>>>(
                    (T *)dqkv, q_partials, k_partials, *norm);
        });
    });
}
