/* fit_command.c - see fit_command.h. */
#include "train/planning/fit_command.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_build.h"
#include "train/options/options.h"
#include "train/planning/advice.h"
#include "train/planning/auto_settings.h"
#include "train/planning/show_fit.h"
#include "train/rates/rates_cache.h"
#include "train/report/report.h"

/* ---- fit json ---- */
/* What fit found as JSON: bytes and milliseconds as they are. */

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
    return json_pack("{s:i, s:s, s:I, s:I, s:b, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:s, s:o, s:o}",
                     "stage", p->choice.stage, "recompute", fit_recompute_name(p->choice.recompute), "recompute_none",
                     (json_int_t)p->choice.none, "recompute_light", (json_int_t)p->choice.light, "keep_attention",
                     (int)p->choice.keep_attention, "micro_batch", (json_int_t)p->choice.micro_batch, "offload_ratio",
                     p->choice.offload_ratio, "offload_params_ratio", p->choice.params_ratio, "offload_activations",
                     p->choice.activations, "keep", (json_int_t)p->choice.keep, "bytes", (json_int_t)p->bytes,
                     "pinned_bytes", (json_int_t)p->memory.pinned_bytes, "ms", p->time.total, "tokens_per_s",
                     fit_tokens_per_s(fit, p), "fits", (int)p->fits, "frontier", (int)p->is_on_frontier,
                     "offload_grads", p->choice.offload_grads == ZERO_OFFLOAD_GRADS_HOST ? "host" : "device", "memory",
                     fit_memory_json(&p->memory), "time", time_json(&p->time));
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

/* ---- fit command ---- */

#define GPUS_OF_A_HOST 8

/* Whose memory and speed are asked for. */
typedef struct target {
    fit_machine_t machine;
    uint64_t available;
} target_t;

zero_status_t fit_describe_gpu(const fit_options_t *o, bool in_fp8, zero_comm_t *comm, fit_rates_t *rates,
                               uint64_t *available)
{
    bool is_known;
    int n_ranks = o->gpus > 0 ? (int)o->gpus : zero_comm_size(comm);
    fit_wanted_t wanted = {.is_gpu = true, .gpu = o->gpu, .ranks = n_ranks < GPUS_OF_A_HOST ? n_ranks : GPUS_OF_A_HOST};
    ZERO_TRY(fit_rates_choose(comm, &wanted, rates, &is_known));
    if (!is_known)
        return report_error(ZERO_ERROR_USAGE,
                            "--gpu: '%s' is unknown: take H200, H100, A100 or A100-40GB, the nearest "
                            "to yours, with --gpu-memory",
                            o->gpu);
    if (in_fp8 && rates->fp8 == 0.0)
        return report_error(ZERO_ERROR_USAGE, "[train] fp8: an %s has none: use none", rates->name);
    double bytes = o->gpu_bytes > 0.0 ? o->gpu_bytes : rates->memory_bytes;
    if (bytes <= 2.0 * FIT_CUDA_BYTES)
        return report_error(
            ZERO_ERROR_USAGE,
            "--gpu-memory: CUDA alone takes %.2f GiB, and a model needs as much: say more than %.2f GiB",
            FIT_CUDA_BYTES / 0x1p30, 2.0 * FIT_CUDA_BYTES / 0x1p30);
    *available = (uint64_t)(bytes - FIT_CUDA_BYTES);
    return ZERO_OK;
}

uint64_t fit_described_host_bytes(const fit_options_t *o, double offload_ram)
{
    const uint64_t bytes = (uint64_t)o->host_bytes;
    return bytes > 0 ? zero_pinned_to_plan(offload_ram, 1, bytes, bytes) : FIT_HOST_UNKNOWN;
}

/* Without a description of the GPUs these are this host's, and so is its memory. */
static zero_status_t choose_gpu(const options_t *o, zero_comm_t *comm, bool is_here, target_t *target)
{
    target->machine.ranks_per_host = GPUS_OF_A_HOST;
    target->machine.host_bytes = fit_described_host_bytes(&o->fit, o->zero.offload_ram);
    if (is_here && o->fit.host_bytes == 0.0)
        ZERO_TRY(fit_find_host_bytes(&o->zero, comm, zero_comm_local_size(comm), &target->machine.host_bytes));
    return fit_describe_gpu(&o->fit, o->train.fp8 != FP8_NONE, comm, &target->machine.rates, &target->available);
}

