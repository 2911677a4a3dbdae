/* update_on_device.c - the device updates offloaded state: master_lo, m, v and gradients are copied in, AdamW writes
 * the shard in the window, and master_lo, m and v are copied back. The bus copies both ways at once, most of it under
 * the next forward pass, whose units wait only for their own state.
 *
 * A shard is updated in chunks, in staging buffers (state_staging.h). Events of a buffer order three streams. With
 * three buffers and five chunks:
 *
 *     caller's stream | last backward ............. | decide | next forward ....................................... |
 *     in_stream       | fetch 0 | fetch 1 | fetch 2 |                              | fetch 3  | fetch 4  |
 *     update_stream                                          | update 0 | update 1 | update 2 | update 3 | update 4 |
 *     out_stream      | gradients ................. |                   | store 0  | store 1  | store 2  | store 3  |
 *
 * A chunk is fetched once its buffer is idle and what was in it has been stored. Updates run at the same time as
 * compute, but have priority: they are short, and the next unit's gather waits for them.
 *
 * What must hold: host memory has the whole state whenever the streams are empty, so that others may read and write it
 * between steps. Hence the first chunks are fetched no earlier than in the step's last backward pass, when others may
 * not. They are then in their buffers when the step is decided, and their update begins at once. A skipped step stores
 * what it fetched.
 *
 * With updates in backward (backward_update.c) the order is that of backward, and a chunk's fetch follows the store of
 * the chunk that had its buffer before, so that both directions are busy at once:
 *
 *     caller's stream | backward C ........ | sum C | backward B ................... | sum B | backward A ....
 *     in_stream       | fetch 0 | fetch 1 | fetch 2 |          | fetch 3  | fetch 4  | ...
 *     update_stream                                 | update 0 | update 1 | update 2 | ...
 *     out_stream                                               | store 0  | store 1  | ...
 *
 * Large models have thousands of chunks, and a stream takes about a thousand calls before the host must wait. So chunks
 * are queued some way ahead of the unit that is needed, not all at once.
 *
 * No event says that the next step may overwrite reduced gradients and scalars: its backward pass follows its forward
 * pass, which follows every unit's update.
 */
#include "base/log.h"
#include "zero/offload/state_staging.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"

/* Chunks queued ahead: two gigabytes if chunks are of the largest size. */
#define N_AHEAD 32

/* Copies m, v (of optimizers that have it), master_lo (fp32 has none) and offloaded parameters of a chunk from the host
 * to its buffer, or back. */
static zero_status_t copy_state(zero_offload_t *offload, const zero_state_chunk_t *chunk, bool fetches,
                                zero_stream_t stream)
{
    const zero_context_t *context = offload->context;
    const zero_host_address_t host = zero_offload_address(offload, context->plan.state_elems + chunk->begin);
    const zero_state_buffer_t *buffer = chunk->buffer;
    const size_t array_bytes = zero_array_bytes(context->plan.array_format, chunk->n_elems);
    const bool has_params = zero_plan_offloads_params(&context->plan, chunk->unit);
    const struct {
        void *host, *staged;
        size_t n_bytes;
    } parts[] = {
        {host.m, zero_state_buffer_m(offload, buffer), array_bytes},
        {host.v, zero_state_buffer_v(offload, buffer), host.v ? array_bytes : 0},
        {host.master_lo, zero_state_buffer_master_lo(offload, buffer),
         chunk->n_elems * zero_master_lo_size(context->config.dtype)},
        {zero_offload_param(offload, context->plan.state_elems + chunk->begin),
         zero_state_buffer_param(offload, buffer),
         has_params ? chunk->n_elems * zero_dtype_size(context->config.dtype) : 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].n_bytes > 0 && fetches)
            ZERO_TRY(zero_offload_copy_in(offload, parts[i].staged, parts[i].host, parts[i].n_bytes, stream));
        else if (parts[i].n_bytes > 0)
            ZERO_TRY(zero_offload_copy_out(offload, parts[i].host, parts[i].staged, parts[i].n_bytes, stream));
    return ZERO_OK;
}

/* Copies a chunk's state into its buffer, once what was in that has been stored. */
static zero_status_t fetch_state(zero_offload_t *offload, int c)
{
    zero_device_t *device = offload->context->device;
    const zero_state_chunk_t *chunk = &zero_state_staging_of(offload)->chunks[c];
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, chunk->buffer->stored));
    ZERO_TRY(copy_state(offload, chunk, true, offload->in_stream));
    return device->ops->event_record(device, chunk->buffer->fetched, offload->in_stream);
}

