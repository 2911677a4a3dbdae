/* offload.c - what both backends share: host memory, streams, and waiting for an update. */
#include "zero/offload/offload.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "zero/device/device.h"
#include "zero/offload/host_pool.h"
#include "zero/offload/offload_backend.h"
#include "zero/runtime/addresses.h"

/* ---- addresses ---- */

void *zero_offload_host_at(const zero_offload_t *offload, uint64_t offset)
{
    return offload->host + offset;
}

zero_host_address_t zero_offload_address(const zero_offload_t *offload, uint64_t state)
{
    const zero_arena_plan_t *plan = &offload->context->plan;
    const zero_host_plan_t *host = &plan->host;
    zero_dtype_t dtype = offload->context->config.dtype;
    uint64_t at = state - plan->state_elems, in_array = zero_array_bytes(plan->array_format, at);
    unsigned char *master_lo = zero_offload_host_at(offload, host->master_lo);
    return (zero_host_address_t){
        .master_lo = dtype == ZERO_FP32 ? NULL : master_lo + at * zero_master_lo_size(dtype),
        .m = zero_offload_host_at(offload, host->m + in_array),
        .v = plan->n_arrays > 1 ? zero_offload_host_at(offload, host->v + in_array) : NULL,
    };
}

void *zero_offload_param(const zero_offload_t *offload, uint64_t state)
{
    const zero_host_plan_t *host = &offload->context->plan.host;
    const size_t size = zero_dtype_size(offload->context->config.dtype);
    return state < host->params_begin
               ? NULL
               : zero_offload_host_at(offload, host->params + (state - host->params_begin) * size);
}

void *zero_offload_frozen(const zero_offload_t *offload, zero_unit_t unit)
{
    const zero_context_t *context = offload->context;
    const zero_unit_layout_t *units = context->layout.units;
    const zero_host_plan_t *host = &context->plan.host;
    uint64_t at = units[unit].frozen_shard_offset - units[host->first_params].frozen_shard_offset;
    return zero_offload_host_at(offload, host->frozen + at * zero_dtype_size(context->config.dtype));
}

/* Parts of a unit are cut at multiples of this, so that no two threads write to one cache line. */
#define PART_ELEMS 64

uint64_t zero_offload_part_begin(uint64_t begin, uint64_t end, int part, int n_parts)
{
    uint64_t n_runs = (end - begin + PART_ELEMS - 1) / PART_ELEMS;
    uint64_t at = begin + n_runs * (uint64_t)part / (uint64_t)n_parts * PART_ELEMS;
    return at < end ? at : end;
}

size_t zero_offload_segments(const zero_offload_t *offload, zero_unit_t unit, uint64_t from, uint64_t to,
                             zero_adam_segment_t *segments)
{
    const zero_context_t *context = offload->context;
    size_t n = 0;
    for (int i = 0; i < context->model->n_tensors; i++) {
        zero_tensor_t t = context->layout.order[i];
        zero_adam_segment_t whole;
        if (context->model->tensors[t].owner != unit || !zero_context_segment(context, t, &whole))
            continue;
        uint64_t whole_begin = whole.state - context->plan.state_elems, whole_end = whole_begin + whole.n_elems;
        uint64_t begin = whole_begin > from ? whole_begin : from, end = whole_end < to ? whole_end : to;
        if (begin < end)
            segments[n++] = (zero_adam_segment_t){.n_elems = end - begin,
                                                  .param = whole.param + (begin - whole_begin),
                                                  .state = begin,
                                                  .grad = begin,
                                                  .decay = whole.decay,
                                                  .tensor = whole.tensor};
    }
    return n;
}

/* ---- creating ---- */

