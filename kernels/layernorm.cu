/* layernorm.cu - LayerNorm on CUDA, with the residual sum before it (Ba, Kiros, Hinton 2016, arXiv:1607.06450).
 *
 * Forward: a row belongs to one or more warps, which hold it in registers from the only read to the only write, so each
 * tensor crosses memory once. Mean and variance are taken of the sum as it was rounded and stored, and y comes from one
 * expression, so backward repeats its bits where it makes y again.
 *
 * Backward: a block owns a part of the rows, cut by their number alone, and its threads own columns: dweight, dbias
 * and the columns of what it writes are summed in registers over the part's rows in order, and column_sum.cu adds the
 * parts. Several rows are in flight at a time so that their loads overlap.
 */
#include <cuda_pipeline_primitives.h>

#include "kernels/pack.cuh"

#define MAX_WARPS 16 /* of a block: leaves 128 registers a thread */

/* Sums over the threads of a row: `n_warps` warps side by side from `first_warp`. Every thread gets the result. */
static __device__ __forceinline__ float row_sum(float x, int n_warps, int first_warp, float *shared)
{
    x = zero_warp_sum(x);
    if (n_warps == 1)
        return x;
    int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP;
    __syncthreads(); /* the row before has been read */
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    float sum = shared[first_warp];
    for (int w = 1; w < n_warps; ++w)
        sum += shared[first_warp + w];
    return sum;
}

/* bias may be NULL: then b is 0, which adds nothing but the sign of a zero. */
static __device__ __forceinline__ float normalized(float x, float mean, float rstd, float w, float b)
{
    return fmaf((x - mean) * rstd, w, b);
}

#define BLOCK_WARPS 4 /* of a block whose rows take one warp each */

/* blockDim.x threads: BLOCK_WARPS rows of one warp, or one row of all warps. Thread t of a row owns packs t, t + width,
 * ... below n_packs, PACKS at most. */
template <typename T, int N, int PACKS>
static __global__ void __launch_bounds__(MAX_WARPS *ZERO_WARP)
    layernorm(T *y, float *mean, float *rstd, T *residual_out, const T *residual, const T *addend, const T *weight,
              const T *bias, float eps, size_t n_rows, int dim, int row_warps)
{
    __shared__ float shared[MAX_WARPS];
    int warp = threadIdx.x / ZERO_WARP, width = row_warps * ZERO_WARP, t = threadIdx.x % width;
    size_t row = (size_t)blockIdx.x * (blockDim.x / width) + warp / row_warps;
    if (row >= n_rows) /* whole warps, and only where rows take one warp: nobody waits for them */
        return;
    int n_packs = dim / N;
    size_t start = row * dim;
    zero_pack<T, N> x[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
        if (t + p * width < n_packs)
            x[p] = zero_load<N>(residual, start + (size_t)(t + p * width) * N);
    float sum = 0.0f, variation = 0.0f;
    if (addend != nullptr) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (t + p * width >= n_packs)
                continue;
            zero_pack<T, N> other = zero_load<N>(addend, start + (size_t)(t + p * width) * N);
            float total[N];
#pragma unroll
            for (int i = 0; i < N; ++i)
                total[i] = x[p][i] + other[i];
            x[p] = zero_packed<T>(total);
        }
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (t + p * width >= n_packs)
            continue;
        if (residual_out != residual || addend != nullptr)
            zero_store_pack<N>(residual_out, start + (size_t)(t + p * width) * N, x[p]);
#pragma unroll
        for (int i = 0; i < N; ++i)
            sum += x[p][i];
    }
    float center = row_sum(sum, row_warps, warp - warp % row_warps, shared) / (float)dim;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (t + p * width >= n_packs)
            continue;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float d = x[p][i] - center;
            variation = fmaf(d, d, variation);
        }
    }
    variation = row_sum(variation, row_warps, warp - warp % row_warps, shared);
    float scale = 1.0f / sqrtf(variation / (float)dim + eps);
    if (t == 0) {
        mean[row] = center;
        rstd[row] = scale;
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        int pack = t + p * width;
        if (pack >= n_packs)
            continue;
        zero_pack<T, N> w = zero_load<N>(weight, (size_t)pack * N), b = {};
        float out[N];
        if (bias != nullptr)
            b = zero_load<N>(bias, (size_t)pack * N);
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] = normalized(x[p][i], center, scale, w[i], bias != nullptr ? b[i] : 0.0f);
        zero_store(y, start + (size_t)pack * N, out);
    }
}

