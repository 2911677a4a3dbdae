/* device.h - where an engine's memory is and its kernels run: one small table of functions per device. */
#ifndef ZERO_DEVICE_H
#define ZERO_DEVICE_H

#include <stddef.h>

#include "base/device_ops.h"
#include "comm/users.h"
#include "kernels/shard.h"
#include "zero.h"

/* ---- host memory ---- */
/* Host memory for offload: one large mapping in huge pages. Its user touches it first, so that pages
 * are near the threads that will use them. */

/* Maps memory that is zero and not yet touched. */
zero_status_t zero_host_map(size_t n_bytes, void **data);
/* Gives a part of it pages near the calling thread. Its numbers stay as they are. */
void zero_host_touch(void *data, size_t n_bytes);
void zero_host_unmap(void *data, size_t n_bytes);

/* ---- device ---- */

struct zero_device {
    const zero_device_ops_t *ops;
    zero_device_type_t type;
    const zero_shard_kernels_t *kernels;
    int n_sharers; /* ranks that use the same memory */
    char name[64]; /* the vendor's; "" for the CPU */
    zero_users_t users;
};

/* Notes that an engine on the device is gone. */
void zero_device_leave(zero_device_t *device);

zero_status_t zero_device_cpu_create(const zero_comm_t *comm, zero_device_t **device);
zero_status_t zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device);
int zero_device_cuda_count(void); /* GPUs that this process sees; 0 without a driver */

/* Blocks the host until the event is reached. Returns ZERO_ERROR_TIMEOUT, with a line that begins with `what`, after
 * the longest time that `comm` waits for a peer, and within seconds if a peer on this host has ended or stays stopped,
 * or if the network reports that one is lost. */
zero_status_t zero_device_await(zero_device_t *device, zero_comm_t *comm, zero_event_t event, const char *what);

/* Joins the devices of all ranks for bulk data. On the CPU *bulk is `comm` itself; between GPUs it is copy engines,
 * NCCL or both, always NCCL if the transport is to reduce, or goes through host memory if `comm` was asked for MPI
 * messages.
 * The caller destroys it (zero_device_comm_destroy). [collective] */
zero_status_t zero_device_comm_create(zero_device_t *device, zero_comm_t *comm, bool reduces, zero_comm_t **bulk);
void zero_device_comm_destroy(zero_comm_t *comm, zero_comm_t *bulk);

/* What a device's `join` is made of: transports of any device with the functions above, through host memory, or of
 * `local` inside hosts and `between` them, which it takes over (comm/gpu/transports.h); if it fails, both are
 * destroyed. [collective] */
zero_status_t zero_device_join_through_host(zero_device_t *device, zero_comm_t *host, zero_comm_t **bulk);
zero_status_t zero_device_join_rails(zero_device_t *device, zero_comm_t *host, zero_comm_t *local, zero_comm_t *between,
                                     size_t staging_bytes, zero_comm_t **bulk);

/* ---- gpu processes ---- */
/* Asks the driver which processes hold a GPU's memory. */

/* Sets the processes of *usage, or why they are not known. pci_address: as /sys names it, "0000:3b:00.0". */
void zero_gpu_find_processes(const char *pci_address, zero_device_usage_t *usage);

#endif
