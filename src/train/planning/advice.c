/* advice.c - see advice.h. The solver (solve.h) tries every stage, recomputation and micro-batch; it is asked once for
 * each variant of the other settings with which anything fits at all, which is found out much faster.
 */
#include "train/planning/advice.h"

#include <stdlib.h>

#include "train/options/families.h"
#include "train/planning/auto_settings.h"
#include "train/report/report.h"

#define MOST_RANKS 1024
#define SIMPLER 0.02 /* fewer changes are better advice if they take no more than this share longer */

/* ---- variants ---- */

/* Settings that the solver does not try, as they could be. */
typedef struct variant {
    int offload; /* options_offload_t */
    bool without_keep, in_backward, in_8_bits;
    bool activations; /* offload_activations = auto */
    bool sequences;   /* sequence_ranks = auto */
} variant_t;

static bool offloads_more(const fit_t *fit, const variant_t *v)
{
    return v->offload > fit->asked.zero.offload;
}

/* Returns whether more is in host memory than is given. */
static bool takes_more_of_host(const fit_t *fit, const variant_t *v)
{
    return offloads_more(fit, v) || v->activations;
}

/* A block of moments that share a scale lies in one tensor: libzero's plan refuses sizes with which it does not. */
static bool may_be_in_8_bits(const options_t *o)
{
    enum { BLOCK = 256 };
    const int64_t head_dim = options_head_dim(&o->model), q = o->model.heads * head_dim;
    const bool has_bias = o->model.qkv_bias || families[o->model.arch].has_qkv_bias;
    return o->train.optimizer == ZERO_OPTIMIZER_ADAMW && o->lora.rank == 0 && o->model.dim % BLOCK == 0 &&
           (!has_bias || (q % BLOCK == 0 && o->model.kv_heads * head_dim % BLOCK == 0)) &&
           (!o->model.mlp_bias || o->model.ffn_dim % BLOCK == 0);
}

/* Returns whether the variant is another than all others that are tried, and its settings allow each other. */
static bool is_possible(const fit_t *fit, const variant_t *v)
{
    const options_t *o = &fit->asked;
    const bool offloads = v->offload != OFFLOAD_NONE,
               updates_on_host = o->zero.offload_update == ZERO_OFFLOAD_UPDATE_HOST;
    if (offloads_more(fit, v) &&
        (!fit->machine.rates.is_gpu || (v->offload == OFFLOAD_ALL && o->zero.gather == GATHER_FP8)))
        return false;
    if (v->offload < o->zero.offload || (v->without_keep && o->zero.keep <= 0))
        return false;
    if (v->in_backward && (o->zero.update == ZERO_UPDATE_IN_BACKWARD || o->train.optimizer == ZERO_OPTIMIZER_MUON ||
                           o->train.precision == ZERO_FP16 || (offloads && updates_on_host)))
        return false;
    if (v->activations && (!fit->machine.rates.is_gpu || o->model.offload_activations != 0.0))
        return false;
    if (v->sequences && (fit->machine.n_ranks == 1 || o->train.sequence_ranks > 1 || v->in_8_bits || v->in_backward))
        return false;
    return !v->in_8_bits || may_be_in_8_bits(o);
}

static options_t options_of(const fit_t *fit, const variant_t *v)
{
    options_t o = fit->asked;
    o.zero.stage = STAGE_AUTO;
    o.model.recompute = RECOMPUTE_AUTO;
    o.model.offload_activations = v->activations ? (double)ZERO_OFFLOAD_AUTO : o.model.offload_activations;
    o.model.keep_attention = false; /* solve_variant tries both */
    o.train.micro_batch = MICRO_BATCH_AUTO;
    o.zero.keep = v->without_keep ? 0 : o.zero.keep;
    if (offloads_more(fit, v)) {
        o.zero.offload = v->offload;
        o.zero.offload_ratio = o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
    }
    if (v->in_backward) {
        o.zero.update = ZERO_UPDATE_IN_BACKWARD;
        o.train.grad_clip = 0.0;
    }
    if (v->in_8_bits)
        o.train.optimizer = ZERO_OPTIMIZER_ADAMW8BIT;
    if (v->sequences) { /* with as many of them in a step */
        o.train.asked_sequence = SEQUENCE_RANKS_AUTO;
        o.train.asked_micro = MICRO_BATCH_AUTO;
        o.train.asked_global = o.train.global_batch;
    }
    return o;
}