template <typename T, int N, int PACKS>
static cudaError_t launch_forward(cudaStream_t stream, T *y, float *mean, float *rstd, T *residual_out,
                                  const T *residual, const T *addend, const T *weight, const T *bias, float eps,
                                  size_t n_rows, size_t dim)
{
    size_t row_warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    if (row_warps > MAX_WARPS)
        return cudaErrorInvalidValue;
    size_t rows = row_warps == 1 ? BLOCK_WARPS : 1;
    layernorm<T, N, PACKS>
        <<<(unsigned)zero_divide_up(n_rows, rows), (unsigned)(rows * row_warps * ZERO_WARP), 0, stream>>>(
            y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows, (int)dim, (int)row_warps);
    return cudaGetLastError();
}

/* 2 packs a thread: many warps with few registers hide the reductions' latency better than few with many. */
template <typename T>
static cudaError_t choose_forward(cudaStream_t stream, T *y, float *mean, float *rstd, T *residual_out,
                                  const T *residual, const T *addend, const T *weight, const T *bias, float eps,
                                  size_t n_rows, size_t dim)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(y) && zero_aligned(residual_out) && zero_aligned(residual) && zero_aligned(addend) &&
                 zero_aligned(weight) && zero_aligned(bias) && dim % N == 0;
    if (packs && dim / N <= 2 * 8 * ZERO_WARP)
        return launch_forward<T, N, 2>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                       dim);
    if (packs)
        return launch_forward<T, N, 4>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                       dim);
    return launch_forward<T, 1, 16>(stream, y, mean, rstd, residual_out, residual, addend, weight, bias, eps, n_rows,
                                    dim);
}

extern "C" cudaError_t zero_launch_layernorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *mean, float *rstd,
                                             void *residual_out, const void *residual, const void *addend,
                                             const void *weight, const void *bias, float eps, size_t n_rows, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return choose_forward(stream, (T *)y, mean, rstd, (T *)residual_out, (const T *)residual, (const T *)addend,
                              (const T *)weight, (const T *)bias, eps, n_rows, dim);
    });
}

/* ---- Backward ---- */

#define MIN_PART_ROWS 8

extern "C" size_t zero_layernorm_parts(size_t n_rows)
{
    size_t parts = zero_divide_up(n_rows, MIN_PART_ROWS);
    return parts < ZERO_LAYERNORM_PARTS ? parts : ZERO_LAYERNORM_PARTS;
}

/* Two sums for each of ROWS rows over the block, in a fixed tree. `turn` alternates between calls: what was read last
 * time is overwritten the next but one, with this call's barrier between. */
template <int ROWS> static __device__ __forceinline__ void block_sums(float (&a)[ROWS], float (&b)[ROWS], int turn)
{
    struct alignas(sizeof(float) * 2 * ROWS) sums {
        float a[ROWS], b[ROWS];
    };
    __shared__ sums shared[2][MAX_WARPS];
    int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP, n_warps = blockDim.x / ZERO_WARP;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        a[r] = zero_warp_sum(a[r]);
        b[r] = zero_warp_sum(b[r]);
    }
    if (n_warps == 1)
        return;
    sums own;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        own.a[r] = a[r];
        own.b[r] = b[r];
    }
    if (lane == 0)
        shared[turn][warp] = own;
    __syncthreads();
    own = shared[turn][0];
#pragma unroll 4
    for (int w = 1; w < n_warps; ++w) {
        sums other = shared[turn][w];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            own.a[r] += other.a[r];
            own.b[r] += other.b[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        a[r] = own.a[r];
        b[r] = own.b[r];
    }
}

enum { FETCH_DY, FETCH_X, FETCH_DX };

/* How a thread reads its packs of ROWS rows at a time: with FETCH it copies the next rows' into shared memory while
 * these are computed, and back from there as often as it needs them, which keeps them out of registers; each thread
 * reads what it copied itself, so there is nothing to wait for but the copies. Neighbouring threads copy to
 * neighbouring places: with each thread's own together, though free of bank conflicts, it took half as long again. */
