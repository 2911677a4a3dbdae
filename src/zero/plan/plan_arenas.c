/* plan_arenas.c - see plan.h. Buffers are laid out in the order of the functions below, so that equal settings
 * give equal offsets on every rank. */
#include "zero/plan/plan_arenas.h"

#include "comm/comm.h"
#include "comm/routes.h"

/* Buffers begin at pages: windows are registered and mapped by page, and no buffer shares one with a neighbour. */
#define ALIGN_BYTES 4096
/* Chunks of offloaded state are multiples of this, so that arrays of any type, laid end to end, begin at multiples of
 * 256 bytes. */
#define STATE_RUN_ELEMS 128
/* The smallest chunk of gradients, all ranks' slices together: on 8 GPUs a copy is 8 MiB. */
#define LEAST_CHUNK_BYTES ((uint64_t)64 << 20)

static uint64_t at_least(uint64_t n, uint64_t least)
{
    return n < least ? least : n;
}

static uint64_t at_most(uint64_t n, uint64_t most)
{
    return n > most ? most : n;
}

static uint64_t buffers_bytes(const zero_layout_t *layout, const int *n_buffers, const uint64_t *buffer_bytes)
{
    uint64_t n = 0;
    for (int c = 0; c < layout->n_buffer_classes; c++)
        n += (uint64_t)n_buffers[c] * buffer_bytes[c];
    return n;
}

/* Reserves the next n_bytes of an arena, rounded up to whole pages, counts them, and returns their offset. */
static uint64_t reserve(uint64_t *arena_bytes, zero_memory_t *memory, zero_memory_category_t category, uint64_t n_bytes)
{
    uint64_t offset = *arena_bytes;
    uint64_t padded = (n_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    *arena_bytes += padded;
    memory->bytes[category] += padded;
    return offset;
}

/* Returns the parameters that the window has in the configured dtype: all that zero_plan_params_of can name. */
static uint64_t params_elems(const zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    const uint64_t in_fp8 = plan->fp8.is_gathered ? layout->total_fp8_shard_elems : 0;
    if (plan->host.first_params < layout->n_units)
        return layout->units[plan->host.first_params].shard_offset;
    if (plan->stage.shard_params)
        return (layout->total_shard_elems - in_fp8) * (uint64_t)zero_plan_n_groups(plan, layout) + in_fp8;
    if (plan->stage.shard_state && plan->fp8.is_gathered)
        return layout->total_flat_elems - layout->total_fp8_flat_elems + layout->total_fp8_shard_elems;
    return layout->total_flat_elems;
}

/* Returns the elements of frozen tensors that the window has. */
static uint64_t frozen_elems(const zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    if (plan->host.first_params < layout->n_units)
        return layout->units[plan->host.first_params].frozen_shard_offset;
    return plan->stage.shard_params ? layout->total_frozen_shard_elems * (uint64_t)zero_plan_n_groups(plan, layout)
                                    : layout->total_frozen_flat_elems;
}

/* Sets the bytes of each class's buffers. One for a unit whose matrices are gathered in fp8 has the others of every
 * rank of the group behind these. Frozen tensors come last. */
static void size_buffers(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    size_t param_size = zero_dtype_size(config->dtype), grad_size = zero_dtype_size(plan->stage.grad_dtype);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        int class = layout->units[unit].buffer_class;
        uint64_t n_elems = zero_layout_buffer_elems(layout, class);
        uint64_t others = layout->buffer_others_elems[class] * (uint64_t)plan->group;
        plan->unsharded_grad_bytes[class] = n_elems * grad_size;
        plan->unsharded_frozen[class] =
            zero_plan_gathers_fp8(plan, layout, unit) ? n_elems + others * param_size : n_elems * param_size;
        plan->unsharded_param_bytes[class] =
            plan->unsharded_frozen[class] + layout->buffer_frozen_elems[class] * param_size;
    }
}

/* Lays out the gradients that peers read. */
static void plan_window_grads(zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    const zero_stage_t *stage = &plan->stage;
    uint64_t *bytes = &plan->window_bytes, grad_size = zero_dtype_size(stage->grad_dtype);
    zero_memory_t *memory = &plan->memory;
    if (stage->shard_grads)
        plan->unsharded_grads = reserve(bytes, memory, ZERO_MEMORY_UNSHARDED_GRADIENTS,
                                        buffers_bytes(layout, plan->unsharded_grad_counts, plan->unsharded_grad_bytes));
    else
        plan->grads = reserve(bytes, memory, ZERO_MEMORY_GRADIENTS, layout->total_flat_elems * grad_size);
    if (stage->reduced_in_place)
        plan->reduced_grads = plan->grads;
    else if (!stage->shard_state)
        plan->reduced_grads = reserve(bytes, memory, ZERO_MEMORY_GRADIENTS, layout->total_flat_elems * sizeof(float));
}

