/* norms.cu - LayerNorm on CUDA, with the residual sum before it (Ba, Kiros, Hinton 2016, arXiv:1607.06450).
 *
 * Forward: one or more warps own a row and keep it in registers, so each tensor is read or written once. Mean and
 * variance are those of the residual sum as it was rounded and stored. Backward is in norms.cuh; it computes y
 * by the same expressions as forward, so a recomputed y has the same bits.
 */
#include "train/kernels/cuda/norms.cuh"

/* Returns the sum over the threads of a row, `n_warps` neighbouring warps from `first_warp` on; every thread gets it.
 * shared[NORM_MAX_WARPS] must not be used twice. */
static __device__ __forceinline__ float row_sum(float x, int n_warps, int first_warp, float *shared)
{
    x = zero_warp_sum(x);
    if (n_warps == 1)
        return x;
    norm_share_warp_sums(x, shared);
    float sum = shared[first_warp];
    for (int w = 1; w < n_warps; ++w)
        sum += shared[first_warp + w];
    return sum;
}

struct layer_norm {
    static constexpr int SUMS = 3;
    static __device__ __forceinline__ float weight(float w, float)
    {
        return w;
    }
    static __device__ __forceinline__ float unit(float x, float mean, float rstd)
    {
        return (x - mean) * rstd;
    }
    /* Without a bias b is 0, which changes at most the sign of a zero. */
    static __device__ __forceinline__ float scaled(float h, float w, float b)
    {
        return fmaf(h, w, b);
    }
};

/* Stores the row's new residual if it has changed or goes elsewhere, and returns this thread's sum of it. */
template <typename T, int N, int PACKS>
static __device__ __forceinline__ float store_residual(const norm_row<T, N, PACKS> &row, T *residual_out, bool changed)
{
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!row.is_mine(p))
            continue;
        if (changed)
            zero_store_pack<N>(residual_out, row.start + row.column(p), row.x[p]);
#pragma unroll
        for (int i = 0; i < N; ++i)
            sum += row.x[p][i];
    }
    return sum;
}

/* Returns this thread's sum of squared differences from the mean. */
template <typename T, int N, int PACKS>
static __device__ __forceinline__ float sum_variation(const norm_row<T, N, PACKS> &row, float mean)
{
    float variation = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!row.is_mine(p))
            continue;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float d = row.x[p][i] - mean;
            variation = fmaf(d, d, variation);
        }
    }
    return variation;
}

template <typename T, int N, int PACKS, typename MAXIMUM>
static __device__ __forceinline__ void store_normalized(const norm_row<T, N, PACKS> &row, T *y, const T *weight,
                                                        const T *bias, float mean, float rstd, MAXIMUM &maximum)
{
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!row.is_mine(p))
            continue;
        zero_pack<T, N> w = zero_load<N>(weight, row.column(p)), b = {};
        float out[N];
        if (bias != nullptr)
            b = zero_load<N>(bias, row.column(p));
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] = layer_norm::scaled(layer_norm::unit(row.x[p][i], mean, rstd), w[i], b[i]);
        zero_pack<T, N> rounded = zero_packed<T>(out);
        zero_store_pack<N>(y, row.start + row.column(p), rounded);
        maximum.see(rounded);
    }
}

/* blockDim.x threads: NORM_BLOCK_WARPS rows of one warp, or one row of all warps. A kernel that records its maximum is
 * held to the registers of the one that does not. */
template <typename T, int N, int PACKS, typename MAXIMUM>
static __global__ void __launch_bounds__(NORM_MAX_WARPS *ZERO_WARP, MAXIMUM::RECORDS &&N > 1 && PACKS == 2 ? 4 : 0)
    layernorm(T *y, float *mean, float *rstd, T *residual_out, const T *residual, const T *addend, const T *weight,
              const T *bias, float eps, size_t n_rows, int dim, int row_warps, MAXIMUM maximum)
{
    __shared__ float shared[2][NORM_MAX_WARPS];
    int warp = threadIdx.x / ZERO_WARP, width = row_warps * ZERO_WARP, t = threadIdx.x % width;
    size_t row = (size_t)blockIdx.x * (blockDim.x / width) + warp / row_warps;
    if (row >= n_rows) /* whole warps, and only if each row takes one warp: no barrier waits for them */
        return;
    norm_row<T, N, PACKS> own{row * dim, t, width, dim / N};
    own.read(residual, addend);
    float sum = store_residual(own, residual_out, residual_out != residual || addend != nullptr);
    float center = row_sum(sum, row_warps, warp - warp % row_warps, shared[0]) / (float)dim;
    float variation = row_sum(sum_variation(own, center), row_warps, warp - warp % row_warps, shared[1]);
    float scale = 1.0f / sqrtf(variation / (float)dim + eps);
    if (t == 0) {
        mean[row] = center;
        rstd[row] = scale;
    }
    store_normalized(own, y, weight, bias, center, scale, maximum);
    maximum.finish(row_warps > 1);
}

