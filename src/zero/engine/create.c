/* create.c - creates and destroys an engine: checks, compares ranks, plans, allocates once.
 *
 * Ranks agree after every step that one of them could fail alone, so that a rank without memory is an error on all
 * ranks and not a hang on the others.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/engine/fit.h"
#include "zero/plan/config.h"
#include "zero/plan/muon_schedule.h"

/* Returns whether gradients are to be checked. ZERO_CHECK=1 turns that on for any program, on the ranks that have it.
 */
static bool is_to_check(const zero_config_t *config)
{
    const char *text = getenv("ZERO_CHECK");
    return config->check || (text && strcmp(text, "") != 0 && strcmp(text, "0") != 0);
}

/* Reads the configuration. Makes all ranks fail if one was given NULL, or a configuration that cannot be read. */
static zero_status_t check_arguments(zero_comm_t *comm, const char *missing, const zero_config_t *config,
                                     zero_config_t *known)
{
    static const char call[] = "zero_engine_create";
    return zero_comm_agree(comm, missing ? zero_refuse_null(call, missing) : zero_config_read(call, config, known));
}

/* Warns if Muon has nothing to do: without hidden_matrix in the declaration, AdamW updates all, silently. */
static void warn_if_no_matrix(const zero_context_t *context)
{
    const zero_model_t *model = context->model;
    if (context->config.optimizer != ZERO_OPTIMIZER_MUON || context->config.forward_only || context->comm->rank > 0)
        return;
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (zero_muon_takes(&context->config, &model->tensors[t]))
            return;
    zero_log(ZERO_LOG_WARNING,
             "optimizer muon: no trained tensor is declared with hidden_matrix, so AdamW updates all");
}

static zero_status_t create_parts(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    ZERO_TRY(zero_offload_prepare(engine->offload));
    ZERO_TRY(zero_parameters_create(context, engine->offload, &engine->parameters));
    ZERO_TRY(zero_gradients_create(context, engine->offload, &engine->gradients));
    ZERO_TRY(zero_results_create(context, &engine->results));
    return zero_update_create(context, engine->offload, engine->parameters, engine->gradients, engine->results,
                              &engine->update);
}

static zero_status_t create(zero_engine_t *engine, const zero_model_t *model, const zero_config_t *config)
{
    zero_context_t *context = &engine->context;
    zero_comm_t *comm = context->host_comm;
    ZERO_TRY(zero_context_create(model, config, context));
    context->config.check = is_to_check(config);
    engine->reduces_once = config->micro_steps == 1;
    ZERO_TRY(zero_fit_plan(context, &engine->offload));
    ZERO_TRY(zero_comm_agree(comm, zero_streams_create(context)));
    ZERO_TRY(zero_context_allocate(context));
    warn_if_no_matrix(context);
    return zero_comm_agree(comm, create_parts(engine));
}

zero_status_t zero_engine_create(zero_comm_t *comm, zero_device_t *device, const zero_model_t *model,
                                 const zero_config_t *config, zero_engine_t **engine)
{
    zero_status_t status;
    zero_config_t known;
    ZERO_REQUIRE(comm);
    ZERO_TRY(check_arguments(comm,
                             !device   ? "device"
                             : !model  ? "model"
                             : !config ? "config"
                             : !engine ? "engine"
                                       : NULL,
                             config, &known));
    zero_call_t call = {.name = "zero_engine_create", .has_engine = 1, .engine = comm->n_engines++};
    zero_comm_enter(comm, &call, true);
    zero_engine_t *made = NULL;
    /* First, since all ranks then find alike whatever else is wrong with them. */
    ZERO_TRY_GOTO(zero_compare_across_ranks(comm, model, &known), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_config_check(&known)), fail);
    made = calloc(1, sizeof *made);
    if (!made) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
        goto fail;
    }
    made->context.host_comm = comm;
    made->context.device = device;
    made->context.engine_number = call.engine;
    zero_users_join(&comm->users, ZERO_USER_ENGINE);
    zero_users_join(&device->users, ZERO_USER_ENGINE);
    ZERO_TRY_GOTO(create(made, model, &known), fail);
    *engine = made;
    return zero_comm_leave(comm, ZERO_OK);
fail:
    zero_engine_destroy(made);
    return zero_comm_leave(comm, status);
}

/* Waits for the device, since memory must not be freed while a stream may use it. After a failure, first ends what
 * waits in the streams for a peer that may never come. */
static void settle(zero_context_t *context)
{
    zero_comm_t *comm = context->comm;
    if (comm && (comm->failed || context->host_comm->failed) && comm->ops->release)
        comm->ops->release(comm);
    zero_device_synchronize(context->device);
}

/* Frees the engine, in the reverse order of create. What was not created is NULL. */
static void destroy(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    zero_comm_t *host_comm = context->host_comm;
    zero_device_t *device = context->device;
    zero_context_enter(context, "zero_engine_destroy");
    settle(context);
    zero_engine_free_blocks(engine);
    zero_update_destroy(engine->update);
    zero_results_destroy(engine->results);
    zero_gradients_destroy(engine->gradients);
    zero_parameters_destroy(engine->parameters);
    zero_offload_destroy(engine->offload);
    zero_streams_destroy(context);
    zero_context_destroy(context);
    free(engine);
    zero_device_leave(device);
    zero_comm_leave(host_comm, ZERO_OK);
    zero_comm_drop(host_comm, ZERO_USER_ENGINE);
}

void zero_engine_destroy(zero_engine_t *engine)
{
    if (engine && zero_users_let_go(&engine->users, "zero_engine_destroy"))
        destroy(engine);
}

/* ---- for its users ---- */

void zero_engine_join(zero_engine_t *engine, zero_user_t user)
{
    zero_users_join(&engine->users, user);
}

void zero_engine_leave(zero_engine_t *engine, zero_user_t user)
{
    if (zero_users_leave(&engine->users, user))
        destroy(engine);
}

zero_context_t *zero_engine_context(zero_engine_t *engine)
{
    return &engine->context;
}

bool zero_engine_has_started(const zero_engine_t *engine)
{
    return engine->started;
}

const char *zero_engine_transport(const zero_engine_t *engine)
{
    if (!engine)
        return "";
    return engine->context.comm->size == 1 ? "self" : engine->context.comm->ops->name;
}

zero_stats_t zero_engine_stats(const zero_engine_t *engine)
{
    return engine ? engine->context.stats : (zero_stats_t){0};
}
