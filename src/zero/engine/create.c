/* create.c - building an engine: check, plan, compare across ranks, allocate once.
 *
 * Ranks agree after every step that one of them could fail alone, so that a rank without memory is an error on all
 * ranks and not a hang on the others.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zero/engine/engine.h"
#include "base/hash.h"
#include "base/log.h"

/* Field by field: padding never counts. user_bytes and check are each rank's own. */
static uint64_t config_hash(const zero_config_t *c)
{
    uint64_t hash = zero_hash_fold(0, &c->stage, sizeof c->stage);
    hash = zero_hash_fold(hash, &c->dtype, sizeof c->dtype);
    hash = zero_hash_fold(hash, &c->micro_steps, sizeof c->micro_steps);
    hash = zero_hash_fold(hash, &c->prefetch, sizeof c->prefetch);
    hash = zero_hash_fold(hash, &c->overlap, sizeof c->overlap);
    hash = zero_hash_fold(hash, &c->reduce_every_micro_step, sizeof c->reduce_every_micro_step);
    hash = zero_hash_fold(hash, &c->nccl_reduction, sizeof c->nccl_reduction);
    hash = zero_hash_fold(hash, &c->seed, sizeof c->seed);
    hash = zero_hash_fold(hash, &c->beta1, sizeof c->beta1);
    hash = zero_hash_fold(hash, &c->beta2, sizeof c->beta2);
    hash = zero_hash_fold(hash, &c->eps, sizeof c->eps);
    hash = zero_hash_fold(hash, &c->weight_decay, sizeof c->weight_decay);
    hash = zero_hash_fold(hash, &c->grad_clip, sizeof c->grad_clip);
    hash = zero_hash_fold(hash, &c->max_skipped_steps, sizeof c->max_skipped_steps);
    hash = zero_hash_fold(hash, &c->offload, sizeof c->offload);
    hash = zero_hash_fold(hash, &c->offload_ratio, sizeof c->offload_ratio);
    hash = zero_hash_fold(hash, &c->offload_update, sizeof c->offload_update);
    hash = zero_hash_fold(hash, &c->offload_buffer_bytes, sizeof c->offload_buffer_bytes);
    hash = zero_hash_fold(hash, &c->staging_bytes, sizeof c->staging_bytes);
    hash = zero_hash_fold(hash, &c->loss_scale_window, sizeof c->loss_scale_window);
    hash = zero_hash_fold(hash, &c->loss_scale_hysteresis, sizeof c->loss_scale_hysteresis);
    return zero_hash_fold(hash, &c->initial_loss_scale, sizeof c->initial_loss_scale);
}

/* ZERO_CHECK=1 turns it on for any program, on the ranks that have it. */
static bool is_to_check(const zero_config_t *config)
{
    const char *text = getenv("ZERO_CHECK");
    return config->check || (text && strcmp(text, "") != 0 && strcmp(text, "0") != 0);
}

/* Every rank must hold the same declaration and configuration: different ones would wait for each other forever. */
static zero_status_t compare_across_ranks(zero_comm_t *comm, const zero_model_t *model, const zero_config_t *config)
{
    uint64_t mine[2] = {zero_model_hash(model), config_hash(config)};
    uint64_t *all = malloc((size_t)comm->size * sizeof mine); /* [size][2] */
    if (!all)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size);
    zero_status_t status = comm->ops->host_all_gather(comm, mine, sizeof mine, all);
    for (int r = 1; r < comm->size && status == ZERO_OK; r++)
        for (int k = 0; k < 2 && status == ZERO_OK; k++)
            if (all[2 * r + k] != all[k])
                status =
                    zero_fail_alike(ZERO_ERROR_MISMATCH,
                                    "rank %d has another %s than rank 0 (%016llx, not %016llx): give every rank the "
                                    "same program and arguments",
                                    r, k == 0 ? "declaration of units and tensors" : "configuration",
                                    (unsigned long long)all[2 * r + k], (unsigned long long)all[k]);
    free(all);
    return status;
}

