/* fit_svg.c - see fit_svg.h. Coordinates are pixels; both axes begin at 0. */
#include "train/fit/fit_svg.h"

#include <string.h>

#include "train/report/output_file.h"
#include "train/report/report.h"

enum { WIDTH = 720, HEIGHT = 520, LEFT = 70, TOP = 50, RIGHT = 690, BOTTOM = 380, BAR = 430 };

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
        fprintf(file, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" fill=\"%s\"/>\n", x, BAR, part, color);
        fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s %.2f %s</text>\n", LEFT + row % 3 * 210,
                BAR + 36 + row / 3 * 16, color, zero_memory_name((zero_memory_category_t)c),
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
            fit->model.ops->name, (double)zero_model_n_params(fit->model.declaration) * 1e-6, fit->machine.n_ranks,
            fit->machine.rates.is_gpu ? "GPU" : "rank", fit->machine.n_ranks == 1 ? "" : "s", fit->machine.rates.name);
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
    TRY(output_file_check(&KIND, path));
    TRY(output_file_open(&KIND, path, &file));
    zero_status_t status = output_file_empty(&KIND, path, file);
    if (status == ZERO_OK)
        draw(file, report);
    if (fclose(file) != 0 && status == ZERO_OK)
        status = report_error(ZERO_ERROR_IO, "--svg: cannot write '%s'", path);
    return status;
}
