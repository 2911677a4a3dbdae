/* pass.c - one pass over the units: acquire, release, grad_ready, unused.
 *
 * What must hold: between acquire and release a unit's full parameters are resident and the same on every rank
 * (parameters.c). Between a backward acquire and grad_ready its full gradients have memory that nothing else uses; at
 * grad_ready they leave for their owners (gradients.c). The calls come in the declared order, so every rank issues the
 * same communication in the same order, and a call out of order is an error before anything is moved.
 */
#include "base/log.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/plan/order.h"

/* ---- the order ---- */

static bool is_backward(const zero_engine_t *engine)
{
    return zero_order_is_backward(engine->context.progress.position, engine->context.model->n_units);
}

/* Returns whether the unit at the current position has gradients to write. */
static bool has_grads(const zero_engine_t *engine)
{
    return is_backward(engine) && engine->context.progress.pass == ZERO_PASS_TRAIN;
}

static const char *direction(const zero_engine_t *engine)
{
    return is_backward(engine) ? "backward" : "forward";
}

static zero_status_t check_begin(const zero_engine_t *engine, zero_pass_t pass)
{
    const zero_progress_t *progress = &engine->context.progress;
    const zero_model_t *model = engine->context.model;
    int micro_steps = engine->context.config.micro_steps;
    if (progress->in_pass)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin inside a pass: unit %s (%s) has not been used yet",
                         model->units[zero_order_unit(progress->position, model->n_units)].name, direction(engine));
    if ((unsigned)pass > ZERO_PASS_INPUT_GRAD)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_begin: there is no pass %d", (int)pass);
    if (pass == ZERO_PASS_TRAIN)
        ZERO_TRY(zero_context_check_trains(&engine->context, "zero_begin of ZERO_PASS_TRAIN"));
    if (pass == ZERO_PASS_TRAIN && progress->micro_step == micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin after all %d micro-steps: zero_step must come first",
                         micro_steps);
    if (pass != ZERO_PASS_TRAIN && progress->micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "an %s pass after %d of a step's %d micro-steps: finish the step first",
                         pass == ZERO_PASS_EVAL ? "eval" : "input-grad", progress->micro_step, micro_steps);
    return ZERO_OK;
}

zero_status_t zero_begin(zero_engine_t *engine, zero_pass_t pass, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    zero_progress_t *progress = &engine->context.progress;
    zero_log_set_rank(engine->context.host_comm->rank);
    ZERO_TRY(check_begin(engine, pass));
    ZERO_TRY(zero_engine_check_weights(engine, "zero_begin"));
    if (pass == ZERO_PASS_TRAIN && progress->micro_step == engine->context.config.micro_steps - 1)
        ZERO_TRY(zero_backward_update_check_begin(zero_update_backward(engine->update)));
    if (!engine->started)
        ZERO_TRY(zero_offload_start(engine->offload, engine->user_blocks));
    if (pass == ZERO_PASS_TRAIN && progress->micro_step == 0)
        ZERO_TRY(zero_results_begin_step(engine->results, stream));
    engine->started = true;
    engine->acquired = false;
    progress->in_pass = true;
    progress->pass = pass;
    progress->position = 0;
    return ZERO_OK;
}

