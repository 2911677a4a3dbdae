/* state_staging.h - the buffers on the device that offloaded state is copied into when the device updates it, and which
 * chunk goes where. update_on_device.c says when.
 *
 * A shard is updated in chunks, each in a staging buffer. A few buffers are planned (plan.h), and chunks take turns in
 * them. More are in activations that are idle (zero_alloc_activations), one for a chunk: with those, most of the state
 * or all of it can be fetched under the backward pass and stored under the next forward pass, so that hardly anything
 * waits. Activations fall idle from the last unit down and are needed again from the first unit up. So the first
 * chunks, which are stored first, get the buffers that are needed first, and if there are more buffers than chunks,
 * those of the last units are used.
 */
#ifndef ZERO_STATE_STAGING_H
#define ZERO_STATE_STAGING_H

#include "zero/offload/offload_backend.h"

typedef struct zero_state_buffer {
    unsigned char *memory;                 /* plan.state_staging.buffer_bytes */
    zero_unit_t first, last;               /* of the activations that it is in (zero_user_block_t) */
    bool is_borrowed;                      /* something was fetched into it, and it has not been given back since */
    zero_event_t fetched, updated, stored; /* what is in it */
} zero_state_buffer_t;

/* Where the update finds the gradients of a chunk. */
typedef enum zero_grads_at {
    ZERO_GRADS_REDUCED, /* where they were reduced: nothing overwrites them in this step */
    ZERO_GRADS_ON_HOST, /* on the host: there was no buffer for them yet */
    ZERO_GRADS_STAGED   /* in the chunk's buffer */
} zero_grads_at_t;

typedef struct zero_state_chunk {
    zero_unit_t unit;
    uint64_t begin, n_elems; /* among offloaded elements */
    bool is_last;            /* of its unit */
    zero_state_buffer_t *buffer;
    zero_grads_at_t grads_at;
    zero_adam_t adam; /* over its buffer */
} zero_state_chunk_t;

typedef struct zero_state_staging {
    zero_state_chunk_t *chunks; /* plan.state_staging.n_chunks, in the order of their updates: units in
                                 * forward order or, with updates in backward, the other way round */
    zero_state_buffer_t
        *buffers;              /* the first n_borrowed in activations, in the order of units, then the planned ones */
    int n_buffers, n_borrowed; /* chunk c < n_borrowed has buffer c; the others take turns in the planned ones */
    bool fetched_ahead;        /* the step's first chunks have been fetched into the planned buffers */
    int n_queued;              /* chunks of the newest step; all of them before the first step */
    zero_event_t idle;         /* in the caller's stream: activations are idle */
} zero_state_staging_t;

static inline zero_state_staging_t *zero_state_staging_of(const zero_offload_t *offload)
{
    return offload->backend_state;
}

/* Return the parts of a buffer: gradients and parameters if any are staged, master_lo (NULL for fp32), m and v
 * (zero_adam_t's). */
void *zero_state_buffer_grads(const zero_state_buffer_t *buffer);
void *zero_state_buffer_param(const zero_offload_t *offload, const zero_state_buffer_t *buffer);
void *zero_state_buffer_master_lo(const zero_offload_t *offload, const zero_state_buffer_t *buffer);
float *zero_state_buffer_m(const zero_offload_t *offload, const zero_state_buffer_t *buffer);
float *zero_state_buffer_v(const zero_offload_t *offload, const zero_state_buffer_t *buffer);

/* As zero_offload_backend_t's. */
zero_status_t zero_state_staging_create(zero_offload_t *offload);
zero_status_t zero_state_staging_start(zero_offload_t *offload, const zero_user_block_t *blocks);
void zero_state_staging_destroy(zero_offload_t *offload);

#endif
