/* fit_json.c - what fit found as JSON: bytes and milliseconds as they are. */
#include "train/fit/show_fit.h"

#include <jansson.h>
#include <stdlib.h>

#include "train/report/report.h"
#include "base/json_build.h"

json_t *fit_memory_json(const zero_memory_t *memory)
{
    json_t *object = json_object();
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++)
        zero_json_set(&object, zero_memory_name((zero_memory_category_t)c), json_integer((json_int_t)memory->bytes[c]));
    return object;
}

static json_t *time_json(const fit_time_t *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "products", t->products, "attention", t->attention, "passes",
                     t->passes, "optimizer", t->optimizer, "wire", t->wire, "pcie", t->pcie);
}

static json_t *point_json(const fit_t *fit, const fit_point_t *p)
{
    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:o, s:o}", "stage",
                     p->choice.stage, "recompute", fit_recompute_name(p->choice.recompute), "recompute_none",
                     (json_int_t)p->choice.none, "recompute_light", (json_int_t)p->choice.light, "micro_batch",
                     (json_int_t)p->choice.micro_batch, "offload_ratio", p->choice.offload_ratio, "keep",
                     (json_int_t)p->choice.keep, "bytes", (json_int_t)p->bytes, "pinned_bytes",
                     (json_int_t)p->memory.pinned_bytes, "ms", p->time.total, "tokens_per_s", fit_tokens_per_s(fit, p),
                     "fits", (int)p->fits, "frontier", (int)p->is_on_frontier, "memory", fit_memory_json(&p->memory),
                     "time", time_json(&p->time));
}

zero_status_t fit_print_json(FILE *file, const fit_report_t *report)
{
    const fit_t *fit = report->fit;
    const fit_result_t *result = report->result;
    json_t *points = json_array();
    for (int i = 0; i < result->n_points; i++)
        zero_json_append(&points, point_json(fit, &result->points[i]));
    json_t *best = result->best < 0 ? json_null() : point_json(fit, &result->points[result->best]);
    const bool is_known = fit->host_budget != FIT_HOST_UNKNOWN;
    json_t *host = is_known ? json_integer((json_int_t)fit->host_budget) : json_null();
    json_t *all =
        json_pack("{s:s, s:s, s:i, s:I, s:I, s:o, s:I, s:o, s:o, s:{s:I, s:I, s:I}}", "device", fit->machine.rates.name,
                  "rates", fit->machine.rates.title, "ranks", fit->machine.n_ranks, "available_bytes",
                  (json_int_t)report->available, "budget_bytes", (json_int_t)fit->budget, "host_budget_bytes", host,
                  "global_batch", (json_int_t)fit->asked.train.global_batch, "chosen", best, "points", points,
                  "largest", "micro_batch", (json_int_t)report->largest.micro_batch, "seq_len",
                  (json_int_t)report->largest.seq_len, "layers", (json_int_t)report->largest.layers);
    int failed = all ? json_dumpf(all, file, JSON_INDENT(1)) : -1;
    json_decref(all);
    if (failed)
        return report_rank_error(ZERO_ERROR_IO, "cannot write JSON to stdout");
    fputc('\n', file);
    return ZERO_OK;
}
