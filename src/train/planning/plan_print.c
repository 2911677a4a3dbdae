/* plan_print.c - --plan as readable text: GiB by category and stage, whether it fits, what a step moves, and what a run
 * needs other than the device's memory. Rows are indented, so that they are no rows of the exact table. */
#include <jansson.h>
#include <stdio.h>

#include "base/json_build.h"
#include "train/planning/auto_settings.h"
#include "train/planning/fit_command.h"
#include "train/planning/plan_report.h"
#include "train/planning/show_fit.h"
#include "train/report/report.h"

#define CELL 13 /* characters of a stage's column */

static void print_cells(const char *name, const uint64_t bytes[PLAN_N_STAGES], fit_unit_t unit)
{
    printf("  %-25s", name);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        printf(" %*.2f", CELL, (double)bytes[stage] / unit.bytes);
    printf("\n");
}

/* Prints the columns' names, with a star at the stage that is set. */
static void print_head(const plan_report_t *report, const char *what)
{
    printf("\n%-27s", what);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        char name[24];
        snprintf(name, sizeof name, "%sstage %d", report->options->zero.stage == stage ? "*" : "", stage);
        printf(" %*s", CELL, name);
    }
    printf("\n");
}

static fit_unit_t unit_of_plans(const zero_memory_t plans[PLAN_N_STAGES])
{
    uint64_t most = 0;
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        most = zero_memory_total(&plans[stage]) > most ? zero_memory_total(&plans[stage]) : most;
    return fit_unit_of(most);
}

static void print_whether_fits(const plan_report_t *report, fit_unit_t unit)
{
    char what[64];
    if (report->room == PLAN_ROOM_UNKNOWN) {
        printf("  whether it fits: say what a GPU has with --gpu-memory SIZE or --gpu NAME\n");
        return;
    }
    fit_unit_t of = fit_unit_of(report->room);
    snprintf(what, sizeof what, "of %.2f %s there are", (double)report->room / of.bytes, of.name);
    printf("  %-25s", what);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        uint64_t total = zero_memory_total(&report->least[stage]);
        char cell[32] = "fits";
        if (total > report->room)
            snprintf(cell, sizeof cell, "%.2f over", (double)(total - report->room) / unit.bytes);
        printf(" %*s", CELL, cell);
    }
    printf("\n");
}

static void print_memory(const plan_report_t *report)
{
    const zero_memory_t *plans = report->least;
    fit_unit_t unit = unit_of_plans(plans);
    char what[64];
    uint64_t bytes[PLAN_N_STAGES];
    snprintf(what, sizeof what, "%s on each %s", unit.name,
             report->options->device.type == ZERO_DEVICE_CPU ? "rank" : "GPU");
    print_head(report, what);
    for (int c = 0; c <= ZERO_MEMORY_N_CATEGORIES; c++) {
        bool is_total = c == ZERO_MEMORY_N_CATEGORIES;
        for (int stage = 0; stage < PLAN_N_STAGES; stage++)
            bytes[stage] = is_total ? zero_memory_total(&plans[stage]) : plans[stage].bytes[c];
        print_cells(is_total ? "total" : zero_memory_name((zero_memory_category_t)c), bytes, unit);
    }
    print_whether_fits(report, unit);
}

/* ---- what a step moves ---- */

/* Prints what each rank receives, by the way it takes; the row of a way that is not there is left out. */
static void print_traffic(const plan_report_t *report)
{
    bool on_gpus = report->options->device.type != ZERO_DEVICE_CPU;
    uint64_t most = 1, pcie = 0;
    const plan_traffic_t *t = &report->traffic;
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        pcie += t->to_gpu[stage] + t->to_host[stage];
        uint64_t all = t->most_local[stage] + t->most_received[stage] + t->to_gpu[stage];
        most = all > most ? all : most;
    }
    fit_unit_t unit = fit_unit_of(most);
    char what[64];
    if (report->ranks.n == 1 && pcie == 0)
        return;
    snprintf(what, sizeof what, "%s in a step", unit.name);
    print_head(report, what);
    if (report->ranks.n > 1)
        print_cells(on_gpus ? "over NVLink or PCIe, in" : "over shared memory, in", t->most_local, unit);
    if (report->ranks.n_hosts > 1)
        print_cells("over the network, in", t->most_received, unit);
    if (pcie > 0) {
        print_cells("host memory to GPU", t->to_gpu, unit);
        print_cells("GPU to host memory", t->to_host, unit);
    }
}

