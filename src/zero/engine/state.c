/* state.c - writes and reads weights and moments by tensor and element, at any stage and world size.
 *
 * A rank owns the part of each tensor that is in its slice of the unit's flat buffer. Callers write and read what their
 * rank owns. At stage 0, where every rank holds all of the state, what is written is then sent from its owners to the
 * others. Values pass through fp32 buffers in runs of at most RUN_ELEMS, because bf16 weights are kept as two halves
 * (kernels/shard/shard.h).
 *
 * What must hold: no rank computes with weights that were written only in part, on this rank or another. From the first
 * element until every rank has written its last, and all is published, the engine refuses to use them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/engine/engine.h"
#include "zero/runtime/addresses.h"
#include "zero/runtime/gather.h"

#define RUN_ELEMS ((size_t)1 << 16)

/* The buffers of a run: on the host, and on the device, where weights are split and joined. */
typedef struct run_buffers {
    float *host;     /* RUN_ELEMS of master weights, m, v; behind them, of m and v, as they are in memory */
    float *weights;  /* on the device: RUN_ELEMS of master weights */
    void *master_lo; /* behind them: an offloaded unit's, on their way to or from the host */
} run_buffers_t;

#define DEVICE_BYTES (2 * RUN_ELEMS * sizeof(float))

typedef zero_status_t (*run_fn)(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                const zero_adam_segment_t *at, run_buffers_t *buffers, void *user);

static zero_status_t buffers_create(zero_device_t *device, run_buffers_t *buffers)
{
    void *on_device = NULL;
    buffers->host = malloc(5 * RUN_ELEMS * sizeof(float));
    if (!buffers->host)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to pass weights in runs of %zu", RUN_ELEMS);
    zero_status_t status = device->ops->alloc(device, DEVICE_BYTES, &on_device);
    if (status != ZERO_OK) {
        free(buffers->host);
        buffers->host = NULL;
        return status;
    }
    buffers->weights = on_device;
    buffers->master_lo = buffers->weights + RUN_ELEMS;
    return ZERO_OK;
}

static void buffers_destroy(zero_device_t *device, run_buffers_t *buffers)
{
    if (!buffers->host)
        return;
    device->ops->free(device, buffers->weights, DEVICE_BYTES);
    free(buffers->host);
}

/* ---- addresses ---- */

static unsigned char *bytes_at(void *base, uint64_t elems, size_t element_bytes)
{
    return (unsigned char *)base + elems * element_bytes;
}

static bool is_frozen(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return engine->context.model->tensors[tensor].frozen;
}

/* Returns whether there is more of a tensor than its parameters: master weights and moments. */
static bool has_state(const zero_engine_t *engine, zero_tensor_t tensor)
{
    return !is_frozen(engine, tensor) && !engine->context.config.forward_only;
}

