/* norms.cuh - what the forward passes of LayerNorm and RMSNorm share: reading a row and adding to it, and sums
 * over the warps of a row.
 */
#ifndef ZERO_NORMS_CUH
#define ZERO_NORMS_CUH

#include <cuda_pipeline_primitives.h>

#include "train/kernels/cuda/maximum.cuh"

#define NORM_MAX_WARPS 16  /* per forward block: leaves 128 registers per thread */
#define NORM_BLOCK_WARPS 4 /* per forward block whose rows take one warp each */

/* A thread's part of a row: packs t, t + width, ... below n_packs, at most PACKS. */
template <typename T, int N, int PACKS> struct norm_row {
    size_t start; /* the row's first element in the tensor */
    int t, width, n_packs;
    zero_pack<T, N> x[PACKS];

    /* Does not set x: zeroing packs that are never used would take registers. */
    __device__ __forceinline__ norm_row(size_t start, int t, int width, int n_packs)
        : start(start), t(t), width(width), n_packs(n_packs)
    {
    }

    __device__ __forceinline__ bool is_mine(int p) const
    {
        return t + p * width < n_packs;
    }
    __device__ __forceinline__ size_t column(int p) const
    {
        return (size_t)(t + p * width) * N;
    }
    /* Sets x to residual + addend, rounded, or to residual if addend is NULL. */
    __device__ __forceinline__ void read(const T *residual, const T *addend)
    {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (is_mine(p))
                x[p] = zero_load<N>(residual, start + column(p));
        if (addend == nullptr)
            return;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!is_mine(p))
                continue;
            zero_pack<T, N> other = zero_load<N>(addend, start + column(p));
            float total[N];
#pragma unroll
            for (int i = 0; i < N; ++i)
                total[i] = x[p][i] + other[i];
            x[p] = zero_packed<T>(total);
        }
    }
};

/* Stores each warp's sum in shared[warp] and waits, so that all threads of a row of several warps can read it.
 * shared[NORM_MAX_WARPS] must have been read before it is used again. */
static __device__ __forceinline__ void norm_share_warp_sums(float warp_sum, float *shared)
{
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = warp_sum;
    __syncthreads();
}

/* ---- norm backward ---- */
/* The backward passes of LayerNorm and RMSNorm, which differ only in their formulas.
 *
 * A group of warps takes a row at a time, while asynchronous copies bring the next rows to shared memory. Each thread
 * reads only what it copied itself, so it waits for nothing but its copies. A row that needs at most three packs per
 * lane takes one warp and no barrier; a block is several such groups. A longer row takes one barrier, in a block that
 * is a single group; several blocks share an SM and do not wait for each other. (Barriers of groups within a block are
 * as fast, but compute-sanitizer's racecheck does not understand them.)
 *
 * Groups take turns with the rows, so that together they read one stretch of memory at any time. A group sums the
 * columns of its rows in registers; a block adds its groups in order and writes one part; column_sum.cu adds the parts.
 * Which rows a group takes depends on their number and length alone. A block uses at most 99 KiB of shared memory,
 * which every device has. */

/* The tensors, [n_rows, dim] unless stated otherwise. */
template <typename T> struct norm_rows {
    T *dresidual;
    float *partials; /* [zero_norm_parts, SUMS, dim] */
    T *y;            /* the norm's output, recomputed; NULL: not wanted */
    const T *dy, *residual;
    const float *mean, *rstd; /* [n_rows]; RMSNorm has no mean */
    const T *weight, *bias;   /* [dim]; RMSNorm has no bias, LayerNorm may have none */
    size_t n_rows;
    int dim;
    uint32_t *absmax; /* of the new dresidual; NULL: not wanted */
    float offset;     /* of RMSNorm: added to the weight */
};

/* Returns the sums of two numbers over the threads of a group, in a fixed tree; every thread gets them. A group of
 * several warps is the whole block. `shared` has an element per warp; all warps must have read it before it is used
 * again. */
