/* shared_block.h - memory of the same size on every rank of a host that all of them see.
 *
 * Each rank makes a memfd and the others map it by way of /proc/PID/fd, which one user's processes may open: nothing
 * appears in a file system, nothing is left behind by a crash, and a container's small /dev/shm does not matter. Pages
 * are reserved at creation, so a lack of memory is an error there and not a bus error in the middle of a step.
 */
#ifndef ZERO_SHARED_BLOCK_H
#define ZERO_SHARED_BLOCK_H

#include "comm/comm.h"

typedef struct zero_shared_block {
    size_t mapped_bytes; /* of each rank's part */
    int size;
    void
        *parts[]; /* [size] where each rank's part stands in this process; the others' are read-only unless asked for */
} zero_shared_block_t;

/* Collective over `via`, which carries where each rank's memory is found. Zeroed. On failure, on all ranks alike, the
 * detecting rank logs at `level` and the others get ZERO_ERROR_PEER; where `via` itself did not fail it is as before.
 */
zero_status_t zero_shared_block_create(zero_comm_t *via, size_t n_bytes, bool all_write, zero_log_level_t level,
                                       zero_shared_block_t **block);
void zero_shared_block_destroy(zero_shared_block_t *block);

#endif
