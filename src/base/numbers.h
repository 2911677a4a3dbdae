/* numbers.h - arrays of numbers that training can go on with: finite, and not negative where a square root is taken. */
#ifndef ZERO_NUMBERS_H
#define ZERO_NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool zero_number_is_sound(float number, bool not_negative)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return ((bits & UINT32_C(0x7f800000)) != UINT32_C(0x7f800000)) & !(not_negative & (number < 0.0f));
}

/* Returns a number as it is to be printed: NaN without its sign. */
static inline double zero_number_shown(float number)
{
    return isnan(number) ? (double)NAN : (double)number;
}

/* Returns the index of the first number that is not sound; n: all are. Sums up flags instead of ending early: such a
 * loop is vectorized, and whole models pass through it. */
static inline size_t zero_find_unsound(const float *numbers, size_t n, bool not_negative)
{
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= !zero_number_is_sound(numbers[i], not_negative);
    for (size_t i = 0; i < n && bad; i++)
        if (!zero_number_is_sound(numbers[i], not_negative))
            return i;
    return n;
}

#endif
