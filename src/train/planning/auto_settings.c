/* auto_settings.c - see auto_settings.h. Every rank computes the same from the least memory that a rank has. */
#include "train/planning/auto_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "train/options/options.h"
#include "train/planning/advice.h"
#include "train/planning/show_fit.h"
#include "train/rates/rates_cache.h"
#include "train/report/report.h"

/* Finds the least of the ranks' numbers. A double holds bytes exactly up to 2^53. [collective] */
static zero_status_t find_least(zero_comm_t *comm, uint64_t of_this_rank, uint64_t *of_all)
{
    size_t n_ranks = (size_t)zero_comm_size(comm), rank = (size_t)zero_comm_rank(comm);
    double *all = calloc(n_ranks, sizeof *all), mine = (double)of_this_rank;
    if (all)
        all[rank] = mine < 0x1p53 ? mine : 0x1p53;
    zero_status_t status = zero_comm_agree(
        comm, all ? ZERO_OK : report_rank_error(ZERO_ERROR_MEMORY, "no memory to compare %zu ranks", n_ranks));
    if (status == ZERO_OK)
        status = zero_comm_sum(comm, all, n_ranks);
    double least = 0x1p53;
    for (size_t r = 0; r < n_ranks && status == ZERO_OK; r++)
        least = all[r] < least ? all[r] : least;
    *of_all = (uint64_t)least;
    free(all);
    return status;
}

zero_status_t fit_find_available(zero_comm_t *comm, const zero_device_t *device, uint64_t *available)
{
    return find_least(comm, zero_device_available(device), available);
}

zero_status_t fit_find_host_bytes(const zero_options_t *o, zero_comm_t *comm, int ranks_per_host, uint64_t *host_bytes)
{
    uint64_t total, available, each;
    zero_host_memory(&total, &available);
    ZERO_TRY(
        find_least(comm, zero_pinned_to_plan(o->offload_ram, zero_comm_local_size(comm), total, available), &each));
    *host_bytes = each * (uint64_t)ranks_per_host;
    return ZERO_OK;
}

/* Finds the rates of rank 0's device: measured ones, else those of the GPU by its name; of one that the table does not
 * know, the H200's, since a choice depends on their ratios. Of hosts that differ, the one with the fewest ranks counts:
 * they receive most over the network, and all wait for them. */
static zero_status_t find_machine(const options_t *o, zero_comm_t *comm, const zero_device_t *device,
                                  fit_machine_t *machine)
{
    placement_t placement;
    ZERO_TRY(report_agree(comm, placement_find(comm, &placement)));
    *machine = (fit_machine_t){
        .n_ranks = zero_comm_size(comm), .ranks_per_host = placement.fewest, .kind = zero_comm_get_kind(comm)};
    ZERO_TRY(fit_find_host_bytes(&o->zero, comm, placement.fewest, &machine->host_bytes));
    if (zero_device_get_type(device) == ZERO_DEVICE_CPU)
        return fit_rates_of_this_cpu(comm, &machine->rates);
    bool is_known;
    fit_wanted_t wanted = {
        .is_gpu = true, .vendor_name = zero_device_name(device), .ranks = zero_comm_local_size(comm)};
    return fit_rates_choose(comm, &wanted, &machine->rates, &is_known);
}

uint64_t fit_limited(const device_options_t *o, uint64_t available)
{
    uint64_t limit = o->memory > 0.0 ? (uint64_t)(o->memory * 0x1p30) : UINT64_MAX;
    return limit < available ? limit : available;
}

static bool params_are_auto(const options_t *o)
{
    return o->device.type != ZERO_DEVICE_CPU && o->zero.offload == OFFLOAD_ALL &&
           o->zero.offload_params_ratio == (double)ZERO_OFFLOAD_AUTO;
}

static bool activations_are_auto(const options_t *o)
{
    return o->device.type != ZERO_DEVICE_CPU && o->model.offload_activations == (double)ZERO_OFFLOAD_AUTO;
}

