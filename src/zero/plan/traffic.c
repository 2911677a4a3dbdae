/* traffic.c - the bytes that ranks exchange in a step: zero_plan_traffic. Pure arithmetic.
 *
 * First how many bytes of slices each rank contributes to the collectives of a step, by kind. Gathers of stage 3 are
 * counted by going through the step's passes with the buffers that there will be, as src/zero/step/parameters.c does.
 * Then which of these a rank receives from its own host, and which from others.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "comm/routes.h"
#include "zero/plan/config.h"
#include "zero/plan/order.h"
#include "zero/plan/plan.h"

/* Bytes of one rank's slices in a step. Every rank's are of the same size. */
typedef struct slices {
    uint64_t in_group;        /* gathered within the rank's group */
    uint64_t in_part;         /* gathered among the ranks, one in each group, that hold the same part */
    uint64_t in_all;          /* gathered among all ranks */
    uint64_t reduced;         /* of gradients, sent to the rank that owns them */
    uint64_t updates;         /* Muon's, sent to the rank that orthogonalizes them and back */
    uint64_t to_gpu, to_host; /* what is offloaded, of one rank */
} slices_t;

/* How a gather's bytes travel. */
typedef enum route {
    DIRECTLY,      /* from their owner to each rank */
    ONCE_PER_HOST, /* a part to each rank of a host, which spread them inside it */
    OVER_RAILS,    /* the same between GPUs: whole slices, as many to each */
    IN_A_RING      /* each host passes on what comes from the host before it: NCCL among all ranks */
} route_t;

/* ---- what is exchanged ---- */

/* Counts the unit's gathers as fill_buffers_ahead in parameters.c makes them. */
static void gather_ahead(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t first_unsharded,
                         int prefetch, int position, zero_unsharded_t *unsharded, uint64_t *n_gathers)
{
    const int n_positions = zero_order_n_positions(ZERO_PASS_TRAIN, model->n_units);
    for (int ahead = 0; ahead <= prefetch && ahead < n_positions - position; ahead++) {
        zero_unit_t unit = zero_order_unit(position + ahead, model->n_units);
        for (int i = zero_order_first_flat(model, position + ahead); i < zero_model_n_flats(model, unit); i++) {
            zero_unit_t flat = zero_model_flat(model, unit, i);
            if (flat < first_unsharded || zero_unsharded_find(unsharded, flat))
                continue;
            zero_unsharded_acquire(unsharded, model, ZERO_PASS_TRAIN, position, layout->units[flat].buffer_class, flat);
            n_gathers[flat]++;
        }
    }
}

/* Counts the gathers of a micro-step. */
static void gather_in_micro_step(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t first_unsharded,
                                 int prefetch, zero_unsharded_t *unsharded, uint64_t *n_gathers)
{
    const int n_positions = zero_order_n_positions(ZERO_PASS_TRAIN, model->n_units);
    for (int position = 0; position < n_positions; position++)
        gather_ahead(model, layout, first_unsharded, prefetch, position, unsharded, n_gathers);
}

/* Counts the gathers of each unit in a step at stage 3. What a micro-step does depends only on what is in the buffers
 * before it. So once they hold what they held before an earlier one, the micro-steps in between come again and again
 * (Brent's search for a cycle notes the state before each power of two). Then only those that are left over when the
 * cycle has been counted as often as it fits are gone through. */