/* Returns where a run's parameters are. Of a frozen tensor, at->param counts from the first frozen one. */
static void *param_at(const zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at)
{
    const zero_context_t *context = &engine->context;
    void *base =
        is_frozen(engine, tensor) ? zero_context_window(context, context->plan.frozen) : zero_context_params(context);
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

/* Return where the optimizer's arrays are; v is NULL if it has one. They ask whether they are offloaded separately, not
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
    return zero_context_private(&engine->context, plan->v + zero_array_bytes(plan->array_format, at->state));
}

/* ---- runs ---- */

/* Calls fn on the runs of one tensor's span. `at` is where the span begins for AdamW. */
static zero_status_t for_each_run_of(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *span,
                                     zero_adam_segment_t at, run_buffers_t *buffers, run_fn fn, void *user)
{
    for (uint64_t done = 0; done < span->n_elems; done += RUN_ELEMS) {
        uint64_t left = span->n_elems - done;
        zero_span_t run = {.first = span->first + done, .n_elems = left < RUN_ELEMS ? left : RUN_ELEMS};
        zero_adam_segment_t here = at;
        here.param += done;
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
    if (owned_only || is_frozen(engine, tensor))
        return zero_context_owned_span(context, tensor, context->comm->rank);
    zero_context_held(context, context->model->tensors[tensor].owner, &begin, &end);
    return zero_layout_span(&context->layout, context->model, tensor, begin, end);
}

/* Returns where the span's parameters and state begin. */
static zero_adam_segment_t place_of(const zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *span)
{
    zero_unit_t unit = engine->context.model->tensors[tensor].owner;
    if (is_frozen(engine, tensor))
        return (zero_adam_segment_t){.param = zero_context_frozen_at(&engine->context, unit, span->flat_offset)};
    return zero_context_segment_at(&engine->context, unit, span->flat_offset);
}

/* Calls fn on the runs of one tensor that this rank holds; with `owned_only` on those that it owns, which are fewer at
 * stage 0. */
static zero_status_t for_each_run_of_tensor(zero_engine_t *engine, zero_tensor_t tensor, bool owned_only,
                                            run_buffers_t *buffers, run_fn fn, void *user)
{
    zero_span_t span = span_of(engine, tensor, owned_only);
    return span.n_elems == 0
               ? ZERO_OK
               : for_each_run_of(engine, tensor, &span, place_of(engine, tensor, &span), buffers, fn, user);
}

/* The same on the runs of all tensors. */
static zero_status_t for_each_run(zero_engine_t *engine, bool owned_only, run_fn fn, void *user)
{
    const zero_context_t *context = &engine->context;
    run_buffers_t buffers = {0};
    zero_status_t status = buffers_create(context->device, &buffers);
    for (zero_tensor_t t = 0; t < context->model->n_tensors && status == ZERO_OK; t++)
        status = for_each_run_of_tensor(engine, t, owned_only, &buffers, fn, user);
    buffers_destroy(context->device, &buffers);
    return status;
}

/* ---- m and v, which runs have as fp32 ----
 *
 * A run in blocks begins where a block does, and ends where one does or where its tensor ends. */

/* Returns where m or v of a run is on the host as it is in memory. */
static void *coded_of(const run_buffers_t *buffers, zero_array_t array)
{
    return buffers->host + (array == ZERO_ARRAY_M ? 3 : 4) * RUN_ELEMS;
}

static bool is_in_blocks(const zero_engine_t *engine)
{
    return engine->context.plan.array_format.block_elems > 1;
}

/* Writes n_elems of m or v. `values` and the buffers stay in use until the device is synchronized. */
static zero_status_t write_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at,
                                 const float *values, size_t n_elems, const run_buffers_t *buffers)
{
    const zero_context_t *context = &engine->context;
    void *there = array == ZERO_ARRAY_M ? m_at(engine, at) : v_at(engine, at);
    const void *coded = values;
    if (is_in_blocks(engine)) {
        zero_shard_kernels_cpu()->encode8(coded_of(buffers, array), values, n_elems, array == ZERO_ARRAY_M);
        coded = coded_of(buffers, array);
    }
    return zero_device_copy(context->device, there, coded, zero_array_bytes(context->plan.array_format, n_elems), NULL);
}

/* Reads n_elems of m or v. `values` has them once the device is synchronized; of blocks, on return. */
static zero_status_t read_array(zero_engine_t *engine, zero_array_t array, const zero_adam_segment_t *at, float *values,
                                size_t n_elems, const run_buffers_t *buffers)
{
    zero_device_t *device = engine->context.device;
    const void *there = array == ZERO_ARRAY_M ? m_at(engine, at) : v_at(engine, at);
    const size_t n_bytes = zero_array_bytes(engine->context.plan.array_format, n_elems);
    if (!is_in_blocks(engine))
        return zero_device_copy(device, values, there, n_bytes, NULL);
    ZERO_TRY(zero_device_copy(device, coded_of(buffers, array), there, n_bytes, NULL));
    ZERO_TRY(zero_device_synchronize(device));
    zero_shard_kernels_cpu()->decode8(values, coded_of(buffers, array), n_elems, array == ZERO_ARRAY_M);
    return ZERO_OK;
}

/* ---- writing ---- */

static zero_status_t write_moments(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                   const float *m, const float *v, size_t n_elems, const run_buffers_t *buffers)
{
    if (!has_state(engine, tensor))
        return ZERO_OK;
    ZERO_TRY(write_array(engine, ZERO_ARRAY_M, at, m, n_elems, buffers));
    return engine->context.plan.n_arrays > 1 ? write_array(engine, ZERO_ARRAY_V, at, v, n_elems, buffers) : ZERO_OK;
}

/* Writes parameters as they would be with state, from which it takes their low parts: these are dropped. */
static zero_status_t write_param(zero_engine_t *engine, void *param, run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = &engine->context;
    zero_dtype_t dtype = context->config.dtype;
    void *unused = dtype == ZERO_FP32 ? NULL : buffers->master_lo;
    return context->device->kernels->split_master(param, unused, dtype, buffers->weights, n_elems, NULL);
}

/* Writes the master weights in buffers->weights. An offloaded unit's are split on the device, too, which may be unable
 * to reach the host's memory, and then copied. */
static zero_status_t write_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                  run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    zero_dtype_t dtype = context->config.dtype;
    void *param = param_at(engine, tensor, at);
    if (!has_state(engine, tensor))
        return write_param(engine, param, buffers, n_elems);
    void *held = master_lo_at(engine, at);
    void *master_lo = held && is_offloaded(engine, at) ? buffers->master_lo : held;
    void *hosts_param = is_offloaded(engine, at) ? zero_offload_address(engine->offload, at->state).param : NULL;
    ZERO_TRY(device->kernels->split_master(param, master_lo, dtype, buffers->weights, n_elems, NULL));
    if (master_lo != held)
        ZERO_TRY(zero_device_copy(device, held, master_lo, n_elems * zero_master_lo_size(dtype), NULL));
    return hosts_param ? zero_device_copy(device, hosts_param, param, n_elems * zero_dtype_size(dtype), NULL) : ZERO_OK;
}

