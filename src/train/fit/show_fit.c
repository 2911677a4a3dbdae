/* show_fit.c - see show_fit.h; fit_json.c has the JSON. */
#include "train/fit/show_fit.h"

#define BAR_LENGTH 40
static const char BAR[BAR_LENGTH + 1] = "########################################";

const char *fit_recompute_name(int recompute)
{
    static const char *const NAMES[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_LIGHT] = "light", [RECOMPUTE_FULL] = "full", [RECOMPUTE_AUTO] = "auto"};
    return NAMES[recompute];
}

fit_unit_t fit_unit_of(uint64_t largest)
{
    return largest < (uint64_t)1 << 30 ? (fit_unit_t){"MiB", 0x1p20} : (fit_unit_t){"GiB", 0x1p30};
}

double fit_tokens_per_s(const fit_t *fit, const fit_point_t *point)
{
    return (double)(fit->asked.train.global_batch * fit->asked.model.seq_len) / point->time.total * 1e3;
}

/* Prints bytes by category with a bar each, and their total. */
static void print_memory(FILE *file, const zero_memory_t *memory)
{
    double total = (double)zero_memory_total(memory);
    fit_unit_t unit = fit_unit_of(zero_memory_total(memory));
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++) {
        double bytes = (double)memory->bytes[c];
        int length = (int)(BAR_LENGTH * bytes / total + 0.5);
        fprintf(file, "%-21s %9.2f %s%s%.*s\n", zero_memory_name((zero_memory_category_t)c), bytes / unit.bytes,
                unit.name, length > 0 ? "  " : "", length, BAR);
    }
    fprintf(file, "%-21s %9.2f %s\n", "total", total / unit.bytes, unit.name);
    if (memory->pinned_bytes > 0)
        fprintf(file, "%-21s %9.2f %s\n", "pinned host memory", (double)memory->pinned_bytes / unit.bytes, unit.name);
}

static void print_machine(FILE *file, const fit_report_t *report)
{
    const fit_t *fit = report->fit;
    const options_t *o = &fit->asked;
    const char *devices = fit->machine.rates.is_gpu ? "GPU" : "rank";
    fprintf(file, "%s of %.2fM parameters, %s%s, on %d %s%s (%s)\n", fit->model.ops->name,
            (double)zero_model_n_params(fit->model.declaration) * 1e-6,
            zero_dtype_name((zero_dtype_t)o->train.precision), o->train.fp8 == FP8_NONE ? "" : " and fp8",
            fit->machine.n_ranks, devices, fit->machine.n_ranks == 1 ? "" : "s", fit->machine.rates.title);
    if (fit->machine.n_ranks > fit->machine.ranks_per_host)
        fprintf(file, "%d of them to a host; between hosts %.0f GB/s for each is assumed\n",
                fit->machine.ranks_per_host, fit->machine.rates.network * 1e-9);
    fprintf(file, "a plan may take %.2f of a %s's %.2f GiB\n", (double)fit->budget / 0x1p30, devices,
            (double)report->available / 0x1p30);
    if (o->zero.offload == OFFLOAD_OPTIMIZER && fit->machine.rates.is_gpu) {
        if (fit->host_budget == FIT_HOST_UNKNOWN)
            fprintf(file, "and any host memory for offload: say what a host has with --host-memory SIZE\n");
        else
            fprintf(file, "and %.2f GiB of host memory for offload\n", (double)fit->host_budget / 0x1p30);
    }
    fprintf(file, "a step: %lld sequences of %lld tokens\n\n", (long long)o->train.global_batch,
            (long long)o->model.seq_len);
}

/* Writes "light", or "20+8+4": so many blocks full, then light, then none. */
static void describe_recompute(const fit_t *fit, const fit_choice_t *c, char *text, size_t n_bytes)
{
    int64_t layers = fit->asked.model.layers, none = c->none < layers ? c->none : layers, full = 0;
    int64_t light = c->recompute == RECOMPUTE_LIGHT ? layers - none : c->light;
    full = layers - none - light;
    if (!fit_is_mixed(c) || c->recompute == RECOMPUTE_NONE)
        snprintf(text, n_bytes, "%s", fit_recompute_name(c->recompute));
    else
        snprintf(text, n_bytes, "%lld+%lld+%lld", (long long)full, (long long)light, (long long)none);
}

