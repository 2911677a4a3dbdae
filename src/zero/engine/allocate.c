/* allocate.c - see engine.h. Ranks agree after every step that one of them could fail alone. */
#include <stdlib.h>

#include "base/log.h"
#include "zero/engine/engine.h"

static zero_status_t check_fits(const zero_context_t *context)
{
    const double mib = 1024.0 * 1024.0;
    const zero_config_t *config = &context->config;
    uint64_t planned = zero_memory_total(&context->plan.memory), needed = planned + config->user_bytes;
    uint64_t available = context->device->ops->available_bytes(context->device);
    /* Only what would make a difference is advised. */
    const char *stage = config->stage < 3 ? ", a higher stage" : "";
    const bool is_gpu = context->device->type != ZERO_DEVICE_CPU;
    const char *offload = is_gpu && !config->offload && !config->forward_only ? ", offload" : "";
    const char *params = is_gpu && config->stage == 3 && config->offload_params < 1.0f ? ", offload_params" : "";
    const bool has_sums = context->plan.host.first < context->layout.n_units && !context->plan.stage.reduces_once;
    const char *grads = has_sums && config->offload_grads == ZERO_OFFLOAD_GRADS_DEVICE ? ", offload_grads host" : "";
    const char *keep = config->keep > 0 && context->plan.stage.shard_params ? ", a smaller keep" : "";
    if (needed <= available)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_MEMORY,
        "the plan needs %.1f MiB (%.1f for parameters, gradients and optimizer state, %.1f of the caller's) "
        "and %.1f MiB are free: take more ranks%s%s%s%s%s, a smaller micro-batch or recompute",
        (double)needed / mib, (double)planned / mib, (double)config->user_bytes / mib, (double)available / mib, stage,
        offload, params, grads, keep);
}

/* Returns what a plan may take of what is free now. */
static uint64_t bytes_to_plan(const zero_context_t *context)
{
    return zero_bytes_to_plan(context->device->ops->available_bytes(context->device));
}

/* Sets *largest to the largest of all ranks' numbers, if `mine` of every rank was found (found: its status). */
static zero_status_t largest_of_ranks(zero_comm_t *comm, zero_status_t found, double mine, double *largest)
{
    double *all = malloc((size_t)comm->size * sizeof *all);
    if (found == ZERO_OK && !all)
        found = zero_fail(ZERO_ERROR_MEMORY, "no memory to compare %d ranks", comm->size);
    zero_status_t status = zero_comm_agree(comm, found);
    if (status == ZERO_OK)
        status = comm->ops->host_all_gather(comm, &mine, sizeof mine, all);
    *largest = mine;
    for (int r = 0; r < comm->size && status == ZERO_OK; r++)
        *largest = all[r] > *largest ? all[r] : *largest;
    free(all);
    return status;
}

/* offload_ratio = auto: finds the smallest ratio that fits on every rank, the largest that any rank finds. If
 * offload_params is auto, too, no parameters are offloaded before all state is. */
static zero_status_t choose_offload_ratio(zero_context_t *context, zero_plan_target_t target)
{
    zero_config_t *config = &context->config, tried = *config;
    uint64_t bytes = bytes_to_plan(context);
    float mine = 0.0f;
    double largest;
    if (!config->offload || config->offload_ratio != ZERO_OFFLOAD_AUTO || !target.on_gpu)
        return ZERO_OK;
    if (tried.offload_params == ZERO_OFFLOAD_AUTO)
        tried.offload_params = 0.0f;
    zero_status_t found = zero_plan_smallest_offload(context->model, &context->layout, &tried, target, bytes, &mine);
    ZERO_TRY(largest_of_ranks(context->host_comm, found, (double)mine, &largest));
    config->offload_ratio = (float)largest;
    return ZERO_OK;
}

