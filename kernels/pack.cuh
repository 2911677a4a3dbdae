/* pack.cuh - how CUDA model kernels read and write activations: several elements at a time, computed in fp32.
 *
 * A pack is what one thread moves at once: 16 bytes where pointers and sizes allow it, else one element; kernels are
 * templates over its length, launchers pick by zero_packs. Fused multiply-adds are written out (the build contracts
 * nothing), so two kernels that use one expression give the same bits.
 */
#ifndef ZERO_PACK_CUH
#define ZERO_PACK_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/model_launch.h"

#define ZERO_WARP 32
#define ZERO_FULL_WARP 0xffffffffu

template <typename T, int N> struct alignas(sizeof(T) * N) zero_pack {
    T elem[N];
};

__device__ __forceinline__ float zero_to_float(float x)
{
    return x;
}
__device__ __forceinline__ float zero_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float zero_to_float(__half x)
{
    return __half2float(x);
}

template <typename T> __device__ __forceinline__ T zero_from_float(float x);
template <> __device__ __forceinline__ float zero_from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 zero_from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half zero_from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* Elements first .. first + N. */
template <int N, typename T> __device__ __forceinline__ zero_pack<T, N> zero_load(const T *data, size_t first)
{
    return *reinterpret_cast<const zero_pack<T, N> *>(data + first);
}
template <int N, typename T> __device__ __forceinline__ void zero_store(T *data, size_t first, zero_pack<T, N> pack)
{
    *reinterpret_cast<zero_pack<T, N> *>(data + first) = pack;
}

/* ---- Gradients of any dtype ---- */

template <typename T, int N>
__device__ __forceinline__ void zero_put_as(zero_grad_t grad, size_t first, const float (&values)[N])
{
    T *data = (T *)grad.data;
    /* Gradients may start anywhere: one element at a time unless the pack's address allows more. */
    bool whole = ((uintptr_t)(data + first) % (sizeof(T) * N)) == 0;
    zero_pack<T, N> pack = {};
    if (grad.accumulate && whole)
        pack = zero_load<N>(data, first);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (grad.accumulate && !whole)
            pack.elem[i] = data[first + i];
        pack.elem[i] = zero_from_float<T>(grad.accumulate ? zero_to_float(pack.elem[i]) + values[i] : values[i]);
        if (!whole)
            data[first + i] = pack.elem[i];
    }
    if (whole)
        zero_store(data, first, pack);
}

/* Adds or writes values at elements first .. first + N; one rounding. */
template <int N> __device__ __forceinline__ void zero_put_grad(zero_grad_t grad, size_t first, const float (&values)[N])
{
    if (grad.dtype == ZERO_FP32)
        zero_put_as<float>(grad, first, values);
    else if (grad.dtype == ZERO_BF16)
        zero_put_as<__nv_bfloat16>(grad, first, values);
    else
        zero_put_as<__half>(grad, first, values);
}

/* ---- Sums over a warp, the same tree always; every lane gets the result ---- */

__device__ __forceinline__ float zero_warp_sum(float x)
{
#pragma unroll
    for (int offset = ZERO_WARP / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ZERO_FULL_WARP, x, offset);
    return x;
}

/* ---- Launching ---- */

static inline bool zero_aligned(const void *data)
{
    return (uintptr_t)data % 16 == 0; /* NULL is */
}

/* Calls f with a value of the dtype's type, for generic lambdas. */
template <typename F> static inline cudaError_t zero_with_type(zero_dtype_t dtype, F f)
{
    if (dtype == ZERO_FP32)
        return f(float());
    if (dtype == ZERO_BF16)
        return f(__nv_bfloat16());
    return f(__half());
}

static inline size_t zero_divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

#endif