/* Returns the bytes that all slots of one of Muon's buffers take. */
static uint64_t muon_slots_bytes(const zero_muon_plan_t *muon)
{
    return (uint64_t)muon->schedule.n_owners * muon->schedule.largest_slot * zero_dtype_size(muon->dtype);
}

/* Several ranks gather offloaded parameters from the window, as all others. */
static void plan_param_staging(zero_arena_plan_t *plan, const zero_layout_t *layout, uint64_t param_size)
{
    uint64_t largest = 0;
    for (zero_unit_t unit = plan->host.first_params; unit < layout->n_units && layout->world_size > 1; unit++)
        largest = at_least(largest, layout->units[unit].shard_elems + layout->units[unit].frozen_shard_elems);
    plan->param_staging_bytes = (largest * param_size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    plan->param_staging = reserve(&plan->window_bytes, &plan->memory, ZERO_MEMORY_PARAMETERS,
                                  ZERO_N_PARAM_STAGING * plan->param_staging_bytes);
}

static void plan_window(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    const zero_stage_t *stage = &plan->stage;
    uint64_t param_size = zero_dtype_size(config->dtype), n_groups = (uint64_t)zero_plan_n_groups(plan, layout);
    uint64_t *bytes = &plan->window_bytes;
    zero_memory_t *memory = &plan->memory;

    plan->params = reserve(bytes, memory, ZERO_MEMORY_PARAMETERS, params_elems(plan, layout) * param_size);
    plan->frozen = reserve(bytes, memory, ZERO_MEMORY_PARAMETERS, frozen_elems(plan, layout) * param_size);
    if (plan->fp8.is_gathered)
        plan->fp8.bytes =
            reserve(bytes, memory, ZERO_MEMORY_PARAMETERS,
                    stage->shard_params ? layout->total_fp8_shard_elems * n_groups : layout->total_fp8_flat_elems);
    if (plan->fp8.is_gathered && n_groups > 1)
        plan->fp8.part_others =
            reserve(bytes, memory, ZERO_MEMORY_PARAMETERS, layout->total_others_elems * n_groups * param_size);
    plan_param_staging(plan, layout, param_size);
    if (!config->forward_only)
        plan_window_grads(plan, layout);
    plan->contribution = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, sizeof(zero_contribution_t));
    if (plan->updates_in_backward && layout->world_size > 1)
        plan->nonfinite = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, ZERO_MAX_GRAD_TURNS * sizeof(uint64_t));
    if (plan->fp8.is_gathered)
        plan->fp8.absmaxes =
            reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, (uint64_t)layout->n_matrices * sizeof(uint32_t));
    if (plan->muon.schedule.n_rounds > 0) {
        plan->muon.updates = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, muon_slots_bytes(&plan->muon));
        plan->muon.results = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, muon_slots_bytes(&plan->muon));
    }
}

/* Lays out the parameters in host memory. The host's update has those of all units that it updates. */
static void plan_host_params(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    zero_host_plan_t *host = &plan->host;
    const bool on_host = host->first < layout->n_units && host->update == ZERO_OFFLOAD_UPDATE_HOST;
    const zero_unit_t first = on_host ? host->first : host->first_params;
    const uint64_t size = zero_dtype_size(config->dtype);
    zero_memory_t unused = {0};
    uint64_t *bytes = &plan->memory.pinned_bytes;
    host->params_begin = UINT64_MAX;
    if (first == layout->n_units)
        return;
    host->params_begin = layout->units[first].shard_offset;
    host->params =
        reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER, (layout->total_shard_elems - host->params_begin) * size);
    if (host->first_params < layout->n_units)
        host->frozen =
            reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER,
                    (layout->total_frozen_shard_elems - layout->units[host->first_params].frozen_shard_offset) * size);
}

/* Lays out the host's memory: parameters, AdamW's state of the offloaded units and the gradients that are sent or wait
 * there; for the host's update also the step's scalars. */
