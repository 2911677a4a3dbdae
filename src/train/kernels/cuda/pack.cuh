/* pack.cuh - how CUDA model kernels read, write and launch: several elements at a time, computed in fp32.
 *
 * A pack is what one thread moves at once: 16 bytes if addresses and sizes allow it, else one element. Kernels are
 * templates over its length, and launchers choose it by zero_aligned. Fused multiply-adds are explicit, since the build
 * contracts none, so two kernels that use the same expression give the same bits.
 */
#ifndef ZERO_PACK_CUH
#define ZERO_PACK_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "train/kernels/cuda/launch.h"

#define ZERO_WARP 32
#define ZERO_FULL_WARP 0xffffffffu

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

/* Two 16-bit elements in one register; the first is the low half. */
template <typename T> struct zero_pair;
template <> struct zero_pair<__nv_bfloat16> {
    static __device__ __forceinline__ float low(uint32_t word)
    {
        return __uint_as_float(word << 16);
    }
    static __device__ __forceinline__ float high(uint32_t word)
    {
        return __uint_as_float(word & 0xffff0000u);
    }
    static __device__ __forceinline__ uint32_t of(float low, float high)
    {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    }
};
template <> struct zero_pair<__half> {
    static __device__ __forceinline__ float low(uint32_t word)
    {
        return __low2float(*reinterpret_cast<__half2 *>(&word));
    }
    static __device__ __forceinline__ float high(uint32_t word)
    {
        return __high2float(*reinterpret_cast<__half2 *>(&word));
    }
    static __device__ __forceinline__ uint32_t of(float low, float high)
    {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&pair);
    }
};

/* pack[i] is element i in fp32. Two elements of 16 bits share a register; in an array each would take its own. */
template <typename T, int N, bool PAIRS = sizeof(T) == 2 && N % 2 == 0> struct alignas(sizeof(T) * N) zero_pack {
    T elem[N];
    __device__ __forceinline__ float operator[](int i) const
    {
        return zero_to_float(elem[i]);
    }
};
template <typename T, int N> struct alignas(sizeof(T) * N) zero_pack<T, N, true> {
    uint32_t word[N / 2];
    __device__ __forceinline__ float operator[](int i) const
    {
        return i % 2 == 0 ? zero_pair<T>::low(word[i / 2]) : zero_pair<T>::high(word[i / 2]);
    }
};

/* Returns the values as a pack, each rounded once. */
template <typename T, int N> __device__ __forceinline__ zero_pack<T, N> zero_packed(const float (&values)[N])
{
    zero_pack<T, N> pack;
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 2)
            pack.word[i / 2] = zero_pair<T>::of(values[i], values[i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
            pack.elem[i] = zero_from_float<T>(values[i]);
    }
    return pack;
}

/* Load and store elements first .. first + N. */
template <int N, typename T> __device__ __forceinline__ zero_pack<T, N> zero_load(const T *data, size_t first)
{
    return *reinterpret_cast<const zero_pack<T, N> *>(data + first);
}
template <int N, typename T>
__device__ __forceinline__ void zero_store_pack(T *data, size_t first, zero_pack<T, N> pack)
{
    *reinterpret_cast<zero_pack<T, N> *>(data + first) = pack;
}
template <int N, typename T> __device__ __forceinline__ void zero_store(T *data, size_t first, const float (&values)[N])
{
    zero_store_pack<N>(data, first, zero_packed<T>(values));
}

/* ---- Gradients of any dtype ---- */

template <typename T, int N>
__device__ __forceinline__ void zero_put_as(zero_grad_t grad, size_t first, const float (&values)[N])
{
    T *data = (T *)grad.data;
    float sum[N];
    /* Gradients may start at any element: a pack that is not aligned goes one element at a time. */
    if ((uintptr_t)(data + first) % (sizeof(T) * N) == 0) {
        zero_pack<T, N> before = {};
        if (grad.accumulate)
            before = zero_load<N>(data, first);
#pragma unroll
        for (int i = 0; i < N; ++i)
            sum[i] = grad.accumulate ? before[i] + values[i] : values[i];
        zero_store(data, first, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i)
        data[first + i] = zero_from_float<T>(grad.accumulate ? zero_to_float(data[first + i]) + values[i] : values[i]);
}

/* Adds values to elements first .. first + N of a gradient, or overwrites them, and rounds once. */
template <int N> __device__ __forceinline__ void zero_put_grad(zero_grad_t grad, size_t first, const float (&values)[N])
{
    if (grad.dtype == ZERO_FP32)
        zero_put_as<float>(grad, first, values);
    else if (grad.dtype == ZERO_BF16)
        zero_put_as<__nv_bfloat16>(grad, first, values);
    else
        zero_put_as<__half>(grad, first, values);
}

/* ---- Sums over a warp, or over LANES neighbouring lanes, always in the same tree; every lane gets the result ---- */

template <int LANES> __device__ __forceinline__ float zero_lanes_sum(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ZERO_FULL_WARP, x, offset);
    return x;
}
__device__ __forceinline__ float zero_warp_sum(float x)
{
    return zero_lanes_sum<ZERO_WARP>(x);
}

/* ---- Exponential and reciprocal for 16-bit results: within two units of fp32, denormals become 0 ---- */

__device__ __forceinline__ float zero_fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float zero_fast_exp(float x)
{
    return zero_fast_exp2(x * 1.44269504f);
}

__device__ __forceinline__ float zero_fast_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- Launching ---- */

/* A kernel that zero_launch_next queues may start while its predecessor in the stream still runs, once all blocks of
 * that have called zero_may_launch_next or ended. This hides the cost of starting it. It must call zero_wait_for_last
 * before it touches memory, which waits for the end of all earlier work. Before Hopper, kernels run one after the
 * other. */
__device__ __forceinline__ void zero_may_launch_next(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void zero_wait_for_last(void)
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

/* Sets *capability to ten times the current GPU's compute capability: 90 on Hopper. */
static inline cudaError_t zero_find_capability(int *capability)
{
    int gpu, major, minor;
    cudaError_t error = cudaGetDevice(&gpu);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
    if (error == cudaSuccess)
        *capability = 10 * major + minor;
    return error;
}

template <typename... P, typename... A>
static inline cudaError_t zero_launch_next(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, A... args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    int capability;
    cudaError_t error = zero_find_capability(&capability);
    if (error != cudaSuccess)
        return error;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = capability >= 90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

static inline bool zero_aligned(const void *data)
{
    return (uintptr_t)data % 16 == 0; /* NULL is */
}

/* Calls f, a generic lambda, with a value of the dtype's C++ type. */
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
