/* zero_solve.c - zero_solve: the settings of libzero with which a step moves its bytes in the least time and that fit.
 * Pure arithmetic on plans.
 *
 * A step's transfers are of two kinds: between ranks, which depends on stage, group and keep, and between GPU and host
 * memory, which depends on what is offloaded. Every stage, every group and every number of offloaded units is tried.
 * For each, the most that fits is kept: that moves the least. A number of offloaded units that would be too slow even
 * with everything kept ends the search, since more of them are slower.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "zero/plan/config.h"
#include "zero/plan/layout.h"
#include "zero/plan/plan.h"

#define EQUAL 1e-9 /* share of a time below which differences are rounding */

typedef struct search {
    const zero_model_t *model;
    const zero_solve_t *limits;
    zero_device_type_t device;
    zero_comm_kind_t kind;
    int n_ranks, n_units;
    zero_layout_t layout;
    int *hosts;              /* [n_ranks] */
    zero_traffic_t *traffic; /* [n_ranks] */
    double *wire_s;          /* [n_units + 1] by keep, of the stage and group that are tried; NAN: not yet known */
    zero_solution_t *best;
    bool has_any; /* *best is something */
} search_t;

/* Plans one candidate, and makes it the best so far if nothing fits yet and it is the smallest. */
static zero_status_t try_memory(search_t *search, const zero_config_t *config, zero_memory_t *memory, bool *fits)
{
    ZERO_TRY(zero_plan(search->model, config, search->device, search->kind, search->n_ranks, memory));
    *fits = zero_memory_total(memory) + config->user_bytes <= search->limits->device_bytes &&
            memory->pinned_bytes + config->user_pinned_bytes <= search->limits->pinned_bytes;
    bool is_least = !search->has_any || zero_memory_total(memory) < zero_memory_total(&search->best->memory);
    if (search->best->fits || !is_least)
        return ZERO_OK;
    search->has_any = true;
    *search->best = (zero_solution_t){.config = *config, .memory = *memory, .transfer_s = NAN};
    return ZERO_OK;
}

/* Finds the seconds of the rank that receives longest. */
static zero_status_t find_wire_s(search_t *search, const zero_config_t *config, double *seconds)
{
    *seconds = 0.0;
    ZERO_TRY(zero_plan_traffic(search->model, config, search->device, search->kind, search->n_ranks, search->hosts,
                               search->traffic));
    for (int rank = 0; rank < search->n_ranks; rank++) {
        const zero_traffic_t *of = &search->traffic[rank];
        *seconds = fmax(*seconds, (double)of->local_bytes / search->limits->local_rate +
                                      (double)of->received_bytes / search->limits->network_rate);
    }
    return ZERO_OK;
}

/* The same, remembered: it does not depend on what is offloaded. */
static zero_status_t wire_s(search_t *search, const zero_config_t *config, double *seconds)
{
    bool is_listed = config->keep >= 0 && config->keep <= search->n_units;
    if (is_listed && !isnan(search->wire_s[config->keep])) {
        *seconds = search->wire_s[config->keep];
        return ZERO_OK;
    }
    ZERO_TRY(find_wire_s(search, config, seconds));
    if (is_listed)
        search->wire_s[config->keep] = *seconds;
    return ZERO_OK;
}

static double pcie_s(const search_t *search, const zero_memory_t *memory)
{
    return (double)memory->pinned_bytes / search->limits->pcie_rate;
}

/* Keeps the most units that fit. config fits as it is. */
static zero_status_t keep_most(search_t *search, zero_config_t *config, zero_memory_t *memory)
{
    int kept = 0, most = search->n_units;
    bool fits;
    while (kept < most) {
        zero_memory_t tried;
        config->keep = kept + (most - kept + 1) / 2;
        ZERO_TRY(try_memory(search, config, &tried, &fits));
        if (fits)
            kept = config->keep;
        else
            most = config->keep - 1;
    }
    config->keep = kept;
    return try_memory(search, config, memory, &fits);
}