static void plan_host(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    zero_host_plan_t *host = &plan->host;
    uint64_t *bytes = &plan->memory.pinned_bytes, n = host->n_elems;
    const zero_unit_t first_grads = zero_plan_first_grads_on_host(plan);
    const uint64_t n_grads =
        first_grads < layout->n_units ? layout->total_shard_elems - layout->units[first_grads].shard_offset : 0;
    bool on_host = host->update == ZERO_OFFLOAD_UPDATE_HOST;
    zero_memory_t unused = {0};
    plan_host_params(plan, layout, config);
    if (host->first == layout->n_units)
        return;
    if (config->dtype != ZERO_FP32)
        host->master_lo = reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER, n * zero_master_lo_size(config->dtype));
    host->m = reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER, zero_array_bytes(plan->array_format, n));
    if (plan->n_arrays > 1)
        host->v = reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER, zero_array_bytes(plan->array_format, n));
    host->grads = reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER, n_grads * zero_dtype_size(plan->reduced_dtype));
    if (on_host)
        host->scalars =
            reserve(bytes, &unused, ZERO_MEMORY_OPTIMIZER,
                    sizeof(zero_adam_scalars_t) + (uint64_t)layout->n_tensors * sizeof(zero_tensor_scalars_t));
}

/* Lays out the reduced gradients on the device, those of units that have a buffer of their own and then those that take
 * turns. Returns their elements. */
static uint64_t plan_reduced_grads(zero_arena_plan_t *plan, const zero_layout_t *layout)
{
    zero_grad_turns_t *turns = &plan->turns;
    uint64_t largest[ZERO_MAX_GRAD_TURNS] = {0};
    if (turns->first == layout->n_units)
        return layout->total_shard_elems;
    uint64_t n_elems = layout->units[turns->first].shard_offset;
    for (zero_unit_t unit = turns->first; unit < layout->n_units; unit++) {
        uint64_t *at = &largest[turns->of_unit[unit]];
        *at = at_least(*at, layout->units[unit].shard_elems);
    }
    for (int i = 0; i < turns->n; i++) {
        turns->offsets[i] = n_elems;
        n_elems += largest[i];
    }
    return n_elems;
}

/* Large units are updated in chunks that fit into the buffers. If all units are small, so are the buffers. */
static void plan_state_staging(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    const zero_host_plan_t *host = &plan->host;
    zero_state_staging_plan_t *staging = &plan->state_staging;
    uint64_t *bytes = &plan->private_bytes, run = STATE_RUN_ELEMS, largest = 0;
    zero_memory_t *memory = &plan->memory;
    staging->has_grads = host->first_sent < layout->n_units;
    staging->has_params = host->first_params < layout->n_units;
    size_t run_bytes = run * zero_master_lo_size(config->dtype) +
                       run * staging->has_grads * zero_dtype_size(plan->reduced_dtype) +
                       run * staging->has_params * zero_dtype_size(config->dtype) +
                       (size_t)plan->n_arrays * zero_array_bytes(plan->array_format, run);
    if (host->update != ZERO_OFFLOAD_UPDATE_DEVICE)
        return;
    for (zero_unit_t unit = host->first; unit < layout->n_units; unit++)
        largest = at_least(largest, layout->units[unit].shard_elems);
    uint64_t n_runs = at_least(config->offload_buffer_bytes / ZERO_N_STATE_STAGING / run_bytes, 1);
    staging->chunk_elems = at_most(n_runs, (largest + run - 1) / run) * run;
    for (zero_unit_t unit = host->first; unit < layout->n_units && largest > 0; unit++)
        staging->n_chunks += (int)((layout->units[unit].shard_elems + staging->chunk_elems - 1) / staging->chunk_elems);
    staging->n_buffers = staging->n_chunks < ZERO_N_STATE_STAGING ? staging->n_chunks : ZERO_N_STATE_STAGING;
    staging->buffer_bytes = staging->chunk_elems / run * run_bytes;
    staging->buffers =
        reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, (uint64_t)staging->n_buffers * staging->buffer_bytes);
    staging->max_segments = (size_t)layout->n_tensors + (size_t)staging->n_chunks; /* a cut makes one segment more */
    staging->segments =
        reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, staging->max_segments * sizeof(zero_adam_segment_t));
}

/* A chunk takes half of staging_bytes, but is not so small that copies lose speed. Small units are transferred whole.
 */
