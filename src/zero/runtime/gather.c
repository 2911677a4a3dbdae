/* gather.c - see gather.h. */
#include "zero/runtime/gather.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* src_stride: 0 or n_bytes, as comm.h's all_gather takes it. n_bytes: one rank's. */
static zero_status_t gather(zero_context_t *context, zero_unit_t unit, uint64_t src_offset, size_t src_stride,
                            void *dst, size_t n_bytes, zero_stream_t stream)
{
    zero_comm_t *comm = context->comm;
    int span;
    ZERO_TRY(zero_streams_begin_comm_span(context, ZERO_WORK_GATHER, unit, stream, &span));
    ZERO_TRY(
        comm->ops->all_gather(comm, ZERO_LANE_GATHER, &context->window, src_offset, src_stride, dst, n_bytes, stream));
    ZERO_TRY(zero_streams_end_span(context, span, stream));
    context->stats.n_gathers++;
    context->stats.gathered_bytes += n_bytes * (uint64_t)(comm->size - 1);
    return ZERO_OK;
}

zero_status_t zero_gather_shards(zero_context_t *context, zero_unit_t unit, void *full, zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    size_t size = zero_dtype_size(context->config.dtype);
    return gather(context, unit, context->plan.params + layout->shard_offset * size, 0, full,
                  layout->shard_elems * size, stream);
}

zero_status_t zero_gather_in_place(zero_context_t *context, zero_unit_t unit, uint64_t offset, size_t element_bytes,
                                   zero_stream_t stream)
{
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    uint64_t flat = offset + layout->flat_offset * element_bytes;
    size_t slice_bytes = layout->shard_elems * element_bytes;
    if (context->comm->size == 1 || slice_bytes == 0)
        return ZERO_OK;
    return gather(context, unit, flat, slice_bytes, zero_context_window(context, flat), slice_bytes, stream);
}
