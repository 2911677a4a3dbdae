/* whole_tensor.c - one tensor whole, in the caller's memory: zero_get_tensor, zero_set_tensor.
 *
 * The numbers pass between hosts by broadcasts of at most RUN_ELEMS, each from the rank that has them. A rank that
 * fails must not leave others in a broadcast: so what can fail on one rank comes before the first or behind the last,
 * and ranks agree about it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/numbers.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/plan/optimizer.h"
#include "zero/runtime/addresses.h"

#define RUN_ELEMS ((uint64_t)1 << 16)

typedef struct request {
    const char *call;
    zero_tensor_t tensor;
    zero_array_t array;
    int root;
} request_t;

/* ---- checks ---- */

static zero_status_t check_request(const zero_engine_t *engine, const request_t *request, const void *data)
{
    const zero_context_t *context = &engine->context;
    const bool sets = strcmp(request->call, "zero_set_tensor") == 0;
    if (request->tensor < 0 || request->tensor >= context->model->n_tensors)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s(tensor %d): there are %d tensors", request->call, request->tensor,
                         context->model->n_tensors);
    if (sets && request->array == ZERO_ARRAY_GRAD)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: gradients cannot be set", request->call);
    if ((unsigned)request->array > ZERO_ARRAY_GRAD)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: there is no array %d", request->call, (int)request->array);
    if (sets && context->model->tensors[request->tensor].frozen_fp8)
        return zero_fail(ZERO_ERROR_UNSUPPORTED,
                         "%s: %s is held in fp8, with one scale for its matrix: zero_set_state and zero_load_weights "
                         "set it as a whole",
                         request->call, context->model->tensors[request->tensor].name);
    if (request->array != ZERO_ARRAY_WEIGHT && context->model->tensors[request->tensor].frozen)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: %s is frozen: it has a weight, but no gradient, m or v",
                         request->call, context->model->tensors[request->tensor].name);
    if (request->array == ZERO_ARRAY_V && context->plan.n_arrays < 2)
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: optimizer %s has no array v", request->call,
                         zero_optimizer_name_of(&context->config));
    if (request->root != ZERO_ALL_RANKS && (request->root < 0 || request->root >= context->comm->size))
        return zero_fail(ZERO_ERROR_ARGUMENT, "%s: there is no rank %d among %d", request->call, request->root,
                         context->comm->size);
    if (!data && (request->root == ZERO_ALL_RANKS || request->root == context->comm->rank))
        return zero_refuse_null(request->call, "data");
    return ZERO_OK;
}

/* Returns whether numbers of the array must not be negative: the optimizer takes their square root. */
static bool is_not_negative(const zero_engine_t *engine, zero_array_t array)
{
    return array == ZERO_ARRAY_V && zero_optimizer_of(&engine->context.config)->v_is_not_negative;
}

/* Names a number that the optimizer could not go on with. */
static zero_status_t check_numbers(const zero_engine_t *engine, const request_t *request, const float *data)
{
    const zero_tensor_decl_t *tensor = &engine->context.model->tensors[request->tensor];
    const bool not_negative = is_not_negative(engine, request->array);
    const size_t at = zero_find_unsound(data, tensor->n_elems, not_negative);
    if (at == tensor->n_elems)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT, "%s(%s): element %zu is %g, which must be finite%s", request->call,
                     tensor->name, at, zero_number_shown(data[at]), not_negative ? " and not negative" : "");
}

static zero_status_t compare(zero_comm_t *comm, const request_t *request)
{
    ZERO_TRY(zero_compare_number(comm, "tensor", request->tensor));
    ZERO_TRY(zero_compare_number(comm, "array", request->array));
    return zero_compare_number(comm, "root", request->root);
}

/* ---- getting ---- */

