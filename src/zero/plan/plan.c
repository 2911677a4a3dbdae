/* plan.c - decides what an engine's buffers are and has them laid out (plan.h). See plan.h. */
#include "zero/plan/plan.h"

#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/config.h"
#include "zero/plan/order.h"

static int sum(const int *n_buffers, int n_classes)
{
    int n = 0;
    for (int c = 0; c < n_classes; c++)
        n += n_buffers[c];
    return n;
}

/* Returns the first unit whose state is offloaded: as many units from the end as make up the ratio. n_units: none. */
static zero_unit_t first_offloaded(const zero_layout_t *layout, const zero_config_t *config, zero_plan_target_t target)
{
    zero_unit_t first = layout->n_units;
    if (!config->offload || config->forward_only || !target.on_gpu)
        return first;
    double ratio = config->offload_ratio == ZERO_OFFLOAD_AUTO ? 1.0 : (double)config->offload_ratio;
    double wanted = ratio * (double)layout->total_shard_elems, offloaded = 0.0;
    while (first > 0 && offloaded < wanted)
        offloaded += (double)layout->units[--first].shard_elems;
    return first;
}

/* Returns the first unit whose parameters are offloaded: as many units from the end as make up the share, of all or of
 * those whose state is offloaded. n_units: none. */
static zero_unit_t first_offloaded_params(const zero_layout_t *layout, const zero_config_t *config,
                                          zero_plan_target_t target, zero_unit_t first_state)
{
    const zero_unit_t least = config->forward_only ? 0 : first_state;
    zero_unit_t first = layout->n_units;
    if (config->offload_params == 0.0f || !target.on_gpu)
        return first;
    const double share = config->offload_params == ZERO_OFFLOAD_AUTO ? 1.0 : (double)config->offload_params;
    const double wanted = share * (double)(layout->total_shard_elems + layout->total_frozen_shard_elems);
    double offloaded = 0.0;
    while (first > least && offloaded < wanted) {
        first--;
        offloaded += (double)(layout->units[first].shard_elems + layout->units[first].frozen_shard_elems);
    }
    return first;
}

/* Decides what reduced gradients are held in. One rank that reduces once a step sums nothing: what it has got in bf16
 * is as exact there. */
static zero_dtype_t choose_reduced_dtype(const zero_arena_plan_t *plan, const zero_layout_t *layout,
                                         const zero_config_t *config)
{
    const bool is_passed_on = layout->world_size == 1 && plan->stage.grad_dtype == ZERO_BF16;
    const bool is_read_in_fp32 =
        config->hooks || config->optimizer == ZERO_OPTIMIZER_MUON || config->optimizer == ZERO_OPTIMIZER_OWN;
    if (!plan->stage.reduces_once || is_read_in_fp32 || plan->stage.reduced_grads_are_full)
        return ZERO_FP32;
    return is_passed_on || config->gradients == ZERO_BF16 ? ZERO_BF16 : ZERO_FP32;
}

/* Decides which units' reduced gradients take turns in how many buffers. In backward a unit that follows two others on
 * the way must find the buffer of the first of them free, and a unit's sums come back while the unit behind it has yet
 * to be summed: so only units with gradients count there. */
static void choose_turns(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    zero_grad_turns_t *turns = &plan->turns;
    const bool all_turn = plan->updates_in_backward && plan->stage.reduces_once;
    const zero_unit_t first_offloaded = plan->host.first;
    turns->first = layout->n_units;
    if (plan->stage.reduced_grads_are_full || config->forward_only)
        return;
    if (!plan->stage.reduces_once && !plan->host.holds_sums)
        return;
    turns->first = all_turn ? 0 : first_offloaded;
    turns->n = 2;
    if (plan->updates_in_backward && layout->world_size > 1)
        turns->n = ZERO_MAX_GRAD_TURNS;
    else if (plan->updates_in_backward && first_offloaded == layout->n_units)
        turns->n = 1;
    int n_before = 0;
    for (zero_unit_t unit = turns->first; unit < layout->n_units; unit++) {
        turns->of_unit[unit] = n_before % turns->n;
        n_before += (!plan->updates_in_backward && !plan->host.holds_sums) || layout->units[unit].shard_elems > 0;
    }
}