static void print_point(FILE *file, const fit_t *fit, const fit_point_t *p, char mark)
{
    fit_unit_t unit = fit_unit_of(p->bytes);
    char recompute[64];
    describe_recompute(fit, &p->choice, recompute, sizeof recompute);
    fprintf(file, "%c %8.2f %s %10.1f ms %10.0f %6d %9s %11lld %9d", mark, (double)p->bytes / unit.bytes, unit.name,
            p->time.total, fit_tokens_per_s(fit, p), p->choice.stage, recompute, (long long)p->choice.micro_batch,
            (int)(fit->asked.train.global_batch / (p->choice.micro_batch * fit->machine.n_ranks)));
    if (fit->asked.zero.offload == OFFLOAD_OPTIMIZER)
        fprintf(file, " %8.2f", p->choice.offload_ratio);
    if (fit->asked.zero.keep != 0)
        fprintf(file, " %5lld", (long long)p->choice.keep);
    fprintf(file, "\n");
}

/* The frontier, and the chosen row, which may be a tie's. */
static void print_points(FILE *file, const fit_report_t *report)
{
    const fit_t *fit = report->fit;
    const fit_result_t *result = report->result;
    bool has_mix = false;
    fprintf(file, "  %12s %13s %10s %6s %9s %11s %9s%s%s\n", "memory", "a step", "tokens/s", "stage", "recompute",
            "micro-batch", "per step", fit->asked.zero.offload == OFFLOAD_OPTIMIZER ? "  offload" : "",
            fit->asked.zero.keep != 0 ? "  keep" : "");
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        if (p->is_on_frontier || i == result->best) {
            has_mix |= fit_is_mixed(&p->choice) && p->choice.recompute != RECOMPUTE_NONE;
            print_point(file, fit, p, i == result->best ? '*' : p->fits ? ' ' : '-');
        }
    }
    fprintf(file, "\n* chosen   - does not fit%s\n",
            has_mix ? "   a+b+c: recompute full in the first a blocks, light in b, none in the last c" : "");
}

static void print_time(FILE *file, const fit_time_t *t)
{
    const struct {
        const char *name;
        double ms;
    } parts[] = {{"matrix products", t->products}, {"attention", t->attention}, {"passes over memory", t->passes},
                 {"optimizer", t->optimizer},      {"other ranks", t->wire},    {"host memory", t->pcie}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int length = (int)(BAR_LENGTH * parts[i].ms / t->total + 0.5);
        fprintf(file, "%-21s %9.1f ms%s%.*s\n", parts[i].name, parts[i].ms, length > 0 ? "   " : "", length, BAR);
    }
    fprintf(file, "%-21s %9.1f ms\n", "a step", t->total);
}

void fit_print_text(FILE *file, const fit_report_t *report)
{
    const options_t *o = &report->fit->asked;
    const fit_result_t *result = report->result;
    print_machine(file, report);
    print_points(file, report);
    if (result->best < 0)
        return;
    const fit_point_t *best = &result->points[result->best];
    fprintf(file, "\nThe chosen row's memory, on each %s:\n", report->fit->machine.rates.is_gpu ? "GPU" : "rank");
    print_memory(file, &best->memory);
    fprintf(file, "\nIts time, predicted:\n");
    print_time(file, &best->time);
    fprintf(
        file, "\nThe largest that fits, each with all else as chosen: micro_batch %lld, seq_len %lld, layers %lld\n",
        (long long)report->largest.micro_batch, (long long)report->largest.seq_len, (long long)report->largest.layers);
    fprintf(file,
            "To take it: --set zero.stage=%d --set model.recompute=%s --set train.micro_batch=%lld --set "
            "train.global_batch=%lld",
            best->choice.stage, fit_recompute_name(best->choice.recompute), (long long)best->choice.micro_batch,
            (long long)report->fit->asked.train.global_batch);
    if (fit_is_mixed(&best->choice))
        fprintf(file, " --set model.recompute_none=%lld --set model.recompute_light=%lld", (long long)best->choice.none,
                (long long)best->choice.light);
    if (o->zero.offload == OFFLOAD_OPTIMIZER && o->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO)
        fprintf(file, " --set zero.offload_ratio=%.9g", best->choice.offload_ratio);
    if (o->zero.keep == ZERO_KEEP_AUTO)
        fprintf(file, " --set zero.keep=%lld", (long long)best->choice.keep);
    fprintf(file, "\n");
}
