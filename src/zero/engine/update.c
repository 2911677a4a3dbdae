/* update.c - the end of a step: global norm, clipping, the optimizer on what this rank holds, new weights to every
 * rank.
 *
 * What must hold: every rank computes the same norm from the same numbers in the same order, so every rank clips, skips
 * and scales alike. Weights change only if the norm is finite. A shard is rewritten only when no peer may still read it
 * (the fence before the update), and read only when it is complete (the fence in zero_parameters_publish). All of it is
 * decided on the device: the host learns the result in zero_update_wait, when the next step may long be queued.
 */
#include "zero/engine/update.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/engine/own_update.h"
#include "zero/muon/muon_update.h"
#include "zero/optimizer/optimizer.h"
#include "zero/runtime/addresses.h"

#define MAX_STEPS_IN_FLIGHT 2
/* Those, and the one before the oldest: its end is the oldest's beginning. */
#define N_STEPS_TIMED (MAX_STEPS_IN_FLIGHT + 1)

struct zero_update {
    zero_context_t *context;
    zero_offload_t *offload;
    zero_parameters_t *parameters;
    zero_gradients_t *gradients;
    zero_muon_update_t *muon; /* NULL: no matrix is updated whole */

    size_t n_segments;       /* of this rank's state on the device: in private memory, at plan.segments */
    size_t n_early_segments; /* the first of them: of the early units (parameters.h) */
    zero_step_rules_t rules;
    /* MAX_STEPS_IN_FLIGHT, in pinned host memory. The device writes them itself: a copy would queue behind offload's.
     */
    zero_step_outcome_t *outcomes;

    zero_tensor_groups_t *groups;
    uint32_t notice;                       /* zero_set_notice's */
    uint32_t notices[MAX_STEPS_IN_FLIGHT]; /* being copied to the window */
    uint32_t notice_in_window;

    struct {
        zero_event_t began, ended;
        bool follows;       /* queued while the step before was under way: it began when that ended */
    } timed[N_STEPS_TIMED]; /* step n at n % N_STEPS_TIMED */

    uint64_t n_steps_waited;
    uint64_t adam_step; /* updates so far, as of the last step waited for */
};

/* ---- what the optimizer updates ---- */

static int by_state(const void *a, const void *b)
{
    uint64_t at_a = ((const zero_adam_segment_t *)a)->state, at_b = ((const zero_adam_segment_t *)b)->state;
    return (at_a > at_b) - (at_a < at_b);
}

/* Writes one segment per tensor that is updated by elements and whose state is on the device, and returns how many.
 * Padding between tensors is in none of them and stays zero. */
static size_t build_segments(const zero_context_t *context, zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++)
        if (!zero_plan_is_offloaded(&context->plan, context->model->tensors[t].owner) &&
            !zero_muon_takes(&context->config, &context->model->tensors[t]))
            n += zero_context_segment(context, t, &segments[n]);
    qsort(segments, n, sizeof *segments, by_state);
    return n;
}

/* Returns where the state of the early units ends. */
static uint64_t early_end(const zero_update_t *update)
{
    const zero_context_t *context = update->context;
    zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    return n_early < context->layout.n_units ? context->layout.units[n_early].shard_offset : context->plan.state_elems;
}

