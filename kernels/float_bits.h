/* float_bits.h - the bits of a float, fp8's formats and scales, for the arithmetic that all devices share
 * (shard_math.h). Valid as C17 and as CUDA C++.
 */
#ifndef ZERO_FLOAT_BITS_H
#define ZERO_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

#include "zero.h" /* zero_fp8_scales_t */

#ifdef __CUDACC__
#define ZERO_MATH static __host__ __device__ __forceinline__
#else
#define ZERO_MATH static inline
#endif

#define ZERO_FLOAT_INF_BITS 0x7f800000u
#define ZERO_FLOAT_NAN_BITS 0x7fc00000u

ZERO_MATH uint32_t zero_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ZERO_MATH float zero_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- fp8 ---- */
/* Matrices in fp8: the two formats (Micikevicius et al. 2022, arXiv:2209.05433) and the scale of a matrix.
 *
 * A matrix has one scale, the largest power of two that takes its absolute maximum into the format's range. So scaling
 * is exact, and since a maximum does not depend on the order in which it is taken, every rank, shard and stage comes to
 * the same scale and the same bytes. */

/* E4M3: 4 exponent and 3 mantissa bits, up to 448, no infinity, for activations and weights. E5M2: up to 57344, for the
 * gradients of outputs. */
typedef enum zero_fp8_format { ZERO_E4M3, ZERO_E5M2 } zero_fp8_format_t;

/* ---- fp8 math ---- */
/* The arithmetic of fp8, shared by the CPU and CUDA kernels of models and shards: a byte from a float and
 * back, and a matrix's scale from its absolute maximum.
 *
 * Everything is branch-free and exact to the bit, as in shard_math.h. `format` is a constant in every caller's loop, so
 * what depends on it is computed once. Valid as C17 and as CUDA C++. */

#define ZERO_FP8_NAN 0x7fu /* of both formats, and the only NaN that a cast writes */

ZERO_MATH uint32_t zero_fp8_mantissa_bits(zero_fp8_format_t format)
{
    return format == ZERO_E4M3 ? 3u : 2u;
}

/* Returns by how much the format's exponent is below fp32's. */
ZERO_MATH uint32_t zero_fp8_exponent_shift(zero_fp8_format_t format)
{
    return format == ZERO_E4M3 ? 127u - 7u : 127u - 15u;
}

/* Returns the byte of the largest number: 448 (above is NaN), 57344 (above are infinity and NaN). */
ZERO_MATH uint32_t zero_fp8_largest(zero_fp8_format_t format)
{
    return format == ZERO_E4M3 ? 0x7eu : 0x7bu;
}

/* Rounds to nearest even, as zero_fp16_of_float does; what is beyond the largest number, and infinity, becomes the
 * largest number. */
ZERO_MATH uint8_t zero_fp8_of_float(zero_fp8_format_t format, float x)
{
    uint32_t shift = 23u - zero_fp8_mantissa_bits(format), exponent_shift = zero_fp8_exponent_shift(format);
    uint32_t bits = zero_bits_of_float(x);
    uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
    uint32_t half = (1u << (shift - 1u)) - 1u;
    uint32_t normal = (magnitude - (exponent_shift << 23) + half + ((magnitude >> shift) & 1u)) >> shift;
    /* Below the smallest normal number the unit is that of the float `unit`, so adding it rounds to this unit. */
    uint32_t unit = (exponent_shift + 1u + shift) << 23;
    uint32_t denormal = zero_bits_of_float(zero_float_of_bits(magnitude) + zero_float_of_bits(unit)) - unit;
    uint32_t rounded = magnitude >= ((exponent_shift + 1u) << 23) ? normal : denormal;
    uint32_t largest = zero_fp8_largest(format);
    uint32_t saturated = rounded < largest ? rounded : largest;
    return (uint8_t)(magnitude > ZERO_FLOAT_INF_BITS ? ZERO_FP8_NAN : sign | saturated);
}

ZERO_MATH float zero_float_of_fp8(zero_fp8_format_t format, uint8_t byte)
{
    uint32_t shift = 23u - zero_fp8_mantissa_bits(format), exponent_shift = zero_fp8_exponent_shift(format);
    uint32_t sign = ((uint32_t)byte & 0x80u) << 24, magnitude = (uint32_t)byte & 0x7fu;
    uint32_t shifted = magnitude << shift, smallest = (exponent_shift + 1u) << 23;
    /* As in zero_float_of_fp16: the mantissa after the leading one of the smallest normal number, less that number. */
    float denormal = zero_float_of_bits(shifted + smallest) - zero_float_of_bits(smallest);
    uint32_t number = shifted >= 1u << 23 ? shifted + (exponent_shift << 23) : zero_bits_of_float(denormal);
    uint32_t special = format == ZERO_E5M2 && magnitude == 0x7cu ? ZERO_FLOAT_INF_BITS : ZERO_FLOAT_NAN_BITS;
    return zero_float_of_bits(sign | (magnitude > zero_fp8_largest(format) ? special : number));
}

/* Returns the bits by which absolute maxima are compared. */
ZERO_MATH uint32_t zero_fp8_magnitude(float x)
{
    return zero_bits_of_float(x) & 0x7fffffffu;
}

/* Returns the scales of a matrix. A matrix of zeros has scale 1. Scales end at 2^126, so that the inverse is a normal
 * number: only maxima below 2^-111 are then farther from the end of the range than they could be. */
ZERO_MATH zero_fp8_scales_t zero_fp8_scales_of(zero_fp8_format_t format, uint32_t absmax)
{
    /* The largest number is 1.75 * 2^8 or 1.75 * 2^15. */
    int32_t top = format == ZERO_E4M3 ? 8 : 15;
    int32_t exponent = top - ((int32_t)(absmax >> 23) - 127) - ((absmax & 0x7fffffu) > 0x600000u ? 1 : 0);
    exponent = absmax == 0u || absmax >= ZERO_FLOAT_INF_BITS ? 0 : exponent > 126 ? 126 : exponent;
    zero_fp8_scales_t scales;
    scales.scale = zero_float_of_bits((uint32_t)(127 + exponent) << 23);
    scales.inverse = absmax >= ZERO_FLOAT_INF_BITS ? zero_float_of_bits(ZERO_FLOAT_NAN_BITS)
                                                   : zero_float_of_bits((uint32_t)(127 - exponent) << 23);
    scales.absmax = absmax;
    scales.unused = 0;
    return scales;
}

#endif
