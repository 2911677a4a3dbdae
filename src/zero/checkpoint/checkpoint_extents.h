/* checkpoint_extents.h - checks that a checkpoint's files hold what the ranks wrote, so that the manifest vouches for
 * nothing else.
 *
 * Ranks write side by side into one file, and what is read back may not be what they wrote: another program may have
 * written there, or the disk may have lost bytes. So each rank hashes (XXH3), from its own memory, every run of bytes
 * that it writes without a gap: an extent. The rank that reads a file for the manifest's XXH3 also compares the file's
 * extents. There are about as many extents as tensors. Used by checkpoint_save.c.
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
    XXH3_state_t *last; /* of the last extent, while it may still grow */
} zero_extents_t;

/* Records that data[n_bytes] is written at `offset` of a file. Extends the last extent if the bytes follow it. */
zero_status_t zero_extents_add(zero_extents_t *extents, size_t file, uint64_t offset, const void *data, size_t n_bytes);
/* Gathers the extents that all ranks have recorded in `lists`, and returns in `mine` those of this rank's files, i with
 * i % size == rank, in order of file and offset. [collective] */
zero_status_t zero_extents_share(zero_comm_t *comm, zero_extents_t *lists, size_t n_lists, zero_extents_t *mine);
/* Reads a file and returns its size and XXH3 if it consists of its extents and nothing else. Otherwise returns
 * ZERO_ERROR_IO, with a line that names the file and the bytes. */
zero_status_t zero_extents_verify(const zero_extents_t *mine, size_t file, const char *path, uint64_t *n_bytes,
                                  uint64_t *xxh3);
void zero_extents_destroy(zero_extents_t *extents); /* all zeros is allowed */

#endif
