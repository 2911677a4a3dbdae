/* solve.c - see solve.h. */
#include "train/planning/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/planning/search.h"
#include "train/report/report.h"

#define ROUNDING 1e-12 /* between two sums of the same times */

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
    bool has_extent =
        tried->train.fp8 == FP8_NONE || (micro_batch * options_longest_part(tried)) % OPTIONS_FP8_MULTIPLE == 0;
    return micro_batch <= 1 << 20 && options_are_countable(tried) && has_extent;
}

static zero_status_t add_point(fit_t *fit, const fit_choice_t *choice, fit_result_t *result)
{
    fit_point_t *grown = realloc(result->points, ((size_t)result->n_points + 1) * sizeof *grown);
    if (!grown)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %d choices", result->n_points + 1);
    result->points = grown;
    memset(&grown[result->n_points], 0, sizeof *grown);
    ZERO_TRY(fit_evaluate(fit, choice, &grown[result->n_points]));
    result->n_points++;
    return ZERO_OK;
}

/* All groups of a search. */
typedef struct groups {
    fit_group_t *all;
    int n;
} groups_t;

/* Finds the stages to try: every one that the settings allow, or the one that is given. */
static void find_stages(const fit_t *fit, int *first, int *last)
{
    const options_t *o = &fit->asked;
    bool offloads = o->zero.offload != OFFLOAD_NONE && fit->machine.rates.is_gpu;
    bool shards = offloads || o->zero.update == ZERO_UPDATE_IN_BACKWARD || o->zero.gradients == ZERO_BF16;
    int least = o->zero.offload == OFFLOAD_ALL ? 3 : shards ? 1 : 0; /* parameters are offloaded at stage 3 */
    *first = o->zero.stage != STAGE_AUTO ? (int)o->zero.stage : least;
    *last = o->zero.stage != STAGE_AUTO ? (int)o->zero.stage : 3;
}

/* Adds the groups of one micro-batch. */
static zero_status_t add_groups(fit_t *fit, int64_t micro_batch, groups_t *groups)
{
    fit_choice_t choice = fit_choice_of(&fit->asked);
    int first, last, n_added;
    find_stages(fit, &first, &last);
    fit_group_t *grown = realloc(groups->all, (size_t)(groups->n + 4 * FIT_N_KINDS) * sizeof *grown);
    if (!grown)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for %d choices", groups->n + 4 * FIT_N_KINDS);
    groups->all = grown;
    choice.micro_batch = micro_batch;
    for (choice.stage = first; choice.stage <= last; choice.stage++) {
        ZERO_TRY(fit_search(fit, &choice, &groups->all[groups->n], &n_added));
        groups->n += n_added;
    }
    return ZERO_OK;
}

/* Returns the micro-batch to try after `m`, the first after 0: every one that divides a rank's share of the batch and
 * is allowed, or the one that is given. 0: there is no more. */
static int64_t next_micro_batch(fit_t *fit, int64_t m)
{
    int64_t share = fit->asked.train.global_batch / options_n_groups(&fit->asked.train, fit->machine.n_ranks);
    if (fit->asked.train.micro_batch != MICRO_BATCH_AUTO)
        return m == 0 ? fit->asked.train.micro_batch : 0;
    do
        m = next_divisor(share, m);
    while (m > 0 && !is_allowed(fit, m));
    return m;
}

static zero_status_t find_groups(fit_t *fit, groups_t *groups)
{
    for (int64_t m = next_micro_batch(fit, 0); m > 0; m = next_micro_batch(fit, m))
        ZERO_TRY(add_groups(fit, m, groups));
    return ZERO_OK;
}

/* ---- what leaves for the host's memory ---- */

/* offload_activations = auto is tried in steps of 1 / this. */
#define ACTIVATION_SHARES 32

/* What is to be in host memory, of what is asked for to be auto: in steps of 1 / ACTIVATION_SHARES and of 1 /
 * FIT_PARAMS_RATIOS. */
