/* engine.c - one pass over the units: acquire, release, grad_ready.
 *
 * What must hold: between acquire and release a unit's full parameters are resident and are the same on every rank;
 * between a backward acquire and grad_ready its full gradient has a place nobody else uses; at grad_ready it is summed
 * over ranks in rank order, in fp32, into the shard of its owner. The calls come in the declared order, so every rank
 * issues the same communication in the same order, and a call out of order is an error before anything moves.
 *
 * Memory that peers read (the window) is rewritten only after a fence that follows their last read:
 *     parameter shards   read by gathers of a pass; rewritten by zero_step, after its own fence
 *     full gradients     read by reduce; a slot (stages 2-3) or a unit (0-1) remembers after which fence, and its place
 *                        is written again after the next
 */
#include "zero/engine.h"

#include "comm/deadline.h"
#include "zero/log.h"
#include "zero/order.h"

/* ---- places ---- */

void *zero_engine_private(const zero_engine_t *engine, uint64_t offset)
{
    return engine->private_data + offset;
}

static unsigned char *window_at(const zero_engine_t *engine, uint64_t offset)
{
    return (unsigned char *)engine->window.local + offset;
}

void *zero_engine_params(const zero_engine_t *engine)
{
    return window_at(engine, engine->plan.params);
}

/* Full sums lie in the window, so that stage 0 can gather them; shards alone are private. */
float *zero_engine_sums(const zero_engine_t *engine)
{
    if (engine->plan.stage.sums_are_full)
        return (float *)(void *)window_at(engine, engine->plan.sums);
    return zero_engine_private(engine, engine->plan.private_sums);
}

float *zero_engine_sum(const zero_engine_t *engine, zero_unit_t unit)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    uint64_t in_full = layout->flat_offset + (uint64_t)engine->comm->rank * layout->shard_elems;
    return zero_engine_sums(engine) + (engine->plan.stage.sums_are_full ? in_full : layout->shard_offset);
}

uint64_t zero_engine_grad_offset(const zero_engine_t *engine, zero_unit_t unit)
{
    if (engine->plan.stage.shard_grads)
        return zero_slots_find(&engine->grad_slots, unit)->offset;
    return engine->plan.grads + engine->layout.units[unit].flat_offset * zero_dtype_size(engine->plan.stage.grad_dtype);
}

/* The unit's full parameters, which are resident. */
static const unsigned char *full_params(const zero_engine_t *engine, zero_unit_t unit)
{
    if (engine->plan.stage.shard_params)
        return zero_engine_private(engine, zero_slots_find(&engine->param_slots, unit)->offset);
    return window_at(engine, engine->plan.params +
                                 engine->layout.units[unit].flat_offset * zero_dtype_size(engine->config.dtype));
}

/* ---- moving bytes ---- */

/* Runs a communication call on the clock: on the CPU compute waits for all of it. */
#define TIMED(engine, call)                                                                                            \
    do {                                                                                                               \
        int64_t timed_begin = zero_now_ns();                                                                           \
        zero_status_t timed_status = (call);                                                                           \
        (engine)->stats.exposed_comm_ms += (double)(zero_now_ns() - timed_begin) * 1e-6;                               \
        if (timed_status != ZERO_OK)                                                                                   \
            return timed_status;                                                                                       \
    } while (0)

zero_status_t zero_engine_fence(zero_engine_t *engine, zero_stream_t stream)
{
    engine->n_fences++;
    TIMED(engine, engine->comm->ops->fence(engine->comm, ZERO_LANE_STEP, stream));
    return ZERO_OK;
}

static void count_gather(zero_engine_t *engine, uint64_t slice_bytes)
{
    engine->stats.n_gathers++;
    engine->stats.gathered_bytes += slice_bytes * (uint64_t)(engine->comm->size - 1);
}

