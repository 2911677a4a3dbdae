/* rmsnorm.cu - RMSNorm on CUDA, with the residual sum before it (Zhang, Sennrich 2019, arXiv:1910.07467).
 *
 * Forward: a row belongs to one or more warps, which hold it in registers from the only read to the only write, so each
 * tensor crosses memory once. The mean square is taken of the sum as it was rounded and stored, and y comes from one
 * expression, so rmsnorm_apply and rmsnorm_backward repeat its bits.
 *
 * Backward: a block owns a part of the rows, cut by the shape alone, and its threads own columns: dweight is summed in
 * registers over the part's rows in order, and column_sum.cu adds the parts. As many blocks as the chip holds at once,
 * each with its next rows on their way while it computes.
 */
#include <cuda_pipeline_primitives.h>

#include "kernels/pack.cuh"

#define MAX_WARPS 16  /* of a block: leaves 128 registers a thread */
#define MAX_PACKS 4   /* of 16 bytes, a thread's; longer rows go element by element */
#define BLOCK_WARPS 4 /* of a forward block whose rows take one warp each */

/* Sum over the threads of a row, `n_warps` warps side by side from `first_warp`, in a fixed tree. Every thread gets the
 * result. shared[MAX_WARPS] must have been read before it is used again. */
static __device__ __forceinline__ float row_sum(float x, int n_warps, int first_warp, float *shared)
{
    x = zero_warp_sum(x);
    if (n_warps == 1)
        return x;
    int lane = threadIdx.x % ZERO_WARP, warp = threadIdx.x / ZERO_WARP;
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return zero_warp_sum(lane < n_warps ? shared[first_warp + lane] : 0.0f);
}

static __device__ __forceinline__ float normalized(float x, float rstd, float w)
{
    return x * rstd * w;
}

/* ---- Forward ---- */

/* blockDim.x threads: BLOCK_WARPS rows of one warp, or one row of all warps. Thread t of a row owns packs t, t + width,
 * ... below n_packs, PACKS at most. Without RSTD_KNOWN the residual is summed and rstd is written. */
template <typename T, int N, int PACKS, bool RSTD_KNOWN>
static __global__ void __launch_bounds__(MAX_WARPS *ZERO_WARP, N > 1 && PACKS == 1 ? 4 : 1)
    rmsnorm(T *y, float *rstd, T *residual_out, const T *residual, const T *addend, const T *weight, float eps,
            size_t n_rows, int dim, int row_warps)
{
    __shared__ float shared[MAX_WARPS];
    int warp = threadIdx.x / ZERO_WARP, width = row_warps * ZERO_WARP, t = threadIdx.x % width, n_packs = dim / N;
    size_t row = (size_t)blockIdx.x * (blockDim.x / width) + warp / row_warps, start = row * dim;
    if (row >= n_rows) /* whole warps, and only where rows take one warp: nobody waits for them */
        return;
    zero_pack<T, N> x[PACKS], w[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
        if (t + p * width < n_packs)
            x[p] = zero_load<N>(residual, start + (size_t)(t + p * width) * N);
    if (!RSTD_KNOWN && addend != nullptr) {
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
    for (int p = 0; p < PACKS; ++p) /* before the warps wait for each other */
        if (t + p * width < n_packs)
            w[p] = zero_load<N>(weight, (size_t)(t + p * width) * N);
    float scale, squares = 0.0f;
    if (RSTD_KNOWN) {
        scale = rstd[row];
    } else {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (t + p * width >= n_packs)
                continue;
            if (residual_out != residual || addend != nullptr)
                zero_store_pack<N>(residual_out, start + (size_t)(t + p * width) * N, x[p]);
#pragma unroll
            for (int i = 0; i < N; ++i)
                squares = fmaf(x[p][i], x[p][i], squares);
        }
        scale = 1.0f / sqrtf(row_sum(squares, row_warps, warp - warp % row_warps, shared) / (float)dim + eps);
        if (t == 0)
            rstd[row] = scale;
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (t + p * width >= n_packs)
            continue;
        float out[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] = normalized(x[p][i], scale, w[p][i]);
        zero_store(y, start + (size_t)(t + p * width) * N, out);
    }
}

template <typename T, int N, int PACKS, bool RSTD_KNOWN>
static cudaError_t launch_forward(cudaStream_t stream, T *y, float *rstd, T *residual_out, const T *residual,
                                  const T *addend, const T *weight, float eps, size_t n_rows, size_t dim)
{
    size_t row_warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    if (row_warps > MAX_WARPS)
        return cudaErrorInvalidValue;
    size_t rows = row_warps == 1 ? BLOCK_WARPS : 1;
    rmsnorm<T, N, PACKS, RSTD_KNOWN>
        <<<(unsigned)zero_divide_up(n_rows, rows), (unsigned)(rows * row_warps * ZERO_WARP), 0, stream>>>(
            y, rstd, residual_out, residual, addend, weight, eps, n_rows, (int)dim, (int)row_warps);
    return cudaGetLastError();
}

/* Few packs a thread: many warps with few registers hide latency better than few with many. The sum loads two packs for
 * each that it keeps, so it keeps one where a block then spans the row. */
template <bool RSTD_KNOWN, typename T>
static cudaError_t choose_forward(cudaStream_t stream, T *y, float *rstd, T *residual_out, const T *residual,
                                  const T *addend, const T *weight, float eps, size_t n_rows, size_t dim)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(y) && zero_aligned(residual_out) && zero_aligned(residual) && zero_aligned(addend) &&
                 zero_aligned(weight) && dim % N == 0 && dim / N <= MAX_PACKS * MAX_WARPS * ZERO_WARP;
    constexpr int FEWEST = RSTD_KNOWN ? 2 : 1;
    auto launch = !packs                                 ? launch_forward<T, 1, 32, RSTD_KNOWN>
                  : dim / N <= MAX_WARPS * ZERO_WARP     ? launch_forward<T, N, FEWEST, RSTD_KNOWN>
                  : dim / N <= 2 * MAX_WARPS * ZERO_WARP ? launch_forward<T, N, 2, RSTD_KNOWN>
                                                         : launch_forward<T, N, MAX_PACKS, RSTD_KNOWN>;
    return launch(stream, y, rstd, residual_out, residual, addend, weight, eps, n_rows, dim);
}

