/* pass.c - one pass over the units: acquire, release, grad_ready.
 *
 * What must hold: between acquire and release a unit's full parameters are resident and are the same on every rank
 * (parameters.c); between a backward acquire and grad_ready its full gradient has a place nobody else uses; at
 * grad_ready it starts for the shard of its owner (gradients.c). The calls come in the declared order, so every rank
 * issues the same communication in the same order, and a call out of order is an error before anything moves.
 */
#include "zero/engine/engine.h"

#include "base/log.h"
#include "zero/plan/order.h"

/* ---- the pass ---- */

static const char *position_text(const zero_engine_t *engine)
{
    return zero_order_is_backward(engine->position, engine->model->n_units) ? "backward" : "forward";
}

zero_status_t zero_begin(zero_engine_t *engine, zero_pass_t pass, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    if (engine->in_pass)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin inside a pass: unit %s (%s) has not been used yet",
                         engine->model->units[zero_order_unit(engine->position, engine->model->n_units)].name,
                         position_text(engine));
    if (pass != ZERO_PASS_TRAIN && pass != ZERO_PASS_EVAL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_begin: there is no pass %d", (int)pass);
    if (pass == ZERO_PASS_TRAIN && engine->micro_step == engine->config.micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin after all %d micro-steps: zero_step must come first",
                         engine->config.micro_steps);
    if (pass == ZERO_PASS_EVAL && engine->micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "an eval pass after %d of a step's %d micro-steps: finish the step first",
                         engine->micro_step, engine->config.micro_steps);
    ZERO_TRY(zero_engine_check_weights(engine, "zero_begin"));
    if (!engine->started)
        ZERO_TRY(zero_offload_start(engine));
    if (pass == ZERO_PASS_TRAIN && engine->micro_step == 0)
        ZERO_TRY(zero_engine_begin_step(engine, stream));
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
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_order(engine, "zero_acquire", unit, false));
    zero_engine_enter_unit(engine, "zero_acquire", unit);
    ZERO_TRY(zero_engine_gather_ahead(engine, stream));
    for (int i = 0; i < zero_model_n_flats(engine->model, unit); i++)
        ZERO_TRY(zero_engine_await_params(engine, zero_model_flat(engine->model, unit, i), stream));
    if (zero_order_is_backward(engine->position, engine->model->n_units))
        ZERO_TRY(zero_engine_prepare_grads(engine, unit, stream));
    else
        ZERO_TRY(zero_offload_reclaim_activations(engine, unit, stream));
    engine->acquired = true;
    engine->arrived = 0;
    if (zero_order_is_backward(engine->position, engine->model->n_units))
        ZERO_TRY(zero_engine_poison_grads(engine, unit, stream));
    return zero_engine_begin_span(engine, ZERO_WORK_COMPUTE, unit, stream, &engine->compute_span);
}

/* The unit's compute is queued. */
static zero_status_t end_use(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_TRY(zero_timeline_end(engine->timeline, engine->compute_span, stream));
    if (engine->plan.stage.shard_params || zero_order_is_backward(engine->position, engine->model->n_units)) {
        ZERO_TRY(zero_engine_record_timed(engine, &engine->used[unit], stream));
        engine->arrived = engine->used[unit];
    }
    zero_engine_free_params(engine, unit);
    return ZERO_OK;
}

static void advance(zero_engine_t *engine)
{
    engine->acquired = false;
    engine->position++;
    if (engine->position < zero_order_n_positions(engine->pass, engine->model->n_units))
        return;
    engine->in_pass = false;
    engine->arrived = 0; /* between passes the stream is the caller's, and may stand still for the host */
    if (engine->pass == ZERO_PASS_TRAIN)
        engine->micro_step++;
}

zero_status_t zero_release(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_order(engine, "zero_release", unit, true));
    if (zero_order_is_backward(engine->position, engine->model->n_units))
        return zero_fail(ZERO_ERROR_ORDER, "zero_release(%s) in backward: zero_grad_ready ends a unit there",
                         engine->model->units[unit].name);
    ZERO_TRY(end_use(engine, unit, stream));
    advance(engine);
    return ZERO_OK;
}

zero_status_t zero_grad_ready(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_order(engine, "zero_grad_ready", unit, true));
    if (!zero_order_is_backward(engine->position, engine->model->n_units))
        return zero_fail(ZERO_ERROR_ORDER, "zero_grad_ready(%s) in forward: zero_release ends a unit there",
                         engine->model->units[unit].name);
    ZERO_TRY(zero_engine_check_grads(engine, unit, stream));
    zero_engine_enter_unit(engine, "zero_grad_ready", unit);
    ZERO_TRY(end_use(engine, unit, stream));
    ZERO_TRY(zero_engine_await_next_params(engine, stream));
    ZERO_TRY(zero_engine_reduce(engine, unit, stream));
    if (engine->micro_step == engine->config.micro_steps - 1)
        ZERO_TRY(zero_offload_lend_activations(engine, unit, stream));
    advance(engine);
    return ZERO_OK;
}

/* ---- pointers ---- */

/* The unit's full parameters, which are resident. */
static const unsigned char *full_params(const zero_engine_t *engine, zero_unit_t unit)
{
    if (engine->plan.stage.shard_params)
        return zero_engine_private(engine, zero_unsharded_find(&engine->unsharded_params, unit)->offset);
    return zero_engine_window(engine, engine->plan.params + engine->layout.units[unit].flat_offset *
                                                                zero_dtype_size(engine->config.dtype));
}

static bool is_usable(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return engine && engine->acquired && tensor >= 0 && tensor < engine->model->n_tensors &&
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
    zero_grad_t grad = {.data = NULL, .dtype = engine ? engine->plan.stage.grad_dtype : ZERO_FP32, .accumulate = false};
    if (!is_usable(engine, tensor) || !zero_order_is_backward(engine->position, engine->model->n_units))
        return grad;
    int n_units = engine->model->n_units;
    const zero_tensor_decl_t *decl = &engine->model->tensors[tensor];
    uint64_t flat = zero_engine_grad_offset(engine, decl->owner);
    grad.data = zero_engine_window(engine, flat + engine->layout.tensor_offsets[tensor] * zero_dtype_size(grad.dtype));
    /* Backward meets the last user first. */
    bool begun_here = zero_order_unit(engine->position, n_units) != decl->last_user;
    grad.accumulate = begun_here || (engine->plan.stage.accumulate_locally && engine->micro_step > 0);
    return grad;
}

zero_status_t zero_engine_trace(zero_engine_t *engine, unsigned works, zero_trace_fn fn, void *user)
{
    ZERO_REQUIRE(engine);
    if (works != 0)
        ZERO_REQUIRE(fn);
    if ((works & ~ZERO_ALL_WORKS) != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_engine_trace: works 0x%x are not all of ZERO_ALL_WORKS", works);
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER, "zero_engine_trace after the first zero_begin");
    return zero_timeline_trace(engine->timeline, works, fn, user);
}

zero_memory_t zero_engine_memory(const zero_engine_t *engine)
{
    return engine ? engine->memory : (zero_memory_t){0};
}

zero_stats_t zero_engine_stats(const zero_engine_t *engine)
{
    return engine ? engine->stats : (zero_stats_t){0};
}

const char *zero_engine_transport(const zero_engine_t *engine)
{
    if (!engine)
        return "";
    return engine->comm->size == 1 ? "self" : engine->comm->ops->name;
}
