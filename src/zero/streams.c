/* streams.c - how streams wait for one another and for peers: events, the time that they cost, fences. */
#include "zero/engine.h"
#include "zero/log.h"

/* ---- events, and time ---- */

zero_work_t zero_engine_work(const zero_engine_t *engine, zero_work_t beside)
{
    return engine->overlapped ? beside : ZERO_WORK_WAIT;
}

zero_status_t zero_engine_begin_span(zero_engine_t *engine, zero_work_t work, zero_unit_t unit, zero_stream_t stream,
                                     int *span)
{
    return zero_timeline_begin(engine->timeline, work, engine->step + 1, unit, stream, span);
}

zero_status_t zero_engine_wait(zero_engine_t *engine, zero_unit_t unit, zero_event_t event, zero_stream_t stream)
{
    int span;
    ZERO_TRY(zero_engine_begin_span(engine, ZERO_WORK_WAIT, unit, stream, &span));
    ZERO_TRY(engine->device->ops->stream_wait(engine->device, stream, event));
    return zero_timeline_end(engine->timeline, span, stream);
}

/* ---- fences ---- */

zero_status_t zero_engine_fence_in(zero_engine_t *engine, zero_lane_t lane, zero_stream_t stream)
{
    zero_event_t passed = engine->fence_passed[++engine->n_fences % ZERO_N_FENCE_EVENTS];
    ZERO_TRY(engine->comm->ops->fence(engine->comm, lane, stream));
    return engine->device->ops->event_record(engine->device, passed, stream);
}

zero_status_t zero_engine_fence(zero_engine_t *engine, zero_stream_t stream)
{
    int span;
    ZERO_TRY(zero_engine_begin_span(engine, ZERO_WORK_WAIT, -1, stream, &span));
    ZERO_TRY(zero_engine_fence_in(engine, ZERO_LANE_STEP, stream));
    engine->n_fences_passed = engine->n_fences;
    return zero_timeline_end(engine->timeline, span, stream);
}

zero_status_t zero_engine_await_readers(zero_engine_t *engine, zero_unit_t flat, uint64_t read_in, zero_stream_t stream)
{
    if (read_in == 0 || engine->n_fences_passed > read_in)
        return ZERO_OK;
    if (engine->n_fences == read_in)
        ZERO_TRY(
            zero_engine_fence_in(engine, ZERO_LANE_REDUCE, zero_engine_stream(engine, engine->reduce_stream, stream)));
    /* The first that will do; where its event serves a later fence by now, that one. */
    uint64_t oldest_kept = engine->n_fences > ZERO_N_FENCE_EVENTS ? engine->n_fences - ZERO_N_FENCE_EVENTS + 1 : 1;
    uint64_t awaited = read_in + 1 > oldest_kept ? read_in + 1 : oldest_kept;
    engine->n_fences_passed = awaited;
    if (!engine->overlapped)
        return ZERO_OK;
    return zero_engine_wait(engine, flat, engine->fence_passed[awaited % ZERO_N_FENCE_EVENTS], stream);
}
