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
#include "zero/step/device_update.h"
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

    zero_device_update_t *device_update;
    zero_backward_update_t *backward_update; /* NULL: units are updated in the step */
    zero_step_rules_t rules;

    zero_tensor_groups_t *groups;
    uint32_t notice;                        /* zero_set_notice's */
    uint32_t notices[ZERO_STEPS_IN_FLIGHT]; /* being copied to the window */
    uint32_t notice_in_window;
};

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
    ZERO_TRY_GOTO(zero_device_update_create(context, &made->device_update), fail);
    ZERO_TRY_GOTO(zero_backward_update_create(context, offload, gradients, made->device_update, made->groups,
                                              &made->rules, &made->backward_update),
                  fail);
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
    zero_backward_update_destroy(update->backward_update);
    zero_device_update_destroy(update->device_update);
    zero_tensor_groups_destroy(update->groups);
    free(update);
}

/* ---- the step ---- */

zero_backward_update_t *zero_update_backward(const zero_update_t *update)
{
    return update->backward_update;
}

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

static zero_status_t update_units(zero_update_t *update, zero_unit_t first, zero_unit_t end, zero_stream_t stream)
{
    return zero_device_update_units(update->device_update, first, end,
                                    &zero_context_step_scratch(update->context)->scalars, stream);
}

/* Publishes the early units together, which have all been updated. */
static zero_status_t publish_early(zero_update_t *update, zero_stream_t stream)
{
    const zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    return n_early > 0 ? zero_parameters_publish_early(update->parameters, 0, n_early, stream) : ZERO_OK;
}

/* Updates all that is on the device with the caller's functions, one of them at least. */
static zero_status_t update_by_callers(zero_update_t *update, float lr, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN)
        ZERO_TRY(zero_own_update(context, update->groups, lr, stream));
    else
        ZERO_TRY(update_units(update, 0, context->layout.n_units, stream));
    return zero_own_hooks_updates(context) ? zero_own_updated(context, update->groups, lr, stream) : ZERO_OK;
}

/* The same, and then publishes. Ranks learn before that whether a function has failed on one of them. */
static zero_status_t update_with_own(zero_update_t *update, float lr, zero_stream_t stream)
{
    zero_own_step_t *own = &update->own_step;
    own->lr = lr;
    own->failure = ZERO_OK;
    ZERO_TRY(zero_muon_update_run(update->muon, stream));
    if (own->failure == ZERO_OK)
        own->failure = update_by_callers(update, lr, stream);
    ZERO_TRY(zero_comm_agree(update->context->host_comm, own->failure));
    return publish_early(update, stream);
}

static zero_status_t update_all(zero_update_t *update, float lr, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    if (context->config.optimizer == ZERO_OPTIMIZER_OWN || zero_own_hooks_updates(context))
        return update_with_own(update, lr, stream);
    ZERO_TRY(zero_muon_update_run(update->muon, stream));
    zero_unit_t n_early = zero_parameters_n_early_units(update->parameters);
    for (zero_unit_t unit = 0; unit < n_early; unit++) {
        ZERO_TRY(update_units(update, unit, unit + 1, stream));
        ZERO_TRY(zero_parameters_publish_early(update->parameters, unit, unit + 1, stream));
    }
    return update_units(update, n_early, context->layout.n_units, stream);
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
    return zero_backward_update_check_lr(update->backward_update, lr);
}

static zero_status_t decide_step(zero_update_t *update, float lr, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    return context->device->kernels->decide_step(
        &update->rules, lr, zero_context_private(context, context->plan.contributions), context->comm->size,
        &scratch->state, &scratch->scalars, zero_results_outcome(update->results), stream);
}

/* Decides the step, and updates what it updates. */
static zero_status_t decide_and_update(zero_update_t *update, float lr, zero_stream_t stream)
{
    const zero_adam_scalars_t *scalars = &zero_context_step_scratch(update->context)->scalars;
    ZERO_TRY(decide_step(update, lr, stream));
    ZERO_TRY(zero_tensor_groups_decide(update->groups, ZERO_ALL_UNITS, scalars, stream));
    ZERO_TRY(zero_offload_update(update->offload, stream));
    zero_parameters_begin_update(update->parameters);
    return update_all(update, lr, stream);
}

/* Updates the units that backward has left, and then decides the step: its result, and the next one's number. */
static zero_status_t finish_backward_update(zero_update_t *update, float lr, zero_stream_t stream)
{
    ZERO_TRY(zero_backward_update_finish(update->backward_update, stream));
    ZERO_TRY(decide_step(update, lr, stream));
    zero_parameters_begin_update(update->parameters);
    return publish_early(update, stream);
}

zero_status_t zero_update_step(zero_update_t *update, float lr, const double *local_loss, bool *weights_are_partial,
                               zero_stream_t stream)
{
    zero_context_t *context = update->context;
    int span = -1;
    ZERO_TRY(check_step(update, lr));
    zero_context_enter_step(context, lr);

    ZERO_TRY(zero_gradients_finish(update->gradients, stream));
    if (zero_hooks_see_reduced(context))
        ZERO_TRY(zero_comm_agree(context->host_comm, context->progress.hook_failure));
    ZERO_TRY(all_gather_contributions(update, lr, local_loss, stream));
    if (!update->backward_update) /* whose units have spans of their own */
        ZERO_TRY(zero_streams_begin_span(context, ZERO_WORK_UPDATE, -1, stream, &span));
    *weights_are_partial = true; /* until all of it has been queued: a function of the caller's may fail */
    ZERO_TRY(update->backward_update ? finish_backward_update(update, lr, stream)
                                     : decide_and_update(update, lr, stream));
    ZERO_TRY(zero_streams_end_span(context, span, stream));
    ZERO_TRY(zero_parameters_publish(update->parameters, stream));
    *weights_are_partial = false;
    return zero_results_end_step(update->results, stream);
}
