/* through_host.h - the transport through host memory, and what it needs of the ranks' devices. */
#ifndef ZERO_THROUGH_HOST_H
#define ZERO_THROUGH_HOST_H

#include "comm/comm.h"

/* The functions are those of the same names in zero_device_ops_t. */
typedef struct zero_device_memory {
    zero_device_t *device;
    zero_status_t (*alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*free)(zero_device_t *device, void *data, size_t n_bytes);
    zero_status_t (*host_alloc)(zero_device_t *device, size_t n_bytes, void **data);
    void (*host_free)(zero_device_t *device, void *data);
    zero_status_t (*copy)(zero_device_t *device, void *dst, const void *src, size_t n_bytes, zero_stream_t stream);
    zero_status_t (*synchronize_stream)(zero_device_t *device, zero_stream_t stream);
} zero_device_memory_t;

/* Joins any devices, even several ranks on one GPU: data is staged in host memory, `host` carries it, and the calling
 * thread waits. staging_bytes: the size of each of the two buffers in host memory; at least a page per rank is used.
 * Joins the ranks of `host` and must be destroyed before it. [collective] */
zero_status_t zero_comm_through_host_create(zero_comm_t *host, const zero_device_memory_t *memory, size_t staging_bytes,
                                            zero_comm_t **comm);

#define ZERO_HOST_STAGING_BYTES ((size_t)16 << 20) /* more is not faster */

#endif
