/* gather.c - see gather.h. */
#include "zero/runtime/gather.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* One all-gather, with comm.h's arguments. */
typedef struct part {
    uint64_t src_offset;
    size_t src_stride;
    void *dst;
    size_t n_bytes; /* one rank's */
} part_t;

static zero_status_t gather(zero_context_t *context, zero_unit_t unit, zero_ranks_t ranks, const part_t *parts,
                            int n_parts, zero_stream_t stream)
{
    zero_comm_t *comm = context->comm;
    int span;
    ZERO_TRY(zero_streams_begin_comm_span(context, ZERO_WORK_GATHER, unit, ranks, stream, &span));
    for (const part_t *part = parts; part < parts + n_parts; part++)
        ZERO_TRY(comm->ops->all_gather(comm, ZERO_LANE_GATHER, &context->window, ranks, part->src_offset,
                                       part->src_stride, part->dst, part->n_bytes, stream));
    return zero_streams_end_span(context, span, stream);
}

static zero_status_t gather_unit(zero_context_t *context, zero_unit_t unit, zero_ranks_t ranks, const part_t *parts,
                                 int n_parts, zero_stream_t stream)
{
    context->stats.n_gathers++;
    for (int i = 0; i < n_parts; i++)
        context->stats.gathered_bytes += parts[i].n_bytes * (uint64_t)(ranks.n - 1);
    return gather(context, unit, ranks, parts, n_parts, stream);
}

/* Returns the window's offset of a unit's parameters in the configured dtype. */
static uint64_t params_offset(const zero_context_t *context, zero_unit_t unit)
{
    const zero_arena_plan_t *plan = &context->plan;
    return plan->params + zero_plan_params_of(plan, &context->layout, unit) * zero_dtype_size(context->config.dtype);
}

/* Finds a unit's matrices in fp8, as `bytes` says, and its others, which every rank publishes at `offset`. Returns how
 * many parts these are. */
static int fp8_parts(const zero_context_t *context, zero_unit_t unit, part_t bytes, uint64_t offset, void *others,
                     part_t parts[2])
{
    size_t n_bytes = context->layout.units[unit].others_elems * zero_dtype_size(context->config.dtype);
    parts[0] = bytes;
    parts[1] = (part_t){.src_offset = offset, .dst = others, .n_bytes = n_bytes};
    return n_bytes > 0 ? 2 : 1;
}

/* Finds a unit's trained tensors for its unsharded buffer. Returns how many parts these are. */
static int trained_parts(const zero_context_t *context, zero_unit_t unit, unsigned char *full, size_t part_size,
                         part_t parts[2])
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const size_t n_groups = (size_t)zero_plan_n_groups(&context->plan, &context->layout);
    if (zero_plan_gathers_fp8(&context->plan, &context->layout, unit)) {
        const part_t bytes = {.src_offset = zero_context_fp8_offset(context, unit),
                              .dst = full,
                              .n_bytes = layout->shard_elems * n_groups};
        const uint64_t others = n_groups > 1 ? zero_context_part_others(context, unit) : params_offset(context, unit);
        return fp8_parts(context, unit, bytes, others,
                         full + zero_layout_buffer_elems(&context->layout, layout->buffer_class), parts);
    }
    parts[0] =
        (part_t){.src_offset = params_offset(context, unit), .dst = full, .n_bytes = layout->shard_elems * part_size};
    return layout->shard_elems > 0 ? 1 : 0;
}

zero_status_t zero_gather_shards(zero_context_t *context, zero_unit_t unit, void *full, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const zero_arena_plan_t *plan = &context->plan;
    const int group = plan->group, rank = context->comm->rank;
    const zero_ranks_t ranks = {.first = rank - rank % group, .stride = 1, .n = group};
    size_t part_size = zero_dtype_size(context->config.dtype) * (size_t)zero_plan_n_groups(plan, &context->layout);
    part_t parts[3];
    int n_parts = trained_parts(context, unit, full, part_size, parts);
    if (layout->frozen_shard_elems > 0)
        parts[n_parts++] = (part_t){.src_offset = plan->frozen + layout->frozen_shard_offset * part_size,
                                    .dst = (unsigned char *)full + plan->unsharded_frozen[layout->buffer_class],
                                    .n_bytes = layout->frozen_shard_elems * part_size};
    return gather_unit(context, unit, ranks, parts, n_parts, stream);
}