/* Decides what is offloaded, and whether the device or the host updates it. */
static void choose_offloaded(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                             zero_plan_target_t target)
{
    zero_host_plan_t *host = &plan->host;
    host->first = host->first_sent = first_offloaded(layout, config, target);
    host->first_params = first_offloaded_params(layout, config, target, host->first);
    if (host->first_params < layout->n_units)
        plan->stage.shard_params = true; /* one rank, too, then has unsharded buffers */
    plan->overlapped = config->overlap && target.on_gpu && (layout->world_size > 1 || plan->stage.shard_params);
    host->holds_sums = config->offload_grads == ZERO_OFFLOAD_GRADS_HOST && host->first < layout->n_units &&
                       !plan->stage.reduces_once && !plan->stage.reduced_grads_are_full;
    choose_turns(plan, layout, config);
    if (host->first == layout->n_units)
        return;
    plan->state_elems = layout->units[host->first].shard_offset;
    host->n_elems = layout->total_shard_elems - plan->state_elems;
    host->update =
        config->offload_update == ZERO_OFFLOAD_UPDATE_HOST ? ZERO_OFFLOAD_UPDATE_HOST : ZERO_OFFLOAD_UPDATE_DEVICE;
    if (host->update == ZERO_OFFLOAD_UPDATE_HOST)
        return;
    /* Without turns all gradients stay on the device. In turns those of the first units do: backward comes to them
     * last. In backward each is used before the next one takes its place. */
    if (zero_plan_grads_take_turns(plan, host->first) && !plan->updates_in_backward)
        host->first_sent = host->first + plan->turns.n;
    else
        host->first_sent = layout->n_units;
    if (host->first_sent > layout->n_units)
        host->first_sent = layout->n_units;
}

/* Returns the elements of v: on every rank as many as the one needs that has the least of Muon's matrices. */
static uint64_t v_elems(const zero_arena_plan_t *plan, const zero_model_t *model, const zero_layout_t *layout,
                        const zero_config_t *config)
{
    const bool is_sharded = plan->stage.shard_state;
    uint64_t least = UINT64_MAX;
    for (int64_t shard = is_sharded ? 0 : -1; shard < (is_sharded ? layout->world_size : 0); shard++) {
        const uint64_t gap = zero_muon_v_gap(model, layout, config, shard, layout->n_units, 0);
        least = gap < least ? gap : least;
    }
    return plan->state_elems - least;
}

/* Refuses tensors that share a block of a state array: packed ones may. */
static zero_status_t check_blocks(const zero_model_t *model, const zero_layout_t *layout, const zero_arena_plan_t *plan,
                                  const zero_config_t *config)
{
    const uint64_t n = plan->array_format.block_elems;
    if (config->forward_only) /* no state */
        return ZERO_OK;
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (!model->tensors[t].frozen && layout->tensor_offsets[t] % n != 0)
            return zero_fail_collective(
                ZERO_ERROR_USAGE,
                "optimizer adamw8bit: tensor %s is packed behind %llu elements of its unit, which is "
                "no multiple of %llu: two tensors would share a scale; take adamw, or other sizes",
                model->tensors[t].name, (unsigned long long)layout->tensor_offsets[t], (unsigned long long)n);
    return ZERO_OK;
}

static zero_status_t allocate_tables(zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    size_t n_classes = (size_t)layout->n_buffer_classes;
    plan->turns.of_unit = calloc((size_t)layout->n_units, sizeof *plan->turns.of_unit);
    plan->unsharded_param_counts = calloc(n_classes, sizeof *plan->unsharded_param_counts);
    plan->unsharded_grad_counts = calloc(n_classes, sizeof *plan->unsharded_grad_counts);
    plan->unsharded_param_bytes = calloc(n_classes, sizeof *plan->unsharded_param_bytes);
    plan->unsharded_grad_bytes = calloc(n_classes, sizeof *plan->unsharded_grad_bytes);
    plan->unsharded_frozen = calloc(n_classes, sizeof *plan->unsharded_frozen);
    if (plan->turns.of_unit && plan->unsharded_param_counts && plan->unsharded_grad_counts &&
        plan->unsharded_param_bytes && plan->unsharded_grad_bytes && plan->unsharded_frozen)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_MEMORY, "no memory for the plan");
}

/* Finds the ranks of a group. Below stage 3 every rank has all parameters, and the setting does nothing. */
static zero_status_t choose_group(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    const int n_ranks = layout->world_size, asked = config->shard_group;
    plan->group = n_ranks;
    if (asked == ZERO_SHARD_GROUP_WORLD)
        return ZERO_OK;
    if (asked == ZERO_SHARD_GROUP_HOST)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "shard_group host: only ranks know their hosts; plan with a number");
    if (n_ranks % asked != 0)
        return zero_fail_collective(ZERO_ERROR_USAGE, "shard_group %d does not divide the %d ranks", asked, n_ranks);
    if (!plan->stage.shard_params)
        return ZERO_OK;
    if (plan->transport_reduces && asked < n_ranks)
        return zero_fail_collective(
            ZERO_ERROR_USAGE,
            "shard_group %d with nccl_reduction: NCCL gives each rank the sum of its own slice; "
            "take reduction ordered, or shard_group world",
            asked);
    if (plan->host.first_params < layout->n_units && asked < n_ranks)
        return zero_fail_collective(ZERO_ERROR_USAGE,
                                    "shard_group %d with offload_params: offloaded parameters are gathered from all "
                                    "ranks; take shard_group world",
                                    asked);
    plan->group = asked;
    return ZERO_OK;
}

