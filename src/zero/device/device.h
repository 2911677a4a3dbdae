/* device.h - where an engine's memory lies and its kernels run: one small table of functions per device. The CPU is
 * device_cpu.c. */
#ifndef ZERO_DEVICE_H
#define ZERO_DEVICE_H

#include "comm/users.h"
#include "kernels/shard/shard.h"

typedef struct zero_event *zero_event_t;

typedef struct zero_device_ops {
    const char *name;
    /* Zeroed memory, aligned to 4096 bytes. n_bytes 0 gives NULL. */
    zero_status_t (*alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*free)(zero_device_t *device, void *data, size_t n_bytes);
    /* Host memory that the device copies from and to without staging (pinned on CUDA), zeroed. */
    zero_status_t (*host_alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*host_free)(zero_device_t *device, void *data);
    /* The same for memory of the caller's, whole pages that were touched; ZERO_ERROR_UNSUPPORTED, logged as a warning,
     * where the system does not let it: copies are then slower, and may hold up the host. NULL where it makes no
     * difference. */
    zero_status_t (*host_pin)(zero_device_t *device, void *data, size_t n_bytes);
    void (*host_unpin)(zero_device_t *device, void *data);
    /* Where the device is on the PCI bus, as /sys names it; false, or NULL, where that is unknown. */
    bool (*pci_address)(zero_device_t *device, char *address, int n_bytes);
    zero_status_t (*copy)(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream);
    zero_status_t (*synchronize)(zero_device_t *device);
    /* Returns when what was queued in one stream is done. NULL where join is. */
    zero_status_t (*synchronize_stream)(zero_device_t *device, zero_stream_t stream);
    /* urgent: its work goes before that of other streams where both wait for the device. */
    zero_status_t (*stream_create)(zero_device_t *device, bool urgent, zero_stream_t *stream);
    void (*stream_destroy)(zero_device_t *device, zero_stream_t stream);
    /* A place in a stream: reached when all that was queued there before event_record is done. timed: it remembers when
     * (event_elapsed_ms). On the CPU, where work is done when a call returns, recording reaches it. */
    zero_status_t (*event_create)(zero_device_t *device, bool timed, zero_event_t *event);
    void (*event_destroy)(zero_device_t *device, zero_event_t event); /* NULL is allowed */
    zero_status_t (*event_record)(zero_device_t *device, zero_event_t event, zero_stream_t stream);
    /* What is queued in `stream` from now on comes after the event's last record; never recorded: at once. */
    zero_status_t (*stream_wait)(zero_device_t *device, zero_stream_t stream, zero_event_t event);
    /* Runs fn(args) on the host when the stream comes to it; args stay as they are until then. fn makes no call of this
     * table. NULL where join is. */
    zero_status_t (*host_call)(zero_device_t *device, zero_stream_t stream, void (*fn)(void *args), void *args);
    zero_status_t (*event_query)(zero_device_t *device, zero_event_t event, bool *reached);
    zero_status_t (*event_elapsed_ms)(zero_device_t *device, zero_event_t begin, zero_event_t end, double *ms);
    /* The fastest transport of bulk data between the ranks' devices, beside `host`, with reduce_scatter where it is to
     * add; the caller's, for zero_device_comm_destroy. NULL for a device whose memory the host communicator reaches
     * itself and whose work is done when a call returns: then there is nothing to overlap. [collective] */
    zero_status_t (*join)(zero_device_t *device, zero_comm_t *host, bool adds, zero_comm_t **bulk);
    /* Bytes this rank may take now: what is free, shared fairly with the ranks that use the same memory. */
    uint64_t (*available_bytes)(const zero_device_t *device);
    void (*destroy)(zero_device_t *device);
} zero_device_ops_t;

struct zero_device {
    const zero_device_ops_t *ops;
    zero_device_type_t type;
    const zero_shard_kernels_t *kernels;
    int n_sharers; /* ranks that use the same memory */
    zero_users_t users;
};

/* An engine on the device is gone. */
void zero_device_leave(zero_device_t *device);

zero_status_t zero_device_cpu_create(const zero_comm_t *comm, zero_device_t **device);
zero_status_t zero_device_cuda_create(const zero_comm_t *comm, bool may_share, zero_device_t **device);
int zero_device_cuda_count(void); /* GPUs of this host; 0 without a driver */

/* Waits on the host until the event is reached. ZERO_ERROR_TIMEOUT, with a line that begins with `what`, after the
 * longest that `host` waits for a peer, and within seconds where a peer of the same host has ended or stays stopped. */
zero_status_t zero_device_await(zero_device_t *device, const zero_comm_t *host, zero_event_t event, const char *what);

/* How bulk data travels between ranks with this device: `comm` itself for the CPU; copy engines or NCCL for GPUs, NCCL
 * where the transport is to add (`adds`), or through host memory, where `comm` is of messages alone. *bulk is the
 * caller's, for zero_device_comm_destroy. [collective] */
zero_status_t zero_device_comm_create(zero_device_t *device, zero_comm_t *comm, bool adds, zero_comm_t **bulk);
void zero_device_comm_destroy(zero_comm_t *comm, zero_comm_t *bulk);

#endif