static zero_status_t create_segments(zero_update_t *update)
{
    const zero_context_t *context = update->context;
    zero_adam_segment_t *segments = calloc((size_t)context->model->n_tensors, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d segments", context->model->n_tensors);
    update->n_segments = build_segments(context, segments);
    while (update->n_early_segments < update->n_segments &&
           segments[update->n_early_segments].state < early_end(update))
        update->n_early_segments++;
    zero_status_t status = zero_device_copy(context->device, zero_context_private(context, context->plan.segments),
                                            segments, update->n_segments * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(segments);
    return status;
}

/* ---- creating ---- */

/* Writes the step's state from the host, outside steps. */
static zero_status_t write_state(zero_update_t *update, const zero_step_state_t *state)
{
    const zero_context_t *context = update->context;
    zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    ZERO_TRY(zero_device_synchronize(context->device));
    ZERO_TRY(zero_device_copy(context->device, &scratch->state, state, sizeof *state, context->streams.gather));
    return zero_device_synchronize(context->device);
}

static zero_status_t create_rules(zero_update_t *update)
{
    const zero_config_t *config = &update->context->config;
    bool is_fp16 = config->dtype == ZERO_FP16;
    update->rules = (zero_step_rules_t){
        .beta1 = zero_optimizer_of(config)->beta1(config),
        .beta2 = zero_optimizer_of(config)->beta2(config),
        .eps = config->eps,
        .grad_clip = config->grad_clip,
        .dynamic_loss_scale = is_fp16,
        .loss_scale_window = (uint32_t)config->loss_scale_window,
        .loss_scale_hysteresis = (uint32_t)config->loss_scale_hysteresis,
    };
    return write_state(update, &(zero_step_state_t){.loss_scale = is_fp16 ? config->initial_loss_scale : 1.0f});
}

static zero_status_t create_events(zero_update_t *update)
{
    zero_device_t *device = update->context->device;
    for (int i = 0; i < N_STEPS_TIMED; i++) {
        ZERO_TRY(device->ops->event_create(device, true, &update->timed[i].began));
        ZERO_TRY(device->ops->event_create(device, true, &update->timed[i].ended));
    }
    return ZERO_OK;
}

zero_status_t zero_update_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t *parameters,
                                 zero_gradients_t *gradients, zero_update_t **update)
{
    zero_device_t *device = context->device;
    zero_status_t status;
    void *outcomes;
    zero_update_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    made->offload = offload;
    made->parameters = parameters;
    made->gradients = gradients;
    ZERO_TRY_GOTO(device->ops->host_alloc(device, MAX_STEPS_IN_FLIGHT * sizeof *made->outcomes, &outcomes), fail);
    made->outcomes = outcomes;
    ZERO_TRY_GOTO(zero_tensor_groups_create(context, MAX_STEPS_IN_FLIGHT, &made->groups), fail);
    ZERO_TRY_GOTO(create_events(made), fail);
    ZERO_TRY_GOTO(create_segments(made), fail);
    ZERO_TRY_GOTO(create_rules(made), fail);
    ZERO_TRY_GOTO(zero_muon_update_create(context, &made->muon), fail);
    *update = made;
    return ZERO_OK;
fail:
    zero_update_destroy(made);
    return status;
}

void zero_update_destroy(zero_update_t *update)
{
    if (!update)
        return;
    zero_device_t *device = update->context->device;
    for (int i = 0; i < N_STEPS_TIMED; i++) {
        device->ops->event_destroy(device, update->timed[i].began);
        device->ops->event_destroy(device, update->timed[i].ended);
    }
    if (update->outcomes)
        device->ops->host_free(device, update->outcomes);
    zero_muon_update_destroy(update->muon);
    zero_tensor_groups_destroy(update->groups);
    free(update);
}

/* ---- the step ---- */

zero_tensor_groups_t *zero_update_groups(const zero_update_t *update)
{
    return update->groups;
}

const float *zero_update_loss_scale(const zero_update_t *update)
{
    return &zero_context_step_scratch(update->context)->state.loss_scale;
}

void zero_update_set_notice(zero_update_t *update, uint32_t notice)
{
    update->notice = notice;
}

/* Copies the notice only if it has changed, so that most steps need no copy. */
static zero_status_t write_notice(zero_update_t *update, uint32_t *in_window, zero_stream_t stream)
{
    uint32_t *copied = &update->notices[update->context->progress.step % MAX_STEPS_IN_FLIGHT];
    if (update->notice == update->notice_in_window)
        return ZERO_OK;
    *copied = update->notice_in_window = update->notice;
    return zero_device_copy(update->context->device, in_window, copied, sizeof *copied, stream);
}

/* Writes this rank's sum of squares, loss, notice and what ranks must agree on to the window, and gathers all ranks',
 * in rank order. The fence between the two also says that every rank has gathered what it needed of this step's
 * weights. */
static zero_status_t all_gather_contributions(zero_update_t *update, float lr, const double *local_loss,
                                              zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_device_t *device = context->device;
    zero_comm_t *comm = context->comm;
    const zero_arena_plan_t *plan = &context->plan;
    zero_contribution_t *mine = (void *)zero_context_window(context, plan->contribution);
    const zero_agreed_t agreed = {.calls = comm->paired, .groups = zero_tensor_groups_take(update->groups), .lr = lr};
    ZERO_TRY(device->kernels->contribute(&zero_context_step_scratch(context)->norm, &agreed, mine, stream));
    ZERO_TRY(zero_device_copy(device, &mine->loss,
                              local_loss ? local_loss : &zero_context_step_scratch(context)->no_loss, sizeof mine->loss,
                              stream));
    ZERO_TRY(write_notice(update, &mine->notice, stream));
    ZERO_TRY(zero_streams_fence(context, stream));
    return comm->ops->all_gather(comm, ZERO_LANE_STEP, &context->window, zero_comm_all(comm), plan->contribution, 0,
                                 zero_context_private(context, plan->contributions), sizeof *mine, stream);
}

/* Runs the optimizer over segments first, first + 1 ..., which lie in [begin, end) of the state. */
static zero_status_t update_range(zero_update_t *update, size_t first, size_t n_segments, uint64_t begin, uint64_t end,
                                  zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const zero_arena_plan_t *plan = &context->plan;
    zero_dtype_t dtype = context->config.dtype;
    const zero_adam_segment_t *segments = zero_context_private(context, plan->segments);
    zero_adam_t adam = {
        .param_dtype = dtype,
        .param = zero_context_params(context),
        .master_lo = dtype == ZERO_FP32 ? NULL : zero_context_private(context, plan->master_lo),
        .m = zero_context_private(context, plan->m),
        .v = plan->n_arrays > 1 ? zero_context_private(context, plan->v) : NULL,
        .grad = zero_context_reduced_grads(context),
        .segments = segments + first,
        .n_segments = n_segments,
        .state_begin = begin,
        .state_end = end,
        .scalars = &zero_context_step_scratch(context)->scalars,
        .by_tensor = context->by_tensor,
    };
    if (n_segments == 0)
        return ZERO_OK;
    return zero_optimizer_of(&context->config)->update(context->device->kernels, &adam, stream);
}

/* Updates all that is on the device with the caller's functions, one of them at least, and then publishes. */
static zero_status_t update_with_own(zero_update_t *update, float lr, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN) {
        ZERO_TRY(zero_own_update(context, update->groups, lr, stream));
    } else {
        ZERO_TRY(zero_muon_update_run(update->muon, stream));
        ZERO_TRY(update_range(update, 0, update->n_segments, 0, context->plan.state_elems, stream));
    }
    if (zero_own_hooks_updates(context))
        ZERO_TRY(zero_own_updated(context, update->groups, lr, stream));
    return zero_parameters_n_early_units(update->parameters) > 0
               ? zero_parameters_publish_early(update->parameters, stream)
               : ZERO_OK;
}