/* offload_params = auto: the same, with the share of the state that is offloaded. */
static zero_status_t choose_offload_params(zero_context_t *context, zero_plan_target_t target)
{
    zero_config_t *config = &context->config;
    uint64_t bytes = bytes_to_plan(context);
    float mine = 0.0f;
    double largest;
    if (config->offload_params != ZERO_OFFLOAD_AUTO || !target.on_gpu)
        return ZERO_OK;
    zero_status_t found = zero_plan_smallest_params(context->model, &context->layout, config, target, bytes, &mine);
    ZERO_TRY(largest_of_ranks(context->host_comm, found, (double)mine, &largest));
    config->offload_params = (float)largest;
    return ZERO_OK;
}

/* keep = auto: finds the largest number of units that fits on every rank, the smallest that any rank finds. */
static zero_status_t choose_keep(zero_context_t *context, zero_plan_target_t target)
{
    zero_config_t *config = &context->config;
    uint64_t bytes = bytes_to_plan(context);
    int mine = 0, n_units = context->model->n_units;
    double most_gathered; /* twice in a micro-step */
    if (config->keep != ZERO_KEEP_AUTO)
        return ZERO_OK;
    config->keep = 0;
    if (!target.on_gpu)
        return ZERO_OK;
    zero_status_t found = zero_plan_largest_keep(context->model, &context->layout, config, target, bytes, &mine);
    ZERO_TRY(largest_of_ranks(context->host_comm, found, n_units - mine, &most_gathered));
    config->keep = n_units - (int)most_gathered;
    return ZERO_OK;
}

/* Finds the host's memory, and returns how much of it this rank may use for offload. */
static uint64_t host_room(const zero_context_t *context, uint64_t *total, uint64_t *available)
{
    zero_host_memory(total, available);
    return zero_pinned_to_plan((double)context->config.offload_ram, context->host_comm->job_local_size, *total,
                               *available);
}

/* Returns the pinned host memory of a plan and, on a GPU, of the caller's stashes. */
static uint64_t host_bytes(const zero_context_t *context, const zero_arena_plan_t *plan)
{
    const bool on_gpu = context->device->ops->join != NULL;
    return plan->memory.pinned_bytes + (on_gpu ? context->config.user_pinned_bytes : 0);
}

static zero_status_t check_host_room(const zero_context_t *context)
{
    const double gib = 1024.0 * 1024.0 * 1024.0;
    uint64_t total, available, n_bytes = host_bytes(context, &context->plan);
    uint64_t allowed = host_room(context, &total, &available);
    int n_ranks = context->host_comm->job_local_size;
    if (n_bytes <= allowed)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_MEMORY,
                     "offload needs %.2f GiB of host memory for the %d rank%s of this host, and may take %.2f: %g "
                     "(offload_ram) of the %.2f GiB that this host or container has, and of the %.2f that are free no "
                     "more than leaves a reserve. Take a smaller offload_ratio%s, more hosts or, if nothing else needs "
                     "it, a larger offload_ram",
                     (double)n_bytes * n_ranks / gib, n_ranks, n_ranks == 1 ? "" : "s", (double)allowed * n_ranks / gib,
                     (double)context->config.offload_ram, (double)total / gib, (double)available / gib,
                     n_bytes > context->plan.memory.pinned_bytes ? ", less offload of activations" : "");
}

/* Plans the host's update, for which it also has the parameters; leaves the plan as it is if some host has no room for
 * them. No rank of a host may hold offload's memory. */
static zero_status_t plan_update_on_host(zero_context_t *context, zero_plan_target_t target)
{
    zero_config_t config = context->config;
    zero_arena_plan_t plan;
    uint64_t total, available;
    config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    ZERO_TRY(zero_arena_plan_create(context->model, &context->layout, &config, target, &plan));
    double n_short = host_bytes(context, &plan) > host_room(context, &total, &available);
    zero_status_t status = zero_comm_sum(context->host_comm, &n_short, 1);
    if (status != ZERO_OK || n_short > 0.0) {
        zero_arena_plan_destroy(&plan);
        return status;
    }
    zero_arena_plan_destroy(&context->plan);
    context->plan = plan;
    context->config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    return ZERO_OK;
}