extern "C" cudaError_t zero_launch_rmsnorm(cudaStream_t stream, zero_dtype_t dtype, void *y, float *rstd,
                                           void *residual_out, const void *residual, const void *addend,
                                           const void *weight, float eps, size_t n_rows, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return choose_forward<false>(stream, (T *)y, rstd, (T *)residual_out, (const T *)residual, (const T *)addend,
                                     (const T *)weight, eps, n_rows, dim);
    });
}

extern "C" cudaError_t zero_launch_rmsnorm_apply(cudaStream_t stream, zero_dtype_t dtype, void *y, const float *rstd,
                                                 const void *residual, const void *weight, size_t n_rows, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return choose_forward<true>(stream, (T *)y, (float *)rstd, (T *)nullptr, (const T *)residual,
                                    (const T *)nullptr, (const T *)weight, 0.0f, n_rows, dim);
    });
}

/* ---- Backward ---- */

#define MIN_PART_ROWS 16
#define MIN_PARTS 264       /* two blocks on each of an H200's SMs */
#define FULL_BLOCK_DIM 4096 /* columns that take a whole block; of fewer columns more blocks run at once */

extern "C" size_t zero_rmsnorm_parts(size_t n_rows, size_t dim)
{
    size_t most = MIN_PARTS * zero_divide_up(FULL_BLOCK_DIM, dim), wanted = zero_divide_up(n_rows, MIN_PART_ROWS);
    return wanted < most ? wanted : most;
}

extern "C" size_t zero_rmsnorm_partials_bytes(size_t max_rows, size_t max_dim)
{
    size_t by_rows = zero_divide_up(max_rows, MIN_PART_ROWS) * max_dim;
    size_t by_chip = MIN_PARTS * (FULL_BLOCK_DIM + max_dim); /* MIN_PARTS * dim * zero_divide_up(FULL.., dim) < */
    return (by_rows < by_chip ? by_rows : by_chip) * sizeof(float);
}

enum { DY, X, DX, N_READ };

/* With h = x rstd and g = dy w:  dx += rstd (g - h mean(g h)),  dweight += dy h,  y = h w. Thread t owns packs t, t +
 * blockDim.x, ... of a row, PACKS at most, and takes them twice: for the mean, and for dx. With STAGES they come from
 * shared memory, where STAGES rows stand or are on their way; each thread reads what it fetched itself, so there is
 * nothing to wait for but the copies. Without STAGES they come from where they are. */
