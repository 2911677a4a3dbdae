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

unsigned char *zero_context_params_of(const zero_context_t *context, zero_unit_t unit)
{
    uint64_t at = zero_plan_params_of(&context->plan, &context->layout, unit);
    return (unsigned char *)zero_context_params(context) + at * zero_dtype_size(context->config.dtype);
}

uint64_t zero_context_fp8_offset(const zero_context_t *context, zero_unit_t unit)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const zero_arena_plan_t *plan = &context->plan;
    const uint64_t n_groups = (uint64_t)zero_plan_n_groups(plan, &context->layout);
    return plan->fp8.bytes + (plan->stage.shard_params ? layout->fp8_shard_offset * n_groups : layout->fp8_flat_offset);
}

uint64_t zero_context_part_others(const zero_context_t *context, zero_unit_t unit)
{
    const uint64_t n_groups = (uint64_t)zero_plan_n_groups(&context->plan, &context->layout);
    return context->plan.fp8.part_others +
           context->layout.units[unit].others_offset * n_groups * zero_dtype_size(context->config.dtype);
}

unsigned char *zero_context_fp8_others(const zero_context_t *context, zero_unit_t unit)
{
    uint64_t n_elems = context->layout.units[unit].others_offset * (uint64_t)context->layout.world_size;
    return (unsigned char *)zero_context_private(context, context->plan.fp8.others) +
           n_elems * zero_dtype_size(context->config.dtype);
}

/* Full reduced gradients are in the window, so that stage 0 can gather them; shards are private. */
void *zero_context_reduced_grads(const zero_context_t *context)
{
    if (context->plan.stage.reduced_grads_are_full)
        return zero_context_window(context, context->plan.reduced_grads);
    return zero_context_private(context, context->plan.private_reduced_grads);
}

void *zero_context_reduced_grads_at(const zero_context_t *context, uint64_t elem)
{
    return (unsigned char *)zero_context_reduced_grads(context) + elem * zero_dtype_size(context->plan.reduced_dtype);
}

uint64_t zero_context_own_grads_begin(const zero_context_t *context, zero_unit_t unit)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    return context->plan.stage.reduced_grads_are_full ? layout->flat_offset + zero_context_shard_begin(context, unit)
                                                      : layout->shard_offset;
}

void *zero_context_reduced_grads_of(const zero_context_t *context, zero_unit_t unit)
{
    const zero_grad_turns_t *turns = &context->plan.turns;
    const bool in_turns = zero_plan_grads_take_turns(&context->plan, unit);
    return zero_context_reduced_grads_at(context, in_turns ? turns->offsets[turns->of_unit[unit]]
                                                           : zero_context_own_grads_begin(context, unit));
}

zero_step_scratch_t *zero_context_step_scratch(const zero_context_t *context)
{
    return zero_context_private(context, context->plan.step_scratch);
}

zero_adam_scalars_t *zero_context_unit_scalars(const zero_context_t *context, zero_unit_t unit)
{
    zero_adam_scalars_t *scalars = zero_context_private(context, context->plan.unit_scalars);
    return context->plan.updates_in_backward ? scalars + unit : &zero_context_step_scratch(context)->scalars;
}

/* ---- frozen tensors ---- */

unsigned char *zero_context_frozen_of(const zero_context_t *context, zero_unit_t unit)
{
    uint64_t at = zero_plan_frozen_of(&context->plan, &context->layout, unit);
    return zero_context_window(context, context->plan.frozen) + at * zero_dtype_size(context->config.dtype);
}

uint64_t zero_context_frozen_at(const zero_context_t *context, zero_unit_t unit, uint64_t at)
{
    const zero_arena_plan_t *plan = &context->plan;
    uint64_t part_elems =
        context->layout.units[unit].frozen_shard_elems * (uint64_t)zero_plan_n_groups(plan, &context->layout);
    uint64_t begin = plan->stage.shard_params ? (uint64_t)(context->comm->rank % plan->group) * part_elems : 0;
    return zero_plan_frozen_of(plan, &context->layout, unit) + (at - begin);
}

zero_span_t zero_context_owned_span(const zero_context_t *context, zero_tensor_t tensor, int rank)
{
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    const zero_unit_layout_t *unit = &context->layout.units[decl->owner];
    uint64_t shard_elems = decl->frozen ? unit->frozen_shard_elems : unit->shard_elems;
    uint64_t begin = (uint64_t)zero_comm_slice_of(rank, context->comm->size, context->plan.group) * shard_elems;
    return zero_layout_span(&context->layout, context->model, tensor, begin, begin + shard_elems);
}

/* ---- what AdamW updates ---- */

uint64_t zero_context_shard_begin(const zero_context_t *context, zero_unit_t unit)
{
    const zero_comm_t *comm = context->comm;
    return (uint64_t)zero_comm_slice_of(comm->rank, comm->size, context->plan.group) *
           context->layout.units[unit].shard_elems;
}

uint64_t zero_context_part_begin(const zero_context_t *context, zero_unit_t unit)
{
    const zero_arena_plan_t *plan = &context->plan;
    return (uint64_t)(context->comm->rank % plan->group) * (uint64_t)zero_plan_n_groups(plan, &context->layout) *
           context->layout.units[unit].shard_elems;
}

void zero_context_held(const zero_context_t *context, zero_unit_t unit, uint64_t *begin, uint64_t *end)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    bool is_sharded = context->plan.stage.shard_state;
    *begin = is_sharded ? zero_context_shard_begin(context, unit) : 0;
    *end = is_sharded ? *begin + layout->shard_elems : layout->flat_elems;
}

zero_adam_segment_t zero_context_segment_at(const zero_context_t *context, zero_unit_t unit, uint64_t at)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const zero_stage_t *stage = &context->plan.stage;
    uint64_t shard_begin = zero_context_shard_begin(context, unit);
    const int64_t shard =
        stage->shard_state ? zero_comm_slice_of(context->comm->rank, context->comm->size, context->plan.group) : -1;
    uint64_t in_full = layout->flat_offset + at, in_shard = layout->shard_offset + (at - shard_begin);
    uint64_t params_begin = 0;
    if (zero_plan_shards_params(&context->plan, &context->layout, unit))
        params_begin = zero_plan_gathers_fp8(&context->plan, &context->layout, unit)
                           ? shard_begin
                           : zero_context_part_begin(context, unit);
    return (zero_adam_segment_t){
        .param = zero_plan_params_of(&context->plan, &context->layout, unit) + (at - params_begin),
        .state = stage->shard_state ? in_shard : in_full,
        .v_gap = zero_muon_v_gap(context->model, &context->layout, &context->config, shard, unit, at),
        .grad = stage->reduced_grads_are_full ? in_full : in_shard,
    };
}

bool zero_context_segment(const zero_context_t *context, zero_tensor_t t, zero_adam_segment_t *segment)
{
    const zero_tensor_decl_t *tensor = &context->model->tensors[t];
    uint64_t begin, end;
    if (tensor->frozen)
        return false;
    zero_context_held(context, tensor->owner, &begin, &end);
    zero_span_t span = zero_layout_span(&context->layout, context->model, t, begin, end);
    if (span.n_elems == 0)
        return false;
    *segment = zero_context_segment_at(context, tensor->owner, span.flat_offset);
    segment->n_elems = span.n_elems;
    segment->decay = tensor->decay ? context->config.weight_decay : 0.0f;
    segment->tensor = (uint32_t)t;
    return true;
}