/* Gradients are reduced behind the step's last pass; the step has not cleared anything yet. */
static zero_status_t check_order(const zero_engine_t *engine, const request_t *request)
{
    const zero_progress_t *progress = &engine->context.progress;
    ZERO_TRY(zero_context_check_trains(&engine->context, request->call));
    if (request->array != ZERO_ARRAY_GRAD)
        return zero_context_check_between_steps(&engine->context, request->call);
    if (progress->in_pass || progress->micro_step != engine->context.config.micro_steps)
        return zero_fail(ZERO_ERROR_ORDER,
                         "%s of a gradient after %d of %d micro-steps%s: gradients are complete between the last and "
                         "zero_step",
                         request->call, progress->micro_step, engine->context.config.micro_steps,
                         progress->in_pass ? ", inside a pass" : "");
    return ZERO_OK;
}

static zero_status_t finish_gradients(zero_engine_t *engine, const request_t *request)
{
    zero_context_t *context = &engine->context;
    if (zero_plan_is_offloaded(&context->plan, context->model->tensors[request->tensor].owner))
        return zero_fail_collective(ZERO_ERROR_UNSUPPORTED, "%s: the gradient of %s is offloaded", request->call,
                                    context->model->tensors[request->tensor].name);
    if (zero_update_backward(engine->update))
        return zero_fail_collective(ZERO_ERROR_UNSUPPORTED,
                                    "%s: the gradient of %s is gone: update backward has used it already",
                                    request->call, context->model->tensors[request->tensor].name);
    ZERO_TRY(zero_device_synchronize(context->device));
    return zero_gradients_finish(engine->gradients, context->streams.gather);
}

/* Divides by the loss's scale. */
static zero_status_t unscale(zero_engine_t *engine, float *elems, uint64_t n_elems)
{
    zero_device_t *device = engine->context.device;
    float scale;
    ZERO_TRY(zero_device_copy(device, &scale, zero_update_loss_scale(engine->update), sizeof scale, NULL));
    ZERO_TRY(zero_device_synchronize(device));
    for (uint64_t i = 0; i < n_elems; i++)
        elems[i] /= scale;
    return ZERO_OK;
}

/* Reads what this rank owns into *mine, which the caller frees. */
static zero_status_t read_mine(zero_engine_t *engine, const request_t *request, float **mine)
{
    zero_span_t owned = zero_context_owned_span(&engine->context, request->tensor, engine->context.comm->rank);
    *mine = malloc((owned.n_elems + 1) * sizeof **mine);
    if (!*mine)
        return zero_fail(ZERO_ERROR_MEMORY, "%s: no memory for %" PRIu64 " elements", request->call, owned.n_elems);
    ZERO_TRY(zero_engine_read_array(engine, request->tensor, request->array, *mine));
    return request->array == ZERO_ARRAY_GRAD ? unscale(engine, *mine, owned.n_elems) : ZERO_OK;
}

/* Sends one run of `elems` from its owner to all; ranks without `data` receive it in `scratch`. */
static zero_status_t pass_run(zero_comm_t *comm, int owner, const float *elems, uint64_t n_elems, float *data,
                              float *scratch)
{
    float *run = data ? data : scratch;
    if (comm->rank == owner)
        memcpy(run, elems, n_elems * sizeof *run);
    return zero_comm_broadcast(comm, run, n_elems * sizeof *run, owner);
}

static zero_status_t collect(zero_engine_t *engine, const request_t *request, const float *mine, float *data,
                             float *scratch)
{
    zero_comm_t *comm = engine->context.host_comm;
    for (int rank = 0; rank < comm->size; rank++) {
        zero_span_t span = zero_context_owned_span(&engine->context, request->tensor, rank);
        for (uint64_t done = 0; done < span.n_elems; done += RUN_ELEMS) {
            uint64_t n = span.n_elems - done < RUN_ELEMS ? span.n_elems - done : RUN_ELEMS;
            ZERO_TRY(pass_run(comm, rank, mine + done, n, data ? data + span.first + done : NULL, scratch));
        }
    }
    return ZERO_OK;
}

static zero_status_t get(zero_engine_t *engine, const request_t *request, float *data)
{
    zero_comm_t *comm = engine->context.host_comm;
    float *mine = NULL, *scratch = malloc(RUN_ELEMS * sizeof *scratch);
    zero_status_t status = ZERO_OK;
    if (request->array == ZERO_ARRAY_GRAD)
        ZERO_TRY_GOTO(finish_gradients(engine, request), end);
    status = scratch ? read_mine(engine, request, &mine)
                     : zero_fail(ZERO_ERROR_MEMORY, "%s: no memory to pass runs", request->call);
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), end);
    status = collect(engine, request, mine, data, scratch);
