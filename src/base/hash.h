/* hash.h - one 64-bit hash of many values, folded in one at a time, so that padding between fields never counts. By it
 * ranks find out that they were given different models or settings (create.c). */
#ifndef ZERO_HASH_H
#define ZERO_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

/* The hash of what `hash` stands for, 0 for nothing yet, followed by data[n_bytes]. */
static inline uint64_t zero_hash_fold(uint64_t hash, const void *data, size_t n_bytes)
{
    return XXH3_64bits_withSeed(data, n_bytes, hash);
}

#endif
