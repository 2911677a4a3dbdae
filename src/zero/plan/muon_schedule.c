/* muon_schedule.c - see muon_schedule.h. */
#include "zero/plan/muon_schedule.h"

#include <stdlib.h>

#include "base/log.h"
#include "kernels/shard.h"

typedef struct matrix {
    zero_tensor_t tensor;
    zero_unit_t unit;
    double cost; /* a measure of the time that orthogonalizing it takes: its multiplications, but for a factor */
    uint64_t scratch_elems;
} matrix_t;

/* A unit that has matrices: n_matrices from `first` on. */
typedef struct share {
    zero_unit_t unit;
    uint64_t shard_elems;
    int first, n_matrices;
} share_t;

/* What is being scheduled. */
typedef struct maker {
    matrix_t *matrices; /* by unit, the most expensive first */
    share_t *shares;    /* the largest shards first, then in forward order: units of one size share a round */
    double *load;       /* by owner, in the current round */
    int n_matrices, n_shares;
} maker_t;

static int by_unit(const void *a, const void *b)
{
    const matrix_t *x = a, *y = b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static int by_size(const void *a, const void *b)
{
    const share_t *x = a, *y = b;
    if (x->shard_elems != y->shard_elems)
        return x->shard_elems > y->shard_elems ? -1 : 1;
    return (x->unit > y->unit) - (x->unit < y->unit);
}

static void list_matrices(const zero_model_t *model, const zero_config_t *config, bool on_gpu, maker_t *maker)
{
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        const zero_tensor_decl_t *tensor = &model->tensors[t];
        if (!zero_muon_takes(config, tensor))
            continue;
        const uint64_t rows = (uint64_t)tensor->shape[0], cols = (uint64_t)tensor->shape[1];
        const double r = (double)(rows < cols ? rows : cols);
        maker->matrices[maker->n_matrices++] = (matrix_t){
            .tensor = t,
            .unit = tensor->owner,
            .cost = 2.0 * (double)rows * (double)cols * r + r * r * r,
            .scratch_elems =
                config->optimizer == ZERO_OPTIMIZER_MUON ? zero_orthogonalize_scratch(rows, cols, on_gpu) : 0};
    }
    qsort(maker->matrices, (size_t)maker->n_matrices, sizeof *maker->matrices, by_unit);
}

static void list_units(const zero_layout_t *layout, maker_t *maker)
{
    for (int i = 0; i < maker->n_matrices; i++) {
        const zero_unit_t unit = maker->matrices[i].unit;
        if (i == 0 || unit != maker->matrices[i - 1].unit)
            maker->shares[maker->n_shares++] =
                (share_t){.unit = unit, .shard_elems = layout->units[unit].shard_elems, .first = i};
        maker->shares[maker->n_shares - 1].n_matrices++;
    }
    qsort(maker->shares, (size_t)maker->n_shares, sizeof *maker->shares, by_size);
}

/* Shares out a unit's matrices over owners first .. end - 1, the most expensive first, each to the one that has the
 * least to do. */
static void share_out(const maker_t *maker, zero_muon_schedule_t *schedule, int round, const share_t *share, int first,
                      int end)
{
    for (int owner = first; owner < end; owner++) {
        schedule->unit_of[round * schedule->n_owners + owner] = share->unit;
        maker->load[owner] = 0.0;
    }
    for (int i = share->first; i < share->first + share->n_matrices; i++) {
        int idlest = first;
        for (int owner = first + 1; owner < end; owner++)
            if (maker->load[owner] < maker->load[idlest])
                idlest = owner;
        maker->load[idlest] += maker->matrices[i].cost;
        schedule->owner_of[maker->matrices[i].tensor] = idlest;
        schedule->round_of[maker->matrices[i].tensor] = round;
    }
}

/* Fills a round: as many units as there are ranks or, in the last one, as are left. */
static void fill_round(const maker_t *maker, zero_muon_schedule_t *schedule, int round)
{
    const int first = round * schedule->n_owners, n_left = maker->n_shares - first;
    const int n_units = n_left < schedule->n_owners ? n_left : schedule->n_owners;
    for (int i = 0; i < n_units; i++) /* the ranks are cut evenly among the units */
        share_out(maker, schedule, round, &maker->shares[first + i], (int)((int64_t)i * schedule->n_owners / n_units),
                  (int)(((int64_t)i + 1) * schedule->n_owners / n_units));
    schedule->slot_elems[round] = maker->shares[first].shard_elems;
}

