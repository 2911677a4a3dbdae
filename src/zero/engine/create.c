/* create.c - creates and destroys an engine: checks, compares ranks, plans, allocates once.
 *
 * Ranks agree after every step that one of them could fail alone, so that a rank without memory is an error on all
 * ranks and not a hang on the others.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "zero/engine/compare.h"
#include "zero/engine/engine.h"
#include "zero/plan/config.h"
#include "zero/plan/declaration.h"
#include "zero/plan/muon_schedule.h"

/* ---- compare ---- */

/* Hashes field by field, so that padding does not count. user_bytes, user_pinned_bytes, check, offload_threads and
 * offload_ram are each rank's own. */
static uint64_t config_hash(const zero_config_t *c)
{
    uint64_t hash = zero_hash_fold(0, &c->stage, sizeof c->stage);
    hash = zero_hash_fold(hash, &c->dtype, sizeof c->dtype);
    hash = zero_hash_fold(hash, &c->micro_steps, sizeof c->micro_steps);
    hash = zero_hash_fold(hash, &c->prefetch, sizeof c->prefetch);
    hash = zero_hash_fold(hash, &c->keep, sizeof c->keep);
    hash = zero_hash_fold(hash, &c->overlap, sizeof c->overlap);
    hash = zero_hash_fold(hash, &c->reduce_every_micro_step, sizeof c->reduce_every_micro_step);
    hash = zero_hash_fold(hash, &c->nccl_reduction, sizeof c->nccl_reduction);
    hash = zero_hash_fold(hash, &c->shard_group, sizeof c->shard_group);
    hash = zero_hash_fold(hash, &c->gather_fp8, sizeof c->gather_fp8);
    hash = zero_hash_fold(hash, &c->forward_only, sizeof c->forward_only);
    hash = zero_hash_fold(hash, &c->seed, sizeof c->seed);
    hash = zero_hash_fold(hash, &c->optimizer, sizeof c->optimizer);
    if (c->optimizer == ZERO_OPTIMIZER_OWN && c->own_optimizer && c->own_optimizer->name) { /* not checked yet */
        hash = zero_hash_fold(hash, c->own_optimizer->name, strlen(c->own_optimizer->name));
        hash = zero_hash_fold(hash, &c->own_optimizer->n_arrays, sizeof c->own_optimizer->n_arrays);
        const bool sees_matrices = c->own_optimizer->whole != NULL;
        hash = zero_hash_fold(hash, &sees_matrices, sizeof sees_matrices);
    }
    const bool hooks[] = {c->hooks && c->hooks->reduced, c->hooks && c->hooks->updated};
    hash = zero_hash_fold(hash, hooks, sizeof hooks);
    hash = zero_hash_fold(hash, &c->momentum, sizeof c->momentum);
    hash = zero_hash_fold(hash, &c->muon_momentum, sizeof c->muon_momentum);
    hash = zero_hash_fold(hash, &c->muon_steps, sizeof c->muon_steps);
    hash = zero_hash_fold(hash, &c->beta1, sizeof c->beta1);
    hash = zero_hash_fold(hash, &c->beta2, sizeof c->beta2);
    hash = zero_hash_fold(hash, &c->eps, sizeof c->eps);
    hash = zero_hash_fold(hash, &c->weight_decay, sizeof c->weight_decay);
    hash = zero_hash_fold(hash, &c->grad_clip, sizeof c->grad_clip);
    hash = zero_hash_fold(hash, &c->max_skipped_steps, sizeof c->max_skipped_steps);
    hash = zero_hash_fold(hash, &c->offload, sizeof c->offload);
    hash = zero_hash_fold(hash, &c->offload_ratio, sizeof c->offload_ratio);
    hash = zero_hash_fold(hash, &c->offload_params, sizeof c->offload_params);
    hash = zero_hash_fold(hash, &c->offload_update, sizeof c->offload_update);
    hash = zero_hash_fold(hash, &c->offload_grads, sizeof c->offload_grads);
    hash = zero_hash_fold(hash, &c->gradients, sizeof c->gradients);
    hash = zero_hash_fold(hash, &c->update, sizeof c->update);
    hash = zero_hash_fold(hash, &c->offload_buffer_bytes, sizeof c->offload_buffer_bytes);
    hash = zero_hash_fold(hash, &c->staging_bytes, sizeof c->staging_bytes);
    hash = zero_hash_fold(hash, &c->loss_scale_window, sizeof c->loss_scale_window);
    hash = zero_hash_fold(hash, &c->loss_scale_hysteresis, sizeof c->loss_scale_hysteresis);
    return zero_hash_fold(hash, &c->initial_loss_scale, sizeof c->initial_loss_scale);
}