static zero_status_t update_all(zero_update_t *update, float lr, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN || zero_own_hooks_updates(context))
        return update_with_own(update, lr, stream);
    ZERO_TRY(zero_muon_update_run(update->muon, stream));
    size_t n_early = update->n_early_segments;
    uint64_t split = early_end(update);
    ZERO_TRY(update_range(update, 0, n_early, 0, split, stream));
    if (zero_parameters_n_early_units(update->parameters) > 0)
        ZERO_TRY(zero_parameters_publish_early(update->parameters, stream));
    return update_range(update, n_early, update->n_segments - n_early, split, context->plan.state_elems, stream);
}

zero_status_t zero_update_begin_step(zero_update_t *update, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    int at = (int)(context->progress.step % N_STEPS_TIMED);
    update->timed[at].follows = context->progress.step > update->n_steps_waited;
    zero_timeline_set_in_step(context->streams.timeline, true);
    return context->device->ops->event_record(context->device, update->timed[at].began, stream);
}

static zero_status_t check_step(const zero_update_t *update, float lr)
{
    const zero_progress_t *progress = &update->context->progress;
    int micro_steps = update->context->config.micro_steps;
    if (progress->in_pass || progress->micro_step != micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step after %d of %d micro-steps%s", progress->micro_step, micro_steps,
                         progress->in_pass ? ", inside a pass" : "");
    if (progress->step - update->n_steps_waited == MAX_STEPS_IN_FLIGHT)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step with %d results not waited for: call zero_step_wait",
                         MAX_STEPS_IN_FLIGHT);
    if (!isfinite(lr))
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_step: the learning rate is %g; it must be finite", (double)lr);
    return ZERO_OK;
}

