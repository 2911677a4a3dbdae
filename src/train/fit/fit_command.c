/* fit_command.c - see fit_command.h. */
#include "train/fit/fit_command.h"

#include <stdlib.h>
#include <string.h>

#include "train/fit/advice.h"
#include "train/fit/fit_svg.h"
#include "train/fit/settle.h"
#include "train/fit/show_fit.h"
#include "train/options/placement.h"
#include "train/predict/rates_cache.h"
#include "train/report/report.h"

#define GPUS_OF_A_HOST 8
#define MOST_ORDERED_GPUS 256 /* libzero's limit, unless NCCL sums */

/* Whose memory and speed are asked for. */
typedef struct target {
    fit_machine_t machine;
    uint64_t available;
} target_t;

zero_status_t fit_describe_gpu(const options_t *o, zero_comm_t *comm, fit_rates_t *rates, uint64_t *available)
{
    bool is_known;
    int n_ranks = o->fit.gpus > 0 ? (int)o->fit.gpus : zero_comm_size(comm);
    fit_wanted_t wanted = {
        .is_gpu = true, .gpu = o->fit.gpu, .ranks = n_ranks < GPUS_OF_A_HOST ? n_ranks : GPUS_OF_A_HOST};
    TRY(fit_rates_choose(comm, &wanted, rates, &is_known));
    if (!is_known)
        return report_error(ZERO_ERROR_USAGE,
                            "--gpu: '%s' is unknown: take H200, H100, A100 or A100-40GB, the nearest "
                            "to yours, with --gpu-memory",
                            o->fit.gpu);
    if (o->train.fp8 != FP8_NONE && rates->fp8 == 0.0)
        return report_error(ZERO_ERROR_USAGE, "[train] fp8: an %s has none: use none", rates->name);
    double bytes = o->fit.gpu_bytes > 0.0 ? o->fit.gpu_bytes : rates->memory_bytes;
    if (bytes <= 2.0 * FIT_CUDA_BYTES)
        return report_error(ZERO_ERROR_USAGE, "--gpu-memory: CUDA alone takes %.1f GiB", FIT_CUDA_BYTES / 0x1p30);
    *available = (uint64_t)(bytes - FIT_CUDA_BYTES);
    return ZERO_OK;
}

uint64_t fit_described_host_bytes(const options_t *o)
{
    const uint64_t bytes = (uint64_t)o->fit.host_bytes;
    return bytes > 0 ? zero_pinned_to_plan(o->zero.offload_ram, 1, bytes, bytes) : FIT_HOST_UNKNOWN;
}

/* Without a description of the GPUs these are this host's, and so is its memory. */
static zero_status_t choose_gpu(const options_t *o, zero_comm_t *comm, bool is_here, target_t *target)
{
    target->machine.ranks_per_host = GPUS_OF_A_HOST;
    target->machine.host_bytes = fit_described_host_bytes(o);
    if (is_here && o->fit.host_bytes == 0.0)
        TRY(fit_find_host_bytes(o, comm, zero_comm_local_size(comm), &target->machine.host_bytes));
    return fit_describe_gpu(o, comm, &target->machine.rates, &target->available);
}

/* The CPU has what it has now; the device also sets how many threads a rank gets, on which workspaces depend. */
static zero_status_t choose_cpu(const options_t *o, zero_comm_t *comm, target_t *target)
{
    zero_device_t *device;
    placement_t placement;
    TRY(report_agree(comm, placement_check_groups(o, comm)));
    TRY(report_agree(comm, placement_find(comm, &placement)));
    TRY(report_agree(comm, zero_device_create(ZERO_DEVICE_CPU, comm, &device)));
    zero_status_t status = fit_find_available(comm, device, &target->available);
    zero_device_destroy(device);
    TRY(status);
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
    if (on_gpu && target->machine.n_ranks > MOST_ORDERED_GPUS && o->zero.reduction != REDUCTION_NCCL)
        return report_error(ZERO_ERROR_USAGE, "--gpus: more than %d GPUs need [zero] reduction = nccl",
                            MOST_ORDERED_GPUS);
    return on_gpu ? choose_gpu(o, comm, !describes_gpu, target) : choose_cpu(o, comm, target);
}

/* The batch of a step is the file's, so that rows can be compared. */
static void fix_batch(options_t *o, int n_ranks)
{
    int64_t micro = o->fit.file_micro_batch > 0 ? o->fit.file_micro_batch : 8;
    if (o->train.global_batch == 0 && o->train.micro_batch == MICRO_BATCH_AUTO)
        o->train.global_batch = micro * n_ranks;
}

static zero_status_t show(const options_t *o, fit_report_t *report)
{
    const fit_result_t *result = report->result;
    if (result->best >= 0)
        TRY(fit_find_largest(report->fit, &result->points[result->best].choice, &report->largest));
    if (!report_is_speaker())
        return ZERO_OK;
    if (o->fit.svg[0])
        TRY(fit_write_svg(o->fit.svg, report));
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
    TRY(choose_target(o, comm, &target));
    fix_batch(o, target.machine.n_ranks);
    TRY(options_resolve(o, target.machine.n_ranks));
    TRY(fit_create(o, &target.machine, fit_limited(o, zero_bytes_to_plan(target.available)), &fit));
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
