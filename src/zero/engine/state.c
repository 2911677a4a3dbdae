/* state.c - writes and reads weights and moments by tensor and element, at any stage and world size.
 *
 * A rank owns the part of each tensor that is in its slice of the unit's flat buffer. Callers write and read what their
 * rank owns, run by run (state_runs.h). At stage 0, where every rank holds all of the state, what is written is then
 * sent from its owners to the others (state_share.h).
 *
 * What must hold: no rank computes with weights that were written only in part, on this rank or another. From the first
 * element until every rank has written its last, and all is published, the engine refuses to use them.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/numbers.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/engine/state_runs.h"
#include "zero/engine/state_share.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"
#include "zero/runtime/gather.h"

/* ---- state share ---- */

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

/* Copies v of the tensors that have one to their places in the window, this rank's slices alone, or back, whole. */
static zero_status_t move_v(zero_context_t *context, bool to_window)
{
    for (zero_tensor_t t = 0; t < context->model->n_tensors; t++) {
        const zero_tensor_decl_t *tensor = &context->model->tensors[t];
        if (tensor->frozen || zero_muon_takes(&context->config, tensor))
            continue;
        const zero_unit_layout_t *unit = &context->layout.units[tensor->owner];
        const zero_span_t span = to_window ? zero_context_owned_span(context, t, context->comm->rank)
                                           : zero_layout_span(&context->layout, context->model, t, 0, unit->flat_elems);
        if (span.n_elems == 0)
            continue;
        const zero_adam_segment_t at = zero_context_segment_at(context, tensor->owner, span.flat_offset);
        const uint64_t in_window = (unit->flat_offset + span.flat_offset) * sizeof(float);
        float *v = (float *)zero_context_private(context, context->plan.v) + (at.state - at.v_gap);
        unsigned char *place = zero_context_window(context, context->plan.reduced_grads + in_window);
        ZERO_TRY(zero_device_copy(context->device, to_window ? (void *)place : v, to_window ? (void *)v : place,
                                  span.n_elems * sizeof *v, context->streams.gather));
    }
    return ZERO_OK;
}

/* Shares v, as share_array does, of tensors that are not Muon's matrices. */
static zero_status_t share_v_without_matrices(zero_context_t *context)
{
    ZERO_TRY(move_v(context, true));
    ZERO_TRY(gather_flats(context, context->plan.reduced_grads, sizeof(float)));
    return move_v(context, false);
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
zero_status_t zero_state_share(zero_context_t *context)
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
    if (plan->v_elems < plan->state_elems)
        return share_v_without_matrices(context);
    return plan->n_arrays > 1 ? share_array(context, plan->v, sizeof(float)) : ZERO_OK;
}

/* ---- state ---- */

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

/* Writes this rank's runs by `fn`: all that it holds or, with owned_only, what it owns, which is then shared with the
 * ranks that hold it, too. */
static zero_status_t write_all(zero_engine_t *engine, bool owned_only, zero_run_fn fn, void *user)
{
    engine->weights_are_partial = true;
    engine->partial_weights_were_logged = false;
    ZERO_TRY(zero_comm_agree(engine->context.comm, zero_runs_write_each(engine, owned_only, fn, user)));
    if (owned_only)
        ZERO_TRY(zero_state_share(&engine->context));
    ZERO_TRY(publish(engine));
    ZERO_TRY(zero_results_forget_stop(engine->results));
    engine->weights_are_partial = false;
    return ZERO_OK;
}

