/* offload_backend.h - within offload: what the two ways of updating hosted state share, and the table in which they
 * differ.
 *
 * offload.c holds the block of host memory and the streams, and sends gradients out; update_on_host.c updates with the
 * CPU, update_on_device.c with the device. Both update hosted units in forward order and record `arrived` of each.
 */
#ifndef ZERO_OFFLOAD_BACKEND_H
#define ZERO_OFFLOAD_BACKEND_H

#include "zero/engine/engine.h"
#include "zero/offload/host_pool.h"

typedef struct zero_offloaded_unit {
    uint64_t begin, end;  /* this rank's shard, among hosted elements */
    zero_event_t arrived; /* its parameters in the window are the new ones */
    bool is_new;          /* no gather has come after that yet */
} zero_offloaded_unit_t;

/* NULL: nothing is to be done. */
typedef struct zero_offload_backend {
    zero_status_t (*create)(zero_engine_t *engine); /* engine->offload is whole but for backend_state */
    zero_status_t (*start)(zero_engine_t *engine);  /* before the first pass: all memory is there */
    void (*destroy)(zero_engine_t *engine);         /* backend_state may be NULL */
    /* A unit's sums are whole in the step's last micro-step: called for each. */
    zero_status_t (*begin)(zero_engine_t *engine);
    /* They are to leave for where the update looks for them: in out_stream. */
    zero_status_t (*send_grads)(zero_engine_t *engine, zero_unit_t unit);
    /* offload->decided stands in the caller's stream: starts the update. */
    zero_status_t (*update)(zero_engine_t *engine);
    /* `arrived` of all units up to this one must have been recorded. */
    zero_status_t (*reach)(zero_engine_t *engine, zero_unit_t unit);
    /* As zero_offload_lend_activations, zero_offload_reclaim_activations. */
    zero_status_t (*lend)(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
    zero_status_t (*take_back)(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream);
} zero_offload_backend_t;

extern const zero_offload_backend_t zero_offload_by_host, zero_offload_by_device;

struct zero_offload {
    const zero_offload_backend_t *way;
    void *backend_state;    /* the way's own */
    zero_host_pool_t *pool; /* the host's update alone keeps it once memory is touched */
    unsigned char *host;    /* by plan.host: pinned, where the device has it so */
    bool is_pinned;
    zero_offloaded_unit_t *units; /* by unit; those below plan.host.first are unused */
    zero_stream_t out_stream, update_stream, in_stream;
    zero_event_t grads_reduced; /* in the caller's stream: the last unit's */
    zero_event_t
        grads_left[ZERO_N_OFFLOADED_GRADS]; /* by zero_plan_offloaded_grads's place: nobody needs them any more */
    zero_event_t grads_home;                /* in out_stream: all that were sent */
    zero_event_t decided;                   /* in the caller's stream */
};

void *zero_offload_host_at(const zero_engine_t *engine, uint64_t offset);
/* Where the gradient of a hosted element goes, and those behind it in its unit, which is one whose sums are sent. */
float *zero_offload_host_grads(const zero_engine_t *engine, uint64_t offloaded_elem);
zero_event_t zero_offload_grads_left(const zero_engine_t *engine, zero_unit_t unit);

/* Where the part before ends, and `part` begins, of elements [begin, end) that n_parts threads share. */
uint64_t zero_offload_part_begin(uint64_t begin, uint64_t end, int part, int n_parts);
/* What AdamW walks over of hosted elements [from, to) of a unit, in ascending order: state and grad count hosted
 * elements, param is the place in the window. Returns how many, at most one a tensor of the unit. */
size_t zero_offload_segments(const zero_engine_t *engine, zero_unit_t unit, uint64_t from, uint64_t to,
                             zero_adam_segment_t *segments);

#endif
