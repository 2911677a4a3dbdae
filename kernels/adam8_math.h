/* adam8_math.h - 8-bit codes for AdamW's moments, shared by the CPU and the CUDA kernels under the rules of
 * shard_math.h.
 *
 * The values are those of dynamic tree quantization (Dettmers et al. 2022, arXiv:2110.02861), as bitsandbytes'
 * create_dynamic_map has them: 0, 1, and between 10^(i - 7) and 10^(i - 6), for i = 0..6, the means of n(i) equal
 * intervals; n(i) = 2^i with a sign, 2^(i + 1) without one. So small numbers keep their order of magnitude, and large
 * ones have the finer steps.
 *
 * Codes are numbered so that their arithmetic is short. A magnitude n stands for interval n - n(i) of the decade i with
 * n(i) <= n < 2 n(i). Code 0 is 0. Without a sign, codes 2..255 are magnitudes and 1 is 1. With one, codes are two's
 * complement: 1..127 and -1..-127 are magnitudes, and -128 is 1. There is no -1: the scale has the sign of the number
 * with the largest magnitude, whose code is then that of 1.
 *
 * What must hold: decoded numbers are encoded to the same codes and scale, so that state passes through fp32 (files,
 * zero_get_state, another number of ranks) unchanged. It does: the number with the largest magnitude is decoded to the
 * scale itself; the others are smaller by 0.3% at least; each is rounded by a few 2^-24 on its way, and neighbours
 * differ by 0.3%. A scale below ZERO_SCALE8_MIN, with which decoded numbers could be denormal, becomes 0, with all
 * numbers.
 */
#ifndef ZERO_ADAM8_MATH_H
#define ZERO_ADAM8_MATH_H

#include "kernels/shard_math.h"

#define ZERO_SCALE8_MIN 4.9303807e-32f /* 2^-104; the least magnitude is above 2^-22 */
#define ZERO_FLOAT_MAX_BITS 0x7f7fffffu

/* ---- The scale -----------------------------------------------------------------------------------------------------
 */

/* Returns a key that is larger for numbers of larger magnitude, and of two opposite numbers for the positive one. The
 * largest key of a block is its scale's. Infinity counts as the largest number, NaN as 0. */
ZERO_MATH uint32_t zero_scale8_key(float x)
{
    uint32_t bits = zero_bits_of_float(x), magnitude = bits & 0x7fffffffu;
    magnitude = magnitude > ZERO_FLOAT_INF_BITS   ? 0u
                : magnitude > ZERO_FLOAT_MAX_BITS ? ZERO_FLOAT_MAX_BITS
                                                  : magnitude;
    return (magnitude << 1) | ((bits >> 31) ^ 1u);
}

ZERO_MATH float zero_scale8_of_key(uint32_t key)
{
    float magnitude = zero_float_of_bits(key >> 1);
    float scale = key & 1u ? magnitude : -magnitude;
    return magnitude < ZERO_SCALE8_MIN ? 0.0f : scale;
}

