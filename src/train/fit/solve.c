/* solve.c - see solve.h. */
#include "train/fit/solve.h"

#include <stdlib.h>
#include <string.h>

#include "train/report/report.h"

uint64_t fit_bytes_to_plan(uint64_t available)
{
    const uint64_t least = (uint64_t)1 << 30, most = available / 8, part = available / 64;
    uint64_t reserve = part > least ? part : least;
    return available - (reserve < most ? reserve : most);
}

void fit_apply(const fit_choice_t *choice, options_t *options)
{
    options->zero.stage = choice->stage;
    options->model.recompute = choice->recompute;
    options->model.recompute_none = choice->none;
    options->model.recompute_light = choice->light;
    options->train.micro_batch = choice->micro_batch;
    options->zero.offload_ratio = choice->offload_ratio;
    options->zero.keep = choice->keep;
}

fit_choice_t fit_choice_of(const options_t *options)
{
    return (fit_choice_t){.stage = (int)options->zero.stage,
                          .recompute = options->model.recompute,
                          .none = options->model.recompute_none,
                          .light = options->model.recompute_light,
                          .micro_batch = options->train.micro_batch,
                          .offload_ratio = options->zero.offload_ratio,
                          .keep = options->zero.keep};
}

zero_status_t fit_create(const options_t *options, const fit_machine_t *machine, uint64_t budget, fit_t **fit)
{
    fit_t *made = calloc(1, sizeof *made);
    if (!made)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory to search for settings");
    made->options = made->asked = *options;
    made->machine = *machine;
    made->budget = budget;
    if (made->asked.train.micro_batch == MICRO_BATCH_AUTO)
        made->options.train.micro_batch = 1;
    zero_status_t status = model_create(&made->options, &made->model);
    if (status != ZERO_OK) {
        free(made);
        return status;
    }
    *fit = made;
    return ZERO_OK;
}

void fit_destroy(fit_t *fit)
{
    if (!fit)
        return;
    model_destroy(&fit->model);
    free(fit->plans);
    free(fit);
}

/* ---- memory ---- */

static zero_status_t make_plan(fit_t *fit, fit_plan_t *plan)
{
    const options_t *o = &fit->options;
    const fit_machine_t *machine = &fit->machine;
    zero_config_t config = options_config(o, machine->n_ranks);
    config.offload &= plan->offload_ratio > 0.0;
    if (config.shard_group == ZERO_SHARD_GROUP_HOST)
        config.shard_group = machine->ranks_per_host < machine->n_ranks ? machine->ranks_per_host : machine->n_ranks;
    return zero_plan(fit->model.declaration, &config, (zero_device_type_t)o->device.type, machine->kind,
                     machine->n_ranks, &plan->memory);
}

/* Returns libzero's plan for what fit->options say. Apart from the stage, it depends only on whether micro-steps are
 * accumulated, on offload and on keep. */
static zero_status_t plan_of(fit_t *fit, const zero_memory_t **memory)
{
    const options_t *o = &fit->options;
    fit_plan_t plan = {.stage = (int)o->zero.stage,
                       .accumulates = options_micro_steps(o, fit->machine.n_ranks) > 1,
                       .offload_ratio = o->zero.offload == OFFLOAD_OPTIMIZER ? o->zero.offload_ratio : 0.0,
                       .keep = o->zero.keep};
    for (int i = 0; i < fit->n_plans; i++) {
        const fit_plan_t *p = &fit->plans[i];
        if (p->stage == plan.stage && p->accumulates == plan.accumulates && p->keep == plan.keep &&
            p->offload_ratio == plan.offload_ratio) {
            *memory = &p->memory;
            return ZERO_OK;
        }
    }
    TRY(make_plan(fit, &plan));
    if (fit->n_plans == fit->max_plans) {
        int more = fit->max_plans > 0 ? 2 * fit->max_plans : 64;
        fit_plan_t *grown = realloc(fit->plans, (size_t)more * sizeof *grown);
        if (!grown)
            return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %d plans", more);
        fit->plans = grown;
        fit->max_plans = more;
    }
    fit->plans[fit->n_plans] = plan;
    *memory = &fit->plans[fit->n_plans++].memory;
    return ZERO_OK;
}

/* Sets memory, bytes and fits of what fit->options say. user: what the model takes beside libzero's plan. */
static zero_status_t add_plan(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    const zero_memory_t *plan = NULL;
    TRY(plan_of(fit, &plan));
    point->memory = *plan;
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        point->memory.bytes[c] += user->bytes[c];
    point->bytes = zero_memory_total(&point->memory);
    point->fits = point->bytes <= fit->budget;
    return ZERO_OK;
}

/* offload_ratio = auto: the least share that fits. */
static zero_status_t settle_offload(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    point->fits = false;
    for (int i = 0; i <= FIT_RATIOS && !point->fits; i++) {
        fit->options.zero.offload_ratio = (double)i / FIT_RATIOS;
        TRY(add_plan(fit, user, point));
    }
    return ZERO_OK;
}