static __device__ __forceinline__ float2 norm_group_sums(float2 x, int n_warps, float2 *shared)
{
    x.x = zero_warp_sum(x.x);
    x.y = zero_warp_sum(x.y);
    if (n_warps == 1)
        return x;
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll 4
    for (int w = 1; w < n_warps; ++w) {
        float2 other = shared[w];
        x.x += other.x;
        x.y += other.y;
    }
    return x;
}

/* Adds the sums of a block's groups in order and stores them in `part`. Uses `shared` [n_groups, SUMS, dim], whose
 * contents are no longer needed. */
template <int N, int PACKS, int SUMS>
static __device__ __forceinline__ void norm_put_part(float *part, const float (&sums)[SUMS][PACKS][N], float *shared,
                                                     int group, int n_groups, int t, int width, int dim)
{
    float *own = n_groups == 1 ? part : shared + group * SUMS * dim;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
            if ((t + p * width) * N < dim)
                zero_store(own, (size_t)s * dim + (t + p * width) * N, sums[s][p]);
    if (n_groups == 1)
        return;
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * dim / N; i += blockDim.x) {
        zero_pack<float, N> sum = zero_load<N>(shared, (size_t)i * N);
        for (int g = 1; g < n_groups; ++g) {
            zero_pack<float, N> other = zero_load<N>(shared, (size_t)g * SUMS * dim + i * N);
#pragma unroll
            for (int k = 0; k < N; ++k)
                sum.elem[k] += other.elem[k];
        }
        zero_store_pack<N>(part, (size_t)i * N, sum);
    }
}

enum { NORM_DY, NORM_X, NORM_DX, NORM_N_READ };
enum { NORM_DWEIGHT, NORM_DBIAS, NORM_DCOLUMNS };

/* Reads a thread's packs of its group's rows: packs t, t + width, ... below n_packs. With STAGES > 0, rows are fetched
 * ahead into shared memory; with 0, each is read from global memory when it is needed. */
template <typename T, int N, int PACKS, int STAGES> struct norm_reader {
    const norm_rows<T> &a;
    uint4 *own; /* this thread's part of [STAGES, NORM_N_READ, PACKS, width] in shared memory */
    int width, t, n_packs;
    int stage = 0; /* of the current row */

    __device__ __forceinline__ bool is_mine(int p) const
    {
        return t + p * width < n_packs;
    }
    __device__ __forceinline__ int column(int p) const
    {
        return (t + p * width) * N;
    }
    __device__ __forceinline__ uint4 *buffer(int s, int tensor, int p) const
    {
        return own + ((s * NORM_N_READ + tensor) * PACKS + p) * width;
    }
    __device__ __forceinline__ const T *tensor_data(int tensor) const
    {
        return tensor == NORM_DY ? a.dy : tensor == NORM_X ? a.residual : a.dresidual;
    }
    /* Begins to copy a row into stage `into`, if the row exists. */
    __device__ __forceinline__ void fetch(size_t row, int into) const
    {
        if (row < a.n_rows) {
#pragma unroll
            for (int tensor = 0; tensor < NORM_N_READ; ++tensor)
#pragma unroll
                for (int p = 0; p < PACKS; ++p)
                    if (is_mine(p))
                        __pipeline_memcpy_async(buffer(into, tensor, p), tensor_data(tensor) + row * a.dim + column(p),
                                                sizeof(uint4));
        }
        __pipeline_commit();
    }
    /* Zeroes the packs that no copy writes, and fetches the first rows. */
    __device__ __forceinline__ void begin(size_t first, size_t step) const
    {
        for (int i = 0; i < STAGES * NORM_N_READ; ++i)
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
                if (!is_mine(p))
                    *buffer(0, i, p) = uint4{};
        for (int ahead = 0; ahead < STAGES - 1; ++ahead)
            fetch(first + ahead * step, ahead);
    }
    __device__ __forceinline__ zero_pack<T, N> get(int tensor, size_t row, int p) const
    {
        if constexpr (STAGES > 0)
            return *reinterpret_cast<const zero_pack<T, N> *>(buffer(stage, tensor, p));
        else
            return is_mine(p) ? zero_load<N>(tensor_data(tensor), row * a.dim + column(p)) : zero_pack<T, N>{};
    }
};

