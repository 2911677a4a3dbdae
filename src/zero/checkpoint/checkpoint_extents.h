/* checkpoint_extents.h - what was meant to stand in a checkpoint's files, so that the manifest vouches for nothing
 * else.
 *
 * Ranks write side by side into one file, and what is read back afterwards may not be what they wrote: another's bytes
 * may have come between, or the disk may have lost some. So each rank keeps the XXH3 of every run of bytes that it
 * writes, from its own memory: an extent. The rank that reads a file for its XXH3 compares each of its extents, too. An
 * extent is as long as a rank writes without a gap, so there are about as many as tensors. Used by checkpoint_save.c.
 */
#ifndef ZERO_CHECKPOINT_EXTENTS_H
#define ZERO_CHECKPOINT_EXTENTS_H

#include <xxhash.h>

#include "zero.h"

typedef struct zero_extent {
    uint64_t file; /* its number in the manifest */
    uint64_t offset, n_bytes, xxh3;
} zero_extent_t;

typedef struct zero_extents {
    size_t n_extents, capacity;
    zero_extent_t *extents;
    XXH3_state_t *last; /* of the last one, as long as more may come to it */
} zero_extents_t;

/* Notes that data[n_bytes] is written at `offset` of a file. Cheapest where it goes on from the call before. */
zero_status_t zero_extents_add(zero_extents_t *extents, size_t file, uint64_t offset, const void *data, size_t n_bytes);
/* Brings together what all ranks have noted in `lists`, of which those of files i with i % size == rank stay: in
 * `mine`, by file and offset. [collective] */
zero_status_t zero_extents_share(zero_comm_t *comm, zero_extents_t *lists, size_t n_lists, zero_extents_t *mine);
/* Returns size and XXH3 of a file where it consists of its extents and of nothing else; ZERO_ERROR_IO, with a line that
 * names the file and the bytes, where it does not. */
zero_status_t zero_extents_verify(const zero_extents_t *mine, size_t file, const char *path, uint64_t *n_bytes,
                                  uint64_t *xxh3);
void zero_extents_destroy(zero_extents_t *extents); /* what is all zeros is allowed */

#endif
