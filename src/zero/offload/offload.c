/* offload.c - what both ways of updating hosted state share: where it lies, gradients on their way out, who waits. */
#include "zero/offload/offload.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/offload/host_cores.h"
#include "zero/device/host_memory.h"
#include "base/log.h"
#include "zero/offload/offload_backend.h"

/* ---- places ---- */

void *zero_offload_host_at(const zero_engine_t *engine, uint64_t offset)
{
    return engine->offload->host + offset;
}

bool zero_offload_has(const zero_engine_t *engine, zero_unit_t unit)
{
    return unit >= engine->plan.host.first;
}

zero_event_t zero_offload_grads_left(const zero_engine_t *engine, zero_unit_t unit)
{
    return engine->offload->grads_left[zero_plan_offloaded_grads(&engine->plan, unit)];
}

zero_host_address_t zero_offload_address(const zero_engine_t *engine, uint64_t state)
{
    const zero_host_plan_t *host = &engine->plan.host;
    uint64_t at = state - engine->plan.state_elems;
    zero_dtype_t dtype = engine->config.dtype;
    unsigned char *params = zero_offload_host_at(engine, host->params), *low = zero_offload_host_at(engine, host->low);
    return (zero_host_address_t){
        .param = host->update == ZERO_OFFLOAD_UPDATE_HOST ? params + at * zero_dtype_size(dtype) : NULL,
        .low = dtype == ZERO_FP32 ? NULL : low + at * zero_master_lo_size(dtype),
        .m = (float *)zero_offload_host_at(engine, host->m) + at,
        .v = (float *)zero_offload_host_at(engine, host->v) + at,
    };
}

/* The first hosted element whose gradient is sent. */
static uint64_t first_sent(const zero_engine_t *engine)
{
    zero_unit_t unit = engine->plan.host.first_sent;
    return unit < engine->layout.n_units ? engine->offload->units[unit].begin : engine->plan.host.n_elems;
}

float *zero_offload_host_grads(const zero_engine_t *engine, uint64_t offloaded_elem)
{
    return (float *)zero_offload_host_at(engine, engine->plan.host.grads) + (offloaded_elem - first_sent(engine));
}

/* Parts of a unit are cut at multiples of this, so that no two threads write to one cache line. */
#define PART_ELEMS 64

uint64_t zero_offload_part_begin(uint64_t begin, uint64_t end, int part, int n_parts)
{
    uint64_t n_runs = (end - begin + PART_ELEMS - 1) / PART_ELEMS;
    uint64_t at = begin + n_runs * (uint64_t)part / (uint64_t)n_parts * PART_ELEMS;
    return at < end ? at : end;
}

size_t zero_offload_segments(const zero_engine_t *engine, zero_unit_t unit, uint64_t from, uint64_t to,
                             zero_adam_segment_t *segments)
{
    size_t n = 0;
    for (zero_tensor_t t = 0; t < engine->model->n_tensors; t++) {
        zero_adam_segment_t whole;
        if (engine->model->tensors[t].owner != unit || !zero_engine_segment(engine, t, &whole))
            continue;
        uint64_t whole_begin = whole.state - engine->plan.state_elems, whole_end = whole_begin + whole.n_elems;
        uint64_t begin = whole_begin > from ? whole_begin : from, end = whole_end < to ? whole_end : to;
        if (begin < end)
            segments[n++] = (zero_adam_segment_t){.n_elems = end - begin,
                                                  .param = whole.param + (begin - whole_begin),
                                                  .state = begin,
                                                  .grad = begin,
                                                  .decay = whole.decay};
    }
    return n;
}

/* ---- building ---- */

static zero_status_t prepare_units(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    offload->units = calloc((size_t)engine->layout.n_units, sizeof *offload->units);
    if (!offload->units)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++) {
        zero_offloaded_unit_t *hosted = &offload->units[unit];
        hosted->begin = engine->layout.units[unit].shard_offset - engine->plan.state_elems;
        hosted->end = hosted->begin + engine->layout.units[unit].shard_elems;
    }
    return ZERO_OK;
}