zero_status_t zero_engine_check_weights(zero_engine_t *engine, const char *call)
{
    if (!engine->weights_are_partial)
        return ZERO_OK;
    if (!engine->partial_weights_were_logged)
        zero_fail_collective(ZERO_ERROR_ORDER,
                             "%s: the weights are incomplete, because the last call that wrote them failed: "
                             "zero_init_parameters, zero_set_state, zero_load_weights or, before the first zero_begin, "
                             "zero_load must succeed first",
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
                              const zero_adam_segment_t *at, const set_request_t *request)
{
    if (request->with_moments)
        return ZERO_OK;
    return zero_run_clear_moments(engine, tensor, at, run->n_elems);
}

static zero_status_t set_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user)
{
    const set_request_t *request = user;
    zero_device_t *device = engine->context.device;
    float *master = buffers->host, *m = master + buffers->capacity, *v = m + buffers->capacity;
    size_t n = run->n_elems, n_bytes = n * sizeof(float);
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master};
    if (request->wanted && !request->wanted[tensor])
        return keep_run(engine, tensor, run, at, request);
    if (request->with_moments && !zero_run_is_frozen(engine, tensor)) {
        chunk.m = m;
        chunk.v = engine->context.plan.n_arrays > 1 ? v : NULL;
    }
    ZERO_TRY(request->fill(request->user, &chunk));
    ZERO_TRY(zero_device_copy(device, buffers->weights, master, n_bytes, NULL));
    ZERO_TRY(zero_run_write_master(engine, tensor, at, buffers, n));
    ZERO_TRY(chunk.m ? zero_run_write_moments(engine, tensor, at, m, v, n, buffers)
                     : zero_run_clear_moments(engine, tensor, at, n));
    return zero_device_synchronize(device); /* the host buffers are used again */
}

/* A caller's function whose numbers are checked. */
typedef struct checked_fill {
    const zero_context_t *context;
    zero_chunk_fn fill;
    void *user;
} checked_fill_t;

static zero_status_t check_array(const checked_fill_t *checked, const zero_chunk_t *chunk, const char *array,
                                 const float *numbers, bool not_negative)
{
    const size_t at = numbers ? zero_find_unsound(numbers, chunk->n_elems, not_negative) : chunk->n_elems;
    if (at == chunk->n_elems)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT, "zero_set_state: %s of %s: element %" PRIu64 " is %g, which must be finite%s",
                     array, checked->context->model->tensors[chunk->tensor].name, chunk->first + at,
                     zero_number_shown(numbers[at]), not_negative ? " and not negative" : "");
}

static zero_status_t fill_checked(void *user, const zero_chunk_t *chunk)
{
    const checked_fill_t *checked = user;
    ZERO_TRY(checked->fill(checked->user, chunk));
    ZERO_TRY(check_array(checked, chunk, "the weight", chunk->master, false));
    ZERO_TRY(check_array(checked, chunk, "m", chunk->m, false));
    return check_array(checked, chunk, "v", chunk->v, zero_optimizer_of(&checked->context->config)->v_is_not_negative);
}

zero_status_t zero_set_state(zero_engine_t *engine, bool with_moments, zero_chunk_fn fill, void *user)
{
    ZERO_REQUIRE(engine);
    checked_fill_t checked = {&engine->context, fill, user};
    return zero_engine_set_some(engine, with_moments, NULL, fill ? fill_checked : NULL, &checked);
}

zero_status_t zero_engine_set_some(zero_engine_t *engine, bool with_moments, const bool *wanted, zero_chunk_fn fill,
                                   void *user)
{
    set_request_t request = {.fill = fill, .user = user, .with_moments = with_moments, .wanted = wanted};
    if (wanted && engine->weights_are_partial)
        return zero_fail_collective(ZERO_ERROR_ORDER,
                                    "the load leaves some weights as they are, and these are incomplete: call "
                                    "zero_init_parameters or zero_set_state first, then load");
    if (with_moments)
        ZERO_TRY(zero_context_check_trains(&engine->context, "zero_set_state with moments"));
    /* Without moments, AdamW's step count is set to 0, which a step under way would overwrite. */
    ZERO_TRY(with_moments ? zero_context_check_between_steps(&engine->context, "zero_set_state")
                          : zero_results_check_no_step(engine->results, "zero_set_state without moments"));
    ZERO_TRY(zero_comm_agree(engine->context.comm, fill ? ZERO_OK : zero_refuse_null("zero_set_state", "fill")));
    ZERO_TRY(quiesce(engine, "zero_set_state"));
    ZERO_TRY(zero_compare_number(engine->context.host_comm, "with_moments", with_moments));
    ZERO_TRY(write_all(engine, true, set_run, &request));
    return with_moments ? ZERO_OK : zero_set_adam_step(engine, 0);
}