static zero_status_t check_fits(const zero_engine_t *engine)
{
    const double mib = 1024.0 * 1024.0;
    uint64_t needed = zero_memory_total(&engine->plan.memory) + engine->config.user_bytes;
    uint64_t available = engine->device->ops->available_bytes(engine->device);
    /* Only what would make a difference is advised. */
    const char *stage = engine->config.stage < 3 ? ", a higher stage" : "";
    const char *offload = !engine->config.offload && engine->device->type != ZERO_DEVICE_CPU ? ", offload" : "";
    if (needed <= available)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_MEMORY,
        "the plan needs %.1f MiB (%.1f for parameters, gradients and optimizer state, %.1f of the caller's) "
        "and %.1f MiB are free: take more ranks%s%s, a smaller micro-batch or recompute",
        (double)needed / mib, (double)zero_memory_total(&engine->plan.memory) / mib,
        (double)engine->config.user_bytes / mib, (double)available / mib, stage, offload);
}

/* What libraries, graphs, streams and events will take of the device once the plan is made: nvidia-smi shows 0.6 GiB
 * over the plan on an H200. A 64th of what is free or, where that is less, 1 GiB, but no more than an eighth. */
static uint64_t left_free(uint64_t available)
{
    const uint64_t least = (uint64_t)1 << 30, most = available / 8, part = available / 64;
    uint64_t left = part > least ? part : least;
    return left < most ? left : most;
}

/* The smallest share that fits on every rank: the largest of what the ranks find. */
static zero_status_t settle_offload_ratio(zero_engine_t *engine, zero_comm_kind_t kind)
{
    zero_comm_t *comm = engine->host_comm;
    zero_config_t *config = &engine->config;
    float mine = 0.0f, largest = 0.0f;
    if (!config->offload || config->offload_ratio != ZERO_OFFLOAD_AUTO || kind != ZERO_COMM_NCCL)
        return ZERO_OK;
    uint64_t available = engine->device->ops->available_bytes(engine->device);
    float *all = malloc((size_t)comm->size * sizeof *all);
    zero_status_t status = all ? zero_plan_smallest_offload(engine->model, &engine->layout, config, kind,
                                                            available - left_free(available), &mine)
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size);
    status = zero_comm_agree(comm, status);
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, &mine, sizeof mine, all);
    for (int r = 0; r < comm->size && status == ZERO_OK; r++)
        largest = all[r] > largest ? all[r] : largest;
    free(all);
    ZERO_TRY(status);
    config->offload_ratio = largest;
    if (comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload_ratio auto: %.4g of the optimizer's state, where %.1f MiB of the device are free",
                 (double)largest, (double)available / 1048576.0);
    return ZERO_OK;
}

/* Host memory comes first, since who updates what lies there hangs on it: where nobody said who, and some rank's could
 * not be pinned, the host does on all ranks, for which fewer bytes must be copied. The plan is then another. */
static zero_status_t reserve_host_memory(zero_engine_t *engine, zero_comm_kind_t kind)
{
    ZERO_TRY(zero_offload_reserve(engine));
    if (!engine->offload || engine->config.offload_update != ZERO_OFFLOAD_UPDATE_AUTO)
        return ZERO_OK;
    double n_held_up = zero_offload_is_held_up(engine);
    ZERO_TRY(zero_comm_sum(engine->host_comm, &n_held_up, 1));
    if (n_held_up == 0.0)
        return ZERO_OK;
    zero_offload_destroy(engine);
    zero_arena_plan_destroy(&engine->plan);
    engine->config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    ZERO_TRY(zero_arena_plan_create(engine->model, &engine->layout, &engine->config, kind, &engine->plan));
    return zero_offload_reserve(engine);
}