/* keep = auto: the most blocks that fit; each takes a buffer more. */
static zero_status_t settle_keep(fit_t *fit, const zero_memory_t *user, fit_point_t *point)
{
    int64_t fits = 0, most = fit->options.model.layers;
    while (fits < most) {
        fit->options.zero.keep = fits + (most - fits + 1) / 2;
        TRY(add_plan(fit, user, point));
        if (point->fits)
            fits = fit->options.zero.keep;
        else
            most = fit->options.zero.keep - 1;
    }
    fit->options.zero.keep = fits;
    return add_plan(fit, user, point);
}

zero_status_t fit_evaluate(fit_t *fit, const fit_choice_t *choice, fit_point_t *point)
{
    options_t *o = &fit->options;
    zero_memory_t user = {0};
    bool on_gpu = fit->machine.rates.is_gpu, sharded = choice->stage == 3 && fit->machine.n_ranks > 1;
    fit_apply(choice, o);
    bool offloads = o->zero.offload == OFFLOAD_OPTIMIZER && on_gpu && choice->stage > 0;
    bool ratio_is_auto = offloads && choice->offload_ratio == (double)ZERO_OFFLOAD_AUTO;
    bool keep_is_auto = on_gpu && sharded && choice->keep == ZERO_KEEP_AUTO;
    o->zero.offload_ratio = offloads ? (ratio_is_auto ? 0.0 : choice->offload_ratio) : 0.0;
    o->zero.keep = choice->keep == ZERO_KEEP_AUTO ? 0 : choice->keep;
    model_plan(&fit->model, &user);
    if (ratio_is_auto)
        TRY(settle_offload(fit, &user, point));
    if (keep_is_auto)
        TRY(settle_keep(fit, &user, point));
    TRY(add_plan(fit, &user, point));
    point->choice = fit_choice_of(o);
    point->time = fit_step_time(o, &fit->machine, (double)point->memory.bytes[ZERO_MEMORY_ACTIVATIONS]);
    return ZERO_OK;
}

/* ---- the search ---- */

/* Returns the next larger divisor of n; 0: there is none. */
static int64_t next_divisor(int64_t n, int64_t after)
{
    int64_t next = 0;
    for (int64_t d = 1; d * d <= n; d++) {
        if (n % d != 0)
            continue;
        if (d > after)
            return d;
        next = n / d > after ? n / d : next; /* they fall as d rises */
    }
    return next;
}

/* Returns whether sizes can be counted and, in fp8, multiplied (options_resolve.c). */
static bool is_allowed(fit_t *fit, int64_t micro_batch)
{
    options_t *tried = &fit->options;
    tried->train.micro_batch = micro_batch;
    double rows = (double)micro_batch * (double)tried->model.seq_len;
    bool has_extent = tried->train.fp8 == FP8_NONE || (micro_batch * tried->model.seq_len) % OPTIONS_FP8_MULTIPLE == 0;
    return micro_batch <= 1 << 20 && rows < 0x1p31 && options_most_bytes(tried) < 0x1p60 && has_extent;
}

static zero_status_t add_point(fit_t *fit, const fit_choice_t *choice, fit_result_t *result)
{
    fit_point_t *grown = realloc(result->points, ((size_t)result->n_points + 1) * sizeof *grown);
    if (!grown)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %d choices", result->n_points + 1);
    result->points = grown;
    memset(&grown[result->n_points], 0, sizeof *grown);
    TRY(fit_evaluate(fit, choice, &grown[result->n_points]));
    result->n_points++;
    return ZERO_OK;
}

/* Sets the choice to n_full blocks with full recomputation, then light ones, and as many last with none as fit; finds
 * what it takes. *fits is false if not even none of these does. */
static zero_status_t mix(fit_t *fit, int64_t n_full, fit_choice_t *choice, fit_point_t *point)
{
    int64_t others = fit->asked.model.layers - n_full, fits = -1, too_many = others + (n_full > 0);
    fit_point_t tried;
    choice->recompute = n_full > 0 ? RECOMPUTE_FULL : RECOMPUTE_LIGHT;
    for (int64_t none = 0; too_many - fits > 1; none = fits + (too_many - fits) / 2) {
        choice->none = none;
        choice->light = n_full > 0 ? others - none : 0;
        TRY(fit_evaluate(fit, choice, &tried));
        if (tried.fits) {
            fits = none;
            *point = tried;
        } else if (none == 0) {
            break;
        } else {
            too_many = none;
        }
    }
    point->fits = fits >= 0;
    return ZERO_OK;
}