typedef struct leaves {
    int activations, params;
} leaves_t;

/* Returns the most of each. On a CPU nothing leaves. */
static leaves_t most_leaves(const fit_t *fit, const options_t *asked)
{
    const bool is_gpu = fit->machine.rates.is_gpu;
    const bool params_open =
        asked->zero.offload == OFFLOAD_ALL && asked->zero.offload_params_ratio == (double)ZERO_OFFLOAD_AUTO;
    const bool activations_open = asked->model.offload_activations == (double)ZERO_OFFLOAD_AUTO;
    return (leaves_t){.activations = is_gpu && activations_open ? ACTIVATION_SHARES : 0,
                      .params = is_gpu && params_open ? FIT_PARAMS_RATIOS : 0};
}

static void set_leaves(fit_t *fit, const options_t *asked, leaves_t leaves)
{
    const leaves_t most = most_leaves(fit, asked);
    options_t *o = &fit->asked;
    if (most.activations > 0)
        o->model.offload_activations = (double)leaves.activations / ACTIVATION_SHARES;
    if (most.params > 0)
        o->zero.offload_params_ratio = (double)leaves.params / FIT_PARAMS_RATIOS;
    fit->options.model.offload_activations = o->model.offload_activations;
    fit->options.zero.offload_params_ratio = o->zero.offload_params_ratio;
}

/* Adds one step: first of activations, which cost least, then of parameters. Returns whether there is one. */
static bool leave_more(leaves_t *leaves, leaves_t most)
{
    if (leaves->activations < most.activations)
        leaves->activations++;
    else if (leaves->params < most.params)
        leaves->params++;
    else
        return false;
    return true;
}

/* ---- whether anything fits ---- */

/* Evaluates a choice with as much offloaded as the host has room for or, since buffers may take more than a small share
 * spares, with nothing. */
static zero_status_t evaluate_least_ratio(fit_t *fit, fit_choice_t choice, fit_point_t *point)
{
    double most;
    if (!fit_find_open(fit, &choice).ratio)
        return fit_evaluate(fit, &choice, point);
    fit_apply(&choice, &fit->options);
    ZERO_TRY(fit_find_most_ratio(fit, &most));
    choice.offload_ratio = 0.0;
    ZERO_TRY(fit_evaluate(fit, &choice, point));
    choice.offload_ratio = most;
    return point->fits || most == 0.0 ? ZERO_OK : fit_evaluate(fit, &choice, point);
}

/* Evaluates the choice of a stage and a micro-batch that takes the least: all recomputed, nothing kept, and much
 * offloaded. Sums of gradients take the host's memory from state. */
static zero_status_t evaluate_least(fit_t *fit, int stage, int64_t micro_batch, fit_point_t *point)
{
    fit_choice_t choice = fit_choice_of(&fit->asked);
    choice.stage = stage;
    choice.micro_batch = micro_batch;
    if (choice.recompute == RECOMPUTE_AUTO) {
        choice.recompute = RECOMPUTE_FULL;
        choice.none = choice.light = 0;
    }
    choice.keep = choice.keep == ZERO_KEEP_AUTO ? 0 : choice.keep;
    if (!fit_find_open(fit, &choice).grads)
        return evaluate_least_ratio(fit, choice, point);
    choice.offload_grads = ZERO_OFFLOAD_GRADS_DEVICE;
    ZERO_TRY(evaluate_least_ratio(fit, choice, point));
    choice.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    return point->fits ? ZERO_OK : evaluate_least_ratio(fit, choice, point);
}

static zero_status_t find_whether_fits_as_set(fit_t *fit, bool *fits)
{
    int first, last;
    find_stages(fit, &first, &last);
    for (int stage = last; stage >= first && !*fits; stage--)
        for (int64_t m = next_micro_batch(fit, 0); m > 0 && !*fits; m = next_micro_batch(fit, m)) {
            fit_point_t point;
            ZERO_TRY(evaluate_least(fit, stage, m, &point));
            *fits = point.fits;
        }
    return ZERO_OK;
}

