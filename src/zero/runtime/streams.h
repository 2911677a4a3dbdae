/* streams.h - the engine's streams: how they wait for each other (events) and for peers (fences), and when they did
 * what (timeline.h).
 *
 * The caller's stream computes. If communication is overlapped (on GPUs, with several ranks, over a transport that does
 * not block the host), gathers run in a stream of their own, reductions in another, and events order the three. Else
 * everything runs in the caller's stream and the events do nothing.
 */
#ifndef ZERO_STREAMS_H
#define ZERO_STREAMS_H

#include "comm/comm.h"
#include "zero/device/device.h"
#include "zero/runtime/timeline.h"

typedef struct zero_context zero_context_t;

typedef struct zero_streams {
    bool overlapped;
    zero_stream_t gather, reduce;
    zero_timeline_t *timeline;
    zero_timed_event_t *used; /* by unit, in the caller's stream: the end of its last release or grad_ready */
    /* The end of what is queued in the caller's stream, if it has been recorded; 0: more has been queued since. */
    zero_timed_event_t compute_end;
    uint64_t n_fences;          /* issued */
    uint64_t n_fences_passed;   /* that compute is known to come after */
    zero_event_t fences_passed; /* in the reduce stream: all of them so far */
} zero_streams_t;

/* Needs the context's plan. After a failure zero_streams_destroy frees what there is. */
zero_status_t zero_streams_create(zero_context_t *context);
void zero_streams_destroy(zero_context_t *context); /* when the device is idle */

/* Return the stream that gathers and the one that reduces: the caller's if communication is not overlapped. */
zero_stream_t zero_streams_gather(const zero_context_t *context, zero_stream_t callers);
zero_stream_t zero_streams_reduce(const zero_context_t *context, zero_stream_t callers);

/* Record an event in `stream`; make what is queued in `stream` from now on wait for one. Both do nothing if
 * communication is not overlapped: then all is in one stream. */
zero_status_t zero_streams_record(zero_context_t *context, zero_event_t event, zero_stream_t stream);
zero_status_t zero_streams_wait(zero_context_t *context, zero_stream_t stream, zero_event_t event);
/* The same with a timed event of the timeline. */
zero_status_t zero_streams_record_timed(zero_context_t *context, zero_timed_event_t *event, zero_stream_t stream);
zero_status_t zero_streams_wait_timed(zero_context_t *context, zero_stream_t stream, zero_timed_event_t event);

/* Begins and ends a span of the current step in the timeline: work other than a wait. */
zero_status_t zero_streams_begin_span(zero_context_t *context, zero_work_t work, zero_unit_t unit, zero_stream_t stream,
                                      int *span);
/* The same for a wait of compute, which results count as exposed. */
zero_status_t zero_streams_begin_wait(zero_context_t *context, zero_wait_t wait, zero_unit_t unit, zero_stream_t stream,
                                      int *span);
zero_status_t zero_streams_end_span(zero_context_t *context, int span, zero_stream_t stream);
/* The same for communication among `ranks`: a span of kind `work` if communication overlaps compute, else of a wait of
 * compute. */
zero_status_t zero_streams_begin_comm_span(zero_context_t *context, zero_work_t work, zero_unit_t unit,
                                           zero_ranks_t ranks, zero_stream_t stream, int *span);

/* Makes the caller's stream, which computes, wait for an event of a communication stream, and times the wait. */
zero_status_t zero_streams_compute_wait(zero_context_t *context, zero_wait_t wait, zero_unit_t unit, zero_event_t event,
                                        zero_stream_t stream);
zero_status_t zero_streams_compute_wait_timed(zero_context_t *context, zero_wait_t wait, zero_unit_t unit,
                                              zero_timed_event_t event, zero_stream_t stream);

/* Queues a fence behind all work of all ranks so far: what `stream` does next may read everything that peers wrote and
 * overwrite everything that they read. */
zero_status_t zero_streams_fence(zero_context_t *context, zero_stream_t stream);
/* Queues a fence in one lane and counts it: behind it peers may read what this rank's `stream` wrote before it, and
 * this rank may overwrite what peers read before it. */
zero_status_t zero_streams_fence_in(zero_context_t *context, zero_lane_t lane, zero_stream_t stream);
/* Makes `stream`, which computes, wait until peers have read what was published with fence `published_in` (0: nothing):
 * until a later fence is passed. */
zero_status_t zero_streams_await_readers(zero_context_t *context, zero_unit_t flat, uint64_t published_in,
                                         zero_stream_t stream);

#endif
