/* fit.c - see fit.h. Ranks agree after every step that one of them could fail alone. */
#include "zero/engine/fit.h"

#include <stdlib.h>

#include "base/log.h"

static zero_status_t check_fits(const zero_context_t *context)
{
    const double mib = 1024.0 * 1024.0;
    const zero_config_t *config = &context->config;
    uint64_t planned = zero_memory_total(&context->plan.memory), needed = planned + config->user_bytes;
    uint64_t available = context->device->ops->available_bytes(context->device);
    /* Only what would make a difference is advised. */
    const char *stage = config->stage < 3 ? ", a higher stage" : "";
    const char *offload = !config->offload && context->device->type != ZERO_DEVICE_CPU ? ", offload" : "";
    const char *keep = config->keep > 0 && context->plan.stage.shard_params ? ", a smaller keep" : "";
    if (needed <= available)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_MEMORY,
        "the plan needs %.1f MiB (%.1f for parameters, gradients and optimizer state, %.1f of the caller's) "
        "and %.1f MiB are free: take more ranks%s%s%s, a smaller micro-batch or recompute",
        (double)needed / mib, (double)planned / mib, (double)config->user_bytes / mib, (double)available / mib, stage,
        offload, keep);
}

/* Returns what to leave free for libraries, graphs, streams and events, which are created after the plan: nvidia-smi
 * shows 0.6 GiB over the plan on an H200. A 64th of what is free, but at least 1 GiB, and no more than an eighth. */
static uint64_t reserve_bytes(uint64_t available)
{
    const uint64_t least = (uint64_t)1 << 30, most = available / 8, part = available / 64;
    uint64_t reserve = part > least ? part : least;
    return reserve < most ? reserve : most;
}

/* Returns what a plan may take of what is free now. */
static uint64_t bytes_to_plan(const zero_context_t *context)
{
    uint64_t available = context->device->ops->available_bytes(context->device);
    return available - reserve_bytes(available);
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

/* offload_ratio = auto: finds the smallest ratio that fits on every rank, the largest that any rank finds. */
static zero_status_t settle_offload_ratio(zero_context_t *context, zero_plan_target_t target)
{
    zero_config_t *config = &context->config;
    uint64_t bytes = bytes_to_plan(context);
    float mine = 0.0f;
    double largest;
    if (!config->offload || config->offload_ratio != ZERO_OFFLOAD_AUTO || !target.on_gpu)
        return ZERO_OK;
    zero_status_t found = zero_plan_smallest_offload(context->model, &context->layout, config, target, bytes, &mine);
    ZERO_TRY(largest_of_ranks(context->host_comm, found, (double)mine, &largest));
    config->offload_ratio = (float)largest;
    if (context->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO,
                 "offload_ratio auto: %.4g of the optimizer's state is offloaded; the plan may take %.1f MiB", largest,
                 (double)bytes / 1048576.0);
    return ZERO_OK;
}

/* keep = auto: finds the largest number of units that fits on every rank, the smallest that any rank finds. */
static zero_status_t settle_keep(zero_context_t *context, zero_plan_target_t target)
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
    if (context->host_comm->rank == 0)
        zero_log(ZERO_LOG_INFO, "keep auto: %d of %d units stay from forward to backward; the plan may take %.1f MiB",
                 config->keep, n_units, (double)bytes / 1048576.0);
    return ZERO_OK;
}

/* Takes host memory before any other, since the choice of the updater depends on it. If the caller left that open and
 * some rank's memory could not be pinned, the host updates on all ranks, which copies fewer bytes. That is another
 * plan. */
static zero_status_t take_host_memory(zero_context_t *context, zero_plan_target_t target, zero_offload_t **offload)
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
    zero_arena_plan_destroy(&context->plan);
    context->config.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    ZERO_TRY(zero_arena_plan_create(context->model, &context->layout, &context->config, target, &context->plan));
    return zero_offload_create(context, offload);
}

/* shard_group = host: finds how many ranks a host has. All hosts must have as many, with consecutive numbers. */
static zero_status_t settle_shard_group(zero_context_t *context)
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
        return zero_fail_alike(ZERO_ERROR_USAGE,
                               "shard_group host: hosts have different numbers of ranks, or ranks of a "
                               "host are not consecutive; take a number, or world");
    config->shard_group = first;
    return ZERO_OK;
}

zero_status_t zero_fit_plan(zero_context_t *context, zero_offload_t **offload)
{
    const zero_plan_target_t target = {.on_gpu = context->device->ops->join != NULL,
                                       .needs_staging = context->comm->ops->staging_bytes(2, 1) > 0,
                                       .has_rails = context->device->ops->join != NULL &&
                                                    zero_comm_get_kind(context->host_comm) == ZERO_COMM_MPI};
    ZERO_TRY(settle_shard_group(context));
    ZERO_TRY(settle_offload_ratio(context, target));
    ZERO_TRY(settle_keep(context, target)); /* into what offload leaves free */
    ZERO_TRY(zero_arena_plan_create(context->model, &context->layout, &context->config, target, &context->plan));
    ZERO_TRY(zero_comm_agree(context->host_comm, check_fits(context))); /* before much memory is pinned */
    return take_host_memory(context, target, offload);
}
