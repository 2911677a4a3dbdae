/* state.c - writing and reading weights and moments, by tensor and element, whatever the stage and the world size.
 *
 * A rank owns, of each tensor, the part that lies in its slice of the unit's flat. Callers write and read what their
 * rank owns; at stage 0, where every rank holds all of the state, what is written then goes from its owners to the
 * others. Values pass in runs of at most CHUNK_ELEMS through fp32 buffers, because bf16 weights are kept as two halves
 * (kernels/shard/shard.h).
 *
 * What must hold: a rank computes with no weights that were written in part, here or on another rank. From the first
 * element on until every rank has written its last, and all is published, the engine refuses to use them.
 */
#include <stdlib.h>
#include <string.h>

#include "zero/engine/engine.h"
#include "base/log.h"

#define CHUNK_ELEMS ((size_t)1 << 16)

/* A run's three buffers, on the host and, for weights, on the device, where they are taken apart and put together. */
typedef struct chunk_buffers {
    float *host;    /* CHUNK_ELEMS of master, m, v */
    float *weights; /* device: CHUNK_ELEMS of master */
    void *low;      /* behind them: of hosted units, on its way to or from the host */
} chunk_buffers_t;

#define DEVICE_BYTES (2 * CHUNK_ELEMS * sizeof(float))

typedef zero_status_t (*run_fn)(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                const zero_adam_segment_t *at, chunk_buffers_t *buffers, void *user);

static zero_status_t buffers_create(zero_engine_t *engine, chunk_buffers_t *buffers)
{
    void *on_device = NULL;
    buffers->host = malloc(3 * CHUNK_ELEMS * sizeof(float));
    if (!buffers->host)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to pass weights in runs of %zu", CHUNK_ELEMS);
    zero_status_t status = engine->device->ops->alloc(engine->device, DEVICE_BYTES, &on_device);
    if (status != ZERO_OK) {
        free(buffers->host);
        buffers->host = NULL;
        return status;
    }
    buffers->weights = on_device;
    buffers->low = buffers->weights + CHUNK_ELEMS;
    return ZERO_OK;
}

static void buffers_destroy(zero_engine_t *engine, chunk_buffers_t *buffers)
{
    engine->device->ops->free(engine->device, buffers->weights, DEVICE_BYTES);
    free(buffers->host);
}

static unsigned char *bytes_at(void *base, uint64_t elems, size_t element_bytes)
{
    return (unsigned char *)base + elems * element_bytes;
}

static void *param_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    return bytes_at(zero_engine_params(engine), at->param, zero_dtype_size(engine->config.dtype));
}

static bool is_offloaded(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    return engine->offload && at->state >= engine->plan.state_elems;
}

/* bf16: int16_t halves; fp16: fp32 master; fp32: none. */
static void *low_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    if (engine->config.dtype == ZERO_FP32)
        return NULL;
    if (is_offloaded(engine, at))
        return zero_offload_address(engine, at->state).low;
    return bytes_at(zero_engine_private(engine, engine->plan.low), at->state,
                    zero_master_lo_size(engine->config.dtype));
}

/* m and v. With all state hosted the device's have the same offset, being empty: so they are not told apart by it. */
static float *m_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    if (is_offloaded(engine, at))
        return zero_offload_address(engine, at->state).m;
    return (float *)zero_engine_private(engine, engine->plan.m) + at->state;
}

static float *v_at(const zero_engine_t *engine, const zero_adam_segment_t *at)
{
    if (is_offloaded(engine, at))
        return zero_offload_address(engine, at->state).v;
    return (float *)zero_engine_private(engine, engine->plan.v) + at->state;
}

/* Runs of one tensor's span that starts at flat element span->flat_offset. `at` names the same place for AdamW. */
static zero_status_t for_each_chunk(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *span,
                                    zero_adam_segment_t at, chunk_buffers_t *buffers, run_fn fn, void *user)
{
    for (uint64_t done = 0; done < span->n_elems; done += CHUNK_ELEMS) {
        uint64_t left = span->n_elems - done;
        zero_span_t run = {.first = span->first + done, .n_elems = left < CHUNK_ELEMS ? left : CHUNK_ELEMS};
        zero_adam_segment_t here = at;
        here.param += done;
        here.state += done;
        ZERO_TRY(fn(engine, tensor, &run, &here, buffers, user));
    }
    return ZERO_OK;
}

