/* elements.h - one element of a buffer of any dtype, for tests that write gradients or check sums on the host. */
#ifndef ZERO_TEST_ELEMENTS_H
#define ZERO_TEST_ELEMENTS_H

#include "kernels/shard_math.h"
#include "zero.h"

static inline float element_load(const void *data, zero_dtype_t dtype, uint64_t i)
{
    if (dtype == ZERO_FP32)
        return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return dtype == ZERO_BF16 ? zero_float_of_bf16(half) : zero_float_of_fp16(half);
}

/* Rounded to nearest even. */
static inline void element_store(void *data, zero_dtype_t dtype, uint64_t i, float value)
{
    if (dtype == ZERO_FP32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = dtype == ZERO_BF16 ? zero_bf16_of_float(value) : zero_fp16_of_float(value);
}

#endif
