/* through_host.h - what the transport through host memory needs of the ranks' devices. */
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

/* Between any devices, several of them one GPU too: by way of host memory, where `host` carries the bytes, while the
 * calling thread waits. passage_bytes: of host memory in use each way, at least a page for each rank. Destroyed before
 * `host`, whose ranks it joins. [collective] */
zero_status_t zero_comm_through_host_create(zero_comm_t *host, const zero_device_memory_t *memory, size_t passage_bytes,
                                            zero_comm_t **comm);

#define ZERO_PASSAGE_BYTES ((size_t)16 << 20) /* more is not faster */

#endif