/* Adds the fastest mix that fits, where none does not fit and full does. pure: the points of none, light and full. */
static zero_status_t add_mix(fit_t *fit, fit_choice_t choice, fit_result_t *result)
{
    const fit_point_t *pure = &result->points[result->n_points - 3];
    fit_point_t best = {0}, point = {0};
    if (pure[0].fits || !pure[2].fits)
        return ZERO_OK;
    for (int64_t n_full = 0; n_full < fit->asked.model.layers; n_full++) {
        fit_choice_t tried = choice;
        TRY(mix(fit, n_full, &tried, &point));
        if (point.fits && (!best.fits || point.time.total < best.time.total))
            best = point;
    }
    if (!best.fits || !fit_is_mixed(&best.choice))
        return ZERO_OK;
    choice.recompute = best.choice.recompute;
    choice.none = best.choice.none;
    choice.light = best.choice.light;
    return add_point(fit, &choice, result); /* offload_ratio and keep as they were left */
}

/* Adds the choices of one micro-batch: every stage and recomputation that is auto, or the one that is given. */
static zero_status_t add_points(fit_t *fit, int64_t micro_batch, fit_result_t *result)
{
    const options_t *o = &fit->asked;
    fit_choice_t choice = fit_choice_of(o);
    bool offloads = o->zero.offload == OFFLOAD_OPTIMIZER && fit->machine.rates.is_gpu; /* stage 0 has none */
    int first = o->zero.stage != STAGE_AUTO ? (int)o->zero.stage : offloads ? 1 : 0;
    int last = o->zero.stage != STAGE_AUTO ? (int)o->zero.stage : 3;
    choice.micro_batch = micro_batch;
    if (o->model.recompute == RECOMPUTE_AUTO)
        choice.none = choice.light = 0;
    for (choice.stage = first; choice.stage <= last; choice.stage++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
            if (o->model.recompute != RECOMPUTE_AUTO && r != o->model.recompute)
                continue;
            choice.recompute = r;
            TRY(add_point(fit, &choice, result));
            if (r == RECOMPUTE_FULL && o->model.recompute == RECOMPUTE_AUTO)
                TRY(add_mix(fit, choice, result));
        }
    return ZERO_OK;
}

static int by_memory(const void *a, const void *b)
{
    const fit_point_t *p = a, *q = b;
    if (p->bytes != q->bytes)
        return p->bytes < q->bytes ? -1 : 1;
    if (p->time.total != q->time.total)
        return p->time.total < q->time.total ? -1 : 1;
    return p->choice.stage - q->choice.stage;
}

bool fit_is_mixed(const fit_choice_t *choice)
{
    return choice->none > 0 || choice->light > 0;
}

/* Returns whether a is simpler than b. */
static bool is_simpler(const fit_choice_t *a, const fit_choice_t *b)
{
    if (a->offload_ratio != b->offload_ratio)
        return a->offload_ratio < b->offload_ratio;
    if (fit_is_mixed(a) != fit_is_mixed(b))
        return fit_is_mixed(b);
    if (a->recompute != b->recompute)
        return a->recompute < b->recompute;
    if (a->stage != b->stage)
        return a->stage < b->stage;
    return a->micro_batch > b->micro_batch;
}

/* Points are in the order of memory. */
static void choose(fit_result_t *result)
{
    double least_ms = 0.0, fastest = 0.0;
    result->best = -1;
    result->least = result->n_points > 0 ? 0 : -1;
    for (int i = 0; i < result->n_points; i++) {
        fit_point_t *p = &result->points[i];
        p->is_on_frontier = i == 0 || p->time.total < fastest;
        fastest = p->is_on_frontier ? p->time.total : fastest;
        if (p->fits && (least_ms == 0.0 || p->time.total < least_ms))
            least_ms = p->time.total;
    }
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        if (p->fits && p->time.total <= least_ms * (1.0 + FIT_TIE) &&
            (result->best < 0 || is_simpler(&p->choice, &result->points[result->best].choice)))
            result->best = i;
    }
}

zero_status_t fit_solve(fit_t *fit, fit_result_t *result)
{
    const options_t *o = &fit->asked;
    int64_t share = o->train.global_batch / fit->machine.n_ranks;
    zero_status_t status = ZERO_OK;
    *result = (fit_result_t){.best = -1, .least = -1};
    if (o->train.micro_batch != MICRO_BATCH_AUTO)
        status = add_points(fit, o->train.micro_batch, result);
    else
        for (int64_t m = next_divisor(share, 0); m > 0 && status == ZERO_OK; m = next_divisor(share, m))
            if (is_allowed(fit, m))
                status = add_points(fit, m, result);
    if (status != ZERO_OK) {
        free(result->points);
        *result = (fit_result_t){.best = -1, .least = -1};
        return status;
    }
    if (result->n_points > 0)
        qsort(result->points, (size_t)result->n_points, sizeof *result->points, by_memory);
    choose(result);
    return ZERO_OK;
}