void fit_describe_point(const options_t *asked, const fit_point_t *point, uint64_t budget, char *text, size_t n_bytes)
{
    const fit_choice_t *c = &point->choice;
    bool offloads = asked->zero.offload != OFFLOAD_NONE && asked->device.type != ZERO_DEVICE_CPU;
    bool keeps = asked->zero.keep == ZERO_KEEP_AUTO && asked->device.type != ZERO_DEVICE_CPU;
    fit_unit_t unit = fit_unit_of(point->bytes);
    char recompute[FIT_MIX_BYTES];
    fit_describe_recompute(c, asked->model.layers, recompute);
    size_t n = (size_t)snprintf(text, n_bytes, "stage %d, recompute %s", c->stage, recompute);
#define APPEND(...) n += n < n_bytes ? (size_t)snprintf(text + n, n_bytes - n, __VA_ARGS__) : 0
    if (fit_is_mixed(c))
        APPEND(" (full+light+none)");
    if (c->keep_attention && !asked->model.keep_attention)
        APPEND(", keep_attention");
    APPEND(", micro_batch %" PRId64, c->micro_batch);
    if (offloads && asked->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO)
        APPEND(", offload_ratio %.4g", c->offload_ratio);
    if (params_are_auto(asked))
        APPEND(", offload_params_ratio %.4g", c->params_ratio);
    if (activations_are_auto(asked))
        APPEND(", offload_activations %.4g", c->activations);
    if (c->offload_grads == ZERO_OFFLOAD_GRADS_HOST)
        APPEND(", sums of gradients in host memory between micro-steps");
    if (keeps)
        APPEND(", keep %" PRId64, c->keep);
    APPEND("; %.2f of %.2f %s", (double)point->bytes / unit.bytes, (double)budget / unit.bytes, unit.name);
    if (point->memory.pinned_bytes > 0)
        APPEND(" and %.2f of host memory", (double)point->memory.pinned_bytes / unit.bytes);
    APPEND(", predicted %.4g ms a step", point->time.total);
#undef APPEND
}

/* Takes a choice, but on the CPU not what does nothing there. */
static void take_choice(const fit_choice_t *choice, options_t *o)
{
    const zero_options_t asked = o->zero;
    fit_apply(choice, o);
    if (o->device.type != ZERO_DEVICE_CPU)
        return;
    o->zero.offload_ratio = asked.offload_ratio;
    o->zero.offload_params_ratio = asked.offload_params_ratio;
    o->zero.offload_grads = asked.offload_grads;
    o->zero.keep = asked.keep;
}

static zero_status_t take_best(fit_t *fit, options_t *o, fit_point_t *chosen)
{
    fit_result_t result;
    ZERO_TRY(fit_solve(fit, &result));
    zero_status_t status = ZERO_OK;
    if (result.n_points == 0)
        status = report_error(ZERO_ERROR_USAGE, "auto: no micro_batch that divides global_batch / ranks can be used: "
                                                "take another global_batch");
    else if (result.best < 0)
        status = fit_refuse(fit, &result.points[result.least]);
    if (status == ZERO_OK) {
        *chosen = result.points[result.best];
        take_choice(&chosen->choice, o);
    }
    free(result.points);
    return status;
}

zero_status_t fit_choose(options_t *o, const fit_machine_t *machine, uint64_t budget, fit_point_t *chosen)
{
    fit_t *fit;
    ZERO_TRY(fit_create(o, machine, budget, &fit));
    zero_status_t status = take_best(fit, o, chosen);
    fit_destroy(fit);
    return status;
}

/* ---- ranks that share a sequence ---- */

/* Returns whether a host's ranks, the heads and the batch, as it was asked for, allow K ranks to share a sequence. */
static bool may_share(const options_t *o, const fit_machine_t *machine, int64_t n)
{
    const int64_t micro = o->train.asked_micro, global = o->train.asked_global, groups = machine->n_ranks / n;
    const int64_t seq_len = o->model.seq_len;
    if (machine->n_ranks % n != 0 || fit_ranks_of_host(machine) % n != 0 || n > o->model.heads || n > seq_len)
        return false;
    if (n > 1 && o->train.objective == OBJECTIVE_DPO)
        return false;
    if (o->train.fp8 != FP8_NONE && (seq_len % n != 0 || seq_len / n % OPTIONS_FP8_MULTIPLE != 0))
        return false;
    return global == 0 || (global % groups == 0 && (micro <= 0 || global / groups % micro == 0));
}