template <typename T, int N, int PACKS, typename MAXIMUM>
static cudaError_t launch_forward(cudaStream_t stream, T *y, float *mean, float *rstd, T *residual_out,
                                  const T *residual, const T *addend, const T *weight, const T *bias, float eps,
                                  size_t n_rows, size_t dim, MAXIMUM maximum)
{
    size_t row_warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    if (row_warps > NORM_MAX_WARPS)
        return cudaErrorInvalidValue;
    size_t rows = row_warps == 1 ? NORM_BLOCK_WARPS : 1;
    layernorm<T, N, PACKS>
        <<<(unsigned)zero_divide_up(n_rows, rows), (unsigned)(rows * row_warps * ZERO_WARP), 0, stream>>>(
            y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows, (int)dim, (int)row_warps,
            maximum);
    return cudaGetLastError();
}

/* A row takes one warp if three packs per lane are enough. Else a thread takes two packs: many warps with few registers
 * hide the latency of the reductions better than few warps with many. The longest rows take four. */
template <typename T, typename MAXIMUM>
static cudaError_t choose_forward(cudaStream_t stream, T *y, float *mean, float *rstd, T *residual_out,
                                  const T *residual, const T *addend, const T *weight, const T *bias, float eps,
                                  size_t n_rows, size_t dim, MAXIMUM maximum)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(y) && zero_aligned(residual_out) && zero_aligned(residual) && zero_aligned(addend) &&
                 zero_aligned(weight) && zero_aligned(bias) && dim % N == 0;
    if (packs && dim / N <= 3 * ZERO_WARP)
        return launch_forward<T, N, 3>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                       dim, maximum);
    if (packs && dim / N <= 2 * 8 * ZERO_WARP)
        return launch_forward<T, N, 2>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                       dim, maximum);
    if (packs)
        return launch_forward<T, N, 4>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                       dim, maximum);
    return launch_forward<T, 1, 16>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                    dim, maximum);
}

extern "C" cudaError_t zero_launch_layernorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *mean, float *rstd,
                                             void *residual_out, const void *residual, const void *addend,
                                             const void *weight, const void *bias, float eps, size_t n_rows, size_t dim,
                                             uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return zero_with_maximum<T>(absmax, [&](auto maximum) {
            return choose_forward(stream, (T *)y, mean, rstd, (T *)residual_out, (const T *)residual, (const T *)addend,
                                  (const T *)weight, (const T *)bias, eps, n_rows, dim, maximum);
        });
    });
}

/* ---- Backward ---- */

extern "C" cudaError_t zero_launch_layernorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual,
                                                      float *partials, void *y, const void *dy, const void *residual,
                                                      const float *mean, const float *rstd, const void *weight,
                                                      const void *bias, size_t n_rows, size_t dim, uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return norm_backward_of<layer_norm>(stream, norm_rows<T>{(T *)dresidual, partials, (T *)y, (const T *)dy,
                                                                 (const T *)residual, mean, rstd, (const T *)weight,
                                                                 (const T *)bias, n_rows, (int)dim, absmax, 0.0f});
    });
}

/* ---- rmsnorm ---- */
/* RMSNorm on CUDA, with the residual sum before it (Zhang, Sennrich 2019, arXiv:1910.07467).
 *
 * Forward: one or more warps own a row and keep it in registers, so each tensor is read or written once. The mean
 * square is that of the residual sum as it was rounded and stored. Backward is in norms.cuh; it computes y by
 * the same expressions as forward, so a recomputed y has the same bits. */

#define MAX_PACKS 4 /* of 16 bytes, per thread; longer rows are read element by element */

/* Returns the sum over the threads of a row, `n_warps` neighbouring warps from `first_warp` on, in a fixed tree; every
 * thread gets it. shared[NORM_MAX_WARPS] must have been read before it is used again. */
static __device__ __forceinline__ float row_sum_by_tree(float x, int n_warps, int first_warp, float *shared)
{
    x = zero_warp_sum(x);
    if (n_warps == 1)
        return x;
    norm_share_warp_sums(x, shared);
    int lane = threadIdx.x % ZERO_WARP;
    return zero_warp_sum(lane < n_warps ? shared[first_warp + lane] : 0.0f);
}

struct rms_norm {
    static constexpr int SUMS = 1;
    static __device__ __forceinline__ float weight(float w, float offset)
    {
        return w + offset;
    }
    static __device__ __forceinline__ float unit(float x, float, float rstd)
    {
        return x * rstd;
    }
    static __device__ __forceinline__ float scaled(float h, float w, float)
    {
        return h * w;
    }
};

/* ---- Forward ---- */

