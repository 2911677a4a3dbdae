/* parameters.c - parameters on their way to compute: who is in which slot, and which gather compute has yet to wait
 * for.
 *
 * Stage 3 gathers a unit into a slot ahead of its use. The gather waits until the slot's last user has been computed;
 * compute waits for the gather when it comes to the unit. Shards are rewritten by zero_step alone, after a fence that
 * every rank reaches when its gathers are done. Stages 1-2 gather every unit once, in place, after the update, while
 * the next forward is already under way; hosted units, whose update comes later, some way ahead of their use.
 *
 * The units that the next pass begins with are updated first and published by a fence of their own, so that they
 * transfer while the rest is updated.
 */
#include "zero/engine/engine.h"
#include "base/log.h"
#include "zero/plan/order.h"

static void count_gather(zero_engine_t *engine, uint64_t slice_bytes)
{
    engine->stats.n_gathers++;
    engine->stats.gathered_bytes += slice_bytes * (uint64_t)(engine->comm->size - 1);
}

/* The gather that was just queued is one that compute must wait for, unless it is in compute's own stream. */
static zero_status_t note_under_way(zero_engine_t *engine, zero_unit_t flat)
{
    engine->params_are[flat] = engine->overlapped ? ZERO_PARAMS_UNDER_WAY : ZERO_PARAMS_FRESH;
    return zero_engine_record_timed(engine, &engine->params_ready[flat], engine->gather_stream);
}

/* What was published with the step's own fence is gathered behind it. */
static zero_status_t await_published(zero_engine_t *engine, zero_unit_t flat)
{
    if (!engine->published_awaited || flat < engine->n_early_units)
        return ZERO_OK;
    engine->published_awaited = false;
    return zero_engine_stream_wait(engine, engine->gather_stream, engine->published);
}

/* A hosted unit is updated later than the step's own fence: before its first gather it has one of its own, which every
 * rank reaches when its shard is there. */
static zero_status_t publish_offloaded(zero_engine_t *engine, zero_unit_t flat, zero_stream_t gather_stream)
{
    bool is_new;
    if (!engine->offload || !zero_offload_has(engine, flat))
        return ZERO_OK;
    ZERO_TRY(zero_offload_await_params(engine, flat, gather_stream, &is_new));
    return is_new ? engine->comm->ops->fence(engine->comm, ZERO_LANE_GATHER, gather_stream) : ZERO_OK;
}

zero_status_t zero_engine_await_params(zero_engine_t *engine, zero_unit_t flat, zero_stream_t stream)
{
    if (engine->comm->size == 1) /* used where they lie */
        return publish_offloaded(engine, flat, stream);
    bool waits = engine->params_are[flat] == ZERO_PARAMS_UNDER_WAY;
    engine->params_are[flat] = ZERO_PARAMS_SEEN;
    return !waits ? ZERO_OK : zero_engine_compute_wait_timed(engine, flat, engine->params_ready[flat], stream);
}

/* Once a unit's backward is queued, sums are, which wait for slices: the next unit's parameters, if they are on their
 * way by then, are waited for in the same place. A GPU loses time wherever its stream has to wait, even for what is
 * there. */
zero_status_t zero_engine_await_next_params(zero_engine_t *engine, zero_stream_t stream)
{
    int n_units = engine->model->n_units, next = engine->position + 1;
    if (next == zero_order_n_positions(engine->pass, n_units))
        return ZERO_OK;
    zero_unit_t unit = zero_order_unit(next, n_units);
    for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++) {
        zero_unit_t flat = zero_model_flat(engine->model, unit, i);
        if (engine->params_are[flat] != ZERO_PARAMS_UNDER_WAY)
            continue;
        ZERO_TRY(zero_engine_await_params(engine, flat, stream));
        engine->params_are[flat] = ZERO_PARAMS_FRESH;
    }
    return ZERO_OK;
}

/* ---- stage 3: slots ---- */

static zero_timed_event_t *buffer_freed(const zero_engine_t *engine, const zero_unsharded_buffer_t *slot)
{
    return &engine->buffer_freed[slot - engine->unsharded_params.slots];
}

/* Fills a slot with the unit's full parameters from all ranks' shards. */
static zero_status_t gather_into_buffer(zero_engine_t *engine, zero_unit_t flat, const zero_unsharded_buffer_t *slot,
                                        zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &engine->layout.units[flat];
    size_t size = zero_dtype_size(engine->config.dtype);
    int span;
    if (layout->shard_elems == 0)
        return ZERO_OK;
    zero_stream_t gather_stream = zero_engine_stream(engine, engine->gather_stream, stream);
    ZERO_TRY(zero_engine_stream_wait_timed(engine, gather_stream, *buffer_freed(engine, slot)));
    ZERO_TRY(await_published(engine, flat));
    ZERO_TRY(publish_offloaded(engine, flat, gather_stream));
    ZERO_TRY(zero_engine_begin_span(engine, zero_engine_work(engine, ZERO_WORK_GATHER), flat, gather_stream, &span));
    ZERO_TRY(engine->comm->ops->all_gather(
        engine->comm, ZERO_LANE_GATHER, &engine->window, engine->plan.params + layout->shard_offset * size, 0,
        zero_engine_private(engine, slot->offset), layout->shard_elems * size, gather_stream));
    ZERO_TRY(zero_timeline_end(engine->timeline, span, gather_stream));
    count_gather(engine, layout->shard_elems * size);
    return note_under_way(engine, flat);
}

