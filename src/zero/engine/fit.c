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
    if (needed <= available)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_MEMORY,
        "the plan needs %.1f MiB (%.1f for parameters, gradients and optimizer state, %.1f of the caller's) "
        "and %.1f MiB are free: take more ranks%s%s, a smaller micro-batch or recompute",
        (double)needed / mib, (double)planned / mib, (double)config->user_bytes / mib, (double)available / mib, stage,
        offload);
}

/* Returns what to leave free for libraries, graphs, streams and events, which are created after the plan: nvidia-smi
 * shows 0.6 GiB over the plan on an H200. A 64th of what is free, but at least 1 GiB, and no more than an eighth. */
static uint64_t reserve_bytes(uint64_t available)
{
    const uint64_t least = (uint64_t)1 << 30, most = available / 8, part = available / 64;
    uint64_t reserve = part > least ? part : least;
    return reserve < most ? reserve : most;
}

/* offload_ratio = auto: finds the smallest ratio that fits on every rank, the largest that any rank finds. */
static zero_status_t settle_offload_ratio(zero_context_t *context, zero_plan_target_t target)
{
    zero_comm_t *comm = context->host_comm;
    zero_config_t *config = &context->config;
    float mine = 0.0f, largest = 0.0f;
    if (!config->offload || config->offload_ratio != ZERO_OFFLOAD_AUTO || !target.on_gpu)
        return ZERO_OK;
    uint64_t available = context->device->ops->available_bytes(context->device);
    float *all = malloc((size_t)comm->size * sizeof *all);
    zero_status_t status = all ? zero_plan_smallest_offload(context->model, &context->layout, config, target,
                                                            available - reserve_bytes(available), &mine)
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
                 "offload_ratio auto: %.4g of the optimizer's state is offloaded; %.1f MiB of the device are free",
                 (double)largest, (double)available / 1048576.0);
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

zero_status_t zero_fit_plan(zero_context_t *context, zero_offload_t **offload)
{
    const zero_plan_target_t target = {.on_gpu = context->device->ops->join != NULL,
                                       .needs_staging = context->comm->ops->staging_bytes(2, 1) > 0};
    ZERO_TRY(settle_offload_ratio(context, target));
    ZERO_TRY(zero_arena_plan_create(context->model, &context->layout, &context->config, target, &context->plan));
    ZERO_TRY(zero_comm_agree(context->host_comm, check_fits(context))); /* before much memory is pinned */
    return take_host_memory(context, target, offload);
}
