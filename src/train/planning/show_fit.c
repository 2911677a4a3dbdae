/* show_fit.c - see show_fit.h; fit_command.c has the JSON. */
#include "train/planning/show_fit.h"

#include <math.h>
#include <string.h>

#include "train/options/families.h"
#include "train/report/output_file.h"
#include "train/report/report.h"

#define BAR_LENGTH 40
static const char BAR[BAR_LENGTH + 1] = "########################################";

const char *fit_recompute_name(int recompute)
{
    static const char *const NAMES[] = {
        [RECOMPUTE_NONE] = "none", [RECOMPUTE_LIGHT] = "light", [RECOMPUTE_FULL] = "full", [RECOMPUTE_AUTO] = "auto"};
    return NAMES[recompute];
}

const char *fit_recompute_setting(const fit_choice_t *choice)
{
    return fit_recompute_name(fit_is_mixed(choice) ? RECOMPUTE_AUTO : choice->recompute);
}

void fit_describe_recompute(const fit_choice_t *c, int64_t layers, char text[FIT_MIX_BYTES])
{
    int64_t light = c->recompute == RECOMPUTE_LIGHT ? layers - c->none : c->light;
    if (fit_is_mixed(c))
        snprintf(text, FIT_MIX_BYTES, "%lld+%lld+%lld", (long long)(layers - c->none - light), (long long)light,
                 (long long)c->none);
    else
        snprintf(text, FIT_MIX_BYTES, "%s", fit_recompute_name(c->recompute));
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
    fprintf(file, "%s of %.2fM parameters, %s%s, on %d %s%s (%s)\n", families[fit->model.options->model.arch].title,
            (double)zero_model_n_params(fit->model.declaration) * 1e-6,
            zero_dtype_name((zero_dtype_t)o->train.precision), o->train.fp8 == FP8_NONE ? "" : " and fp8",
            fit->machine.n_ranks, devices, fit->machine.n_ranks == 1 ? "" : "s", fit->machine.rates.title);
    if (fit->machine.n_ranks > fit->machine.ranks_per_host)
        fprintf(file, "%d of them to a host; between hosts %.0f GB/s for each is assumed\n",
                fit->machine.ranks_per_host, fit->machine.rates.network * 1e-9);
    fprintf(file, "a plan may take %.2f of a %s's %.2f GiB\n", (double)fit->budget / 0x1p30, devices,
            (double)report->available / 0x1p30);
    if ((o->zero.offload != OFFLOAD_NONE || o->model.offload_activations != 0.0) && fit->machine.rates.is_gpu) {
        if (fit->host_budget == FIT_HOST_UNKNOWN)
            fprintf(file, "and any host memory for offload: say what a host has with --host-memory SIZE\n");
        else
            fprintf(file, "and %.2f GiB of host memory for offload\n", (double)fit->host_budget / 0x1p30);
    }
    fprintf(file, "a step: %lld sequences of %lld tokens", (long long)o->train.global_batch,
            (long long)o->model.seq_len);
    if (options_sequence_ranks(&o->train) > 1)
        fprintf(file, ", each of which %lld %ss share", (long long)o->train.sequence_ranks, devices);
    fprintf(file, "\n\n");
}

