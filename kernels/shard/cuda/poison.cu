/* poison.cu - poison.c's twin on CUDA: fills gradient buffers with a NaN that no arithmetic makes, and counts what is
 * left of it.
 */
#include "kernels/shard/cuda/group.cuh"
#include "kernels/shard/cuda/shard_cuda.h"

constexpr unsigned THREADS = 256;

static __global__ void __launch_bounds__(THREADS) poison_kernel(uint16_t *halves, size_t n_halves)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_halves)
        halves[i] = ZERO_POISON;
}

/* stride: the 16-bit halves per element, 1 or 2. */
static __global__ void __launch_bounds__(THREADS)
    count_poison_kernel(const uint16_t *halves, unsigned stride, size_t n_elems, unsigned long long *n_found)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const bool found =
        i < n_elems && halves[i * stride] == ZERO_POISON && halves[i * stride + stride - 1] == ZERO_POISON;
    const int n_in_block = __syncthreads_count(found);
    if (threadIdx.x == 0 && n_in_block > 0)
        atomicAdd(n_found, (unsigned long long)n_in_block);
}

cudaError_t zero_cuda_poison(void *data, zero_dtype_t dtype, size_t n_elems, cudaStream_t stream)
{
    const size_t n_halves = dtype == ZERO_FP32 ? 2 * n_elems : n_elems;
    poison_kernel<<<blocks_for(n_halves, THREADS), THREADS, 0, stream>>>((uint16_t *)data, n_halves);
    return cudaGetLastError();
}

cudaError_t zero_cuda_count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                   cudaStream_t stream)
{
    const cudaError_t error = cudaMemsetAsync(n_found, 0, sizeof *n_found, stream);
    if (error != cudaSuccess)
        return error;
    count_poison_kernel<<<blocks_for(n_elems, THREADS), THREADS, 0, stream>>>(
        (const uint16_t *)data, dtype == ZERO_FP32 ? 2 : 1, n_elems, (unsigned long long *)n_found);
    return cudaGetLastError();
}