/* Fills a slot with the unit's full parameters from all ranks' shards. */
static zero_status_t gather_into_slot(zero_engine_t *engine, zero_unit_t unit, zero_slot_t *slot, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    size_t size = zero_dtype_size(engine->config.dtype);
    if (layout->shard_elems == 0)
        return ZERO_OK;
    TIMED(engine,
          engine->comm->ops->all_gather(engine->comm, ZERO_LANE_GATHER, &engine->window,
                                        engine->plan.params + layout->shard_offset * size, 0,
                                        zero_engine_private(engine, slot->offset), layout->shard_elems * size, stream));
    count_gather(engine, layout->shard_elems * size);
    return ZERO_OK;
}

zero_status_t zero_engine_gather_full(zero_engine_t *engine, uint64_t offset, size_t element_bytes,
                                      zero_stream_t stream)
{
    if (engine->comm->size == 1)
        return ZERO_OK;
    for (zero_unit_t u = 0; u < engine->layout.n_units; u++) {
        const zero_unit_layout_t *layout = &engine->layout.units[u];
        uint64_t flat = offset + layout->flat_offset * element_bytes;
        size_t slice_bytes = layout->shard_elems * element_bytes;
        if (slice_bytes == 0)
            continue;
        TIMED(engine, engine->comm->ops->all_gather(engine->comm, ZERO_LANE_GATHER, &engine->window, flat, slice_bytes,
                                                    window_at(engine, flat), slice_bytes, stream));
        count_gather(engine, slice_bytes);
    }
    return ZERO_OK;
}

zero_status_t zero_engine_publish_params(zero_engine_t *engine, zero_stream_t stream)
{
    const zero_stage_t *stage = &engine->plan.stage;
    ZERO_TRY(zero_engine_fence(engine, stream));
    if (stage->shard_params)
        zero_slots_clear(&engine->param_slots);
    else if (stage->shard_state)
        ZERO_TRY(zero_engine_gather_full(engine, engine->plan.params, zero_dtype_size(engine->config.dtype), stream));
    return ZERO_OK;
}

/* Sums a unit's full gradients over ranks into this rank's shard, and takes the shard's squares for the norm. */
static zero_status_t reduce(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    const zero_stage_t *stage = &engine->plan.stage;
    uint64_t n_elems = engine->layout.units[unit].shard_elems;
    size_t slice_bytes = n_elems * zero_dtype_size(stage->grad_dtype);
    bool last = engine->micro_step == engine->config.micro_steps - 1;
    bool add = engine->micro_step > 0 && !stage->accumulate_locally;
    double *partials = zero_engine_private(engine, engine->plan.partials);

    if (n_elems == 0)
        return ZERO_OK;
    ZERO_TRY(zero_engine_fence(engine, stream));
    TIMED(engine, engine->comm->ops->exchange(
                      engine->comm, ZERO_LANE_REDUCE, &engine->window, zero_engine_grad_offset(engine, unit),
                      slice_bytes, zero_engine_private(engine, engine->plan.staging), engine->slices, stream));
    ZERO_TRY(engine->device->kernels->sum_slices(zero_engine_sum(engine, unit), engine->slices, engine->comm->size,
                                                 stage->grad_dtype, n_elems, add,
                                                 last ? partials + engine->partials_of[unit] : NULL, stream));
    engine->stats.n_reduces++;
    engine->stats.reduced_bytes += slice_bytes * (uint64_t)(engine->comm->size - 1);
    return ZERO_OK;
}

/* ---- residency ---- */

static zero_status_t make_resident(zero_engine_t *engine, zero_unit_t flat, zero_stream_t stream)
{
    int slot_class = engine->layout.units[flat].slot_class;
    if (zero_slots_find(&engine->param_slots, flat))
        return ZERO_OK;
    zero_slot_t *slot = zero_slots_empty(&engine->param_slots, slot_class);
    if (!slot)
        slot = zero_slots_farthest(&engine->param_slots, engine->model, engine->pass, engine->position, slot_class);
    zero_slots_put(&engine->param_slots, slot, flat);
    return gather_into_slot(engine, flat, slot, stream);
}

