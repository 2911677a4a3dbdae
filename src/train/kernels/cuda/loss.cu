/* loss.cu - softmax cross-entropy of a chunk of logits on CUDA: computes the losses and turns the logits into their
 * gradient in place.
 *
 * A block takes a row. In the first pass each thread keeps a running maximum and sum of exponentials, which are
 * combined in a fixed tree; the second pass reads the row again and overwrites it. A row that fits is kept in shared
 * memory in between, since L2 would lose it; each thread reads only what it stored there itself. On Hopper a longer row
 * is shared by the blocks of a cluster, each of which keeps a part of it.
 */
#include <cooperative_groups.h>

#include "train/kernels/common.h"
#include "train/kernels/cuda/pack.cuh"

#define THREADS 512
#define WARPS (THREADS / ZERO_WARP)

/* Running maximum m and sum of e^(x - m). */
typedef struct running {
    float max, sum;
} running_t;

/* Returns e^(from - to) of two maxima, or 1 if both are still -infinity, whose difference is NaN. */
static __device__ __forceinline__ float rescale(float from, float to)
{
    return from == to ? 1.0f : zero_fast_exp(from - to);
}

static __device__ __forceinline__ running_t combine(running_t a, running_t b)
{
    float max = fmaxf(a.max, b.max);
    return {max, fmaf(a.sum, rescale(a.max, max), b.sum * rescale(b.max, max))};
}

/* Adds a whole pack to the running state, with one rescaling for N elements. The maximum ignores NaN; the sum does not.
 */
template <int N> static __device__ __forceinline__ running_t take(running_t state, const float (&x)[N])
{
    float max = state.max;
#pragma unroll
    for (int i = 0; i < N; ++i)
        max = fmaxf(max, x[i]);
    float sum = state.sum * rescale(state.max, max);
#pragma unroll
    for (int i = 0; i < N; ++i)
        sum += zero_fast_exp(x[i] - max);
    return {max, sum};
}

static __device__ __forceinline__ running_t combine_warp(running_t state)
{
#pragma unroll
    for (int offset = ZERO_WARP / 2; offset > 0; offset /= 2) {
        running_t other = {__shfl_xor_sync(ZERO_FULL_WARP, state.max, offset),
                           __shfl_xor_sync(ZERO_FULL_WARP, state.sum, offset)};
        state = combine(state, other);
    }
    return state;
}

static __device__ __forceinline__ running_t combine_block(running_t state)
{
    __shared__ running_t shared[WARPS];
    state = combine_warp(state);
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = state;
    __syncthreads();
    state = shared[0];
    for (int w = 1; w < WARPS; ++w)
        state = combine(state, shared[w]);
    return state;
}

/* Combines the states of a cluster's blocks, in their order. Every block gets the result. */
template <int BLOCKS> static __device__ __forceinline__ running_t combine_cluster(running_t state)
{
#if __CUDA_ARCH__ >= 900
    if constexpr (BLOCKS > 1) {
        __shared__ running_t own;
        auto cluster = cooperative_groups::this_cluster();
        if (threadIdx.x == 0)
            own = state;
        cluster.sync();
        state = *cluster.map_shared_rank(&own, 0);
        for (int block = 1; block < BLOCKS; ++block)
            state = combine(state, *cluster.map_shared_rank(&own, block));
        cluster.sync(); /* no block ends before all have read its state */
    }
#endif
    return state;
}

template <typename T, int N> static __device__ __forceinline__ void to_floats(float (&x)[N], zero_pack<T, N> pack)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        x[i] = pack[i];
}

/* Takes a row's whole packs, then its last elements one by one. Rows start at aligned addresses, since loss_cuda.c pads
 * them. BLOCKS: so many, a cluster if there are several, share a row; each has equally many packs but the last, which
 * also has the last elements. KEEP: packs are kept in dynamic shared memory. */
