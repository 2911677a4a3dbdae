/* offload.c - see offload.h. */
#include "zero/offload.h"

#include <omp.h>
#include <stdlib.h>

#include "zero/engine.h"
#include "zero/log.h"

/* A hosted unit's update, as the host runs it. */
typedef struct host_update {
    const zero_shard_kernels_t *kernels;
    int n_threads;
    zero_adam_t adam;
    zero_event_t done;    /* in update_stream: the host has new parameters */
    zero_event_t arrived; /* in in_stream: the device has them */
    bool is_new;          /* no gather has come after it yet */
} host_update_t;

struct zero_offload {
    unsigned char *host;           /* pinned, by plan.host */
    zero_adam_segment_t *segments; /* of all hosted units, offsets from host->state_elems */
    host_update_t *updates;        /* by unit; those below plan.host.first are unused */
    zero_stream_t out_stream, update_stream, in_stream;
    zero_event_t sums_whole; /* in the caller's stream: the last unit's */
    zero_event_t grads_home; /* in out_stream: all that were sent */
    zero_event_t decided;    /* in the caller's stream */
};

static void *host_at(const zero_engine_t *engine, uint64_t offset)
{
    return engine->offload->host + offset;
}

bool zero_offload_hosts(const zero_engine_t *engine, zero_unit_t unit)
{
    return unit >= engine->plan.host.first;
}

zero_host_place_t zero_offload_place(const zero_engine_t *engine, uint64_t state)
{
    const zero_host_plan_t *host = &engine->plan.host;
    uint64_t at = state - engine->plan.state_elems;
    zero_dtype_t dtype = engine->config.dtype;
    return (zero_host_place_t){
        .param = (unsigned char *)host_at(engine, host->params) + at * zero_dtype_size(dtype),
        .low = dtype == ZERO_FP32 ? NULL : (unsigned char *)host_at(engine, host->low) + at * zero_low_size(dtype),
        .m = (float *)host_at(engine, host->m) + at,
        .v = (float *)host_at(engine, host->v) + at,
    };
}

/* This rank's shard of a unit: where it stands among hosted elements. */
static uint64_t first_elem(const zero_engine_t *engine, zero_unit_t unit)
{
    return engine->layout.units[unit].shard_offset - engine->plan.state_elems;
}

/* ---- building ---- */

/* A unit's segments, with places in the host's block. Returns how many. */
static size_t build_segments(const zero_engine_t *engine, zero_unit_t unit, zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < engine->model->n_tensors; t++) {
        zero_adam_segment_t *segment = &segments[n];
        if (engine->model->tensors[t].owner != unit || !zero_engine_segment(engine, t, segment))
            continue;
        segment->state -= engine->plan.state_elems;
        segment->param = segment->grad = segment->state;
        n++;
    }
    return n;
}

static void prepare_updates(zero_engine_t *engine)
{
    const zero_host_plan_t *host = &engine->plan.host;
    zero_offload_t *offload = engine->offload;
    zero_adam_segment_t *segments = offload->segments;
    for (zero_unit_t unit = host->first; unit < engine->layout.n_units; unit++) {
        host_update_t *update = &offload->updates[unit];
        size_t n = build_segments(engine, unit, segments);
        update->kernels = zero_shard_kernels_cpu();
        update->n_threads = omp_get_max_threads();
        update->adam = (zero_adam_t){
            .param_dtype = engine->config.dtype,
            .param = host_at(engine, host->params),
            .low = engine->config.dtype == ZERO_FP32 ? NULL : host_at(engine, host->low),
            .m = host_at(engine, host->m),
            .v = host_at(engine, host->v),
            .grad = host_at(engine, host->grads),
            .segments = segments,
            .n_segments = n,
            .scalars = host_at(engine, host->scalars),
        };
        segments += n;
    }
}

static zero_status_t create_queues(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    zero_stream_t *const streams[] = {&offload->out_stream, &offload->update_stream, &offload->in_stream};
    zero_event_t *const events[] = {&offload->sums_whole, &offload->grads_home, &offload->decided};
    for (size_t i = 0; i < 3; i++) {
        ZERO_TRY(device->ops->stream_create(device, true, streams[i]));
        ZERO_TRY(device->ops->event_create(device, false, events[i]));
    }
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        ZERO_TRY(device->ops->event_create(device, false, &offload->updates[unit].done));
        ZERO_TRY(device->ops->event_create(device, false, &offload->updates[unit].arrived));
    }
    return ZERO_OK;
}

