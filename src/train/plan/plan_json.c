/* plan_json.c - --plan --json: every number as it is, in bytes. */
#include <jansson.h>
#include <stdio.h>

#include "train/fit/show_fit.h"
#include "train/plan/plan_print.h"
#include "train/report/report.h"
#include "base/json_build.h"

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
    plan_pcie_t pcie = plan_pcie(report, stage);
    json_t *over = report->room == PLAN_ROOM_UNKNOWN
                       ? json_null()
                       : json_integer(total > report->room ? (json_int_t)(total - report->room) : 0);
    return json_pack("{s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I, s:o}}", "stage", stage, "memory",
                     fit_memory_json(&report->least[stage]), "total", (json_int_t)total, "total_no_offload",
                     (json_int_t)zero_memory_total(&report->without[stage]), "total_all_kept",
                     (json_int_t)zero_memory_total(&report->kept[stage]), "pinned_host_memory",
                     (json_int_t)report->least[stage].pinned_bytes, "over", over, "step", "rank_from_its_host",
                     (json_int_t)report->traffic.most_local[stage], "rank_from_others",
                     (json_int_t)report->traffic.most_received[stage], "host_memory_to_gpu", (json_int_t)pcie.to_gpu,
                     "gpu_to_host_memory", (json_int_t)pcie.to_host, "hosts", hosts_json(report, stage));
}

/* What was chosen for settings that are auto; null: nothing is, or no memory is known. */
static json_t *choice_json(const plan_report_t *report)
{
    const fit_choice_t *c = &report->choice.point.choice;
    if (!report->choice.is_made)
        return json_null();
    return json_pack("{s:i, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:f}", "stage", c->stage, "recompute",
                     fit_recompute_name(c->recompute), "recompute_none", (json_int_t)c->none, "recompute_light",
                     (json_int_t)c->light, "micro_batch", (json_int_t)c->micro_batch, "offload_ratio", c->offload_ratio,
                     "keep", (json_int_t)c->keep, "bytes", (json_int_t)report->choice.point.bytes, "budget_bytes",
                     (json_int_t)report->choice.budget, "ms", report->choice.point.time.total);
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
    json_t *all = json_pack(
        "{s:i, s:i, s:I, s:s, s:s, s:o, s:o, s:o, s:I, s:o, s:{s:I, s:I, s:I}}", "ranks", report->ranks.n, "hosts",
        report->ranks.n_hosts, "parameters", (json_int_t)report->n_params, "precision",
        zero_dtype_name((zero_dtype_t)o->train.precision), "device", on_gpus ? "gpu" : "cpu", "stage", set, "chosen",
        choice_json(report), "available", room, "beside_the_plan", on_gpus ? (json_int_t)FIT_CUDA_BYTES : (json_int_t)0,
        "stages", stages, "checkpoint", "bytes", (json_int_t)report->checkpoint_bytes, "keep",
        (json_int_t)o->checkpoint.keep, "copy_of_each_rank", (json_int_t)plan_save_copy_bytes(report));
    int failed = all ? json_dumpf(all, stdout, JSON_INDENT(1)) : -1;
    json_decref(all);
    if (failed)
        return report_rank_error(ZERO_ERROR_IO, "cannot write JSON to stdout");
    putchar('\n');
    return ZERO_OK;
}
