/* state_runs.c - see state_runs.h: where a run's arrays are, and how they are read and written. */
#include "zero/engine/state_runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* What capacities are multiples of: what is behind them is aligned to 256 bytes, and has room for the last block. */
#define ALIGNED_ELEMS ((size_t)64)
_Static_assert(ALIGNED_ELEMS % ZERO_BLOCK8_ELEMS == 0 && ZERO_MAX_RUN_ELEMS % ALIGNED_ELEMS == 0,
               "runs begin where blocks do");

static size_t device_bytes(const zero_run_buffers_t *buffers)
{
    return 3 * buffers->capacity * sizeof(float) + ZERO_RUN_PARTS_BYTES;
}

/* Allocates for the runs of `longest` elements. */
static zero_status_t buffers_create(zero_device_t *device, uint64_t longest, zero_run_buffers_t *buffers)
{
    void *on_device = NULL;
    buffers->capacity = longest < ZERO_MAX_RUN_ELEMS ? (longest + ALIGNED_ELEMS - 1) / ALIGNED_ELEMS * ALIGNED_ELEMS
                                                     : ZERO_MAX_RUN_ELEMS;
    buffers->host = malloc(5 * buffers->capacity * sizeof(float) + 1); /* NULL is no memory, even if nothing is owned */
    if (!buffers->host)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to pass weights in runs of %zu", buffers->capacity);
    zero_status_t status = device->ops->alloc(device, device_bytes(buffers), &on_device);
    if (status != ZERO_OK) {
        free(buffers->host);
        buffers->host = NULL;
        return status;
    }
    buffers->weights = on_device;
    buffers->master_lo = buffers->weights + buffers->capacity;
    buffers->param = buffers->weights + 2 * buffers->capacity;
    buffers->parts = buffers->weights + 3 * buffers->capacity;
    return ZERO_OK;
}

static void buffers_destroy(zero_device_t *device, zero_run_buffers_t *buffers)
{
    if (!buffers->host)
        return;
    device->ops->free(device, buffers->weights, device_bytes(buffers));
    free(buffers->host);
}

/* ---- addresses ---- */

static unsigned char *bytes_at(void *base, uint64_t elems, size_t element_bytes)
{
    return (unsigned char *)base + elems * element_bytes;
}

/* Returns whether there is more of a tensor than its parameters: master weights and moments. */
static bool has_state(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return !zero_run_is_frozen(engine, tensor) && !engine->context.config.forward_only;
}

/* Returns where a run's parameters are on the host; NULL: they are on the device alone. */
static void *host_param_at(const zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at)
{
    const zero_context_t *context = &engine->context;
    const zero_unit_t unit = context->model->tensors[tensor].owner;
    if (!engine->offload)
        return NULL;
    if (!zero_run_is_frozen(engine, tensor))
        return zero_offload_param(engine->offload, at->state);
    if (!zero_plan_offloads_params(&context->plan, unit))
        return NULL;
    return bytes_at(zero_offload_frozen(engine->offload, unit),
                    at->param - zero_plan_frozen_of(&context->plan, &context->layout, unit),
                    zero_dtype_size(context->config.dtype));
}

/* Returns where a run's parameters are on the device: where they stay, or the buffer through which those pass that are
 * offloaded. Of a frozen tensor, at->param counts from the first frozen one. */
static void *param_at(const zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                      const zero_run_buffers_t *buffers)
{
    const zero_context_t *context = &engine->context;
    if (zero_plan_offloads_params(&context->plan, context->model->tensors[tensor].owner))
        return buffers->param;
    void *base = zero_run_is_frozen(engine, tensor) ? zero_context_window(context, context->plan.frozen)
                                                    : zero_context_params(context);
    return bytes_at(base, at->param, zero_dtype_size(context->config.dtype));
}

static bool is_offloaded(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    return engine->offload && at->state >= engine->context.plan.state_elems;
}

/* Returns the part of the master weights that the parameters lack. bf16: int16_t, the low halves; fp16: float, all of
 * them; fp32: NULL. */
static void *master_lo_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    const zero_context_t *context = &engine->context;
    zero_dtype_t dtype = context->config.dtype;
    if (dtype == ZERO_FP32)
        return NULL;
    if (is_offloaded(engine, at))
        return zero_offload_address(engine->offload, at->state).master_lo;
    return bytes_at(zero_context_private(context, context->plan.master_lo), at->state, zero_master_lo_size(dtype));
}