static zero_status_t allocate(zero_engine_t *engine)
{
    zero_device_t *device = engine->device;
    const zero_arena_plan_t *plan = &engine->plan;
    void *data;
    ZERO_TRY(engine->comm->ops->window_create(engine->comm, plan->window_bytes, &engine->window));
    zero_status_t status = device->ops->alloc(device, plan->private_bytes, &data);
    if (status == ZERO_OK)
        engine->private_data = data;
    if (status == ZERO_OK)
        status = device->ops->host_alloc(device, ZERO_MAX_STEPS_IN_FLIGHT * sizeof *engine->outcomes, &data);
    if (status == ZERO_OK)
        engine->outcomes = data;
    ZERO_TRY(zero_comm_agree(engine->comm, status));
    engine->memory = plan->memory;
    return ZERO_OK;
}

static zero_status_t build_tables(zero_engine_t *engine)
{
    const zero_layout_t *layout = &engine->layout;
    const zero_arena_plan_t *plan = &engine->plan;
    ZERO_TRY(zero_unsharded_create(layout, plan->unsharded_param_counts, plan->unsharded_params,
                                   zero_dtype_size(engine->config.dtype), &engine->unsharded_params));
    ZERO_TRY(zero_unsharded_create(layout, plan->unsharded_grad_counts, plan->unsharded_grads,
                                   zero_dtype_size(plan->stage.grad_dtype), &engine->unsharded_grads));
    engine->reduction.unit = -1;
    for (int i = 0; i < plan->n_staging; i++) {
        zero_grad_chunk_t *piece = &engine->pieces[i];
        piece->slices = calloc((size_t)engine->comm->size, sizeof *piece->slices);
        piece->staging = plan->staging + (uint64_t)i * plan->staging_bytes;
        if (!piece->slices)
            return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d ranks", engine->comm->size);
    }
    engine->partials_of = calloc((size_t)layout->n_units, sizeof *engine->partials_of);
    engine->grads_read_in_fence = calloc((size_t)layout->n_units, sizeof *engine->grads_read_in_fence);
    engine->params_ready = calloc((size_t)layout->n_units, sizeof *engine->params_ready);
    engine->params_are = calloc((size_t)layout->n_units, sizeof *engine->params_are);
    engine->used = calloc((size_t)layout->n_units, sizeof *engine->used);
    engine->buffer_freed = calloc((size_t)plan->n_unsharded_params + 1, sizeof *engine->buffer_freed);
    if (!engine->partials_of || !engine->grads_read_in_fence || !engine->params_ready || !engine->params_are ||
        !engine->used || !engine->buffer_freed)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the tables of %d units", layout->n_units);
    engine->overlapped = plan->overlapped && !engine->comm->ops->blocks;
    engine->n_gathered = layout->n_units;
    for (int u = 0; u < layout->n_units; u++) {
        engine->partials_of[u] = engine->n_partials;
        engine->n_partials += zero_norm_n_partials(layout->units[u].shard_elems);
    }
    return ZERO_OK;
}

/* Calls visit on every event of the engine. */
static zero_status_t for_each_event(zero_engine_t *engine,
                                    zero_status_t (*visit)(zero_device_t *device, zero_event_t *event))
{
    zero_device_t *device = engine->device;
    ZERO_TRY(visit(device, &engine->early_updated));
    ZERO_TRY(visit(device, &engine->published));
    ZERO_TRY(visit(device, &engine->reduced_grads_ready));
    ZERO_TRY(visit(device, &engine->reductions_done));
    return visit(device, &engine->fences_passed);
}

static zero_status_t create_event(zero_device_t *device, zero_event_t *event)
{
    return device->ops->event_create(device, false, event);
}

static zero_status_t destroy_event(zero_device_t *device, zero_event_t *event)
{
    device->ops->event_destroy(device, *event);
    return ZERO_OK;
}

/* Spans under way at once: two micro-steps' worth, some of each kind for every unit forward and backward. */
static int timeline_capacity(const zero_engine_t *engine)
{
    return 32 * engine->layout.n_units + 64;
}