/* Each thread writes what it will update: pages then lie near it, and all of them near the device. */
static void touch_part(void *args, int item, int part, int n_parts)
{
    const zero_engine_t *engine = args;
    const zero_host_plan_t *host = &engine->plan.host;
    const zero_offloaded_unit_t *unit = &engine->offload->units[host->first + item];
    uint64_t from = zero_offload_part_begin(unit->begin, unit->end, part, n_parts);
    uint64_t n = zero_offload_part_begin(unit->begin, unit->end, part + 1, n_parts) - from;
    zero_host_address_t place = zero_offload_address(engine, engine->plan.state_elems + from);
    zero_dtype_t dtype = engine->config.dtype;
    memset(place.m, 0, n * sizeof *place.m);
    memset(place.v, 0, n * sizeof *place.v);
    if (place.low)
        memset(place.low, 0, n * zero_master_lo_size(dtype));
    if (place.param)
        memset(place.param, 0, n * zero_dtype_size(dtype));
    if (host->first + item >= host->first_sent)
        memset(zero_offload_host_grads(engine, from), 0, n * sizeof(float));
}

static zero_status_t create_memory(zero_engine_t *engine, const cpu_set_t *cores)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    uint64_t n_bytes = engine->plan.memory.pinned_bytes;
    int n_items = engine->layout.n_units - engine->plan.host.first;
    int n_threads = zero_host_cores_n_threads(cores, engine->config.offload_threads, engine->host_comm->local_size);
    void *host;
    ZERO_TRY(prepare_units(engine));
    ZERO_TRY(zero_host_map(n_bytes, &host));
    offload->host = host;
    ZERO_TRY(zero_host_pool_create(cores, n_threads, n_items, &offload->pool));
    zero_host_pool_start(offload->pool, n_items, touch_part, engine);
    zero_host_pool_await(offload->pool, n_items - 1);
    if (engine->plan.host.update == ZERO_OFFLOAD_UPDATE_DEVICE) {
        zero_host_pool_destroy(offload->pool);
        offload->pool = NULL;
    }
    offload->is_pinned = device->ops->host_pin && device->ops->host_pin(device, host, n_bytes) == ZERO_OK;
    return ZERO_OK;
}

/* The host's update: one line, and one more where ranks seem to be bound to far less than the machine has, as mpirun
 * binds two. */
static void say_where(const zero_engine_t *engine, const cpu_set_t *cores)
{
    int n_threads = zero_host_pool_n_threads(engine->offload->pool);
    long n_cores = CPU_COUNT(cores), n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (engine->host_comm->rank > 0)
        return;
    zero_log(ZERO_LOG_INFO, "offload: each rank updates with %d thread%s, %s", n_threads, n_threads == 1 ? "" : "s",
             n_cores > 0 ? "bound to its share of the cores near its device" : "which are not bound");
    if (n_cores > 0 && 4 * n_cores * engine->host_comm->local_size < n_processors)
        zero_log(ZERO_LOG_WARNING,
                 "offload: rank 0 may use %ld core%s of a machine with %ld processors: where mpirun bound it to them, "
                 "--bind-to none lets it have its share",
                 n_cores, n_cores == 1 ? "" : "s", n_processors);
}

zero_status_t zero_offload_reserve(zero_engine_t *engine)
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
    zero_status_t status =
        engine->offload ? create_memory(engine, &cores) : zero_fail(ZERO_ERROR_MEMORY, "no memory for offload");
    ZERO_TRY(zero_comm_agree(comm, status));
    if (engine->plan.host.update == ZERO_OFFLOAD_UPDATE_HOST)
        say_where(engine, &cores);
    return ZERO_OK;
}

bool zero_offload_is_held_up(const zero_engine_t *engine)
{
    return engine->offload && engine->device->ops->host_pin && !engine->offload->is_pinned;
}

static void warn_of_pages(const zero_engine_t *engine)
{
    if (!zero_offload_is_held_up(engine))
        return;
    zero_log(ZERO_LOG_WARNING,
             "offload goes on with memory that is not pinned, whose copies are slow and hold up the host: %.2f GiB "
             "could not be pinned. Raise the limit of locked memory (ulimit -l unlimited; in containers "
             "--ulimit memlock=-1) or the container's memory, or take a smaller offload_ratio",
             (double)engine->plan.memory.pinned_bytes / (1024.0 * 1024.0 * 1024.0));
}

static zero_status_t create_queues(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    zero_stream_t *const streams[] = {&offload->out_stream, &offload->update_stream, &offload->in_stream};
    zero_event_t *const events[] = {&offload->grads_reduced, &offload->grads_home, &offload->decided};
    for (size_t i = 0; i < 3; i++) {
        ZERO_TRY(device->ops->stream_create(device, true, streams[i]));
        ZERO_TRY(device->ops->event_create(device, false, events[i]));
    }
    for (int i = 0; i < ZERO_N_OFFLOADED_GRADS; i++)
        ZERO_TRY(device->ops->event_create(device, false, &offload->grads_left[i]));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++)
        ZERO_TRY(device->ops->event_create(device, false, &offload->units[unit].arrived));
    return ZERO_OK;
}