/* The CPU has what it has now; the device also sets how many threads a rank gets, on which workspaces depend. */
static zero_status_t choose_cpu(const options_t *o, zero_comm_t *comm, target_t *target)
{
    zero_device_t *device;
    placement_t placement;
    if (o->fit.host_bytes > 0.0)
        return report_error(ZERO_ERROR_USAGE,
                            "--host-memory: for the CPU nothing is offloaded: to limit what a run may "
                            "take, set [device] memory");
    ZERO_TRY(report_agree(comm, placement_check_groups(o, comm)));
    ZERO_TRY(report_agree(comm, placement_find(comm, &placement)));
    ZERO_TRY(report_agree(comm, zero_device_create(ZERO_DEVICE_CPU, comm, &device)));
    zero_status_t status = fit_find_available(comm, device, &target->available);
    zero_device_destroy(device);
    ZERO_TRY(status);
    target->machine.ranks_per_host = placement.fewest;
    target->machine.host_bytes = FIT_HOST_UNKNOWN; /* nothing is offloaded */
    target->machine.kind = zero_comm_get_kind(comm);
    return fit_rates_of_this_cpu(comm, &target->machine.rates);
}

/* On GPUs if one is described, or if [device] type says so here. */
static zero_status_t choose_target(options_t *o, zero_comm_t *comm, target_t *target)
{
    bool describes_gpu = o->fit.gpus > 0 || o->fit.gpu_bytes > 0.0 || o->fit.gpu[0];
    zero_device_type_t type = zero_device_resolve((zero_device_type_t)o->device.type, comm);
    bool on_gpu = describes_gpu || type != ZERO_DEVICE_CPU;
    o->device.type = on_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU;
    target->machine.n_ranks = o->fit.gpus > 0 ? (int)o->fit.gpus : zero_comm_size(comm);
    if (on_gpu && target->machine.n_ranks > FIT_MOST_ORDERED_GPUS && o->zero.reduction != REDUCTION_NCCL)
        return report_error(ZERO_ERROR_USAGE, "--gpus: more than %d GPUs need [zero] reduction = nccl",
                            FIT_MOST_ORDERED_GPUS);
    return on_gpu ? choose_gpu(o, comm, !describes_gpu, target) : choose_cpu(o, comm, target);
}

/* The batch of a step is the file's, so that rows can be compared. */
static void fix_batch(options_t *o, int n_ranks)
{
    int64_t micro = o->fit.file_micro_batch > 0 ? o->fit.file_micro_batch : 8;
    if (o->train.global_batch == 0 && o->train.micro_batch == MICRO_BATCH_AUTO)
        o->train.global_batch = micro * options_n_groups(&o->train, n_ranks);
}

static zero_status_t show(const options_t *o, fit_report_t *report)
{
    const fit_result_t *result = report->result;
    if (result->best >= 0)
        ZERO_TRY(fit_find_largest(report->fit, &result->points[result->best].choice, &report->largest));
    if (!report_is_speaker())
        return ZERO_OK;
    if (o->fit.svg[0])
        ZERO_TRY(fit_write_svg(o->fit.svg, report));
    if (o->json)
        return fit_print_json(stdout, report);
    fit_print_text(stdout, report);
    return ZERO_OK;
}

zero_status_t fit_command(options_t *o, zero_comm_t *comm)
{
    target_t target = {0};
    fit_result_t result = {0};
    fit_t *fit;
    ZERO_TRY(choose_target(o, comm, &target));
    fix_batch(o, target.machine.n_ranks);
    ZERO_TRY(options_resolve(o, target.machine.n_ranks));
    const uint64_t budget = fit_limited(&o->device, zero_bytes_to_plan(target.available));
    ZERO_TRY(fit_choose_sequence_ranks(o, &target.machine, budget));
    ZERO_TRY(fit_create(o, &target.machine, budget, &fit));
    zero_status_t status = fit_solve(fit, &result);
    fit_report_t report = {.fit = fit, .result = &result, .available = target.available};
    if (status == ZERO_OK)
        status = show(o, &report);
    if (status == ZERO_OK && result.best < 0)
        status = result.least < 0 ? report_error(ZERO_ERROR_USAGE, "no micro_batch that divides global_batch / ranks "
                                                                   "can be used: take another global_batch")
                                  : fit_refuse(fit, &result.points[result.least]);
    free(result.points);
    fit_destroy(fit);
    return status;
}