zero_status_t zero_gather_shards_at(zero_context_t *context, zero_unit_t unit, uint64_t offset, void *full,
                                    zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const size_t size = zero_dtype_size(context->config.dtype), n_bytes = layout->shard_elems * size;
    const part_t parts[] = {{.src_offset = offset, .dst = full, .n_bytes = n_bytes},
                            {.src_offset = offset + n_bytes,
                             .dst = (unsigned char *)full + context->plan.unsharded_frozen[layout->buffer_class],
                             .n_bytes = layout->frozen_shard_elems * size}};
    const int first = n_bytes > 0 ? 0 : 1, end = layout->frozen_shard_elems > 0 ? 2 : 1;
    return gather_unit(context, unit, zero_comm_all(context->comm), parts + first, end - first, stream);
}

/* Every rank's slice of a full buffer in the window. */
static part_t slices_at(const zero_context_t *context, uint64_t offset, size_t slice_bytes)
{
    return (part_t){.src_offset = offset,
                    .src_stride = slice_bytes,
                    .dst = zero_context_window(context, offset),
                    .n_bytes = slice_bytes};
}

/* Gathers this rank's part from the ranks of other groups that hold the same. */
static zero_status_t gather_part(zero_context_t *context, zero_unit_t unit, const part_t *parts, int n_parts,
                                 zero_stream_t stream)
{
    const int n_groups = zero_plan_n_groups(&context->plan, &context->layout), group = context->plan.group;
    const zero_ranks_t ranks = {.first = context->comm->rank % group, .stride = group, .n = n_groups};
    context->stats.n_part_gathers++;
    for (int i = 0; i < n_parts; i++)
        context->stats.part_gathered_bytes += parts[i].n_bytes * (uint64_t)(n_groups - 1);
    return gather(context, unit, ranks, parts, n_parts, stream);
}

zero_status_t zero_gather_part(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    part_t parts[2];
    int n_parts = 1;
    if (zero_plan_gathers_fp8(&context->plan, &context->layout, unit)) {
        const part_t bytes = slices_at(context, zero_context_fp8_offset(context, unit), layout->shard_elems);
        n_parts = fp8_parts(context, unit, bytes, params_offset(context, unit),
                            zero_context_window(context, zero_context_part_others(context, unit)), parts);
    } else {
        parts[0] = slices_at(context, params_offset(context, unit),
                             layout->shard_elems * zero_dtype_size(context->config.dtype));
    }
    return gather_part(context, unit, parts, n_parts, stream);
}

/* Every rank's slices of the unit's frozen tensors, of those that this rank holds. */
static part_t frozen_slices(const zero_context_t *context, zero_unit_t unit)
{
    size_t size = zero_dtype_size(context->config.dtype);
    uint64_t at = zero_plan_frozen_of(&context->plan, &context->layout, unit);
    return slices_at(context, context->plan.frozen + at * size, context->layout.units[unit].frozen_shard_elems * size);
}

zero_status_t zero_gather_frozen_part(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const part_t slices = frozen_slices(context, unit);
    return gather_part(context, unit, &slices, 1, stream);
}

zero_status_t zero_gather_frozen(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const part_t slices = frozen_slices(context, unit);
    if (context->comm->size == 1 || slices.n_bytes == 0)
        return ZERO_OK;
    return gather_unit(context, unit, zero_comm_all(context->comm), &slices, 1, stream);
}

zero_status_t zero_gather_in_place(zero_context_t *context, zero_unit_t unit, uint64_t offset, size_t element_bytes,
                                   zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const part_t slices =
        slices_at(context, offset + layout->flat_offset * element_bytes, layout->shard_elems * element_bytes);
    if (context->comm->size == 1 || slices.n_bytes == 0)
        return ZERO_OK;
    return gather_unit(context, unit, zero_comm_all(context->comm), &slices, 1, stream);
}

zero_status_t zero_gather_full(zero_context_t *context, zero_unit_t unit, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    if (context->comm->size == 1 || layout->shard_elems == 0)
        return ZERO_OK;
    if (zero_plan_gathers_fp8(&context->plan, &context->layout, unit)) {
        const part_t bytes = slices_at(context, zero_context_fp8_offset(context, unit), layout->shard_elems);
        part_t parts[2];
        int n_parts = fp8_parts(context, unit, bytes, params_offset(context, unit),
                                zero_context_fp8_others(context, unit), parts);
        return gather_unit(context, unit, zero_comm_all(context->comm), parts, n_parts, stream);
    }
    const part_t slices =
        slices_at(context, params_offset(context, unit), layout->shard_elems * zero_dtype_size(context->config.dtype));
    return gather_unit(context, unit, zero_comm_all(context->comm), &slices, 1, stream);
}