static zero_status_t fetch_grads(zero_offload_t *offload, int c)
{
    const zero_state_chunk_t *chunk = &zero_state_staging_of(offload)->chunks[c];
    if (chunk->grads_at != ZERO_GRADS_ON_HOST)
        return ZERO_OK;
    ZERO_TRY(zero_offload_copy_in(
        offload, zero_state_buffer_grads(chunk->buffer), zero_offload_host_grads(offload, chunk->begin),
        chunk->n_elems * zero_dtype_size(offload->context->plan.reduced_dtype), offload->in_stream));
    zero_device_t *device = offload->context->device;
    return device->ops->event_record(device, chunk->buffer->fetched, offload->in_stream);
}

static zero_status_t update_chunk(zero_offload_t *offload, int c)
{
    zero_device_t *device = offload->context->device;
    zero_stream_t stream = offload->update_stream;
    const zero_state_chunk_t *chunk = &zero_state_staging_of(offload)->chunks[c];
    const zero_state_buffer_t *buffer = chunk->buffer;
    ZERO_TRY(device->ops->stream_wait(device, stream, buffer->fetched));
    zero_adam_t adam = chunk->adam;
    adam.by_tensor = offload->context->by_tensor;
    if (adam.n_segments > 0)
        ZERO_TRY(zero_optimizer_of(&offload->context->config)->update(device->kernels, &adam, stream));
    ZERO_TRY(device->ops->event_record(device, buffer->updated, stream));
    if (!chunk->is_last)
        return ZERO_OK;
    if (chunk->grads_at == ZERO_GRADS_REDUCED)
        ZERO_TRY(device->ops->event_record(device, zero_offload_grads_left(offload, chunk->unit), stream));
    return zero_plan_offloads_params(&offload->context->plan, chunk->unit)
               ? ZERO_OK /* they arrive when they are stored */
               : device->ops->event_record(device, offload->units[chunk->unit].arrived, stream);
}

static zero_status_t store_state(zero_offload_t *offload, int c)
{
    zero_device_t *device = offload->context->device;
    const zero_state_chunk_t *chunk = &zero_state_staging_of(offload)->chunks[c];
    ZERO_TRY(device->ops->stream_wait(device, offload->out_stream, chunk->buffer->updated));
    ZERO_TRY(copy_state(offload, chunk, false, offload->out_stream));
    if (chunk->is_last && zero_plan_offloads_params(&offload->context->plan, chunk->unit))
        ZERO_TRY(device->ops->event_record(device, offload->units[chunk->unit].arrived, offload->out_stream));
    return device->ops->event_record(device, chunk->buffer->stored, offload->out_stream);
}

/* Fetches into the activations whose last reader was this unit's backward, in the step's last pass: the last chunks
 * first, since the buffers of the first have yet to fall idle. */
static zero_status_t borrow(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    zero_device_t *device = offload->context->device;
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    bool is_idle = false;
    for (int c = staging->n_borrowed - 1; c >= 0; c--) {
        if (staging->buffers[c].last != unit)
            continue;
        if (!is_idle) {
            ZERO_TRY(device->ops->event_record(device, staging->idle, stream));
            ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, staging->idle));
        }
        is_idle = staging->buffers[c].is_borrowed = true;
        ZERO_TRY(fetch_state(offload, c));
    }
    return ZERO_OK;
}

/* Fetches as much state as the planned buffers hold, but no gradients: they have yet to be reduced. */
static zero_status_t fetch_ahead(zero_offload_t *offload)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    if (staging->fetched_ahead)
        return ZERO_OK;
    staging->fetched_ahead = true;
    if (offload->context->plan.updates_in_backward)
        staging->n_queued = 0;
    for (int c = staging->n_borrowed; c < staging->n_buffers && c < offload->context->plan.state_staging.n_chunks; c++)
        ZERO_TRY(fetch_state(offload, c));
    return ZERO_OK;
}

