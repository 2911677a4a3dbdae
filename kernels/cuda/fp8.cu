/* fp8.cu - parameters in fp8 on CUDA: the absolute maximum of this rank's part of each matrix, scales from the maxima
 * of all ranks, and the cast. fp8.c's twin.
 *
 * Blocks process runs of elements, as many for each segment as the largest one has; those behind a segment's end do
 * nothing. A thread has several groups of elements in flight. Blocks combine their maxima by atomicMax, whose order
 * does not matter.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"
#include "kernels/float_bits.h"
#include "kernels/shard_math.h"

constexpr unsigned THREADS = 256;
constexpr unsigned WARP = 32;
constexpr unsigned GROUPS = 8; /* of a thread */
constexpr unsigned ROW_ELEMS = THREADS * GROUP_ELEMS;
constexpr unsigned BLOCK_ELEMS = GROUPS * ROW_ELEMS;

/* What a block processes: elements [begin, end) of a segment, at most BLOCK_ELEMS. */
struct run {
    zero_fp8_segment_t segment;
    uint64_t begin, end;
};

__device__ static run run_of_block(const zero_fp8_segment_t *segments, unsigned blocks_per_segment)
{
    run r;
    r.segment = segments[blockIdx.x / blocks_per_segment];
    r.begin = (uint64_t)(blockIdx.x % blocks_per_segment) * BLOCK_ELEMS;
    r.end = r.begin + BLOCK_ELEMS < r.segment.n_elems ? r.begin + BLOCK_ELEMS : r.segment.n_elems;
    return r;
}

/* ---- Maxima --------------------------------------------------------------------------------------------------------
 */

__device__ static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

__device__ static uint32_t magnitude_of(uint16_t x)
{
    return zero_fp8_magnitude(zero_float_of_bf16(x));
}

__device__ static uint32_t absmax_of_run(const uint16_t *param, const run &r)
{
    uint32_t largest = 0;
    if (r.end - r.begin == BLOCK_ELEMS && is_group_aligned(param)) {
        group<uint16_t> x[GROUPS];
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g)
            x[g] = load_group(param + r.begin + g * ROW_ELEMS + threadIdx.x * GROUP_ELEMS);
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g)
#pragma unroll
            for (unsigned i = 0; i < GROUP_ELEMS; ++i)
                largest = larger(largest, magnitude_of(x[g].at[i]));
        return largest;
    }
    for (uint64_t i = r.begin + threadIdx.x; i < r.end; i += THREADS)
        largest = larger(largest, magnitude_of(param[i]));
    return largest;
}

static __global__ void __launch_bounds__(THREADS)
    absmax_kernel(zero_fp8_parts_t parts, unsigned blocks_per_segment, uint32_t *absmaxes)
{
    const run r = run_of_block(parts.segments, blocks_per_segment);
    if (r.begin >= r.end)
        return;
    const uint32_t mine = absmax_of_run(parts.param + r.segment.param, r);
    const uint32_t of_warp = __reduce_max_sync(0xffffffffu, mine);
    if (threadIdx.x % WARP == 0)
        atomicMax(&absmaxes[r.segment.matrix], of_warp);
}

/* ---- Scales and the cast -------------------------------------------------------------------------------------------
 */

static __global__ void __launch_bounds__(THREADS)
    scale_kernel(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks, uint32_t n_matrices)
{
    const uint32_t m = blockIdx.x * THREADS + threadIdx.x;
    uint32_t largest = 0;
    if (m >= n_matrices)
        return;
    for (int r = 0; r < n_ranks; ++r)
        largest = larger(largest, absmaxes[(size_t)r * n_matrices + m]);
    scales[m] = zero_fp8_scales_of(ZERO_E4M3, largest);
}

__device__ static uint8_t byte_of(uint16_t x, float scale)
{
    return zero_fp8_of_float(ZERO_E4M3, zero_float_of_bf16(x) * scale);
}

__device__ static void cast_run(uint8_t *bytes, const uint16_t *param, float scale, const run &r)
{
    if (r.end - r.begin == BLOCK_ELEMS && is_group_aligned(param) && is_group_aligned(bytes)) {
        group<uint16_t> x[GROUPS];
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g)
            x[g] = load_group(param + r.begin + g * ROW_ELEMS + threadIdx.x * GROUP_ELEMS);
#pragma unroll
        for (unsigned g = 0; g < GROUPS; ++g) {
            group<uint8_t> to;
#pragma unroll
            for (unsigned i = 0; i < GROUP_ELEMS; ++i)
                to.at[i] = byte_of(x[g].at[i], scale);
            store_group(bytes + r.begin + g * ROW_ELEMS + threadIdx.x * GROUP_ELEMS, to);
        }
        return;
    }
    for (uint64_t i = r.begin + threadIdx.x; i < r.end; i += THREADS)
        bytes[i] = byte_of(param[i], scale);
}

static __global__ void __launch_bounds__(THREADS)
    cast_kernel(zero_fp8_parts_t parts, unsigned blocks_per_segment, const zero_fp8_scales_t *scales)
{
    const run r = run_of_block(parts.segments, blocks_per_segment);
    if (r.begin < r.end)
        cast_run(parts.bytes + r.segment.byte, parts.param + r.segment.param, scales[r.segment.matrix].scale, r);
}

/* ---- Launchers -----------------------------------------------------------------------------------------------------
 */

cudaError_t zero_cuda_shard_fp8_absmax(const zero_fp8_parts_t *parts, uint32_t *absmaxes, cudaStream_t stream)
{
    const unsigned blocks = blocks_for(parts->largest, BLOCK_ELEMS);
    const cudaError_t error =
        cudaMemsetAsync(absmaxes + parts->first_matrix, 0, parts->n_matrices * sizeof *absmaxes, stream);
    if (error != cudaSuccess || parts->n_segments == 0)
        return error;
    absmax_kernel<<<blocks *(unsigned)parts->n_segments, THREADS, 0, stream>>>(*parts, blocks, absmaxes);
    return cudaGetLastError();
}

cudaError_t zero_cuda_shard_fp8_scale(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks,
                                      uint32_t n_matrices, cudaStream_t stream)
{
    scale_kernel<<<blocks_for(n_matrices, THREADS), THREADS, 0, stream>>>(scales, absmaxes, n_ranks, n_matrices);
    return cudaGetLastError();
}

cudaError_t zero_cuda_shard_fp8_cast(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales,
                                     cudaStream_t stream)
{
    const unsigned blocks = blocks_for(parts->largest, BLOCK_ELEMS);
    cast_kernel<<<blocks *(unsigned)parts->n_segments, THREADS, 0, stream>>>(*parts, blocks, scales);
    return cudaGetLastError();
}
