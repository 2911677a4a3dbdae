/* rope.h - the frequencies of rotary position embedding, with the same bits on every device.
 *
 * Hugging Face's Llama computes them in fp32, as 1 / theta^(2 i / head_dim), each step rounded, and scales those of
 * Llama 3.1 likewise. A difference in the last bit rotates a pair at position 10^6 by 0.06, so the same steps are
 * rounded here.
 */
#ifndef ZERO_ROPE_H
#define ZERO_ROPE_H

#include <math.h>
#include <stddef.h>

#include "kernels/model/model.h"

/* Returns a frequency with the "llama3" scaling of transformers' modeling_rope_utils.py. */
static inline float zero_rope_scaled(const zero_rope_t *rope, float frequency)
{
    float wavelength = 1.0f / frequency * 6.2831853071795865f;
    if (wavelength < rope->original / rope->high_freq)
        return frequency;
    if (wavelength > rope->original / rope->low_freq)
        return frequency / rope->factor;
    float smooth = (1.0f / wavelength * rope->original - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1.0f - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns the radians that pair i of a head is rotated by from one position to the next. */
static inline float zero_rope_frequency(const zero_rope_t *rope, size_t i, size_t head_dim)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    float frequency = 1.0f / (float)pow((double)rope->theta, (double)exponent);
    return rope->factor > 1.0f ? zero_rope_scaled(rope, frequency) : frequency;
}

#endif