/* Checks that `call` on `unit` is what comes now. acquired: the unit must have been acquired. */
static zero_status_t check_order(const zero_engine_t *engine, const char *call, zero_unit_t unit, bool acquired)
{
    const zero_model_t *model = engine->context.model;
    const zero_progress_t *progress = &engine->context.progress;
    if (unit < 0 || unit >= model->n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s(unit %d): there are %d units", call, unit, model->n_units);
    if (!progress->in_pass)
        return zero_fail(ZERO_ERROR_ORDER, "%s(%s) outside a pass: call zero_begin first", call,
                         model->units[unit].name);
    zero_unit_t expected = zero_order_unit(progress->position, model->n_units);
    if (unit != expected || engine->acquired != acquired)
        return zero_fail(ZERO_ERROR_ORDER, "%s(%s): in %s, unit %s must be %s now", call, model->units[unit].name,
                         direction(engine), model->units[expected].name,
                         engine->acquired ? "released or its gradients declared ready" : "acquired");
    return ZERO_OK;
}

/* ---- a unit ---- */

zero_status_t zero_acquire(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    zero_context_t *context = &engine->context;
    ZERO_TRY(check_order(engine, "zero_acquire", unit, false));
    zero_context_enter_unit(context, "zero_acquire", unit);
    ZERO_TRY(zero_parameters_gather_ahead(engine->parameters, stream));
    int first = zero_order_first_flat(context->model, context->progress.position);
    for (int i = first; i < zero_model_n_flats(context->model, unit); i++)
        ZERO_TRY(zero_parameters_await(engine->parameters, zero_model_flat(context->model, unit, i), stream));
    if (has_grads(engine))
        ZERO_TRY(zero_gradients_prepare(engine->gradients, unit, stream));
    if (!is_backward(engine))
        ZERO_TRY(zero_offload_return_activations(engine->offload, unit, stream));
    engine->acquired = true;
    context->streams.compute_end = 0;
    if (has_grads(engine))
        ZERO_TRY(zero_engine_poison_grads(engine, unit, stream));
    return zero_streams_begin_span(context, ZERO_WORK_COMPUTE, unit, stream, &engine->compute_span);
}

/* Records the end of the unit's compute, which has been queued. */
static zero_status_t end_use(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_context_t *context = &engine->context;
    zero_streams_t *streams = &context->streams;
    ZERO_TRY(zero_streams_end_span(context, engine->compute_span, stream));
    if (context->plan.stage.shard_params || is_backward(engine)) {
        ZERO_TRY(zero_streams_record_timed(context, &streams->used[unit], stream));
        streams->compute_end = streams->used[unit];
    }
    return zero_parameters_release(engine->parameters, unit);
}

static void advance(zero_engine_t *engine)
{
    zero_progress_t *progress = &engine->context.progress;
    engine->acquired = false;
    progress->position++;
    if (progress->position < zero_order_n_positions(progress->pass, engine->context.model->n_units))
        return;
    progress->in_pass = false;
    /* Between passes the caller may queue work of its own, and its stream may wait for the host. */
    engine->context.streams.compute_end = 0;
    if (progress->pass == ZERO_PASS_TRAIN)
        progress->micro_step++;
}

zero_status_t zero_release(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_order(engine, "zero_release", unit, true));
    if (is_backward(engine))
        return zero_fail(ZERO_ERROR_ORDER, "zero_release(%s) in backward: zero_grad_ready ends a unit there",
                         engine->context.model->units[unit].name);
    ZERO_TRY(end_use(engine, unit, stream));
    advance(engine);
    return ZERO_OK;
}

/* Starts the reduction of the unit's gradients. In the step's last micro-step, offload may then borrow activations. */
static zero_status_t reduce(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    const zero_context_t *context = &engine->context;
    ZERO_TRY(zero_gradients_reduce(engine->gradients, unit, stream));
    if (context->progress.micro_step < context->config.micro_steps - 1)
        return ZERO_OK;
    return zero_offload_borrow_activations(engine->offload, unit, stream);
}

zero_status_t zero_grad_ready(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    zero_context_t *context = &engine->context;
    ZERO_TRY(check_order(engine, "zero_grad_ready", unit, true));
    if (!is_backward(engine))
        return zero_fail(ZERO_ERROR_ORDER, "zero_grad_ready(%s) in forward: zero_release ends a unit there",
                         context->model->units[unit].name);
    if (has_grads(engine))
        ZERO_TRY(zero_engine_check_grads(engine, unit, stream));
    zero_context_enter_unit(context, "zero_grad_ready", unit);
    ZERO_TRY(end_use(engine, unit, stream));
    ZERO_TRY(zero_parameters_await_next(engine->parameters, stream));
    const bool had_failed = context->progress.hook_failure != ZERO_OK;
    if (has_grads(engine))
        ZERO_TRY(reduce(engine, unit, stream));
    advance(engine);
    return had_failed ? ZERO_OK : context->progress.hook_failure;
}