/* Reads master weights into buffers->host, which has them once the device is synchronized. */
static zero_status_t read_master(zero_engine_t *engine, zero_tensor_t tensor, const zero_adam_segment_t *at,
                                 run_buffers_t *buffers, size_t n_elems)
{
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    zero_dtype_t dtype = context->config.dtype;
    const void *param = param_at(engine, tensor, at);
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

zero_status_t zero_engine_quiesce(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    ZERO_TRY(zero_offload_finish_update(engine->offload));
    ZERO_TRY(zero_device_synchronize(context->device));
    ZERO_TRY(zero_streams_fence(context, context->streams.gather));
    return zero_device_synchronize(context->device);
}

/* Waits until no rank reads or writes weights. call: the public function that this rank is in, until publish. */
static zero_status_t quiesce(zero_engine_t *engine, const char *call)
{
    zero_context_enter(&engine->context, call);
    return zero_engine_quiesce(engine);
}

/* Publishes the weights and waits for that, since the caller's streams are not ordered after it. */
static zero_status_t publish(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    ZERO_TRY(zero_parameters_publish_set(engine->parameters, context->streams.gather));
    return zero_comm_leave(context->host_comm, zero_device_synchronize(context->device));
}

/* ---- stage 0: the state from its owners to all ranks ---- */

/* Copies this rank's slices of all flat buffers to the window, where peers read them. */
static zero_status_t copy_slices_to_window(zero_context_t *context, const unsigned char *array, size_t element_bytes)
{
    const zero_layout_t *layout = &context->layout;
    unsigned char *window = zero_context_window(context, context->plan.reduced_grads);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        const zero_unit_layout_t *flat = &layout->units[unit];
        size_t at = (flat->flat_offset + zero_context_shard_begin(context, unit)) * element_bytes;
        ZERO_TRY(zero_device_copy(context->device, window + at, array + at, flat->shard_elems * element_bytes,
                                  context->streams.gather));
    }
    return ZERO_OK;
}

/* Gathers every rank's slices of all flat buffers at `offset` in the window. Ranks may overwrite them afterwards. */
static zero_status_t gather_flats(zero_context_t *context, uint64_t offset, size_t element_bytes)
{
    zero_comm_t *comm = context->comm;
    zero_stream_t stream = context->streams.gather;
    ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, stream));
    for (zero_unit_t unit = 0; unit < context->layout.n_units; unit++)
        ZERO_TRY(zero_gather_in_place(context, unit, offset, element_bytes, stream));
    return comm->ops->fence(comm, ZERO_LANE_GATHER, stream);
}

/* Shares one array of the private state. It passes through the reduced gradients' memory, which is in the window, has
 * room for all flat buffers in fp32, and is free between steps. */