/* Returns what of the variant's settings and a choice is not as it was given. What was left auto is no change. */
static unsigned changes_of(const fit_t *fit, const variant_t *v, const fit_choice_t *given, const fit_choice_t *c)
{
    const options_t *o = &fit->asked;
    const bool has_ratio = o->zero.offload != OFFLOAD_NONE && o->zero.offload_ratio != (double)ZERO_OFFLOAD_AUTO;
    const double ratio = has_ratio ? o->zero.offload_ratio : 0.0; /* of which less may be found to be enough */
    const bool offloads = offloads_more(fit, v) && (c->offload_ratio != ratio || c->params_ratio > 0.0);
    const bool is_given = o->model.recompute != RECOMPUTE_AUTO;
    /* With recompute = auto the solver may choose to keep what attention gives, but not to drop it. */
    const bool sets_attention = is_given || (o->model.keep_attention && c->recompute == RECOMPUTE_FULL);
    const bool recomputes = c->recompute != given->recompute || c->none != given->none || c->light != given->light;
    return (c->stage != given->stage && o->zero.stage != STAGE_AUTO ? FIT_CHANGES_STAGE : 0u) |
           (recomputes && is_given ? FIT_CHANGES_RECOMPUTE : 0u) |
           (c->keep_attention != o->model.keep_attention && sets_attention ? FIT_CHANGES_KEEP_ATTENTION : 0u) |
           (c->micro_batch != given->micro_batch && o->train.micro_batch != MICRO_BATCH_AUTO ? FIT_CHANGES_MICRO_BATCH
                                                                                             : 0u) |
           (c->keep != given->keep && o->zero.keep != ZERO_KEEP_AUTO ? FIT_CHANGES_KEEP : 0u) |
           (offloads ? FIT_CHANGES_OFFLOAD : 0u) |
           (offloads && c->params_ratio > 0.0 ? FIT_CHANGES_OFFLOAD_PARAMS : 0u) |
           (v->in_backward ? FIT_CHANGES_UPDATE : 0u) |
           (v->in_backward && o->train.grad_clip != 0.0 ? FIT_CHANGES_CLIP : 0u) |
           (v->in_8_bits ? FIT_CHANGES_OPTIMIZER : 0u) |
           (v->activations && c->activations > 0.0 ? FIT_CHANGES_ACTIVATIONS : 0u) |
           (v->sequences ? FIT_CHANGES_SEQUENCES : 0u);
}

/* ---- candidates ---- */

typedef struct candidates {
    fit_advised_t *all;
    int n;
} candidates_t;

static zero_status_t add_candidates(const fit_t *fit, const variant_t *v, int64_t sequence_ranks,
                                    const fit_choice_t *given, const fit_result_t *result, candidates_t *candidates)
{
    fit_advised_t *grown = realloc(candidates->all, (size_t)(candidates->n + result->n_points + 1) * sizeof *grown);
    bool has_smaller = false;
    if (!grown)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for advice");
    candidates->all = grown;
    for (int i = 0; i < result->n_points; i++)
        has_smaller =
            has_smaller || (result->points[i].fits && result->points[i].choice.micro_batch <= given->micro_batch);
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        /* A larger micro-batch is no way out, unless fewer micro-steps spare gradients. */
        if (p->fits && (p->choice.micro_batch <= given->micro_batch || !has_smaller || offloads_more(fit, v)))
            grown[candidates->n++] =
                (fit_advised_t){*p, changes_of(fit, v, given, &p->choice), p->choice, sequence_ranks};
    }
    return ZERO_OK;
}

/* Adds the choices that fit, without keep_attention and, if it is asked for or may be chosen, with it. */
static zero_status_t solve_variant(const fit_t *fit, fit_t *other, const variant_t *v, const fit_choice_t *given,
                                   candidates_t *candidates)
{
    const int n_ways = fit->asked.model.keep_attention || fit_may_keep_attention(other) ? 2 : 1;
    zero_status_t status = ZERO_OK;
    for (int way = 0; way < n_ways && status == ZERO_OK; way++) {
        fit_result_t result;
        status = fit_solve_with(other, way == 1, &result);
        if (status == ZERO_OK)
            status = add_candidates(fit, v, other->asked.train.sequence_ranks, given, &result, candidates);
        free(result.points);
    }
    return status;
}