/* Gathers what the unit at the current position needs, then what the next ones will need. */
static zero_status_t gather_ahead(zero_engine_t *engine, zero_stream_t stream)
{
    int n_units = engine->model->n_units;
    int n_positions = zero_order_n_positions(engine->pass, n_units);
    for (int ahead = 0; ahead <= engine->config.prefetch && ahead < n_positions - engine->position; ahead++) {
        zero_unit_t unit = zero_order_unit(engine->position + ahead, n_units);
        for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++) {
            zero_unit_t flat = zero_model_flat(engine->model, unit, i);
            if (ahead == 0 && zero_slots_find(&engine->param_slots, flat))
                engine->stats.n_slot_hits++;
            ZERO_TRY(make_resident(engine, flat, stream));
        }
    }
    return ZERO_OK;
}

/* Peers may still read what was reduced since the last fence: lets one pass before that place is written again. */
static zero_status_t await_readers(zero_engine_t *engine, uint64_t read_in_fence, zero_stream_t stream)
{
    if (read_in_fence == 0 || read_in_fence < engine->n_fences)
        return ZERO_OK;
    return zero_engine_fence(engine, stream);
}

/* A place for every gradient the unit will write, where nobody reads any more. */
static zero_status_t place_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++) {
        zero_unit_t flat = zero_model_flat(engine->model, unit, i);
        if (!engine->plan.stage.shard_grads) {
            ZERO_TRY(await_readers(engine, engine->grads_read_in_fence[flat], stream));
            continue;
        }
        if (zero_slots_find(&engine->grad_slots, flat))
            continue; /* begun by a unit that shares a tensor of it */
        zero_slot_t *slot = zero_slots_empty(&engine->grad_slots, engine->layout.units[flat].slot_class);
        ZERO_TRY(await_readers(engine, slot->read_in_fence, stream));
        zero_slots_put(&engine->grad_slots, slot, flat);
    }
    return ZERO_OK;
}

/* ---- the pass ---- */

static const char *position_text(const zero_engine_t *engine)
{
    return zero_order_is_backward(engine->position, engine->model->n_units) ? "backward" : "forward";
}

zero_status_t zero_begin(zero_engine_t *engine, zero_pass_t pass, zero_stream_t stream)
{
    (void)stream;
    if (engine->in_pass)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin inside a pass: unit %s (%s) has not been used yet",
                         engine->model->units[zero_order_unit(engine->position, engine->model->n_units)].name,
                         position_text(engine));
    if (pass == ZERO_PASS_TRAIN && engine->micro_step == engine->config.micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin after all %d micro-steps: zero_step must come first",
                         engine->config.micro_steps);
    if (pass == ZERO_PASS_EVAL && engine->micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "an eval pass between micro-steps %d and %d: finish the step first",
                         engine->micro_step, engine->micro_step + 1);
    engine->in_pass = engine->started = true;
    engine->pass = pass;
    engine->position = 0;
    engine->acquired = false;
    return ZERO_OK;
}

