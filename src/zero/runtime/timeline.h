/* timeline.h - when the device did what: marks, which are timed events in streams, and spans from one mark to another,
 * read when they are over.
 *
 * A mark is also what another stream waits for: one record serves both. Marks lie in a ring that is made once and are
 * given out again when their step was harvested; whoever would overtake the oldest waits for it, which is long over in
 * practice. A mark that was given out again is over, and nobody need wait for it.
 *
 * ZERO_WORK_WAIT is compute standing still for communication: from the mark where compute came to, to the mark that it
 * waited for, where that was later. Their sum over a step is its exposed_comm_ms and is always taken. The other kinds
 * are recorded only while somebody traces.
 */
#ifndef ZERO_TIMELINE_H
#define ZERO_TIMELINE_H

#include "zero/device/device.h"

typedef struct zero_timeline zero_timeline_t;
typedef uint64_t zero_timed_event_t; /* marks are counted from 1; 0: none */

/* host: says how long an event may be waited for. capacity: spans under way at once; marks: twice as many. */
zero_status_t zero_timeline_create(zero_device_t *device, const zero_comm_t *host, int capacity,
                                   zero_timeline_t **timeline);
void zero_timeline_destroy(zero_timeline_t *timeline); /* NULL is allowed */

/* Sends spans of `works` (zero_engine_trace's bits) to `fn` from now on, when they are over. */
zero_status_t zero_timeline_trace(zero_timeline_t *timeline, unsigned works, zero_trace_fn fn, void *user);

/* Where `stream` is now. The mark may be given out again when `step` has been harvested: all that waits for it has been
 * queued then, and compute has come by what it stands for. */
zero_status_t zero_timeline_record(zero_timeline_t *timeline, uint64_t step, zero_stream_t stream,
                                   zero_timed_event_t *mark);
/* From now on spans are of the step at hand, or (false) of none: they are told with step 0, and waits among them are no
 * step's exposed communication. */
void zero_timeline_set_in_step(zero_timeline_t *timeline, bool in_step);
/* What to wait for; NULL: nothing, it is over. */
zero_event_t zero_timeline_event(const zero_timeline_t *timeline, zero_timed_event_t mark);

/* A wait of `step` between two marks. Of several with one `begin`, in the order of these calls, each begins where the
 * one before ended. */
zero_status_t zero_timeline_add_wait(zero_timeline_t *timeline, uint64_t step, zero_unit_t unit,
                                     zero_timed_event_t begin, zero_timed_event_t end);

/* Work of one stream: a span starts in `stream`; *span names it for zero_timeline_end, or is -1 where it is not
 * recorded. */
zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_work_t work, uint64_t step, zero_unit_t unit,
                                  zero_stream_t stream, int *span);
zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream);

/* Waits for the spans of all steps up to `step`. *exposed_ms: what WAIT spans took since the last harvest. */
zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, double *exposed_ms);

#endif