/* Runs a row's first pass: adds to the column sums dweight and dbias, stores y if it is recomputed, and returns this
 * thread's part of the sums of g (if CENTERED) and g h. */
template <typename NORM, bool RECOMPUTE_Y, typename T, int N, int PACKS, int STAGES>
static __device__ __forceinline__ float2 norm_sum_row(const norm_reader<T, N, PACKS, STAGES> &rows, size_t row,
                                                      float mean, float rstd, const zero_pack<T, N> (&w)[PACKS],
                                                      const zero_pack<T, N> (&b)[PACKS],
                                                      float (&sums)[NORM::SUMS][PACKS][N])
{
    constexpr bool CENTERED = NORM::SUMS == 3;
    float2 part = {0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        zero_pack<T, N> dy = rows.get(NORM_DY, row, p), x = rows.get(NORM_X, row, p);
        float y[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float weight = NORM::weight(w[p][i], rows.a.offset);
            float h = NORM::unit(x[i], mean, rstd), g = dy[i] * weight;
            y[i] = NORM::scaled(h, weight, b[p][i]);
            part.y = fmaf(g, h, part.y);
            sums[NORM_DWEIGHT][p][i] = fmaf(dy[i], h, sums[NORM_DWEIGHT][p][i]);
            if constexpr (CENTERED) {
                part.x += g;
                sums[NORM_DBIAS][p][i] += dy[i];
            }
        }
        if (RECOMPUTE_Y && rows.is_mine(p))
            zero_store(rows.a.y, row * rows.a.dim + rows.column(p), y);
    }
    return part;
}

/* Runs a row's second pass: adds the norm's input gradient to dx, given the negative means of g and g h. */
template <typename NORM, typename T, int N, int PACKS, int STAGES, typename MAXIMUM>
static __device__ __forceinline__ void
norm_add_row(const norm_reader<T, N, PACKS, STAGES> &rows, size_t row, float mean, float rstd, float g_center,
             float gh_center, const zero_pack<T, N> (&w)[PACKS], float (&sums)[NORM::SUMS][PACKS][N], MAXIMUM &maximum)
{
    constexpr bool CENTERED = NORM::SUMS == 3;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        zero_pack<T, N> dy = rows.get(NORM_DY, row, p), x = rows.get(NORM_X, row, p), dx = rows.get(NORM_DX, row, p);
        float sum[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float g =
                dy[i] * NORM::weight(w[p][i], rows.a.offset); /* rounded as in its mean, so that equal values cancel */
            float centered = fmaf(gh_center, NORM::unit(x[i], mean, rstd), CENTERED ? g + g_center : g);
            sum[i] = fmaf(rstd, centered, dx[i]);
        }
        dx = zero_packed<T>(sum);
        if (rows.is_mine(p)) {
            zero_store_pack<N>(rows.a.dresidual, row * rows.a.dim + rows.column(p), dx);
            maximum.see(dx);
        }
        if constexpr (CENTERED) {
#pragma unroll
            for (int i = 0; i < N; ++i)
                sums[NORM_DCOLUMNS][p][i] += dx[i];
        }
    }
}

/* Computes, with h the normalized row and g = dy w, dx += rstd (g - mean(g) - h mean(g h)), for RMSNorm without
 * mean(g); and the column sums dweight, of dy h, and for LayerNorm dbias, of dy, and dcolumns, of the new dx. NORM
 * defines h, y and the number of sums. A row takes group_warps warps. With STAGES = 0 a block is one group.
 *
 * Threads that own fewer packs than others compute on zeros instead of branching, so that loads of all packs overlap.
 */
