/* own_update.c - see own_update.h. A caller's optimizer replaces libzero's; its hook comes behind either. Weights in
 * bf16 and fp16 pass through one fp32 buffer, in runs: joined, updated by the caller, split again. A skipped step
 * leaves them as they were, since splitting is exact. */
#include "zero/step/own_update.h"

#include "base/log.h"
#include "zero/plan/muon_schedule.h"
#include "zero/runtime/addresses.h"

/* A function of the caller's, and what an error line calls it. */
typedef struct own_fn {
    const char *kind, *name;
    zero_own_update_fn update;
    void *user;
    bool reads_weights; /* and does not change them */
} own_fn_t;

static zero_status_t failed(const zero_context_t *context, const own_fn_t *own, zero_tensor_t tensor,
                            zero_status_t status)
{
    return zero_fail(status, "%s %s: its update of tensor %s failed", own->kind, own->name,
                     context->model->tensors[tensor].name);
}

/* Updates n_elems of a tensor from element `first` on; `at` is where they are. direction: NULL, or of the run. */
static zero_status_t update_run(const zero_context_t *context, const own_fn_t *own, zero_tensor_t tensor,
                                uint64_t first, size_t n_elems, const zero_adam_segment_t *at, float lr,
                                float *direction, zero_stream_t stream)
{
    const zero_shard_kernels_t *kernels = context->device->kernels;
    const zero_arena_plan_t *plan = &context->plan;
    const zero_dtype_t dtype = context->config.dtype;
    const zero_step_scratch_t *scratch = zero_context_step_scratch(context);
    unsigned char *param = (unsigned char *)zero_context_params(context) + at->param * zero_dtype_size(dtype);
    unsigned char *master_lo = NULL;
    float *weight = (float *)(void *)param;
    if (dtype != ZERO_FP32) {
        master_lo = (unsigned char *)zero_context_private(context, plan->master_lo);
        master_lo += at->state * zero_master_lo_size(dtype);
        weight = zero_context_private(context, plan->own_weights);
        ZERO_TRY(kernels->join_master(weight, param, master_lo, dtype, n_elems, stream));
    }
    const zero_own_update_t update = {
        .tensor = tensor,
        .first = first,
        .n_elems = n_elems,
        .weight = weight,
        .m = (float *)zero_context_private(context, plan->m) + at->state,
        .v = plan->n_arrays > 1 && at->v_gap != ZERO_MUON_NO_V
                 ? (float *)zero_context_private(context, plan->v) + (at->state - at->v_gap)
                 : NULL,
        .grad = (float *)zero_context_reduced_grads(context) + at->grad,
        .lr = lr,
        .decay = at->decay,
        .grad_scale = &scratch->scalars.grad_scale,
        .step = &scratch->state.adam_step,
        .skip = &scratch->scalars.skip,
        .direction = direction,
    };
    zero_status_t status = own->update(own->user, &update, stream);
    if (status != ZERO_OK)
        return failed(context, own, tensor, status);
    return master_lo && !own->reads_weights ? kernels->split_master(param, master_lo, dtype, weight, n_elems, stream)
                                            : ZERO_OK;
}

/* Updates a part of a tensor that this rank holds, run by run. */
static zero_status_t update_part(const zero_context_t *context, const own_fn_t *own, zero_tensor_t tensor,
                                 const zero_span_t *part, const zero_tensor_groups_t *groups, float lr,
                                 float *direction, zero_stream_t stream)
{
    const zero_group_t group = zero_tensor_groups_get(groups, tensor);
    zero_adam_segment_t at = zero_context_segment_at(context, context->model->tensors[tensor].owner, part->flat_offset);
    uint64_t first = part->first;
    at.decay = group.weight_decay;
    lr *= group.lr_scale;
    for (uint64_t left = part->n_elems; left > 0;) {
        uint64_t n = left < ZERO_OWN_RUN_ELEMS ? left : ZERO_OWN_RUN_ELEMS;
        ZERO_TRY(update_run(context, own, tensor, first, n, &at, lr, direction, stream));
        first += n;
        at.param += n;
        at.state += n;
        at.grad += n;
        direction = direction ? direction + n : NULL;
        left -= n;
    }
    return ZERO_OK;
}