zero_status_t zero_offload_create(zero_engine_t *engine, zero_offload_t **offload)
{
    zero_device_t *device = engine->device;
    void *host;
    if (engine->plan.host.first == engine->layout.n_units)
        return ZERO_OK;
    zero_offload_t *made = calloc(1, sizeof *made);
    if (!made)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload");
    *offload = made;
    made->segments = calloc((size_t)engine->model->n_tensors, sizeof *made->segments);
    made->updates = calloc((size_t)engine->layout.n_units, sizeof *made->updates);
    if (!made->segments || !made->updates)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    ZERO_TRY(device->ops->host_alloc(device, engine->plan.memory.pinned_bytes, &host));
    made->host = host;
    prepare_updates(engine);
    return create_queues(engine);
}

void zero_offload_destroy(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    if (!offload)
        return;
    for (zero_unit_t unit = 0; offload->updates && unit < engine->layout.n_units; unit++) {
        device->ops->event_destroy(device, offload->updates[unit].done);
        device->ops->event_destroy(device, offload->updates[unit].arrived);
    }
    device->ops->event_destroy(device, offload->sums_whole);
    device->ops->event_destroy(device, offload->grads_home);
    device->ops->event_destroy(device, offload->decided);
    device->ops->stream_destroy(device, offload->out_stream);
    device->ops->stream_destroy(device, offload->update_stream);
    device->ops->stream_destroy(device, offload->in_stream);
    if (offload->host)
        device->ops->host_free(device, offload->host);
    free(offload->segments);
    free(offload->updates);
    free(offload);
}

/* ---- a step ---- */

zero_status_t zero_offload_send_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    float *home = (float *)host_at(engine, engine->plan.host.grads) + first_elem(engine, unit);
    ZERO_TRY(device->ops->event_record(device, offload->sums_whole, stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->out_stream, offload->sums_whole));
    ZERO_TRY(zero_device_copy(device, home, zero_engine_sum(engine, unit),
                              engine->layout.units[unit].shard_elems * sizeof(float), offload->out_stream));
    return device->ops->event_record(device, offload->grads_home, offload->out_stream);
}

zero_status_t zero_offload_await_grads(zero_engine_t *engine, zero_stream_t stream)
{
    return engine->device->ops->stream_wait(engine->device, stream, engine->offload->grads_home);
}

/* On the host, in a thread of the device's: it has its own number of OpenMP threads. */
static void run_update(void *args)
{
    const host_update_t *update = args;
    omp_set_num_threads(update->n_threads);
    (void)update->kernels->adam(&update->adam, NULL); /* cannot fail on the CPU */
}

zero_status_t zero_offload_update(zero_engine_t *engine, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const zero_device_ops_t *ops = device->ops;
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    size_t size = zero_dtype_size(engine->config.dtype);
    ZERO_TRY(ops->event_record(device, offload->decided, stream));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->grads_home));
    ZERO_TRY(zero_device_copy(device, host_at(engine, engine->plan.host.scalars), &decision->scalars,
                              sizeof decision->scalars, offload->update_stream));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        host_update_t *update = &offload->updates[unit];
        uint64_t begin, end;
        zero_engine_held(engine, unit, &begin, &end);
        zero_adam_segment_t at = zero_engine_place(engine, unit, begin);
        ZERO_TRY(ops->host_call(device, offload->update_stream, run_update, update));
        ZERO_TRY(ops->event_record(device, update->done, offload->update_stream));
        ZERO_TRY(ops->stream_wait(device, offload->in_stream, update->done));
        ZERO_TRY(zero_device_copy(device, (unsigned char *)zero_engine_params(engine) + at.param * size,
                                  zero_offload_place(engine, at.state).param, (end - begin) * size,
                                  offload->in_stream));
        ZERO_TRY(ops->event_record(device, update->arrived, offload->in_stream));
        update->is_new = true;
    }
    /* The next step's gradients and scalars overwrite what the host reads now, and its updates what is on its way in.
     */
    ZERO_TRY(ops->stream_wait(device, offload->out_stream, offload->updates[engine->layout.n_units - 1].done));
    return ops->stream_wait(device, offload->update_stream, offload->updates[engine->layout.n_units - 1].arrived);
}

zero_status_t zero_offload_await_params(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream, bool *is_new)
{
    host_update_t *update = &engine->offload->updates[unit];
    *is_new = update->is_new;
    if (!update->is_new)
        return ZERO_OK;
    update->is_new = false;
    return engine->device->ops->stream_wait(engine->device, stream, update->arrived);
}