static zero_status_t count_gathers(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                                   const zero_arena_plan_t *plan, uint64_t *n_gathers)
{
    const size_t n_units = (size_t)layout->n_units;
    const zero_unit_t first_unsharded = zero_plan_first_unsharded(plan, layout);
    zero_unsharded_t unsharded;
    ZERO_TRY(zero_unsharded_create(layout, plan->unsharded_param_counts, plan->unsharded_param_bytes, 0, &unsharded));
    int *noted_in = malloc(n_units * sizeof *noted_in); /* the buffers, and the counts, before micro-step noted_at */
    uint64_t *n_noted = malloc(n_units * sizeof *n_noted);
    const bool has_memory = noted_in && n_noted;
    bool is_known = false; /* the cycle has been counted */
    int noted_at = 0, n_left = has_memory ? config->micro_steps : 0;
    for (int done = 0; n_left > 0; done++, n_left--) {
        if (!is_known && (done & (done - 1)) == 0) {
            memcpy(noted_in, unsharded.buffer_of, n_units * sizeof *noted_in);
            memcpy(n_noted, n_gathers, n_units * sizeof *n_noted);
            noted_at = done;
        }
        gather_in_micro_step(model, layout, first_unsharded, config->prefetch, &unsharded, n_gathers);
        if (is_known || memcmp(noted_in, unsharded.buffer_of, n_units * sizeof *noted_in) != 0)
            continue;
        is_known = true;
        const int period = done + 1 - noted_at, n_cycles = (n_left - 1) / period;
        for (size_t unit = 0; unit < n_units; unit++)
            n_gathers[unit] += (uint64_t)n_cycles * (n_gathers[unit] - n_noted[unit]);
        n_left -= n_cycles * period;
    }
    free(noted_in);
    free(n_noted);
    zero_unsharded_destroy(&unsharded);
    return has_memory ? ZERO_OK
                      : zero_fail(ZERO_ERROR_MEMORY, "no memory to plan the traffic of %d units", layout->n_units);
}

/* Adds a unit's gathers, of which stage 3 makes n_gathers. */
static void add_gathers(const zero_layout_t *layout, const zero_config_t *config, const zero_arena_plan_t *plan,
                        zero_unit_t unit, uint64_t n_gathers, slices_t *slices)
{
    const zero_unit_layout_t *at = &layout->units[unit];
    const uint64_t size = zero_dtype_size(config->dtype), n_groups = (uint64_t)zero_plan_n_groups(plan, layout);
    const bool is_fp8 = zero_plan_gathers_fp8(plan, layout, unit);
    const uint64_t shard = at->shard_elems * (is_fp8 ? 1 : size), others = is_fp8 ? at->others_elems * size : 0;
    if (plan->stage.shard_params) { /* frozen tensors change in no step, so groups do not exchange theirs */
        const uint64_t frozen = n_gathers * at->frozen_shard_elems * size;
        *(n_groups == 1 ? &slices->in_all : &slices->in_group) += frozen * n_groups;
    }
    if (!plan->stage.shard_state) {
        slices->in_all += at->shard_elems * sizeof(float); /* reduced gradients */
    } else if (!plan->stage.shard_params) {
        slices->in_all += shard + others;
    } else if (n_groups == 1) {
        slices->in_all += n_gathers * (shard + others);
    } else {
        slices->in_group += n_gathers * (shard * n_groups + others);
        slices->in_part += shard + others;
    }
}

/* Adds what Muon's rounds exchange (src/zero/step/muon_update.c). */
static void add_muon(const zero_layout_t *layout, const zero_arena_plan_t *plan, slices_t *slices)
{
    const zero_muon_plan_t *muon = &plan->muon;
    for (int round = 0; round < muon->schedule.n_rounds; round++) {
        const uint64_t slot = muon->schedule.slot_elems[round] * zero_dtype_size(muon->dtype);
        if (muon->is_full)
            slices->in_all += slot * (uint64_t)layout->world_size;
        else
            slices->updates += 2 * slot;
    }
}

/* Adds the optimizer state and gradients that a step copies, and the parameters that its update leaves on the other
 * side. */
static void add_offloaded_update(const zero_layout_t *layout, const zero_config_t *config,
                                 const zero_arena_plan_t *plan, slices_t *slices)
{
    const zero_host_plan_t *host = &plan->host;
    const uint64_t n = host->n_elems, size = zero_dtype_size(config->dtype), end = layout->total_shard_elems;
    const zero_unit_t first_params = host->first_params, first_sent = host->first_sent;
    const uint64_t n_params = first_params < layout->n_units ? end - layout->units[first_params].shard_offset : 0;
    const uint64_t n_sent = first_sent < layout->n_units ? end - layout->units[first_sent].shard_offset : 0;
    const uint64_t state =
        (uint64_t)plan->n_arrays * zero_array_bytes(plan->array_format, n) + n * zero_master_lo_size(config->dtype);
    if (host->first == layout->n_units)
        return;
    if (host->holds_sums) { /* they leave and come back between each two micro-steps */
        const uint64_t sums = (uint64_t)(config->micro_steps - 1) * n * zero_dtype_size(plan->reduced_dtype);
        slices->to_host += sums;
        slices->to_gpu += sums;
    }
    const uint64_t grads = n_sent * zero_dtype_size(plan->reduced_dtype);
    slices->to_host += grads;
    if (host->update == ZERO_OFFLOAD_UPDATE_HOST) {
        slices->to_gpu += (n - n_params) * size;
        return;
    }
    slices->to_gpu += state + n_params * size + grads;
    slices->to_host += state + n_params * size;
}