static zero_status_t share_array(zero_context_t *context, uint64_t offset, size_t element_bytes)
{
    uint64_t in_window = context->plan.reduced_grads;
    unsigned char *array = zero_context_private(context, offset);
    if (element_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(copy_slices_to_window(context, array, element_bytes));
    ZERO_TRY(gather_flats(context, in_window, element_bytes));
    return zero_device_copy(context->device, array, zero_context_window(context, in_window),
                            context->layout.total_flat_elems * element_bytes, context->streams.gather);
}

/* The bytes of an element's place in the window, while arrays of blocks are there: a slice's blocks are at the
 * beginning of its place. */
#define BLOCK8_PLACE ((size_t)2)
_Static_assert(sizeof(zero_block8_t) <= BLOCK8_PLACE * ZERO_BLOCK8_ELEMS, "a place has room for its blocks");

/* Copies a slice of an array of blocks to its place in the window, or back. */
static zero_status_t move_blocks(zero_context_t *context, uint64_t offset, uint64_t first, uint64_t n_elems,
                                 bool to_window)
{
    const zero_array_format_t format = context->plan.array_format;
    unsigned char *array = zero_context_private(context, offset + zero_array_bytes(format, first));
    unsigned char *place = zero_context_window(context, context->plan.reduced_grads + first * BLOCK8_PLACE);
    return zero_device_copy(context->device, to_window ? place : array, to_window ? array : place,
                            zero_array_bytes(format, n_elems), context->streams.gather);
}

/* Shares an array of blocks, as share_array does, and leaves the window cleared. */
static zero_status_t share_blocks(zero_context_t *context, uint64_t offset)
{
    const zero_layout_t *layout = &context->layout;
    zero_device_t *device = context->device;
    for (const zero_unit_layout_t *unit = layout->units; unit < layout->units + layout->n_units; unit++)
        ZERO_TRY(move_blocks(context, offset,
                             unit->flat_offset + zero_context_shard_begin(context, (zero_unit_t)(unit - layout->units)),
                             unit->shard_elems, true));
    ZERO_TRY(gather_flats(context, context->plan.reduced_grads, BLOCK8_PLACE));
    for (const zero_unit_layout_t *unit = layout->units; unit < layout->units + layout->n_units; unit++)
        for (uint64_t at = 0; at < unit->flat_elems; at += unit->shard_elems)
            ZERO_TRY(move_blocks(context, offset, unit->flat_offset + at, unit->shard_elems, false));
    return device->ops->clear(device, zero_context_window(context, context->plan.reduced_grads),
                              layout->total_flat_elems * sizeof(float), context->streams.gather);
}

/* m or v comes last: their padding is zero, as that of reduced gradients must be. */
static zero_status_t share_state(zero_context_t *context)
{
    const zero_arena_plan_t *plan = &context->plan;
    zero_dtype_t dtype = context->config.dtype;
    if (plan->stage.shard_state || context->comm->size == 1)
        return ZERO_OK;
    ZERO_TRY(gather_flats(context, plan->params, zero_dtype_size(dtype)));
    if (context->config.forward_only)
        return ZERO_OK;
    ZERO_TRY(share_array(context, plan->master_lo, zero_master_lo_size(dtype)));
    if (plan->array_format.block_elems > 1) {
        ZERO_TRY(share_blocks(context, plan->m));
        return share_blocks(context, plan->v);
    }
    ZERO_TRY(share_array(context, plan->m, sizeof(float)));
    return plan->n_arrays > 1 ? share_array(context, plan->v, sizeof(float)) : ZERO_OK;
}

/* Writes this rank's runs by `fn`: all that it holds or, with owned_only, what it owns, which is then shared with the
 * ranks that hold it, too. */
static zero_status_t write_all(zero_engine_t *engine, bool owned_only, run_fn fn, void *user)
{
    engine->weights_are_partial = true;
    engine->partial_weights_were_logged = false;
    ZERO_TRY(zero_comm_agree(engine->context.comm, for_each_run(engine, owned_only, fn, user)));
    if (owned_only)
        ZERO_TRY(share_state(&engine->context));
    ZERO_TRY(publish(engine));
    engine->weights_are_partial = false;
    return ZERO_OK;
}

zero_status_t zero_engine_check_weights(zero_engine_t *engine, const char *call)
{
    if (!engine->weights_are_partial)
        return ZERO_OK;
    if (!engine->partial_weights_were_logged)
        zero_fail_alike(ZERO_ERROR_ORDER,
                        "%s: the weights are incomplete, because the last call that wrote them failed: "
                        "zero_init_parameters, zero_set_state, zero_load_weights or zero_load must succeed first",
                        call);
    engine->partial_weights_were_logged = true;
    return ZERO_ERROR_ORDER;
}

typedef struct set_request {
    zero_chunk_fn fill;
    void *user;
    bool with_moments;
    const bool *wanted; /* by tensor; NULL: all */
} set_request_t;

/* Sets the moments of a tensor that keeps its weights to zero if the others' are. */
static zero_status_t keep_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                              const zero_adam_segment_t *at, run_buffers_t *buffers, const set_request_t *request)
{
    if (request->with_moments)
        return ZERO_OK;
    memset(buffers->host, 0, run->n_elems * sizeof(float));
    ZERO_TRY(write_moments(engine, tensor, at, buffers->host, buffers->host, run->n_elems, buffers));
    return zero_device_synchronize(engine->context.device);
}

