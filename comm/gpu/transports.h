/* transports.h - what the transports between GPUs share. Each has a host communicator (node, mpi or self), which brings
 * the ranks together, carries small host data, and must outlive the transport.
 */
#ifndef ZERO_TRANSPORTS_H
#define ZERO_TRANSPORTS_H

#include "base/device_ops.h"
#include "comm/comm.h"

/* Creates a communicator of the host's ranks, with comm->transport of transport_bytes, zeroed. */
zero_status_t zero_comm_gpu_create(zero_comm_t *host, const zero_comm_ops_t *ops, size_t transport_bytes,
                                   zero_comm_t **comm);
/* Frees the communicator. What comm->transport refers to must be freed before. */
void zero_comm_gpu_destroy(zero_comm_t *comm);

/* Returns true if no collective may follow, because one failed here or on the host. */
bool zero_comm_gpu_failed(const zero_comm_t *comm);

/* Returns the size of a window in GPU memory: whole pages of 2 MiB. CUDA aligns smaller blocks to less than windows
 * promise, and packs several into one page, which peers would then map as a whole. */
size_t zero_comm_gpu_window_bytes(size_t n_bytes);

/* Entries of the transports' tables. Peers' slices are received into staging. */
size_t zero_comm_gpu_staging_bytes(int size, size_t n_bytes);
zero_status_t zero_comm_gpu_all_gather(zero_comm_t *comm, const void *mine, size_t n_bytes, void *all);
zero_status_t zero_comm_gpu_broadcast(zero_comm_t *comm, void *data, size_t n_bytes, int root);
zero_status_t zero_comm_gpu_check_peers(zero_comm_t *comm, const char *waiting_in, int64_t waited_ns);
/* Finds the exchanges of an all-to-all (comm.h) that all come into `staging`, and where its slices are: this rank's own
 * stays in the window. Returns how many exchanges there are: comm->size - 1. */
int zero_comm_gpu_exchanges(const zero_comm_t *comm, const zero_window_t *window, int group, size_t src_offset,
                            size_t src_stride, size_t n_bytes, void *staging, const void **slices,
                            zero_exchange_t *exchanges);
/* Calls the transport's `release` first, if it has one. */
void zero_comm_gpu_abort(zero_comm_t *comm, int exit_code);

/* ---- rails ---- */
/* The transport between GPUs of several hosts, and what it is made of. */

/* Joins the ranks of `host`. local: a transport of the same ranks that reads the memory of those on one host (pull);
 * between: one that sends messages (exchange), and of a window reads this rank's part alone. On success both belong to
 * *comm. staging_bytes: of each rank's device memory, allocated with the first window. Of the device only streams and
 * events are used. [collective] */
zero_status_t zero_comm_rails_create(zero_comm_t *host, zero_comm_t *local, zero_comm_t *between, zero_device_t *device,
                                     const zero_device_ops_t *ops, size_t staging_bytes, zero_comm_t **comm);

/* ---- through host ---- */
/* The transport through host memory. */

/* Joins any devices, even several ranks on one GPU: data is staged in host memory, `host` carries it, and the calling
 * thread waits. staging_bytes: the size of each of the two buffers in host memory; at least a page per rank is used.
 * Joins the ranks of `host` and must be destroyed before it. [collective] */
zero_status_t zero_comm_through_host_create(zero_comm_t *host, zero_device_t *device, const zero_device_ops_t *ops,
                                            size_t staging_bytes, zero_comm_t **comm);

#define ZERO_HOST_STAGING_BYTES ((size_t)16 << 20) /* more is not faster */

#endif
