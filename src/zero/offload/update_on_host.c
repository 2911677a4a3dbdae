/* update_on_host.c - the CPU updates offloaded state in host memory: threads bound near the device (host_pool.h) go
 * through all units, and a host call in update_stream waits for each unit. Its new parameters are then copied to the
 * device in in_stream, under the forward pass of the units before it.
 *
 * The host keeps a copy of the parameters; the device only receives them. */
#include <stdlib.h>

#include "base/log.h"
#include "zero/offload/offload_backend.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"

/* One unit, for the pool. */
typedef struct item {
    zero_host_pool_t *pool;
    int number;        /* in forward order */
    zero_event_t done; /* in update_stream: the host has its new parameters */
} item_t;

typedef struct host_backend {
    const zero_shard_kernels_t *kernels;
    const zero_optimizer_ops_t *optimizer;
    zero_host_pool_t *pool;
    int n_items;
    item_t *items;
    zero_adam_segment_t *segments; /* of all parts */
    zero_adam_t *parts;            /* [n_items][threads] */
    /* On the host, in the step that the pool works on: NULL while no tensor has rules of its own. */
    const zero_tensor_scalars_t *by_tensor, *tensor_scalars;
} host_backend_t;

static host_backend_t *backend_of(const zero_offload_t *offload)
{
    return offload->backend_state;
}

/* Returns where the scalars of every tensor are on the host: behind those of the step. */
static zero_tensor_scalars_t *tensor_scalars_of(const zero_offload_t *offload)
{
    const zero_adam_scalars_t *scalars = zero_offload_host_at(offload, offload->context->plan.host.scalars);
    return (zero_tensor_scalars_t *)(void *)(scalars + 1);
}

/* ---- creating: which thread updates what ---- */

static zero_adam_t part_of(const zero_offload_t *offload, zero_unit_t unit, int part, zero_adam_segment_t *segments)
{
    const zero_host_plan_t *host = &offload->context->plan.host;
    zero_dtype_t dtype = offload->context->config.dtype;
    const zero_offloaded_unit_t *offloaded = &offload->units[unit];
    int n_parts = zero_host_pool_n_threads(offload->pool);
    uint64_t from = zero_offload_part_begin(offloaded->begin, offloaded->end, part, n_parts);
    uint64_t to = zero_offload_part_begin(offloaded->begin, offloaded->end, part + 1, n_parts);
    size_t n_segments = zero_offload_segments(offload, unit, from, to, segments);
    for (size_t i = 0; i < n_segments; i++)
        segments[i].param = segments[i].state;
    return (zero_adam_t){
        .param_dtype = dtype,
        .param = zero_offload_host_at(offload, host->params),
        .master_lo = dtype == ZERO_FP32 ? NULL : zero_offload_host_at(offload, host->master_lo),
        .m = zero_offload_host_at(offload, host->m),
        .v = offload->context->plan.n_arrays > 1 ? zero_offload_host_at(offload, host->v) : NULL,
        .grad_dtype = offload->context->plan.reduced_dtype,
        .grad = zero_offload_host_at(offload, host->grads),
        .segments = segments,
        .n_segments = n_segments,
        .scalars = zero_offload_host_at(offload, host->scalars),
    };
}