template <typename NORM, typename T, int N, int PACKS, int STAGES, bool RECOMPUTE_Y, bool ONE_WARP, int MAX_THREADS,
          typename MAXIMUM>
static __global__ void __launch_bounds__(MAX_THREADS, 1) norm_backward(norm_rows<T> a, int group_warps, MAXIMUM maximum)
{
    constexpr int SUMS = NORM::SUMS;
    constexpr bool CENTERED = SUMS == 3;
    extern __shared__ uint4 stages[];                     /* [n_groups, STAGES, NORM_N_READ, PACKS, width] */
    __shared__ float2 shared[2][MAX_THREADS / ZERO_WARP]; /* rows alternate, so that one barrier per row is enough */
    int n_warps = ONE_WARP ? 1 : group_warps, width = n_warps * ZERO_WARP, n_groups = blockDim.x / width;
    int group = threadIdx.x / width, t = threadIdx.x % width, turn = 0;
    size_t first = (size_t)blockIdx.x * n_groups + group, step = (size_t)gridDim.x * n_groups;
    uint4 *own = stages + group * (STAGES * NORM_N_READ * PACKS) * width + t;
    norm_reader<T, N, PACKS, STAGES> rows{a, own, width, t, a.dim / N};
    zero_may_launch_next();
    rows.begin(first, step);
    float sums[SUMS][PACKS][N] = {}, inv_dim = 1.0f / (float)a.dim, next_mean = 0.0f, next_rstd = 0.0f;
    zero_pack<T, N> w[PACKS] = {}, b[PACKS] = {};
    if (first < a.n_rows) {
        next_mean = CENTERED ? a.mean[first] : 0.0f;
        next_rstd = a.rstd[first];
    }
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        if (rows.is_mine(p))
            w[p] = zero_load<N>(a.weight, rows.column(p));
        if (RECOMPUTE_Y && rows.is_mine(p) && a.bias != nullptr)
            b[p] = zero_load<N>(a.bias, rows.column(p));
    }
    for (size_t row = first; row < a.n_rows; row += step) {
        float mean = next_mean, rstd = next_rstd;
        size_t next = row + step < a.n_rows ? row + step : first;
        if constexpr (STAGES > 0)
            rows.fetch(row + (STAGES - 1) * step, rows.stage == 0 ? STAGES - 1 : rows.stage - 1);
        next_mean = CENTERED ? a.mean[next] : 0.0f;
        next_rstd = a.rstd[next];
        if constexpr (STAGES > 0)
            __pipeline_wait_prior(STAGES - 1);
        float2 means = norm_sum_row<NORM, RECOMPUTE_Y>(rows, row, mean, rstd, w, b, sums);
        means = norm_group_sums(means, n_warps, shared[turn]);
        norm_add_row<NORM>(rows, row, mean, rstd, -means.x * inv_dim, -means.y * inv_dim, w, sums, maximum);
        rows.stage = rows.stage == STAGES - 1 ? 0 : rows.stage + 1;
        turn ^= 1;
    }
    if (n_groups > 1)
        __syncthreads(); /* every group has read its last rows */
    norm_put_part(a.partials + (size_t)blockIdx.x * SUMS * a.dim, sums, reinterpret_cast<float *>(stages), group,
                  n_groups, t, width, a.dim);
    maximum.finish(true);
}

/* How norm_backward takes rows: a lane has up to PACKS packs of N elements, STAGES rows are fetched at a time (0: none
 * ahead), ONE_WARP has a row, and a block has up to MAX_THREADS. */
template <int N_, int PACKS_, int STAGES_, bool ONE_WARP_, int MAX_THREADS_> struct norm_way {
    static constexpr int N = N_, PACKS = PACKS_, STAGES = STAGES_, MAX_THREADS = MAX_THREADS_;
    static constexpr bool ONE_WARP = ONE_WARP_;
};