/* Every run this rank holds; with `owned_only`, those of its own shard alone, which is less at stage 0. */
static zero_status_t for_each_run(zero_engine_t *engine, bool owned_only, run_fn fn, void *user)
{
    chunk_buffers_t buffers = {0};
    zero_status_t status = buffers_create(engine, &buffers);
    for (zero_tensor_t t = 0; t < engine->model->n_tensors && status == ZERO_OK; t++) {
        zero_unit_t unit = engine->model->tensors[t].owner;
        uint64_t begin, end;
        zero_engine_held(engine, unit, &begin, &end);
        if (owned_only) {
            begin = (uint64_t)engine->comm->rank * engine->layout.units[unit].shard_elems;
            end = begin + engine->layout.units[unit].shard_elems;
        }
        zero_span_t span = zero_layout_span(&engine->layout, engine->model, t, begin, end);
        if (span.n_elems == 0)
            continue;
        status = for_each_chunk(engine, t, &span, zero_engine_segment_at(engine, unit, span.flat_offset), &buffers, fn,
                                user);
    }
    if (buffers.host)
        buffers_destroy(engine, &buffers);
    return status;
}

/* ---- writing ---- */

static zero_status_t write_moments(zero_engine_t *engine, const zero_adam_segment_t *at, const float *m, const float *v,
                                   size_t n_bytes)
{
    ZERO_TRY(zero_device_copy(engine->device, m_at(engine, at), m, n_bytes, NULL));
    return zero_device_copy(engine->device, v_at(engine, at), v, n_bytes, NULL);
}

/* Master weights that stand in buffers->weights. Those of a hosted unit are taken apart on the device too, which need
 * not reach the host's memory, and copied. */
static zero_status_t write_master(zero_engine_t *engine, const zero_adam_segment_t *at, chunk_buffers_t *buffers,
                                  size_t n_elems)
{
    zero_device_t *device = engine->device;
    zero_dtype_t dtype = engine->config.dtype;
    void *held = low_at(engine, at), *low = held && is_offloaded(engine, at) ? buffers->low : held;
    ZERO_TRY(device->kernels->split_master(param_at(engine, at), low, dtype, buffers->weights, n_elems, NULL));
    if (low != held)
        ZERO_TRY(zero_device_copy(device, held, low, n_elems * zero_master_lo_size(dtype), NULL));
    void *twin = is_offloaded(engine, at) ? zero_offload_address(engine, at->state).param : NULL; /* the host's copy */
    return twin ? zero_device_copy(device, twin, param_at(engine, at), n_elems * zero_dtype_size(dtype), NULL)
                : ZERO_OK;
}

/* Into buffers->host, when the device is synchronized. */
static zero_status_t read_master(zero_engine_t *engine, const zero_adam_segment_t *at, chunk_buffers_t *buffers,
                                 size_t n_elems)
{
    zero_device_t *device = engine->device;
    zero_dtype_t dtype = engine->config.dtype;
    void *held = low_at(engine, at), *low = held && is_offloaded(engine, at) ? buffers->low : held;
    if (low != held)
        ZERO_TRY(zero_device_copy(device, low, held, n_elems * zero_master_lo_size(dtype), NULL));
    ZERO_TRY(device->kernels->join_master(buffers->weights, param_at(engine, at), low, dtype, n_elems, NULL));
    return zero_device_copy(device, buffers->host, buffers->weights, n_elems * sizeof(float), NULL);
}

/* Nobody reads or writes weights any more, on any rank. call: which of zero.h's this is, until publish. */
static zero_status_t quiet(zero_engine_t *engine, const char *call)
{
    zero_engine_enter(engine, call);
    ZERO_TRY(zero_offload_finish_update(engine));
    ZERO_TRY(zero_device_synchronize(engine->device));
    return zero_engine_fence(engine, engine->gather_stream);
}

/* The caller's streams know nothing of this: what they do next must find the weights there. */
static zero_status_t publish(zero_engine_t *engine)
{
    ZERO_TRY(zero_engine_publish_params(engine, engine->gather_stream));
    return zero_comm_leave(engine->host_comm, zero_device_synchronize(engine->device));
}

