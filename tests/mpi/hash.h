/* hash.h - numbers that tests draw by place, so that every rank draws the same. */
#ifndef TEST_HASH_H
#define TEST_HASH_H

#include <stdint.h>
#include <string.h>

/* Mixes all bits (Stafford's Mix13, the finalizer of SplitMix64). */
static inline uint64_t hash(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Returns a sum over the bits of all numbers and their places. */
static inline uint64_t hash_floats(const float *values, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum = hash(sum ^ bits) + i;
    }
    return sum;
}

#endif