/* Allocates host memory before any other, since the choice of the updater depends on it. If the caller left that open
 * and some rank's memory could not be pinned, the host updates on all ranks, which copies fewer bytes. That is another
 * plan. */
static zero_status_t allocate_host_memory(zero_context_t *context, zero_plan_target_t target, zero_offload_t **offload)
{
    ZERO_TRY(zero_offload_create(context, offload));
    if (!*offload || context->config.offload_update != ZERO_OFFLOAD_UPDATE_AUTO)
        return ZERO_OK;
    double n_blocked = zero_offload_blocks_host(*offload);
    ZERO_TRY(zero_comm_sum(context->host_comm, &n_blocked, 1));
    if (n_blocked == 0.0)
        return ZERO_OK;
    zero_offload_destroy(*offload);
    *offload = NULL;
    ZERO_TRY(zero_comm_agree(context->host_comm, ZERO_OK)); /* all ranks have freed theirs */
    ZERO_TRY(plan_update_on_host(context, target));
    return zero_offload_create(context, offload);
}

/* shard_group = host: finds how many ranks a host has. All hosts must have as many, with consecutive numbers. */
static zero_status_t resolve_shard_group(zero_context_t *context)
{
    zero_comm_t *comm = context->host_comm;
    zero_config_t *config = &context->config;
    if (config->shard_group != ZERO_SHARD_GROUP_HOST)
        return ZERO_OK;
    int first = comm->local_size; /* of rank 0's host */
    ZERO_TRY(zero_comm_broadcast(comm, &first, sizeof first, 0));
    double n_odd = comm->local_size != first || comm->rank % first != comm->local_rank;
    ZERO_TRY(zero_comm_sum(comm, &n_odd, 1));
    if (n_odd > 0.0)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "shard_group host: hosts have different numbers of ranks, or ranks of a "
                                    "host are not consecutive; take a number, or world");
    config->shard_group = first;
    return ZERO_OK;
}

/* Chooses what is auto but offload_grads, and plans. */
static zero_status_t choose_and_plan(zero_context_t *context, zero_plan_target_t target)
{
    ZERO_TRY(choose_offload_ratio(context, target));
    ZERO_TRY(choose_offload_params(context, target));
    ZERO_TRY(choose_keep(context, target)); /* into what offload leaves free */
    return zero_arena_plan_create(context->model, &context->layout, &context->config, target, &context->plan);
}

/* offload_grads = auto: where the plan has no room on some rank for the sums of gradients, plans with those of
 * offloaded units in host memory. Keeps that if it takes less: the buffers that state is staged in have gradients then,
 * too. */
static zero_status_t choose_grads(zero_context_t *context, zero_plan_target_t target, const zero_config_t *asked)
{
    const zero_config_t chosen = context->config;
    const zero_arena_plan_t plan = context->plan;
    const uint64_t needed = zero_memory_total(&plan.memory);
    double n_short = needed + asked->user_bytes > bytes_to_plan(context);
    if (asked->offload_grads != ZERO_OFFLOAD_GRADS_AUTO || plan.host.first == context->layout.n_units ||
        plan.stage.reduces_once)
        return ZERO_OK;
    ZERO_TRY(zero_comm_sum(context->host_comm, &n_short, 1));
    if (n_short == 0.0)
        return ZERO_OK;
    context->config = *asked;
    context->config.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    zero_status_t status = choose_and_plan(context, target);
    if (status == ZERO_OK && zero_memory_total(&context->plan.memory) < needed) {
        zero_arena_plan_t unused = plan;
        zero_arena_plan_destroy(&unused);
        return ZERO_OK;
    }
    if (status == ZERO_OK)
        zero_arena_plan_destroy(&context->plan);
    context->plan = plan;
    context->config = chosen;
    return status;
}