static zero_status_t create_units(zero_offload_t *offload)
{
    const zero_arena_plan_t *plan = &offload->context->plan;
    const zero_layout_t *layout = &offload->context->layout;
    offload->units = calloc((size_t)layout->n_units, sizeof *offload->units);
    if (!offload->units)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for offload's tables");
    for (zero_unit_t unit = plan->host.first; unit < layout->n_units; unit++) {
        zero_offloaded_unit_t *offloaded = &offload->units[unit];
        offloaded->begin = layout->units[unit].shard_offset - plan->state_elems;
        offloaded->end = offloaded->begin + layout->units[unit].shard_elems;
    }
    return ZERO_OK;
}

/* Touches one of n_parts parts of n_elems elements that begin at `data`; NULL: of none. */
static void touch_elems(void *data, uint64_t n_elems, size_t element_bytes, int part, int n_parts)
{
    const uint64_t from = zero_offload_part_begin(0, n_elems, part, n_parts);
    if (data)
        zero_host_touch((unsigned char *)data + from * element_bytes,
                        (zero_offload_part_begin(0, n_elems, part + 1, n_parts) - from) * element_bytes);
}

static void touch_params(const zero_offload_t *offload, zero_unit_t unit, int part, int n_parts)
{
    const zero_context_t *context = offload->context;
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const size_t size = zero_dtype_size(context->config.dtype);
    touch_elems(zero_offload_param(offload, layout->shard_offset), layout->shard_elems, size, part, n_parts);
    if (zero_plan_offloads_params(&context->plan, unit))
        touch_elems(zero_offload_frozen(offload, unit), layout->frozen_shard_elems, size, part, n_parts);
}

/* Touches, in each thread, what that thread will update: its pages are then near it, and all of them near the device.
 */
static void touch_part(void *args, int item, int part, int n_parts)
{
    const zero_offload_t *offload = args;
    const zero_arena_plan_t *plan = &offload->context->plan;
    zero_unit_t unit = zero_plan_first_on_host(plan) + item;
    touch_params(offload, unit, part, n_parts);
    if (!zero_plan_is_offloaded(plan, unit))
        return;
    const zero_offloaded_unit_t *offloaded = &offload->units[unit];
    uint64_t from = zero_offload_part_begin(offloaded->begin, offloaded->end, part, n_parts);
    uint64_t n = zero_offload_part_begin(offloaded->begin, offloaded->end, part + 1, n_parts) - from;
    zero_host_address_t address = zero_offload_address(offload, plan->state_elems + from);
    zero_dtype_t dtype = offload->context->config.dtype;
    zero_host_touch(address.m, zero_array_bytes(plan->array_format, n));
    if (address.v)
        zero_host_touch(address.v, zero_array_bytes(plan->array_format, n));
    if (address.master_lo)
        zero_host_touch(address.master_lo, n * zero_master_lo_size(dtype));
    if (unit >= zero_plan_first_grads_on_host(plan))
        zero_host_touch(zero_offload_host_grads(offload, from), n * zero_dtype_size(plan->reduced_dtype));
}

static bool updates_on_host(const zero_context_t *context)
{
    return context->plan.host.first < context->layout.n_units && context->plan.host.update == ZERO_OFFLOAD_UPDATE_HOST;
}

static zero_status_t create_memory(zero_offload_t *offload, const cpu_set_t *cores)
{
    zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    uint64_t n_bytes = context->plan.memory.pinned_bytes;
    int n_items = context->layout.n_units - zero_plan_first_on_host(&context->plan);
    int n_threads =
        zero_host_cores_n_threads(cores, context->config.offload_threads, context->host_comm->job_local_size);
    void *host;
    ZERO_TRY(create_units(offload));
    ZERO_TRY(zero_host_map(n_bytes, &host));
    offload->host = host;
    ZERO_TRY(zero_host_pool_create(cores, n_threads, n_items, &offload->pool));
    zero_host_pool_start(offload->pool, n_items, touch_part, offload);
    zero_host_pool_await(offload->pool, n_items - 1);
    if (!updates_on_host(context)) {
        zero_host_pool_destroy(offload->pool);
        offload->pool = NULL;
    }
    offload->is_pinned = device->ops->host_pin && device->ops->host_pin(device, host, n_bytes) == ZERO_OK;
    return ZERO_OK;
}