static zero_status_t create_streams(zero_engine_t *engine)
{
    zero_device_t *device = engine->device;
    for (int i = 0; i < ZERO_N_STEPS_TIMED; i++) {
        ZERO_TRY(device->ops->event_create(device, true, &engine->timed[i].began));
        ZERO_TRY(device->ops->event_create(device, true, &engine->timed[i].ended));
    }
    ZERO_TRY(device->ops->stream_create(device, true, &engine->gather_stream));
    ZERO_TRY(device->ops->stream_create(device, true, &engine->reduce_stream));
    ZERO_TRY(for_each_event(engine, create_event));
    return zero_timeline_create(device, engine->host_comm, timeline_capacity(engine), &engine->timeline);
}

/* NULL on one rank is told to all. */
static zero_status_t check_arguments(zero_comm_t *comm, const char *missing)
{
    return zero_comm_agree(comm, missing ? zero_refuse_null("zero_engine_create", missing) : ZERO_OK);
}

zero_status_t zero_engine_create(zero_comm_t *comm, zero_device_t *device, const zero_model_t *model,
                                 const zero_config_t *config, zero_engine_t **engine)
{
    zero_status_t status;
    ZERO_REQUIRE(comm);
    ZERO_TRY(check_arguments(comm, !device   ? "device"
                                   : !model  ? "model"
                                   : !config ? "config"
                                   : !engine ? "engine"
                                             : NULL));
    zero_call_t call = {.name = "zero_engine_create", .has_engine = 1, .engine = comm->n_engines++};
    zero_comm_enter(comm, &call, true);
    zero_engine_t *made = NULL;
    ZERO_TRY_GOTO(compare_across_ranks(comm, model, config), fail); /* before what all ranks then find alike */
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_config_check(config)), fail);
    made = calloc(1, sizeof *made);
    if (!made) {
        status = zero_fail(ZERO_ERROR_MEMORY, "no memory for an engine");
        goto fail;
    }
    made->number = call.engine;
    made->host_comm = comm;
    made->device = device;
    zero_users_join(&comm->users, ZERO_USER_ENGINE);
    zero_users_join(&device->users, ZERO_USER_ENGINE);
    made->config = *config;
    made->config.check = is_to_check(config);
    ZERO_TRY_GOTO(zero_device_comm_create(device, comm, config->nccl_reduction, &made->comm), fail);
    ZERO_TRY_GOTO(zero_model_copy(model, &made->model), fail);
    ZERO_TRY_GOTO(zero_layout_create(model, comm->size, &made->layout), fail);
    zero_comm_kind_t kind = zero_device_comm_kind(device, comm);
    ZERO_TRY_GOTO(settle_offload_ratio(made, kind), fail);
    ZERO_TRY_GOTO(zero_arena_plan_create(model, &made->layout, &made->config, kind, &made->plan), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, check_fits(made)), fail); /* what does not is refused before much is pinned */
    ZERO_TRY_GOTO(reserve_host_memory(made, kind), fail);
    ZERO_TRY_GOTO(build_tables(made), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, create_streams(made)), fail);
    ZERO_TRY_GOTO(allocate(made), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_offload_create(made)), fail);
    ZERO_TRY_GOTO(zero_comm_agree(comm, zero_engine_prepare_steps(made)), fail);
    *engine = made;
    return zero_comm_leave(comm, ZERO_OK);
fail:
    zero_engine_destroy(made);
    return zero_comm_leave(comm, status);
}

/* Memory is not freed while a stream may still touch it, nor a stream waited for that waits for a peer which failed. */
static void settle(zero_engine_t *engine)
{
    bool failed = engine->comm && (engine->comm->failed || engine->host_comm->failed);
    if (failed && engine->comm->ops->release)
        engine->comm->ops->release(engine->comm);
    zero_device_synchronize(engine->device);
}