/* Finds the least that must leave for the host's memory so that anything fits, else the most that can. */
static zero_status_t find_least_leaves(fit_t *fit, const options_t *asked, leaves_t *leaves, bool *fits)
{
    const leaves_t most = most_leaves(fit, asked);
    zero_status_t status;
    *leaves = (leaves_t){0};
    *fits = false;
    do {
        set_leaves(fit, asked, *leaves);
        status = find_whether_fits_as_set(fit, fits);
    } while (status == ZERO_OK && !*fits && leave_more(leaves, most));
    return status;
}

zero_status_t fit_find_whether_any_fits(fit_t *fit, bool *fits)
{
    const options_t asked = fit->asked;
    leaves_t leaves;
    zero_status_t status = find_least_leaves(fit, &asked, &leaves, fits);
    fit->asked = asked;
    return status;
}

/* ---- the choice ---- */

static int by_memory(const void *a, const void *b)
{
    const fit_point_t *p = a, *q = b;
    if (p->bytes != q->bytes)
        return p->bytes < q->bytes ? -1 : 1;
    if (p->time.total != q->time.total)
        return p->time.total < q->time.total ? -1 : 1;
    return p->choice.stage - q->choice.stage;
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

/* Returns the least time of a group's candidates. */
static double fastest_of(const fit_group_t *group)
{
    double least = INFINITY;
    for (int i = 0; i < group->n; i++)
        least = fmin(least, group->candidates[i].ms);
    return least;
}

/* Returns the simplest candidate of a group within so much time; -1: there is none. Less offloaded is simpler. */
static int simplest_within(const fit_group_t *group, double ms)
{
    for (int i = 0; i < group->n; i++)
        if (group->candidates[i].ms <= ms)
            return i;
    return -1;
}

/* Returns whether nothing else of a group's stage and micro-batch is as fast. */
static bool is_fastest(const groups_t *groups, const fit_group_t *group)
{
    double ms = fastest_of(group);
    for (const fit_group_t *g = groups->all; g < groups->all + groups->n; g++)
        if (g != group && g->choice.stage == group->choice.stage &&
            g->choice.micro_batch == group->choice.micro_batch && fastest_of(g) <= ms)
            return false;
    return true;
}

/* Returns the group that has the simplest of all candidates within so much time; NULL: there is none. */
static const fit_group_t *simplest_group(const groups_t *groups, double ms)
{
    const fit_group_t *simplest = NULL;
    fit_choice_t best = {0};
    for (const fit_group_t *g = groups->all; g < groups->all + groups->n; g++) {
        int at = simplest_within(g, ms);
        if (at < 0 || isinf(g->candidates[at].ms))
            continue;
        fit_choice_t choice = fit_candidate_choice(g, at);
        if (!simplest || is_simpler(&choice, &best)) {
            simplest = g;
            best = choice;
        }
    }
    return simplest;
}

/* Adds one point for a group: its simplest candidate within FIT_TIE of its fastest, or, of the group that is chosen, of
 * all. If none fits, what takes the least. A mix is a point if it is the fastest or chosen. */
static zero_status_t add_point_of(fit_t *fit, const groups_t *groups, const fit_group_t *group, double chosen_ms,
                                  fit_result_t *result)
{
    bool is_chosen = chosen_ms > 0.0, fits = !isinf(fastest_of(group));
    fit_choice_t choice = group->choice, asked = fit_choice_of(&fit->asked);
    if (group->is_mix && !is_chosen && !(fits && is_fastest(groups, group)))
        return ZERO_OK;
    choice.offload_ratio = asked.offload_ratio;
    choice.keep = asked.keep;
    if (fits)
        choice = fit_candidate_choice(
            group, simplest_within(group, is_chosen ? chosen_ms : fastest_of(group) * (1.0 + FIT_TIE)));
    return add_point(fit, &choice, result);
}

/* Chooses the simplest of the points that take no more than `within`. They are in the order of memory. */
static void choose(fit_result_t *result, double within)
{
    double fastest = 0.0;
    result->best = -1;
    result->least = result->n_points > 0 ? 0 : -1;
    for (int i = 0; i < result->n_points; i++) {
        fit_point_t *p = &result->points[i];
        p->is_on_frontier = i == 0 || p->time.total < fastest;
        fastest = p->is_on_frontier ? p->time.total : fastest;
        if (p->fits && p->time.total <= within * (1.0 + ROUNDING) &&
            (result->best < 0 || is_simpler(&p->choice, &result->points[result->best].choice)))
            result->best = i;
    }
}

static zero_status_t solve(fit_t *fit, groups_t *groups, fit_result_t *result)
{
    double least_ms = INFINITY;
    ZERO_TRY(find_groups(fit, groups));
    for (int g = 0; g < groups->n; g++)
        least_ms = fmin(least_ms, fastest_of(&groups->all[g]));
    double within = least_ms * (1.0 + FIT_TIE);
    const fit_group_t *chosen = simplest_group(groups, within);
    for (const fit_group_t *g = groups->all; g < groups->all + groups->n; g++)
        ZERO_TRY(add_point_of(fit, groups, g, g == chosen ? within : 0.0, result));
    if (result->n_points > 0)
        qsort(result->points, (size_t)result->n_points, sizeof *result->points, by_memory);
    choose(result, within);
    return ZERO_OK;
}

/* Returns whether a is found to be faster than b, by more than so much. */
static bool is_faster(const fit_result_t *a, const fit_result_t *b, double by)
{
    return a->best >= 0 && (b->best < 0 || a->points[a->best].time.total * (1.0 + by) < b->points[b->best].time.total);
}

/* Solves anew with this in host memory. */
static zero_status_t solve_with_leaves(fit_t *fit, const options_t *asked, leaves_t leaves, groups_t *groups,
                                       fit_result_t *result)
{
    set_leaves(fit, asked, leaves);
    groups->n = result->n_points = 0;
    return solve(fit, groups, result);
}

/* Solves with these in host memory, and takes the result in place of *best if that is slower. */
static zero_status_t take_if_faster(fit_t *fit, const options_t *asked, leaves_t leaves, groups_t *groups,
                                    leaves_t *taken, fit_result_t *best)
{
    fit_result_t tried = {.best = -1, .least = -1};
    if (leaves.activations == taken->activations && leaves.params == taken->params)
        return ZERO_OK;
    zero_status_t status = solve_with_leaves(fit, asked, leaves, groups, &tried);
    if (status == ZERO_OK && is_faster(&tried, best, FIT_TIE)) {
        const fit_result_t slower = *best;
        *best = tried;
        tried = slower;
        *taken = leaves;
    }
    free(tried.points);
    return status;
}

/* Finds what is fastest if more than `least` leaves: a quarter, half, three quarters and all of what else could, of
 * parameters, and then of activations. Less than the least of one beside more of the other is not tried. */
static zero_status_t solve_with_more(fit_t *fit, const options_t *asked, leaves_t least, groups_t *groups,
                                     fit_result_t *best)
{
    const leaves_t most = most_leaves(fit, asked);
    leaves_t taken = least;
    for (int part = 1; part <= 8; part++) {
        leaves_t leaves = taken;
        if (part <= 4)
            leaves.params = least.params + (most.params - least.params) * part / 4;
        else
            leaves.activations = least.activations + (most.activations - least.activations) * (part - 4) / 4;
        ZERO_TRY(take_if_faster(fit, asked, leaves, groups, &taken, best));
    }
    return ZERO_OK;
}

/* What is predicted to be gained at least if more leaves than must: it takes pinned memory, and a longer start. */
#define LEAVING_GAINS 0.02

/* Solves with as little in host memory as fits, or, if blocks may recompute less or a micro-batch be larger, with more
 * where that is faster. */
static zero_status_t solve_offload(fit_t *fit, groups_t *groups, fit_result_t *result)
{
    const options_t asked = fit->asked;
    fit_result_t more = {.best = -1, .least = -1};
    leaves_t least;
    bool fits;
    zero_status_t status = find_least_leaves(fit, &asked, &least, &fits);
    if (status == ZERO_OK)
        status = solve_with_leaves(fit, &asked, least, groups, result);
    if (status == ZERO_OK && fits &&
        (asked.model.recompute == RECOMPUTE_AUTO || asked.train.micro_batch == MICRO_BATCH_AUTO))
        status = solve_with_more(fit, &asked, least, groups, &more);
    if (status == ZERO_OK && is_faster(&more, result, LEAVING_GAINS)) {
        free(result->points);
        *result = more;
    } else {
        free(more.points);
    }
    fit->asked = asked;
    return status;
}

/* Solves with sums of gradients where offload_grads says. */
static zero_status_t solve_with_grads(fit_t *fit, int offload_grads, fit_result_t *result)
{
    groups_t groups = {0};
    *result = (fit_result_t){.best = -1, .least = -1};
    const int asked = fit->asked.zero.offload_grads;
    fit->asked.zero.offload_grads = fit->options.zero.offload_grads = offload_grads;
    zero_status_t status = solve_offload(fit, &groups, result);
    fit->asked.zero.offload_grads = asked;
    free(groups.all);
    if (status == ZERO_OK)
        return ZERO_OK;
    free(result->points);
    *result = (fit_result_t){.best = -1, .least = -1};
    return status;
}

/* Returns whether b is better than a: it fits and a does not, or neither does and it takes less. */
static bool takes_less(const fit_result_t *a, const fit_result_t *b)
{
    if (a->best >= 0 || b->best >= 0 || a->least < 0 || b->least < 0)
        return a->best < 0 && b->best >= 0;
    return b->points[b->least].bytes < a->points[a->least].bytes;
}

/* offload_grads = auto: sums of gradients leave only if nothing fits with them on the device. */
zero_status_t fit_solve_with(fit_t *fit, bool keep_attention, fit_result_t *result)
{
    const int grads = fit->asked.zero.offload_grads;
    const bool is_open = fit_sums_may_leave(fit, grads);
    fit_result_t on_host;
    fit->asked.model.keep_attention = fit->options.model.keep_attention = keep_attention;
    ZERO_TRY(solve_with_grads(fit, is_open ? ZERO_OFFLOAD_GRADS_DEVICE : grads, result));
    if (!is_open || result->best >= 0)
        return ZERO_OK;
    zero_status_t status = solve_with_grads(fit, ZERO_OFFLOAD_GRADS_HOST, &on_host);
    const bool is_better = status != ZERO_OK || takes_less(result, &on_host);
    free(is_better ? result->points : on_host.points);
    if (is_better)
        *result = on_host;
    return status;
}

/* With recompute = auto, blocks of long sequences may keep what attention gives even if they recompute all else. Of
 * short ones that saves little. */
#define LONG_SEQUENCE 16384

bool fit_may_keep_attention(const fit_t *fit)
{
    const model_options_t *model = &fit->asked.model;
    return !model->keep_attention && model->recompute == RECOMPUTE_AUTO && fit->machine.rates.is_gpu &&
           model->seq_len >= LONG_SEQUENCE;
}

zero_status_t fit_solve(fit_t *fit, fit_result_t *result)
{
    const bool asked = fit->asked.model.keep_attention;
    fit_result_t kept;
    ZERO_TRY(fit_solve_with(fit, asked, result));
    if (!fit_may_keep_attention(fit))
        return ZERO_OK;
    zero_status_t status = fit_solve_with(fit, true, &kept);
    fit->asked.model.keep_attention = fit->options.model.keep_attention = asked;
    const bool takes_kept = status == ZERO_OK && is_faster(&kept, result, FIT_TIE);
    free(takes_kept || status != ZERO_OK ? result->points : kept.points);
    if (takes_kept || status != ZERO_OK)
        *result = kept;
    return status;
}