/* Logs the threads of the host's update, and warns if ranks seem to be bound to far less than the machine has: mpirun
 * binds two ranks to one core each. */
static void log_threads(const zero_offload_t *offload, const cpu_set_t *cores)
{
    const zero_comm_t *comm = offload->context->host_comm;
    int n_threads = zero_host_pool_n_threads(offload->pool);
    long n_cores = CPU_COUNT(cores), n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (comm->rank > 0)
        return;
    zero_log(ZERO_LOG_INFO, "offload: each rank updates with %d thread%s, %s", n_threads, n_threads == 1 ? "" : "s",
             n_cores > 0 ? "bound to its share of the cores near its device" : "which are not bound");
    if (n_cores > 0 && 4 * n_cores * comm->job_local_size < n_processors)
        zero_log(
            ZERO_LOG_WARNING,
            "offload: rank 0 may use only %ld core%s of a machine with %ld processors: if mpirun bound it to them, "
            "--bind-to none gives it its share",
            n_cores, n_cores == 1 ? "" : "s", n_processors);
}

zero_status_t zero_offload_find_cores(const zero_context_t *context, cpu_set_t *cores)
{
    zero_device_t *device = context->device;
    char address[32];
    bool has_address = device->ops->pci_address && device->ops->pci_address(device, address, sizeof address);
    ZERO_TRY(zero_host_cores_find(context->host_comm, has_address ? address : NULL, cores));
    if (context->config.offload_threads > CPU_COUNT(cores))
        zero_host_cores_add_siblings(cores);
    return ZERO_OK;
}

zero_status_t zero_offload_create(zero_context_t *context, zero_offload_t **offload)
{
    zero_comm_t *comm = context->host_comm;
    cpu_set_t cores;
    *offload = NULL;
    if (zero_plan_first_on_host(&context->plan) == context->layout.n_units)
        return ZERO_OK;
    ZERO_TRY(zero_offload_find_cores(context, &cores));
    zero_status_t status = ZERO_OK;
    zero_offload_t *made = calloc(1, sizeof *made);
    if (made)
        made->context = context;
    else
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for offload");
    status = zero_comm_agree(comm, made ? create_memory(made, &cores) : status);
    if (status != ZERO_OK) {
        zero_offload_destroy(made);
        return status;
    }
    if (updates_on_host(context))
        log_threads(made, &cores);
    *offload = made;
    return ZERO_OK;
}

bool zero_offload_blocks_host(const zero_offload_t *offload)
{
    return offload && offload->context->device->ops->host_pin && !offload->is_pinned;
}

static void warn_if_not_pinned(const zero_offload_t *offload)
{
    if (!zero_offload_blocks_host(offload))
        return;
    zero_log(ZERO_LOG_WARNING,
             "offload goes on with memory that is not pinned, whose copies are slow and block the host: %.2f GiB "
             "could not be pinned. Raise the limit of locked memory (ulimit -l unlimited; in containers "
             "--ulimit memlock=-1) or the container's memory, or take a smaller offload_ratio",
             (double)offload->context->plan.memory.pinned_bytes / (1024.0 * 1024.0 * 1024.0));
}