/* ---- stage 0: the state from its owners to all ranks ---- */

/* Copies this rank's slices of all flats to where peers read them. */
static zero_status_t offer_slices(zero_engine_t *engine, const unsigned char *array, size_t element_bytes)
{
    const zero_layout_t *layout = &engine->layout;
    unsigned char *offered = zero_engine_window(engine, engine->plan.sums);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        const zero_unit_layout_t *flat = &layout->units[unit];
        size_t at = (flat->flat_offset + (uint64_t)engine->comm->rank * flat->shard_elems) * element_bytes;
        ZERO_TRY(zero_device_copy(engine->device, offered + at, array + at, flat->shard_elems * element_bytes,
                                  engine->gather_stream));
    }
    return ZERO_OK;
}

/* Every rank's slices of all flats at `offset` in the window to every rank, which may overwrite them afterwards. */
static zero_status_t gather_flats(zero_engine_t *engine, uint64_t offset, size_t element_bytes)
{
    zero_comm_t *comm = engine->comm;
    ZERO_TRY(comm->ops->fence(comm, ZERO_LANE_GATHER, engine->gather_stream));
    for (zero_unit_t unit = 0; unit < engine->layout.n_units; unit++)
        ZERO_TRY(zero_engine_gather_in_place(engine, unit, offset, element_bytes, engine->gather_stream));
    return comm->ops->fence(comm, ZERO_LANE_GATHER, engine->gather_stream);
}

/* One array of the private state. It passes through the sums' place, which is in the window, as large as fp32's flats
 * and free between steps. */
static zero_status_t share_array(zero_engine_t *engine, uint64_t offset, size_t element_bytes)
{
    unsigned char *array = zero_engine_private(engine, offset);
    if (element_bytes == 0)
        return ZERO_OK;
    ZERO_TRY(offer_slices(engine, array, element_bytes));
    ZERO_TRY(gather_flats(engine, engine->plan.sums, element_bytes));
    return zero_device_copy(engine->device, array, zero_engine_window(engine, engine->plan.sums),
                            engine->layout.total_flat_elems * element_bytes, engine->gather_stream);
}

/* v comes last: its padding is zero, as the sums' must be. */
static zero_status_t share_state(zero_engine_t *engine)
{
    const zero_arena_plan_t *plan = &engine->plan;
    zero_dtype_t dtype = engine->config.dtype;
    if (plan->stage.shard_state || engine->comm->size == 1)
        return ZERO_OK;
    ZERO_TRY(gather_flats(engine, plan->params, zero_dtype_size(dtype)));
    ZERO_TRY(share_array(engine, plan->low, zero_master_lo_size(dtype)));
    ZERO_TRY(share_array(engine, plan->m, sizeof(float)));
    return share_array(engine, plan->v, sizeof(float));
}

/* Writes this rank's runs by `fn`: all that it holds, or (`owned_only`) what it owns, which then goes to all that hold
 * it. */
static zero_status_t write_all(zero_engine_t *engine, bool owned_only, run_fn fn, void *user)
{
    engine->weights_are_partial = true;
    engine->partial_weights_told = false;
    ZERO_TRY(zero_comm_agree(engine->comm, for_each_run(engine, owned_only, fn, user)));
    if (owned_only)
        ZERO_TRY(share_state(engine));
    ZERO_TRY(publish(engine));
    engine->weights_are_partial = false;
    return ZERO_OK;
}

zero_status_t zero_engine_check_weights(zero_engine_t *engine, const char *call)
{
    if (!engine->weights_are_partial)
        return ZERO_OK;
    if (!engine->partial_weights_told)
        zero_fail_alike(ZERO_ERROR_ORDER,
                        "%s: the weights are incomplete, because the last call that wrote them failed: "
                        "zero_init_parameters, zero_set_state, zero_load_weights or zero_load must succeed first",
                        call);
    engine->partial_weights_told = true;
    return ZERO_ERROR_ORDER;
}

typedef struct set_request {
    zero_chunk_fn fill;
    void *user;
    bool with_moments;
} set_request_t;

