/* bytes.h - room for one more element in an array that doubles. */
#ifndef ZERO_BYTES_H
#define ZERO_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <xxhash.h>

/* Returns `array`, which has n elements and room for *capacity, with room for at least one more; it may have moved.
 * Returns NULL without memory; `array` then stays as it was. */
static inline void *zero_grow(void *array, size_t n, size_t *capacity, size_t element_bytes)
{
    if (n < *capacity)
        return array;
    size_t grown = 2 * *capacity + 64;
    void *moved = realloc(array, grown * element_bytes);
    if (moved)
        *capacity = grown;
    return moved;
}

/* ---- hash ---- */
/* One 64-bit hash of many values, folded in one at a time, so that padding between them never counts. Ranks
 * compare such hashes of their models, settings and calls. */

/* Returns the hash of what was folded into `hash` so far (0: nothing), followed by data[n_bytes]. */
static inline uint64_t zero_hash_fold(uint64_t hash, const void *data, size_t n_bytes)
{
    return XXH3_64bits_withSeed(data, n_bytes, hash);
}

#endif
