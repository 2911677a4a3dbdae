/* step.c - the public functions about a step, and what checkpoints need of it. src/zero/step/ does the work. */
#include "zero/engine/engine.h"

#include "base/log.h"
#include "zero/engine/compare.h"

zero_status_t zero_step(zero_engine_t *engine, float lr, const double *local_loss, zero_stream_t stream)
{
    ZERO_REQUIRE(engine);
    const bool were_partial = engine->weights_are_partial;
    if (were_partial && engine->context.progress.micro_step == engine->context.config.micro_steps)
        return zero_engine_check_weights(engine, "zero_step"); /* it has failed before */
    zero_status_t status = zero_update_step(engine->update, lr, local_loss, &engine->weights_are_partial, stream);
    if (engine->weights_are_partial && !were_partial)
        engine->partial_weights_were_logged = false;
    return status;
}

zero_status_t zero_set_lr(zero_engine_t *engine, float lr)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_context_check_trains(&engine->context, "zero_set_lr"));
    return zero_backward_update_set_lr(zero_update_backward(engine->update), lr);
}

zero_status_t zero_step_wait(zero_engine_t *engine, zero_step_result_t *result)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(result);
    zero_log_set_rank(engine->context.host_comm->rank);
    bool was_cut_off = false;
    zero_status_t status = zero_results_wait(engine->results, result, &was_cut_off);
    if (was_cut_off) {
        engine->weights_are_partial = true;
        engine->partial_weights_were_logged = false;
    }
    return status;
}

/* The plan made room for several reductions a step, or for one. */
static zero_status_t check_micro_steps(const zero_engine_t *engine, int micro_steps)
{
    if (micro_steps < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_set_micro_steps: micro_steps %d: it must be at least 1",
                         micro_steps);
    if (micro_steps > 1 && engine->reduces_once)
        return zero_fail(ZERO_ERROR_USAGE,
                         "zero_set_micro_steps: micro_steps %d: the engine was created with micro_steps = 1, and its "
                         "memory is planned for that: create it with 2 or more",
                         micro_steps);
    return ZERO_OK;
}

zero_status_t zero_set_micro_steps(zero_engine_t *engine, int micro_steps)
{
    ZERO_REQUIRE(engine);
    zero_context_t *context = &engine->context;
    zero_comm_t *comm = context->host_comm;
    ZERO_TRY(zero_context_check_between_steps(&engine->context, "zero_set_micro_steps"));
    zero_context_enter(context, "zero_set_micro_steps");
    zero_status_t status = zero_comm_agree(comm, check_micro_steps(engine, micro_steps));
    if (status == ZERO_OK)
        status = zero_compare_number(comm, "micro_steps", micro_steps);
    if (status == ZERO_OK)
        context->config.micro_steps = micro_steps;
    return zero_comm_leave(comm, status);
}

/* Finds a tensor that has an optimizer. */
static zero_status_t check_trained(const zero_engine_t *engine, const char *call, zero_tensor_t tensor)
{
    const zero_model_t *model = engine->context.model;
    ZERO_TRY(zero_context_check_trains(&engine->context, call));
    if (tensor < 0 || tensor >= model->n_tensors)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s(tensor %d): there are %d tensors", call, tensor, model->n_tensors);
    if (model->tensors[tensor].frozen)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: %s is frozen: nothing updates it", call,
                         model->tensors[tensor].name);
    return ZERO_OK;
}

zero_status_t zero_set_group(zero_engine_t *engine, zero_tensor_t tensor, const zero_group_t *group)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(check_trained(engine, "zero_set_group", tensor));
    if (group)
        ZERO_REQUIRE_RESERVED(group);
    ZERO_TRY(zero_context_check_between_steps(&engine->context, "zero_set_group"));
    return zero_tensor_groups_set(zero_update_groups(engine->update), tensor, group);
}

zero_status_t zero_get_group(const zero_engine_t *engine, zero_tensor_t tensor, zero_group_t *group)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(group);
    ZERO_TRY(check_trained(engine, "zero_get_group", tensor));
    *group = zero_tensor_groups_get(zero_update_groups(engine->update), tensor);
    return ZERO_OK;
}

const float *zero_loss_scale(const zero_engine_t *engine)
{
    return engine ? zero_update_loss_scale(engine->update) : NULL;
}

void zero_set_notice(zero_engine_t *engine, uint32_t notice)
{
    if (engine)
        zero_update_set_notice(engine->update, notice);
}

uint64_t zero_get_adam_step(const zero_engine_t *engine)
{
    return engine ? zero_results_adam_step(engine->results) : 0;
}

zero_status_t zero_set_adam_step(zero_engine_t *engine, uint64_t adam_step)
{
    ZERO_REQUIRE(engine);
    const uint64_t most = INT64_MAX / 2; /* as of a checkpoint; the next one is a divisor's exponent */
    if (adam_step > most)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_set_adam_step: %llu: it can be 0 to %llu",
                         (unsigned long long)adam_step, (unsigned long long)most);
    return zero_results_set_adam_step(engine->results, adam_step);
}

/* ---- for checkpoints ---- */

uint64_t zero_engine_n_steps(const zero_engine_t *engine)
{
    return zero_results_n_steps(engine->results);
}

zero_status_t zero_engine_get_step_state(zero_engine_t *engine, const char *call, zero_step_state_t *state)
{
    ZERO_TRY(zero_context_check_trains(&engine->context, call));
    return zero_results_get_state(engine->results, call, state);
}

zero_status_t zero_engine_set_step_state(zero_engine_t *engine, const char *call, uint64_t n_steps,
                                         const zero_step_state_t *state)
{
    return zero_results_set_state(engine->results, call, n_steps, state);
}