/* Return where the optimizer's arrays are; v is NULL if it has one. Whether they are offloaded is looked up, not found
 * by comparing offsets: if all state is offloaded, both are empty on the device and have the same one. */
static void *m_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    const zero_arena_plan_t *plan = &engine->context.plan;
    if (is_offloaded(engine, at))
        return zero_offload_address(engine->offload, at->state).m;
    return zero_context_private(&engine->context, plan->m + zero_array_bytes(plan->array_format, at->state));
}

static void *v_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    const zero_arena_plan_t *plan = &engine->context.plan;
    if (plan->n_arrays < 2)
        return NULL;
    if (is_offloaded(engine, at))
        return zero_offload_address(engine->offload, at->state).v;
    return zero_context_private(&engine->context,
                                plan->v + zero_array_bytes(plan->array_format, at->state - at->v_gap));
}

/* Returns whether there is no memory for v of these elements, which is 0. */
static bool is_v_of_a_matrix(zero_array_t array, const zero_adam_segment_t *at)
{
    return array == ZERO_ARRAY_V && at->v_gap == ZERO_MUON_NO_V;
}

/* ---- runs ---- */

/* Calls fn on the runs of one tensor's span. `at` is where the span begins for AdamW. */
static zero_status_t for_each_run_of(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *span,
                                     zero_adam_segment_t at, zero_run_buffers_t *buffers, zero_run_fn fn, void *user)
{
    for (uint64_t done = 0; done < span->n_elems; done += buffers->capacity) {
        uint64_t left = span->n_elems - done;
        zero_span_t run = {.first = span->first + done, .n_elems = left < buffers->capacity ? left : buffers->capacity};
        zero_adam_segment_t here = at;
        here.param += zero_run_is_fp8(engine, tensor) ? done / ZERO_FP8_IN_ELEMENT : done;
        here.state += done;
        here.grad += done;
        ZERO_TRY(fn(engine, tensor, &run, &here, buffers, user));
    }
    return ZERO_OK;
}

/* Returns what this rank is to write or read of a tensor. Of frozen tensors that is always what it owns: what is
 * written is gathered when it is published. */
static zero_span_t span_of(const zero_engine_t *engine, zero_tensor_t tensor, bool owned_only)
{
    const zero_context_t *context = &engine->context;
    uint64_t begin, end;
    if (owned_only || zero_run_is_frozen(engine, tensor))
        return zero_context_owned_span(context, tensor, context->comm->rank);
    zero_context_held(context, context->model->tensors[tensor].owner, &begin, &end);
    return zero_layout_span(&context->layout, context->model, tensor, begin, end);
}

/* Returns where the span's parameters and state begin. */
static zero_adam_segment_t place_of(const zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *span)
{
    zero_unit_t unit = engine->context.model->tensors[tensor].owner;
    if (zero_run_is_frozen(engine, tensor))
        return (zero_adam_segment_t){.param = zero_context_frozen_at(&engine->context, unit, span->flat_offset)};
    return zero_context_segment_at(&engine->context, unit, span->flat_offset);
}

/* Calls fn on the runs of one tensor that this rank holds; with `owned_only` on those that it owns, which are fewer at
 * stage 0. */
static zero_status_t for_each_run_of_tensor(zero_engine_t *engine, zero_tensor_t tensor, bool owned_only,
                                            zero_run_buffers_t *buffers, zero_run_fn fn, void *user)
{
    zero_span_t span = span_of(engine, tensor, owned_only);
    return span.n_elems == 0
               ? ZERO_OK
               : for_each_run_of(engine, tensor, &span, place_of(engine, tensor, &span), buffers, fn, user);
}

/* Returns the elements of the longest span that this rank is to write or read. */
static uint64_t longest_span(const zero_engine_t *engine, bool owned_only)
{
    uint64_t longest = 0;
    for (zero_tensor_t t = 0; t < engine->context.model->n_tensors; t++) {
        const uint64_t n_elems = span_of(engine, t, owned_only).n_elems;
        longest = n_elems > longest ? n_elems : longest;
    }
    return longest;
}