static zero_status_t set_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, run_buffers_t *buffers, void *user)
{
    const set_request_t *request = user;
    zero_device_t *device = engine->context.device;
    float *master = buffers->host, *m = master + RUN_ELEMS, *v = m + RUN_ELEMS;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master};
    if (request->wanted && !request->wanted[tensor])
        return keep_run(engine, tensor, run, at, buffers, request);
    if (request->with_moments && !is_frozen(engine, tensor)) {
        chunk.m = m;
        chunk.v = engine->context.plan.n_arrays > 1 ? v : NULL;
    } else {
        memset(m, 0, 2 * RUN_ELEMS * sizeof(float));
    }
    ZERO_TRY(request->fill(request->user, &chunk));
    ZERO_TRY(zero_device_copy(device, buffers->weights, master, n_bytes, NULL));
    ZERO_TRY(write_master(engine, tensor, at, buffers, n));
    ZERO_TRY(write_moments(engine, tensor, at, m, v, n, buffers));
    return zero_device_synchronize(device); /* the host buffers are used again */
}

zero_status_t zero_set_state(zero_engine_t *engine, bool with_moments, zero_chunk_fn fill, void *user)
{
    ZERO_REQUIRE(engine);
    return zero_engine_set_some(engine, with_moments, NULL, fill, user);
}

zero_status_t zero_engine_set_some(zero_engine_t *engine, bool with_moments, const bool *wanted, zero_chunk_fn fill,
                                   void *user)
{
    set_request_t request = {.fill = fill, .user = user, .with_moments = with_moments, .wanted = wanted};
    if (wanted)
        ZERO_TRY(zero_engine_check_weights(engine, "a partial load"));
    if (with_moments)
        ZERO_TRY(zero_context_check_trains(&engine->context, "zero_set_state with moments"));
    /* Without moments, AdamW's step count is set to 0, which a step under way would overwrite. */
    ZERO_TRY(with_moments ? zero_context_check_between_steps(&engine->context, "zero_set_state")
                          : zero_results_check_no_step(engine->results, "zero_set_state without moments"));
    ZERO_TRY(zero_comm_agree(engine->context.comm, fill ? ZERO_OK : zero_refuse_null("zero_set_state", "fill")));
    ZERO_TRY(quiesce(engine, "zero_set_state"));
    ZERO_TRY(write_all(engine, true, set_run, &request));
    return with_moments ? ZERO_OK : zero_set_adam_step(engine, 0);
}

static zero_status_t init_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                              const zero_adam_segment_t *at, run_buffers_t *buffers, void *user)
{
    (void)user;
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    float *ones = buffers->host, *zeros = ones + RUN_ELEMS;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    memset(zeros, 0, n_bytes);
    for (size_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    if (decl->init == ZERO_INIT_NORMAL)
        ZERO_TRY(device->kernels->fill_normal(buffers->weights, n, context->config.seed, (uint64_t)tensor, run->first,
                                              decl->init_std, NULL));
    else
        ZERO_TRY(
            zero_device_copy(device, buffers->weights, decl->init == ZERO_INIT_ONES ? ones : zeros, n_bytes, NULL));
    ZERO_TRY(write_master(engine, tensor, at, buffers, n));
    ZERO_TRY(write_moments(engine, tensor, at, zeros, zeros, n, buffers));
    return zero_device_synchronize(device);
}

zero_status_t zero_init_parameters(zero_engine_t *engine)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_results_check_no_step(engine->results, "zero_init_parameters"));
    ZERO_TRY(quiesce(engine, "zero_init_parameters"));
    ZERO_TRY(write_all(engine, false, init_run, NULL));
    return zero_set_adam_step(engine, 0);
}

/* ---- reading ---- */

typedef struct get_request {
    zero_chunk_fn visit;
    void *user;
} get_request_t;

static zero_status_t get_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, run_buffers_t *buffers, void *user)
{
    const get_request_t *request = user;
    zero_device_t *device = engine->context.device;
    float *master = buffers->host, *m = master + RUN_ELEMS, *v = m + RUN_ELEMS;
    size_t n = run->n_elems;
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master};
    ZERO_TRY(read_master(engine, tensor, at, buffers, n));
    if (!is_frozen(engine, tensor)) {
        ZERO_TRY(read_array(engine, ZERO_ARRAY_M, at, m, n, buffers));
        chunk.m = m;
        if (engine->context.plan.n_arrays > 1) {
            ZERO_TRY(read_array(engine, ZERO_ARRAY_V, at, v, n, buffers));
            chunk.v = v;
        }
    }
    ZERO_TRY(zero_device_synchronize(device));
    return request->visit(request->user, &chunk);
}