static void plan_staging(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                         zero_plan_target_t target)
{
    uint64_t largest = 0, size = zero_dtype_size(plan->stage.grad_dtype);
    uint64_t chunk_bytes = (uint64_t)layout->world_size * ZERO_SUM_CHUNK * size; /* of all ranks' slices */
    for (int u = 0; u < layout->n_units; u++)
        largest = at_least(largest, layout->units[u].shard_elems);
    plan->chunk_elems = largest;
    plan->n_staging = plan->overlapped ? ZERO_MAX_STAGING : 1;
    if (plan->transport_reduces || !target.needs_staging || layout->world_size == 1)
        return;
    uint64_t half = at_most(largest * (uint64_t)layout->world_size * size, config->staging_bytes) / 2;
    uint64_t least = at_most(LEAST_CHUNK_BYTES, config->staging_bytes / 2);
    plan->chunk_elems = at_most(largest, at_least(at_least(half, least) / chunk_bytes, 1) * ZERO_SUM_CHUNK);
    plan->staging_bytes = zero_comm_staging_bytes(layout->world_size, plan->chunk_elems * size);
}

static void plan_private_fp8(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config)
{
    zero_fp8_plan_t *fp8 = &plan->fp8;
    uint64_t *bytes = &plan->private_bytes, n_matrices = (uint64_t)layout->n_matrices;
    uint64_t n_ranks = (uint64_t)layout->world_size;
    zero_memory_t *memory = &plan->memory;
    bool is_gathered_in_place = plan->stage.shard_state && !plan->stage.shard_params && n_ranks > 1;
    fp8->gathered_absmaxes = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, n_ranks * n_matrices * sizeof(uint32_t));
    fp8->scales = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, n_matrices * sizeof(zero_fp8_scales_t));
    fp8->segments = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, n_matrices * sizeof(zero_fp8_segment_t));
    if (is_gathered_in_place)
        fp8->others = reserve(bytes, memory, ZERO_MEMORY_PARAMETERS,
                              n_ranks * layout->total_others_elems * zero_dtype_size(config->dtype));
}

/* Lays out reduced gradients, AdamW's state and what gradients are staged in. */
static void plan_private_state(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                               zero_plan_target_t target)
{
    const zero_stage_t *stage = &plan->stage;
    uint64_t array_bytes = zero_array_bytes(plan->array_format, plan->state_elems);
    uint64_t *bytes = &plan->private_bytes;
    zero_memory_t *memory = &plan->memory;

    if (stage->shard_state && !stage->reduced_in_place)
        plan->private_reduced_grads = reserve(bytes, memory, ZERO_MEMORY_GRADIENTS,
                                              plan_reduced_grads(plan, layout) * zero_dtype_size(plan->reduced_dtype));
    if (config->dtype != ZERO_FP32)
        plan->master_lo =
            reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, plan->state_elems * zero_master_lo_size(config->dtype));
    plan->m = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, array_bytes);
    if (plan->n_arrays > 1)
        plan->v = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, zero_array_bytes(plan->array_format, plan->v_elems));
    if ((config->optimizer == ZERO_OPTIMIZER_OWN || (config->hooks && config->hooks->updated)) &&
        config->dtype != ZERO_FP32)
        plan->own_weights = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, ZERO_OWN_RUN_ELEMS * sizeof(float));
    plan_state_staging(plan, layout, config);

    plan_staging(plan, layout, config, target);
    plan->staging = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, (uint64_t)plan->n_staging * plan->staging_bytes);
}

/* What matrices that are orthogonalized side by side on a GPU take at most, unless one alone takes more: large ones
 * fill it alone. GPT-2 1558M's take 2 x 67 MiB, Llama-3-8B's would take 2 x 360. */
#define MUON_LANES_BYTES ((uint64_t)288 << 20)

/* Sizes the memory of one lane, and decides how many there are. */
static void plan_muon_lanes(zero_muon_plan_t *muon, bool on_gpu)
{
    const zero_muon_schedule_t *schedule = &muon->schedule;
    const uint64_t size = zero_dtype_size(muon->dtype);
    muon->n_lanes = 1;
    muon->matrix_bytes = zero_orthogonalize_room(schedule->largest_matrix) * size;
    muon->scratch_bytes = schedule->largest_scratch * size;
    if (!on_gpu || muon->is_callers)
        return;
    const uint64_t lane_bytes = muon->matrix_bytes + muon->scratch_bytes + ZERO_ORTHOGONALIZE_WORKSPACE_BYTES;
    while (muon->n_lanes < ZERO_ORTHOGONALIZE_LANES && muon->n_lanes < schedule->most_at_once &&
           (uint64_t)(muon->n_lanes + 1) * lane_bytes <= MUON_LANES_BYTES)
        muon->n_lanes++;
}