zero_status_t zero_runs_for_each(zero_engine_t *engine, bool owned_only, zero_run_fn fn, void *user)
{
    const zero_context_t *context = &engine->context;
    zero_run_buffers_t buffers = {0};
    zero_status_t status = buffers_create(context->device, longest_span(engine, owned_only), &buffers);
    for (zero_tensor_t t = 0; t < context->model->n_tensors && status == ZERO_OK; t++)
        status = for_each_run_of_tensor(engine, t, owned_only, &buffers, fn, user);
    buffers_destroy(context->device, &buffers);
    return status;
}

zero_status_t zero_runs_write_each(zero_engine_t *engine, bool owned_only, zero_run_fn fn, void *user)
{
    const zero_context_t *context = &engine->context;
    zero_run_buffers_t buffers = {0};
    zero_status_t status = buffers_create(context->device, longest_span(engine, owned_only), &buffers);
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        if (status == ZERO_OK)
            status = for_each_run_of_tensor(engine, t, owned_only, &buffers, fn, user);
        if (!zero_frozen_fp8_ends(engine->frozen_fp8, t))
            continue;
        status = zero_frozen_fp8_store(engine->frozen_fp8, t, &buffers, status);
        if (status != ZERO_OK) /* on every rank */
            break;
    }
    zero_frozen_fp8_end(engine->frozen_fp8);
    buffers_destroy(context->device, &buffers);
    return status;
}

zero_status_t zero_runs_for_each_of(zero_engine_t *engine, zero_tensor_t tensor, bool owned_only, zero_run_fn fn,
                                    void *user)
{
    zero_run_buffers_t buffers = {0};
    zero_status_t status =
        buffers_create(engine->context.device, span_of(engine, tensor, owned_only).n_elems, &buffers);
    if (status == ZERO_OK)
        status = for_each_run_of_tensor(engine, tensor, owned_only, &buffers, fn, user);
    buffers_destroy(engine->context.device, &buffers);
    return status;
}

/* ---- m and v, which runs have as fp32 ----
 *
 * A run in blocks begins where a block does, and ends where one does or where its tensor ends. */

/* Returns where m or v of a run is on the host as it is in memory. */
static void *coded_of(const zero_run_buffers_t *buffers, zero_array_t array)
{
    return buffers->host + (array == ZERO_ARRAY_M ? 3 : 4) * buffers->capacity;
}

static bool is_in_blocks(const zero_engine_t *engine)
{
    return engine->context.plan.array_format.block_elems > 1;
}

zero_status_t zero_run_write_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                   const float *values, size_t n_elems, const zero_run_buffers_t *buffers)
{
    const zero_context_t *context = &engine->context;
    if (is_v_of_a_matrix(array, at))
        return ZERO_OK;
    void *destination = array == ZERO_ARRAY_M ? m_at(engine, at) : v_at(engine, at);
    const void *coded = values;
    if (is_in_blocks(engine)) {
        zero_shard_kernels_cpu()->encode8(coded_of(buffers, array), values, n_elems, array == ZERO_ARRAY_M);
        coded = coded_of(buffers, array);
    }
    return zero_device_copy(context->device, destination, coded, zero_array_bytes(context->plan.array_format, n_elems),
                            NULL);
}

zero_status_t zero_run_read_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                  float *values, size_t n_elems, const zero_run_buffers_t *buffers)
{
    zero_device_t *device = engine->context.device;
    if (is_v_of_a_matrix(array, at)) {
        memset(values, 0, n_elems * sizeof *values);
        return ZERO_OK;
    }
    const void *source = array == ZERO_ARRAY_M ? m_at(engine, at) : v_at(engine, at);
    const size_t n_bytes = zero_array_bytes(engine->context.plan.array_format, n_elems);
    if (!is_in_blocks(engine))
        return zero_device_copy(device, values, source, n_bytes, NULL);
    ZERO_TRY(zero_device_copy(device, coded_of(buffers, array), source, n_bytes, NULL));
    ZERO_TRY(zero_device_synchronize(device));
    zero_shard_kernels_cpu()->decode8(values, coded_of(buffers, array), n_elems, array == ZERO_ARRAY_M);
    return ZERO_OK;
}

/* ---- writing ---- */

zero_status_t zero_run_write_moments(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                     const float *m, const float *v, size_t n_elems, const zero_run_buffers_t *buffers)
{
    if (!has_state(engine, tensor))
        return ZERO_OK;
    ZERO_TRY(zero_run_write_array(engine, ZERO_ARRAY_M, at, m, n_elems, buffers));
    return engine->context.plan.n_arrays > 1 ? zero_run_write_array(engine, ZERO_ARRAY_V, at, v, n_elems, buffers)
                                             : ZERO_OK;
}