template <typename T, int N, int PACKS, int STAGES>
static __global__ void __launch_bounds__(MAX_WARPS *ZERO_WARP, STAGES > 0 ? 2 : 1)
    rmsnorm_backward(T *dresidual, float *partials, T *y, const T *dy, const T *residual, const float *rstd,
                     const T *weight, size_t n_rows, int dim)
{
    extern __shared__ uint4 stages[];      /* [STAGES, N_READ, PACKS, blockDim.x] */
    __shared__ float shared[2][MAX_WARPS]; /* rows take turns, so that one barrier a row is enough */
    const T *tensors[] = {dy, residual, dresidual};
    int n_packs = dim / N, n_warps = blockDim.x / ZERO_WARP, stage = 0, turn = 0;
    size_t first = blockIdx.x * n_rows / gridDim.x, last = (blockIdx.x + 1) * n_rows / gridDim.x;
    auto is_mine = [&](int p) { return (int)(threadIdx.x + p * blockDim.x) < n_packs; };
    auto column = [&](int p) { return (size_t)(threadIdx.x + p * blockDim.x) * N; };
    auto slot = [&](int s, int tensor, int p) {
        return stages + ((s * N_READ + tensor) * PACKS + p) * blockDim.x + threadIdx.x;
    };
    auto fetch = [&](size_t row, int into) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int tensor = 0; tensor < N_READ; ++tensor)
                if (row < last && is_mine(p))
                    __pipeline_memcpy_async(slot(into, tensor, p), tensors[tensor] + row * dim + column(p),
                                            sizeof(uint4));
        __pipeline_commit();
    };
    auto get = [&](int tensor, size_t row, int p) {
        if constexpr (STAGES > 0)
            return *reinterpret_cast<zero_pack<T, N> *>(slot(stage, tensor, p));
        else
            return zero_load<N>(tensors[tensor], row * dim + column(p));
    };
    float dweight[PACKS][N] = {};
    zero_pack<T, N> w[PACKS] = {};
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
        if (is_mine(p))
            w[p] = zero_load<N>(weight, column(p));
    for (int ahead = 0; ahead < STAGES - 1; ++ahead)
        fetch(first + ahead, ahead);
    for (size_t row = first; row < last; ++row) {
        float scale = rstd[row], gh_mean = 0.0f;
        if constexpr (STAGES > 0) {
            fetch(row + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
            __pipeline_wait_prior(STAGES - 1);
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!is_mine(p))
                continue;
            zero_pack<T, N> d = get(DY, row, p), x = get(X, row, p);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float h = x[i] * scale;
                gh_mean = fmaf(d[i] * w[p][i], h, gh_mean);
                dweight[p][i] = fmaf(d[i], h, dweight[p][i]);
            }
        }
        gh_mean = row_sum(gh_mean, n_warps, 0, shared[turn]) / (float)dim;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!is_mine(p))
                continue;
            zero_pack<T, N> d = get(DY, row, p), x = get(X, row, p), dx = get(DX, row, p);
            float sum[N], out[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float centered = fmaf(-gh_mean, x[i] * scale, d[i] * w[p][i]);
                sum[i] = fmaf(scale, centered, dx[i]);
                out[i] = normalized(x[i], scale, w[p][i]);
            }
            zero_store(dresidual, row * dim + column(p), sum);
            if (y != nullptr)
                zero_store(y, row * dim + column(p), out);
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        turn ^= 1;
    }
    float *sums = partials + (size_t)blockIdx.x * dim;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
        if (is_mine(p))
            zero_store(sums, column(p), dweight[p]);
}

template <int N, int PACKS, int STAGES, typename T>
static cudaError_t launch_backward(cudaStream_t stream, T *dresidual, float *partials, T *y, const T *dy,
                                   const T *residual, const float *rstd, const T *weight, size_t n_rows, size_t dim)
{
    auto kernel = rmsnorm_backward<T, N, PACKS, STAGES>;
    size_t warps = zero_divide_up(dim / N, (size_t)ZERO_WARP * PACKS);
    size_t shared_bytes = STAGES * N_READ * PACKS * warps * ZERO_WARP * sizeof(uint4);
    if (warps > MAX_WARPS)
        return cudaErrorInvalidValue;
    if (STAGES > 0) { /* more than the 48 KiB that need no asking, less than the 99 KiB that every device has */
        cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return error;
    }
    kernel<<<(unsigned)zero_rmsnorm_parts(n_rows, dim), (unsigned)(warps * ZERO_WARP), shared_bytes, stream>>>(
        dresidual, partials, y, dy, residual, rstd, weight, n_rows, (int)dim);
    return cudaGetLastError();
}

/* A pack a thread where a block spans the row, else as many as it takes. */
template <typename T>
static cudaError_t choose_backward(cudaStream_t stream, T *dresidual, float *partials, T *y, const T *dy,
                                   const T *residual, const float *rstd, const T *weight, size_t n_rows, size_t dim)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(dresidual) && zero_aligned(y) && zero_aligned(dy) && zero_aligned(residual) &&
                 zero_aligned(weight) && dim % N == 0 && dim / N <= MAX_PACKS * MAX_WARPS * ZERO_WARP;
    auto launch = !packs                                 ? launch_backward<1, 32, 0, T>
                  : dim / N <= MAX_WARPS * ZERO_WARP     ? launch_backward<N, 1, 3, T>
                  : dim / N <= 2 * MAX_WARPS * ZERO_WARP ? launch_backward<N, 2, 2, T>
                                                         : launch_backward<N, MAX_PACKS, 0, T>;
    return launch(stream, dresidual, partials, y, dy, residual, rstd, weight, n_rows, dim);
}

extern "C" cudaError_t zero_launch_rmsnorm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dresidual,
                                                    float *partials, void *y, const void *dy, const void *residual,
                                                    const float *rstd, const void *weight, size_t n_rows, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return choose_backward(stream, (T *)dresidual, partials, (T *)y, (const T *)dy, (const T *)residual, rstd,
                               (const T *)weight, n_rows, dim);
    });
}
