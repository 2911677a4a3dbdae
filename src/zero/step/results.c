/* results.c - the results of steps. The device decides about a step (zero_step_decide) and writes the outcome to host
 * memory; here the host waits for it, when the next step may long be queued.
 *
 * What must hold: a step's outcome and events are not used again before its result has been waited for, so at most
 * ZERO_STEPS_IN_FLIGHT steps are queued. The state that a step hands to the next is read and written while none is.
 */
#include "zero/step/results.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "zero/runtime/addresses.h"

/* Those in flight, and the one before the oldest: its end is the oldest's beginning. */
#define N_STEPS_TIMED (ZERO_STEPS_IN_FLIGHT + 1)

struct zero_results {
    zero_context_t *context;
    /* ZERO_STEPS_IN_FLIGHT, in pinned host memory. The device writes them itself: a copy would queue behind offload's.
     */
    zero_step_outcome_t *outcomes;
    struct {
        zero_event_t began, ended;
        bool follows;        /* queued while the step before was under way: it began when that ended */
        uint64_t pcie_bytes; /* that had been queued when the step was, since the engine was created */
    } timed[N_STEPS_TIMED];  /* step n at n % N_STEPS_TIMED */

    uint64_t n_steps_waited;
    uint64_t n_steps_replaced; /* steps so far when all weights were last set: what these left is gone */
    uint64_t adam_step;        /* updates so far, as of the last step waited for */
};

/* ---- creating ---- */

/* Writes the step's state from the host, outside steps. */
static zero_status_t write_state(zero_results_t *results, const zero_step_state_t *state)
{
    const zero_context_t *context = results->context;
    zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    ZERO_TRY(zero_device_synchronize(context->device));
    ZERO_TRY(zero_device_copy(context->device, &scratch->state, state, sizeof *state, context->streams.gather));
    return zero_device_synchronize(context->device);
}

static zero_status_t create_events(zero_results_t *results)
{
    zero_device_t *device = results->context->device;
    for (int i = 0; i < N_STEPS_TIMED; i++) {
        ZERO_TRY(device->ops->event_create(device, true, &results->timed[i].began));
        ZERO_TRY(device->ops->event_create(device, true, &results->timed[i].ended));
    }
    return ZERO_OK;
}

zero_status_t zero_results_create(zero_context_t *context, zero_results_t **results)
{
    zero_device_t *device = context->device;
    const zero_config_t *config = &context->config;
    const zero_step_state_t first = {.loss_scale = config->dtype == ZERO_FP16 ? config->initial_loss_scale : 1.0f};
    zero_status_t status;
    void *outcomes;
    zero_results_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    ZERO_TRY_GOTO(device->ops->host_alloc(device, ZERO_STEPS_IN_FLIGHT * sizeof *made->outcomes, &outcomes), fail);
    made->outcomes = outcomes;
    ZERO_TRY_GOTO(create_events(made), fail);
    ZERO_TRY_GOTO(write_state(made, &first), fail);
    *results = made;
    return ZERO_OK;
fail:
    zero_results_destroy(made);
    return status;
}

void zero_results_destroy(zero_results_t *results)
{
    if (!results)
        return;
    zero_device_t *device = results->context->device;
    for (int i = 0; i < N_STEPS_TIMED; i++) {
        device->ops->event_destroy(device, results->timed[i].began);
        device->ops->event_destroy(device, results->timed[i].ended);
    }
    if (results->outcomes)
        device->ops->host_free(device, results->outcomes);
    free(results);
}

/* ---- queueing ---- */

zero_status_t zero_results_begin_step(zero_results_t *results, zero_stream_t stream)
{
    zero_context_t *context = results->context;
    int at = (int)(context->progress.step % N_STEPS_TIMED);
    results->timed[at].follows = context->progress.step > results->n_steps_waited;
    zero_timeline_set_in_step(context->streams.timeline, true);
    return context->device->ops->event_record(context->device, results->timed[at].began, stream);
}

zero_status_t zero_results_check_room(const zero_results_t *results)
{
    if (results->context->progress.step - results->n_steps_waited == ZERO_STEPS_IN_FLIGHT)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step with %d results not waited for: call zero_step_wait",
                         ZERO_STEPS_IN_FLIGHT);
    return ZERO_OK;
}

zero_step_outcome_t *zero_results_outcome(const zero_results_t *results)
{
    return &results->outcomes[results->context->progress.step % ZERO_STEPS_IN_FLIGHT];
}