/* Updates all trained tensors; those that are updated whole only with_matrices. */
static zero_status_t update_all(const zero_context_t *context, const own_fn_t *own, const zero_tensor_groups_t *groups,
                                bool with_matrices, float lr, zero_stream_t stream)
{
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        const zero_tensor_decl_t *tensor = &context->model->tensors[t];
        uint64_t begin, end;
        if (tensor->frozen || (!with_matrices && zero_muon_takes(&context->config, tensor)))
            continue;
        zero_context_held(context, tensor->owner, &begin, &end);
        const zero_span_t held = zero_layout_span(&context->layout, context->model, t, begin, end);
        ZERO_TRY(update_part(context, own, t, &held, groups, lr, NULL, stream));
    }
    return ZERO_OK;
}

zero_status_t zero_own_update(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                              zero_stream_t stream)
{
    const zero_own_optimizer_t *optimizer = context->config.own_optimizer;
    const own_fn_t own = {"optimizer", optimizer->name, optimizer->update, optimizer->user, false};
    return update_all(context, &own, groups, false, lr, stream);
}

zero_status_t zero_own_updated(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                               zero_stream_t stream)
{
    const zero_hooks_t *hooks = context->config.hooks;
    const own_fn_t own = {"zero_hooks_t:", "updated", hooks->updated, hooks->user, false};
    return update_all(context, &own, groups, true, lr, stream);
}

/* ---- whole matrices ---- */

static zero_status_t change_part(zero_own_step_t *step, zero_tensor_t tensor, const zero_span_t *part, float *direction,
                                 zero_own_update_fn fn, bool prepares, zero_stream_t stream)
{
    const zero_own_optimizer_t *optimizer = step->context->config.own_optimizer;
    const own_fn_t own = {"optimizer", optimizer->name, fn, optimizer->user, prepares};
    if (step->failure == ZERO_OK)
        step->failure = update_part(step->context, &own, tensor, part, step->groups, step->lr, direction, stream);
    return ZERO_OK;
}

static zero_status_t prepare(void *user, zero_tensor_t tensor, const zero_span_t *part, float *direction,
                             zero_stream_t stream)
{
    zero_own_step_t *step = user;
    return change_part(step, tensor, part, direction, step->context->config.own_optimizer->prepare, true, stream);
}

static zero_status_t change_whole(void *user, zero_tensor_t tensor, float *direction, zero_stream_t stream)
{
    zero_own_step_t *step = user;
    const zero_own_optimizer_t *optimizer = step->context->config.own_optimizer;
    const zero_step_scratch_t *scratch = zero_context_step_scratch(step->context);
    const own_fn_t own = {"optimizer", optimizer->name, NULL, optimizer->user, true};
    const zero_own_whole_t whole = {
        .tensor = tensor,
        .rows = (uint64_t)step->context->model->tensors[tensor].shape[0],
        .cols = (uint64_t)step->context->model->tensors[tensor].shape[1],
        .direction = direction,
        .grad_scale = &scratch->scalars.grad_scale,
        .step = &scratch->state.adam_step,
        .skip = &scratch->scalars.skip,
    };
    if (step->failure != ZERO_OK)
        return ZERO_OK;
    const zero_status_t status = optimizer->whole(optimizer->user, &whole, stream);
    step->failure = status == ZERO_OK ? ZERO_OK : failed(step->context, &own, tensor, status);
    return ZERO_OK;
}

static zero_status_t step_along(void *user, zero_tensor_t tensor, const zero_span_t *part, float *direction,
                                zero_stream_t stream)
{
    zero_own_step_t *step = user;
    return change_part(step, tensor, part, direction, step->context->config.own_optimizer->update, false, stream);
}

const zero_matrix_fns_t zero_own_matrices = {prepare, change_whole, step_along};