/* Sets gradients to zero that the acquired unit must overwrite. To the others there is nothing to add. */
static zero_status_t clear_grads(const zero_engine_t *engine, zero_stream_t stream)
{
    zero_device_t *device = engine->context.device;
    const zero_model_t *model = engine->context.model;
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        const zero_grad_t grad = zero_grad(engine, t);
        if (grad.data && !grad.accumulate)
            ZERO_TRY(
                device->ops->clear(device, grad.data, model->tensors[t].n_elems * zero_dtype_size(grad.dtype), stream));
    }
    return ZERO_OK;
}

/* Takes part in all that the unit's use would: other ranks may be using it. */
zero_status_t zero_unused(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_order(engine, "zero_unused", unit, false));
    ZERO_TRY(zero_acquire(engine, unit, stream));
    if (!is_backward(engine))
        return zero_release(engine, unit, stream);
    ZERO_TRY(clear_grads(engine, stream));
    return zero_grad_ready(engine, unit, stream);
}

/* ---- tracing ---- */

zero_status_t zero_engine_trace(zero_engine_t *engine, unsigned works, zero_trace_fn fn, void *user)
{
    ZERO_REQUIRE(engine);
    if (works != 0)
        ZERO_REQUIRE(fn);
    if ((works & ~ZERO_ALL_WORKS) != 0)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_engine_trace: works 0x%x are not all of ZERO_ALL_WORKS", works);
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER, "zero_engine_trace after the first zero_begin");
    return zero_timeline_trace(engine->context.streams.timeline, works, fn, user);
}

/* ---- cancel ---- */
/* Ends a pass that the caller cannot finish, and the step that it belongs to: zero_cancel.
 *
 * What must hold afterwards is what holds after zero_step: no stream works, no peer reads what this rank will write, no
 * gradient of the cancelled step is in a sum or in the norm. Weights have not changed, so full parameters that have
 * been gathered stay valid; they are given up all the same, for one state to go on from. The exception is a step whose
 * update has failed halfway: its weights cannot be had back, and the engine refuses to use them until others are set.
 */

/* Ranks that have come to different places have other work under way: waiting for it might never end. */
static zero_status_t compare_places(const zero_context_t *context, bool acquired)
{
    const zero_progress_t *progress = &context->progress;
    const int64_t calls_of_pass = progress->in_pass ? 1 + 2 * (int64_t)progress->position + acquired : 0;
    const int64_t calls_before = (int64_t)progress->micro_step * (1 + 4 * (int64_t)context->model->n_units);
    ZERO_TRY(zero_compare_number(context->host_comm, "the pass under way (-1: none; zero_pass_t)",
                                 progress->in_pass ? (int64_t)progress->pass : -1));
    ZERO_TRY(zero_compare_number(context->host_comm, "the number of zero_all_to_all so far", progress->n_exchanges));
    return zero_compare_number(context->host_comm, "the number of calls in this step so far",
                               calls_before + calls_of_pass);
}

static zero_status_t cancel(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    zero_progress_t *progress = &context->progress;
    const bool has_begun = progress->in_pass || progress->micro_step > 0;
    ZERO_TRY(compare_places(context, engine->acquired));
    ZERO_TRY(zero_engine_quiesce(engine));
    if (zero_backward_update_has_begun(zero_update_backward(engine->update))) {
        engine->weights_are_partial = true;
        engine->partial_weights_were_logged = false;
    }
    zero_parameters_cancel(engine->parameters);
    ZERO_TRY(zero_gradients_cancel(engine->gradients));
    zero_offload_forget(engine->offload);
    zero_timeline_set_in_step(context->streams.timeline, false);
    context->streams.compute_end = 0;
    engine->acquired = false;
    progress->in_pass = false;
    progress->micro_step = 0;
    progress->hook_failure = ZERO_OK;
    return has_begun ? zero_engine_check_weights(engine, "zero_cancel") : ZERO_OK;
}

zero_status_t zero_cancel(zero_engine_t *engine)
{
    ZERO_REQUIRE(engine);
    zero_context_enter(&engine->context, "zero_cancel");
    return zero_comm_leave(engine->context.host_comm, cancel(engine));
}