template <typename T, int N, bool KEEP, int BLOCKS>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy(T *logits, double *losses, const int32_t *targets, const float *grad_scale, double loss_weight,
                  size_t vocab_size, size_t ld)
{
    const unsigned block = blockIdx.x % BLOCKS;
    const size_t row_index = blockIdx.x / BLOCKS, n_packs = vocab_size / N, n_whole = n_packs * N;
    const size_t per_block = (n_packs + BLOCKS - 1) / BLOCKS, first = block * per_block;
    const size_t end = first + per_block < n_packs ? first + per_block : n_packs;
    const size_t rest = block == BLOCKS - 1 ? n_whole : vocab_size; /* of the last elements, this block's first */
    extern __shared__ uint4 row_memory[];
    T *row = logits + row_index * ld, *kept = (T *)row_memory;
    int32_t target = targets[row_index];
    bool valid = target >= 0 && (size_t)target < vocab_size;
    float target_logit = valid ? zero_to_float(row[target]) : NAN;
    running_t state = {-INFINITY, 0.0f};
#pragma unroll 4
    for (size_t pack = first + threadIdx.x; pack < end; pack += THREADS) {
        float x[N];
        zero_pack<T, N> loaded = zero_load<N>(row, pack * N);
        if constexpr (KEEP)
            zero_store_pack<N>(kept, (pack - first) * N, loaded);
        to_floats<T>(x, loaded);
        state = take(state, x);
    }
    for (size_t i = rest + threadIdx.x; i < vocab_size; i += THREADS) {
        float x[1] = {zero_to_float(row[i])};
        state = take(state, x);
    }
    /* The barriers also separate reading the target's logit from writing it. */
    state = combine_cluster<BLOCKS>(combine_block(state));
    if (block == 0 && threadIdx.x == 0)
        losses[row_index] = (double)logf(state.sum) + ((double)state.max - (double)target_logit);
    if (grad_scale == nullptr)
        return;
    float scale = (float)((double)grad_scale[0] * loss_weight);
    float factor = valid ? scale / state.sum : NAN;
#pragma unroll 4
    for (size_t pack = first + threadIdx.x; pack < end; pack += THREADS) {
        float x[N];
        if constexpr (KEEP)
            to_floats<T>(x, zero_load<N>(kept, (pack - first) * N));
        else
            to_floats<T>(x, zero_load<N>(row, pack * N));
#pragma unroll
        for (int i = 0; i < N; ++i)
            x[i] = factor * zero_fast_exp(x[i] - state.max);
        zero_store(row, pack * N, x);
    }
    for (size_t i = rest + threadIdx.x; i < vocab_size; i += THREADS)
        row[i] = zero_from_float<T>(factor * zero_fast_exp(zero_to_float(row[i]) - state.max));
    /* The target's element is written again, by the thread that wrote it before. */
    size_t at = (size_t)target, pack = at / N;
    bool in_packs = at < n_whole, is_mine = in_packs ? first <= pack && pack < end : block == BLOCKS - 1;
    if (valid && is_mine && threadIdx.x == (in_packs ? pack - first : at - n_whole) % THREADS)
        row[at] = zero_from_float<T>(factor * zero_fast_exp(target_logit - state.max) - scale);
}

/* Two blocks fit a multiprocessor's 227 KiB, so that one reads while the other writes. */
#define KEPT_MAX_BYTES ((size_t)112 << 10)
#define MAX_BLOCKS 8 /* of a cluster, on every GPU that has them */

/* A call's arguments, as of zero_launch_cross_entropy. */
template <typename T> struct rows_t {
    T *logits;
    double *losses;
    const int32_t *targets;
    const float *grad_scale;
    double loss_weight;
    size_t n_rows, vocab_size, ld;
};

/* Returns what a block keeps, if `blocks` share a row: whole packs. */
template <typename T> static size_t kept_bytes(const rows_t<T> &rows, size_t blocks)
{
    return zero_divide_up(rows.vocab_size * sizeof(T) / 16, blocks) * 16;
}

