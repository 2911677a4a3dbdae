/* update.c - the end of a step: global norm, clipping, the optimizer on what this rank holds, new weights to every
 * rank. results.c waits for it.
 *
 * What must hold: every rank computes the same norm from the same numbers in the same order, so every rank clips, skips
 * and scales in the same way. Weights change only if the norm is finite. A shard is rewritten only when no peer may
 * still read it (the fence before the update), and read only when it is complete (the fence in
 * zero_parameters_publish). All of it is decided on the device.
 */
#include "zero/step/update.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"
#include "zero/step/gradients.h"
#include "zero/step/muon_update.h"
#include "zero/step/own_update.h"

struct zero_update {
    zero_context_t *context;
    zero_offload_t *offload;
    zero_parameters_t *parameters;
    zero_gradients_t *gradients;
    zero_results_t *results;
    zero_muon_update_t *muon; /* NULL: no matrix is updated whole */
    zero_own_step_t own_step; /* for the caller's optimizer */

    size_t n_segments;       /* of this rank's state on the device: in private memory, at plan.segments */
    size_t *segments_before; /* by early unit (parameters.h), and of them all: how many segments come before its own */
    zero_step_rules_t rules;

    zero_tensor_groups_t *groups;
    uint32_t notice;                        /* zero_set_notice's */
    uint32_t notices[ZERO_STEPS_IN_FLIGHT]; /* being copied to the window */
    uint32_t notice_in_window;
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

/* Returns where the state of a unit begins. */
static uint64_t state_begin(const zero_update_t *update, zero_unit_t unit)
{
    const zero_context_t *context = update->context;
    return unit < context->layout.n_units ? context->layout.units[unit].shard_offset : context->plan.state_elems;
}

static zero_status_t count_segments(zero_update_t *update, const zero_adam_segment_t *segments)
{
    zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    update->segments_before = calloc((size_t)n_early + 1, sizeof *update->segments_before);
    if (!update->segments_before)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    size_t n = 0;
    for (zero_unit_t unit = 0; unit <= n_early; unit++) {
        while (n < update->n_segments && segments[n].state < state_begin(update, unit))
            n++;
        update->segments_before[unit] = n;
    }
    return ZERO_OK;
}

static zero_status_t create_segments(zero_update_t *update)
{
    const zero_context_t *context = update->context;
    zero_adam_segment_t *segments = calloc((size_t)context->model->n_tensors, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d segments", context->model->n_tensors);
    update->n_segments = build_segments(context, segments);
    zero_status_t status = count_segments(update, segments);
    if (status == ZERO_OK)
        status = zero_device_copy(context->device, zero_context_private(context, context->plan.segments), segments,
                                  update->n_segments * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(segments);
    return status;
}

/* ---- creating ---- */

static void set_rules(zero_update_t *update)
{
    const zero_config_t *config = &update->context->config;
    update->rules = (zero_step_rules_t){
        .beta1 = zero_optimizer_of(config)->beta1(config),
        .beta2 = zero_optimizer_of(config)->beta2(config),
        .eps = config->eps,
        .grad_clip = config->grad_clip,
        .dynamic_loss_scale = config->dtype == ZERO_FP16,
        .loss_scale_window = (uint32_t)config->loss_scale_window,
        .loss_scale_hysteresis = (uint32_t)config->loss_scale_hysteresis,
    };
}

zero_status_t zero_update_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t *parameters,
                                 zero_gradients_t *gradients, zero_results_t *results, zero_update_t **update)
{
    zero_status_t status;
    zero_update_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    made->offload = offload;
    made->parameters = parameters;
    made->gradients = gradients;
    made->results = results;
    set_rules(made);
    ZERO_TRY_GOTO(zero_tensor_groups_create(context, ZERO_STEPS_IN_FLIGHT, &made->groups), fail);
    ZERO_TRY_GOTO(create_segments(made), fail);
    made->own_step = (zero_own_step_t){.context = context, .groups = made->groups};
    ZERO_TRY_GOTO(zero_muon_update_create(context, context->plan.muon.is_callers ? &zero_own_matrices : NULL,
                                          &made->own_step, &made->muon),
                  fail);
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
    zero_muon_update_destroy(update->muon);
    zero_tensor_groups_destroy(update->groups);
    free(update->segments_before);
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
    uint32_t *copied = &update->notices[update->context->progress.step % ZERO_STEPS_IN_FLIGHT];
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
    update->own_step.lr = lr;
    ZERO_TRY(zero_muon_update_run(update->muon, stream));
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN)
        ZERO_TRY(zero_own_update(context, update->groups, lr, stream));
    else
        ZERO_TRY(update_range(update, 0, update->n_segments, 0, context->plan.state_elems, stream));
    if (zero_own_hooks_updates(context))
        ZERO_TRY(zero_own_updated(context, update->groups, lr, stream));
    zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    return n_early > 0 ? zero_parameters_publish_early(update->parameters, 0, n_early, stream) : ZERO_OK;
}

static zero_status_t update_all(zero_update_t *update, float lr, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN || zero_own_hooks_updates(context))
        return update_with_own(update, lr, stream);
    ZERO_TRY(zero_muon_update_run(update->muon, stream));
    zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    const size_t *before = update->segments_before;
    for (zero_unit_t unit = 0; unit < n_early; unit++) {
        ZERO_TRY(update_range(update, before[unit], before[unit + 1] - before[unit], state_begin(update, unit),
                              state_begin(update, unit + 1), stream));
        ZERO_TRY(zero_parameters_publish_early(update->parameters, unit, unit + 1, stream));
    }
    return update_range(update, before[n_early], update->n_segments - before[n_early], state_begin(update, n_early),
                        context->plan.state_elems, stream);
}