static zero_status_t find_whether_fits_with(const options_t *o, const fit_machine_t *machine, uint64_t budget,
                                            bool *fits)
{
    fit_t *fit;
    ZERO_TRY(fit_create(o, machine, budget, &fit));
    zero_status_t status = fit_find_whether_any_fits(fit, fits);
    fit_destroy(fit);
    return status;
}

/* Resolves the batch as it was asked for, for n ranks a sequence. */
static zero_status_t set_sequence_ranks(options_t *o, int64_t n, int n_ranks)
{
    o->train.sequence_ranks = n;
    o->train.micro_batch = o->train.asked_micro;
    o->train.global_batch = o->train.asked_global;
    return options_resolve(o, n_ranks);
}

zero_status_t fit_choose_sequence_ranks(options_t *o, const fit_machine_t *machine, uint64_t budget)
{
    bool fits = false;
    if (o->train.asked_sequence != SEQUENCE_RANKS_AUTO)
        return ZERO_OK;
    for (int64_t n = 1; n <= OPTIONS_MAX_SEQUENCE_RANKS && !fits; n++) {
        options_t tried = *o;
        if (n < o->train.sequence_ranks || !may_share(o, machine, n))
            continue;
        ZERO_TRY(set_sequence_ranks(&tried, n, machine->n_ranks));
        ZERO_TRY(find_whether_fits_with(&tried, machine, budget, &fits));
        *o = tried; /* if none fits, the last takes least */
    }
    return ZERO_OK;
}

/* ---- what a run leaves open ---- */

/* What is open of what libzero can decide alone: the least offload, and the most that is kept. */
static bool ratio_is_auto(const options_t *o)
{
    return o->device.type != ZERO_DEVICE_CPU && o->zero.offload != OFFLOAD_NONE &&
           o->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO;
}

static bool keep_is_auto(const options_t *o)
{
    return o->device.type != ZERO_DEVICE_CPU && o->zero.keep == ZERO_KEEP_AUTO;
}

bool fit_leaves_open(const options_t *o)
{
    return o->train.asked_sequence == SEQUENCE_RANKS_AUTO || options_have_auto(o) || activations_are_auto(o) ||
           ratio_is_auto(o) || params_are_auto(o) || keep_is_auto(o);
}

/* Returns whether libzero can decide all that is open. It does not know of a limit, and it decides one after the other.
 */
static bool is_left_to_libzero(const options_t *o)
{
    bool offload_is_auto = ratio_is_auto(o) || params_are_auto(o);
    bool libzero_can = o->device.memory == 0.0 && !(offload_is_auto && keep_is_auto(o));
    return o->train.asked_sequence != SEQUENCE_RANKS_AUTO && !options_have_auto(o) && !activations_are_auto(o) &&
           (libzero_can || !fit_leaves_open(o));
}

/* Leaves to libzero what it finds in smaller steps: with all else as chosen, the least offload is the fastest, unless
 * the host updates, and so is the most that is kept. */
static void leave_to_libzero(const options_t *asked, options_t *o)
{
    bool is_limited = asked->device.memory > 0.0;
    bool ratio = ratio_is_auto(asked) && asked->zero.offload_update != ZERO_OFFLOAD_UPDATE_HOST && !is_limited;
    if (ratio)
        o->zero.offload_ratio = asked->zero.offload_ratio;
    if (o->zero.offload_grads == ZERO_OFFLOAD_GRADS_DEVICE && !is_limited)
        o->zero.offload_grads = asked->zero.offload_grads;
    if (keep_is_auto(asked) && !ratio && !is_limited)
        o->zero.keep = asked->zero.keep;
}

/* Workspaces depend on a rank's threads, of which hosts may give different numbers; so may what each rank chooses. */
static zero_status_t take_rank_0s(zero_comm_t *comm, options_t *o, fit_point_t *chosen)
{
    ZERO_TRY(zero_comm_broadcast(comm, chosen, sizeof *chosen, 0));
    take_choice(&chosen->choice, o);
    return ZERO_OK;
}