/* Adds the choices of a variant that fit, on this machine. */
static zero_status_t collect(const fit_t *fit, const fit_machine_t *machine, const options_t *of, const variant_t *v,
                             const fit_choice_t *given, candidates_t *candidates)
{
    fit_t *other;
    options_t o = *of;
    bool fits;
    if (v->sequences) {
        ZERO_TRY(fit_choose_sequence_ranks(&o, machine, fit->budget));
        if (o.train.sequence_ranks == 1)
            return ZERO_OK;
    }
    ZERO_TRY(fit_create(&o, machine, fit->budget, &other));
    other->options.device.type = fit->options.device.type;
    zero_status_t status = fit_find_whether_any_fits(other, &fits);
    if (status == ZERO_OK && fits)
        status = solve_variant(fit, other, v, given, candidates);
    fit_destroy(other);
    return status;
}

/* Tries all variants that change the results, or all that do not; more_offload: with more in host memory than is given.
 */
static zero_status_t collect_all(const fit_t *fit, const fit_choice_t *given, bool change_results, bool more_offload,
                                 candidates_t *candidates)
{
    enum { KEEP = 1, BACKWARD = 2, IN_8_BITS = 4, ACTIVATIONS = 8, SEQUENCES = 16, N_SETS = 32 };
    for (int i = 0; i < 3 * N_SETS; i++) {
        const variant_t v = {.offload = i / N_SETS,
                             .without_keep = (i & KEEP) != 0,
                             .in_backward = (i & BACKWARD) != 0,
                             .in_8_bits = (i & IN_8_BITS) != 0,
                             .activations = (i & ACTIVATIONS) != 0,
                             .sequences = (i & SEQUENCES) != 0};
        const bool changes_results = v.in_8_bits || v.sequences || (v.in_backward && fit->asked.train.grad_clip != 0.0);
        if (!is_possible(fit, &v) || changes_results != change_results || takes_more_of_host(fit, &v) != more_offload)
            continue;
        const options_t o = options_of(fit, &v);
        ZERO_TRY(collect(fit, &fit->machine, &o, &v, given, candidates));
    }
    return ZERO_OK;
}

/* ---- as a run does it ---- */

/* Returns the options with what is advised, as they are copied to the command line. */
static options_t options_with(const options_t *asked, const fit_advised_t *advised)
{
    options_t o = *asked;
    const fit_choice_t *c = &advised->named;
    const unsigned changes = advised->changes;
    if (changes & FIT_CHANGES_STAGE)
        o.zero.stage = c->stage;
    if (changes & FIT_CHANGES_RECOMPUTE)
        o.model.recompute = fit_is_mixed(c) ? RECOMPUTE_AUTO : c->recompute;
    if (changes & FIT_CHANGES_KEEP_ATTENTION)
        o.model.keep_attention = c->keep_attention;
    if (changes & FIT_CHANGES_ACTIVATIONS)
        o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    if (changes & FIT_CHANGES_SEQUENCES)
        o.train.sequence_ranks = advised->sequence_ranks;
    if (changes & FIT_CHANGES_MICRO_BATCH)
        o.train.micro_batch = c->micro_batch;
    if (changes & FIT_CHANGES_KEEP)
        o.zero.keep = c->keep;
    if (changes & FIT_CHANGES_OFFLOAD) {
        o.zero.offload = changes & FIT_CHANGES_OFFLOAD_PARAMS ? OFFLOAD_ALL : OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    }
    if (changes & FIT_CHANGES_OFFLOAD_PARAMS)
        o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
    if (changes & FIT_CHANGES_UPDATE)
        o.zero.update = ZERO_UPDATE_IN_BACKWARD;
    if (changes & FIT_CHANGES_CLIP)
        o.train.grad_clip = 0.0;
    if (changes & FIT_CHANGES_OPTIMIZER)
        o.train.optimizer = ZERO_OPTIMIZER_ADAMW8BIT;
    return o;
}

/* Sets what is promised to what a run with these options takes: of what they leave auto it may choose something else
 * than the candidate, and faster or simpler. The point does not fit if no choice does. */
static zero_status_t promise(const fit_t *fit, const fit_machine_t *machine, const options_t *asked,
                             fit_advised_t *advised)
{
    const options_t o = options_with(asked, advised);
    fit_result_t result = {0};
    fit_t *other;
    ZERO_TRY(fit_create(&o, machine, fit->budget, &other));
    other->options.device.type = fit->options.device.type;
    zero_status_t status = fit_solve(other, &result);
    if (status == ZERO_OK)
        advised->point = result.best >= 0 ? result.points[result.best] : (fit_point_t){0};
    free(result.points);
    fit_destroy(other);
    return status;
}

