/* backward_update.c - see backward_update.h.
 *
 * A unit must be left alone if any rank's part of its gradient is not finite. One rank sees that at once, and updates
 * right behind the sum. Several tell each other: each writes how many of its sums so far are not finite to the window,
 * and the fence that publishes the gradients of a later unit publishes that, too. So no fence is added, and nothing
 * waits. C, B, A, Z are units in the order of backward:
 *
 *     caller's stream | backward B | sum C, count | backward A ........ | sum B, count | backward Z .... | update C,
 * sum A reduce stream   |            | fence, all-to-all B |              | fence A, counts of C, all-to-all A |
 *
 * A buffer of reduced gradients is overwritten three units later, behind its unit's update. The counts grow and are
 * never reset within a step, so those of C speak for all units before it, too. The last units have no later fence: the
 * contributions of all ranks to the step, which have the same counts, take its place.
 *
 * What must hold: a unit's weights are in no rank's use once every rank has published its gradients, so they can be
 * rewritten before the step's end. The next pass sees them behind the fence of zero_parameters_publish.
 */
#include "zero/step/backward_update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* Units that are summed and not updated: two, and the one that is summed next. */
#define MAX_PENDING ZERO_MAX_GRAD_TURNS

typedef struct pending {
    zero_unit_t unit;
    uint64_t number; /* among the units that were ever summed: its counts are in slot number % ZERO_MAX_GRAD_TURNS */
} pending_t;

struct zero_backward_update {
    zero_context_t *context;
    zero_offload_t *offload;
    zero_device_update_t *device_update;
    zero_tensor_groups_t *groups;
    zero_step_rules_t rules;
    float lr;
    bool lr_is_set, has_begun;      /* in the step at hand */
    pending_t pending[MAX_PENDING]; /* oldest first */
    int n_pending;
    int n_counted; /* of them: all ranks' counts are here, or on their way in the reduce stream */
    uint64_t n_summed;
};

/* ---- one unit ---- */

/* Decides by counts that are on the device: `stride` words apart. Scalars are the unit's own, since those of the unit
 * before may still be read in offload's stream. */
static zero_status_t decide(zero_backward_update_t *update, zero_unit_t unit, const uint64_t *counts, size_t stride,
                            zero_stream_t stream)
{
    zero_context_t *context = update->context;
    zero_adam_scalars_t *scalars = zero_context_unit_scalars(context, unit);
    (void)zero_tensor_groups_take(update->groups);
    ZERO_TRY(context->device->kernels->decide_unit(&update->rules, update->lr, counts, stride, context->comm->size,
                                                   (uint32_t)unit, &zero_context_step_scratch(context)->state, scalars,
                                                   stream));
    return zero_tensor_groups_decide(update->groups, unit, scalars, stream);
}

static zero_status_t update_unit(zero_backward_update_t *update, zero_unit_t unit, zero_stream_t stream)
{
    zero_context_t *context = update->context;
    int span;
    update->has_begun = true;
    if (zero_plan_is_offloaded(&context->plan, unit))
        return zero_offload_update_unit(update->offload, unit, stream);
    ZERO_TRY(zero_streams_begin_span(context, ZERO_WORK_UPDATE, unit, stream, &span));
    ZERO_TRY(zero_device_update_units(update->device_update, unit, unit + 1, zero_context_unit_scalars(context, unit),
                                      stream));
    return zero_streams_end_span(context, span, stream);
}

/* Returns where the counts of all ranks, or this rank's own in the window, are. */
static uint64_t *gathered_counts(const zero_context_t *context, uint64_t number)
{
    uint64_t *counts = zero_context_private(context, context->plan.nonfinites);
    return counts + number % ZERO_MAX_GRAD_TURNS * (uint64_t)context->comm->size;
}

static uint64_t own_count(const zero_context_t *context, uint64_t number)
{
    return context->plan.nonfinite + number % ZERO_MAX_GRAD_TURNS * sizeof(uint64_t);
}

/* Decides the oldest n pending units, all by the same counts, which are on the device, and updates them. */
static zero_status_t update_oldest(zero_backward_update_t *update, int n, const uint64_t *counts, size_t stride,
                                   zero_stream_t stream)
{
    if (n == 0)
        return ZERO_OK;
    for (int i = 0; i < n; i++) {
        ZERO_TRY(decide(update, update->pending[i].unit, counts, stride, stream));
        ZERO_TRY(update_unit(update, update->pending[i].unit, stream));
    }
    update->n_pending -= n;
    update->n_counted = 0;
    memmove(update->pending, update->pending + n, (size_t)update->n_pending * sizeof *update->pending);
    return ZERO_OK;
}

/* ---- what gradients call in the last micro-step ---- */

/* A later unit's fence has passed in `transfer_stream`: gathers the counts of the units that were summed before it. The
 * newest was summed later, or at the same time. */
