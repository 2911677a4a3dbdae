/* timeline.h - when the device did what: spans between two timed events of a stream, read when they are over.
 *
 * ZERO_WORK_WAIT is compute standing still for communication; its sum is a step's exposed_comm_ms and is always taken.
 * The other kinds are recorded only while somebody traces. Spans are kept in a ring that is made once; whoever would
 * overtake it waits for its oldest span, which is long over in practice.
 */
#ifndef ZERO_TIMELINE_H
#define ZERO_TIMELINE_H

#include "zero/device.h"

typedef struct zero_timeline zero_timeline_t;

/* host: says how long an event may be waited for. capacity: spans under way at once. */
zero_status_t zero_timeline_create(zero_device_t *device, const zero_comm_t *host, int capacity,
                                   zero_timeline_t **timeline);
void zero_timeline_destroy(zero_timeline_t *timeline); /* NULL is allowed */

/* Sends spans of `works` (zero_engine_trace's bits) to `fn` from now on, when they are over. */
zero_status_t zero_timeline_trace(zero_timeline_t *timeline, unsigned works, zero_trace_fn fn, void *user);

/* A span of `step` starts in `stream`; *span names it for zero_timeline_end, or is -1 where it is not recorded. */
zero_status_t zero_timeline_begin(zero_timeline_t *timeline, zero_work_t work, uint64_t step, zero_unit_t unit,
                                  zero_stream_t stream, int *span);
zero_status_t zero_timeline_end(zero_timeline_t *timeline, int span, zero_stream_t stream);

/* Waits for the spans of all steps up to `step`. *exposed_ms: what WAIT spans took since the last harvest. */
zero_status_t zero_timeline_harvest(zero_timeline_t *timeline, uint64_t step, double *exposed_ms);

#endif
