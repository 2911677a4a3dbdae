/* rails.h - the transport between GPUs of several hosts, and what it is made of. */
#ifndef ZERO_RAILS_H
#define ZERO_RAILS_H

#include "comm/comm.h"

struct zero_event;

/* The functions are those of the same names in zero_device_ops_t. */
typedef struct zero_device_streams {
    zero_device_t *device;
    zero_status_t (*stream_create)(zero_device_t *device, bool urgent, zero_stream_t *stream);
    void (*stream_destroy)(zero_device_t *device, zero_stream_t stream);
    zero_status_t (*event_create)(zero_device_t *device, bool timed, struct zero_event **event);
    void (*event_destroy)(zero_device_t *device, struct zero_event *event);
    zero_status_t (*event_record)(zero_device_t *device, struct zero_event *event, zero_stream_t stream);
    zero_status_t (*stream_wait)(zero_device_t *device, zero_stream_t stream, struct zero_event *event);
} zero_device_streams_t;

/* Joins the ranks of `host`. local: a transport of the same ranks that reads the memory of those on one host (pull);
 * between: one that sends messages (exchange), and of a window reads this rank's part alone. On success both belong to
 * *comm. staging_bytes: of each rank's device memory, taken with the first window. [collective] */
zero_status_t zero_comm_rails_create(zero_comm_t *host, zero_comm_t *local, zero_comm_t *between,
                                     const zero_device_streams_t *streams, size_t staging_bytes, zero_comm_t **comm);

#endif