/* ---- the pick ---- */

static int n_bits(unsigned changes)
{
    int n = 0;
    for (; changes; changes &= changes - 1)
        n++;
    return n;
}

static int by_time(const void *a, const void *b)
{
    const fit_advised_t *p = a, *q = b;
    if (p->point.time.total != q->point.time.total)
        return p->point.time.total < q->point.time.total ? -1 : 1;
    return n_bits(p->changes) - n_bits(q->changes);
}

/* Returns the candidate of fewest changes, the fastest of these; NULL: there is none. They are in the order of time. */
static const fit_advised_t *fewest_changes(const candidates_t *candidates)
{
    const fit_advised_t *fewest = NULL;
    for (int i = 0; i < candidates->n; i++)
        if (!fewest || n_bits(candidates->all[i].changes) < n_bits(fewest->changes))
            fewest = &candidates->all[i];
    return fewest;
}

/* Returns whether a changes less than b and takes hardly more time. */
static bool is_better(const fit_advised_t *a, const fit_advised_t *b)
{
    const bool changes_less = a->changes != b->changes && (a->changes & b->changes) == a->changes;
    return changes_less && a->point.time.total <= (1.0 + SIMPLER) * b->point.time.total;
}

static bool is_needless(const candidates_t *candidates, const fit_advised_t *c)
{
    for (int j = 0; j < candidates->n; j++)
        if (is_better(&candidates->all[j], c))
            return true;
    return false;
}

static bool is_same_run(const fit_advised_t *a, const fit_advised_t *b)
{
    return a->point.bytes == b->point.bytes && a->point.time.total == b->point.time.total;
}

/* Adds an advice, unless that of another starts the same run or is better; then the one with fewer changes stays. */
static void add_advice(const fit_advised_t *advised, fit_advice_t *advice)
{
    int n = 0;
    for (int i = 0; i < advice->n_points; i++) {
        const fit_advised_t *p = &advice->points[i];
        if (is_better(p, advised) || (is_same_run(p, advised) && n_bits(p->changes) <= n_bits(advised->changes)))
            return;
    }
    for (int i = 0; i < advice->n_points; i++) {
        const fit_advised_t p = advice->points[i];
        if (!is_better(advised, &p) && !is_same_run(&p, advised))
            advice->points[n++] = p;
    }
    advice->points[n] = *advised;
    advice->n_points = n + 1;
}

static void sort(candidates_t *candidates)
{
    if (candidates->n > 0)
        qsort(candidates->all, (size_t)candidates->n, sizeof *candidates->all, by_time);
}

/* Takes the fastest of each set of changes. The last is the one of fewest, if none before it has as few. */
static zero_status_t pick(const fit_t *fit, const candidates_t *candidates, fit_advice_t *advice)
{
    const fit_advised_t *fewest = fewest_changes(candidates);
    bool has_fewest = false, tried[1u << FIT_N_CHANGES] = {false};
    for (int i = 0; i < candidates->n && advice->n_points < FIT_MOST_ADVICE; i++) {
        fit_advised_t c = candidates->all[i];
        if (tried[c.changes] || is_needless(candidates, &c) ||
            (advice->n_points + 1 == FIT_MOST_ADVICE && !has_fewest && c.changes != fewest->changes))
            continue;
        has_fewest = has_fewest || c.changes == fewest->changes;
        tried[c.changes] = true;
        ZERO_TRY(promise(fit, &fit->machine, &fit->asked, &c));
        if (c.point.fits)
            add_advice(&c, advice);
    }
    sort(&(candidates_t){advice->points, advice->n_points});
    return ZERO_OK;
}

/* ---- more ranks ---- */

/* Returns the options on n times the ranks, with as much work for each. */
static options_t on_ranks(const options_t *o, int n, fit_machine_t *machine)
{
    options_t more = *o;
    machine->n_ranks *= n;
    more.train.global_batch *= n;
    return more;
}

/* Finds whether anything fits on n times the ranks. */
static zero_status_t find_whether_fits(const fit_t *fit, int n, bool *fits)
{
    const variant_t least = {.offload = fit->asked.zero.offload, .without_keep = fit->asked.zero.keep > 0};
    const options_t o = options_of(fit, &least);
    fit_machine_t machine = fit->machine;
    const options_t more = on_ranks(&o, n, &machine);
    fit_t *other;
    ZERO_TRY(fit_create(&more, &machine, fit->budget, &other));
    other->options.device.type = fit->options.device.type;
    zero_status_t status = fit_find_whether_any_fits(other, fits);
    fit_destroy(other);
    return status;
}

