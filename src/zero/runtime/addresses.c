/* addresses.c - see addresses.h. */
#include "zero/runtime/addresses.h"

void *zero_context_private(const zero_context_t *context, uint64_t offset)
{
    return context->private_data + offset;
}

unsigned char *zero_context_window(const zero_context_t *context, uint64_t offset)
{
    return (unsigned char *)context->window.local + offset;
}

void *zero_context_params(const zero_context_t *context)
{
    return zero_context_window(context, context->plan.params);
}

/* Full reduced gradients are in the window, so that stage 0 can gather them; shards are private. */
float *zero_context_reduced_grads(const zero_context_t *context)
{
    if (context->plan.stage.reduced_grads_are_full)
        return (float *)(void *)zero_context_window(context, context->plan.reduced_grads);
    return zero_context_private(context, context->plan.private_reduced_grads);
}

float *zero_context_reduced_grads_of(const zero_context_t *context, zero_unit_t unit)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const zero_host_plan_t *host = &context->plan.host;
    uint64_t in_full = layout->flat_offset + (uint64_t)context->comm->rank * layout->shard_elems;
    if (host->grads_take_turns && unit >= host->first)
        return zero_context_reduced_grads(context) +
               host->reduced_grads[zero_plan_offloaded_grads(&context->plan, unit)];
    return zero_context_reduced_grads(context) +
           (context->plan.stage.reduced_grads_are_full ? in_full : layout->shard_offset);
}

zero_step_scratch_t *zero_context_step_scratch(const zero_context_t *context)
{
    return zero_context_private(context, context->plan.step_scratch);
}

/* ---- what AdamW updates ---- */

void zero_context_held(const zero_context_t *context, zero_unit_t unit, uint64_t *begin, uint64_t *end)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    bool is_sharded = context->plan.stage.shard_state;
    *begin = is_sharded ? (uint64_t)context->comm->rank * layout->shard_elems : 0;
    *end = is_sharded ? *begin + layout->shard_elems : layout->flat_elems;
}

zero_adam_segment_t zero_context_segment_at(const zero_context_t *context, zero_unit_t unit, uint64_t at)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const zero_stage_t *stage = &context->plan.stage;
    uint64_t in_full = layout->flat_offset + at;
    uint64_t in_shard = layout->shard_offset + (at - (uint64_t)context->comm->rank * layout->shard_elems);
    return (zero_adam_segment_t){
        .param = stage->shard_params ? in_shard : in_full,
        .state = stage->shard_state ? in_shard : in_full,
        .grad = stage->reduced_grads_are_full ? in_full : in_shard,
    };
}

bool zero_context_segment(const zero_context_t *context, zero_tensor_t t, zero_adam_segment_t *segment)
{
    const zero_tensor_decl_t *tensor = &context->model->tensors[t];
    uint64_t begin, end;
    zero_context_held(context, tensor->owner, &begin, &end);
    zero_span_t span = zero_layout_span(&context->layout, context->model, t, begin, end);
    if (span.n_elems == 0)
        return false;
    *segment = zero_context_segment_at(context, tensor->owner, span.flat_offset);
    segment->n_elems = span.n_elems;
    segment->decay = tensor->decay ? context->config.weight_decay : 0.0f;
    return true;
}
