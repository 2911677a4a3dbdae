/* hash.h - one 64-bit hash of many values, folded in one at a time, so that padding between them never counts. Ranks
 * compare such hashes of their models, settings and calls. */
#ifndef ZERO_HASH_H
#define ZERO_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

/* Returns the hash of what was folded into `hash` so far (0: nothing), followed by data[n_bytes]. */
static inline uint64_t zero_hash_fold(uint64_t hash, const void *data, size_t n_bytes)
{
    return XXH3_64bits_withSeed(data, n_bytes, hash);
}

#endif
