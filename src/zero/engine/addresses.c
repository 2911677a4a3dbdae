/* addresses.c - what the plan's offsets mean: where a unit's parameters, gradients, sums and state lie. */
#include "zero/engine/engine.h"
#include "base/log.h"

void *zero_engine_private(const zero_engine_t *engine, uint64_t offset)
{
    return engine->private_data + offset;
}

unsigned char *zero_engine_window(const zero_engine_t *engine, uint64_t offset)
{
    return (unsigned char *)engine->window.local + offset;
}

void *zero_engine_params(const zero_engine_t *engine)
{
    return zero_engine_window(engine, engine->plan.params);
}

/* Full sums lie in the window, so that stage 0 can gather them; shards alone are private. */
float *zero_engine_reduced_grads(const zero_engine_t *engine)
{
    if (engine->plan.stage.reduced_grads_are_full)
        return (float *)(void *)zero_engine_window(engine, engine->plan.sums);
    return zero_engine_private(engine, engine->plan.private_reduced_grads);
}

float *zero_engine_reduced_grads_of(const zero_engine_t *engine, zero_unit_t unit)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    const zero_host_plan_t *host = &engine->plan.host;
    uint64_t in_full = layout->flat_offset + (uint64_t)engine->comm->rank * layout->shard_elems;
    if (host->grads_take_turns && unit >= host->first)
        return zero_engine_reduced_grads(engine) + host->sums[zero_plan_offloaded_grads(&engine->plan, unit)];
    return zero_engine_reduced_grads(engine) +
           (engine->plan.stage.reduced_grads_are_full ? in_full : layout->shard_offset);
}

uint64_t zero_engine_grad_offset(const zero_engine_t *engine, zero_unit_t unit)
{
    if (engine->plan.stage.shard_grads)
        return zero_unsharded_find(&engine->unsharded_grads, unit)->offset;
    return engine->plan.grads + engine->layout.units[unit].flat_offset * zero_dtype_size(engine->plan.stage.grad_dtype);
}

/* ---- what AdamW walks over ---- */

void zero_engine_held(const zero_engine_t *engine, zero_unit_t unit, uint64_t *begin, uint64_t *end)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    *begin = engine->plan.stage.shard_state ? (uint64_t)engine->comm->rank * layout->shard_elems : 0;
    *end = engine->plan.stage.shard_state ? *begin + layout->shard_elems : layout->flat_elems;
}

zero_adam_segment_t zero_engine_segment_at(const zero_engine_t *engine, zero_unit_t unit, uint64_t at)
{
    const zero_unit_layout_t *layout = &engine->layout.units[unit];
    const zero_stage_t *stage = &engine->plan.stage;
    uint64_t in_full = layout->flat_offset + at;
    uint64_t in_shard = layout->shard_offset + (at - (uint64_t)engine->comm->rank * layout->shard_elems);
    return (zero_adam_segment_t){
        .param = stage->shard_params ? in_shard : in_full,
        .state = stage->shard_state ? in_shard : in_full,
        .grad = stage->reduced_grads_are_full ? in_full : in_shard,
    };
}

bool zero_engine_segment(const zero_engine_t *engine, zero_tensor_t t, zero_adam_segment_t *segment)
{
    const zero_tensor_decl_t *tensor = &engine->model->tensors[t];
    uint64_t begin, end;
    zero_engine_held(engine, tensor->owner, &begin, &end);
    zero_span_t span = zero_layout_span(&engine->layout, engine->model, t, begin, end);
    if (span.n_elems == 0)
        return false;
    *segment = zero_engine_segment_at(engine, tensor->owner, span.flat_offset);
    segment->n_elems = span.n_elems;
    segment->decay = tensor->decay ? engine->config.weight_decay : 0.0f;
    return true;
}