static void end(zero_engine_t *engine)
{
    zero_comm_t *host_comm = engine->host_comm;
    zero_engine_enter(engine, "zero_engine_destroy");
    settle(engine);
    for (zero_user_block_t *block = engine->user_blocks, *next; block; block = next) {
        next = block->next;
        engine->device->ops->free(engine->device, block->data, block->n_bytes);
        free(block);
    }
    if (engine->private_data)
        engine->device->ops->free(engine->device, engine->private_data, engine->plan.private_bytes);
    if (engine->outcomes)
        engine->device->ops->host_free(engine->device, engine->outcomes);
    if (engine->window.n_bytes)
        engine->comm->ops->window_destroy(engine->comm, &engine->window);
    zero_offload_destroy(engine);
    zero_timeline_destroy(engine->timeline);
    for_each_event(engine, destroy_event);
    for (int i = 0; i < ZERO_N_STEPS_TIMED; i++) {
        destroy_event(engine->device, &engine->timed[i].began);
        destroy_event(engine->device, &engine->timed[i].ended);
    }
    engine->device->ops->stream_destroy(engine->device, engine->gather_stream);
    engine->device->ops->stream_destroy(engine->device, engine->reduce_stream);
    for (int i = 0; i < ZERO_MAX_STAGING; i++)
        free(engine->pieces[i].slices);
    free(engine->partials_of);
    free(engine->grads_read_in_fence);
    free(engine->params_ready);
    free(engine->params_are);
    free(engine->used);
    free(engine->buffer_freed);
    zero_unsharded_destroy(&engine->unsharded_params);
    zero_unsharded_destroy(&engine->unsharded_grads);
    zero_arena_plan_destroy(&engine->plan);
    zero_layout_destroy(&engine->layout);
    zero_model_destroy(engine->model);
    zero_device_comm_destroy(host_comm, engine->comm);
    zero_device_leave(engine->device);
    free(engine);
    zero_comm_leave(host_comm, ZERO_OK);
    zero_comm_drop(host_comm, ZERO_USER_ENGINE);
}

void zero_engine_destroy(zero_engine_t *engine)
{
    if (engine && zero_users_let_go(&engine->users, "zero_engine_destroy"))
        end(engine);
}

void zero_engine_leave(zero_engine_t *engine, zero_user_t user)
{
    if (zero_users_leave(&engine->users, user))
        end(engine);
}

static zero_status_t alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes,
                           zero_user_block_t use, void **data)
{
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER, "zero_alloc after the first zero_begin: memory is planned before step 0");
    zero_user_block_t *block = calloc(1, sizeof *block);
    if (block)
        *block = use;
    else
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to note a block of %zu bytes", n_bytes);
    zero_status_t status = engine->device->ops->alloc(engine->device, n_bytes, &block->data);
    if (status != ZERO_OK) {
        free(block);
        return status;
    }
    block->n_bytes = n_bytes;
    block->next = engine->user_blocks;
    engine->user_blocks = block;
    engine->memory.bytes[category] += n_bytes;
    *data = block->data;
    return ZERO_OK;
}

zero_status_t zero_alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes, void **data)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(data);
    if ((unsigned)category >= ZERO_MEMORY_N_CATEGORIES)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_alloc: there is no memory category %d", (int)category);
    return alloc(engine, category, n_bytes, (zero_user_block_t){.always_in_use = true}, data);
}

zero_status_t zero_alloc_activations(zero_engine_t *engine, zero_unit_t first, zero_unit_t last, size_t n_bytes,
                                     void **data)
{
    ZERO_REQUIRE(engine);
    ZERO_REQUIRE(data);
    zero_unit_t n_units = engine->model->n_units;
    if (first < 0 || first >= n_units || last < 0 || last >= n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_alloc_activations: units %d and %d, of %d", first, last, n_units);
    zero_user_block_t use = {.first = first, .last = last};
    return alloc(engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, use, data);
}
