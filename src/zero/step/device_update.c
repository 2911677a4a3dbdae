/* device_update.c - see device_update.h. */
#include "zero/step/device_update.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"

struct zero_device_update {
    zero_context_t *context;
    /* By unit, and of them all: how many segments come before its own. The segments themselves are in private memory,
     * at plan.segments. */
    size_t *segments_before;
};

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
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        const zero_unit_t unit = context->model->tensors[t].owner;
        if (zero_plan_is_offloaded(&context->plan, unit) ||
            zero_muon_takes(&context->config, &context->model->tensors[t]))
            continue;
        if (!zero_context_segment(context, t, &segments[n]))
            continue;
        if (zero_plan_grads_take_turns(&context->plan, unit)) /* they count from the unit's buffer */
            segments[n].grad -= zero_context_own_grads_begin(context, unit);
        n++;
    }
    qsort(segments, n, sizeof *segments, by_state);
    return n;
}

/* Returns where the state of a unit begins. */
static uint64_t state_begin(const zero_context_t *context, zero_unit_t unit)
{
    return unit < context->plan.host.first && unit < context->layout.n_units
               ? (context->plan.stage.shard_state ? context->layout.units[unit].shard_offset
                                                  : context->layout.units[unit].flat_offset)
               : context->plan.state_elems;
}

static zero_status_t count_segments(zero_device_update_t *update, const zero_adam_segment_t *segments,
                                    size_t n_segments)
{
    const zero_context_t *context = update->context;
    const zero_unit_t n_units = context->layout.n_units;
    update->segments_before = calloc((size_t)n_units + 1, sizeof *update->segments_before);
    if (!update->segments_before)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    size_t n = 0;
    for (zero_unit_t unit = 0; unit <= n_units; unit++) {
        while (n < n_segments && segments[n].state < state_begin(context, unit))
            n++;
        update->segments_before[unit] = n;
    }
    return ZERO_OK;
}

static zero_status_t create_segments(zero_device_update_t *update)
{
    const zero_context_t *context = update->context;
    zero_adam_segment_t *segments = calloc((size_t)context->model->n_tensors + 1, sizeof *segments);
    if (!segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d segments", context->model->n_tensors);
    const size_t n_segments = build_segments(context, segments);
    zero_status_t status = count_segments(update, segments, n_segments);
    if (status == ZERO_OK)
        status = zero_device_copy(context->device, zero_context_private(context, context->plan.segments), segments,
                                  n_segments * sizeof *segments, NULL);
    if (status == ZERO_OK)
        status = zero_device_synchronize(context->device);
    free(segments);
    return status;
}

zero_status_t zero_device_update_create(zero_context_t *context, zero_device_update_t **update)
{
    zero_device_update_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
    made->context = context;
    zero_status_t status = create_segments(made);
    if (status != ZERO_OK) {
        zero_device_update_destroy(made);
        return status;
    }
    *update = made;
    return ZERO_OK;
}

void zero_device_update_destroy(zero_device_update_t *update)
{
    if (!update)
        return;
    free(update->segments_before);
    free(update);
}

zero_status_t zero_device_update_units(zero_device_update_t *update, zero_unit_t first, zero_unit_t end,
                                       const zero_adam_scalars_t *scalars, zero_stream_t stream)
{
    const zero_context_t *context = update->context;
    const zero_arena_plan_t *plan = &context->plan;
    const zero_dtype_t dtype = context->config.dtype;
    const size_t *before = update->segments_before;
    const size_t n_segments = before[end] - before[first];
    if (n_segments == 0) /* perhaps `first` is no unit, but the end */
        return ZERO_OK;
    const zero_adam_segment_t *segments = zero_context_private(context, plan->segments);
    const bool in_turns = zero_plan_grads_take_turns(plan, first);
    const zero_adam_t adam = {
        .param_dtype = dtype,
        .param = zero_context_params(context),
        .master_lo = dtype == ZERO_FP32 ? NULL : zero_context_private(context, plan->master_lo),
        .m = zero_context_private(context, plan->m),
        .v = plan->n_arrays > 1 ? zero_context_private(context, plan->v) : NULL,
        .grad_dtype = plan->reduced_dtype,
        .grad = in_turns ? zero_context_reduced_grads_of(context, first) : zero_context_reduced_grads(context),
        .segments = segments + before[first],
        .n_segments = n_segments,
        .state_begin = state_begin(context, first),
        .state_end = state_begin(context, end),
        .scalars = scalars,
        .by_tensor = context->by_tensor,
    };
    ZERO_ASSERT(!in_turns || end == first + 1);
    return zero_optimizer_of(&context->config)->update(context->device->kernels, &adam, stream);
}
