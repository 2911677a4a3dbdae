/* hash.h - numbers that tests draw by place, so that every rank draws the same. */
#ifndef TEST_HASH_H
#define TEST_HASH_H

#include <stdint.h>

/* Mixes all bits (Stafford's Mix13, the finalizer of SplitMix64). */
static inline uint64_t hash(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