zero_status_t zero_results_end_step(zero_results_t *results, zero_stream_t stream)
{
    zero_context_t *context = results->context;
    zero_device_t *device = context->device;
    zero_progress_t *progress = &context->progress;
    ZERO_TRY(device->ops->event_record(device, results->timed[progress->step % N_STEPS_TIMED].ended, stream));
    results->timed[progress->step % N_STEPS_TIMED].pcie_bytes =
        context->stats.to_gpu_bytes + context->stats.to_host_bytes;
    zero_timeline_set_in_step(context->streams.timeline, false);
    progress->step++;
    progress->micro_step = 0;
    return ZERO_OK;
}

/* ---- waiting ---- */

/* Returns what was copied for offload from the end of the previous step's calls to the end of this one's. */
static uint64_t pcie_bytes(const zero_results_t *results)
{
    const uint64_t at = results->n_steps_waited - 1;
    const uint64_t before = (at + N_STEPS_TIMED - 1) % N_STEPS_TIMED;
    return results->timed[at % N_STEPS_TIMED].pcie_bytes - results->timed[before].pcie_bytes;
}

/* Returns whether all weights have been set since the step that was waited for last was queued. */
static bool was_replaced(const zero_results_t *results)
{
    return results->n_steps_waited <= results->n_steps_replaced;
}

/* Fails with the same numbers on every rank if the ranks' calls differed. The device compared them, since the host did
 * not wait. *was_cut_off: units had been updated by then, and not in the same way on every rank. */
static zero_status_t check_agreed(const zero_results_t *results, const zero_step_outcome_t *outcome, bool *was_cut_off)
{
    unsigned long long step = results->n_steps_waited;
    uint32_t engine = results->context->engine_number;
    if (outcome->odd_rank == 0)
        return ZERO_OK;
    *was_cut_off = results->context->plan.updates_in_backward && !was_replaced(results);
    const char *ending = results->context->plan.updates_in_backward
                             ? "update backward had updated weights by then: go on from the last checkpoint"
                             : "nothing was updated";
    if (outcome->odd_lr)
        return zero_fail_collective(
            ZERO_ERROR_MISMATCH,
            "ranks call different things: rank %u is in zero_step(engine %u, step %llu, lr %.9g), "
            "rank 0 is in zero_step(engine %u, step %llu, lr %.9g); %s",
            outcome->odd_rank, engine, step, (double)outcome->lr_of_odd, engine, step, (double)outcome->lr, ending);
    if (outcome->odd_groups)
        return zero_fail_collective(
            ZERO_ERROR_MISMATCH,
            "zero_step(engine %u, step %llu): rank %u has other settings of tensors than rank 0: "
            "make the same calls of zero_set_group on every rank; %s",
            engine, step, outcome->odd_rank, ending);
    return zero_fail_collective(
        ZERO_ERROR_MISMATCH,
        "ranks call different things: rank %u came to zero_step(engine %u, step %llu) by other calls "
        "than rank 0 (zero_begin, zero_acquire, zero_grad_ready, zero_all_to_all, zero_set_adam_step): another pass, "
        "unit, micro-step, number of bytes or step count; %s",
        outcome->odd_rank, engine, step, ending);
}

/* Waits for the oldest step that has not been waited for, and measures how long it took. */
static zero_status_t await_step(zero_results_t *results, double *step_ms)
{
    zero_context_t *context = results->context;
    zero_device_t *device = context->device;
    int at = (int)(results->n_steps_waited % N_STEPS_TIMED), before = (at + N_STEPS_TIMED - 1) % N_STEPS_TIMED;
    zero_event_t begin = results->timed[at].follows ? results->timed[before].ended : results->timed[at].began;
    zero_event_t end = results->timed[at].ended;
    char what[32];
    snprintf(what, sizeof what, "step %llu", (unsigned long long)results->n_steps_waited + 1);
    ZERO_TRY(zero_device_await(device, context->comm, end, what));
    return device->ops->event_elapsed_ms(device, begin, end, step_ms);
}

/* Fails if units behind the one whose gradient was the first that is not finite have been updated, and are still as
 * that step left them: then *was_cut_off. */
static zero_status_t check_not_cut_off(const zero_results_t *results, const zero_step_outcome_t *outcome,
                                       bool *was_cut_off)
{
    const zero_context_t *context = results->context;
    if (outcome->stopped_unit == 0 || was_replaced(results))
        return ZERO_OK;
    *was_cut_off = true;
    return zero_fail_collective(
        ZERO_ERROR_NONFINITE,
        "step %llu: the gradient of unit %s, or of one before it, is not finite. These units were left alone, but "
        "update backward had updated those behind them: go on from the last checkpoint, with a lower learning rate or "
        "other data, or with update step, which skips such steps",
        (unsigned long long)results->n_steps_waited, context->model->units[outcome->stopped_unit - 1].name);
}

