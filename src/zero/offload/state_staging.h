/* state_staging.h - what of the hosted state passes through the device where, when the device updates it: pieces of
 * units, and their places. update_on_device.c says when.
 *
 * A shard passes in pieces, through places of the device's memory. A few are planned (plan.h), and pieces take turns in
 * them. More lie in activations that are idle (zero_alloc_activations), one for a piece: whoever has them can fetch
 * most of the state, or all, under the backward pass, and store it under the next forward pass, so that hardly anybody
 * waits. Memory falls idle from the last unit down, and is wanted back from the first unit up; so the first pieces,
 * stored first, have the places that are wanted first, and the last units' memory is taken before any other.
 */
#ifndef ZERO_STATE_STAGING_H
#define ZERO_STATE_STAGING_H

#include "zero/offload/offload_backend.h"

typedef struct zero_state_buffer {
    unsigned char *memory;                 /* plan.passing.buffer_bytes */
    zero_unit_t first, last;               /* the activations', where it lies in such */
    bool is_lent;                          /* not wanted back since something was fetched into it */
    zero_event_t fetched, updated, stored; /* what is in it */
} zero_state_buffer_t;

typedef enum zero_grads_at {
    ZERO_GRADS_REDUCED, /* where they were added up: nobody else takes that place in the step */
    ZERO_GRADS_ON_HOST, /* on the host: there was no place for them yet */
    ZERO_GRADS_STAGED   /* copied there */
} zero_grads_at_t;

typedef struct zero_state_chunk {
    zero_unit_t unit;
    uint64_t begin, n_elems; /* among hosted elements */
    bool is_last;            /* of its unit */
    zero_state_buffer_t *place;
    zero_grads_at_t grads_at;
    zero_adam_t adam; /* over its place */
} zero_state_chunk_t;

typedef struct zero_state_staging {
    zero_state_chunk_t *pieces;
    zero_state_buffer_t *places; /* the first n_lent of activations, in the order of units, then the planned ones */
    int n_buffers, n_lent;       /* piece p < n_lent has place p; the others take turns in the planned ones */
    bool fetched_ahead;          /* the step's first pieces of the planned places are there, or on the way */
    int n_queued;                /* pieces of the newest step; all of them before the first */
    zero_event_t idle;           /* in the caller's stream: activations are */
} zero_state_staging_t;

static inline zero_state_staging_t *zero_state_staging_of(const zero_engine_t *engine)
{
    return engine->offload->backend_state;
}

/* A place holds m, v and gradients, if any pass, and the low halves. */
float *zero_state_buffer_m(const zero_state_buffer_t *place);
float *zero_state_buffer_v(const zero_engine_t *engine, const zero_state_buffer_t *place);
float *zero_state_buffer_grads(const zero_engine_t *engine, const zero_state_buffer_t *place);
void *zero_state_buffer_master_lo(const zero_engine_t *engine, const zero_state_buffer_t *place);

/* As zero_offload_backend_t's. */
zero_status_t zero_state_staging_create(zero_engine_t *engine);
zero_status_t zero_state_staging_start(zero_engine_t *engine);
void zero_state_staging_destroy(zero_engine_t *engine);

#endif
