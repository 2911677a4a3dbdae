/* shuffle.h - a random permutation that needs no memory: a pure function of seed, epoch and index. */
#ifndef ZEROTRAIN_SHUFFLE_H
#define ZEROTRAIN_SHUFFLE_H

#include <stdint.h>

/* Returns where index (0..n - 1) goes in the permutation of n things that seed and epoch select. n: 1..2^62. */
uint64_t shuffle_index(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t index);

#endif