/* Whether `call` on `unit` is what comes now. */
static zero_status_t check_order(const zero_engine_t *engine, const char *call, zero_unit_t unit, bool acquired)
{
    const zero_model_t *model = engine->model;
    if (unit < 0 || unit >= model->n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s(unit %d): there are %d units", call, unit, model->n_units);
    if (!engine->in_pass)
        return zero_fail(ZERO_ERROR_ORDER, "%s(%s) outside a pass: call zero_begin first", call,
                         model->units[unit].name);
    zero_unit_t expected = zero_order_unit(engine->position, model->n_units);
    if (unit != expected || engine->acquired != acquired)
        return zero_fail(ZERO_ERROR_ORDER, "%s(%s): in %s, unit %s must be %s now", call, model->units[unit].name,
                         position_text(engine), model->units[expected].name,
                         engine->acquired ? "released or its gradients declared ready" : "acquired");
    return ZERO_OK;
}

zero_status_t zero_acquire(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_TRY(check_order(engine, "zero_acquire", unit, false));
    if (engine->plan.stage.shard_params)
        ZERO_TRY(gather_ahead(engine, stream));
    if (zero_order_is_backward(engine->position, engine->model->n_units))
        ZERO_TRY(place_grads(engine, unit, stream));
    engine->acquired = true;
    return ZERO_OK;
}

static void advance(zero_engine_t *engine)
{
    engine->acquired = false;
    engine->position++;
    if (engine->position < zero_order_n_positions(engine->pass, engine->model->n_units))
        return;
    engine->in_pass = false;
    if (engine->pass == ZERO_PASS_TRAIN)
        engine->micro_step++;
}

zero_status_t zero_release(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    (void)stream;
    ZERO_TRY(check_order(engine, "zero_release", unit, true));
    if (zero_order_is_backward(engine->position, engine->model->n_units))
        return zero_fail(ZERO_ERROR_ORDER, "zero_release(%s) in backward: zero_grad_ready ends a unit there",
                         engine->model->units[unit].name);
    advance(engine);
    return ZERO_OK;
}

zero_status_t zero_grad_ready(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_TRY(check_order(engine, "zero_grad_ready", unit, true));
    if (!zero_order_is_backward(engine->position, engine->model->n_units))
        return zero_fail(ZERO_ERROR_ORDER, "zero_grad_ready(%s) in forward: zero_release ends a unit there",
                         engine->model->units[unit].name);
    bool last = engine->micro_step == engine->config.micro_steps - 1;
    if (last || !engine->plan.stage.accumulate_locally)
        ZERO_TRY(reduce(engine, unit, stream));
    engine->grads_read_in_fence[unit] = engine->n_fences;
    if (engine->plan.stage.shard_grads) {
        zero_slot_t *slot = zero_slots_find(&engine->grad_slots, unit);
        slot->read_in_fence = engine->n_fences;
        zero_slots_put(&engine->grad_slots, slot, -1);
    }
    advance(engine);
    return ZERO_OK;
}

/* ---- pointers ---- */

static bool is_usable(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return engine->acquired && tensor >= 0 && tensor < engine->model->n_tensors &&
           zero_order_needs(engine->model, engine->position, engine->model->tensors[tensor].owner);
}

const void *zero_param(const zero_engine_t *engine, zero_tensor_t tensor)
{
    if (!is_usable(engine, tensor))
        return NULL;
    return full_params(engine, engine->model->tensors[tensor].owner) +
           engine->layout.tensor_offsets[tensor] * zero_dtype_size(engine->config.dtype);
}

zero_grad_t zero_grad(const zero_engine_t *engine, zero_tensor_t tensor)
{
    int n_units = engine->model->n_units;
    zero_grad_t grad = {.data = NULL, .dtype = engine->plan.stage.grad_dtype, .accumulate = false};
    if (!is_usable(engine, tensor) || !zero_order_is_backward(engine->position, n_units))
        return grad;
    const zero_tensor_decl_t *decl = &engine->model->tensors[tensor];
    uint64_t flat = zero_engine_grad_offset(engine, decl->owner);
    grad.data = window_at(engine, flat + engine->layout.tensor_offsets[tensor] * zero_dtype_size(grad.dtype));
    /* Backward meets the last user first. */
    bool begun_here = zero_order_unit(engine->position, n_units) != decl->last_user;
    grad.accumulate = begun_here || (engine->plan.stage.accumulate_locally && engine->micro_step > 0);
    return grad;
}

zero_memory_t zero_engine_memory(const zero_engine_t *engine)
{
    return engine->memory;
}

zero_stats_t zero_engine_stats(const zero_engine_t *engine)
{
    return engine->stats;
}