/* Makes a candidate that fits the best so far if it is faster. If keeping units saves nothing, none is kept. */
static zero_status_t keep_faster(search_t *search, zero_config_t config, zero_memory_t memory, bool keeps)
{
    double seconds, without;
    ZERO_TRY(wire_s(search, &config, &seconds));
    if (keeps && config.keep > 0) {
        zero_config_t plain = config;
        zero_memory_t of_plain;
        bool fits;
        plain.keep = 0;
        ZERO_TRY(wire_s(search, &plain, &without));
        ZERO_TRY(try_memory(search, &plain, &of_plain, &fits));
        if (without <= seconds) {
            config = plain;
            memory = of_plain;
        }
    }
    seconds += pcie_s(search, &memory);
    if (search->best->fits && seconds >= search->best->transfer_s * (1.0 - EQUAL))
        return ZERO_OK;
    *search->best = (zero_solution_t){.fits = true, .config = config, .memory = memory, .transfer_s = seconds};
    return ZERO_OK;
}

/* Tries one amount of offload, at one stage and group. Sets *is_over if more cannot be faster than the best. fastest:
 * the seconds between ranks with everything kept. */
static zero_status_t try_offload(search_t *search, zero_config_t config, double fastest, bool *is_over)
{
    bool keeps = search->limits->keep && config.stage == 3, fits;
    zero_memory_t memory;
    config.keep = search->limits->keep ? 0 : config.keep;
    ZERO_TRY(try_memory(search, &config, &memory, &fits));
    *is_over = search->best->fits && fastest + pcie_s(search, &memory) >= search->best->transfer_s;
    if (!fits || *is_over)
        return ZERO_OK;
    if (keeps)
        ZERO_TRY(keep_most(search, &config, &memory));
    return keep_faster(search, config, memory, keeps);
}

/* Returns whether an engine may be configured so: some settings exclude a stage, groups or offload. */
static bool is_possible(const search_t *search, const zero_config_t *config)
{
    zero_memory_t unused;
    zero_log_mute(true);
    const zero_status_t status =
        zero_plan(search->model, config, search->device, search->kind, search->n_ranks, &unused);
    zero_log_mute(false);
    return status != ZERO_ERROR_USAGE;
}

static zero_status_t try_group(search_t *search, zero_config_t config)
{
    double fastest;
    bool is_over = false, offloads = search->limits->offload_ratio;
    zero_config_t with_offload = config;
    with_offload.offload = true;
    with_offload.offload_ratio = 1.0f;
    config.offload = config.offload && !offloads;
    const bool is_plain_possible = is_possible(search, &config);
    const bool can_offload = offloads && config.stage > 0 && search->device != ZERO_DEVICE_CPU &&
                             !config.forward_only && is_possible(search, &with_offload);
    if (!is_plain_possible && !can_offload)
        return ZERO_OK;
    zero_config_t all_kept = is_plain_possible ? config : with_offload;
    all_kept.keep = search->limits->keep ? search->n_units : config.keep;
    for (int keep = 0; keep <= search->n_units; keep++)
        search->wire_s[keep] = NAN;
    ZERO_TRY(wire_s(search, &all_kept, &fastest));
    if (is_plain_possible)
        ZERO_TRY(try_offload(search, config, fastest, &is_over));
    for (zero_unit_t first = search->n_units - 1; first >= 0 && can_offload && !is_over; first--) {
        with_offload.offload_ratio = zero_plan_ratio_from(&search->layout, first);
        if (with_offload.offload_params == 0.0f ||
            is_possible(search, &with_offload)) /* offload_params above this ratio is refused */
            ZERO_TRY(try_offload(search, with_offload, fastest, &is_over));
    }
    return ZERO_OK;
}

/* Tries every group that divides the ranks, the largest first. */
static zero_status_t try_stage(search_t *search, zero_config_t config)
{
    if (!search->limits->shard_group || config.stage < 3 || config.nccl_reduction) {
        config.shard_group = search->limits->shard_group ? ZERO_SHARD_GROUP_WORLD : config.shard_group;
        return try_group(search, config);
    }
    for (int group = search->n_ranks; group >= 1; group--) {
        if (search->n_ranks % group != 0)
            continue;
        config.shard_group = group == search->n_ranks ? ZERO_SHARD_GROUP_WORLD : group;
        ZERO_TRY(try_group(search, config));
    }
    return ZERO_OK;
}

