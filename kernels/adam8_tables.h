/* adam8_tables.h - the codes of adam8_math.h by look-up, with the same bits, for processors on which choosing among
 * decades by comparisons is what an update waits for.
 *
 * A number below a power of two and not below half of it crosses the border between two decades at most once. So its
 * exponent tells the decade on one side of that border, and one comparison tells which side it is on.
 */
#ifndef ZERO_ADAM8_TABLES_H
#define ZERO_ADAM8_TABLES_H

#include "kernels/adam8_math.h"

#define ZERO_LEAST_EXPONENT8 103u /* of floats, biased: no border is below 2^-24 */
#define ZERO_EXPONENTS8 32

typedef struct zero_border8 {
    float border;    /* within the exponent's numbers; FLT_MAX: none is */
    uint32_t decade; /* of the numbers up to it */
} zero_border8_t;

typedef struct zero_tables8 {
    float m_values[256], v_values[256];         /* of each code, with a scale of 1 */
    zero_border8_t borders[2][ZERO_EXPONENTS8]; /* [log_first], from ZERO_LEAST_EXPONENT8 on */
    float inverse_decades[8];                   /* of decade i: 10^(6 - i) */
} zero_tables8_t;

ZERO_MATH zero_border8_t zero_border8_of(uint32_t exponent, uint32_t log_first)
{
    const float least = zero_float_of_bits(exponent << 23), end = zero_float_of_bits((exponent + 1u) << 23);
    zero_border8_t found = {zero_float_of_bits(ZERO_FLOAT_MAX_BITS), 0};
    for (uint32_t i = 1; i < 7; ++i) {
        float border = zero_border8(i, log_first);
        found.decade += border < least ? 1u : 0u;
        found.border = border >= least && border < end ? border : found.border;
    }
    return found;
}

/* Fills what of the tables falls to worker i of n; each entry is one worker's. */
ZERO_MATH void zero_tables8_fill(zero_tables8_t *tables, uint32_t worker, uint32_t n)
{
    for (uint32_t i = worker; i < 256; i += n) {
        tables->m_values[i] = zero_decode8_signed((uint8_t)i, 1.0f);
        tables->v_values[i] = zero_decode8_unsigned((uint8_t)i, 1.0f);
    }
    for (uint32_t i = worker; i < 2 * ZERO_EXPONENTS8; i += n)
        tables->borders[i / ZERO_EXPONENTS8][i % ZERO_EXPONENTS8] =
            zero_border8_of(ZERO_LEAST_EXPONENT8 + i % ZERO_EXPONENTS8, i / ZERO_EXPONENTS8);
    for (uint32_t i = worker; i < 8; i += n)
        tables->inverse_decades[i] = zero_inverse_decade8(i);
}

/* As zero_decode8_signed and zero_decode8_unsigned. */
ZERO_MATH float zero_look_up8_signed(const zero_tables8_t *tables, uint8_t code, float scale)
{
    return code == 0u ? 0.0f : tables->m_values[code] * scale;
}
ZERO_MATH float zero_look_up8_unsigned(const zero_tables8_t *tables, uint8_t code, float scale)
{
    return code == 0u ? 0.0f : tables->v_values[code] * scale;
}

/* As zero_nearest8. The magnitude is what the bits of a number from 1 to 2 begin with. */
ZERO_MATH uint32_t zero_look_up_nearest8(const zero_tables8_t *tables, float x, uint32_t log_first)
{
    uint32_t exponent = zero_bits_of_float(x) >> 23;
    exponent = exponent > ZERO_LEAST_EXPONENT8 ? exponent - ZERO_LEAST_EXPONENT8 : 0u;
    const zero_border8_t at_exponent = tables->borders[log_first][exponent];
    uint32_t i = at_exponent.decade + (uint32_t)(x > at_exponent.border), log_least = i + log_first;
    float at = zero_in_decade8(x * tables->inverse_decades[i]);
    at = fminf(fmaxf(at, 1.0f), 1.9999999f);
    return (zero_bits_of_float(at) >> (23u - log_least)) - (126u << log_least);
}

/* As zero_unit8 and zero_scale8_key. */
ZERO_MATH float zero_quick_unit8(float x)
{
    return fminf(fmaxf(fabsf(x), 0.0f), 1.0f);
}
ZERO_MATH uint32_t zero_quick_key8(float x)
{
    uint32_t bits = zero_bits_of_float(x), key = (bits << 1 | bits >> 31) ^ 1u, sign = key & 1u;
    uint32_t largest = ZERO_FLOAT_MAX_BITS << 1 | sign;
    return x == x ? (key < largest ? key : largest) : sign;
}

/* As zero_encode8_signed and zero_encode8_unsigned. */
ZERO_MATH uint8_t zero_look_up_code8_signed(const zero_tables8_t *tables, float x, float inverse)
{
    float scaled = x * inverse;
    float magnitude = zero_quick_unit8(scaled);
    return zero_code8_signed(scaled, magnitude, zero_look_up_nearest8(tables, magnitude, 0));
}
ZERO_MATH uint8_t zero_look_up_code8_unsigned(const zero_tables8_t *tables, float x, float inverse)
{
    float magnitude = zero_quick_unit8(x * inverse);
    return zero_code8_unsigned(magnitude, zero_look_up_nearest8(tables, magnitude, 1));
}

#endif
