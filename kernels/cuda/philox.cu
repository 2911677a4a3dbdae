/* philox.cu - initial values on CUDA: philox.c's twin. Each thread makes the four normal numbers of one Philox block
 * and writes those that were asked for.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"
#include "kernels/shard_math.h"

constexpr unsigned THREADS = 256;

__device__ static group<float> normals_of_block(uint64_t block, uint64_t seed, uint64_t key, float std)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)key, c3 = (uint32_t)(key >> 32);
    zero_philox(&c0, &c1, &c2, &c3, (uint32_t)seed, (uint32_t)(seed >> 32));
    float z0, z1, z2, z3;
    zero_box_muller(c0, c1, &z0, &z1);
    zero_box_muller(c2, c3, &z2, &z3);
    return {{std * z0, std * z1, std * z2, std * z3}};
}

static __global__ void __launch_bounds__(THREADS)
    fill_normal_kernel(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std)
{
    const uint64_t block = first / GROUP_ELEMS + (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const uint64_t begin = block * GROUP_ELEMS, end = first + n_elems; /* element indices */
    if (begin >= end)
        return;
    const group<float> values = normals_of_block(block, seed, key, std);
    if (begin >= first && begin + GROUP_ELEMS <= end && is_group_aligned(dst + (begin - first))) {
        store_group(dst + (begin - first), values);
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < GROUP_ELEMS; ++i)
        if (begin + i >= first && begin + i < end)
            dst[begin + i - first] = values.at[i];
}

cudaError_t zero_cuda_fill_normal(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first, float std,
                                  cudaStream_t stream)
{
    const uint64_t n_groups = (first % GROUP_ELEMS + n_elems + GROUP_ELEMS - 1) / GROUP_ELEMS;
    fill_normal_kernel<<<blocks_for(n_groups, THREADS), THREADS, 0, stream>>>(dst, n_elems, seed, key, first, std);
    return cudaGetLastError();
}