static zero_status_t search_stages(search_t *search, const zero_config_t *config)
{
    int first = search->limits->stage ? 0 : config->stage, last = search->limits->stage ? 3 : config->stage;
    bool must_offload = config->offload && !search->limits->offload_ratio && search->device != ZERO_DEVICE_CPU;
    for (int stage = search->limits->stage && must_offload ? 1 : first; stage <= last; stage++) {
        zero_config_t tried = *config;
        tried.stage = stage;
        ZERO_TRY(try_stage(search, tried));
    }
    return ZERO_OK;
}

/* Sums of gradients leave only if nothing fits with them on the device, as in an engine. */
static zero_status_t search_all(search_t *search, const zero_config_t *config)
{
    const bool may_offload = (config->offload || search->limits->offload_ratio) && search->device != ZERO_DEVICE_CPU &&
                             !config->forward_only;
    ZERO_TRY(search_stages(search, config));
    if (!search->best->fits && may_offload && config->offload_grads == ZERO_OFFLOAD_GRADS_AUTO &&
        config->micro_steps > 1) {
        zero_config_t tried = *config;
        tried.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
        ZERO_TRY(search_stages(search, &tried));
    }
    if (search->best->fits)
        return ZERO_OK;
    if (!search->has_any) { /* says why */
        zero_memory_t unused;
        ZERO_TRY(zero_plan(search->model, config, search->device, search->kind, search->n_ranks, &unused));
        return zero_fail(ZERO_ERROR_USAGE, "zero_solve: the settings exclude every stage, group and share of offload "
                                           "that may be chosen");
    }
    double seconds;
    ZERO_TRY(find_wire_s(search, &search->best->config, &seconds));
    search->best->transfer_s = seconds + pcie_s(search, &search->best->memory);
    return ZERO_OK;
}

static zero_status_t check_limits(const zero_solve_t *limits)
{
    if (limits->local_rate > 0.0 && limits->network_rate > 0.0 && limits->pcie_rate > 0.0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT, "zero_solve: rates %g, %g and %g bytes/s: they must be above 0",
                     limits->local_rate, limits->network_rate, limits->pcie_rate);
}

static zero_status_t prepare(search_t *search, int world_size)
{
    zero_memory_t unused;
    zero_config_t plain = zero_config_defaults();
    ZERO_TRY(
        zero_plan(search->model, &plain, search->device, search->kind, world_size, &unused)); /* checks arguments */
    search->hosts = calloc((size_t)world_size, sizeof *search->hosts);
    search->traffic = calloc((size_t)world_size, sizeof *search->traffic);
    search->wire_s = calloc((size_t)search->n_units + 1, sizeof *search->wire_s);
    if (!search->hosts || !search->traffic || !search->wire_s)
        return zero_fail(ZERO_ERROR_MEMORY, "zero_solve: no memory for the traffic of %d ranks", world_size);
    for (int rank = 0; rank < world_size && search->limits->hosts; rank++)
        search->hosts[rank] = search->limits->hosts[rank];
    return zero_layout_create(search->model, world_size, &search->layout);
}

zero_status_t zero_solve(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                         zero_comm_kind_t kind, int world_size, const zero_solve_t *limits, zero_solution_t *solution)
{
    ZERO_REQUIRE(model);
    ZERO_REQUIRE(config);
    ZERO_REQUIRE(limits);
    ZERO_REQUIRE(solution);
    ZERO_REQUIRE_RESERVED(limits);
    ZERO_TRY(check_limits(limits));
    zero_config_t known;
    ZERO_TRY(zero_config_read("zero_solve", config, &known));
    zero_solution_t found = {0};
    search_t search = {.model = model,
                       .limits = limits,
                       .device = device,
                       .kind = kind,
                       .n_ranks = world_size,
                       .n_units = zero_model_n_units(model),
                       .best = &found};
    zero_status_t status = prepare(&search, world_size);
    if (status == ZERO_OK) {
        status = search_all(&search, &known);
        zero_layout_destroy(&search.layout);
    }
    free(search.hosts);
    free(search.traffic);
    free(search.wire_s);
    if (status != ZERO_OK)
        return status;
    /* Its configuration is the last field, and of the caller's size. */
    memcpy((void *)solution, &found, offsetof(zero_solution_t, config));
    zero_config_write(&found.config, config->struct_size, &solution->config);
    return status;
}
