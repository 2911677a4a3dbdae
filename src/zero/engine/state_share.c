/* state_share.c - see state_share.h. */
#include "zero/engine/state_share.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"
#include "zero/runtime/gather.h"

/* Copies this rank's slices of all flat buffers to the window, where peers read them. */
static zero_status_t copy_slices_to_window(zero_context_t *context, const unsigned char *array, size_t element_bytes)
{
    const zero_layout_t *layout = &context->layout;
    unsigned char *window = zero_context_window(context, context->plan.reduced_grads);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        const zero_unit_layout_t *flat = &layout->units[unit];
        size_t at = (flat->flat_offset + zero_context_shard_begin(context, unit)) * element_bytes;
        ZERO_TRY(zero_device_copy(context->device, window + at, array + at, flat->shard_elems * element_bytes,
                                  context->streams.gather));
    }
    return ZERO_OK;
}

/* Gathers every rank's slices of all flat buffers at `offset` in the window. Ranks may overwrite them afterwards. */
static zero_status_t gather_flats(zero_context_t *context, uint64_t offset, size_t element_bytes)
{
    zero_comm_t *comm = context->comm;
    zero_stream_t stream = context->streams.gather;
    ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, stream));
    for (zero_unit_t unit = 0; unit < context->layout.n_units; unit++)
        ZERO_TRY(zero_gather_in_place(context, unit, offset, element_bytes, stream));
    return comm->ops->fence(comm, ZERO_LANE_GATHER, stream);
}

/* Shares one array of the private state. It passes through the reduced gradients' memory, which is in the window, has
 * room for all flat buffers in fp32, and is free between steps. */
static zero_status_t share_array(zero_context_t *context, uint64_t offset, size_t element_bytes)
{
    uint64_t in_window = context->plan.reduced_grads;
    unsigned char *array = zero_context_private(context, offset);
    if (element_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(copy_slices_to_window(context, array, element_bytes));
    ZERO_TRY(gather_flats(context, in_window, element_bytes));
    return zero_device_copy(context->device, array, zero_context_window(context, in_window),
                            context->layout.total_flat_elems * element_bytes, context->streams.gather);
}

/* Copies v of the tensors that have one to their places in the window, this rank's slices alone, or back, whole. */
static zero_status_t move_v(zero_context_t *context, bool to_window)
{
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        const zero_tensor_decl_t *tensor = &context->model->tensors[t];
        if (tensor->frozen || zero_muon_takes(&context->config, tensor))
            continue;
        const zero_unit_layout_t *unit = &context->layout.units[tensor->owner];
        const zero_span_t span = to_window ? zero_context_owned_span(context, t, context->comm->rank)
                                           : zero_layout_span(&context->layout, context->model, t, 0, unit->flat_elems);
        if (span.n_elems == 0)
            continue;
        const zero_adam_segment_t at = zero_context_segment_at(context, tensor->owner, span.flat_offset);
        const uint64_t in_window = (unit->flat_offset + span.flat_offset) * sizeof(float);
        float *v = (float *)zero_context_private(context, context->plan.v) + (at.state - at.v_gap);
        unsigned char *place = zero_context_window(context, context->plan.reduced_grads + in_window);
        ZERO_TRY(zero_device_copy(context->device, to_window ? (void *)place : v, to_window ? (void *)v : place,
                                  span.n_elems * sizeof *v, context->streams.gather));
    }
    return ZERO_OK;
}

/* Shares v, as share_array does, of tensors that are not Muon's matrices. */
static zero_status_t share_v_without_matrices(zero_context_t *context)
{
    ZERO_TRY(move_v(context, true));
    ZERO_TRY(gather_flats(context, context->plan.reduced_grads, sizeof(float)));
    return move_v(context, false);
}

/* The bytes of an element's place in the window, while arrays of blocks are there: a slice's blocks are at the
 * beginning of its place. */
#define BLOCK8_PLACE ((size_t)2)
_Static_assert(sizeof(zero_block8_t) <= BLOCK8_PLACE * ZERO_BLOCK8_ELEMS, "a place has room for its blocks");

/* Copies a slice of an array of blocks to its place in the window, or back. */
static zero_status_t move_blocks(zero_context_t *context, uint64_t offset, uint64_t first, uint64_t n_elems,
                                 bool to_window)
{
    const zero_array_format_t format = context->plan.array_format;
    unsigned char *array = zero_context_private(context, offset + zero_array_bytes(format, first));
    unsigned char *place = zero_context_window(context, context->plan.reduced_grads + first * BLOCK8_PLACE);
    return zero_device_copy(context->device, to_window ? place : array, to_window ? array : place,
                            zero_array_bytes(format, n_elems), context->streams.gather);
}

/* Shares an array of blocks, as share_array does, and leaves the window cleared. */
static zero_status_t share_blocks(zero_context_t *context, uint64_t offset)
{
    const zero_layout_t *layout = &context->layout;
    zero_device_t *device = context->device;
    for (const zero_unit_layout_t *unit = layout->units; unit < layout->units + layout->n_units; unit++)
        ZERO_TRY(move_blocks(context, offset,
                             unit->flat_offset + zero_context_shard_begin(context, (zero_unit_t)(unit - layout->units)),
                             unit->shard_elems, true));
    ZERO_TRY(gather_flats(context, context->plan.reduced_grads, BLOCK8_PLACE));
    for (const zero_unit_layout_t *unit = layout->units; unit < layout->units + layout->n_units; unit++)
        for (uint64_t at = 0; at < unit->flat_elems; at += unit->shard_elems)
            ZERO_TRY(move_blocks(context, offset, unit->flat_offset + at, unit->shard_elems, false));
    return device->ops->clear(device, zero_context_window(context, context->plan.reduced_grads),
                              layout->total_flat_elems * sizeof(float), context->streams.gather);
}

/* m or v comes last: their padding is zero, as that of reduced gradients must be. */
zero_status_t zero_state_share(zero_context_t *context)
{
    const zero_arena_plan_t *plan = &context->plan;
    zero_dtype_t dtype = context->config.dtype;
    if (plan->stage.shard_state || context->comm->size == 1)
        return ZERO_OK;
    ZERO_TRY(gather_flats(context, plan->params, zero_dtype_size(dtype)));
    if (context->config.forward_only)
        return ZERO_OK;
    ZERO_TRY(share_array(context, plan->master_lo, zero_master_lo_size(dtype)));
    if (plan->array_format.block_elems > 1) {
        ZERO_TRY(share_blocks(context, plan->m));
        return share_blocks(context, plan->v);
    }
    ZERO_TRY(share_array(context, plan->m, sizeof(float)));
    if (plan->v_elems < plan->state_elems)
        return share_v_without_matrices(context);
    return plan->n_arrays > 1 ? share_array(context, plan->v, sizeof(float)) : ZERO_OK;
}