#define CLEARED_BYTES ((size_t)1 << 16) /* by a thread at a time */

/* One thread would clear the 35 GB of a rank's share of 70B in four seconds. */
static void clear_host(unsigned char *data, size_t n_bytes)
{
#pragma omp parallel for schedule(static) if (n_bytes > 4 * CLEARED_BYTES)
    for (size_t at = 0; at < n_bytes; at += CLEARED_BYTES)
        memset(data + at, 0, n_bytes - at < CLEARED_BYTES ? n_bytes - at : CLEARED_BYTES);
}

/* Clears memory on the device, or on the host if it is offloaded: no thread encodes or copies zeros. */
static zero_status_t clear_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                 uint64_t n_elems)
{
    const zero_context_t *context = &engine->context;
    if (is_v_of_a_matrix(array, at))
        return ZERO_OK;
    void *destination = array == ZERO_ARRAY_M ? m_at(engine, at) : v_at(engine, at);
    const size_t n_bytes = zero_array_bytes(context->plan.array_format, n_elems);
    if (!is_offloaded(engine, at))
        return context->device->ops->clear(context->device, destination, n_bytes, NULL);
    clear_host(destination, n_bytes);
    return ZERO_OK;
}

zero_status_t zero_run_clear_moments(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                     size_t n_elems)
{
    if (!has_state(engine, tensor))
        return ZERO_OK;
    ZERO_TRY(clear_array(engine, ZERO_ARRAY_M, at, n_elems));
    return engine->context.plan.n_arrays > 1 ? clear_array(engine, ZERO_ARRAY_V, at, n_elems) : ZERO_OK;
}

/* Offloaded weights are split on the device, too, which may be unable to reach the host's memory, and then copied.
 * Those without state have no low parts: these are dropped. */
zero_status_t zero_run_write_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                    zero_run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    zero_dtype_t dtype = context->config.dtype;
    void *param = param_at(engine, tensor, at, buffers), *hosts_param = host_param_at(engine, tensor, at);
    const bool has_low = has_state(engine, tensor);
    if (zero_run_is_fp8(engine, tensor))
        return zero_frozen_fp8_take(engine->frozen_fp8, buffers, n_elems, hosts_param ? hosts_param : param,
                                    hosts_param != NULL);
    void *held = has_low ? master_lo_at(engine, at) : NULL;
    void *master_lo = held && !is_offloaded(engine, at) ? held : dtype == ZERO_FP32 ? NULL : buffers->master_lo;
    ZERO_TRY(device->kernels->split_master(param, master_lo, dtype, buffers->weights, n_elems, NULL));
    if (held && master_lo != held)
        ZERO_TRY(zero_device_copy(device, held, master_lo, n_elems * zero_master_lo_size(dtype), NULL));
    return hosts_param ? zero_device_copy(device, hosts_param, param, n_elems * zero_dtype_size(dtype), NULL) : ZERO_OK;
}

zero_status_t zero_run_read_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                   zero_run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    zero_dtype_t dtype = context->config.dtype;
    void *param = param_at(engine, tensor, at, buffers);
    if (zero_run_is_fp8(engine, tensor))
        return zero_frozen_fp8_read(engine->frozen_fp8, tensor,
                                    param == buffers->param ? host_param_at(engine, tensor, at) : param, buffers,
                                    n_elems);
    if (param == buffers->param)
        ZERO_TRY(
            zero_device_copy(device, param, host_param_at(engine, tensor, at), n_elems * zero_dtype_size(dtype), NULL));
    if (!has_state(engine, tensor)) {
        ZERO_TRY(device->kernels->cast(buffers->weights, ZERO_FP32, param, dtype, n_elems, NULL));
        return zero_device_copy(device, buffers->host, buffers->weights, n_elems * sizeof(float), NULL);
    }
    void *held = master_lo_at(engine, at);
    void *master_lo = held && is_offloaded(engine, at) ? buffers->master_lo : held;
    if (master_lo != held)
        ZERO_TRY(zero_device_copy(device, master_lo, held, n_elems * zero_master_lo_size(dtype), NULL));
    ZERO_TRY(device->kernels->join_master(buffers->weights, param, master_lo, dtype, n_elems, NULL));
    return zero_device_copy(device, buffers->host, buffers->weights, n_elems * sizeof(float), NULL);
}
