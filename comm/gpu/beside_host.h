/* beside_host.h - what the transports between GPUs share. Each has a host communicator beside it (node, mpi or self),
 * which brings the ranks together, carries small host data, and must outlive it.
 */
#ifndef ZERO_BESIDE_HOST_H
#define ZERO_BESIDE_HOST_H

#include "comm/comm.h"

/* Creates a communicator of the host's ranks, with comm->transport of transport_bytes, zeroed. */
zero_status_t zero_comm_beside_host_create(zero_comm_t *host, const zero_comm_ops_t *ops, size_t transport_bytes,
                                           zero_comm_t **comm);
/* Frees the communicator. What comm->transport refers to must be freed before. */
void zero_comm_beside_host_destroy(zero_comm_t *comm);

/* Returns true if no collective may follow, because one failed here or on the host. */
bool zero_comm_beside_host_failed(const zero_comm_t *comm);

/* Returns the GPU memory that a window takes: whole pages of 2 MiB. CUDA aligns smaller blocks to less than windows
 * promise, and puts several into one page, which peers would then map as a whole. */
size_t zero_comm_beside_host_window_bytes(size_t n_bytes);

/* Entries of the transports' tables. Peers' slices are received into staging. */
size_t zero_comm_beside_host_staging_bytes(int size, size_t n_bytes);
zero_status_t zero_comm_beside_host_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
zero_status_t zero_comm_beside_host_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
zero_status_t zero_comm_beside_host_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns);
/* Finds the exchanges of an all-to-all (comm.h) that all come into `staging`, and where its slices are: this rank's own
 * stays in the window. Returns how many exchanges there are: comm->size - 1. */
int zero_comm_beside_host_exchanges(const zero_comm_t *comm, const zero_window_t *window, int group, size_t src_offset,
                                    size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                                    zero_exchange_t *exchanges);
/* Calls the transport's `release` first, if it has one. */
void zero_comm_beside_host_abort(zero_comm_t *comm, int exit_code);

#endif