static void print_point(FILE *file, const fit_t *fit, const fit_point_t *p, char mark)
{
    fit_unit_t unit = fit_unit_of(p->bytes);
    char recompute[FIT_MIX_BYTES];
    fit_describe_recompute(&p->choice, fit->asked.model.layers, recompute);
    fprintf(file, "%c %8.2f %s %10.1f ms %10.0f %6d %9s %11lld %9d", mark, (double)p->bytes / unit.bytes, unit.name,
            p->time.total, fit_tokens_per_s(fit, p), p->choice.stage, recompute, (long long)p->choice.micro_batch,
            (int)(fit->asked.train.global_batch /
                  (p->choice.micro_batch * options_n_groups(&fit->asked.train, fit->machine.n_ranks))));
    if (fit->asked.zero.offload != OFFLOAD_NONE)
        fprintf(file, " %8.2f", p->choice.offload_ratio);
    if (fit->asked.zero.offload == OFFLOAD_ALL)
        fprintf(file, " %7.2f", p->choice.params_ratio);
    if (fit->asked.model.offload_activations != 0.0)
        fprintf(file, " %12.2f", p->choice.activations);
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
    fprintf(file, "  %12s %13s %10s %6s %9s %11s %9s%s%s%s%s\n", "memory", "a step", "tokens/s", "stage", "recompute",
            "micro-batch", "per step", fit->asked.zero.offload != OFFLOAD_NONE ? "  offload" : "",
            fit->asked.zero.offload == OFFLOAD_ALL ? "  params" : "",
            fit->asked.model.offload_activations != 0.0 ? "  activations" : "",
            fit->asked.zero.keep != 0 ? "  keep" : "");
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        if (p->is_on_frontier || i == result->best) {
            has_mix |= fit_is_mixed(&p->choice);
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
    if (best->choice.offload_grads == ZERO_OFFLOAD_GRADS_HOST)
        fprintf(file,
                "Sums of gradients wait in host memory between micro-steps: nothing fits with them on the GPU.\n");
    fprintf(file, "\nIts time, predicted:\n");
    print_time(file, &best->time);
    fprintf(
        file, "\nThe largest that fits, each with all else as chosen: micro_batch %lld, seq_len %lld, layers %lld\n",
        (long long)report->largest.micro_batch, (long long)report->largest.seq_len, (long long)report->largest.layers);
    fprintf(file,
            "To take it: --set zero.stage=%d --set model.recompute=%s --set train.micro_batch=%lld --set "
            "train.global_batch=%lld",
            best->choice.stage, fit_recompute_setting(&best->choice), (long long)best->choice.micro_batch,
            (long long)report->fit->asked.train.global_batch);
    if (best->choice.keep_attention != o->model.keep_attention)
        fprintf(file, " --set model.keep_attention=%s", best->choice.keep_attention ? "true" : "false");
    if (o->zero.offload != OFFLOAD_NONE && o->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO)
        fprintf(file, " --set zero.offload_ratio=%.9g", best->choice.offload_ratio);
    if (o->zero.offload == OFFLOAD_ALL && o->zero.offload_params_ratio == (double)ZERO_OFFLOAD_AUTO)
        fprintf(file, " --set zero.offload_params_ratio=%.9g",
                fmin(best->choice.params_ratio, best->choice.offload_ratio));
    if (o->model.offload_activations == (double)ZERO_OFFLOAD_AUTO && best->choice.activations > 0.0)
        fprintf(file, " --set model.offload_activations=%.9g", best->choice.activations);
    if (o->zero.keep == ZERO_KEEP_AUTO)
        fprintf(file, " --set zero.keep=%lld", (long long)best->choice.keep);
    fprintf(file, "\n");
}

/* ---- fit svg ---- */
/* Coordinates are pixels; both axes begin at 0. */

enum { WIDTH = 720, HEIGHT = 520, LEFT = 70, TOP = 50, RIGHT = 690, BOTTOM = 380, BAR_HEIGHT = 430 };

static const char *const COLORS[] = {"#4e79a7", "#a0cbe8", "#f28e2b", "#ffbe7d", "#59a14f",
                                     "#8cd17d", "#b6992d", "#e15759", "#79706e"};

/* What one picture's axes end at. */
typedef struct axes {
    double bytes, ms;
    fit_unit_t unit;
} axes_t;

static bool begins_like_svg(const char *text, size_t n_bytes)
{
    return n_bytes >= 4 && memcmp(text, "<svg", 4) == 0;
}

static double x_of(const axes_t *axes, double bytes)
{
    return LEFT + (RIGHT - LEFT) * bytes / axes->bytes;
}

static double y_of(const axes_t *axes, double ms)
{
    return BOTTOM - (BOTTOM - TOP) * ms / axes->ms;
}

/* The frontier is what the picture is about: axes end beyond it and beyond the memory that there is. */
static axes_t axes_of(const fit_report_t *report)
{
    axes_t axes = {.bytes = (double)report->fit->budget, .ms = 1e-9};
    for (int i = 0; i < report->result->n_points; i++) {
        const fit_point_t *p = &report->result->points[i];
        if (!p->is_on_frontier)
            continue;
        bool is_near = (double)p->bytes <= 3.0 * (double)report->fit->budget;
        axes.bytes = is_near && (double)p->bytes > axes.bytes ? (double)p->bytes : axes.bytes;
        axes.ms = p->time.total > axes.ms ? p->time.total : axes.ms;
    }
    const fit_result_t *result = report->result;
    if (result->least >= 0 && (double)report->fit->budget > 3.0 * (double)result->points[result->n_points - 1].bytes)
        axes.bytes = (double)result->points[result->n_points - 1].bytes; /* plenty: what there is would be far off */
    axes.unit = fit_unit_of((uint64_t)axes.bytes);
    axes.bytes *= 1.08;
    axes.ms *= 1.15;
    return axes;
}

static bool is_inside(const axes_t *axes, const fit_point_t *p)
{
    return (double)p->bytes <= axes->bytes && p->time.total <= axes->ms;
}

static void draw_axes(FILE *file, const axes_t *axes, const fit_t *fit)
{
    fprintf(file, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"black\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
    for (int i = 0; i <= 5; i++) {
        double bytes = axes->bytes * i / 5.0, ms = axes->ms * i / 5.0;
        fprintf(file, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.1f</text>\n", x_of(axes, bytes), BOTTOM + 18,
                bytes / axes->unit.bytes);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n", LEFT - 8, y_of(axes, ms) + 4.0,
                ms);
    }
    fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s on each %s</text>\n", RIGHT, BOTTOM + 36,
            axes->unit.name, fit->machine.rates.is_gpu ? "GPU" : "rank");
    fprintf(file, "<text x=\"%d\" y=\"%d\">milliseconds a step, predicted</text>\n", LEFT - 60, TOP - 14);
    double x = x_of(axes, (double)fit->budget);
    if (x <= RIGHT)
        fprintf(file,
                "<path id=\"room\" d=\"M%.1f %dV%d\" stroke=\"#e15759\" stroke-dasharray=\"5 4\"/>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"end\">room</text>\n",
                x, TOP, BOTTOM, x - 4.0, TOP + 10);
}