/* Returns what numbers are multiplied by to be encoded. */
ZERO_MATH float zero_scale8_inverse(float scale)
{
    return scale == 0.0f ? 0.0f : 1.0f / scale;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------
 */

/* Returns 10^(i - 6). */
ZERO_MATH float zero_decade8(uint32_t i)
{
    float low = i & 2u ? (i & 1u ? 1e-3f : 1e-4f) : (i & 1u ? 1e-5f : 1e-6f);
    float high = i & 2u ? 1.0f : (i & 1u ? 1e-1f : 1e-2f);
    return i & 4u ? high : low;
}

/* Returns the value of magnitude n, n(i) = 2^(i + log_first). The middle of its interval is (n + 1/2) / n(i) - 1 of the
 * decade: 2 n + 1 with another exponent, less 1. */
ZERO_MATH float zero_magnitude8(uint32_t n, uint32_t log_first)
{
    uint32_t bits = zero_bits_of_float((float)(int32_t)(2u * n + 1u));
    float middle = zero_float_of_bits((bits & 0x007fffffu) | 0x3f800000u);
    return zero_decade8((bits >> 23) - 128u - log_first) * fmaf(0.9f, middle - 1.0f, 0.1f);
}

ZERO_MATH float zero_decode8_signed(uint8_t code, float scale)
{
    uint32_t is_negative = code > 128u, n = is_negative ? 256u - code : code;
    float value = n == 128u ? 1.0f : zero_magnitude8(n, 0);
    value = is_negative ? -value : value;
    return n == 0u ? 0.0f : value * scale;
}

ZERO_MATH float zero_decode8_unsigned(uint8_t code, float scale)
{
    float value = code == 1u ? 1.0f : zero_magnitude8(code, 1);
    return code == 0u ? 0.0f : value * scale;
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------
 */

/* Halfway between the last value of decade i - 1 and the first one of decade i, which has n values. */
#define ZERO_BETWEEN8(decade, n) ((float)((decade) * (0.1 + 0.18 / (n))))

/* Returns that number for i = 1..6. */
ZERO_MATH float zero_border8(uint32_t i, uint32_t log_first)
{
    const float first = (float)(int32_t)(1u << log_first);
    float low = i == 1u   ? ZERO_BETWEEN8(1e-5, 2 * first)
                : i == 2u ? ZERO_BETWEEN8(1e-4, 4 * first)
                          : ZERO_BETWEEN8(1e-3, 8 * first);
    float high = i == 4u   ? ZERO_BETWEEN8(1e-2, 16 * first)
                 : i == 5u ? ZERO_BETWEEN8(1e-1, 32 * first)
                           : ZERO_BETWEEN8(1.0, 64 * first);
    return i < 4u ? low : high;
}

/* Returns 10^(6 - i). */
ZERO_MATH float zero_inverse_decade8(uint32_t i)
{
    float low = i & 2u ? (i & 1u ? 1e3f : 1e4f) : (i & 1u ? 1e5f : 1e6f);
    float high = i & 2u ? 1.0f : (i & 1u ? 1e1f : 1e2f);
    return i & 4u ? high : low;
}

/* Returns where in its decade, from 1 to 2, a number is: 10/9 x + 8/9. */
ZERO_MATH float zero_in_decade8(float x)
{
    return fmaf(x, 1.1111112f, 0.8888889f);
}

/* Returns the magnitude whose value is nearest to x, which is in [0, 1]. first: n(0). */
ZERO_MATH uint32_t zero_nearest8(float x, uint32_t log_first)
{
    uint32_t i = (uint32_t)(x > zero_border8(1, log_first)) + (uint32_t)(x > zero_border8(2, log_first)) +
                 (uint32_t)(x > zero_border8(3, log_first)) + (uint32_t)(x > zero_border8(4, log_first)) +
                 (uint32_t)(x > zero_border8(5, log_first)) + (uint32_t)(x > zero_border8(6, log_first));
    uint32_t least = 1u << (i + log_first);
    float at = zero_in_decade8(x * zero_inverse_decade8(i));
    uint32_t n = (uint32_t)(int32_t)(at * (float)(int32_t)least);
    n = n < least ? least : n;
    return n < 2u * least ? n : 2u * least - 1u;
}

/* Returns |x|, at most 1; 0 of NaN. */
ZERO_MATH float zero_unit8(float x)
{
    float magnitude = x < 0.0f ? -x : x;
    magnitude = magnitude > 0.0f ? magnitude : 0.0f;
    return magnitude < 1.0f ? magnitude : 1.0f;
}

/* Return the code of a number divided by its scale. magnitude: zero_unit8 of it; nearest: zero_nearest8 of that. */
ZERO_MATH uint8_t zero_code8_signed(float scaled, float magnitude, uint32_t nearest)
{
    uint32_t n = magnitude > 2.75e-7f ? nearest : 0u; /* half of the least */
    uint32_t code = scaled < 0.0f ? (256u - n) & 255u : n;
    return (uint8_t)(scaled > 0.99648438f ? 128u : code); /* halfway from the largest value below 1 */
}

/* A number above 0 is never encoded as 0, unlike bitsandbytes': with v of 0 a step whose gradient is 0, as those of
 * unused embeddings are, would divide m by eps alone. */
ZERO_MATH uint8_t zero_code8_unsigned(float magnitude, uint32_t nearest)
{
    uint32_t code = magnitude > 0.99824219f ? 1u : nearest;
    return (uint8_t)(magnitude > 0.0f ? code : 0u);
}

/* inverse: zero_scale8_inverse of the block's scale. */
ZERO_MATH uint8_t zero_encode8_signed(float x, float inverse)
{
    float scaled = x * inverse;
    float magnitude = zero_unit8(scaled);
    return zero_code8_signed(scaled, magnitude, zero_nearest8(magnitude, 0));
}

ZERO_MATH uint8_t zero_encode8_unsigned(float x, float inverse)
{
    float magnitude = zero_unit8(x * inverse);
    return zero_code8_unsigned(magnitude, zero_nearest8(magnitude, 1));
}

#endif
