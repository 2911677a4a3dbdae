/* host_copies.h - a whole checkpoint on every host, in its memory: what ranks of other hosts own, and copies for hosts
 * that lack it. The public functions are in include/zero.h. Used by checkpoint_save.c and checkpoint_load.c. */
#ifndef ZERO_HOST_COPIES_H
#define ZERO_HOST_COPIES_H

#include "zero.h"

/* Sends chunks[n_chunks], what this rank owns, to the other hosts. Calls `take` for this rank's share of what ranks of
 * other hosts sent: together, the ranks of a host take everything, once. [collective] */
zero_status_t zero_host_copies_exchange(zero_comm_t *comm, const zero_chunk_t *chunks, size_t n_chunks,
                                        zero_chunk_fn take, void *user);

/* Gives every host the checkpoint of a step that one host has. Does nothing if all have it, or none. [collective] */
zero_status_t zero_host_copies_scatter(zero_comm_t *comm, const char *directory, uint64_t step);

/* Returns ZERO_ERROR_USAGE on a host whose directory is another host's, too. [collective] */
zero_status_t zero_host_copies_check_separate(zero_comm_t *comm, const char *directory);

#endif