zero_status_t zero_update_step(zero_update_t *update, float lr, const double *local_loss, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_progress_t *progress = &context->progress;
    zero_device_t *device = context->device;
    zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    zero_step_outcome_t *outcome = &update->outcomes[progress->step % MAX_STEPS_IN_FLIGHT];
    int span;
    ZERO_TRY(check_step(update, lr));
    zero_context_enter_step(context, lr);

    ZERO_TRY(zero_gradients_finish(update->gradients, stream));
    ZERO_TRY(all_gather_contributions(update, lr, local_loss, stream));
    ZERO_TRY(zero_streams_begin_span(context, ZERO_WORK_UPDATE, -1, stream, &span));
    ZERO_TRY(device->kernels->decide_step(&update->rules, lr,
                                          zero_context_private(context, context->plan.contributions),
                                          context->comm->size, &scratch->state, &scratch->scalars, outcome, stream));
    ZERO_TRY(zero_tensor_groups_decide(update->groups, stream));
    ZERO_TRY(zero_offload_update(update->offload, stream));
    ZERO_TRY(update_all(update, lr, stream));
    ZERO_TRY(zero_streams_end_span(context, span, stream));
    ZERO_TRY(zero_parameters_publish(update->parameters, stream));
    ZERO_TRY(device->ops->event_record(device, update->timed[progress->step % N_STEPS_TIMED].ended, stream));
    zero_timeline_set_in_step(context->streams.timeline, false);
    progress->step++;
    progress->micro_step = 0;
    return ZERO_OK;
}

/* ---- its result ---- */

/* Fails with the same numbers on every rank if the ranks' calls differed. The device compared them, since the host did
 * not wait. */
static zero_status_t check_agreed(const zero_update_t *update, const zero_step_outcome_t *outcome)
{
    unsigned long long step = update->n_steps_waited;
    uint32_t engine = update->context->engine_number;
    if (outcome->odd_rank == 0)
        return ZERO_OK;
    if (outcome->odd_lr)
        return zero_fail_alike(ZERO_ERROR_MISMATCH,
                               "ranks call different things: rank %u is in zero_step(engine %u, step %llu, lr %.9g), "
                               "rank 0 is in zero_step(engine %u, step %llu, lr %.9g); nothing was updated",
                               outcome->odd_rank, engine, step, (double)outcome->lr_of_odd, engine, step,
                               (double)outcome->lr);
    if (outcome->odd_groups)
        return zero_fail_alike(ZERO_ERROR_MISMATCH,
                               "zero_step(engine %u, step %llu): rank %u has other settings of tensors than rank 0: "
                               "make the same calls of zero_set_group on every rank; nothing was updated",
                               engine, step, outcome->odd_rank);
    return zero_fail_alike(
        ZERO_ERROR_MISMATCH,
        "ranks call different things: rank %u came to zero_step(engine %u, step %llu) by other calls "
        "than rank 0 (zero_begin, zero_acquire, zero_grad_ready): another pass, unit or micro-step; "
        "nothing was updated",
        outcome->odd_rank, engine, step);
}

/* Waits for the oldest step that has not been waited for, and measures how long it took. */
static zero_status_t await_step(zero_update_t *update, double *step_ms)
{
    zero_context_t *context = update->context;
    zero_device_t *device = context->device;
    int at = (int)(update->n_steps_waited % N_STEPS_TIMED), before = (at + N_STEPS_TIMED - 1) % N_STEPS_TIMED;
    zero_event_t begin = update->timed[at].follows ? update->timed[before].ended : update->timed[at].began;
    zero_event_t end = update->timed[at].ended;
    char what[32];
    snprintf(what, sizeof what, "step %llu", (unsigned long long)update->n_steps_waited + 1);
    ZERO_TRY(zero_device_await(device, context->comm, end, what));
    return device->ops->event_elapsed_ms(device, begin, end, step_ms);
}