end:
    free(scratch);
    free(mine);
    return status;
}

zero_status_t zero_get_tensor(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, int root, float *data)
{
    const request_t request = {.call = "zero_get_tensor", .tensor = tensor, .array = array, .root = root};
    ZERO_REQUIRE(engine);
    zero_comm_t *comm = engine->context.host_comm;
    ZERO_TRY(check_order(engine, &request));
    ZERO_TRY(zero_engine_check_weights(engine, request.call));
    zero_context_enter(&engine->context, request.call);
    zero_status_t status = zero_comm_agree(comm, check_request(engine, &request, data));
    if (status == ZERO_OK)
        status = compare(comm, &request);
    if (status == ZERO_OK)
        status = get(engine, &request, root == ZERO_ALL_RANKS || root == comm->rank ? data : NULL);
    return zero_comm_leave(comm, status);
}

/* ---- setting ---- */

/* Brings the root's numbers to all ranks, which only reads them on the root. */
static zero_status_t distribute(zero_comm_t *comm, const request_t *request, float *data, uint64_t n_elems)
{
    for (uint64_t done = 0; done < n_elems; done += RUN_ELEMS) {
        uint64_t n = n_elems - done < RUN_ELEMS ? n_elems - done : RUN_ELEMS;
        ZERO_TRY(zero_comm_broadcast(comm, data + done, n * sizeof *data, request->root));
    }
    return ZERO_OK;
}

/* With a root, passes its numbers through a copy on every other rank. */
static zero_status_t set_from_root(zero_engine_t *engine, const request_t *request, const float *data)
{
    zero_comm_t *comm = engine->context.host_comm;
    const uint64_t n_elems = engine->context.model->tensors[request->tensor].n_elems;
    const bool is_root = comm->rank == request->root;
    float *copy = is_root ? NULL : malloc(n_elems * sizeof *copy);
    float *here = is_root ? (float *)data : copy;
    zero_status_t status = ZERO_OK;
    if (!here)
        status = zero_fail(ZERO_ERROR_MEMORY, "%s: no memory for %" PRIu64 " elements", request->call, n_elems);
    ZERO_TRY_GOTO(zero_comm_agree(comm, status), end);
    ZERO_TRY_GOTO(distribute(comm, request, here, n_elems), end);
    status = zero_engine_write_array(engine, request->tensor, request->array, here);
end:
    free(copy);
    return status;
}

static zero_status_t check_all(const zero_engine_t *engine, const request_t *request, const float *data)
{
    ZERO_TRY(check_request(engine, request, data));
    const bool counts = request->root == ZERO_ALL_RANKS || request->root == engine->context.comm->rank;
    return counts ? check_numbers(engine, request, data) : ZERO_OK;
}

zero_status_t zero_set_tensor(zero_engine_t *engine, zero_tensor_t tensor, zero_array_t array, int root,
                              const float *data)
{
    const request_t request = {.call = "zero_set_tensor", .tensor = tensor, .array = array, .root = root};
    ZERO_REQUIRE(engine);
    zero_comm_t *comm = engine->context.host_comm;
    ZERO_TRY(zero_context_check_trains(&engine->context, request.call));
    ZERO_TRY(zero_context_check_between_steps(&engine->context, request.call));
    ZERO_TRY(zero_engine_check_weights(engine, request.call));
    zero_context_enter(&engine->context, request.call);
    zero_status_t status = zero_comm_agree(comm, check_all(engine, &request, data));
    if (status == ZERO_OK)
        status = compare(comm, &request);
    if (status == ZERO_OK)
        status = root == ZERO_ALL_RANKS ? zero_engine_write_array(engine, tensor, array, data)
                                        : set_from_root(engine, &request, data);
    return zero_comm_leave(comm, status);
}