static zero_status_t create_streams(zero_offload_t *offload)
{
    const zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    zero_stream_t *const streams[] = {&offload->out_stream, &offload->update_stream, &offload->in_stream};
    zero_event_t *const events[] = {&offload->grads_reduced, &offload->grads_sent, &offload->decided};
    for (size_t i = 0; i < 3; i++) {
        ZERO_TRY(device->ops->stream_create(device, true, streams[i]));
        ZERO_TRY(device->ops->event_create(device, false, events[i]));
    }
    for (int i = 0; i < ZERO_MAX_GRAD_TURNS; i++) {
        ZERO_TRY(device->ops->event_create(device, false, &offload->grads_left[i]));
        ZERO_TRY(device->ops->event_create(device, false, &offload->sums_back[i]));
    }
    for (zero_unit_t unit = context->plan.host.first; unit < context->layout.n_units; unit++)
        ZERO_TRY(device->ops->event_create(device, false, &offload->units[unit].arrived));
    if (context->plan.host.first_params < context->layout.n_units)
        ZERO_TRY(device->ops->stream_create(device, true, &offload->param_stream));
    if (context->plan.host.holds_sums)
        ZERO_TRY(device->ops->stream_create(device, true, &offload->sums_stream));
    return ZERO_OK;
}

zero_status_t zero_offload_prepare(zero_offload_t *offload)
{
    static const zero_offload_backend_t *const backends[] = {
        [ZERO_OFFLOAD_UPDATE_DEVICE] = &zero_offload_by_device, [ZERO_OFFLOAD_UPDATE_HOST] = &zero_offload_by_host};
    if (!offload)
        return ZERO_OK;
    warn_if_not_pinned(offload);
    ZERO_TRY(create_streams(offload));
    if (offload->context->plan.host.first == offload->context->layout.n_units)
        return ZERO_OK; /* parameters alone */
    offload->backend = backends[offload->context->plan.host.update];
    return offload->backend->create(offload);
}

zero_status_t zero_offload_start(zero_offload_t *offload, const zero_user_block_t *blocks)
{
    if (!offload || !offload->backend || !offload->backend->start)
        return ZERO_OK;
    return zero_comm_agree(offload->context->host_comm, offload->backend->start(offload, blocks));
}

void zero_offload_destroy(zero_offload_t *offload)
{
    if (!offload)
        return;
    zero_context_t *context = offload->context;
    zero_device_t *device = context->device;
    if (offload->backend)
        offload->backend->destroy(offload);
    for (zero_unit_t unit = 0; offload->units && unit < context->layout.n_units; unit++)
        device->ops->event_destroy(device, offload->units[unit].arrived);
    for (int i = 0; i < ZERO_MAX_GRAD_TURNS; i++) {
        device->ops->event_destroy(device, offload->grads_left[i]);
        device->ops->event_destroy(device, offload->sums_back[i]);
    }
    device->ops->event_destroy(device, offload->grads_reduced);
    device->ops->event_destroy(device, offload->grads_sent);
    device->ops->event_destroy(device, offload->decided);
    device->ops->stream_destroy(device, offload->out_stream);
    device->ops->stream_destroy(device, offload->update_stream);
    device->ops->stream_destroy(device, offload->in_stream);
    device->ops->stream_destroy(device, offload->param_stream);
    device->ops->stream_destroy(device, offload->sums_stream);
    zero_host_pool_destroy(offload->pool);
    if (offload->is_pinned)
        device->ops->host_unpin(device, offload->host);
    zero_host_unmap(offload->host, context->plan.memory.pinned_bytes);
    free(offload->units);
    free(offload);
}

/* ---- a step ---- */

zero_status_t zero_offload_copy_in(const zero_offload_t *offload, void *device, const void *host, size_t n_bytes,
                                   zero_stream_t stream)
{
    offload->context->stats.to_gpu_bytes += n_bytes;
    return zero_device_copy(offload->context->device, device, host, n_bytes, stream);
}

zero_status_t zero_offload_copy_out(const zero_offload_t *offload, void *host, const void *device, size_t n_bytes,
                                    zero_stream_t stream)
{
    offload->context->stats.to_host_bytes += n_bytes;
    return zero_device_copy(offload->context->device, host, device, n_bytes, stream);
}

zero_status_t zero_offload_fetch_ahead(zero_offload_t *offload)
{
    return offload && offload->backend && offload->backend->fetch_ahead ? offload->backend->fetch_ahead(offload)
                                                                        : ZERO_OK;
}