template <typename T, int N, int PACKS, int ROWS, bool FETCH> struct row_reader {
    const T *tensors[3];
    uint4 *own; /* this thread's in shared memory; packs are blockDim.x apart */
    int dim, stage;

    __device__ __forceinline__ uint4 *slot(int into, int tensor, int r, int p) const
    {
        return own + ((((into * 3 + tensor) * ROWS + r) * PACKS + p) * blockDim.x);
    }
    __device__ __forceinline__ void fetch(size_t start, size_t last, int into) const
    {
        for (int r = 0; r < ROWS && start + r < last; ++r)
            for (int p = 0; p < PACKS; ++p) {
                int pack = threadIdx.x + p * blockDim.x;
                if (pack >= dim / N)
                    continue;
                size_t at = (start + r) * dim + (size_t)pack * N;
                for (int tensor = 0; tensor < 3; ++tensor)
                    __pipeline_memcpy_async(slot(into, tensor, r, p), tensors[tensor] + at, sizeof(uint4));
            }
        __pipeline_commit();
    }
    __device__ __forceinline__ zero_pack<T, N> read(int tensor, size_t row, int r, int p) const
    {
        if constexpr (FETCH)
            return *reinterpret_cast<zero_pack<T, N> *>(slot(stage, tensor, r, p));
        else
            return zero_load<N>(tensors[tensor], row * dim + (size_t)(threadIdx.x + p * blockDim.x) * N);
    }
};

/* Stores a thread's sums of a column of partials. */
template <int N> static __device__ __forceinline__ void store_sums(float *partials, const float (&sum)[N])
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *reinterpret_cast<float4 *>(partials + i) = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
            partials[i] = sum[i];
    }
}

/* With h = (x - mean) rstd and g = dy w:  dx += rstd (g - mean(g) - h mean(g h)). Thread t owns packs t, t +
 * blockDim.x, ... of a row, PACKS at most, and takes ROWS rows at a time. y may be NULL. */
template <typename T, int N, int PACKS, int ROWS, bool FETCH>
static __global__ void __launch_bounds__(MAX_WARPS *ZERO_WARP, PACKS == 1 ? 2 : 1)
    layernorm_backward(T *dresidual, float *partials, T *y, const T *dy, const T *residual, const float *mean,
                       const float *rstd, const T *weight, const T *bias, size_t n_rows, int dim)
{
    extern __shared__ uint4 stages[];
    row_reader<T, N, PACKS, ROWS, FETCH> rows = {{dy, residual, dresidual}, stages + threadIdx.x, dim, 0};
    int n_packs = dim / N;
    size_t first = blockIdx.x * n_rows / gridDim.x, last = (blockIdx.x + 1) * n_rows / gridDim.x;
    float dweight[PACKS][N] = {}, dbias[PACKS][N] = {}, dcolumns[PACKS][N] = {}, inv_dim = 1.0f / (float)dim;
    float next_center[ROWS], next_scale[ROWS];
    if constexpr (FETCH)
        rows.fetch(first, last, 0);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        size_t row = first + r < last ? first + r : last - 1;
        next_center[r] = mean[row];
        next_scale[r] = rstd[row];
    }
    for (size_t start = first; start < last; start += ROWS, rows.stage ^= 1) {
        float center[ROWS], scale[ROWS], g_mean[ROWS] = {}, gh_mean[ROWS] = {};
        if constexpr (FETCH)
            rows.fetch(start + ROWS, last, rows.stage ^ 1);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) { /* statistics travel ahead as well */
            size_t row = start + ROWS + r < last ? start + ROWS + r : last - 1;
            center[r] = next_center[r];
            scale[r] = next_scale[r];
            next_center[r] = mean[row];
            next_scale[r] = rstd[row];
        }
        if constexpr (FETCH)
            __pipeline_wait_prior(1);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            int pack = threadIdx.x + p * blockDim.x;
            if (pack >= n_packs)
                continue;
            zero_pack<T, N> w = zero_load<N>(weight, (size_t)pack * N), b = {};
            if (y != nullptr && bias != nullptr)
                b = zero_load<N>(bias, (size_t)pack * N);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (start + r >= last)
                    continue;
                zero_pack<T, N> g = rows.read(FETCH_DY, start + r, r, p), x = rows.read(FETCH_X, start + r, r, p);
                float again[N];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    float d = g[i];
                    float h = (x[i] - center[r]) * scale[r];
                    float dw = d * w[i];
                    g_mean[r] += dw;
                    gh_mean[r] = fmaf(dw, h, gh_mean[r]);
                    dweight[p][i] = fmaf(d, h, dweight[p][i]);
                    dbias[p][i] += d;
                }
                if (y == nullptr)
                    continue;
