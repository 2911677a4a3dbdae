/* offload.c - see offload.h. */
#include "zero/offload.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/engine.h"
#include "zero/host_cores.h"
#include "zero/host_memory.h"
#include "zero/host_pool.h"
#include "zero/log.h"

/* A hosted unit. */
typedef struct host_unit {
    zero_offload_t *offload;
    int item;             /* in the pool's walk: units in forward order */
    uint64_t begin, end;  /* this rank's shard, among hosted elements */
    zero_event_t done;    /* in update_stream: the host has new parameters */
    zero_event_t arrived; /* in in_stream: the device has them */
    bool is_new;          /* no gather has come after it yet */
} host_unit_t;

struct zero_offload {
    const zero_shard_kernels_t *kernels;
    zero_host_pool_t *pool;
    unsigned char *host; /* by plan.host: pinned, where the device has it so */
    bool is_pinned;
    int n_items;
    host_unit_t *units;            /* by unit; those below plan.host.first are unused */
    zero_adam_segment_t *segments; /* of all parts, offsets from host->state_elems */
    zero_adam_t *parts;            /* [n_items][threads] */
    zero_stream_t out_stream, update_stream, in_stream;
    zero_event_t sums_whole;                    /* in the caller's stream: the last unit's */
    zero_event_t sums_left[ZERO_N_HOSTED_SUMS]; /* in out_stream, by zero_plan_hosted_sum's place: copied */
    zero_event_t grads_home;                    /* in out_stream: all that were sent */
    zero_event_t decided;                       /* in the caller's stream */
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

/* ---- building: who updates what ---- */

/* Parts of a unit are cut at multiples of this, so that no two threads write to one cache line. */
#define PART_ELEMS 64

/* Where the part before ends, and `part` begins, of elements [begin, end). */
static uint64_t part_begin(uint64_t begin, uint64_t end, int part, int n_parts)
{
    uint64_t n_runs = (end - begin + PART_ELEMS - 1) / PART_ELEMS;
    uint64_t at = begin + n_runs * (uint64_t)part / (uint64_t)n_parts * PART_ELEMS;
    return at < end ? at : end;
}

/* What AdamW walks over of the unit's hosted elements [from, to), which are its grad, param and state alike. Returns
 * how many. */
static size_t build_segments(const zero_engine_t *engine, zero_unit_t unit, uint64_t from, uint64_t to,
                             zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < engine->model->n_tensors; t++) {
        zero_adam_segment_t whole;
        if (engine->model->tensors[t].owner != unit || !zero_engine_segment(engine, t, &whole))
            continue;
        uint64_t begin = whole.state - engine->plan.state_elems, end = begin + whole.n_elems;
        begin = begin > from ? begin : from;
        end = end < to ? end : to;
        if (begin < end)
            segments[n++] = (zero_adam_segment_t){
                .n_elems = end - begin, .param = begin, .state = begin, .grad = begin, .decay = whole.decay};
    }
    return n;
}

static void prepare_parts(zero_engine_t *engine)
{
    const zero_host_plan_t *host = &engine->plan.host;
    zero_offload_t *offload = engine->offload;
    zero_adam_segment_t *segments = offload->segments;
    zero_adam_t *part = offload->parts;
    int n_parts = zero_host_pool_n_threads(offload->pool);
    for (zero_unit_t u = host->first; u < engine->layout.n_units; u++) {
        host_unit_t *unit = &offload->units[u];
        unit->offload = offload;
        unit->item = u - host->first;
        unit->begin = engine->layout.units[u].shard_offset - engine->plan.state_elems;
        unit->end = unit->begin + engine->layout.units[u].shard_elems;
        for (int p = 0; p < n_parts; p++, part++) {
            *part = (zero_adam_t){
                .param_dtype = engine->config.dtype,
                .param = host_at(engine, host->params),
                .low = engine->config.dtype == ZERO_FP32 ? NULL : host_at(engine, host->low),
                .m = host_at(engine, host->m),
                .v = host_at(engine, host->v),
                .grad = host_at(engine, host->grads),
                .segments = segments,
                .n_segments = build_segments(engine, u, part_begin(unit->begin, unit->end, p, n_parts),
                                             part_begin(unit->begin, unit->end, p + 1, n_parts), segments),
                .scalars = host_at(engine, host->scalars),
            };
            segments += part->n_segments;
        }
    }
}

/* ---- building: memory ---- */

/* Each thread writes what it will update: pages then lie near it. */
static void touch_part(void *args, int item, int part, int n_parts)
{
    const zero_engine_t *engine = args;
    const zero_host_plan_t *host = &engine->plan.host;
    const host_unit_t *unit = &engine->offload->units[host->first + item];
    uint64_t from = part_begin(unit->begin, unit->end, part, n_parts);
    uint64_t n = part_begin(unit->begin, unit->end, part + 1, n_parts) - from;
    size_t size = zero_dtype_size(engine->config.dtype), low_size = zero_low_size(engine->config.dtype);
    memset((unsigned char *)host_at(engine, host->params) + from * size, 0, n * size);
    memset((unsigned char *)host_at(engine, host->low) + from * low_size, 0, n * low_size);
    memset((float *)host_at(engine, host->m) + from, 0, n * sizeof(float));
    memset((float *)host_at(engine, host->v) + from, 0, n * sizeof(float));
    memset((float *)host_at(engine, host->grads) + from, 0, n * sizeof(float));
}

