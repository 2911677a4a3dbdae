/* cast.cuh - bf16 elements to fp8: the scale, and eight elements at a time. */
#ifndef ZERO_CAST_CUH
#define ZERO_CAST_CUH

#include <cuda_fp8.h>

#include "kernels/float_bits.h"
#include "train/kernels/cuda/pack.cuh"

/* Returns a matrix's scale, by its absmax. One thread of the grid, which `writes`, also sets scale and inverse. */
template <zero_fp8_format_t FORMAT>
static __device__ __forceinline__ float zero_cast_scale(zero_fp8_scales_t *scales, bool writes)
{
    const zero_fp8_scales_t all = zero_fp8_scales_of(FORMAT, scales->absmax);
    if (writes) {
        scales->scale = all.scale;
        scales->inverse = all.inverse;
    }
    return all.scale;
}

template <zero_fp8_format_t FORMAT> static __device__ __forceinline__ uint32_t zero_cast_pair(float low, float high)
{
#if __CUDA_ARCH__ >= 890
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                    FORMAT == ZERO_E4M3 ? __NV_E4M3 : __NV_E5M2);
#else
    return zero_fp8_of_float(FORMAT, low) | (uint32_t)zero_fp8_of_float(FORMAT, high) << 8;
#endif
}

template <zero_fp8_format_t FORMAT>
static __device__ __forceinline__ uint32_t zero_cast_word(uint32_t first, uint32_t second, float scale)
{
    typedef zero_pair<__nv_bfloat16> pair;
    return zero_cast_pair<FORMAT>(pair::low(first) * scale, pair::high(first) * scale) |
           zero_cast_pair<FORMAT>(pair::low(second) * scale, pair::high(second) * scale) << 16;
}

/* Returns the eight elements of a pack times scale: to nearest even, saturating; NaN stays NaN. */
template <zero_fp8_format_t FORMAT> static __device__ __forceinline__ uint2 zero_cast_octet(uint4 pack, float scale)
{
    return make_uint2(zero_cast_word<FORMAT>(pack.x, pack.y, scale), zero_cast_word<FORMAT>(pack.z, pack.w, scale));
}

#endif