/* ---- other than the device's memory ---- */

/* Prints what checkpoints take. Of those in dir and dir/best one is written at a time. */
static void print_disk(const plan_report_t *report)
{
    const options_t *o = report->options;
    fit_unit_t unit = fit_unit_of(report->checkpoint_bytes);
    const double one = (double)report->checkpoint_bytes / unit.bytes;
    const double most = one * (double)(o->checkpoint.keep + (o->checkpoint.best ? 1 : 0) + 1);
    if (!o->checkpoint.dir[0])
        printf("\ndisk: none, since [checkpoint] dir is not set; a checkpoint would take %.2f %s\n", one, unit.name);
    else
        printf("\ndisk: %.2f %s a checkpoint; %lld kept%s, and one while it is written: %.2f %s\n", one, unit.name,
               (long long)o->checkpoint.keep, o->checkpoint.best ? " and the best" : "", most, unit.name);
}

/* Prints how much of a host's memory its ranks use together, not counting what they use as devices. */
static void print_host_memory(const plan_report_t *report)
{
    const options_t *o = report->options;
    int stage = o->zero.stage == STAGE_AUTO ? 3 : (int)o->zero.stage;
    uint64_t ranks = (uint64_t)report->ranks.per_host, pinned = report->least[stage].pinned_bytes * ranks;
    uint64_t copy = plan_save_copy_bytes(report) * ranks;
    uint64_t memory = o->checkpoint.memory_every > 0 ? 2 * report->checkpoint_bytes : 0;
    uint64_t all = pinned + copy + memory;
    fit_unit_t unit = fit_unit_of(all);
    if (all == 0)
        return;
    printf("memory of a host, for %d rank%s: %.2f %s", report->ranks.per_host, report->ranks.per_host == 1 ? "" : "s",
           (double)all / unit.bytes, unit.name);
    const struct {
        const char *what;
        uint64_t bytes;
    } parts[] = {{"offload, stage", pinned},
                 {"copies while a checkpoint is written", copy},
                 {"checkpoints in memory, two while one is written", memory}};
    const char *before = " (";
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].bytes == 0)
            continue;
        printf("%s%s", before, parts[i].what);
        if (i == 0)
            printf(" %d", stage);
        printf(": %.2f", (double)parts[i].bytes / unit.bytes);
        before = "; ";
    }
    printf(")\n");
    if (o->zero.offload_grads == ZERO_OFFLOAD_GRADS_HOST)
        printf("  sums of gradients wait there between micro-steps: the run does not fit with them on the GPU\n");
    if (pinned > 0 && o->fit.host_bytes > 0.0)
        printf("  offload may take %.2f %s of the host's memory: %s\n",
               (double)fit_described_host_bytes(&o->fit, o->zero.offload_ram) / unit.bytes, unit.name,
               pinned <= fit_described_host_bytes(&o->fit, o->zero.offload_ram) ? "it fits" : "it does not fit");
}

/* Says what was chosen for settings that are auto, or what has to be known to choose. */
static void print_choice(const plan_report_t *report)
{
    char text[320];
    if (!fit_leaves_open(report->asked))
        return;
    if (!report->choice.is_made) {
        printf("\nauto: what is chosen depends on the memory of a GPU: say what it has with --gpu-memory SIZE or --gpu "
               "NAME, or set [device] memory\n");
        return;
    }
    fit_describe_point(report->asked, &report->choice.point, report->choice.budget, text, sizeof text);
    printf("\nauto: %s\n", text);
}

void plan_print_readable(const plan_report_t *report)
{
    print_choice(report);
    print_memory(report);
    if (options_are_forward_only(report->options))
        return;
    print_traffic(report);
    print_disk(report);
    print_host_memory(report);
}

/* ---- plan json ---- */
/* --plan --json: every number as it is, in bytes. */

static json_t *hosts_json(const plan_report_t *report, int stage)
{
    json_t *hosts = json_array();
    for (int host = 0; host < report->ranks.n_hosts; host++)
        zero_json_append(&hosts, json_pack("{s:I, s:I}", "received", (json_int_t)report->traffic.received[host][stage],
                                           "sent", (json_int_t)report->traffic.sent[host][stage]));
    return hosts;
}