/* Copies each chunk's gradients to its buffer or to the host (find_grads); none of them stays. */
static zero_status_t send_grads(zero_offload_t *offload, zero_unit_t unit)
{
    const zero_context_t *context = offload->context;
    const zero_offloaded_unit_t *offloaded = &offload->units[unit];
    const unsigned char *reduced = zero_context_reduced_grads_of(context, unit);
    const size_t size = zero_dtype_size(context->plan.reduced_dtype);
    const zero_state_chunk_t *chunk = zero_state_staging_of(offload)->chunks;
    const zero_state_chunk_t *end = chunk + context->plan.state_staging.n_chunks;
    while (chunk < end && chunk->unit != unit)
        chunk++;
    ZERO_ASSERT(chunk < end);
    for (uint64_t at = offloaded->begin; at < offloaded->end; at += chunk->n_elems, chunk++) {
        const unsigned char *grads = reduced + (at - offloaded->begin) * size;
        const size_t n_bytes = chunk->n_elems * size;
        if (chunk->grads_at == ZERO_GRADS_ON_HOST)
            ZERO_TRY(zero_offload_copy_out(offload, zero_offload_host_grads(offload, chunk->begin), grads, n_bytes,
                                           offload->out_stream));
        else
            ZERO_TRY(zero_device_copy(context->device, zero_state_buffer_grads(chunk->buffer), grads, n_bytes,
                                      offload->out_stream));
    }
    return ZERO_OK;
}

static zero_status_t queue_chunk(zero_offload_t *offload, int c)
{
    if (c >= zero_state_staging_of(offload)->n_buffers)
        ZERO_TRY(fetch_state(offload, c));
    ZERO_TRY(fetch_grads(offload, c));
    ZERO_TRY(update_chunk(offload, c));
    return store_state(offload, c);
}

/* Queues all chunks up to the unit's last, and N_AHEAD more. */
static zero_status_t queue_up_to(zero_offload_t *offload, zero_unit_t unit)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    if (offload->context->plan.updates_in_backward)
        return ZERO_OK; /* each unit's are queued at once */
    while (staging->n_queued < offload->context->plan.state_staging.n_chunks &&
           (staging->n_queued < N_AHEAD || staging->chunks[staging->n_queued - N_AHEAD].unit <= unit))
        ZERO_TRY(queue_chunk(offload, staging->n_queued++));
    return ZERO_OK;
}

/* Queues a unit's chunks, each with the fetch of the chunk that has its buffer next. */
static zero_status_t update_unit(zero_offload_t *offload, zero_unit_t unit)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    const int n_chunks = offload->context->plan.state_staging.n_chunks;
    while (staging->n_queued < n_chunks && staging->chunks[staging->n_queued].unit == unit) {
        const int c = staging->n_queued++;
        ZERO_TRY(update_chunk(offload, c));
        ZERO_TRY(store_state(offload, c));
        if (c + staging->n_buffers < n_chunks)
            ZERO_TRY(fetch_state(offload, c + staging->n_buffers));
    }
    return ZERO_OK;
}

/* Makes `stream` wait until what is in the unit's activations has been stored. Chunks are stored in order, so the wait
 * is for the last one. */
static zero_status_t give_back(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    int last = -1;
    for (int c = 0; c < staging->n_borrowed; c++)
        if (staging->buffers[c].first == unit && staging->buffers[c].is_borrowed) {
            last = c;
            staging->buffers[c].is_borrowed = false;
        }
    if (last < 0)
        return ZERO_OK;
    ZERO_TRY(queue_up_to(offload, staging->chunks[last].unit));
    return zero_streams_compute_wait(offload->context, ZERO_WAIT_OFFLOAD, unit, staging->buffers[last].stored, stream);
}

static zero_status_t update(zero_offload_t *offload)
{
    zero_device_t *device = offload->context->device;
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    ZERO_TRY(fetch_ahead(offload));
    staging->fetched_ahead = false;
    staging->n_queued = 0;
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->grads_sent));
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, offload->grads_sent));
    return queue_up_to(offload, offload->context->plan.host.first);
}

/* What has been fetched may be old by the time of the next step: others may write the state until then. (The last
 * update_unit does not forget it: backward goes on, and would fetch again.) */
static void forget(zero_offload_t *offload)
{
    zero_state_staging_t *staging = zero_state_staging_of(offload);
    staging->fetched_ahead = false;
    if (offload->context->plan.updates_in_backward)
        staging->n_queued = offload->context->plan.state_staging.n_chunks;
    for (int c = 0; c < staging->n_borrowed; c++)
        staging->buffers[c].is_borrowed = false;
}

const zero_offload_backend_t zero_offload_by_device = {
    .create = zero_state_staging_create,
    .start = zero_state_staging_start,
    .destroy = zero_state_staging_destroy,
    .fetch_ahead = fetch_ahead,
    .send_grads = send_grads,
    .update = update,
    .update_unit = update_unit,
    .queue_up_to = queue_up_to,
    .borrow = borrow,
    .give_back = give_back,
    .forget = forget,
};