static zero_status_t find_slices(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                                 const zero_arena_plan_t *plan, slices_t *slices)
{
    const uint64_t n_reductions = plan->stage.accumulate_locally ? 1 : (uint64_t)config->micro_steps;
    zero_status_t status = ZERO_OK;
    uint64_t *n_gathers = calloc((size_t)layout->n_units, sizeof *n_gathers);
    if (!n_gathers)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to plan the traffic of %d units", layout->n_units);
    if (plan->stage.shard_params)
        status = count_gathers(model, layout, config, plan, n_gathers);
    *slices = (slices_t){.in_all = sizeof(zero_contribution_t)};
    if (plan->fp8.is_gathered && plan->stage.shard_state)
        slices->in_all += (uint64_t)layout->n_matrices * sizeof(uint32_t);
    for (zero_unit_t unit = 0; unit < layout->n_units; unit++) {
        add_gathers(layout, config, plan, unit, n_gathers[unit], slices);
        slices->reduced += n_reductions * layout->units[unit].shard_elems * zero_dtype_size(plan->stage.grad_dtype);
        if (zero_plan_offloads_params(plan, unit))
            slices->to_gpu += n_gathers[unit] *
                              (layout->units[unit].shard_elems + layout->units[unit].frozen_shard_elems) *
                              zero_dtype_size(config->dtype);
    }
    add_offloaded_update(layout, config, plan, slices);
    if (plan->updates_in_backward) { /* all trained units but the last two have their counts gathered */
        uint64_t n_trained = 0;
        for (zero_unit_t unit = 0; unit < layout->n_units; unit++)
            n_trained += layout->units[unit].shard_elems > 0;
        slices->in_all += (n_trained > 2 ? n_trained - 2 : 0) * sizeof(uint64_t);
    }
    add_muon(layout, plan, slices);
    free(n_gathers);
    return status;
}

/* ---- where it travels ---- */

/* Returns whether the i-th of `ranks` is the first of them on its host, which is not that of `rank`. */
static bool is_first_of_other_host(const int *hosts, zero_ranks_t ranks, int rank, int i)
{
    const int host = hosts[zero_ranks_at(ranks, i)];
    for (int before = i - 1; before >= 0; before--) /* mostly the one just before is */
        if (hosts[zero_ranks_at(ranks, before)] == host)
            return false;
    return host != hosts[rank];
}

/* Returns the part of n_bytes that falls to the i-th of n ranks, whose parts add up to n_bytes. */
static uint64_t part_of(uint64_t n_bytes, uint64_t i, uint64_t n)
{
    return n_bytes / n + (i < n_bytes % n);
}

/* Adds a collective in which each of `ranks` has a slice of n_bytes for every other. */
static void add_collective(const int *hosts, zero_ranks_t ranks, int rank, route_t route, uint64_t n_bytes,
                           zero_traffic_t *traffic)
{
    uint64_t n_local = 0, n_before = 0, n_others = 0, n_ranks = (uint64_t)ranks.n; /* before: of the same host */
    for (int i = 0; i < ranks.n; i++) {
        const int other = zero_ranks_at(ranks, i);
        n_local += hosts[other] == hosts[rank];
        n_before += other < rank && hosts[other] == hosts[rank];
        n_others += route == ONCE_PER_HOST && is_first_of_other_host(hosts, ranks, rank, i);
    }
    uint64_t received = (n_ranks - n_local) * n_bytes, sent = received;
    if (route == IN_A_RING && n_local < n_ranks)
        received = sent = part_of((n_ranks - 1) * n_bytes, n_before, n_local);
    if (route == OVER_RAILS)
        received = sent = (n_ranks / n_local - 1) * n_bytes;
    if (route == ONCE_PER_HOST) {
        received = part_of(received, n_before, n_local);
        sent = n_others * n_bytes;
    }
    traffic->received_bytes += received;
    traffic->sent_bytes += sent;
    traffic->local_bytes += (n_ranks - 1) * n_bytes - received;
}

