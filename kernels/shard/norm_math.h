/* norm_math.h - the sum of squares behind the gradient's norm, exact and therefore free of any order: shared by the CPU
 * and the CUDA kernels, as shard_math.h is.
 *
 * The sum of squares of a cell is one float (zero_norm_t in shard.h). A float is a whole number of 2^-149, its smallest
 * unit, so cells can be added as integers, and integers have the same sum in every order: it does not matter which
 * rank, block or thread adds a cell, nor when. Only the total is rounded, once for each digit.
 */
#ifndef ZERO_NORM_MATH_H
#define ZERO_NORM_MATH_H

#include "kernels/shard/shard_math.h"

/* A cell's sum, split: `low` belongs to words[at] and `high` to words[at + 1] of a zero_norm_t. */
typedef struct zero_norm_part {
    uint32_t at, low, high;
} zero_norm_part_t;

/* Splits a sum of squares, which is not negative; infinity and NaN count as one cell that is not finite. A finite x is
 * mantissa * 2^(e - 149) with e from 0 to 253: its 24 bits are shifted to their place among the digits. */
ZERO_MATH zero_norm_part_t zero_norm_split(float x)
{
    uint32_t bits = zero_bits_of_float(x), exponent = (bits >> 23) & 0xffu, fraction = bits & 0x7fffffu;
    uint32_t e = exponent == 0 ? 0u : exponent - 1u, mantissa = exponent == 0 ? fraction : fraction | 0x800000u;
    uint32_t at = e / ZERO_NORM_DIGIT_BITS;
    uint64_t shifted = (uint64_t)mantissa << (e - at * ZERO_NORM_DIGIT_BITS);
    zero_norm_part_t part;
    part.at = exponent == 0xffu ? ZERO_NORM_DIGITS : at;
    part.low = exponent == 0xffu ? 1u : (uint32_t)shifted & ((1u << ZERO_NORM_DIGIT_BITS) - 1u);
    part.high = exponent == 0xffu ? 0u : (uint32_t)(shifted >> ZERO_NORM_DIGIT_BITS);
    return part;
}

/* Returns the sum as a double: infinity if a cell was not finite. Digits are carried first, so that equal sums have
 * equal digits; then one rounding for each digit below the highest. */
ZERO_MATH double zero_norm_value(const zero_norm_t *norm)
{
    uint64_t digits[ZERO_NORM_DIGITS], carry = 0;
    for (int i = 0; i < ZERO_NORM_DIGITS; i++) {
        uint64_t digit = norm->words[i] + carry;
        int is_last = i == ZERO_NORM_DIGITS - 1;
        digits[i] = is_last ? digit : digit & ((1u << ZERO_NORM_DIGIT_BITS) - 1u);
        carry = digit >> ZERO_NORM_DIGIT_BITS;
    }
    double value = 0.0;
    for (int i = ZERO_NORM_DIGITS - 1; i >= 0; i--)
        value = fma(value, (double)(1u << ZERO_NORM_DIGIT_BITS), (double)digits[i]);
    return norm->words[ZERO_NORM_DIGITS] != 0 ? (double)INFINITY : value * 0x1p-149;
}

#endif