static zero_status_t check_step(const zero_update_t *update, float lr)
{
    const zero_progress_t *progress = &update->context->progress;
    int micro_steps = update->context->config.micro_steps;
    if (progress->in_pass || progress->micro_step != micro_steps)
        return zero_fail(ZERO_ERROR_ORDER, "zero_step after %d of %d micro-steps%s", progress->micro_step, micro_steps,
                         progress->in_pass ? ", inside a pass" : "");
    ZERO_TRY(zero_results_check_room(update->results));
    if (!isfinite(lr))
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_step: the learning rate is %g; it must be finite", (double)lr);
    return ZERO_OK;
}

zero_status_t zero_update_step(zero_update_t *update, float lr, const double *local_loss, bool *weights_are_partial,
                               zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    zero_step_outcome_t *outcome = zero_results_outcome(update->results);
    int span;
    ZERO_TRY(check_step(update, lr));
    zero_context_enter_step(context, lr);

    ZERO_TRY(zero_gradients_finish(update->gradients, stream));
    if (zero_hooks_see_reduced(context))
        ZERO_TRY(zero_comm_agree(context->host_comm, context->progress.hook_failure));
    ZERO_TRY(all_gather_contributions(update, lr, local_loss, stream));
    ZERO_TRY(zero_streams_begin_span(context, ZERO_WORK_UPDATE, -1, stream, &span));
    ZERO_TRY(context->device->kernels->decide_step(
        &update->rules, lr, zero_context_private(context, context->plan.contributions), context->comm->size,
        &scratch->state, &scratch->scalars, outcome, stream));
    ZERO_TRY(zero_tensor_groups_decide(update->groups, stream));
    ZERO_TRY(zero_offload_update(update->offload, stream));
    *weights_are_partial = true; /* until all of it has been queued: a function of the caller's may fail */
    zero_parameters_begin_update(update->parameters);
    ZERO_TRY(update_all(update, lr, stream));
    ZERO_TRY(zero_streams_end_span(context, span, stream));
    ZERO_TRY(zero_parameters_publish(update->parameters, stream));
    *weights_are_partial = false;
    return zero_results_end_step(update->results, stream);
}