zero_status_t zero_results_wait(zero_results_t *results, zero_step_result_t *result, bool *was_cut_off)
{
    zero_context_t *context = results->context;
    const zero_step_outcome_t *outcome = &results->outcomes[results->n_steps_waited % ZERO_STEPS_IN_FLIGHT];
    zero_exposed_t exposed;
    double step_ms;
    if (context->progress.step == results->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step_wait without a step to wait for");
    ZERO_TRY(await_step(results, &step_ms));
    results->n_steps_waited++;
    ZERO_TRY(zero_timeline_harvest(context->streams.timeline, results->n_steps_waited, &exposed));
    results->adam_step = outcome->adam_step;
    context->stats.exposed_comm_ms += exposed.comm_ms;
    ZERO_TRY(check_agreed(results, outcome, was_cut_off));
    *result = (zero_step_result_t){
        .step = results->n_steps_waited,
        .loss = outcome->loss,
        .grad_norm = outcome->grad_norm,
        .loss_scale = outcome->loss_scale,
        .skipped = outcome->skipped != 0,
        .notice = outcome->notice,
        .step_ms = step_ms,
        .exposed_comm_ms = exposed.comm_ms,
        .exposed_host_ms = exposed.host_ms,
        .pcie_bytes = pcie_bytes(results),
    };
    ZERO_TRY(check_not_cut_off(results, outcome, was_cut_off));
    if (outcome->skipped_in_row >= (uint32_t)context->config.max_skipped_steps)
        return zero_fail_collective(
            ZERO_ERROR_NONFINITE,
            "step %llu: gradients were not finite %u steps in a row; lower the learning rate or look "
            "at the data",
            (unsigned long long)result->step, outcome->skipped_in_row);
    return ZERO_OK;
}

/* ---- between steps ---- */

zero_status_t zero_results_check_no_step(const zero_results_t *results, const char *call)
{
    ZERO_TRY(zero_context_check_between_steps(results->context, call));
    if (results->context->progress.step != results->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "%s with a step under way: call zero_step_wait first", call);
    return ZERO_OK;
}

uint64_t zero_results_n_steps(const zero_results_t *results)
{
    return results->n_steps_waited;
}

uint64_t zero_results_adam_step(const zero_results_t *results)
{
    return results->adam_step;
}

zero_status_t zero_results_get_state(zero_results_t *results, const char *call, zero_step_state_t *state)
{
    const zero_context_t *context = results->context;
    const zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    ZERO_TRY(zero_results_check_no_step(results, call));
    ZERO_TRY(zero_device_synchronize(context->device));
    ZERO_TRY(zero_device_copy(context->device, state, &scratch->state, sizeof *state, context->streams.gather));
    return zero_device_synchronize(context->device);
}

zero_status_t zero_results_set_state(zero_results_t *results, const char *call, uint64_t n_steps,
                                     const zero_step_state_t *state)
{
    ZERO_TRY(zero_results_check_no_step(results, call));
    zero_context_t *context = results->context;
    context->progress.step = results->n_steps_waited = results->n_steps_replaced = n_steps;
    results->timed[(n_steps + N_STEPS_TIMED - 1) % N_STEPS_TIMED].pcie_bytes =
        context->stats.to_gpu_bytes + context->stats.to_host_bytes;
    results->adam_step = state->adam_step;
    return write_state(results, state);
}

zero_status_t zero_results_forget_stop(zero_results_t *results)
{
    static const uint32_t none = 0;
    const zero_context_t *context = results->context;
    if (!context->plan.updates_in_backward)
        return ZERO_OK;
    results->n_steps_replaced = context->progress.step;
    ZERO_TRY(zero_device_copy(context->device, &zero_context_step_scratch(context)->state.stopped_unit, &none,
                              sizeof none, context->streams.gather));
    return zero_device_synchronize(context->device);
}

/* The next step compares the ranks' numbers, with all else that they have done. */
zero_status_t zero_results_set_adam_step(zero_results_t *results, uint64_t adam_step)
{
    zero_comm_t *comm = results->context->comm;
    zero_step_state_t state;
    ZERO_TRY(zero_results_get_state(results, "zero_set_adam_step", &state));
    comm->paired = zero_hash_fold(comm->paired, &adam_step, sizeof adam_step);
    state.adam_step = adam_step;
    results->adam_step = adam_step;
    return write_state(results, &state);
}