static zero_status_t make_resident(zero_engine_t *engine, zero_unit_t flat, zero_stream_t stream)
{
    int buffer_class = engine->layout.units[flat].buffer_class;
    if (zero_unsharded_find(&engine->unsharded_params, flat))
        return ZERO_OK;
    zero_unsharded_buffer_t *slot = zero_unsharded_empty(&engine->unsharded_params, buffer_class);
    if (!slot)
        slot = zero_unsharded_farthest(&engine->unsharded_params, engine->model, engine->pass, engine->position,
                                       buffer_class);
    zero_unsharded_put(&engine->unsharded_params, slot, flat);
    return gather_into_buffer(engine, flat, slot, stream);
}

static zero_status_t fill_buffers_ahead(zero_engine_t *engine, zero_stream_t stream)
{
    int n_units = engine->model->n_units;
    int n_positions = zero_order_n_positions(engine->pass, n_units);
    for (int ahead = 0; ahead <= engine->config.prefetch && ahead < n_positions - engine->position; ahead++) {
        zero_unit_t unit = zero_order_unit(engine->position + ahead, n_units);
        for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++) {
            zero_unit_t flat = zero_model_flat(engine->model, unit, i);
            if (ahead == 0 && engine->params_are[flat] == ZERO_PARAMS_SEEN &&
                zero_unsharded_find(&engine->unsharded_params, flat))
                engine->stats.n_gathers_avoided++;
            ZERO_TRY(make_resident(engine, flat, stream));
        }
    }
    return ZERO_OK;
}

void zero_engine_free_params(zero_engine_t *engine, zero_unit_t unit)
{
    for (int i = 0; i < zero_model_n_flats(engine->model, unit) && engine->plan.stage.shard_params; i++) {
        const zero_unsharded_buffer_t *slot =
            zero_unsharded_find(&engine->unsharded_params, zero_model_flat(engine->model, unit, i));
        *buffer_freed(engine, slot) = engine->used[unit];
    }
}

/* ---- full buffers in the window ---- */

zero_status_t zero_engine_gather_in_place(zero_engine_t *engine, zero_unit_t unit, uint64_t offset,
                                          size_t element_bytes, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    uint64_t flat = offset + layout->flat_offset * element_bytes;
    size_t slice_bytes = layout->shard_elems * element_bytes;
    int span;
    if (engine->comm->size == 1 || slice_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(zero_engine_begin_span(engine, zero_engine_work(engine, ZERO_WORK_GATHER), unit, stream, &span));
    ZERO_TRY(engine->comm->ops->all_gather(engine->comm, ZERO_LANE_GATHER, &engine->window, flat, slice_bytes,
                                           (unsigned char *)engine->window.local + flat, slice_bytes, stream));
    count_gather(engine, slice_bytes);
    return zero_timeline_end(engine->timeline, span, stream);
}

/* Stages 1-2: what is not on its way yet of units 0, 1 ... end - 1. */
static zero_status_t gather_full_up_to(zero_engine_t *engine, zero_unit_t end, zero_stream_t gather_stream)
{
    for (; engine->n_gathered < end; engine->n_gathered++) {
        zero_unit_t unit = engine->n_gathered;
        ZERO_TRY(await_published(engine, unit));
        ZERO_TRY(publish_offloaded(engine, unit, gather_stream));
        ZERO_TRY(zero_engine_gather_in_place(engine, unit, engine->plan.params, zero_dtype_size(engine->config.dtype),
                                             gather_stream));
        ZERO_TRY(note_under_way(engine, unit));
    }
    return ZERO_OK;
}

/* Hosted units follow in the next pass, so many ahead of their use: before one can be gathered all of its update must
 * be queued, and all at once would fill the streams (update_on_device.c) and hold up the host before that pass. */
#define OFFLOADED_AHEAD 4

static zero_status_t gather_offloaded_ahead(zero_engine_t *engine, zero_stream_t stream)
{
    int n_units = engine->model->n_units;
    zero_unit_t end = zero_order_unit(engine->position, n_units) + 1 + OFFLOADED_AHEAD;
    return gather_full_up_to(engine, end < n_units ? end : n_units,
                             zero_engine_stream(engine, engine->gather_stream, stream));
}

zero_status_t zero_engine_gather_ahead(zero_engine_t *engine, zero_stream_t stream)
{
    return engine->plan.stage.shard_params ? fill_buffers_ahead(engine, stream)
                                           : gather_offloaded_ahead(engine, stream);
}

/* ---- after the update ---- */

/* In the gather stream, which has nothing else to do: compute goes on with the update. */
zero_status_t zero_engine_publish_early(zero_engine_t *engine, zero_stream_t stream)
{
    ZERO_TRY(zero_engine_record(engine, engine->early_updated, stream));
    ZERO_TRY(zero_engine_stream_wait(engine, engine->gather_stream, engine->early_updated));
    return engine->comm->ops->fence(engine->comm, ZERO_LANE_GATHER, engine->gather_stream);
}

zero_status_t zero_engine_publish_params(zero_engine_t *engine, zero_stream_t stream)
{
    const zero_stage_t *stage = &engine->plan.stage;
    zero_stream_t gather_stream = zero_engine_stream(engine, engine->gather_stream, stream);
    ZERO_TRY(zero_engine_fence(engine, stream));
    ZERO_TRY(zero_engine_record(engine, engine->published, stream));
    engine->published_awaited = true;
    if (stage->shard_params) {
        zero_unsharded_clear(&engine->unsharded_params);
        return ZERO_OK;
    }
    if (!stage->shard_state || engine->comm->size == 1)
        return ZERO_OK;
    engine->n_gathered = 0;
    return gather_full_up_to(engine, engine->plan.host.first, gather_stream);
}
