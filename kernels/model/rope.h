/* rope.h - the frequencies of rotary positions, the same bits wherever they are used.
 *
 * Hugging Face's Llama computes them in fp32: 1 / theta^(2 i / head_dim), each step rounded. A last bit more or less
 * turns a pair at position 10^6 by 0.06, so the steps and their roundings are kept.
 */
#ifndef ZERO_ROPE_H
#define ZERO_ROPE_H

#include <math.h>
#include <stddef.h>

/* Radians that pair i of a head turns by from one position to the next. */
static inline float zero_rope_frequency(float theta, size_t i, size_t head_dim)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    return 1.0f / (float)pow((double)theta, (double)exponent);
}

#endif