/* blockDim.x threads: NORM_BLOCK_WARPS rows of one warp, or one row of all warps. */
template <typename T, int N, int PACKS, typename MAXIMUM>
static __global__ void __launch_bounds__(NORM_MAX_WARPS *ZERO_WARP, N > 1 && PACKS == 1 ? 4 : 1)
    rmsnorm(T *y, float *rstd, T *residual_out, const T *residual, const T *addend, const T *weight, float offset,
            float eps, size_t n_rows, int dim, int row_warps, MAXIMUM maximum)
{
    __shared__ float shared[NORM_MAX_WARPS];
    int warp = threadIdx.x / ZERO_WARP, width = row_warps * ZERO_WARP, t = threadIdx.x % width;
    size_t row = (size_t)blockIdx.x * (blockDim.x / width) + warp / row_warps;
    if (row >= n_rows) /* whole warps, and only if each row takes one warp: no barrier waits for them */
        return;
    norm_row<T, N, PACKS> own{row * dim, t, width, dim / N};
    zero_pack<T, N> w[PACKS];
    own.read(residual, addend);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) /* loads before the warps wait for each other */
        if (own.is_mine(p))
            w[p] = zero_load<N>(weight, own.column(p));
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!own.is_mine(p))
            continue;
        if (residual_out != residual || addend != nullptr)
            zero_store_pack<N>(residual_out, own.start + own.column(p), own.x[p]);
#pragma unroll
        for (int i = 0; i < N; ++i)
            squares = fmaf(own.x[p][i], own.x[p][i], squares);
    }
    float scale = 1.0f / sqrtf(row_sum_by_tree(squares, row_warps, warp - warp % row_warps, shared) / (float)dim + eps);
    if (t == 0)
        rstd[row] = scale;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (!own.is_mine(p))
            continue;
        float out[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] =
                rms_norm::scaled(rms_norm::unit(own.x[p][i], 0.0f, scale), rms_norm::weight(w[p][i], offset), 0.0f);
        zero_pack<T, N> rounded = zero_packed<T>(out);
        zero_store_pack<N>(y, own.start + own.column(p), rounded);
        maximum.see(rounded);
    }
    maximum.finish(row_warps > 1);
}

template <typename T, int N, int PACKS, typename MAXIMUM>
static cudaError_t launch_rms_forward(cudaStream_t stream, T *y, float *rstd, T *residual_out, const T *residual,
                                      const T *addend, const T *weight, float offset, float eps, size_t n_rows,
                                      size_t dim, MAXIMUM maximum)
{
    size_t row_warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    if (row_warps > NORM_MAX_WARPS)
        return cudaErrorInvalidValue;
    size_t rows = row_warps == 1 ? NORM_BLOCK_WARPS : 1;
    rmsnorm<T, N, PACKS>
        <<<(unsigned)zero_divide_up(n_rows, rows), (unsigned)(rows * row_warps * ZERO_WARP), 0, stream>>>(
            y, rstd, residual_out, residual, addend, weight, offset, eps, n_rows, (int)dim, (int)row_warps, maximum);
    return cudaGetLastError();
}

/* Few packs per thread: many warps with few registers hide latency better than few warps with many. The residual sum
 * loads two packs for each that it keeps, so a thread keeps one if a block then covers the row. */
template <typename T, typename MAXIMUM>
static cudaError_t choose_rms_forward(cudaStream_t stream, T *y, float *rstd, T *residual_out, const T *residual,
                                      const T *addend, const T *weight, float offset, float eps, size_t n_rows,
                                      size_t dim, MAXIMUM maximum)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(y) && zero_aligned(residual_out) && zero_aligned(residual) && zero_aligned(addend) &&
                 zero_aligned(weight) && dim % N == 0 && dim / N <= MAX_PACKS * NORM_MAX_WARPS * ZERO_WARP;
    auto launch = !packs                                      ? launch_rms_forward<T, 1, 32, MAXIMUM>
                  : dim / N <= NORM_MAX_WARPS * ZERO_WARP     ? launch_rms_forward<T, N, 1, MAXIMUM>
                  : dim / N <= 2 * NORM_MAX_WARPS * ZERO_WARP ? launch_rms_forward<T, N, 2, MAXIMUM>
                                                              : launch_rms_forward<T, N, MAX_PACKS, MAXIMUM>;
    return launch(stream, y, rstd, residual_out, residual, addend, weight, offset, eps, n_rows, dim, maximum);
}

extern "C" cudaError_t zero_launch_rmsnorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *rstd,
                                           void *residual_out, const void *residual, const void *addend,
                                           const void *weight, float offset, float eps, size_t n_rows, size_t dim,
                                           uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return zero_with_maximum<T>(absmax, [&](auto maximum) {
            return choose_rms_forward(stream, (T *)y, rstd, (T *)residual_out, (const T *)residual, (const T *)addend,
                                      (const T *)weight, offset, eps, n_rows, dim, maximum);
        });
    });
}

/* ---- Backward ---- */

extern "C" cudaError_t zero_launch_rmsnorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual,
                                                    float *partials, void *y, const void *dy, const void *residual,
                                                    const float *rstd, const void *weight, float offset, size_t n_rows,
                                                    size_t dim, uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return norm_backward_of<rms_norm>(stream, norm_rows<T>{(T *)dresidual, partials, (T *)y, (const T *)dy,
                                                               (const T *)residual, nullptr, rstd, (const T *)weight,
                                                               nullptr, n_rows, (int)dim, absmax, offset});
    });
}