zero_status_t zero_offload_create(zero_engine_t *engine)
{
    static const zero_offload_backend_t *const ways[] = {
        [ZERO_OFFLOAD_UPDATE_DEVICE] = &zero_offload_by_device, [ZERO_OFFLOAD_UPDATE_HOST] = &zero_offload_by_host};
    if (!engine->offload)
        return ZERO_OK;
    warn_of_pages(engine);
    engine->offload->way = ways[engine->plan.host.update];
    ZERO_TRY(create_queues(engine));
    return engine->offload->way->create(engine);
}

void zero_offload_destroy(zero_engine_t *engine)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    if (!offload)
        return;
    if (offload->way)
        offload->way->destroy(engine);
    for (zero_unit_t unit = 0; offload->units && unit < engine->layout.n_units; unit++)
        device->ops->event_destroy(device, offload->units[unit].arrived);
    for (int i = 0; i < ZERO_N_OFFLOADED_GRADS; i++)
        device->ops->event_destroy(device, offload->grads_left[i]);
    device->ops->event_destroy(device, offload->grads_reduced);
    device->ops->event_destroy(device, offload->grads_home);
    device->ops->event_destroy(device, offload->decided);
    device->ops->stream_destroy(device, offload->out_stream);
    device->ops->stream_destroy(device, offload->update_stream);
    device->ops->stream_destroy(device, offload->in_stream);
    zero_host_pool_destroy(offload->pool);
    if (offload->is_pinned)
        device->ops->host_unpin(device, offload->host);
    zero_host_unmap(offload->host, engine->plan.memory.pinned_bytes);
    free(offload->units);
    free(offload);
    engine->offload = NULL;
}

/* ---- a step ---- */

zero_status_t zero_offload_send_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    zero_device_t *device = engine->device;
    if (offload->way->begin)
        ZERO_TRY(offload->way->begin(engine));
    if (unit < engine->plan.host.first_sent)
        return ZERO_OK;
    ZERO_TRY(device->ops->event_record(device, offload->grads_reduced, stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->out_stream, offload->grads_reduced));
    ZERO_TRY(offload->way->send_grads(engine, unit));
    ZERO_TRY(device->ops->event_record(device, zero_offload_grads_left(engine, unit), offload->out_stream));
    return device->ops->event_record(device, offload->grads_home, offload->out_stream);
}

zero_status_t zero_offload_await_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    return engine->device->ops->stream_wait(engine->device, stream, zero_offload_grads_left(engine, unit));
}

zero_status_t zero_offload_start(zero_engine_t *engine)
{
    if (!engine->offload || !engine->offload->way->start)
        return ZERO_OK;
    return zero_comm_agree(engine->host_comm, engine->offload->way->start(engine));
}

zero_status_t zero_offload_lend_activations(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    return engine->offload && engine->offload->way->lend ? engine->offload->way->lend(engine, unit, stream) : ZERO_OK;
}

zero_status_t zero_offload_reclaim_activations(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    return engine->offload && engine->offload->way->take_back ? engine->offload->way->take_back(engine, unit, stream)
                                                              : ZERO_OK;
}

zero_status_t zero_offload_update(zero_engine_t *engine, zero_stream_t stream)
{
    zero_offload_t *offload = engine->offload;
    ZERO_TRY(engine->device->ops->event_record(engine->device, offload->decided, stream));
    ZERO_TRY(offload->way->update(engine));
    for (zero_unit_t unit = engine->plan.host.first; unit < engine->layout.n_units; unit++)
        offload->units[unit].is_new = true;
    return ZERO_OK;
}

static zero_status_t reach(zero_engine_t *engine, zero_unit_t unit)
{
    return engine->offload->way->reach ? engine->offload->way->reach(engine, unit) : ZERO_OK;
}

zero_status_t zero_offload_finish_update(zero_engine_t *engine)
{
    return engine->offload ? reach(engine, engine->layout.n_units - 1) : ZERO_OK;
}

zero_status_t zero_offload_await_params(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream, bool *is_new)
{
    zero_offloaded_unit_t *hosted = &engine->offload->units[unit];
    *is_new = hosted->is_new;
    if (!hosted->is_new)
        return ZERO_OK;
    hosted->is_new = false;
    ZERO_TRY(reach(engine, unit));
    if (!engine->overlapped) /* compute itself stands still */
        return zero_engine_compute_wait(engine, unit, hosted->arrived, stream);
    return engine->device->ops->stream_wait(engine->device, stream, hosted->arrived);
}