/* Only the number travels, so that a rank with other settings is found as ever. */
static zero_status_t take_rank_0s_sequence(zero_comm_t *comm, options_t *o)
{
    int64_t n = o->train.sequence_ranks;
    if (o->train.asked_sequence != SEQUENCE_RANKS_AUTO)
        return ZERO_OK;
    ZERO_TRY(zero_comm_broadcast(comm, &n, sizeof n, 0));
    report("auto: sequence_ranks %" PRId64, n);
    return n == o->train.sequence_ranks ? ZERO_OK : set_sequence_ranks(o, n, zero_comm_size(comm));
}

static zero_status_t choose_on(options_t *o, zero_comm_t *comm, const zero_device_t *device)
{
    uint64_t available;
    fit_machine_t machine;
    fit_point_t chosen;
    char text[320];
    ZERO_TRY(find_machine(o, comm, device, &machine));
    ZERO_TRY(fit_find_available(comm, device, &available));
    uint64_t budget = fit_limited(&o->device, zero_bytes_to_plan(available));
    ZERO_TRY(report_agree(comm, fit_choose_sequence_ranks(o, &machine, budget)));
    ZERO_TRY(report_agree(comm, take_rank_0s_sequence(comm, o)));
    const options_t asked = *o;
    ZERO_TRY(report_agree(comm, fit_choose(o, &machine, budget, &chosen)));
    ZERO_TRY(take_rank_0s(comm, o, &chosen));
    fit_describe_point(&asked, &chosen, budget, text, sizeof text);
    report("auto: %s", text);
    leave_to_libzero(&asked, o);
    return ZERO_OK;
}

zero_status_t fit_choose_auto(options_t *o, zero_comm_t *comm)
{
    zero_device_t *device;
    if (is_left_to_libzero(o))
        return ZERO_OK;
    ZERO_TRY(report_agree(comm, zero_device_create((zero_device_type_t)o->device.type, comm, &device)));
    zero_status_t status = report_agree(comm, choose_on(o, comm, device));
    zero_device_destroy(device);
    return status;
}

zero_status_t fit_settle_grads(options_t *o, const fit_machine_t *machine, uint64_t budget)
{
    fit_t *fit;
    fit_point_t point;
    ZERO_TRY(fit_create(o, machine, budget, &fit));
    const fit_choice_t choice = fit_choice_of(o);
    zero_status_t status = ZERO_OK;
    if (fit_find_open(fit, &choice).grads) {
        status = fit_evaluate(fit, &choice, &point);
        if (status == ZERO_OK && point.choice.offload_grads == ZERO_OFFLOAD_GRADS_HOST)
            o->zero.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    }
    fit_destroy(fit);
    return status;
}

static zero_status_t check(const options_t *o, const fit_machine_t *machine, uint64_t budget, zero_memory_t *planned)
{
    fit_t *fit;
    fit_point_t given = {0};
    ZERO_TRY(fit_create(o, machine, budget, &fit));
    fit_choice_t choice = fit_choice_of(o);
    zero_status_t status = fit_evaluate(fit, &choice, &given);
    if (status == ZERO_OK && !given.fits)
        status = fit_refuse(fit, &given);
    *planned = given.memory;
    fit_destroy(fit);
    return status;
}

/* Sets offload_params_ratio to the least share with which a plan of `budget` bytes fits, else to the most. */
static zero_status_t choose_params_ratio(options_t *o, const fit_machine_t *machine, uint64_t budget)
{
    fit_t *fit;
    fit_point_t point = {0};
    zero_status_t status = ZERO_OK;
    ZERO_TRY(fit_create(o, machine, budget, &fit));
    for (int i = 0; i <= FIT_PARAMS_RATIOS && status == ZERO_OK && !point.fits; i++) {
        o->zero.offload_params_ratio = (double)i / FIT_PARAMS_RATIOS;
        const fit_choice_t choice = fit_choice_of(o);
        status = fit_evaluate(fit, &choice, &point);
    }
    fit_destroy(fit);
    return status;
}