static zero_status_t set_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, chunk_buffers_t *buffers, void *user)
{
    const set_request_t *request = user;
    float *master = buffers->host, *m = master + CHUNK_ELEMS, *v = m + CHUNK_ELEMS;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master};
    if (request->with_moments) {
        chunk.m = m;
        chunk.v = v;
    } else {
        memset(m, 0, 2 * CHUNK_ELEMS * sizeof(float));
    }
    ZERO_TRY(request->fill(request->user, &chunk));
    ZERO_TRY(zero_device_copy(engine->device, buffers->weights, master, n_bytes, NULL));
    ZERO_TRY(write_master(engine, at, buffers, n));
    ZERO_TRY(write_moments(engine, at, m, v, n_bytes));
    return zero_device_synchronize(engine->device); /* the host buffers are used again */
}

zero_status_t zero_set_state(zero_engine_t *engine, bool with_moments, zero_chunk_fn fill, void *user)
{
    set_request_t request = {.fill = fill, .user = user, .with_moments = with_moments};
    ZERO_REQUIRE(engine);
    /* A step under way would bring its own t. */
    ZERO_TRY(with_moments ? zero_engine_check_between_steps(engine, "zero_set_state")
                          : zero_engine_check_no_step(engine, "zero_set_state without moments"));
    ZERO_TRY(zero_comm_agree(engine->comm, fill ? ZERO_OK : zero_refuse_null("zero_set_state", "fill")));
    ZERO_TRY(quiet(engine, "zero_set_state"));
    ZERO_TRY(write_all(engine, true, set_run, &request));
    return with_moments ? ZERO_OK : zero_set_adam_step(engine, 0);
}

static zero_status_t init_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                              const zero_adam_segment_t *at, chunk_buffers_t *buffers, void *user)
{
    (void)user;
    const zero_tensor_decl_t *decl = &engine->model->tensors[tensor];
    const zero_shard_kernels_t *kernels = engine->device->kernels;
    float *ones = buffers->host, *zeros = ones + CHUNK_ELEMS;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    memset(zeros, 0, n_bytes);
    for (size_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    if (decl->init == ZERO_INIT_NORMAL)
        ZERO_TRY(kernels->fill_normal(buffers->weights, n, engine->config.seed, (uint64_t)tensor, run->first,
                                      decl->init_std, NULL));
    else
        ZERO_TRY(zero_device_copy(engine->device, buffers->weights, decl->init == ZERO_INIT_ONES ? ones : zeros,
                                  n_bytes, NULL));
    ZERO_TRY(write_master(engine, at, buffers, n));
    ZERO_TRY(write_moments(engine, at, zeros, zeros, n_bytes));
    return zero_device_synchronize(engine->device);
}

zero_status_t zero_init_parameters(zero_engine_t *engine)
{
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_engine_check_no_step(engine, "zero_init_parameters"));
    ZERO_TRY(quiet(engine, "zero_init_parameters"));
    ZERO_TRY(write_all(engine, false, init_run, NULL));
    return zero_set_adam_step(engine, 0);
}

/* ---- reading ---- */

typedef struct get_request {
    zero_chunk_fn visit;
    void *user;
} get_request_t;

static zero_status_t get_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, chunk_buffers_t *buffers, void *user)
{
    const get_request_t *request = user;
    zero_device_t *device = engine->device;
    float *master = buffers->host, *m = master + CHUNK_ELEMS, *v = m + CHUNK_ELEMS;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    ZERO_TRY(read_master(engine, at, buffers, n));
    ZERO_TRY(zero_device_copy(device, m, m_at(engine, at), n_bytes, NULL));
    ZERO_TRY(zero_device_copy(device, v, v_at(engine, at), n_bytes, NULL));
    ZERO_TRY(zero_device_synchronize(device));
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master, .m = m, .v = v};
    return request->visit(request->user, &chunk);
}

zero_status_t zero_get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user)
{
    get_request_t request = {.visit = visit, .user = user};
    ZERO_REQUIRE(engine);
    ZERO_TRY(zero_engine_check_between_steps(engine, "zero_get_state"));
    ZERO_REQUIRE(visit);
    ZERO_TRY(zero_engine_check_weights(engine, "zero_get_state"));
    ZERO_TRY(zero_offload_finish_update(engine)); /* hosted state may be on its way */
    ZERO_TRY(zero_device_synchronize(engine->device));
    return for_each_run(engine, true, get_run, &request);
}
