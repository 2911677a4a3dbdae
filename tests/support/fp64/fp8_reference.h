/* fp8_reference.h - matrices in E4M3 as the format's paper defines it (arXiv:2209.05433), in double and by searching
 * all bytes: a reference for casts that shares nothing with kernels/float_bits.h. */
#ifndef ZERO_TEST_FP8_REFERENCE_H
#define ZERO_TEST_FP8_REFERENCE_H

#include <math.h>
#include <stdint.h>

#define FP8_LARGEST 448.0
#define FP8_NAN 0x7f

/* Returns the number of a byte from 0 to 0x7e: 4 exponent bits with bias 7, 3 of mantissa. */
static inline double fp8_number(unsigned byte)
{
    unsigned exponent = byte >> 3, mantissa = byte & 7;
    return exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, (int)exponent - 10);
}

static inline double fp8_value(uint8_t byte)
{
    double magnitude = (byte & 0x7f) == FP8_NAN ? (double)NAN : fp8_number(byte & 0x7f);
    return byte & 0x80 ? -magnitude : magnitude;
}

/* Returns the byte of the nearest number; between two the even byte; beyond the largest that. */
static inline uint8_t fp8_byte(double x)
{
    double magnitude = fabs(x);
    unsigned sign = signbit(x) ? 0x80 : 0, low = 0, high = 0x7e;
    if (isnan(x))
        return FP8_NAN;
    if (magnitude >= FP8_LARGEST)
        return (uint8_t)(sign | 0x7e);
    while (high - low > 1) { /* number(low) <= magnitude < number(high) */
        unsigned middle = (low + high) / 2;
        if (fp8_number(middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - fp8_number(low), above = fp8_number(high) - magnitude;
    return (uint8_t)(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
}

/* Returns the largest power of two that takes `absmax` to 448 at most; 1 for 0 and for what is not finite. It ends at
 * 2^126, whose inverse is a normal float. */
static inline double fp8_scale(double absmax)
{
    double scale = 1.0;
    if (absmax == 0.0 || !isfinite(absmax))
        return 1.0;
    while (absmax * scale > FP8_LARGEST)
        scale /= 2.0;
    while (absmax * scale * 2.0 <= FP8_LARGEST && scale < ldexp(1.0, 126))
        scale *= 2.0;
    return scale;
}

#endif
