/* rope.h - the frequencies of rotary position embedding, with the same bits on every device.
 *
 * Hugging Face's Llama computes them in fp32, as 1 / theta^(2 i / head_dim), each step rounded. A difference in the
 * last bit rotates a pair at position 10^6 by 0.06, so the same steps are rounded here.
 */
#ifndef ZERO_ROPE_H
#define ZERO_ROPE_H

#include <math.h>
#include <stddef.h>

/* Returns the radians that pair i of a head is rotated by from one position to the next. */
static inline float zero_rope_frequency(float theta, size_t i, size_t head_dim)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    return 1.0f / (float)pow((double)theta, (double)exponent);
}

#endif
