/* maximum.cuh - the absolute maximum of what a kernel writes, which the cast to fp8 needs: found in the registers that
 * are being stored, it saves the cast a pass over memory.
 *
 * A kernel is a template over its recorder. zero_no_maximum costs nothing, so a kernel that records nothing is compiled
 * as if there were no maxima. Maxima of integers do not depend on their order, so the bits equal those of a pass.
 */
#ifndef ZERO_MAXIMUM_CUH
#define ZERO_MAXIMUM_CUH

#include <type_traits>

#include "train/kernels/cuda/pack.cuh"

struct zero_no_maximum {
    static constexpr bool RECORDS = false;
    template <int N, typename T> __device__ __forceinline__ void see(const zero_pack<T, N> &)
    {
    }
    __device__ __forceinline__ void finish(bool)
    {
    }
};

/* As integers, magnitudes of bf16 are in the order of their values. */
struct zero_maximum {
    static constexpr bool RECORDS = true;
    uint32_t *absmax; /* device memory: the bits of the largest magnitude so far, as fp32 */
    uint32_t largest; /* this thread's, two of bf16 */

    template <int N> __device__ __forceinline__ void see(const zero_pack<__nv_bfloat16, N> &pack)
    {
        if constexpr (N % 2 == 0) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i)
                largest = __vmaxu2(largest, pack.word[i] & 0x7fff7fffu);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i)
                largest = __vmaxu2(largest, __bfloat16_as_ushort(pack.elem[i]) & 0x7fffu);
        }
    }
    /* Raises *absmax to the largest of a block, or of a warp if not all warps of the block have come here. All threads
     * of these call it. */
    __device__ __forceinline__ void finish(bool whole_block)
    {
        __shared__ uint32_t of_warp[32];
        unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, n_warps = blockDim.x * blockDim.y / ZERO_WARP;
        uint32_t one = __reduce_max_sync(ZERO_FULL_WARP, max(largest & 0xffffu, largest >> 16) << 16);
        if (whole_block) {
            if (thread % ZERO_WARP == 0)
                of_warp[thread / ZERO_WARP] = one;
            __syncthreads();
            if (thread >= ZERO_WARP)
                return;
            one = __reduce_max_sync(ZERO_FULL_WARP, thread < n_warps ? of_warp[thread] : 0u);
        }
        /* Atomics on one address run one after the other, so those that raise nothing are left out. */
        if (thread % ZERO_WARP == 0 && one > *(volatile uint32_t *)absmax)
            atomicMax(absmax, one);
    }
};

/* Calls f, a generic lambda, with the recorder of a kernel that writes T. Only bf16 is cast to fp8. */
template <typename T, typename F> static inline cudaError_t zero_with_maximum(uint32_t *absmax, F f)
{
    if (absmax == nullptr)
        return f(zero_no_maximum());
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        return f(zero_maximum{absmax, 0});
    return cudaErrorInvalidValue;
}

#endif