static zero_status_t allocate(size_t n_tensors, zero_muon_schedule_t *schedule)
{
    const size_t n_owners = (size_t)schedule->n_owners;
    const size_t n_rounds = (size_t)schedule->n_rounds;
    schedule->unit_of = calloc(n_rounds * n_owners, sizeof *schedule->unit_of);
    schedule->slot_elems = calloc(n_rounds, sizeof *schedule->slot_elems);
    schedule->round_of = calloc(n_tensors, sizeof *schedule->round_of);
    schedule->owner_of = calloc(n_tensors, sizeof *schedule->owner_of);
    if (!schedule->unit_of || !schedule->slot_elems || !schedule->round_of || !schedule->owner_of)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the schedule of %zu tensors", n_tensors);
    for (size_t i = 0; i < n_rounds * n_owners; i++)
        schedule->unit_of[i] = -1;
    for (size_t t = 0; t < n_tensors; t++)
        schedule->round_of[t] = schedule->owner_of[t] = -1;
    return ZERO_OK;
}

/* Counts the most matrices that one owner has in one round. */
static zero_status_t count_most(const maker_t *maker, zero_muon_schedule_t *schedule)
{
    int *counts = calloc((size_t)schedule->n_rounds * (size_t)schedule->n_owners, sizeof *counts);
    if (!counts)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the schedule of %d matrices", maker->n_matrices);
    for (int i = 0; i < maker->n_matrices; i++) {
        const zero_tensor_t t = maker->matrices[i].tensor;
        const int count = ++counts[schedule->round_of[t] * schedule->n_owners + schedule->owner_of[t]];
        if (count > schedule->most_at_once)
            schedule->most_at_once = count;
    }
    free(counts);
    return ZERO_OK;
}

static zero_status_t make(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                          bool on_gpu, maker_t *maker, zero_muon_schedule_t *schedule)
{
    list_matrices(model, config, on_gpu, maker);
    list_units(layout, maker);
    if (maker->n_shares == 0)
        return ZERO_OK;
    schedule->n_owners = layout->world_size;
    schedule->n_rounds = (maker->n_shares + schedule->n_owners - 1) / schedule->n_owners;
    schedule->n_matrices = maker->n_matrices;
    schedule->largest_slot = maker->shares[0].shard_elems;
    for (int i = 0; i < maker->n_matrices; i++) {
        const uint64_t n_elems = model->tensors[maker->matrices[i].tensor].n_elems;
        if (n_elems > schedule->largest_matrix)
            schedule->largest_matrix = n_elems;
        if (maker->matrices[i].scratch_elems > schedule->largest_scratch)
            schedule->largest_scratch = maker->matrices[i].scratch_elems;
    }
    ZERO_TRY(allocate((size_t)model->n_tensors, schedule));
    for (int round = 0; round < schedule->n_rounds; round++)
        fill_round(maker, schedule, round);
    return count_most(maker, schedule);
}

zero_status_t zero_muon_schedule_create(const zero_model_t *model, const zero_layout_t *layout,
                                        const zero_config_t *config, bool on_gpu, zero_muon_schedule_t *schedule)
{
    zero_muon_schedule_t made = {0};
    if (!zero_muon_has_matrices(config) || config->forward_only) {
        *schedule = made;
        return ZERO_OK;
    }
    maker_t maker = {.matrices = calloc((size_t)model->n_tensors, sizeof *maker.matrices),
                     .shares = calloc((size_t)layout->n_units, sizeof *maker.shares),
                     .load = calloc((size_t)layout->world_size, sizeof *maker.load)};
    zero_status_t status =
        maker.matrices && maker.shares && maker.load
            ? make(model, layout, config, on_gpu, &maker, &made)
            : zero_fail(ZERO_ERROR_MEMORY, "no memory for the schedule of %d tensors", model->n_tensors);
    free(maker.matrices);
    free(maker.shares);
    free(maker.load);
    if (status != ZERO_OK) {
        zero_muon_schedule_destroy(&made);
        return status;
    }
    *schedule = made;
    return ZERO_OK;
}

void zero_muon_schedule_destroy(zero_muon_schedule_t *schedule)
{
    free(schedule->unit_of);
    free(schedule->slot_elems);
    free(schedule->round_of);
    free(schedule->owner_of);
    *schedule = (zero_muon_schedule_t){0};
}

/* Gaps are multiples of this, so that the rest of v is aligned as m is. */
#define V_GAP_ELEMS ((uint64_t)64)

uint64_t zero_muon_v_gap(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                         int64_t shard, zero_unit_t unit, uint64_t at)
{
    uint64_t gap = 0;
    if (config->optimizer != ZERO_OPTIMIZER_MUON)
        return 0;
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        const zero_unit_t owner = model->tensors[t].owner;
        if (!zero_muon_takes(config, &model->tensors[t]) || owner > unit)
            continue;
        const zero_unit_layout_t *of = &layout->units[owner];
        const uint64_t begin = shard < 0 ? 0 : (uint64_t)shard * of->shard_elems;
        const zero_span_t span =
            zero_layout_span(layout, model, t, begin, shard < 0 ? of->flat_elems : begin + of->shard_elems);
        if (span.n_elems == 0 || (owner == unit && at < span.flat_offset))
            continue;
        if (owner == unit && at < span.flat_offset + span.n_elems)
            return ZERO_MUON_NO_V;
        gap += span.n_elems / V_GAP_ELEMS * V_GAP_ELEMS;
    }
    return gap;
}