/* What is not known, such as whether a plan fits a GPU of unknown size, is null. */
static json_t *stage_json(const plan_report_t *report, int stage)
{
    uint64_t total = zero_memory_total(&report->least[stage]);
    json_t *over = report->room == PLAN_ROOM_UNKNOWN
                       ? json_null()
                       : json_integer(total > report->room ? (json_int_t)(total - report->room) : 0);
    return json_pack("{s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I, s:o}}", "stage", stage, "memory",
                     fit_memory_json(&report->least[stage]), "total", (json_int_t)total, "total_no_offload",
                     (json_int_t)zero_memory_total(&report->without[stage]), "total_all_kept",
                     (json_int_t)zero_memory_total(&report->kept[stage]), "pinned_host_memory",
                     (json_int_t)report->least[stage].pinned_bytes, "over", over, "step", "rank_from_its_host",
                     (json_int_t)report->traffic.most_local[stage], "rank_from_others",
                     (json_int_t)report->traffic.most_received[stage], "host_memory_to_gpu",
                     (json_int_t)report->traffic.to_gpu[stage], "gpu_to_host_memory",
                     (json_int_t)report->traffic.to_host[stage], "hosts", hosts_json(report, stage));
}

/* What was chosen for settings that are auto; null: nothing is, or no memory is known. */
static json_t *choice_json(const plan_report_t *report)
{
    const fit_choice_t *c = &report->choice.point.choice;
    if (!report->choice.is_made)
        return json_null();
    return json_pack("{s:i, s:s, s:I, s:I, s:b, s:I, s:f, s:I, s:I, s:I, s:f}", "stage", c->stage, "recompute",
                     fit_recompute_name(c->recompute), "recompute_none", (json_int_t)c->none, "recompute_light",
                     (json_int_t)c->light, "keep_attention", (int)c->keep_attention, "micro_batch",
                     (json_int_t)c->micro_batch, "offload_ratio", c->offload_ratio, "keep", (json_int_t)c->keep,
                     "bytes", (json_int_t)report->choice.point.bytes, "budget_bytes", (json_int_t)report->choice.budget,
                     "ms", report->choice.point.time.total);
}

zero_status_t plan_print_json(const plan_report_t *report)
{
    const options_t *o = report->options;
    bool on_gpus = o->device.type != ZERO_DEVICE_CPU;
    json_t *stages = json_array();
    for (int stage = 0; stage < PLAN_N_STAGES; stage++)
        zero_json_append(&stages, stage_json(report, stage));
    json_t *room = report->room == PLAN_ROOM_UNKNOWN ? json_null() : json_integer((json_int_t)report->room);
    json_t *set = o->zero.stage == STAGE_AUTO ? json_null() : json_integer(o->zero.stage);
    const char *grads = o->zero.offload_grads == ZERO_OFFLOAD_GRADS_HOST ? "host" : "device";
    json_t *all =
        json_pack("{s:i, s:i, s:I, s:I, s:s, s:s, s:o, s:s, s:o, s:o, s:I, s:o, s:{s:I, s:I, s:b, s:I}}", "ranks",
                  report->ranks.n, "hosts", report->ranks.n_hosts, "sequence_ranks",
                  (json_int_t)options_sequence_ranks(&o->train), "parameters", (json_int_t)report->n_params,
                  "precision", zero_dtype_name((zero_dtype_t)o->train.precision), "device", on_gpus ? "gpu" : "cpu",
                  "stage", set, "offload_grads", grads, "chosen", choice_json(report), "available", room,
                  "beside_the_plan", on_gpus ? (json_int_t)FIT_CUDA_BYTES : (json_int_t)0, "stages", stages,
                  "checkpoint", "bytes", (json_int_t)report->checkpoint_bytes, "keep", (json_int_t)o->checkpoint.keep,
                  "best", (int)o->checkpoint.best, "copy_of_each_rank", (json_int_t)plan_save_copy_bytes(report));
    int failed = all ? json_dumpf(all, stdout, JSON_INDENT(1)) : -1;
    json_decref(all);
    if (failed)
        return report_rank_error(ZERO_ERROR_IO, "cannot write JSON to stdout");
    putchar('\n');
    return ZERO_OK;
}