zero_status_t zero_update_wait(zero_update_t *update, zero_step_result_t *result)
{
    zero_context_t *context = update->context;
    const zero_step_outcome_t *outcome = &update->outcomes[update->n_steps_waited % MAX_STEPS_IN_FLIGHT];
    double exposed_ms, step_ms;
    if (context->progress.step == update->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step_wait without a step to wait for");
    ZERO_TRY(await_step(update, &step_ms));
    update->n_steps_waited++;
    ZERO_TRY(zero_timeline_harvest(context->streams.timeline, update->n_steps_waited, &exposed_ms));
    update->adam_step = outcome->adam_step;
    context->stats.exposed_comm_ms += exposed_ms;
    ZERO_TRY(check_agreed(update, outcome));
    *result = (zero_step_result_t){
        .step = update->n_steps_waited,
        .loss = outcome->loss,
        .grad_norm = outcome->grad_norm,
        .loss_scale = outcome->loss_scale,
        .skipped = outcome->skipped != 0,
        .notice = outcome->notice,
        .step_ms = step_ms,
        .exposed_comm_ms = exposed_ms,
    };
    if (outcome->skipped_in_row >= (uint32_t)context->config.max_skipped_steps)
        return zero_fail_alike(
            ZERO_ERROR_NONFINITE,
            "step %llu: gradients were not finite %u steps in a row; lower the learning rate or look "
            "at the data",
            (unsigned long long)result->step, outcome->skipped_in_row);
    return ZERO_OK;
}

/* ---- between steps ---- */

zero_status_t zero_update_check_between_steps(const zero_update_t *update, const char *call)
{
    if (update->context->progress.in_pass || update->context->progress.micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "%s inside a step: finish it first", call);
    return ZERO_OK;
}

zero_status_t zero_update_check_trains(const zero_update_t *update, const char *call)
{
    if (update->context->config.forward_only)
        return zero_fail(ZERO_ERROR_ORDER, "%s: the engine is forward_only, it has parameters alone", call);
    return ZERO_OK;
}

zero_status_t zero_update_check_no_step(const zero_update_t *update, const char *call)
{
    ZERO_TRY(zero_update_check_between_steps(update, call));
    if (update->context->progress.step != update->n_steps_waited)
        return zero_fail(ZERO_ERROR_ORDER, "%s with a step under way: call zero_step_wait first", call);
    return ZERO_OK;
}

uint64_t zero_update_n_steps(const zero_update_t *update)
{
    return update->n_steps_waited;
}

uint64_t zero_update_adam_step(const zero_update_t *update)
{
    return update->adam_step;
}

zero_status_t zero_update_get_state(zero_update_t *update, const char *call, zero_step_state_t *state)
{
    const zero_context_t *context = update->context;
    const zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    ZERO_TRY(zero_update_check_no_step(update, call));
    ZERO_TRY(zero_device_synchronize(context->device));
    ZERO_TRY(zero_device_copy(context->device, state, &scratch->state, sizeof *state, context->streams.gather));
    return zero_device_synchronize(context->device);
}

zero_status_t zero_update_set_state(zero_update_t *update, const char *call, uint64_t n_steps,
                                    const zero_step_state_t *state)
{
    ZERO_TRY(zero_update_check_no_step(update, call));
    update->context->progress.step = update->n_steps_waited = n_steps;
    update->adam_step = state->adam_step;
    return write_state(update, state);
}

zero_status_t zero_update_set_adam_step(zero_update_t *update, uint64_t adam_step)
{
    zero_step_state_t state;
    ZERO_TRY(zero_update_get_state(update, "zero_set_adam_step", &state));
    state.adam_step = adam_step;
    update->adam_step = adam_step;
    return write_state(update, &state);
}
