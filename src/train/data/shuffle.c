/* shuffle.c - a random permutation of 0..n-1 by a Feistel network and cycle walking (Black & Rogaway 2002, "Ciphers
 * with arbitrary finite domains").
 *
 * A Feistel network permutes 0..4^h - 1, the smallest such range that contains 0..n-1. A result of n or more goes
 * through the network again until it is below n. That stays a bijection and takes fewer than four rounds on average.
 * data.c calls it for every sequence, so an epoch's order is never stored and any position in it is reached at once.
 */
#include "train/data/shuffle.h"

/* Four rounds of a random function are indistinguishable from random for large ranges (Luby & Rackoff 1988); small
 * ranges need more. */
#define N_ROUNDS 8

/* The output function of SplitMix64 (Steele, Lea & Flood 2014): a bijection in which every bit of x affects all bits.
 */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t feistel(uint64_t key, int half_bits, uint64_t x)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        uint64_t next = left ^ (mix(mix(key + round) ^ right) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t shuffle_index(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t index)
{
    int half_bits = 1;
    while (UINT64_C(1) << (2 * half_bits) < n)
        half_bits++;
    const uint64_t key = mix(mix(seed) ^ epoch);
    uint64_t x = index;
    do
        x = feistel(key, half_bits, x);
    while (x >= n);
    return x;
}