/* Counts the buffers that units take turns in. */
static zero_status_t count_buffers(zero_arena_plan_t *plan, const zero_model_t *model, const zero_layout_t *layout,
                                   const zero_config_t *config)
{
    const int keep = config->keep == ZERO_KEEP_AUTO ? 0 : config->keep;
    const int n_spare = plan->overlapped && layout->world_size > 1 ? 2 : 1; /* one rank's are read by no peer */
    if (plan->stage.shard_params)
        ZERO_TRY(zero_order_unsharded_params(model, layout, zero_plan_first_unsharded(plan, layout), config->prefetch,
                                             keep, plan->unsharded_param_counts));
    if (plan->stage.shard_grads && !config->forward_only)
        ZERO_TRY(zero_order_unsharded_grads(model, layout, n_spare, plan->unsharded_grad_counts));
    plan->n_unsharded_params = sum(plan->unsharded_param_counts, layout->n_buffer_classes);
    plan->n_unsharded_grads = sum(plan->unsharded_grad_counts, layout->n_buffer_classes);
    return ZERO_OK;
}

zero_status_t zero_arena_plan_create(const zero_model_t *model, const zero_layout_t *layout,
                                     const zero_config_t *config, zero_plan_target_t target, zero_arena_plan_t *plan)
{
    zero_status_t status;
    zero_arena_plan_t made = {.stage = zero_stage_get(config, layout->world_size),
                              .n_arrays = zero_optimizer_n_arrays(config),
                              .array_format = zero_optimizer_array_format(config)};
    ZERO_TRY(check_blocks(model, layout, &made, config));
    if (layout->n_frozen_matrices > 0 && config->dtype != ZERO_BF16)
        return zero_fail_collective(ZERO_ERROR_USAGE, "frozen tensors in fp8 with dtype %s: they need bf16",
                                    zero_dtype_name(config->dtype));
    made.transport_reduces = config->nccl_reduction && target.on_gpu && layout->world_size > 1;
    made.state_elems = made.stage.shard_state ? layout->total_shard_elems : layout->total_flat_elems;
    made.updates_in_backward = config->update == ZERO_UPDATE_IN_BACKWARD && !config->forward_only;
    made.reduced_dtype = choose_reduced_dtype(&made, layout, config);
    ZERO_TRY_GOTO(allocate_tables(&made, layout), fail);
    choose_offloaded(&made, layout, config, target);
    ZERO_TRY_GOTO(choose_group(&made, layout, config), fail);
    made.fp8.is_gathered = config->gather_fp8 && layout->n_matrices > 0;
    made.muon.is_callers = config->optimizer == ZERO_OPTIMIZER_OWN;
    made.muon.dtype = target.on_gpu && !made.muon.is_callers ? ZERO_BF16 : ZERO_FP32;
    made.muon.is_full = !made.stage.shard_state && layout->world_size > 1;
    ZERO_TRY_GOTO(zero_muon_schedule_create(model, layout, config, target.on_gpu, &made.muon.schedule), fail);
    ZERO_TRY_GOTO(count_buffers(&made, model, layout, config), fail);
    if (config->offload && !config->forward_only && config->stage == 0 && target.on_gpu) {
        status = zero_fail_collective(
            ZERO_ERROR_USAGE, "offload at stage 0: there every rank holds all state, and so would every host several "
                              "times over; take stage 1, 2 or 3");
        goto fail;
    }
    made.v_elems = v_elems(&made, model, layout, config);
    zero_plan_lay_out(&made, layout, config, target);
    *plan = made;
    return ZERO_OK;
fail:
    zero_arena_plan_destroy(&made);
    return status;
}

/* Returns part / total, rounded so that it times `total` is no more than `part`. */
static float share_of(double part, double total)
{
    float share = total > 0.0 ? (float)(part / total) : 0.0f;
    return (double)share * total > part ? nextafterf(share, 0.0f) : share;
}

float zero_plan_ratio_from(const zero_layout_t *layout, zero_unit_t first)
{
    double total = (double)layout->total_shard_elems;
    return share_of(first < layout->n_units ? total - (double)layout->units[first].shard_offset : 0.0, total);
}

