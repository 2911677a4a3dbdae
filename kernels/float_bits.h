/* float_bits.h - the bits of a float, for the arithmetic that all devices share (shard_math.h, fp8_math.h). Valid as
 * C17 and as CUDA C++.
 */
#ifndef ZERO_FLOAT_BITS_H
#define ZERO_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

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

#endif
