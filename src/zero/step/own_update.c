/* own_update.c - see own_update.h. A caller's optimizer replaces libzero's; its hook comes behind either. Weights in
 * bf16 and fp16 pass through one fp32 buffer, in runs: joined, updated by the caller, split again. A skipped step
 * leaves them as they were, since splitting is exact. */
#include "zero/step/own_update.h"

#include "base/log.h"
#include "zero/optimizer/optimizer.h"
#include "zero/runtime/addresses.h"

/* A function of the caller's, and what an error line calls it. */
typedef struct own_fn {
    const char *kind, *name;
    zero_own_update_fn update;
    void *user;
} own_fn_t;

/* Updates n_elems of a tensor from element `first` on; `at` is where they are. */
static zero_status_t update_run(const zero_context_t *context, const own_fn_t *own, zero_tensor_t tensor,
                                uint64_t first, size_t n_elems, const zero_adam_segment_t *at, float lr,
                                zero_stream_t stream)
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
        .v = plan->n_arrays > 1 ? (float *)zero_context_private(context, plan->v) + at->state : NULL,
        .grad = zero_context_reduced_grads(context) + at->grad,
        .lr = lr,
        .decay = at->decay,
        .grad_scale = &scratch->scalars.grad_scale,
        .step = &scratch->state.adam_step,
        .skip = &scratch->scalars.skip,
    };
    zero_status_t status = own->update(own->user, &update, stream);
    if (status != ZERO_OK)
        return zero_fail(status, "%s %s: its update of tensor %s failed", own->kind, own->name,
                         context->model->tensors[tensor].name);
    return master_lo ? kernels->split_master(param, master_lo, dtype, weight, n_elems, stream) : ZERO_OK;
}

static zero_status_t update_tensor(const zero_context_t *context, const own_fn_t *own, zero_tensor_t tensor,
                                   const zero_group_t *group, float lr, zero_stream_t stream)
{
    zero_adam_segment_t at;
    uint64_t begin, end;
    if (!zero_context_segment(context, tensor, &at))
        return ZERO_OK;
    at.decay = group->weight_decay;
    lr *= group->lr_scale;
    zero_context_held(context, context->model->tensors[tensor].owner, &begin, &end);
    uint64_t first = zero_layout_span(&context->layout, context->model, tensor, begin, end).first;
    for (uint64_t left = at.n_elems; left > 0;) {
        uint64_t n = left < ZERO_OWN_RUN_ELEMS ? left : ZERO_OWN_RUN_ELEMS;
        ZERO_TRY(update_run(context, own, tensor, first, n, &at, lr, stream));
        first += n;
        at.param += n;
        at.state += n;
        at.grad += n;
        left -= n;
    }
    return ZERO_OK;
}

static zero_status_t update_all(const zero_context_t *context, const own_fn_t *own, const zero_tensor_groups_t *groups,
                                float lr, zero_stream_t stream)
{
    for (zero_tensor_t tensor = 0; tensor < context->model->n_tensors; tensor++) {
        const zero_group_t group = zero_tensor_groups_get(groups, tensor);
        ZERO_TRY(update_tensor(context, own, tensor, &group, lr, stream));
    }
    return ZERO_OK;
}

zero_status_t zero_own_update(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                              zero_stream_t stream)
{
    const zero_own_optimizer_t *optimizer = context->config.own_optimizer;
    const own_fn_t own = {"optimizer", optimizer->name, optimizer->update, optimizer->user};
    return update_all(context, &own, groups, lr, stream);
}

zero_status_t zero_own_updated(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                               zero_stream_t stream)
{
    const zero_hooks_t *hooks = context->config.hooks;
    const own_fn_t own = {"zero_hooks_t:", "updated", hooks->updated, hooks->user};
    return update_all(context, &own, groups, lr, stream);
}
