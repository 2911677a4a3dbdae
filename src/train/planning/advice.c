/* advice.c - see advice.h. All choices are tried, as by the solver, and with and without offload and keep. */
#include "train/planning/advice.h"

#include <inttypes.h>
#include <stdlib.h>

#include "train/planning/show_fit.h"
#include "train/report/report.h"

#define MOST_RANKS 1024
#define SIMPLER 0.02 /* fewer changes are better advice if they take no more than this share longer */

enum { CHANGES_STAGE = 1, CHANGES_RECOMPUTE = 2, CHANGES_MICRO_BATCH = 4, CHANGES_OFFLOAD = 8, CHANGES_KEEP = 16 };

typedef struct candidate {
    fit_point_t point;
    unsigned changes;
} candidate_t;

typedef struct candidates {
    candidate_t *all;
    int n;
    fit_choice_t least; /* takes the least memory of what was tried without offload, though it may not fit */
    uint64_t least_bytes;
} candidates_t;

static unsigned changes_of(const fit_choice_t *a, const fit_choice_t *b, bool offloads)
{
    return (a->stage != b->stage ? CHANGES_STAGE : 0u) |
           (a->recompute != b->recompute || a->none != b->none || a->light != b->light ? CHANGES_RECOMPUTE : 0u) |
           (a->micro_batch != b->micro_batch ? CHANGES_MICRO_BATCH : 0u) | (offloads ? CHANGES_OFFLOAD : 0u) |
           (a->keep != b->keep ? CHANGES_KEEP : 0u);
}

/* Adds the choices that fit with these options. A larger micro-batch is no way out, unless fewer micro-steps spare
 * gradients that would otherwise wait on the device. */
static zero_status_t collect(const fit_t *fit, const options_t *o, const fit_choice_t *given, bool offloads,
                             candidates_t *candidates)
{
    fit_t *other;
    fit_result_t result = {0};
    ZERO_TRY(fit_create(o, &fit->machine, fit->budget, &other));
    zero_status_t status = fit_solve(other, &result);
    fit_destroy(other);
    candidate_t *grown = realloc(candidates->all, (size_t)(candidates->n + result.n_points + 1) * sizeof *grown);
    if (status == ZERO_OK && !grown)
        status = report_rank_error(ZERO_ERROR_MEMORY, "no memory for advice");
    candidates->all = grown ? grown : candidates->all;
    for (int i = 0; i < result.n_points && status == ZERO_OK; i++) {
        const fit_point_t *p = &result.points[i];
        if (!offloads && p->choice.micro_batch <= given->micro_batch && p->bytes < candidates->least_bytes) {
            candidates->least = p->choice;
            candidates->least_bytes = p->bytes;
        }
        if (p->fits && (offloads || p->choice.micro_batch <= given->micro_batch))
            candidates->all[candidates->n++] =
                (candidate_t){*p, changes_of(&p->choice, given, offloads && p->choice.offload_ratio > 0.0)};
    }
    free(result.points);
    return status;
}

/* Returns whether more can be offloaded than is. */
static bool can_offload(const fit_t *fit, int offload)
{
    return fit->machine.rates.is_gpu && offload > fit->asked.zero.offload &&
           !(offload == OFFLOAD_ALL && fit->asked.zero.gather == GATHER_FP8);
}

/* Tries what the settings leave open if stage, recomputation, micro-batch, offload and keep are free. */
static zero_status_t collect_all(const fit_t *fit, const fit_choice_t *given, candidates_t *candidates)
{
    static const int MORE[] = {OFFLOAD_OPTIMIZER, OFFLOAD_ALL};
    int n_keeps = given->keep > 0 ? 2 : 1;
    for (int without_keep = 0; without_keep < n_keeps; without_keep++)
        for (int more = -1; more < 2; more++) { /* -1: as it is given */
            options_t o = fit->asked;
            if (more >= 0 && !can_offload(fit, MORE[more]))
                continue;
            o.zero.stage = STAGE_AUTO;
            o.model.recompute = RECOMPUTE_AUTO;
            o.model.offload_activations = 0.0; /* of blocks that recompute everything */
            o.train.micro_batch = MICRO_BATCH_AUTO;
            o.zero.keep = without_keep ? 0 : o.zero.keep;
            if (more >= 0) {
                o.zero.offload = MORE[more];
                o.zero.offload_ratio = o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
            }
            ZERO_TRY(collect(fit, &o, given, more >= 0, candidates));
        }
    return ZERO_OK;
}