static zero_status_t create(zero_offload_t *offload)
{
    const zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    zero_unit_t first = context->plan.host.first;
    host_backend_t *backend = calloc(1, sizeof *backend);
    offload->backend_state = backend;
    if (!backend)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    backend->kernels = zero_shard_kernels_cpu();
    backend->optimizer = zero_optimizer_of(&context->config);
    backend->pool = offload->pool;
    backend->tensor_scalars = tensor_scalars_of(offload);
    backend->n_items = context->layout.n_units - first;
    size_t n_threads = (size_t)zero_host_pool_n_threads(backend->pool), n_parts = (size_t)backend->n_items * n_threads;
    backend->items = calloc((size_t)backend->n_items, sizeof *backend->items);
    backend->parts = calloc(n_parts, sizeof *backend->parts);
    /* A cut makes one segment more. */
    backend->segments = calloc((size_t)context->model->n_tensors + n_parts, sizeof *backend->segments);
    if (!backend->items || !backend->parts || !backend->segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    zero_adam_segment_t *segments = backend->segments;
    for (int i = 0; i < backend->n_items; i++) {
        backend->items[i] = (item_t){.pool = backend->pool, .number = i};
        ZERO_TRY(device->ops->event_create(device, false, &backend->items[i].done));
        for (size_t part = 0; part < n_threads; part++) {
            zero_adam_t *adam = &backend->parts[(size_t)i * n_threads + part];
            *adam = part_of(offload, first + i, (int)part, segments);
            segments += adam->n_segments;
        }
    }
    return ZERO_OK;
}

static void destroy(zero_offload_t *offload)
{
    host_backend_t *backend = backend_of(offload);
    zero_device_t *device = offload->context->device;
    if (!backend)
        return;
    for (int i = 0; backend->items && i < backend->n_items; i++)
        device->ops->event_destroy(device, backend->items[i].done);
    free(backend->items);
    free(backend->parts);
    free(backend->segments);
    free(backend);
}

/* ---- a step ---- */

static void update_part(void *args, int item, int part, int n_parts)
{
    const host_backend_t *backend = args;
    zero_adam_t adam = backend->parts[item * n_parts + part];
    adam.by_tensor = backend->by_tensor;
    (void)backend->optimizer->update(backend->kernels, &adam, NULL); /* cannot fail on the CPU */
}

/* These three run on the host, in a thread of the device's. */
static void start_update(void *args)
{
    host_backend_t *backend = args;
    backend->by_tensor = NULL;
    zero_host_pool_start(backend->pool, backend->n_items, update_part, backend);
}

static void start_update_by_tensor(void *args)
{
    host_backend_t *backend = args;
    backend->by_tensor = backend->tensor_scalars;
    zero_host_pool_start(backend->pool, backend->n_items, update_part, backend);
}

static void await_update(void *args)
{
    const item_t *item = args;
    zero_host_pool_await(item->pool, item->number);
}

/* Copies the unit's new parameters to the window, if they are used there, once the host has them. */
static zero_status_t copy_params(zero_offload_t *offload, zero_unit_t unit)
{
    const zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    item_t *item = &backend_of(offload)->items[unit - context->plan.host.first];
    size_t size = zero_dtype_size(context->config.dtype);
    uint64_t begin, end;
    zero_context_held(context, unit, &begin, &end);
    zero_adam_segment_t at = zero_context_segment_at(context, unit, begin);
    ZERO_TRY(device->ops->host_call(device, offload->update_stream, await_update, item));
    ZERO_TRY(device->ops->event_record(device, item->done, offload->update_stream));
    if (zero_plan_offloads_params(&context->plan, unit)) /* they are fetched for every use */
        return device->ops->event_record(device, offload->units[unit].arrived, offload->update_stream);
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, item->done));
    ZERO_TRY(zero_offload_copy_in(offload, (unsigned char *)zero_context_params(context) + at.param * size,
                                  zero_offload_param(offload, at.state), (end - begin) * size, offload->in_stream));
    return device->ops->event_record(device, offload->units[unit].arrived, offload->in_stream);
}

static zero_status_t copy_scalars(zero_offload_t *offload)
{
    const zero_context_t *context = offload->context;
    const zero_adam_scalars_t *scalars = &zero_context_step_scratch(context)->scalars;
    zero_tensor_scalars_t *by_tensor = tensor_scalars_of(offload);
    ZERO_TRY(zero_device_copy(context->device, zero_offload_host_at(offload, context->plan.host.scalars), scalars,
                              sizeof *scalars, offload->update_stream));
    if (!context->by_tensor)
        return ZERO_OK;
    return zero_device_copy(context->device, by_tensor, context->by_tensor,
                            (size_t)context->model->n_tensors * sizeof *by_tensor, offload->update_stream);
}

static zero_status_t update(zero_offload_t *offload)
{
    const zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    const zero_device_ops_t *ops = device->ops;
    host_backend_t *backend = backend_of(offload);
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->grads_sent));
    ZERO_TRY(copy_scalars(offload));
    ZERO_TRY(ops->host_call(device, offload->update_stream, context->by_tensor ? start_update_by_tensor : start_update,
                            backend));
    for (zero_unit_t unit = context->plan.host.first; unit < context->layout.n_units; unit++)
        ZERO_TRY(copy_params(offload, unit));
    /* The next step's gradients and scalars overwrite what the host reads now, and its update the parameters that are
     * being copied in. */
    ZERO_TRY(ops->stream_wait(device, offload->out_stream, backend->items[backend->n_items - 1].done));
    return ops->stream_wait(device, offload->update_stream, offload->units[context->layout.n_units - 1].arrived);
}

const zero_offload_backend_t zero_offload_by_host = {
    .create = create, .destroy = destroy, .send_grads = zero_offload_copy_grads_out, .update = update};
