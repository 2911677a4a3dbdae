/* hooks.c - see hooks.h. */
#include "zero/runtime/hooks.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"

static zero_status_t call(const zero_context_t *context, zero_tensor_t tensor, zero_stream_t stream)
{
    const zero_hooks_t *hooks = context->config.hooks;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    const zero_span_t owned = zero_context_owned_span(context, tensor, context->comm->rank);
    if (decl->frozen || owned.n_elems == 0)
        return ZERO_OK;
    const zero_reduced_t reduced = {
        .tensor = tensor,
        .first = owned.first,
        .n_elems = owned.n_elems,
        .grad = zero_context_reduced_grads_of(context, decl->owner) +
                (owned.flat_offset - zero_context_shard_begin(context, decl->owner)),
        .loss_scale = &zero_context_step_scratch(context)->state.loss_scale,
        .step = context->progress.step + 1,
    };
    zero_status_t status = hooks->reduced(hooks->user, &reduced, stream);
    if (status != ZERO_OK)
        return zero_fail(status, "zero_hooks_t: reduced failed for tensor %s in step %llu", decl->name,
                         (unsigned long long)reduced.step);
    return ZERO_OK;
}

zero_status_t zero_hooks_reduced(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const zero_layout_t *layout = &context->layout;
    float *grads = zero_context_reduced_grads_of(context, unit);
    const void *slices[] = {grads};
    for (int i = 0; i < layout->n_tensors; i++)
        if (context->model->tensors[layout->order[i]].owner == unit && context->progress.hook_failure == ZERO_OK)
            context->progress.hook_failure = call(context, layout->order[i], stream);
    /* One slice, of itself: nothing is added, and its squares are. */
    return context->device->kernels->sum_slices(grads, slices, 1, ZERO_FP32, layout->units[unit].shard_elems, false,
                                                &zero_context_step_scratch(context)->norm, stream);
}