/* Returns how what is gathered among `ranks` travels: between GPUs by NCCL alone, or as comm/gpu/rails.c sends it. */
static route_t find_route(const zero_arena_plan_t *plan, zero_device_type_t device, zero_comm_kind_t kind,
                          int world_size, const int *hosts, zero_ranks_t ranks)
{
    const route_t messages = ranks.n == world_size && device == ZERO_DEVICE_CUDA ? IN_A_RING : DIRECTLY;
    if (device == ZERO_DEVICE_CPU)
        return kind == ZERO_COMM_MPI ? DIRECTLY : ONCE_PER_HOST;
    if (kind == ZERO_COMM_NCCL || plan->transport_reduces)
        return messages;
    return zero_route_find(hosts, world_size, ranks).kind == ZERO_ROUTE_MESSAGES ? messages : OVER_RAILS;
}

static void find_traffic(const slices_t *slices, const zero_arena_plan_t *plan, zero_device_type_t device,
                         zero_comm_kind_t kind, int world_size, const int *hosts, zero_traffic_t *traffic)
{
    const zero_ranks_t all = {.stride = 1, .n = world_size};
    const zero_ranks_t some = {.stride = 1, .n = plan->group},
                       others = {.stride = plan->group, .n = world_size / plan->group};
    const route_t in_group = find_route(plan, device, kind, world_size, hosts, some);
    const route_t in_part = find_route(plan, device, kind, world_size, hosts, others);
    const route_t in_all = find_route(plan, device, kind, world_size, hosts, all);
    for (int rank = 0; rank < world_size; rank++) {
        const zero_ranks_t group = {.first = rank - rank % plan->group, .stride = 1, .n = plan->group};
        const zero_ranks_t part = {.first = rank % plan->group, .stride = plan->group, .n = world_size / plan->group};
        traffic[rank] = (zero_traffic_t){.to_gpu_bytes = slices->to_gpu, .to_host_bytes = slices->to_host};
        add_collective(hosts, group, rank, in_group, slices->in_group, &traffic[rank]);
        add_collective(hosts, part, rank, in_part, slices->in_part, &traffic[rank]);
        add_collective(hosts, all, rank, in_all, slices->in_all, &traffic[rank]);
        add_collective(hosts, all, rank, plan->transport_reduces ? IN_A_RING : DIRECTLY, slices->reduced,
                       &traffic[rank]);
        add_collective(hosts, all, rank, DIRECTLY, slices->updates, &traffic[rank]);
    }
}

zero_status_t zero_plan_traffic(const zero_model_t *model, const zero_config_t *config, zero_device_type_t device,
                                zero_comm_kind_t kind, int world_size, const int *hosts, zero_traffic_t *traffic)
{
    zero_memory_t memory;
    zero_layout_t layout;
    zero_arena_plan_t plan;
    slices_t slices = {0};
    zero_config_t known;
    ZERO_REQUIRE(config);
    ZERO_REQUIRE(hosts);
    ZERO_REQUIRE(traffic);
    ZERO_TRY(zero_config_read("zero_plan_traffic", config, &known));
    ZERO_TRY(zero_plan(model, &known, device, kind, world_size, &memory)); /* checks the arguments */
    ZERO_TRY(zero_layout_create(model, world_size, &layout));
    const zero_plan_target_t target = {.on_gpu = device != ZERO_DEVICE_CPU};
    zero_status_t status = zero_arena_plan_create(model, &layout, &known, target, &plan);
    if (status == ZERO_OK) {
        status = find_slices(model, &layout, &known, &plan, &slices);
        if (status == ZERO_OK)
            find_traffic(&slices, &plan, device, kind, world_size, hosts, traffic);
        zero_arena_plan_destroy(&plan);
    }
    zero_layout_destroy(&layout);
    return status;
}