static int n_bits(unsigned changes)
{
    int n = 0;
    for (; changes; changes &= changes - 1)
        n++;
    return n;
}

static int by_time(const void *a, const void *b)
{
    const candidate_t *p = a, *q = b;
    if (p->point.time.total != q->point.time.total)
        return p->point.time.total < q->point.time.total ? -1 : 1;
    return n_bits(p->changes) - n_bits(q->changes);
}

/* Returns whether some choice that changes less takes hardly more time. */
static bool is_needless(const candidates_t *candidates, const candidate_t *c)
{
    for (int j = 0; j < candidates->n; j++) {
        const candidate_t *other = &candidates->all[j];
        bool changes_less = other->changes != c->changes && (other->changes & c->changes) == other->changes;
        if (changes_less && other->point.time.total <= (1.0 + SIMPLER) * c->point.time.total)
            return true;
    }
    return false;
}

/* Takes the fastest of each set of changes. */
static void pick(const candidates_t *candidates, fit_advice_t *advice)
{
    unsigned taken[FIT_MOST_ADVICE];
    for (int i = 0; i < candidates->n && advice->n_points < FIT_MOST_ADVICE; i++) {
        const candidate_t *c = &candidates->all[i];
        bool is_new = !is_needless(candidates, c);
        for (int t = 0; t < advice->n_points; t++)
            is_new &= c->changes != taken[t];
        if (!is_new)
            continue;
        taken[advice->n_points] = c->changes;
        advice->offloads[advice->n_points] = (c->changes & CHANGES_OFFLOAD) != 0;
        advice->points[advice->n_points++] = c->point;
    }
}

/* Finds how many times the ranks a choice needs, with the same work for each rank. */
static zero_status_t find_ranks(const fit_t *fit, const fit_choice_t *choice, fit_advice_t *advice)
{
    const int n_ranks = fit->machine.n_ranks;
    for (int n = 2 * n_ranks; n <= MOST_RANKS && advice->n_ranks == 0; n *= 2) {
        fit_machine_t machine = fit->machine;
        options_t o = fit->asked;
        fit_t *other;
        machine.n_ranks = n;
        o.train.global_batch *= n / n_ranks;
        ZERO_TRY(fit_create(&o, &machine, fit->budget, &other));
        zero_status_t status = fit_evaluate(other, choice, &advice->on_ranks);
        fit_destroy(other);
        ZERO_TRY(status);
        if (advice->on_ranks.fits)
            advice->n_ranks = n;
    }
    return ZERO_OK;
}

zero_status_t fit_advise(const fit_t *fit, const fit_point_t *given, fit_advice_t *advice)
{
    candidates_t candidates = {.least_bytes = UINT64_MAX};
    *advice = (fit_advice_t){0};
    zero_status_t status = collect_all(fit, &given->choice, &candidates);
    if (status == ZERO_OK) {
        if (candidates.n > 0)
            qsort(candidates.all, (size_t)candidates.n, sizeof *candidates.all, by_time);
        pick(&candidates, advice);
        status = find_ranks(fit, &given->choice, advice);
    }
    if (status == ZERO_OK && candidates.least_bytes < UINT64_MAX && advice->n_ranks != 2 * fit->machine.n_ranks) {
        fit_advice_t least = {0};
        candidates.least.stage = 3; /* on more ranks that takes least */
        status = find_ranks(fit, &candidates.least, &least);
        if (least.n_ranks > 0 && (advice->n_ranks == 0 || least.n_ranks < advice->n_ranks)) {
            advice->n_ranks = least.n_ranks;
            advice->on_ranks = least.on_ranks;
        }
    }
    free(candidates.all);
    return status;
}

