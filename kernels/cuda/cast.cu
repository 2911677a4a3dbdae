/* cast.cu - casts between dtypes on CUDA, and the split of master weights and its inverse: cast.c's twin.
 *
 * If both arrays are aligned, each thread casts one group of elements. Otherwise threads cast single elements,
 * neighbouring threads neighbouring elements. Master weights are split and joined when weights are loaded and saved,
 * not in a step, so that always goes by single elements.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"
#include "kernels/shard_math.h"

constexpr unsigned THREADS = 256;
constexpr unsigned BLOCK_ELEMS = THREADS * GROUP_ELEMS;

/* ---- Casts ---------------------------------------------------------------------------------------------------------
 */

struct fp32_of_bf16 {
    typedef float dst_t;
    typedef uint16_t src_t;
    static __device__ float convert(uint16_t x)
    {
        return zero_float_of_bf16(x);
    }
};
struct fp32_of_fp16 {
    typedef float dst_t;
    typedef uint16_t src_t;
    static __device__ float convert(uint16_t x)
    {
        return zero_float_of_fp16(x);
    }
};
struct bf16_of_fp32 {
    typedef uint16_t dst_t;
    typedef float src_t;
    static __device__ uint16_t convert(float x)
    {
        return zero_bf16_of_float(x);
    }
};
struct fp16_of_fp32 {
    typedef uint16_t dst_t;
    typedef float src_t;
    static __device__ uint16_t convert(float x)
    {
        return zero_fp16_of_float(x);
    }
};
/* Widening is exact, so casting through fp32 rounds once. */
struct fp16_of_bf16 {
    typedef uint16_t dst_t;
    typedef uint16_t src_t;
    static __device__ uint16_t convert(uint16_t x)
    {
        return zero_fp16_of_float(zero_float_of_bf16(x));
    }
};
struct bf16_of_fp16 {
    typedef uint16_t dst_t;
    typedef uint16_t src_t;
    static __device__ uint16_t convert(uint16_t x)
    {
        return zero_bf16_of_float(zero_float_of_fp16(x));
    }
};

template <typename CAST>
static __global__ void __launch_bounds__(THREADS)
    cast_kernel(typename CAST::dst_t *dst, const typename CAST::src_t *src, size_t n_elems, bool aligned)
{
    const size_t begin = (size_t)blockIdx.x * BLOCK_ELEMS;
    const size_t mine = begin + threadIdx.x * GROUP_ELEMS;
    if (aligned && begin + BLOCK_ELEMS <= n_elems) {
        const group<typename CAST::src_t> from = load_group(src + mine);
        group<typename CAST::dst_t> to;
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            to.at[i] = CAST::convert(from.at[i]);
        store_group(dst + mine, to);
        return;
    }
    for (size_t i = begin + threadIdx.x; i < begin + BLOCK_ELEMS && i < n_elems; i += THREADS)
        dst[i] = CAST::convert(src[i]);
}

template <typename CAST> static void launch_cast(void *dst, const void *src, size_t n_elems, cudaStream_t stream)
{
    auto *to = (typename CAST::dst_t *)dst;
    auto *from = (const typename CAST::src_t *)src;
    const bool aligned = is_group_aligned(to) && is_group_aligned(from);
    cast_kernel<CAST><<<blocks_for(n_elems, BLOCK_ELEMS), THREADS, 0, stream>>>(to, from, n_elems, aligned);
}

cudaError_t zero_cuda_cast(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype, size_t n_elems,
                           cudaStream_t stream)
{
    typedef void (*launch_t)(void *dst, const void *src, size_t n_elems, cudaStream_t stream);
    static const launch_t launches[3][3] = {
        /* [dst][src], in the order of zero_dtype_t: fp32, bf16, fp16 */
        {nullptr, launch_cast<fp32_of_bf16>, launch_cast<fp32_of_fp16>},
        {launch_cast<bf16_of_fp32>, nullptr, launch_cast<bf16_of_fp16>},
        {launch_cast<fp16_of_fp32>, launch_cast<fp16_of_bf16>, nullptr},
    };
    launches[dst_dtype][src_dtype](dst, src, n_elems, stream);
    return cudaGetLastError();
}

/* ---- Master weights ------------------------------------------------------------------------------------------------
 */

static __global__ void __launch_bounds__(THREADS)
    split_bf16_kernel(uint16_t *param, int16_t *master_lo, const float *master, size_t n_elems)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_elems)
        return;
    param[i] = zero_split_param(master[i]);
    master_lo[i] = zero_split_master_lo(master[i]);
}

static __global__ void __launch_bounds__(THREADS)
    join_bf16_kernel(float *master, const uint16_t *param, const int16_t *master_lo, size_t n_elems)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_elems)
        master[i] = zero_join_master(param[i], master_lo[i]);
}

cudaError_t zero_cuda_split_bf16(uint16_t *param, int16_t *master_lo, const float *master, size_t n_elems,
                                 cudaStream_t stream)
{
    split_bf16_kernel<<<blocks_for(n_elems, THREADS), THREADS, 0, stream>>>(param, master_lo, master, n_elems);
    return cudaGetLastError();
}

cudaError_t zero_cuda_join_bf16(float *master, const uint16_t *param, const int16_t *master_lo, size_t n_elems,
                                cudaStream_t stream)
{
    join_bf16_kernel<<<blocks_for(n_elems, THREADS), THREADS, 0, stream>>>(master, param, master_lo, n_elems);
    return cudaGetLastError();
}
