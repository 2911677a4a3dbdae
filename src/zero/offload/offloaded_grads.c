/* offloaded_grads.c - reduced gradients of offloaded units, on their way to where the update looks for them, and sums
 * that wait in host memory from one micro-step to the next. */
#include "base/log.h"
#include "zero/device/device.h"
#include "zero/offload/offload_backend.h"
#include "zero/runtime/addresses.h"

/* ---- addresses ---- */

zero_event_t zero_offload_grads_left(const zero_offload_t *offload, zero_unit_t unit)
{
    return offload->grads_left[offload->context->plan.turns.of_unit[unit]];
}

/* Returns the first offloaded element whose gradient has room on the host. */
static uint64_t first_grad(const zero_offload_t *offload)
{
    const zero_arena_plan_t *plan = &offload->context->plan;
    const zero_unit_t first = zero_plan_first_grads_on_host(plan);
    return first < offload->context->layout.n_units ? offload->units[first].begin : plan->host.n_elems;
}

void *zero_offload_host_grads(const zero_offload_t *offload, uint64_t offloaded_elem)
{
    const size_t size = zero_dtype_size(offload->context->plan.reduced_dtype);
    return zero_offload_host_at(offload,
                                offload->context->plan.host.grads + (offloaded_elem - first_grad(offload)) * size);
}

/* ---- a step ---- */

/* Returns the bytes of a unit's reduced gradients. */
static uint64_t grad_bytes(const zero_context_t *context, zero_unit_t unit)
{
    return context->layout.units[unit].shard_elems * zero_dtype_size(context->plan.reduced_dtype);
}

zero_status_t zero_offload_copy_grads_out(zero_offload_t *offload, zero_unit_t unit)
{
    const zero_context_t *context = offload->context;
    return zero_offload_copy_out(offload, zero_offload_host_grads(offload, offload->units[unit].begin),
                                 zero_context_reduced_grads_of(context, unit), grad_bytes(context, unit),
                                 offload->out_stream);
}

/* Has `copy` take a unit's gradients, which have been reduced in `stream`, away from their buffer. */
static zero_status_t send(zero_offload_t *offload, zero_unit_t unit,
                          zero_status_t (*copy)(zero_offload_t *offload, zero_unit_t unit), zero_stream_t stream)
{
    zero_device_t *device = offload->context->device;
    ZERO_TRY(device->ops->event_record(device, offload->grads_reduced, stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->out_stream, offload->grads_reduced));
    ZERO_TRY(copy(offload, unit));
    ZERO_TRY(device->ops->event_record(device, zero_offload_grads_left(offload, unit), offload->out_stream));
    return device->ops->event_record(device, offload->grads_sent, offload->out_stream);
}

zero_status_t zero_offload_send_grads(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    offload->units[unit].has_sums = false;
    ZERO_TRY(zero_offload_fetch_ahead(offload));
    return unit < offload->context->plan.host.first_sent ? ZERO_OK
                                                         : send(offload, unit, offload->backend->send_grads, stream);
}

zero_status_t zero_offload_send_sums(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    offload->units[unit].has_sums = false;
    return send(offload, unit, zero_offload_copy_grads_out, stream);
}

/* With updates in backward the buffer was last read in update_stream, which grads_left says; that the unit's own sums
 * have reached the host then takes a second event. */
zero_status_t zero_offload_fetch_sums(zero_offload_t *offload, zero_unit_t unit)
{
    const zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    zero_offloaded_unit_t *offloaded = &offload->units[unit];
    if (offloaded->has_sums)
        return ZERO_OK;
    offloaded->has_sums = true;
    ZERO_TRY(device->ops->stream_wait(device, offload->sums_stream, zero_offload_grads_left(offload, unit)));
    if (context->plan.updates_in_backward)
        ZERO_TRY(device->ops->stream_wait(device, offload->sums_stream, offload->grads_sent));
    ZERO_TRY(zero_offload_copy_in(offload, zero_context_reduced_grads_of(context, unit),
                                  zero_offload_host_grads(offload, offloaded->begin), grad_bytes(context, unit),
                                  offload->sums_stream));
    return device->ops->event_record(device, offload->sums_back[context->plan.turns.of_unit[unit]],
                                     offload->sums_stream);
}

zero_status_t zero_offload_await_grads(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    zero_context_t *context = offload->context;
    const zero_event_t ready = offload->units[unit].has_sums ? offload->sums_back[context->plan.turns.of_unit[unit]]
                                                             : zero_offload_grads_left(offload, unit);
    /* Compute may wait for an update in backward, or for sums to come back; else it is a short copy. */
    const bool may_take_long = context->plan.updates_in_backward || context->plan.host.holds_sums;
    if (may_take_long && stream != context->streams.reduce)
        return zero_streams_compute_wait(context, ZERO_WAIT_OFFLOAD, unit, ready, stream);
    return context->device->ops->stream_wait(context->device, stream, ready);
}