zero_status_t zero_get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user)
{
    get_request_t request = {.visit = visit, .user = user};
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_context_check_trains(&engine->context, "zero_get_state"));
    ZERO_TRY(zero_context_check_between_steps(&engine->context, "zero_get_state"));
    ZERO_REQUIRE(visit);
    ZERO_TRY(zero_engine_check_weights(engine, "zero_get_state"));
    ZERO_TRY(zero_offload_finish_update(engine->offload)); /* offloaded state may still be being copied */
    ZERO_TRY(zero_device_synchronize(engine->context.device));
    return for_each_run(engine, true, get_run, &request);
}

/* ---- one array of one tensor ---- */

typedef struct array_request {
    zero_array_t array;
    const float *from; /* writing: the whole tensor */
    float *to;         /* reading: what this rank owns of it, from element `first` on */
    uint64_t first;
} array_request_t;

static zero_status_t read_array_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                    const zero_adam_segment_t *at, run_buffers_t *buffers, void *user)
{
    const array_request_t *request = user;
    zero_device_t *device = engine->context.device;
    const size_t n_bytes = run->n_elems * sizeof(float);
    if (request->array == ZERO_ARRAY_WEIGHT)
        ZERO_TRY(read_master(engine, tensor, at, buffers, run->n_elems));
    else if (request->array == ZERO_ARRAY_GRAD)
        ZERO_TRY(zero_device_copy(device, buffers->host, zero_context_reduced_grads(&engine->context) + at->grad,
                                  n_bytes, NULL));
    else
        ZERO_TRY(read_array(engine, request->array, at, buffers->host, run->n_elems, buffers));
    ZERO_TRY(zero_device_synchronize(device));
    memcpy(request->to + (run->first - request->first), buffers->host, n_bytes);
    return ZERO_OK;
}

static zero_status_t write_array_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                     const zero_adam_segment_t *at, run_buffers_t *buffers, void *user)
{
    const array_request_t *request = user;
    zero_device_t *device = engine->context.device;
    const size_t n_bytes = run->n_elems * sizeof(float);
    const float *from = request->from + run->first;
    if (request->array == ZERO_ARRAY_WEIGHT) {
        ZERO_TRY(zero_device_copy(device, buffers->weights, from, n_bytes, NULL));
        ZERO_TRY(write_master(engine, tensor, at, buffers, run->n_elems));
    } else {
        ZERO_TRY(write_array(engine, request->array, at, from, run->n_elems, buffers));
    }
    return zero_device_synchronize(device); /* the buffers are used again */
}

static zero_status_t for_each_run_of_array(zero_engine_t *engine, zero_tensor_t tensor, bool owned_only, run_fn fn,
                                           array_request_t *request)
{
    run_buffers_t buffers = {0};
    zero_status_t status = buffers_create(engine->context.device, &buffers);
    if (status == ZERO_OK)
        status = for_each_run_of_tensor(engine, tensor, owned_only, &buffers, fn, request);
    buffers_destroy(engine->context.device, &buffers);
    return status;
}

zero_status_t zero_engine_read_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, float *elems)
{
    zero_span_t owned = zero_context_owned_span(&engine->context, tensor, engine->context.comm->rank);
    array_request_t request = {.array = array, .to = elems, .first = owned.first};
    ZERO_TRY(zero_offload_finish_update(engine->offload));
    ZERO_TRY(zero_device_synchronize(engine->context.device));
    return for_each_run_of_array(engine, tensor, true, read_array_run, &request);
}

zero_status_t zero_engine_write_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array,
                                      const float *elems)
{
    array_request_t request = {.array = array, .from = elems};
    ZERO_TRY(zero_engine_quiesce(engine));
    engine->weights_are_partial = true;
    engine->partial_weights_were_logged = false;
    ZERO_TRY(zero_comm_agree(engine->context.host_comm,
                             for_each_run_of_array(engine, tensor, false, write_array_run, &request)));
    if (array == ZERO_ARRAY_WEIGHT) {
        ZERO_TRY(zero_parameters_publish_set(engine->parameters, engine->context.streams.gather));
        ZERO_TRY(zero_device_synchronize(engine->context.device));
    }
    engine->weights_are_partial = false;
    return ZERO_OK;
}