/* Checks a run that only computes forward. Without a limit libzero finds the least offload in smaller steps. */
static zero_status_t check_forward_on(options_t *o, zero_comm_t *comm, const zero_device_t *device)
{
    uint64_t available;
    fit_machine_t machine;
    zero_memory_t planned;
    options_t resolved = *o;
    ZERO_TRY(find_machine(o, comm, device, &machine));
    ZERO_TRY(fit_find_available(comm, device, &available));
    const uint64_t to_plan = fit_limited(&o->device, zero_bytes_to_plan(available));
    if (params_are_auto(o))
        ZERO_TRY(report_agree(comm, choose_params_ratio(&resolved, &machine, to_plan)));
    double *ratio = &resolved.zero.offload_params_ratio;
    ZERO_TRY(zero_comm_broadcast(comm, ratio, sizeof *ratio, 0));
    if (o->device.memory > 0.0)
        o->zero.offload_params_ratio = *ratio;
    return report_agree(comm, check(&resolved, &machine, fit_limited(&o->device, available), &planned));
}

zero_status_t fit_check_forward(options_t *o, zero_comm_t *comm)
{
    zero_device_t *device;
    ZERO_TRY(report_agree(comm, zero_device_create((zero_device_type_t)o->device.type, comm, &device)));
    zero_status_t status = check_forward_on(o, comm, device);
    zero_device_destroy(device);
    return status;
}

zero_status_t fit_check(options_t *o, zero_comm_t *comm, const zero_device_t *device, zero_memory_t *planned)
{
    uint64_t available;
    fit_machine_t machine;
    ZERO_TRY(find_machine(o, comm, device, &machine));
    ZERO_TRY(fit_find_available(comm, device, &available));
    options_t resolved = *o;
    resolved.device.type = (int)zero_device_get_type(device);
    const int asked = o->zero.offload_grads;
    ZERO_TRY(report_agree(
        comm, fit_settle_grads(&resolved, &machine, fit_limited(&o->device, zero_bytes_to_plan(available)))));
    o->zero.offload_grads = resolved.zero.offload_grads;
    if (o->zero.offload_grads != asked)
        report("offload: the run does not fit with the sums of gradients on the GPU; those of offloaded units wait in "
               "host memory between micro-steps");
    return report_agree(comm, check(&resolved, &machine, fit_limited(&o->device, available), planned));
}

/* ---- when memory runs out all the same ---- */

static void report_process(const zero_device_usage_t *usage, int i)
{
    fit_unit_t unit = fit_unit_of(usage->processes[i].n_bytes);
    const char *name = usage->processes[i].name;
    bool is_own = usage->processes[i].pid == getpid();
    char bytes[48] = "?";
    if (usage->processes[i].n_bytes > 0)
        snprintf(bytes, sizeof bytes, "%.2f %s", (double)usage->processes[i].n_bytes / unit.bytes, unit.name);
    report_rank_error(ZERO_ERROR_MEMORY, "  process %" PRId64 " (%s): %s", usage->processes[i].pid,
                      is_own    ? "this rank"
                      : name[0] ? name
                                : "not seen from here",
                      bytes);
}

zero_status_t fit_explain(zero_status_t status, const zero_memory_t *planned, const zero_device_t *device)
{
    zero_device_usage_t usage;
    uint64_t total, available;
    if (status != ZERO_ERROR_MEMORY || zero_device_find_usage(device, &usage) != ZERO_OK)
        return status;
    fit_unit_t unit = fit_unit_of(usage.total_bytes);
    report_rank_error(status, "memory ran out although the plan fitted:");
    fit_report_memory(planned, true);
    report_rank_error(status, "%.2f of %.2f %s are free now", (double)usage.free_bytes / unit.bytes,
                      (double)usage.total_bytes / unit.bytes, unit.name);
    zero_host_memory(&total, &available);
    if (planned->pinned_bytes > 0 && available != UINT64_MAX)
        report_rank_error(status, "%.2f of %.2f GiB of host memory are free now", (double)available / 0x1p30,
                          (double)total / 0x1p30);
    for (int i = 0; i < usage.n_processes; i++)
        report_process(&usage, i);
    if (usage.why_unknown[0])
        report_rank_error(status, "who holds the rest is not known: %s", usage.why_unknown);
    return report_rank_error(status, "end what else takes this memory, or set [device] memory to the GiB that a rank "
                                     "may take");
}
