/* beside_host.h - what the transports between GPUs share: each stands beside a host communicator (node, mpi or self),
 * which brings the ranks together, carries small host data and outlives it.
 */
#ifndef ZERO_BESIDE_HOST_H
#define ZERO_BESIDE_HOST_H

#include "comm/comm.h"

/* A communicator of the host's ranks with comm->transport zeroed. */
zero_status_t zero_comm_beside_host_create(zero_comm_t *host, const zero_comm_ops_t *ops, size_t transport_bytes,
                                           zero_comm_t **comm);
void zero_comm_beside_host_destroy(zero_comm_t *comm); /* the transport's own things are gone before */

/* Whether nothing collective may follow, here or on the host. */
bool zero_comm_beside_host_failed(const zero_comm_t *comm);

/* What a window takes of a GPU's memory: whole pages of 2 MiB. CUDA aligns smaller blocks to less than windows promise,
 * and puts several into one page, which would be mapped by peers as a whole. */
size_t zero_comm_beside_host_window_bytes(size_t n_bytes);

/* For the table of functions. Slices of peers come into staging. */
size_t zero_comm_beside_host_staging_bytes(int size, size_t n_bytes);
zero_status_t zero_comm_beside_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
zero_status_t zero_comm_beside_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
/* After the transport's `release`, where it has one. */
void zero_comm_beside_host_abort(zero_comm_t *comm, int exit_code);

#endif
