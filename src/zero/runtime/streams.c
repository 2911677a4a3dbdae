/* streams.c - see streams.h. */
#include "zero/runtime/streams.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"
#include "zero/runtime/context.h"

/* Spans at once: two micro-steps' worth, with several of each kind for every unit forward and backward, exchanges of
 * the caller's included. */
static int timeline_capacity(const zero_context_t *context)
{
    return 48 * context->layout.n_units + 64;
}

zero_status_t zero_streams_create(zero_context_t *context)
{
    zero_streams_t *streams = &context->streams;
    zero_device_t *device = context->device;
    streams->overlapped = context->plan.overlapped && !context->comm->ops->blocks;
    streams->used = calloc((size_t)context->layout.n_units, sizeof *streams->used);
    if (!streams->used)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d units", context->layout.n_units);
    ZERO_TRY(device->ops->stream_create(device, true, &streams->gather));
    ZERO_TRY(device->ops->stream_create(device, true, &streams->reduce));
    ZERO_TRY(device->ops->event_create(device, false, &streams->fences_passed));
    return zero_timeline_create(device, context->comm, timeline_capacity(context), &streams->timeline);
}

void zero_streams_destroy(zero_context_t *context)
{
    zero_streams_t *streams = &context->streams;
    zero_device_t *device = context->device;
    zero_timeline_destroy(streams->timeline);
    device->ops->event_destroy(device, streams->fences_passed);
    device->ops->stream_destroy(device, streams->gather);
    device->ops->stream_destroy(device, streams->reduce);
    free(streams->used);
}

zero_stream_t zero_streams_gather(const zero_context_t *context, zero_stream_t callers)
{
    return context->streams.overlapped ? context->streams.gather : callers;
}

zero_stream_t zero_streams_reduce(const zero_context_t *context, zero_stream_t callers)
{
    return context->streams.overlapped ? context->streams.reduce : callers;
}

/* ---- events ---- */

zero_status_t zero_streams_record(zero_context_t *context, zero_event_t event, zero_stream_t stream)
{
    zero_device_t *device = context->device;
    return context->streams.overlapped ? device->ops->event_record(device, event, stream) : ZERO_OK;
}

zero_status_t zero_streams_wait(zero_context_t *context, zero_stream_t stream, zero_event_t event)
{
    zero_device_t *device = context->device;
    return context->streams.overlapped ? device->ops->stream_wait(device, stream, event) : ZERO_OK;
}

/* The next step may still wait for the events of a gather: hence step + 2. */
zero_status_t zero_streams_record_timed(zero_context_t *context, zero_timed_event_t *event, zero_stream_t stream)
{
    zero_streams_t *streams = &context->streams;
    return streams->overlapped ? zero_timeline_record(streams->timeline, context->progress.step + 2, stream, event)
                               : ZERO_OK;
}

zero_status_t zero_streams_wait_timed(zero_context_t *context, zero_stream_t stream, zero_timed_event_t timed)
{
    zero_event_t event = zero_timeline_event(context->streams.timeline, timed);
    return event ? zero_streams_wait(context, stream, event) : ZERO_OK;
}

/* ---- time ---- */

/* Returns the phase that the caller is in. */
static zero_phase_t phase_of(const zero_context_t *context)
{
    const zero_progress_t *progress = &context->progress;
    if (!progress->in_pass)
        return ZERO_PHASE_UPDATE;
    return zero_order_is_backward(progress->position, context->model->n_units) ? ZERO_PHASE_BACKWARD
                                                                               : ZERO_PHASE_FORWARD;
}

static zero_span_of_t span_of(const zero_context_t *context, zero_work_t work, zero_wait_t wait, zero_unit_t unit)
{
    return (zero_span_of_t){
        .work = work, .wait = wait, .phase = phase_of(context), .unit = unit, .step = context->progress.step + 1};
}

zero_status_t zero_streams_begin_wait(zero_context_t *context, zero_wait_t wait, zero_unit_t unit, zero_stream_t stream,
                                      int *span)
{
    return zero_timeline_begin(context->streams.timeline, span_of(context, ZERO_WORK_WAIT, wait, unit), stream, span);
}

zero_status_t zero_streams_begin_span(zero_context_t *context, zero_work_t work, zero_unit_t unit, zero_stream_t stream,
                                      int *span)
{
    return zero_timeline_begin(context->streams.timeline, span_of(context, work, ZERO_WAIT_NONE, unit), stream, span);
}

