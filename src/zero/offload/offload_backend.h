/* offload_backend.h - within offload: what the two backends that update offloaded state share, and the table in which
 * they differ.
 *
 * offload.c has the block of host memory and the streams; offloaded_grads.c copies gradients out, and sums in again.
 * update_on_host.c updates with the CPU, update_on_device.c with the device. Both update units in forward order and
 * record each unit's `arrived`.
 */
#ifndef ZERO_OFFLOAD_BACKEND_H
#define ZERO_OFFLOAD_BACKEND_H

#include "zero/offload/host_pool.h"
#include "zero/offload/offload.h"

typedef struct zero_offloaded_unit {
    uint64_t begin, end;  /* this rank's shard, among offloaded elements */
    zero_event_t arrived; /* its new parameters are in the window, or on the host if they are offloaded */
    bool is_new;          /* no gather has been queued after that yet */
    bool has_sums;        /* its sums have come back, or are on their way, and have not been sent or used since */
} zero_offloaded_unit_t;

/* NULL: there is nothing to do. */
typedef struct zero_offload_backend {
    zero_status_t (*create)(zero_offload_t *offload); /* all members are set but backend_state */
    /* Before the first pass, when all memory has been allocated. */
    zero_status_t (*start)(zero_offload_t *offload, const zero_user_block_t *blocks);
    void (*destroy)(zero_offload_t *offload); /* backend_state may be NULL */
    /* In the step's last backward pass: copies as much state to the device as there are buffers for. Called for each
     * unit. */
    zero_status_t (*fetch_ahead)(zero_offload_t *offload);
    /* Queues, in out_stream, the copy of a unit's reduced gradients to where the update looks for them. */
    zero_status_t (*send_grads)(zero_offload_t *offload, zero_unit_t unit);
    /* Starts the update: offload->decided has been recorded in the caller's stream. */
    zero_status_t (*update)(zero_offload_t *offload);
    /* Queues the update of one unit, which has been decided in update_stream: with updates in backward. */
    zero_status_t (*update_unit)(zero_offload_t *offload, zero_unit_t unit);
    /* Queues the work that is left until `arrived` of all units up to this one has been recorded. */
    zero_status_t (*queue_up_to)(zero_offload_t *offload, zero_unit_t unit);
    /* As zero_offload_borrow_activations, zero_offload_return_activations. */
    zero_status_t (*borrow)(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
    zero_status_t (*give_back)(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream);
    void (*forget)(zero_offload_t *offload); /* as zero_offload_forget */
} zero_offload_backend_t;

extern const zero_offload_backend_t zero_offload_by_host, zero_offload_by_device;

struct zero_offload {
    zero_context_t *context;
    const zero_offload_backend_t *backend;
    void *backend_state;
    zero_host_pool_t *pool; /* kept for the host's update alone, once memory has been touched */
    unsigned char *host;    /* laid out by plan.host; pinned if the device can pin it */
    bool is_pinned;
    zero_offloaded_unit_t *units; /* by unit; those before plan.host.first are unused, of forward_only all */
    zero_stream_t out_stream, update_stream, in_stream;
    zero_stream_t param_stream;                   /* NULL unless parameters are offloaded */
    zero_stream_t sums_stream;                    /* NULL unless sums wait in host memory */
    zero_event_t grads_reduced;                   /* in the caller's stream: the last unit's */
    zero_event_t grads_left[ZERO_MAX_GRAD_TURNS]; /* by plan.turns.of_unit: they may be overwritten */
    zero_event_t sums_back[ZERO_MAX_GRAD_TURNS];  /* likewise: the unit's sums of earlier micro-steps are there */
    zero_event_t grads_sent;                      /* in out_stream: all that were sent */
    zero_event_t decided;                         /* in the caller's stream */
};

/* Copy between host and device memory, and count the bytes. */
zero_status_t zero_offload_copy_in(const zero_offload_t *offload, void *device, const void *host, size_t n_bytes,
                                   zero_stream_t stream);
zero_status_t zero_offload_copy_out(const zero_offload_t *offload, void *host, const void *device, size_t n_bytes,
                                    zero_stream_t stream);

void *zero_offload_host_at(const zero_offload_t *offload, uint64_t offset);
/* Returns where the gradients of an offloaded element, and those behind it in its unit, go on the host. The unit is one
 * whose gradients are sent, or whose sums wait there. */
void *zero_offload_host_grads(const zero_offload_t *offload, uint64_t offloaded_elem);
/* Copies a unit's reduced gradients to the host, in out_stream. */
zero_status_t zero_offload_copy_grads_out(zero_offload_t *offload, zero_unit_t unit);
/* Returns the event behind which the unit's reduced gradients may be overwritten. */
zero_event_t zero_offload_grads_left(const zero_offload_t *offload, zero_unit_t unit);

/* Returns where `part` begins, of n_parts threads that share elements [begin, end); part n_parts begins at `end`. */
uint64_t zero_offload_part_begin(uint64_t begin, uint64_t end, int part, int n_parts);
/* Writes what AdamW updates of offloaded elements [from, to) of a unit, in ascending order: state and grad count
 * offloaded elements, param is relative to the parameters in the window. Returns how many, at most one per tensor of
 * the unit. */
size_t zero_offload_segments(const zero_offload_t *offload, zero_unit_t unit, uint64_t from, uint64_t to,
                             zero_adam_segment_t *segments);

#endif