zero_status_t zero_offload_borrow_activations(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    return offload && offload->backend && offload->backend->borrow ? offload->backend->borrow(offload, unit, stream)
                                                                   : ZERO_OK;
}

zero_status_t zero_offload_return_activations(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    return offload && offload->backend && offload->backend->give_back
               ? offload->backend->give_back(offload, unit, stream)
               : ZERO_OK;
}

zero_status_t zero_offload_update(zero_offload_t *offload, zero_stream_t stream)
{
    if (!offload || !offload->backend)
        return ZERO_OK;
    zero_context_t *context = offload->context;
    ZERO_TRY(context->device->ops->event_record(context->device, offload->decided, stream));
    ZERO_TRY(offload->backend->update(offload));
    for (zero_unit_t unit = context->plan.host.first; unit < context->layout.n_units; unit++)
        offload->units[unit].is_new = true;
    return ZERO_OK;
}

zero_status_t zero_offload_update_unit(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream)
{
    zero_device_t *device = offload->context->device;
    ZERO_TRY(device->ops->event_record(device, offload->decided, stream));
    ZERO_TRY(device->ops->stream_wait(device, offload->update_stream, offload->decided));
    offload->units[unit].is_new = true;
    offload->units[unit].has_sums = false;
    return offload->backend->update_unit(offload, unit);
}

static zero_status_t queue_up_to(zero_offload_t *offload, zero_unit_t unit)
{
    return offload->backend && offload->backend->queue_up_to ? offload->backend->queue_up_to(offload, unit) : ZERO_OK;
}

zero_status_t zero_offload_finish_update(zero_offload_t *offload)
{
    return offload ? queue_up_to(offload, offload->context->layout.n_units - 1) : ZERO_OK;
}

zero_status_t zero_offload_await_params(zero_offload_t *offload, zero_unit_t unit, zero_stream_t stream, bool *is_new)
{
    zero_context_t *context = offload->context;
    zero_offloaded_unit_t *offloaded = &offload->units[unit];
    *is_new = offloaded->is_new;
    if (!offloaded->is_new)
        return ZERO_OK;
    offloaded->is_new = false;
    ZERO_TRY(queue_up_to(offload, unit));
    const bool is_gather = stream == context->streams.gather || (stream && stream == offload->param_stream);
    if (!is_gather) /* then `stream` computes, and the wait is exposed */
        return zero_streams_compute_wait(context, ZERO_WAIT_OFFLOAD, unit, offloaded->arrived, stream);
    return context->device->ops->stream_wait(context->device, stream, offloaded->arrived);
}

zero_stream_t zero_offload_param_stream(const zero_offload_t *offload)
{
    return offload->param_stream;
}

zero_status_t zero_offload_fetch_params(zero_offload_t *offload, zero_unit_t unit, void *trained, void *frozen,
                                        zero_stream_t stream)
{
    const zero_context_t *context = offload->context;
    const zero_unit_layout_t *layout = &context->layout.units[unit];
    const size_t size = zero_dtype_size(context->config.dtype);
    bool is_new;
    if (zero_plan_is_offloaded(&context->plan, unit))
        ZERO_TRY(zero_offload_await_params(offload, unit, stream, &is_new));
    if (layout->shard_elems > 0)
        ZERO_TRY(zero_offload_copy_in(offload, trained, zero_offload_param(offload, layout->shard_offset),
                                      layout->shard_elems * size, stream));
    return layout->frozen_shard_elems == 0 ? ZERO_OK
                                           : zero_offload_copy_in(offload, frozen, zero_offload_frozen(offload, unit),
                                                                  layout->frozen_shard_elems * size, stream);
}

void zero_offload_forget(zero_offload_t *offload)
{
    if (!offload || !offload->backend)
        return;
    for (zero_unit_t unit = 0; unit < offload->context->layout.n_units; unit++)
        offload->units[unit].has_sums = false;
    if (offload->backend->forget)
        offload->backend->forget(offload);
}