static zero_status_t create_memory(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    uint64_t n_bytes = engine->plan.memory.pinned_bytes;
    void *host;
    ZERO_TRY(zero_host_map(n_bytes, &host));
    offload->host = host;
    prepare_parts(engine);
    zero_host_pool_start(offload->pool, offload->n_items, touch_part, engine);
    zero_host_pool_await(offload->pool, offload->n_items - 1);
    if (!device->ops->host_pin)
        return ZERO_OK;
    offload->is_pinned = device->ops->host_pin(device, host, n_bytes) == ZERO_OK;
    if (!offload->is_pinned)
        zero_log(ZERO_LOG_WARNING,
                 "offload goes on with memory that is not pinned, whose copies are slow and hold up the host: %.2f GiB "
                 "could not be pinned. Raise the limit of locked memory (ulimit -l unlimited; in containers "
                 "--ulimit memlock=-1) or the container's memory, or take a smaller offload_ratio",
                 (double)n_bytes / (1024.0 * 1024.0 * 1024.0));
    return ZERO_OK;
}

/* ---- building: the rest ---- */

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
    for (int i = 0; i < ZERO_N_HOSTED_SUMS; i++)
        ZERO_TRY(device->ops->event_create(device, false, &offload->sums_left[i]));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        ZERO_TRY(device->ops->event_create(device, false, &offload->units[unit].done));
        ZERO_TRY(device->ops->event_create(device, false, &offload->units[unit].arrived));
    }
    return ZERO_OK;
}

/* One line, and one more where ranks seem to be bound to far less than the machine has, as mpirun binds two. */
static void say_where(const zero_engine_t *engine, const cpu_set_t *cores, size_t n_threads)
{
    long n_cores = CPU_COUNT(cores), n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (engine->host_comm->rank > 0)
        return;
    zero_log(ZERO_LOG_INFO, "offload: each rank updates with %zu thread%s, %s", n_threads, n_threads == 1 ? "" : "s",
             n_cores > 0 ? "bound to its share of the cores near its device" : "which are not bound");
    if (n_cores > 0 && 4 * n_cores * engine->host_comm->local_size < n_processors)
        zero_log(ZERO_LOG_WARNING,
                 "offload: rank 0 may use %ld core%s of a machine with %ld processors: where mpirun bound it to them, "
                 "--bind-to none lets it have its share",
                 n_cores, n_cores == 1 ? "" : "s", n_processors);
}

static zero_status_t build(zero_engine_t *engine, const cpu_set_t *cores)
{
    zero_offload_t *offload = engine->offload;
    int n_sharers = engine->host_comm->local_size;
    size_t n_units = (size_t)engine->layout.n_units;
    size_t n_threads = (size_t)zero_host_cores_n_threads(cores, engine->config.offload_threads, n_sharers);
    offload->kernels = zero_shard_kernels_cpu();
    offload->n_items = engine->layout.n_units - engine->plan.host.first;
    offload->units = calloc(n_units, sizeof *offload->units);
    offload->parts = calloc((size_t)offload->n_items * n_threads, sizeof *offload->parts);
    /* A cut makes one segment more. */
    offload->segments =
        calloc((size_t)engine->model->n_tensors + (size_t)offload->n_items * n_threads, sizeof *offload->segments);
    if (!offload->units || !offload->parts || !offload->segments)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    ZERO_TRY(zero_host_pool_create(cores, (int)n_threads, offload->n_items, &offload->pool));
    ZERO_TRY(create_memory(engine));
    say_where(engine, cores, n_threads);
    return create_queues(engine);
}

