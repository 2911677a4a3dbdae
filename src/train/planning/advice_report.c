/* advice_report.c - the text of advice: see advice.h. */
#include <inttypes.h>
#include <stdio.h>

#include "train/planning/advice.h"
#include "train/planning/show_fit.h"
#include "train/report/report.h"

/* Writes changes as options of the command line: "--set model.recompute=light". global_batch: of a step with them. */
static void describe_changes(const fit_t *fit, const fit_advised_t *advised, int64_t global_batch, char *text,
                             size_t n_bytes)
{
    const options_t *o = &fit->asked;
    const fit_choice_t *c = &advised->named;
    const unsigned changes = advised->changes;
    const bool sets_global = (global_batch != o->train.global_batch && o->train.asked_global > 0) ||
                             (changes & FIT_CHANGES_SEQUENCES && o->train.asked_global == 0);
    size_t n = 0;
    text[0] = 0;
#define APPEND(...) n += n < n_bytes ? (size_t)snprintf(text + n, n_bytes - n, __VA_ARGS__) : 0
    if (changes & FIT_CHANGES_STAGE)
        APPEND(" --set zero.stage=%d", c->stage);
    if (changes & FIT_CHANGES_RECOMPUTE)
        APPEND(" --set model.recompute=%s", fit_recompute_setting(c));
    if (changes & FIT_CHANGES_KEEP_ATTENTION)
        APPEND(" --set model.keep_attention=%s", c->keep_attention ? "true" : "false");
    if (changes & FIT_CHANGES_ACTIVATIONS)
        APPEND(" --set model.offload_activations=auto");
    if (changes & FIT_CHANGES_SEQUENCES)
        APPEND(" --set train.sequence_ranks=%" PRId64, advised->sequence_ranks);
    if (changes & FIT_CHANGES_MICRO_BATCH)
        APPEND(" --set train.micro_batch=%" PRId64, c->micro_batch);
    if (changes & FIT_CHANGES_MICRO_BATCH || sets_global)
        APPEND(" --set train.global_batch=%" PRId64, global_batch);
    if (changes & FIT_CHANGES_KEEP)
        APPEND(" --set zero.keep=%" PRId64, c->keep);
    if (changes & FIT_CHANGES_OFFLOAD)
        APPEND(" --set zero.offload=%s --set zero.offload_ratio=auto",
               changes & FIT_CHANGES_OFFLOAD_PARAMS ? "all" : "optimizer");
    if (changes & FIT_CHANGES_OFFLOAD_PARAMS)
        APPEND(" --set zero.offload_params_ratio=auto");
    if (changes & FIT_CHANGES_UPDATE)
        APPEND(" --set zero.update=backward");
    if (changes & FIT_CHANGES_CLIP)
        APPEND(" --set train.grad_clip=0");
    if (changes & FIT_CHANGES_OPTIMIZER)
        APPEND(" --set train.optimizer=adamw8bit");
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

/* what: the beginning of the line. */
static void report_advised(const fit_t *fit, const fit_point_t *given, const char *what, const fit_advised_t *advised)
{
    const fit_point_t *p = &advised->point;
    const fit_unit_t unit = fit_unit_of(given->bytes);
    char changes[512];
    describe_changes(fit, advised, fit->asked.train.global_batch, changes, sizeof changes);
    report("%s%s: %.2f %s, predicted %.4g ms a step (%+.1f%%)", what, changes, (double)p->bytes / unit.bytes, unit.name,
           p->time.total, 100.0 * (p->time.total / given->time.total - 1.0));
}

static void report_ranks(const fit_t *fit, const fit_point_t *given, const fit_advice_t *advice, const char *what)
{
    const fit_point_t *p = &advice->on_ranks.point;
    const fit_unit_t unit = fit_unit_of(given->bytes);
    const int64_t global_batch = fit->asked.train.global_batch * (advice->n_ranks / fit->machine.n_ranks);
    char changes[512];
    describe_changes(fit, &advice->on_ranks, global_batch, changes, sizeof changes);
    report("%s %d ranks%s%s: %.2f %s each, predicted %.4g ms a step of %" PRId64 " sequences", what, advice->n_ranks,
           changes[0] ? " with" : "", changes, (double)p->bytes / unit.bytes, unit.name, p->time.total, global_batch);
}

zero_status_t fit_refuse(const fit_t *fit, const fit_point_t *given)
{
    static const char first[] = "what would fit:", next[] = "or";
    fit_advice_t advice = {0};
    fit_unit_t unit = fit_unit_of(given->bytes);
    const bool is_forward_only = options_are_forward_only(&fit->asked);
    if (!is_forward_only) /* most that can change does nothing there */
        ZERO_TRY(fit_advise(fit, given, &advice));
    report("this does not fit; each rank would hold");
    fit_report_memory(&given->memory, false);
    for (int i = 0; i < advice.n_points; i++)
        report_advised(fit, given, i == 0 ? first : next, &advice.points[i]);
    int n_changes = advice.n_points;
    if (advice.other.changes)
        report_advised(fit, given, n_changes++ == 0 ? "what would fit, with other results:" : "or, with other results:",
                       &advice.other);
    if (advice.n_ranks > 0)
        report_ranks(fit, given, &advice, n_changes++ == 0 ? first : next);
    char host[200] = "";
    if (given->memory.pinned_bytes > fit->host_budget)
        snprintf(host, sizeof host,
                 ", and of host memory %.2f %s, of which each rank may take %.2f ([zero] offload_ram, or what is free)",
                 (double)given->memory.pinned_bytes / unit.bytes, unit.name, (double)fit->host_budget / unit.bytes);
    return report_error(ZERO_ERROR_MEMORY, "the plan needs %.2f %s and %.2f %s may be used%s: %s",
                        (double)given->bytes / unit.bytes, unit.name, (double)fit->budget / unit.bytes, unit.name, host,
                        n_changes > 1     ? "take one of these changes, or a smaller model"
                        : n_changes == 1  ? "take this change, or a smaller model"
                        : is_forward_only ? "take more ranks at stage 3, a smaller micro_batch or model, or shorter "
                                            "sequences"
                                          : "take a smaller model or shorter sequences");
}