/* Finds the least number of times the ranks with which anything fits; 0: none. One after the other, since padding of
 * shards depends on the number, unless not even the most are enough. */
static zero_status_t find_times(const fit_t *fit, int *times)
{
    const bool is_ordered = fit->machine.rates.is_gpu && fit->asked.zero.reduction != REDUCTION_NCCL;
    const int most = (is_ordered ? FIT_MOST_ORDERED_GPUS : MOST_RANKS) / fit->machine.n_ranks;
    bool fits = false;
    *times = 0;
    if (most > 1)
        ZERO_TRY(find_whether_fits(fit, most, &fits));
    if (!fits)
        return ZERO_OK;
    fits = false;
    for (int n = 2; n <= most && !fits; n++) {
        ZERO_TRY(find_whether_fits(fit, n, &fits));
        *times = n;
    }
    return ZERO_OK;
}

/* Finds what changes least on n times the ranks: nothing, if the given choice fits there. */
static zero_status_t find_on_ranks(const fit_t *fit, const fit_choice_t *given, int n, fit_advice_t *advice)
{
    candidates_t candidates = {0};
    fit_machine_t machine = fit->machine;
    options_t as_given = on_ranks(&fit->asked, n, &machine);
    fit_t *other;
    ZERO_TRY(fit_create(&as_given, &machine, fit->budget, &other));
    other->options.device.type = fit->options.device.type;
    zero_status_t status = fit_evaluate(other, given, &advice->on_ranks.point);
    fit_destroy(other);
    advice->on_ranks.changes = 0;
    for (int without_keep = 0; without_keep <= 1 && status == ZERO_OK && !advice->on_ranks.point.fits; without_keep++) {
        const variant_t v = {.offload = fit->asked.zero.offload, .without_keep = without_keep};
        fit_machine_t larger = fit->machine;
        const options_t o = options_of(fit, &v), more = on_ranks(&o, n, &larger);
        if (is_possible(fit, &v))
            status = collect(fit, &larger, &more, &v, given, &candidates);
    }
    sort(&candidates);
    if (candidates.n > 0)
        advice->on_ranks = *fewest_changes(&candidates);
    bool is_needed = status == ZERO_OK && advice->on_ranks.point.fits;
    if (is_needed)
        status = promise(fit, &machine, &as_given, &advice->on_ranks);
    for (int i = 0; i < advice->n_points; i++)
        is_needed &= (advice->points[i].changes & ~advice->on_ranks.changes) != 0;
    advice->n_ranks = is_needed ? machine.n_ranks : 0;
    free(candidates.all);
    return status;
}

/* ---- all of it ---- */

/* Looks for one change that changes the results: first without more offload. */
static zero_status_t find_other(const fit_t *fit, const fit_choice_t *given, fit_advice_t *advice)
{
    candidates_t candidates = {0};
    zero_status_t status = collect_all(fit, given, true, false, &candidates);
    if (status == ZERO_OK && candidates.n == 0 && advice->n_points == 0)
        status = collect_all(fit, given, true, true, &candidates);
    sort(&candidates);
    if (status == ZERO_OK && candidates.n > 0) {
        advice->other = *fewest_changes(&candidates);
        status = promise(fit, &fit->machine, &fit->asked, &advice->other);
    }
    free(candidates.all);
    return status;
}

zero_status_t fit_advise(const fit_t *fit, const fit_point_t *given, fit_advice_t *advice)
{
    candidates_t candidates = {0};
    int times = 0;
    *advice = (fit_advice_t){0};
    zero_status_t status = collect_all(fit, &given->choice, false, false, &candidates);
    const bool fits_without = candidates.n > 0;
    if (status == ZERO_OK)
        status = collect_all(fit, &given->choice, false, true, &candidates);
    sort(&candidates);
    if (status == ZERO_OK)
        status = pick(fit, &candidates, advice);
    free(candidates.all);
    if (status == ZERO_OK && !fits_without)
        status = find_other(fit, &given->choice, advice);
    if (status == ZERO_OK)
        status = find_times(fit, &times);
    return status == ZERO_OK && times > 0 ? find_on_ranks(fit, &given->choice, times, advice) : status;
}