/* Launches zero_norm_parts blocks of n_groups groups of group_warps warps. */
template <typename NORM, typename WAY, typename T, typename MAXIMUM>
static cudaError_t norm_launch_backward(cudaStream_t stream, norm_rows<T> rows, size_t n_groups, size_t group_warps,
                                        MAXIMUM maximum)
{
    constexpr int N = WAY::N, PACKS = WAY::PACKS, STAGES = WAY::STAGES, MAX_THREADS = WAY::MAX_THREADS;
    constexpr bool ONE_WARP = WAY::ONE_WARP;
    auto kernel = rows.y == nullptr ? norm_backward<NORM, T, N, PACKS, STAGES, false, ONE_WARP, MAX_THREADS, MAXIMUM>
                                    : norm_backward<NORM, T, N, PACKS, STAGES, true, ONE_WARP, MAX_THREADS, MAXIMUM>;
    size_t n_threads = n_groups * group_warps * ZERO_WARP;
    size_t shared_bytes = n_threads * (STAGES * NORM_N_READ * PACKS * sizeof(uint4));
    if (n_threads > MAX_THREADS)
        return cudaErrorInvalidValue;
    if (STAGES > 0) { /* above 48 KiB, which every kernel may use */
        cudaError_t error =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (error != cudaSuccess)
            return error;
    }
    size_t n_parts = zero_norm_parts(rows.n_rows, (size_t)rows.dim, sizeof(T));
    kernel<<<(unsigned)n_parts, (unsigned)n_threads, shared_bytes, stream>>>(rows, (int)group_warps, maximum);
    return cudaGetLastError();
}

/* A lane takes two packs, or three if one warp then covers the row. Rows that are too long for a block of these, or not
 * made of whole packs, are not fetched ahead. */
template <typename NORM, typename T, typename MAXIMUM>
static cudaError_t norm_choose_backward(cudaStream_t stream, norm_rows<T> rows, MAXIMUM maximum)
{
    constexpr int N = 16 / sizeof(T), ELEMENTS = NORM::SUMS == 1 ? 32 : 16; /* of a lane, without packs */
    using one_by_one = norm_way<1, ELEMENTS, 0, false, 512>;
    using warp_of_3 = norm_way<N, 3, 2, true, 256>; /* packs a lane */
    using warp_of_2 = norm_way<N, 2, 2, true, 512>;
    using warps_of_2 = norm_way<N, 2, 2, false, 512>;
    using warps_of_4 = norm_way<N, 4, 0, false, 512>;
    size_t dim = (size_t)rows.dim, n_packs = dim / N, row_warps = zero_norm_row_warps(dim, sizeof(T));
    auto warps = [](size_t n, size_t packs) { return zero_divide_up(n, ZERO_WARP * packs); };
    bool packs = zero_aligned(rows.dresidual) && zero_aligned(rows.y) && zero_aligned(rows.dy) &&
                 zero_aligned(rows.residual) && zero_aligned(rows.weight) && zero_aligned(rows.bias) && dim % N == 0 &&
                 warps(n_packs, 4) <= ZERO_NORM_WARPS;
    if (!packs)
        return norm_launch_backward<NORM, one_by_one>(stream, rows, 1, warps(dim, ELEMENTS), maximum);
    if (row_warps == 1 && warps(n_packs, 2) > 1)
        return norm_launch_backward<NORM, warp_of_3>(stream, rows, 8, 1, maximum);
    if (row_warps == 1)
        return norm_launch_backward<NORM, warp_of_2>(stream, rows, ZERO_NORM_WARPS, 1, maximum);
    if (row_warps <= ZERO_NORM_WARPS)
        return norm_launch_backward<NORM, warps_of_2>(stream, rows, 1, row_warps, maximum);
    return norm_launch_backward<NORM, warps_of_4>(stream, rows, 1, warps(n_packs, 4), maximum);
}

template <typename NORM, typename T> static cudaError_t norm_backward_of(cudaStream_t stream, norm_rows<T> rows)
{
    return zero_with_maximum<T>(rows.absmax,
                                [&](auto maximum) { return norm_choose_backward<NORM>(stream, rows, maximum); });
}

#endif