/* Returns the offload_params with which all units from `first` on are offloaded, and no more. */
static float params_from(const zero_layout_t *layout, zero_unit_t first)
{
    double total = (double)(layout->total_shard_elems + layout->total_frozen_shard_elems);
    const zero_unit_layout_t *unit = &layout->units[first];
    return share_of(first < layout->n_units ? total - (double)(unit->shard_offset + unit->frozen_shard_offset) : 0.0,
                    total);
}

static zero_status_t fits(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                          zero_plan_target_t target, uint64_t available, bool *is_within)
{
    zero_arena_plan_t plan;
    ZERO_TRY(zero_arena_plan_create(model, layout, config, target, &plan));
    *is_within = zero_memory_total(&plan.memory) + config->user_bytes <= available;
    zero_arena_plan_destroy(&plan);
    return ZERO_OK;
}

/* Tries one unit more at a time: a unit may need larger buffers than it frees, so bisection could miss the first ratio
 * that fits. */
zero_status_t zero_plan_smallest_offload(const zero_model_t *model, const zero_layout_t *layout,
                                         const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                         float *ratio)
{
    zero_config_t tried = *config;
    bool is_within = false;
    for (zero_unit_t first = layout->n_units; first >= 0 && !is_within; first--) {
        tried.offload_ratio = zero_plan_ratio_from(layout, first);
        ZERO_TRY(fits(model, layout, &tried, target, available, &is_within));
    }
    *ratio = tried.offload_ratio;
    return ZERO_OK;
}

zero_status_t zero_plan_smallest_params(const zero_model_t *model, const zero_layout_t *layout,
                                        const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                        float *share)
{
    zero_config_t tried = *config;
    bool is_within = false;
    for (zero_unit_t first = layout->n_units; first >= 0 && !is_within; first--) {
        tried.offload_params = params_from(layout, first);
        ZERO_TRY(fits(model, layout, &tried, target, available, &is_within));
    }
    *share = tried.offload_params;
    return ZERO_OK;
}

/* Bisects, since a unit more never takes fewer buffers. */
zero_status_t zero_plan_largest_keep(const zero_model_t *model, const zero_layout_t *layout,
                                     const zero_config_t *config, zero_plan_target_t target, uint64_t available,
                                     int *keep)
{
    zero_config_t tried = *config;
    bool has_buffers = config->stage == 3 && (layout->world_size > 1 || config->offload_params != 0.0f);
    int kept = 0, most = has_buffers ? layout->n_units : 0;
    while (kept < most) {
        bool is_within;
        tried.keep = kept + (most - kept + 1) / 2;
        ZERO_TRY(fits(model, layout, &tried, target, available, &is_within));
        if (is_within)
            kept = tried.keep;
        else
            most = tried.keep - 1;
    }
    *keep = kept;
    return ZERO_OK;
}

void zero_arena_plan_destroy(zero_arena_plan_t *plan)
{
    free(plan->turns.of_unit);
    free(plan->unsharded_param_counts);
    free(plan->unsharded_grad_counts);
    free(plan->unsharded_param_bytes);
    free(plan->unsharded_grad_bytes);
    free(plan->unsharded_frozen);
    zero_muon_schedule_destroy(&plan->muon.schedule);
    *plan = (zero_arena_plan_t){0};
}

zero_status_t zero_plan_check_device(const char *call, zero_device_type_t device)
{
    if (device != ZERO_DEVICE_AUTO && (unsigned)device <= ZERO_DEVICE_CUDA_SHARED)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_ARGUMENT, "%s: there is no plan for device type %d: resolve it first", call,
                     (int)device);
}

zero_status_t zero_plan(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                        zero_comm_kind_t kind, int world_size, zero_memory_t *plan)
{
    zero_plan_target_t target = {.on_gpu = device != ZERO_DEVICE_CPU};
    zero_layout_t layout;
    zero_arena_plan_t arenas;
    ZERO_REQUIRE(model);
    ZERO_REQUIRE(config);
    ZERO_REQUIRE(plan);
    zero_config_t known;
    ZERO_TRY(zero_config_read("zero_plan", config, &known));
    ZERO_TRY(zero_plan_check_device("zero_plan", device));
    if ((unsigned)kind > ZERO_COMM_NCCL)
        return zero_fail(ZERO_ERROR_ARGUMENT, "zero_plan: there is no kind %d", (int)kind);
    target.needs_staging = target.on_gpu || kind == ZERO_COMM_MPI;
    target.has_rails = target.on_gpu && kind == ZERO_COMM_MPI;
    ZERO_TRY(zero_config_check(&known));
    ZERO_TRY(zero_layout_create(model, world_size, &layout));
    zero_status_t status = zero_arena_plan_create(model, &layout, &known, target, &arenas);
    zero_layout_destroy(&layout);
    ZERO_TRY(status);
    *plan = arenas.memory;
    zero_arena_plan_destroy(&arenas);
    return ZERO_OK;
}
