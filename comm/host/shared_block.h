/* shared_block.h - shared memory: each rank of a host provides a part of the same size, which all of the host map.
 *
 * Each rank makes a memfd, and the others map it through /proc/PID/fd, which processes of the same user may open. So
 * nothing appears in a file system, a crash leaves nothing behind, and a container's small /dev/shm does not matter.
 * Pages are reserved at creation, so that a lack of memory is an error there and not a bus error in the middle of a
 * step.
 */
#ifndef ZERO_SHARED_BLOCK_H
#define ZERO_SHARED_BLOCK_H

#include "comm/comm.h"

typedef struct zero_shared_block {
    size_t mapped_bytes; /* of each rank's part */
    int size;
    void *parts[]; /* [size] each rank's part, as mapped in this process; NULL for ranks of other hosts */
} zero_shared_block_t;

/* Creates a block of n_bytes from each rank, zeroed. Other ranks' parts are read-only unless all_write. The ranks
 * exchange over `via` what they need to find each other's memory. If one rank fails, all do: the rank that detects the
 * failure logs at `level`, the others get ZERO_ERROR_PEER. `via` can still be used unless it failed itself.
 * [collective] */
zero_status_t zero_shared_block_create(zero_comm_t *via, size_t n_bytes, bool all_write, zero_log_level_t level,
                                       zero_shared_block_t **block);
void zero_shared_block_destroy(zero_shared_block_t *block);

/* Copies n_bytes, on all threads if they are many. */
void zero_shared_block_copy(void *dst, const void *src, size_t n_bytes);

#endif