/* Writes a run's initial weights to buffers->weights. Zeros are not copied from the host: a program that sets all
 * weights afterwards declares them so. */
static zero_status_t init_weights(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                  zero_run_buffers_t *buffers)
{
    const zero_context_t *context = &engine->context;
    zero_device_t *device = context->device;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    const size_t n_bytes = run->n_elems * sizeof(float);
    if (decl->init == ZERO_INIT_NORMAL)
        return device->kernels->fill_normal(buffers->weights, run->n_elems, context->config.seed, (uint64_t)tensor,
                                            run->first, decl->init_std, NULL);
    if (decl->init == ZERO_INIT_ZEROS)
        return device->ops->clear(device, buffers->weights, n_bytes, NULL);
    for (size_t i = 0; i < run->n_elems; i++)
        buffers->host[i] = 1.0f;
    return zero_device_copy(device, buffers->weights, buffers->host, n_bytes, NULL);
}

static zero_status_t init_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                              const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user)
{
    (void)user;
    ZERO_TRY(init_weights(engine, tensor, run, buffers));
    ZERO_TRY(zero_run_write_master(engine, tensor, at, buffers, run->n_elems));
    ZERO_TRY(zero_run_clear_moments(engine, tensor, at, run->n_elems));
    return zero_device_synchronize(engine->context.device);
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
    bool saved_only;
} get_request_t;

static zero_status_t get_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                             const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user)
{
    const get_request_t *request = user;
    if (request->saved_only && engine->context.model->tensors[tensor].not_saved)
        return ZERO_OK;
    zero_device_t *device = engine->context.device;
    float *master = buffers->host, *m = master + buffers->capacity, *v = m + buffers->capacity;
    size_t n = run->n_elems;
    zero_chunk_t chunk = {.tensor = tensor, .first = run->first, .n_elems = n, .master = master};
    ZERO_TRY(zero_run_read_master(engine, tensor, at, buffers, n));
    if (!zero_run_is_frozen(engine, tensor)) {
        ZERO_TRY(zero_run_read_array(engine, ZERO_ARRAY_M, at, m, n, buffers));
        chunk.m = m;
        if (engine->context.plan.n_arrays > 1) {
            ZERO_TRY(zero_run_read_array(engine, ZERO_ARRAY_V, at, v, n, buffers));
            chunk.v = v;
        }
    }
    ZERO_TRY(zero_device_synchronize(device));
    return request->visit(request->user, &chunk);
}

static zero_status_t get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user, bool saved_only)
{
    get_request_t request = {.visit = visit, .user = user, .saved_only = saved_only};
    ZERO_TRY(zero_context_check_trains(&engine->context, "zero_get_state"));
    ZERO_TRY(zero_context_check_between_steps(&engine->context, "zero_get_state"));
    if (!visit)
        return zero_refuse_null("zero_get_state", "visit");
    ZERO_TRY(zero_engine_check_weights(engine, "zero_get_state"));
    ZERO_TRY(zero_offload_finish_update(engine->offload)); /* offloaded state may still be being copied */
    ZERO_TRY(zero_device_synchronize(engine->context.device));
    return zero_runs_for_each(engine, true, get_run, &request);
}

zero_status_t zero_get_state(zero_engine_t *engine, zero_chunk_fn visit, void *user)
{
    ZERO_REQUIRE(engine);
    return get_state(engine, visit, user, false);
}

zero_status_t zero_engine_get_saved(zero_engine_t *engine, zero_chunk_fn visit, void *user)
{
    return get_state(engine, visit, user, true);
}

