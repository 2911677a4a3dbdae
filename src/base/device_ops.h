/* device_ops.h - memory, streams and events of a device as one table of functions. The devices fill it
 * (src/zero/device/device.h); transports between devices call it, too, and know no more of a device. */
#ifndef ZERO_DEVICE_OPS_H
#define ZERO_DEVICE_OPS_H

#include <stddef.h>

#include "zero.h"

typedef struct zero_event *zero_event_t;

typedef struct zero_device_ops {
    const char *name;
    /* Zeroed memory, aligned to 4096 bytes. n_bytes 0 gives NULL. */
    zero_status_t (*alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*free)(zero_device_t *device, void *data, size_t n_bytes);
    /* Host memory that the device copies from and to without staging (pinned on CUDA), zeroed. */
    zero_status_t (*host_alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*host_free)(zero_device_t *device, void *data);
    /* Pins the caller's memory, whole pages that have been touched. ZERO_ERROR_UNSUPPORTED, logged as a warning, if the
     * system refuses: copies are then slower and may block the host. NULL if it makes no difference. */
    zero_status_t (*host_pin)(zero_device_t *device, void *data, size_t n_bytes);
    void (*host_unpin)(zero_device_t *device, void *data);
    /* Finds the device's PCI address, as /sys names it; false, or NULL, if it is unknown. */
    bool (*pci_address)(zero_device_t *device, char *address, int n_bytes);
    zero_status_t (*copy)(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream);
    /* Sets n_bytes of the device's memory to zero, in stream order. */
    zero_status_t (*clear)(zero_device_t *device, void *data, size_t n_bytes, zero_stream_t stream);
    zero_status_t (*synchronize)(zero_device_t *device);
    /* Returns when what was queued in one stream is done. NULL if join is. */
    zero_status_t (*synchronize_stream)(zero_device_t *device, zero_stream_t stream);
    /* urgent: its work goes before that of other streams if both wait for the device. */
    zero_status_t (*stream_create)(zero_device_t *device, bool urgent, zero_stream_t *stream);
    void (*stream_destroy)(zero_device_t *device, zero_stream_t stream);
    /* An event is reached when all that was queued in a stream before event_record is done. timed: it remembers when
     * (event_elapsed_ms). On the CPU, where work is done when a call returns, recording reaches it. */
    zero_status_t (*event_create)(zero_device_t *device, bool timed, zero_event_t *event);
    void (*event_destroy)(zero_device_t *device, zero_event_t event); /* NULL is allowed */
    zero_status_t (*event_record)(zero_device_t *device, zero_event_t event, zero_stream_t stream);
    /* Makes what is queued in `stream` from now on wait for the event's last record; it waits for nothing if there was
     * none. */
    zero_status_t (*stream_wait)(zero_device_t *device, zero_stream_t stream, zero_event_t event);
    /* Runs fn(args) on the host when the stream comes to it; args must stay as they are until then. fn must not call
     * any function of this table. NULL if join is. */
    zero_status_t (*host_call)(zero_device_t *device, zero_stream_t stream, void (*fn)(void *args), void *args);
    zero_status_t (*event_query)(zero_device_t *device, zero_event_t event, bool *reached);
    zero_status_t (*event_elapsed_ms)(zero_device_t *device, zero_event_t begin, zero_event_t end, double *ms);
    /* Creates the fastest transport of bulk data between the ranks' devices, on top of `host`; with reduce_scatter if
     * the transport is to reduce. The caller destroys it (zero_device_comm_destroy). NULL for a device whose memory the
     * host communicator can reach and whose work is done when a call returns: then there is nothing to overlap.
     * [collective] */
    zero_status_t (*join)(zero_device_t *device, zero_comm_t *host, bool reduces, zero_comm_t **bulk);
    /* Returns the bytes that this rank may take now: its share of what is free, if several ranks use the same memory.
     */
    uint64_t (*available_bytes)(const zero_device_t *device);
    /* Finds what all processes leave free, and how much there is. */
    void (*memory_bytes)(const zero_device_t *device, uint64_t *free_bytes, uint64_t *total_bytes);
    void (*destroy)(zero_device_t *device);
} zero_device_ops_t;

#endif