template <bool KEEP, int BLOCKS, typename T> static cudaError_t launch(cudaStream_t stream, const rows_t<T> &rows)
{
    auto kernel = cross_entropy<T, 16 / sizeof(T), KEEP, BLOCKS>;
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(rows.n_rows * BLOCKS));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    if (KEEP) {
        config.dynamicSmemBytes = kept_bytes(rows, BLOCKS);
        cudaError_t error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 (int)config.dynamicSmemBytes);
        if (error != cudaSuccess)
            return error;
    }
    if (BLOCKS > 1) {
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim.x = BLOCKS;
        cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
        config.attrs = &cluster;
        config.numAttrs = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, rows.logits, rows.losses, rows.targets, rows.grad_scale,
                              rows.loss_weight, rows.vocab_size, rows.ld);
}

/* Whether the current GPU has clusters: since Hopper. */
static bool has_clusters(void)
{
    int capability;
    return zero_find_capability(&capability) == cudaSuccess && capability >= 90;
}

/* The same for losses with and without gradients, which so have the same bits. */
template <typename T> static cudaError_t launch_for(cudaStream_t stream, const rows_t<T> &rows)
{
    size_t most = has_clusters() ? MAX_BLOCKS : 1, blocks = 1;
    while (blocks < most && kept_bytes(rows, blocks) > KEPT_MAX_BYTES)
        blocks *= 2;
    if (kept_bytes(rows, blocks) > KEPT_MAX_BYTES)
        return launch<false, 1>(stream, rows);
    return blocks == 1   ? launch<true, 1>(stream, rows)
           : blocks == 2 ? launch<true, 2>(stream, rows)
           : blocks == 4 ? launch<true, 4>(stream, rows)
                         : launch<true, MAX_BLOCKS>(stream, rows);
}

extern "C" cudaError_t zero_launch_cross_entropy(cudaStream_t stream, zero_dtype_t dtype, void *logits, double *losses,
                                                 const int32_t *targets, const float *grad_scale, double loss_weight,
                                                 size_t n_rows, size_t vocab_size, size_t ld)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return launch_for<T>(stream, {(T *)logits, losses, targets, grad_scale, loss_weight, n_rows, vocab_size, ld});
    });
}

/* A block takes a row, and leaves it as it is if it has a target. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    skip_rows(T *logits, double *losses, const int32_t *targets, bool has_gradient, size_t vocab_size, size_t ld)
{
    size_t row_index = blockIdx.x;
    if (targets[row_index] != ZERO_NO_TARGET)
        return;
    if (threadIdx.x == 0)
        losses[row_index] = 0.0;
    if (!has_gradient)
        return;
    for (size_t i = threadIdx.x; i < vocab_size; i += THREADS)
        logits[row_index * ld + i] = zero_from_float<T>(0.0f);
}

extern "C" cudaError_t zero_launch_skip_rows(cudaStream_t stream, zero_dtype_t dtype, void *logits, double *losses,
                                             const int32_t *targets, bool has_gradient, size_t n_rows,
                                             size_t vocab_size, size_t ld)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        skip_rows<T>
            <<<(unsigned)n_rows, THREADS, 0, stream>>>((T *)logits, losses, targets, has_gradient, vocab_size, ld);
        return cudaGetLastError();
    });
}

static __global__ void __launch_bounds__(THREADS)
    add_losses(double *loss_sum, const double *losses, double loss_weight, size_t n_rows)
{
    __shared__ double sums[THREADS];
    double sum = 0.0;
    for (size_t row = threadIdx.x; row < n_rows; row += THREADS)
        sum += losses[row];
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *loss_sum += zero_loss_rounded(loss_weight * sums[0]);
}

extern "C" cudaError_t zero_launch_add_losses(cudaStream_t stream, double *loss_sum, const double *losses,
                                              double loss_weight, size_t n_rows)
{
    add_losses<<<1, THREADS, 0, stream>>>(loss_sum, losses, loss_weight, n_rows);
    return cudaGetLastError();
}
