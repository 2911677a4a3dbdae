/* streams.c - how streams wait for one another and for peers: events, the time that they cost, fences; and what peers
 * are told of what this rank is in. */
#include <string.h>

#include "zero/engine/engine.h"
#include "base/log.h"

/* ---- events, and time ---- */

zero_status_t zero_engine_record(zero_engine_t *engine, zero_event_t event, zero_stream_t stream)
{
    return engine->overlapped ? engine->device->ops->event_record(engine->device, event, stream) : ZERO_OK;
}

zero_status_t zero_engine_stream_wait(zero_engine_t *engine, zero_stream_t stream, zero_event_t event)
{
    return engine->overlapped ? engine->device->ops->stream_wait(engine->device, stream, event) : ZERO_OK;
}

/* Marks of gathers may be waited for in the next step. */
zero_status_t zero_engine_record_timed(zero_engine_t *engine, zero_timed_event_t *mark, zero_stream_t stream)
{
    return engine->overlapped ? zero_timeline_record(engine->timeline, engine->step + 2, stream, mark) : ZERO_OK;
}

zero_status_t zero_engine_stream_wait_timed(zero_engine_t *engine, zero_stream_t stream, zero_timed_event_t mark)
{
    zero_event_t event = zero_timeline_event(engine->timeline, mark);
    return event ? zero_engine_stream_wait(engine, stream, event) : ZERO_OK;
}

zero_work_t zero_engine_work(const zero_engine_t *engine, zero_work_t beside)
{
    return engine->overlapped ? beside : ZERO_WORK_WAIT;
}

zero_status_t zero_engine_begin_span(zero_engine_t *engine, zero_work_t work, zero_unit_t unit, zero_stream_t stream,
                                     int *span)
{
    return zero_timeline_begin(engine->timeline, work, engine->step + 1, unit, stream, span);
}

zero_status_t zero_engine_compute_wait(zero_engine_t *engine, zero_unit_t unit, zero_event_t event,
                                       zero_stream_t stream)
{
    int span;
    engine->arrived = 0;
    ZERO_TRY(zero_engine_begin_span(engine, ZERO_WORK_WAIT, unit, stream, &span));
    ZERO_TRY(engine->device->ops->stream_wait(engine->device, stream, event));
    return zero_timeline_end(engine->timeline, span, stream);
}

/* The wait itself is all that is queued in `stream`: both ends of its time are marked already, unless compute has gone
 * on since its last mark. Records and waits between two graphs cost a GPU more than what they are for. */
zero_status_t zero_engine_compute_wait_timed(zero_engine_t *engine, zero_unit_t unit, zero_timed_event_t mark,
                                             zero_stream_t stream)
{
    zero_event_t event = zero_timeline_event(engine->timeline, mark);
    if (!event)
        return ZERO_OK;
    if (engine->arrived == 0)
        ZERO_TRY(zero_engine_record_timed(engine, &engine->arrived, stream));
    event = zero_timeline_event(engine->timeline, mark);
    if (event)
        ZERO_TRY(engine->device->ops->stream_wait(engine->device, stream, event));
    return zero_timeline_add_wait(engine->timeline, engine->step + 1, unit, engine->arrived, mark);
}

/* ---- what this rank is in ---- */

static zero_call_t make_call(const zero_engine_t *engine, const char *name)
{
    zero_call_t call = {
        .name = "",
        .has_engine = 1,
        .engine = engine->number,
        .pass = engine->in_pass ? engine->pass : ZERO_PASS_TRAIN,
        .micro_step = (uint32_t)engine->micro_step,
        .step = engine->step + 1,
    };
    zero_call_set_text(call.name, sizeof call.name, name);
    return call;
}

void zero_engine_enter_unit(zero_engine_t *engine, const char *name, zero_unit_t unit)
{
    zero_call_t call = make_call(engine, name);
    zero_call_set_text(call.unit_name, sizeof call.unit_name, engine->model->units[unit].name);
    call.unit = unit;
    zero_comm_enter(engine->host_comm, &call, false);
}

void zero_engine_enter_step(zero_engine_t *engine, float lr)
{
    zero_call_t call = make_call(engine, "zero_step");
    memcpy(&call.lr_bits, &lr, sizeof lr);
    zero_comm_enter(engine->host_comm, &call, false);
}

void zero_engine_enter(zero_engine_t *engine, const char *name)
{
    zero_call_t call = make_call(engine, name);
    zero_comm_enter(engine->host_comm, &call, true);
}

/* ---- fences ---- */

zero_status_t zero_engine_fence_in(zero_engine_t *engine, zero_lane_t lane, zero_stream_t stream)
{
    if (engine->comm->size == 1)
        return ZERO_OK;
    engine->n_fences++;
    return engine->comm->ops->fence(engine->comm, lane, stream);
}

zero_status_t zero_engine_fence(zero_engine_t *engine, zero_stream_t stream)
{
    int span;
    if (engine->comm->size == 1)
        return ZERO_OK;
    engine->arrived = 0;
    ZERO_TRY(zero_engine_begin_span(engine, ZERO_WORK_WAIT, -1, stream, &span));
    ZERO_TRY(zero_engine_fence_in(engine, ZERO_LANE_STEP, stream));
    engine->n_fences_passed = engine->n_fences;
    return zero_timeline_end(engine->timeline, span, stream);
}

/* Seldom more than a look at two numbers: where units take turns, compute has waited for slices that came behind such a
 * fence. */
zero_status_t zero_engine_await_readers(zero_engine_t *engine, zero_unit_t flat, uint64_t read_in, zero_stream_t stream)
{
    zero_stream_t fences_in = zero_engine_stream(engine, engine->reduce_stream, stream);
    if (read_in == 0 || engine->n_fences_passed > read_in)
        return ZERO_OK;
    if (engine->n_fences == read_in)
        ZERO_TRY(zero_engine_fence_in(engine, ZERO_LANE_REDUCE, fences_in));
    engine->n_fences_passed = engine->n_fences;
    if (!engine->overlapped)
        return ZERO_OK;
    ZERO_TRY(zero_engine_record(engine, engine->fences_passed, fences_in));
    return zero_engine_compute_wait(engine, flat, engine->fences_passed, stream);
}