static zero_status_t fenced(void *user, zero_stream_t transfer_stream)
{
    zero_backward_update_t *update = user;
    zero_context_t *context = update->context;
    zero_comm_t *comm = context->comm;
    if (update->n_pending < 2 || update->n_counted == update->n_pending - 1)
        return ZERO_OK;
    update->n_counted = update->n_pending - 1;
    const uint64_t number = update->pending[update->n_counted - 1].number;
    return comm->ops->all_gather(comm, ZERO_LANE_REDUCE, &context->window, zero_comm_all(comm),
                                 own_count(context, number), 0, gathered_counts(context, number), sizeof(uint64_t),
                                 transfer_stream);
}

/* Updates the units whose counts are here: `stream` has waited for the transfer behind them. */
static zero_status_t before_sum(void *user, zero_stream_t stream)
{
    zero_backward_update_t *update = user;
    if (update->n_counted == 0)
        return ZERO_OK;
    const uint64_t number = update->pending[update->n_counted - 1].number;
    return update_oldest(update, update->n_counted, gathered_counts(update->context, number), 1, stream);
}

static zero_status_t after_sum(void *user, zero_unit_t unit, zero_stream_t stream)
{
    zero_backward_update_t *update = user;
    zero_context_t *context = update->context;
    const uint64_t *count = &zero_context_step_scratch(context)->norm.words[ZERO_NORM_DIGITS];
    if (context->comm->size == 1) {
        ZERO_TRY(decide(update, unit, count, 1, stream));
        return update_unit(update, unit, stream);
    }
    ZERO_ASSERT(update->n_pending < MAX_PENDING);
    const pending_t pending = {unit, update->n_summed++};
    update->pending[update->n_pending++] = pending;
    return zero_device_copy(context->device, zero_context_window(context, own_count(context, pending.number)), count,
                            sizeof *count, stream);
}

static void cancel(void *user)
{
    zero_backward_update_t *update = user;
    update->n_pending = update->n_counted = 0;
    update->lr_is_set = update->has_begun = false;
}

/* ---- the step ---- */

zero_status_t zero_backward_update_create(zero_context_t *context, zero_offload_t *offload, zero_gradients_t *gradients,
                                          zero_device_update_t *device_update, zero_tensor_groups_t *groups,
                                          const zero_step_rules_t *rules, zero_backward_update_t **update)
{
    *update = NULL;
    if (!context->plan.updates_in_backward)
        return ZERO_OK;
    zero_backward_update_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    *made = (zero_backward_update_t){
        .context = context, .offload = offload, .device_update = device_update, .groups = groups, .rules = *rules};
    zero_gradients_call(
        gradients,
        (zero_sum_calls_t){
            .fenced = fenced, .before_sum = before_sum, .after_sum = after_sum, .cancel = cancel, .user = made});
    *update = made;
    return ZERO_OK;
}

void zero_backward_update_destroy(zero_backward_update_t *update)
{
    free(update);
}

zero_status_t zero_backward_update_set_lr(zero_backward_update_t *update, float lr)
{
    if (!update)
        return zero_fail(ZERO_ERROR_USAGE, "zero_set_lr with update step: zero_step alone sets the learning rate");
    if (!isfinite(lr))
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_set_lr: the learning rate is %g; it must be finite", (double)lr);
    if (update->has_begun || update->n_pending > 0)
        return zero_fail(ZERO_ERROR_ORDER, "zero_set_lr after the backward pass that updates has begun");
    update->lr = lr;
    update->lr_is_set = true;
    return ZERO_OK;
}

zero_status_t zero_backward_update_check_begin(const zero_backward_update_t *update)
{
    if (update && !update->lr_is_set)
        return zero_fail(ZERO_ERROR_ORDER, "zero_begin of a step's last micro-step with update backward: call "
                                           "zero_set_lr before it");
    return ZERO_OK;
}

zero_status_t zero_backward_update_check_lr(const zero_backward_update_t *update, float lr)
{
    if (update && update->lr_is_set && update->lr != lr)
        return zero_fail(ZERO_ERROR_ARGUMENT,
                         "zero_step: the learning rate is %g, but units were updated with %g, "
                         "zero_set_lr's",
                         (double)lr, (double)update->lr);
    return ZERO_OK;
}

zero_status_t zero_backward_update_finish(zero_backward_update_t *update, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const zero_contribution_t *contributions = zero_context_private(context, context->plan.contributions);
    const size_t stride = sizeof *contributions / sizeof(uint64_t);
    ZERO_TRY(update_oldest(update, update->n_pending, &contributions->norm.words[ZERO_NORM_DIGITS], stride, stream));
    zero_offload_forget(update->offload);
    cancel(update);
    return ZERO_OK;
}

bool zero_backward_update_has_begun(const zero_backward_update_t *update)
{
    return update && update->has_begun;
}