#pragma unroll
                for (int i = 0; i < N; ++i)
                    again[i] = normalized(x[i], center[r], scale[r], w[i], bias != nullptr ? b[i] : 0.0f);
                zero_store(y, (start + r) * dim + (size_t)pack * N, again);
            }
        }
        block_sums(g_mean, gh_mean, rows.stage);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            int pack = threadIdx.x + p * blockDim.x;
            if (pack >= n_packs)
                continue;
            zero_pack<T, N> w = zero_load<N>(weight, (size_t)pack * N);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (start + r >= last)
                    continue;
                zero_pack<T, N> g = rows.read(FETCH_DY, start + r, r, p), x = rows.read(FETCH_X, start + r, r, p);
                zero_pack<T, N> dx = rows.read(FETCH_DX, start + r, r, p);
                float g_center = -g_mean[r] * inv_dim, gh_center = -gh_mean[r] * inv_dim, sum[N];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    float h = (x[i] - center[r]) * scale[r];
                    float dw = g[i] * w[i]; /* rounded as in its mean, so that alike values cancel */
                    float centered = fmaf(gh_center, h, dw + g_center);
                    sum[i] = fmaf(scale[r], centered, dx[i]);
                }
                dx = zero_packed<T>(sum);
                zero_store_pack<N>(dresidual, (start + r) * dim + (size_t)pack * N, dx);
#pragma unroll
                for (int i = 0; i < N; ++i)
                    dcolumns[p][i] += dx[i];
            }
        }
    }
    float *sums = partials + (size_t)blockIdx.x * 3 * dim;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        int pack = threadIdx.x + p * blockDim.x;
        if (pack >= n_packs)
            continue;
        store_sums(sums + pack * N, dweight[p]);
        store_sums(sums + dim + pack * N, dbias[p]);
        store_sums(sums + 2 * dim + pack * N, dcolumns[p]);
    }
}

template <int N, int PACKS, int ROWS, typename T>
static cudaError_t launch_backward(cudaStream_t stream, T *dresidual, float *partials, T *y, const T *dy,
                                   const T *residual, const float *mean, const float *rstd, const T *weight,
                                   const T *bias, size_t n_rows, size_t dim)
{
    constexpr bool FETCH = N * sizeof(T) == sizeof(uint4) && PACKS == 1;
    auto kernel = layernorm_backward<T, N, PACKS, ROWS, FETCH>;
    size_t warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    size_t shared_bytes = FETCH ? 2 * 3 * ROWS * PACKS * warps * ZERO_WARP * sizeof(uint4) : 0;
    if (warps > MAX_WARPS)
        return cudaErrorInvalidValue;
    if (FETCH) { /* with what the kernel declares, it may be more than the 48 KiB that need no asking */
        cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return error;
    }
    kernel<<<(unsigned)zero_layernorm_parts(n_rows), (unsigned)(warps * ZERO_WARP), shared_bytes, stream>>>(
        dresidual, partials, y, dy, residual, mean, rstd, weight, bias, n_rows, (int)dim);
    return cudaGetLastError();
}

/* A pack a thread where a block spans the row, else as many as it takes. */
template <typename T>
static cudaError_t choose_backward(cudaStream_t stream, T *dresidual, float *partials, T *y, const T *dy,
                                   const T *residual, const float *mean, const float *rstd, const T *weight,
                                   const T *bias, size_t n_rows, size_t dim)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(dresidual) && zero_aligned(y) && zero_aligned(dy) && zero_aligned(residual) &&
                 zero_aligned(weight) && zero_aligned(bias) && dim % N == 0;
    if (!packs)
        return launch_backward<1, 16, 1>(stream, dresidual, partials, y, dy, residual, mean, rstd, weight, bias, n_rows,
                                         dim);
    if (dim / N <= MAX_WARPS * ZERO_WARP)
        return launch_backward<N, 1, 2>(stream, dresidual, partials, y, dy, residual, mean, rstd, weight, bias, n_rows,
                                        dim);
    if (dim / N <= 2 * MAX_WARPS * ZERO_WARP)
        return launch_backward<N, 2, 1>(stream, dresidual, partials, y, dy, residual, mean, rstd, weight, bias, n_rows,
                                        dim);
    return launch_backward<N, 4, 1>(stream, dresidual, partials, y, dy, residual, mean, rstd, weight, bias, n_rows,
                                    dim);
}

extern "C" cudaError_t zero_launch_layernorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual,
                                                      float *partials, void *y, const void *dy, const void *residual,
                                                      const float *mean, const float *rstd, const void *weight,
                                                      const void *bias, size_t n_rows, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return choose_backward(stream, (T *)dresidual, partials, (T *)y, (const T *)dy, (const T *)residual, mean, rstd,
                               (const T *)weight, (const T *)bias, n_rows, dim);
    });
}
