/* update_on_host.c - the CPU updates hosted state where it lies: threads of our own, bound near the device
 * (host_pool.h), walk over all units at once, and a call in update_stream awaits each; its new parameters then go to
 * the device in in_stream, under the forward pass of the units before it.
 *
 * The host keeps a copy of the parameters, which the device only receives. */
#include <stdlib.h>

#include "base/log.h"
#include "zero/offload/offload_backend.h"

/* A unit, as the pool walks over it. */
typedef struct item {
    zero_host_pool_t *pool;
    int number;        /* units in forward order */
    zero_event_t done; /* in update_stream: the host has new parameters */
} item_t;

typedef struct host_backend {
    const zero_shard_kernels_t *kernels;
    zero_host_pool_t *pool;
    int n_items;
    item_t *items;
    zero_adam_segment_t *segments; /* of all parts */
    zero_adam_t *parts;            /* [n_items][threads] */
} host_backend_t;

static host_backend_t *backend_of(const zero_engine_t *engine)
{
    return engine->offload->backend_state;
}

/* ---- building: who updates what ---- */

static zero_adam_t part_of(const zero_engine_t *engine, zero_unit_t unit, int part, zero_adam_segment_t *segments)
{
    const zero_host_plan_t *host = &engine->plan.host;
    const zero_offloaded_unit_t *hosted = &engine->offload->units[unit];
    int n_parts = zero_host_pool_n_threads(engine->offload->pool);
    uint64_t from = zero_offload_part_begin(hosted->begin, hosted->end, part, n_parts);
    uint64_t to = zero_offload_part_begin(hosted->begin, hosted->end, part + 1, n_parts);
    size_t n_segments = zero_offload_segments(engine, unit, from, to, segments);
    for (size_t i = 0; i < n_segments; i++)
        segments[i].param = segments[i].state;
    return (zero_adam_t){
        .param_dtype = engine->config.dtype,
        .param = zero_offload_host_at(engine, host->params),
        .master_lo = engine->config.dtype == ZERO_FP32 ? NULL : zero_offload_host_at(engine, host->low),
        .m = zero_offload_host_at(engine, host->m),
        .v = zero_offload_host_at(engine, host->v),
        .grad = zero_offload_host_at(engine, host->grads),
        .segments = segments,
        .n_segments = n_segments,
        .scalars = zero_offload_host_at(engine, host->scalars),
    };
}

static zero_status_t create(zero_engine_t *engine)
{
    zero_unit_t first = engine->plan.host.first;
    host_backend_t *way = calloc(1, sizeof *way);
    engine->offload->backend_state = way;
    if (!way)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    way->kernels = zero_shard_kernels_cpu();
    way->pool = engine->offload->pool;
    way->n_items = engine->layout.n_units - first;
    size_t n_threads = (size_t)zero_host_pool_n_threads(way->pool), n_parts = (size_t)way->n_items * n_threads;
    way->items = calloc((size_t)way->n_items, sizeof *way->items);
    way->parts = calloc(n_parts, sizeof *way->parts);
    /* A cut makes one segment more. */
    way->segments = calloc((size_t)engine->model->n_tensors + n_parts, sizeof *way->segments);
    if (!way->items || !way->parts || !way->segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    zero_adam_segment_t *segments = way->segments;
    for (int i = 0; i < way->n_items; i++) {
        way->items[i] = (item_t){.pool = way->pool, .number = i};
        ZERO_TRY(engine->device->ops->event_create(engine->device, false, &way->items[i].done));
        for (size_t part = 0; part < n_threads; part++) {
            zero_adam_t *adam = &way->parts[(size_t)i * n_threads + part];
            *adam = part_of(engine, first + i, (int)part, segments);
            segments += adam->n_segments;
        }
    }
    return ZERO_OK;
}

static void destroy(zero_engine_t *engine)
{
    host_backend_t *way = backend_of(engine);
    if (!way)
        return;
    for (int i = 0; way->items && i < way->n_items; i++)
        engine->device->ops->event_destroy(engine->device, way->items[i].done);
    free(way->items);
    free(way->parts);
    free(way->segments);
    free(way);
}

/* ---- a step ---- */

static zero_status_t send_grads(zero_engine_t *engine, zero_unit_t unit)
{
    return zero_device_copy(engine->device, zero_offload_host_grads(engine, engine->offload->units[unit].begin),
                            zero_engine_reduced_grads_of(engine, unit),
                            engine->layout.units[unit].shard_elems * sizeof(float), engine->offload->out_stream);
}

static void update_part(void *args, int item, int part, int n_parts)
{
    const host_backend_t *way = args;
    (void)way->kernels->adam(&way->parts[item * n_parts + part], NULL); /* cannot fail on the CPU */
}

/* On the host, in a thread of the device's. */
static void start_update(void *args)
{
    host_backend_t *way = args;
    zero_host_pool_start(way->pool, way->n_items, update_part, way);
}

static void await_update(void *args)
{
    const item_t *item = args;
    zero_host_pool_await(item->pool, item->number);
}

/* The unit's new parameters, when the host has them: to their place in the window. */
static zero_status_t bring_params(zero_engine_t *engine, zero_unit_t unit)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    item_t *item = &backend_of(engine)->items[unit - engine->plan.host.first];
    size_t size = zero_dtype_size(engine->config.dtype);
    uint64_t begin, end;
    zero_engine_held(engine, unit, &begin, &end);
    zero_adam_segment_t at = zero_engine_segment_at(engine, unit, begin);
    ZERO_TRY(device->ops->host_call(device, offload->update_stream, await_update, item));
    ZERO_TRY(device->ops->event_record(device, item->done, offload->update_stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->in_stream, item->done));
    ZERO_TRY(zero_device_copy(device, (unsigned char *)zero_engine_params(engine) + at.param * size,
                              zero_offload_address(engine, at.state).param, (end - begin) * size, offload->in_stream));
    return device->ops->event_record(device, offload->units[unit].arrived, offload->in_stream);
}

static zero_status_t update(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const zero_device_ops_t *ops = device->ops;
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    host_backend_t *way = backend_of(engine);
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->grads_home));
    ZERO_TRY(zero_device_copy(device, zero_offload_host_at(engine, engine->plan.host.scalars), &decision->scalars,
                              sizeof decision->scalars, offload->update_stream));
    ZERO_TRY(ops->host_call(device, offload->update_stream, start_update, way));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++)
        ZERO_TRY(bring_params(engine, unit));
    /* The next step's gradients and scalars overwrite what the host reads now, and its updates what is on its way in.
     */
    ZERO_TRY(ops->stream_wait(device, offload->out_stream, way->items[way->n_items - 1].done));
    return ops->stream_wait(device, offload->update_stream, offload->units[engine->layout.n_units - 1].arrived);
}

const zero_offload_backend_t zero_offload_by_host = {
    .create = create, .destroy = destroy, .send_grads = send_grads, .update = update};