/* ---- one array of one tensor ---- */

typedef struct array_request {
    zero_array_t array;
    const float *from; /* writing: the whole tensor */
    float *to;         /* reading: what this rank owns of it, from element `first` on */
    uint64_t first;
} array_request_t;

/* Reads reduced gradients, which begin at element `at` of them all, through host memory into `to`. */
static zero_status_t read_grad_run(const zero_engine_t *engine, uint64_t at, uint64_t n_elems, void *host, float *to)
{
    const zero_context_t *context = &engine->context;
    const zero_dtype_t dtype = context->plan.reduced_dtype;
    ZERO_TRY(zero_device_copy(context->device, host, zero_context_reduced_grads_at(context, at),
                              n_elems * zero_dtype_size(dtype), NULL));
    ZERO_TRY(zero_device_synchronize(context->device));
    return zero_shard_kernels_cpu()->cast(to, ZERO_FP32, host, dtype, n_elems, NULL);
}

static zero_status_t read_array_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                    const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user)
{
    const array_request_t *request = user;
    zero_device_t *device = engine->context.device;
    const size_t n_bytes = run->n_elems * sizeof(float);
    if (request->array == ZERO_ARRAY_WEIGHT)
        ZERO_TRY(zero_run_read_master(engine, tensor, at, buffers, run->n_elems));
    else if (request->array == ZERO_ARRAY_GRAD)
        return read_grad_run(engine, at->grad, run->n_elems, buffers->host,
                             request->to + (run->first - request->first));
    else
        ZERO_TRY(zero_run_read_array(engine, request->array, at, buffers->host, run->n_elems, buffers));
    ZERO_TRY(zero_device_synchronize(device));
    memcpy(request->to + (run->first - request->first), buffers->host, n_bytes);
    return ZERO_OK;
}

static zero_status_t write_array_run(zero_engine_t *engine, zero_tensor_t tensor, const zero_span_t *run,
                                     const zero_adam_segment_t *at, zero_run_buffers_t *buffers, void *user)
{
    const array_request_t *request = user;
    zero_device_t *device = engine->context.device;
    const size_t n_bytes = run->n_elems * sizeof(float);
    const float *from = request->from + run->first;
    if (request->array == ZERO_ARRAY_WEIGHT) {
        ZERO_TRY(zero_device_copy(device, buffers->weights, from, n_bytes, NULL));
        ZERO_TRY(zero_run_write_master(engine, tensor, at, buffers, run->n_elems));
    } else {
        ZERO_TRY(zero_run_write_array(engine, request->array, at, from, run->n_elems, buffers));
    }
    return zero_device_synchronize(device); /* the buffers are used again */
}

zero_status_t zero_engine_read_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, float *elems)
{
    zero_span_t owned = zero_context_owned_span(&engine->context, tensor, engine->context.comm->rank);
    array_request_t request = {.array = array, .to = elems, .first = owned.first};
    ZERO_TRY(zero_offload_finish_update(engine->offload));
    ZERO_TRY(zero_device_synchronize(engine->context.device));
    return zero_runs_for_each_of(engine, tensor, true, read_array_run, &request);
}

zero_status_t zero_engine_write_array(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array,
                                      const float *elems)
{
    array_request_t request = {.array = array, .from = elems};
    ZERO_TRY(zero_engine_quiesce(engine));
    engine->weights_are_partial = true;
    engine->partial_weights_were_logged = false;
    ZERO_TRY(zero_comm_agree(engine->context.host_comm,
                             zero_runs_for_each_of(engine, tensor, false, write_array_run, &request)));
    if (array == ZERO_ARRAY_WEIGHT) {
        ZERO_TRY(zero_parameters_publish_set(engine->parameters, engine->context.streams.gather));
        ZERO_TRY(zero_device_synchronize(engine->context.device));
    }
    engine->weights_are_partial = false;
    return ZERO_OK;
}