zero_status_t zero_offload_create(zero_engine_t *engine)
{
    zero_device_t *device = engine->device;
    zero_comm_t *comm = engine->host_comm;
    cpu_set_t cores;
    char address[32];
    if (engine->plan.host.first == engine->layout.n_units)
        return ZERO_OK;
    bool has_address = device->ops->pci_address && device->ops->pci_address(device, address, sizeof address);
    ZERO_TRY(zero_host_cores_find(comm, has_address ? address : NULL, &cores));
    if (engine->config.offload_threads > CPU_COUNT(&cores))
        zero_host_cores_add_siblings(&cores);
    ZERO_TRY(zero_comm_agree(comm, zero_host_check_share(engine->plan.memory.pinned_bytes, comm->local_size,
                                                         (double)engine->config.offload_ram, zero_host_ram_bytes())));
    engine->offload = calloc(1, sizeof *engine->offload);
    return zero_comm_agree(comm, engine->offload ? build(engine, &cores)
                                                 : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload"));
}

void zero_offload_destroy(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    if (!offload)
        return;
    for (zero_unit_t unit = 0; offload->units && unit < engine->layout.n_units; unit++) {
        device->ops->event_destroy(device, offload->units[unit].done);
        device->ops->event_destroy(device, offload->units[unit].arrived);
    }
    for (int i = 0; i < ZERO_N_HOSTED_SUMS; i++)
        device->ops->event_destroy(device, offload->sums_left[i]);
    device->ops->event_destroy(device, offload->sums_whole);
    device->ops->event_destroy(device, offload->grads_home);
    device->ops->event_destroy(device, offload->decided);
    device->ops->stream_destroy(device, offload->out_stream);
    device->ops->stream_destroy(device, offload->update_stream);
    device->ops->stream_destroy(device, offload->in_stream);
    zero_host_pool_destroy(offload->pool);
    if (offload->is_pinned)
        device->ops->host_unpin(device, offload->host);
    zero_host_unmap(offload->host, engine->plan.memory.pinned_bytes);
    free(offload->segments);
    free(offload->parts);
    free(offload->units);
    free(offload);
}

/* ---- a step ---- */

static zero_event_t *sums_left(const zero_engine_t *engine, zero_unit_t unit)
{
    return &engine->offload->sums_left[zero_plan_hosted_sum(&engine->plan, unit)];
}

zero_status_t zero_offload_send_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    float *home = (float *)host_at(engine, engine->plan.host.grads) + offload->units[unit].begin;
    ZERO_TRY(device->ops->event_record(device, offload->sums_whole, stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->out_stream, offload->sums_whole));
    ZERO_TRY(zero_device_copy(device, home, zero_engine_sum(engine, unit),
                              engine->layout.units[unit].shard_elems * sizeof(float), offload->out_stream));
    ZERO_TRY(device->ops->event_record(device, *sums_left(engine, unit), offload->out_stream));
    return device->ops->event_record(device, offload->grads_home, offload->out_stream);
}

zero_status_t zero_offload_await_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    return engine->device->ops->stream_wait(engine->device, stream, *sums_left(engine, unit));
}

static void update_part(void *args, int item, int part, int n_parts)
{
    const zero_offload_t *offload = args;
    (void)offload->kernels->adam(&offload->parts[item * n_parts + part], NULL); /* cannot fail on the CPU */
}

/* On the host, in a thread of the device's. */
static void start_update(void *args)
{
    zero_offload_t *offload = args;
    zero_host_pool_start(offload->pool, offload->n_items, update_part, offload);
}

static void await_update(void *args)
{
    const host_unit_t *unit = args;
    zero_host_pool_await(unit->offload->pool, unit->item);
}

/* The unit's new parameters, when the host has them: to their place in the window. */
static zero_status_t bring_params(zero_engine_t *engine, zero_unit_t u)
{
    zero_offload_t *offload = engine->offload;
    const zero_device_ops_t *ops = engine->device->ops;
    zero_device_t *device = engine->device;
    host_unit_t *unit = &offload->units[u];
    size_t size = zero_dtype_size(engine->config.dtype);
    uint64_t begin, end;
    zero_engine_held(engine, u, &begin, &end);
    zero_adam_segment_t at = zero_engine_place(engine, u, begin);
    ZERO_TRY(ops->host_call(device, offload->update_stream, await_update, unit));
    ZERO_TRY(ops->event_record(device, unit->done, offload->update_stream));
    ZERO_TRY(ops->stream_wait(device, offload->in_stream, unit->done));
    ZERO_TRY(zero_device_copy(device, (unsigned char *)zero_engine_params(engine) + at.param * size,
                              zero_offload_place(engine, at.state).param, (end - begin) * size, offload->in_stream));
    unit->is_new = true;
    return ops->event_record(device, unit->arrived, offload->in_stream);
}

zero_status_t zero_offload_update(zero_engine_t *engine, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    const zero_device_ops_t *ops = device->ops;
    const zero_step_scratch_t *decision = zero_engine_private(engine, engine->plan.step_scratch);
    const host_unit_t *last = &offload->units[engine->layout.n_units - 1];
    ZERO_TRY(ops->event_record(device, offload->decided, stream));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->decided));
    ZERO_TRY(ops->stream_wait(device, offload->update_stream, offload->grads_home));
    ZERO_TRY(zero_device_copy(device, host_at(engine, engine->plan.host.scalars), &decision->scalars,
                              sizeof decision->scalars, offload->update_stream));
    ZERO_TRY(ops->host_call(device, offload->update_stream, start_update, offload));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++)
        ZERO_TRY(bring_params(engine, unit));
    /* The next step's gradients and scalars overwrite what the host reads now, and its updates what is on its way in.
     */
    ZERO_TRY(ops->stream_wait(device, offload->out_stream, last->done));
    return ops->stream_wait(device, offload->update_stream, last->arrived);
}

zero_status_t zero_offload_await_params(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream, bool *is_new)
{
    host_unit_t *hosted = &engine->offload->units[unit];
    *is_new = hosted->is_new;
    if (!hosted->is_new)
        return ZERO_OK;
    hosted->is_new = false;
    if (!engine->overlapped) /* compute itself stands still */
        return zero_engine_wait(engine, unit, hosted->arrived, stream);
    return engine->device->ops->stream_wait(engine->device, stream, hosted->arrived);
}