/* Rank 0 says what was chosen of what is auto. */
static void log_choices(const zero_context_t *context, zero_plan_target_t target, const zero_config_t *asked)
{
    const zero_config_t *chosen = &context->config;
    const double mib = (double)bytes_to_plan(context) / 1048576.0;
    if (context->host_comm->rank > 0 || !target.on_gpu)
        return;
    if (asked->offload && asked->offload_ratio == ZERO_OFFLOAD_AUTO)
        zero_log(ZERO_LOG_INFO,
                 "offload_ratio auto: %.4g of the optimizer's state is offloaded; the plan may take %.1f MiB",
                 (double)chosen->offload_ratio, mib);
    if (asked->offload_params == ZERO_OFFLOAD_AUTO)
        zero_log(ZERO_LOG_INFO, "offload_params auto: %.4g of the parameters are offloaded; the plan may take %.1f MiB",
                 (double)chosen->offload_params, mib);
    if (asked->keep == ZERO_KEEP_AUTO)
        zero_log(ZERO_LOG_INFO, "keep auto: %d of %d units stay from forward to backward; the plan may take %.1f MiB",
                 chosen->keep, context->model->n_units, mib);
    if (asked->offload_grads == ZERO_OFFLOAD_GRADS_AUTO && context->plan.host.holds_sums)
        zero_log(ZERO_LOG_INFO, "offload_grads auto: the plan does not fit with the sums of gradients on the device; "
                                "those of offloaded units wait in host memory between micro-steps");
}

zero_status_t zero_fit_plan(zero_context_t *context, zero_offload_t **offload)
{
    const zero_plan_target_t target = {.on_gpu = context->device->ops->join != NULL,
                                       .needs_staging = context->comm->ops->staging_bytes(2, 1) > 0,
                                       .has_rails = context->device->ops->join != NULL &&
                                                    zero_comm_get_kind(context->host_comm) == ZERO_COMM_MPI};
    ZERO_TRY(resolve_shard_group(context));
    const zero_config_t asked = context->config;
    ZERO_TRY(choose_and_plan(context, target));
    ZERO_TRY(choose_grads(context, target, &asked));
    log_choices(context, target, &asked);
    ZERO_TRY(zero_comm_agree(context->host_comm, check_fits(context)));
    ZERO_TRY(zero_comm_agree(context->host_comm, check_host_room(context))); /* no rank has allocated any yet */
    return allocate_host_memory(context, target, offload);
}

/* ---- memory ---- */
/* Memory for the caller, which the plan counts: zero_alloc, zero_alloc_activations. */

static zero_status_t alloc(zero_engine_t *engine, zero_memory_category_t category, size_t n_bytes,
                           zero_user_block_t use, void **data)
{
    zero_device_t *device = engine->context.device;
    if (engine->started)
        return zero_fail(ZERO_ERROR_ORDER, "zero_alloc after the first zero_begin: memory is planned before step 0");
    zero_user_block_t *block = calloc(1, sizeof *block);
    if (!block)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to note a block of %zu bytes", n_bytes);
    *block = use;
    zero_status_t status = device->ops->alloc(device, n_bytes, &block->data);
    if (status != ZERO_OK) {
        free(block);
        return status;
    }
    block->n_bytes = n_bytes;
    block->next = engine->user_blocks;
    engine->user_blocks = block;
    engine->context.memory.bytes[category] += n_bytes;
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
    zero_unit_t n_units = engine->context.model->n_units;
    if (first < 0 || first >= n_units || last < 0 || last >= n_units)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_alloc_activations: units %d and %d, of %d", first, last, n_units);
    zero_user_block_t use = {.first = first, .last = last};
    return alloc(engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, use, data);
}

void zero_engine_free_blocks(zero_engine_t *engine)
{
    zero_device_t *device = engine->context.device;
    for (zero_user_block_t *block = engine->user_blocks, *next; block; block = next) {
        next = block->next;
        device->ops->free(device, block->data, block->n_bytes);
        free(block);
    }
    engine->user_blocks = NULL;
}

zero_memory_t zero_engine_memory(const zero_engine_t *engine)
{
    return engine ? engine->context.memory : (zero_memory_t){0};
}