zero_status_t zero_compare_across_ranks(zero_comm_t *comm, const zero_model_t *model, const zero_config_t *config)
{
    uint64_t mine[2] = {zero_model_hash(model), config_hash(config)};
    uint64_t *all = malloc((size_t)comm->size * sizeof mine); /* [size][2] */
    if (!all)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size);
    zero_status_t status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
    for (int r = 1; r < comm->size && status == ZERO_OK; r++)
        for (int k = 0; k < 2 && status == ZERO_OK; k++)
            if (all[2 * r + k] != all[k])
                status = zero_fail_collective(
                    ZERO_ERROR_MISMATCH,
                    "rank %d has another %s than rank 0 (%016llx, not %016llx): give every rank the "
                    "same program and arguments",
                    r, k == 0 ? "declaration of units and tensors" : "configuration",
                    (unsigned long long)all[2 * r + k], (unsigned long long)all[k]);
    free(all);
    return status;
}

zero_status_t zero_compare_number(zero_comm_t *comm, const char *what, int64_t number)
{
    int64_t *all = comm->scratch;
    ZERO_TRY(comm->ops->host_all_gather(comm, &number, sizeof number, all));
    for (int r = 1; r < comm->size; r++)
        if (all[r] != all[0])
            return zero_fail_collective(
                ZERO_ERROR_MISMATCH, "%s: %s is %lld on rank %d and %lld on rank 0: it must be the same on every rank",
                comm->call.name, what, (long long)all[r], r, (long long)all[0]);
    return ZERO_OK;
}

/* ---- create ---- */

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
    ZERO_TRY(zero_frozen_fp8_create(context, &engine->frozen_fp8));
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
    /* First: all ranks then return the same error, whatever else is wrong with some of them. */
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
static void await_device(zero_engine_t *engine)
{
    const zero_context_t *context = &engine->context;
    zero_comm_t *comm = context->comm;
    if (comm && (comm->failed || context->host_comm->failed)) {
        if (comm->ops->release)
            comm->ops->release(comm);
        zero_engine_release_all_to_alls(engine);
    }
    zero_device_synchronize(context->device);
}

/* Frees the engine, in the reverse order of create. What was not created is NULL. */
static void destroy(zero_engine_t *engine)
{
    zero_context_t *context = &engine->context;
    zero_comm_t *host_comm = context->host_comm;
    zero_device_t *device = context->device;
    zero_context_enter(context, "zero_engine_destroy");
    await_device(engine);
    zero_engine_free_all_to_alls(engine);
    zero_engine_free_stashes(engine);
    zero_engine_free_blocks(engine);
    zero_update_destroy(engine->update);
    zero_results_destroy(engine->results);
    zero_gradients_destroy(engine->gradients);
    zero_parameters_destroy(engine->parameters);
    zero_offload_destroy(engine->offload);
    zero_frozen_fp8_destroy(engine->frozen_fp8);
    zero_streams_destroy(context);
    zero_context_destroy(context);
    free(engine);
    zero_device_leave(device);
    zero_comm_leave(host_comm, ZERO_OK);
    zero_comm_drop(host_comm, ZERO_USER_ENGINE);
}

void zero_engine_destroy(zero_engine_t *engine)
{
    if (engine && zero_users_release(&engine->users, "zero_engine_destroy"))
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