static void plan_private_muon(zero_arena_plan_t *plan, const zero_layout_t *layout, zero_plan_target_t target)
{
    zero_muon_plan_t *muon = &plan->muon;
    uint64_t *bytes = &plan->private_bytes, size = zero_dtype_size(muon->dtype);
    zero_memory_t *memory = &plan->memory;
    if (muon->is_full)
        muon->received = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, muon_slots_bytes(muon));
    else if (target.needs_staging && layout->world_size > 1)
        muon->received = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION,
                                 zero_comm_staging_bytes(layout->world_size, muon->schedule.largest_slot * size));
    plan_muon_lanes(muon, target.on_gpu);
    const uint64_t n_lanes = (uint64_t)muon->n_lanes;
    muon->matrix = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, n_lanes * muon->matrix_bytes);
    muon->scratch = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, n_lanes * muon->scratch_bytes);
    if (muon->is_callers)
        return;
    if (target.on_gpu)
        muon->workspace = reserve(bytes, memory, ZERO_MEMORY_OPTIMIZER, n_lanes * ZERO_ORTHOGONALIZE_WORKSPACE_BYTES);
    /* A matrix is in this rank's shard once at most, or in every rank's. */
    muon->max_segments = (size_t)muon->schedule.n_matrices * (size_t)(muon->is_full ? layout->world_size : 1);
    muon->segments =
        reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, muon->max_segments * sizeof(zero_muon_segment_t));
}

static void plan_private(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                         zero_plan_target_t target)
{
    const zero_stage_t *stage = &plan->stage;
    uint64_t *bytes = &plan->private_bytes;
    zero_memory_t *memory = &plan->memory;

    if (stage->shard_params)
        plan->unsharded_params =
            reserve(bytes, memory, ZERO_MEMORY_UNSHARDED_PARAMETERS,
                    buffers_bytes(layout, plan->unsharded_param_counts, plan->unsharded_param_bytes));
    if (!config->forward_only)
        plan_private_state(plan, layout, config, target);
    plan->segments =
        reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, (uint64_t)layout->n_tensors * sizeof(zero_adam_segment_t));
    plan->contributions =
        reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, (uint64_t)layout->world_size * sizeof(zero_contribution_t));
    if (plan->updates_in_backward && layout->world_size > 1)
        plan->nonfinites = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION,
                                   ZERO_MAX_GRAD_TURNS * (uint64_t)layout->world_size * sizeof(uint64_t));
    plan->step_scratch = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, sizeof(zero_step_scratch_t));
    if (plan->updates_in_backward)
        plan->unit_scalars =
            reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION, (uint64_t)layout->n_units * sizeof(zero_adam_scalars_t));
    if (!config->forward_only) /* tensors may have rules of their own from any step on */
        plan->tensor_scalars =
            reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION,
                    (uint64_t)layout->n_tensors * (sizeof(zero_tensor_scalars_t) + sizeof(zero_tensor_rules_t)));
    plan->frozen_scales = reserve(bytes, memory, ZERO_MEMORY_COMMUNICATION,
                                  (uint64_t)layout->n_frozen_matrices * sizeof(zero_fp8_scales_t));
    if (plan->fp8.is_gathered)
        plan_private_fp8(plan, layout, config);
    if (plan->muon.schedule.n_rounds > 0)
        plan_private_muon(plan, layout, target);
}

void zero_plan_lay_out(zero_arena_plan_t *plan, const zero_layout_t *layout, const zero_config_t *config,
                       zero_plan_target_t target)
{
    size_buffers(plan, layout, config);
    plan_window(plan, layout, config);
    plan_private(plan, layout, config, target);
    plan_host(plan, layout, config);
    if (target.has_rails && layout->world_size > 1 && !plan->transport_reduces)
        plan->memory.bytes[ZERO_MEMORY_COMMUNICATION] += ZERO_RAILS_STAGING_BYTES; /* the transport's own */
}