static void draw_points(FILE *file, const axes_t *axes, const fit_report_t *report)
{
    const fit_result_t *result = report->result;
    fprintf(file, "<polyline id=\"frontier\" fill=\"none\" stroke=\"#4e79a7\" points=\"");
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        if (p->is_on_frontier && is_inside(axes, p))
            fprintf(file, "%.1f,%.1f ", x_of(axes, (double)p->bytes), y_of(axes, p->time.total));
    }
    fprintf(file, "\"/>\n");
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        if (!is_inside(axes, p))
            continue;
        fprintf(
            file,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"><title>stage %d, recompute %s%s, micro_batch %lld: "
            "%.2f %s, %.1f ms</title></circle>\n",
            x_of(axes, (double)p->bytes), y_of(axes, p->time.total), p->is_on_frontier ? 4 : 2,
            p->fits ? "#4e79a7" : "#bab0ac", p->choice.stage, fit_recompute_name(p->choice.recompute),
            fit_is_mixed(&p->choice) ? " but for the last blocks" : "", (long long)p->choice.micro_batch,
            (double)p->bytes / axes->unit.bytes, axes->unit.name, p->time.total);
    }
    if (result->best >= 0) {
        const fit_point_t *best = &result->points[result->best];
        fprintf(file,
                "<circle id=\"chosen\" cx=\"%.1f\" cy=\"%.1f\" r=\"8\" fill=\"none\" stroke=\"#59a14f\" "
                "stroke-width=\"3\"/>\n",
                x_of(axes, (double)best->bytes), y_of(axes, best->time.total));
    }
}

/* One bar: each category's part of the chosen row's memory. */
static void draw_memory(FILE *file, const axes_t *axes, const fit_point_t *best)
{
    double x = LEFT, width = RIGHT - LEFT;
    int row = 0;
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++) {
        double part = (double)best->memory.bytes[c] / (double)best->bytes * width;
        const char *color = COLORS[c % (int)(sizeof COLORS / sizeof COLORS[0])];
        fprintf(file, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" fill=\"%s\"/>\n", x, BAR_HEIGHT, part,
                color);
        fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s %.2f %s</text>\n", LEFT + row % 3 * 210,
                BAR_HEIGHT + 36 + row / 3 * 16, color, zero_memory_name((zero_memory_category_t)c),
                (double)best->memory.bytes[c] / axes->unit.bytes, axes->unit.name);
        x += part;
        row++;
    }
}

static void draw(FILE *file, const fit_report_t *report)
{
    const fit_t *fit = report->fit;
    axes_t axes = axes_of(report);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(file, "<text x=\"%d\" y=\"20\" font-size=\"15\">%s of %.2fM parameters on %d %s%s (%s)</text>\n", LEFT - 60,
            families[fit->model.options->model.arch].title, (double)zero_model_n_params(fit->model.declaration) * 1e-6,
            fit->machine.n_ranks, fit->machine.rates.is_gpu ? "GPU" : "rank", fit->machine.n_ranks == 1 ? "" : "s",
            fit->machine.rates.name);
    draw_axes(file, &axes, fit);
    draw_points(file, &axes, report);
    if (report->result->best >= 0)
        draw_memory(file, &axes, &report->result->points[report->result->best]);
    fprintf(file, "</svg>\n");
}

zero_status_t fit_write_svg(const char *path, const fit_report_t *report)
{
    static const output_kind_t KIND = {"--svg", "the picture", begins_like_svg};
    FILE *file;
    ZERO_TRY(output_file_check(&KIND, path));
    ZERO_TRY(output_file_open(&KIND, path, &file));
    zero_status_t status = output_file_empty(&KIND, path, file);
    if (status == ZERO_OK)
        draw(file, report);
    if (fclose(file) != 0 && status == ZERO_OK)
        status = report_error(ZERO_ERROR_IO, "--svg: cannot write '%s'", path);
    return status;
}