/* Writes a change as options of the command line: "--set model.recompute=light". global_batch: of a step with it. */
static void describe_change(const fit_t *fit, const fit_choice_t *given, const fit_point_t *point, bool offloads,
                            int64_t global_batch, char *text, size_t n_bytes)
{
    const bool sets_global = global_batch != fit->asked.train.global_batch && fit->asked.train.asked_global > 0;
    const fit_choice_t *c = &point->choice;
    size_t n = 0;
    text[0] = 0;
#define APPEND(...) n += n < n_bytes ? (size_t)snprintf(text + n, n_bytes - n, __VA_ARGS__) : 0
    if (c->stage != given->stage)
        APPEND(" --set zero.stage=%d", c->stage);
    if (changes_of(c, given, false) & CHANGES_RECOMPUTE)
        APPEND(" --set model.recompute=%s", fit_recompute_setting(c));
    if (c->micro_batch != given->micro_batch)
        APPEND(" --set train.micro_batch=%" PRId64, c->micro_batch);
    if (c->micro_batch != given->micro_batch || sets_global)
        APPEND(" --set train.global_batch=%" PRId64, global_batch);
    if (c->keep != given->keep)
        APPEND(" --set zero.keep=%" PRId64, c->keep);
    if (offloads)
        APPEND(" --set zero.offload=%s --set zero.offload_ratio=auto", c->params_ratio > 0.0 ? "all" : "optimizer");
    if (offloads && c->params_ratio > 0.0)
        APPEND(" --set zero.offload_params_ratio=auto");
#undef APPEND
}

void fit_report_memory(const zero_memory_t *memory, bool is_own)
{
    fit_unit_t unit = fit_unit_of(zero_memory_total(memory));
    enum { TOTAL = ZERO_MEMORY_N_CATEGORIES, PINNED };
    for (int c = 0; c <= (memory->pinned_bytes > 0 ? PINNED : TOTAL); c++) {
        const char *name = c == PINNED  ? "pinned host memory"
                           : c == TOTAL ? "total"
                                        : zero_memory_name((zero_memory_category_t)c);
        double bytes = (double)(c == PINNED  ? memory->pinned_bytes
                                : c == TOTAL ? zero_memory_total(memory)
                                             : memory->bytes[c]);
        if (is_own)
            report_rank_error(ZERO_ERROR_MEMORY, "  %-21s %9.2f %s", name, bytes / unit.bytes, unit.name);
        else
            report("  %-21s %9.2f %s", name, bytes / unit.bytes, unit.name);
    }
}

static void report_ranks(const fit_t *fit, const fit_point_t *given, const fit_advice_t *advice, fit_unit_t unit)
{
    const fit_point_t *p = &advice->on_ranks;
    const int64_t global_batch = fit->asked.train.global_batch * advice->n_ranks / fit->machine.n_ranks;
    char change[512];
    describe_change(fit, &given->choice, p, false, global_batch, change, sizeof change);
    report("%s %d ranks%s%s: %.2f %s each, predicted %.4g ms a step of %" PRId64 " sequences",
           advice->n_points == 0 ? "what would fit:" : "or", advice->n_ranks, change[0] ? " with" : "", change,
           (double)p->bytes / unit.bytes, unit.name, p->time.total, global_batch);
}

zero_status_t fit_refuse(const fit_t *fit, const fit_point_t *given)
{
    fit_advice_t advice;
    char change[512];
    fit_unit_t unit = fit_unit_of(given->bytes);
    ZERO_TRY(fit_advise(fit, given, &advice));
    report("this does not fit; each rank would hold");
    fit_report_memory(&given->memory, false);
    for (int i = 0; i < advice.n_points; i++) {
        const fit_point_t *p = &advice.points[i];
        describe_change(fit, &given->choice, p, advice.offloads[i], fit->asked.train.global_batch, change,
                        sizeof change);
        report("%s%s: %.2f %s, predicted %.4g ms a step (%+.1f%%)", i == 0 ? "what would fit:" : "or", change,
               (double)p->bytes / unit.bytes, unit.name, p->time.total,
               100.0 * (p->time.total / given->time.total - 1.0));
    }
    if (advice.n_ranks > 0)
        report_ranks(fit, given, &advice, unit);
    const int n_changes = advice.n_points + (advice.n_ranks > 0);
    char host[200] = "";
    if (given->memory.pinned_bytes > fit->host_budget)
        snprintf(host, sizeof host,
                 ", and of host memory %.2f %s, of which each rank may take %.2f ([zero] offload_ram, or what is free)",
                 (double)given->memory.pinned_bytes / unit.bytes, unit.name, (double)fit->host_budget / unit.bytes);
    return report_error(ZERO_ERROR_MEMORY, "the plan needs %.2f %s and %.2f %s may be used%s: %s",
                        (double)given->bytes / unit.bytes, unit.name, (double)fit->budget / unit.bytes, unit.name, host,
                        n_changes > 1    ? "take one of these changes, or a smaller model"
                        : n_changes == 1 ? "take this change, or a smaller model"
                                         : "take a smaller model or shorter sequences");
}
