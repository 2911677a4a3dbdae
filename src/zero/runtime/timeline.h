/* timeline.h - when the device did what: timed events in streams, and spans from one timed event to another, which are
 * read once they are over.
 *
 * A timed event is also what another stream waits for: one record serves both. The events are in a ring that is created
 * once. An entry is used again when its step has been harvested; if the ring is full, the next record waits for the
 * oldest, which in practice was over long ago. A timed event whose entry is used again is over, and need not be waited
 * for.
 *
 * ZERO_WORK_WAIT is compute that is idle because of communication: from the end of the compute before it to the event
 * it waited for, if that came later. The sum of these spans over a step is its exposed_comm_ms and is always measured.
 * Other spans are recorded only for a trace.
 */
#ifndef ZERO_TIMELINE_H
#define ZERO_TIMELINE_H

#include "comm/comm.h"
#include "zero/device/device.h"

typedef struct zero_timeline zero_timeline_t;
typedef uint64_t zero_timed_event_t; /* counted from 1; 0: none */

/* What a span is of. */
typedef struct zero_span_of {
    zero_work_t work;
    zero_wait_t wait; /* ZERO_WAIT_NONE unless work is ZERO_WORK_WAIT */
    zero_phase_t phase;
    zero_unit_t unit;
    uint64_t step;
    zero_ranks_t ranks; /* that communicate; n is 0 if none do */
} zero_span_of_t;

/* comm: how long an event may be waited for. capacity: spans at once; there are twice as many timed events. */
zero_status_t zero_timeline_create(zero_device_t *device, zero_comm_t *comm, int capacity, zero_timeline_t **timeline);
void zero_timeline_destroy(zero_timeline_t *timeline); /* NULL is allowed */

/* Reports spans of `works` (zero_engine_trace's bits) to `fn` from now on, when they are over. */
zero_status_t zero_timeline_trace(zero_timeline_t *timeline, unsigned works, zero_trace_fn fn, void *user);

/* Records a timed event in `stream`. Its entry may be used again once `step` has been harvested: by then all that waits
 * for it has been queued, and compute has passed it. */
zero_status_t zero_timeline_record(zero_timeline_t *timeline, uint64_t step, zero_stream_t stream,
                                   zero_timed_event_t *timed);
/* Says whether spans from now on belong to a step. Others are reported as of step 0, and their waits are no step's
 * exposed communication. */
void zero_timeline_set_in_step(zero_timeline_t *timeline, bool in_step);
/* Returns the event to wait for; NULL if it is over. */
zero_event_t zero_timeline_event(const zero_timeline_t *timeline, zero_timed_event_t timed);

/* Adds a wait between two timed events. Of several with the same `begin`, in the order of these calls, each
 * begins where the one before ended. */
zero_status_t zero_timeline_add_wait(zero_timeline_t *timeline, zero_span_of_t of, zero_timed_event_t begin,
                                     zero_timed_event_t end);

/* Begin and end a span of work in one stream. *span identifies it, or is -1 if it is not recorded. */
zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_span_of_t of, zero_stream_t stream, int *span);
zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream);

/* What compute waited for: other ranks, and what is offloaded. */
typedef struct zero_exposed {
    double comm_ms, host_ms;
} zero_exposed_t;
/* Reads the spans of all steps up to `step`, which are over. *exposed: what WAIT spans took since the last harvest. */
zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, zero_exposed_t *exposed);

#endif