zero_status_t zero_streams_end_span(zero_context_t *context, int span, zero_stream_t stream)
{
    return zero_timeline_end(context->streams.timeline, span, stream);
}

zero_status_t zero_streams_begin_comm_span(zero_context_t *context, zero_work_t work, zero_unit_t unit,
                                           zero_ranks_t ranks, zero_stream_t stream, int *span)
{
    const zero_wait_t wait = work == ZERO_WORK_GATHER ? ZERO_WAIT_GATHER : ZERO_WAIT_REDUCE;
    zero_span_of_t of = context->streams.overlapped ? span_of(context, work, ZERO_WAIT_NONE, unit)
                                                    : span_of(context, ZERO_WORK_WAIT, wait, unit);
    of.ranks = ranks;
    return zero_timeline_begin(context->streams.timeline, of, stream, span);
}

zero_status_t zero_streams_compute_wait(zero_context_t *context, zero_wait_t wait, zero_unit_t unit, zero_event_t event,
                                        zero_stream_t stream)
{
    int span;
    context->streams.compute_end = 0;
    ZERO_TRY(zero_streams_begin_wait(context, wait, unit, stream, &span));
    ZERO_TRY(context->device->ops->stream_wait(context->device, stream, event));
    return zero_streams_end_span(context, span, stream);
}

/* Queues nothing but the wait if it can: the end of compute has often been recorded already, and the event waited for
 * is timed itself. Records and waits between two CUDA graphs cost a GPU more than what they are for. */
zero_status_t zero_streams_compute_wait_timed(zero_context_t *context, zero_wait_t wait, zero_unit_t unit,
                                              zero_timed_event_t timed, zero_stream_t stream)
{
    zero_streams_t *streams = &context->streams;
    zero_event_t event = zero_timeline_event(streams->timeline, timed);
    if (!event)
        return ZERO_OK;
    if (streams->compute_end == 0)
        ZERO_TRY(zero_streams_record_timed(context, &streams->compute_end, stream));
    event = zero_timeline_event(streams->timeline, timed); /* recording may have found that it is over */
    if (event)
        ZERO_TRY(context->device->ops->stream_wait(context->device, stream, event));
    return zero_timeline_add_wait(streams->timeline, span_of(context, ZERO_WORK_WAIT, wait, unit), streams->compute_end,
                                  timed);
}

/* ---- fences ---- */

zero_status_t zero_streams_fence_in(zero_context_t *context, zero_lane_t lane, zero_stream_t stream)
{
    if (context->comm->size == 1)
        return ZERO_OK;
    context->streams.n_fences++;
    return context->comm->ops->fence(context->comm, lane, stream);
}

zero_status_t zero_streams_fence(zero_context_t *context, zero_stream_t stream)
{
    zero_streams_t *streams = &context->streams;
    int span;
    if (context->comm->size == 1)
        return ZERO_OK;
    streams->compute_end = 0;
    ZERO_TRY(zero_streams_begin_wait(context, ZERO_WAIT_RANKS, -1, stream, &span));
    ZERO_TRY(zero_streams_fence_in(context, ZERO_LANE_STEP, stream));
    streams->n_fences_passed = streams->n_fences;
    return zero_streams_end_span(context, span, stream);
}

/* Mostly compares two numbers: if units take turns in a buffer, compute has already waited for slices that came behind
 * such a fence. */
zero_status_t zero_streams_await_readers(zero_context_t *context, zero_unit_t flat, uint64_t published_in,
                                         zero_stream_t stream)
{
    zero_streams_t *streams = &context->streams;
    zero_stream_t fence_stream = zero_streams_reduce(context, stream);
    if (published_in == 0 || streams->n_fences_passed > published_in)
        return ZERO_OK;
    if (streams->n_fences == published_in)
        ZERO_TRY(zero_streams_fence_in(context, ZERO_LANE_REDUCE, fence_stream));
    streams->n_fences_passed = streams->n_fences;
    if (!streams->overlapped)
        return ZERO_OK;
    ZERO_TRY(zero_streams_record(context, streams->fences_passed, fence_stream));
    return zero_streams_compute_wait(context, ZERO_WAIT_READERS, flat, streams->fences_passed, stream);
}
