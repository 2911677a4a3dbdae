/* show_plan.c - see show_plan.h. */
#include "train/planning/show_plan.h"

#include <stdlib.h>
#include <string.h>

#include "train/model/lora.h"
#include "train/model/model.h"
#include "train/planning/auto_settings.h"
#include "train/planning/fit_command.h"
#include "train/planning/plan_report.h"
#include "train/planning/show_fit.h"
#include "train/rates/rates_cache.h"
#include "train/report/report.h"

/* What a plan leaves open is planned at one end of its range. */
typedef struct choice {
    bool offload; /* else nothing is offloaded */
    bool keep;    /* every block, where [zero] keep is auto */
} choice_t;

/* Finds on which hosts the ranks are, or deals them out to as many as --hosts says. */
static zero_status_t find_ranks(const options_t *options, const zero_comm_t *comm, plan_ranks_t *ranks)
{
    *ranks = (plan_ranks_t){.n = zero_comm_size(comm), .per_host = zero_comm_local_size(comm)};
    ranks->hosts = calloc((size_t)ranks->n, sizeof *ranks->hosts);
    if (!ranks->hosts)
        return report_error(ZERO_ERROR_MEMORY, "--plan: no memory for the hosts of %d ranks", ranks->n);
    ranks->n_hosts = zero_comm_hosts(comm, ranks->hosts);
    ranks->memory_kind = zero_comm_get_kind(comm);
    ranks->traffic_kind = options->zero.comm == ZERO_COMM_NCCL       ? ZERO_COMM_NCCL
                          : strcmp(zero_comm_name(comm), "mpi") == 0 ? ZERO_COMM_MPI
                                                                     : ZERO_COMM_AUTO;
    if (options->hosts == 0)
        return ZERO_OK;
    ranks->n_hosts = (int)options->hosts;
    ranks->per_host = ranks->n / ranks->n_hosts;
    ranks->traffic_kind = (zero_comm_kind_t)options->zero.comm;
    if (ranks->n_hosts > 1)
        ranks->memory_kind = ZERO_COMM_MPI;
    for (int rank = 0; rank < ranks->n; rank++)
        ranks->hosts[rank] = rank / ranks->per_host;
    return ZERO_OK;
}

static zero_config_t stage_config(const options_t *options, const plan_ranks_t *ranks, int stage)
{
    zero_config_t config = options_config(options, ranks->n);
    config.stage = stage;
    if (stage < 3)
        config.offload_params = 0.0f;             /* parameters are offloaded at stage 3 */
    if (stage == 0 && options->zero.stage != 0) { /* it has neither: its column is without */
        config.gradients = ZERO_FP32;
        config.update = ZERO_UPDATE_IN_STEP;
    }
    if (config.shard_group == ZERO_SHARD_GROUP_HOST)
        config.shard_group = ranks->per_host;
    return config;
}

static zero_status_t plan_stages(const options_t *options, const plan_ranks_t *ranks, const model_t *model,
                                 choice_t choice, zero_memory_t plans[PLAN_N_STAGES])
{
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        zero_config_t config = stage_config(options, ranks, stage);
        config.offload &= choice.offload && stage > 0; /* stage 0 has none */
        if (!choice.offload)
            config.offload_params = 0.0f;
        if (choice.keep && config.keep == ZERO_KEEP_AUTO)
            config.keep = zero_model_n_units(model->declaration);
        ZERO_TRY(zero_plan(model->declaration, &config, (zero_device_type_t)options->device.type, ranks->memory_kind,
                           ranks->n, &plans[stage]));
        model_plan(model, &plans[stage]);
    }
    return ZERO_OK;
}

/* ---- traffic ---- */

static void traffic_free(plan_traffic_t *traffic)
{
    free(traffic->ranks);
    free(traffic->received);
    free(traffic->sent);
}

static zero_status_t plan_traffic(const options_t *options, const plan_ranks_t *ranks, const model_t *model,
                                  plan_traffic_t *traffic)
{
    *traffic = (plan_traffic_t){.ranks = calloc((size_t)ranks->n, sizeof *traffic->ranks),
                                .received = calloc((size_t)ranks->n_hosts, sizeof *traffic->received),
                                .sent = calloc((size_t)ranks->n_hosts, sizeof *traffic->sent)};
    if (!traffic->ranks || !traffic->received || !traffic->sent)
        return report_error(ZERO_ERROR_MEMORY, "--plan: no memory for the traffic of %d ranks", ranks->n);
    for (int stage = 0; stage < PLAN_N_STAGES; stage++) {
        zero_config_t config = stage_config(options, ranks, stage);
        config.offload &= stage > 0;
        ZERO_TRY(zero_plan_traffic(model->declaration, &config, (zero_device_type_t)options->device.type,
                                   ranks->traffic_kind, ranks->n, ranks->hosts, traffic->ranks));
        for (int rank = 0; rank < ranks->n; rank++) {
            const zero_traffic_t *of = &traffic->ranks[rank];
            uint64_t *local = &traffic->most_local[stage], *received = &traffic->most_received[stage];
            *local = of->local_bytes > *local ? of->local_bytes : *local;
            traffic->to_gpu[stage] = of->to_gpu_bytes; /* every rank's */
            traffic->to_host[stage] = of->to_host_bytes;
            *received = of->received_bytes > *received ? of->received_bytes : *received;
            traffic->received[ranks->hosts[rank]][stage] += of->received_bytes;
            traffic->sent[ranks->hosts[rank]][stage] += of->sent_bytes;
        }
    }
    return ZERO_OK;
}

/* ---- all of it ---- */

/* Finds what a plan may take: of a GPU that is described, of a limit, or of the memory that the CPU has free; of that,
 * what auto settings may plan with; and, if there are any, how fast the device is. */
static zero_status_t find_room(const options_t *o, zero_comm_t *comm, const zero_device_t *device, fit_rates_t *rates,
                               plan_report_t *report)
{
    bool on_cpu = o->device.type == ZERO_DEVICE_CPU, describes_gpu = o->fit.gpu_bytes > 0.0 || o->fit.gpu[0];
    bool is_known = on_cpu || describes_gpu, needs_rates = fit_leaves_open(o);
    uint64_t available = PLAN_ROOM_UNKNOWN;
    if (describes_gpu && on_cpu)
        return report_error(ZERO_ERROR_USAGE, "--gpu, --gpu-memory: this plan is for the CPU; for GPUs add --set "
                                              "device.type=cuda");
    if (on_cpu && o->fit.host_bytes > 0.0 && o->zero.offload == OFFLOAD_NONE)
        return report_error(ZERO_ERROR_USAGE, "--host-memory: this plan is for the CPU, and nothing is offloaded: to "
                                              "limit what a run may take, set [device] memory");
    if (on_cpu && needs_rates)
        ZERO_TRY(fit_rates_of_this_cpu(comm, rates));
    if (on_cpu)
        ZERO_TRY(fit_find_available(comm, device, &available));
    else if (describes_gpu || needs_rates)
        ZERO_TRY(fit_describe_gpu(&o->fit, o->train.fp8 != FP8_NONE, comm, rates, &available));
    uint64_t known = is_known ? available : PLAN_ROOM_UNKNOWN;
    uint64_t to_plan = is_known ? zero_bytes_to_plan(available) : PLAN_ROOM_UNKNOWN;
    report->room = fit_limited(&o->device, known);
    report->choice.budget = fit_limited(&o->device, to_plan);
    return ZERO_OK;
}

/* Solves what is auto for the memory that is known. Without any, only what every plan depends on has to be set. */
static zero_status_t choose(options_t *o, const fit_rates_t *rates, plan_report_t *report)
{
    fit_machine_t machine = {.rates = *rates,
                             .n_ranks = report->ranks.n,
                             .ranks_per_host = report->ranks.per_host,
                             .host_bytes = fit_described_host_bytes(&o->fit, o->zero.offload_ram),
                             .kind = report->ranks.memory_kind};
    machine.rates.is_gpu = o->device.type != ZERO_DEVICE_CPU; /* whose rates may be unknown if nothing is auto */
    if (!fit_leaves_open(o))
        return report->room == PLAN_ROOM_UNKNOWN ? ZERO_OK : fit_settle_grads(o, &machine, report->choice.budget);
    if (report->room != PLAN_ROOM_UNKNOWN) {
        ZERO_TRY(fit_choose_sequence_ranks(o, &machine, report->choice.budget));
        ZERO_TRY(fit_choose(o, &machine, report->choice.budget, &report->choice.point));
        report->choice.is_made = true;
        return ZERO_OK;
    }
    if (o->train.micro_batch == MICRO_BATCH_AUTO || o->model.recompute == RECOMPUTE_AUTO)
        return report_error(ZERO_ERROR_USAGE, "--plan: micro_batch or recompute is auto, which depends on the memory "
                                              "of a GPU, and this opens none: say what it has with --gpu-memory SIZE "
                                              "or --gpu NAME, or set [device] memory");
    return ZERO_OK;
}

/* Finds all that is shown. The CPU's device sets how many threads a rank has, on which workspaces depend. */
static zero_status_t resolve(options_t *o, zero_comm_t *comm, plan_report_t *report)
{
    zero_device_t *device;
    fit_rates_t rates = {0};
    ZERO_TRY(find_ranks(o, comm, &report->ranks));
    ZERO_TRY(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_status_t status = find_room(o, comm, device, &rates, report);
    zero_device_destroy(device);
    ZERO_TRY(status);
    return choose(o, &rates, report);
}

static zero_status_t make_report(const options_t *options, const model_t *model, plan_report_t *report)
{
    ZERO_TRY(plan_stages(options, &report->ranks, model, (choice_t){.offload = true}, report->least));
    ZERO_TRY(plan_stages(options, &report->ranks, model, (choice_t){.offload = false}, report->without));
    ZERO_TRY(plan_stages(options, &report->ranks, model, (choice_t){.offload = true, .keep = true}, report->kept));
    ZERO_TRY(plan_traffic(options, &report->ranks, model, &report->traffic));
    zero_memory_t user = {0};
    model_plan(model, &user);
    report->stash_bytes = user.pinned_bytes;
    plan_add_stash(report);
    plan_add_exchanges(model, report);
    report->n_params = zero_model_n_params(model->declaration);
    report->n_saved = model->lora ? (uint64_t)lora_n_params(model) : report->n_params;
    const zero_config_t config = stage_config(options, &report->ranks, 0); /* the same bytes at every stage */
    return zero_checkpoint_bytes(model->declaration, &config, &report->checkpoint_bytes);
}

static zero_status_t print_report(const plan_report_t *report)
{
    if (report->options->json)
        return plan_print_json(report);
    plan_print_bytes(report);
    plan_print_readable(report);
    return ZERO_OK;
}

/* Fails if the stage that is set needs more than there is, as the run would. */
static zero_status_t check_fits(const plan_report_t *report)
{
    const int64_t stage = report->options->zero.stage;
    const uint64_t total = stage == STAGE_AUTO ? 0 : zero_memory_total(&report->least[stage]);
    if (total <= report->room)
        return ZERO_OK;
    const fit_unit_t unit = fit_unit_of(total - report->room);
    return report_error(ZERO_ERROR_MEMORY,
                        "stage %lld, which is set, does not fit: %.2f %s over; zerotrain fit says what would",
                        (long long)stage, (double)(total - report->room) / unit.bytes, unit.name);
}

static zero_status_t show(const plan_report_t *made, const zero_comm_t *comm)
{
    plan_report_t report = *made;
    model_t model;
    ZERO_TRY(model_create(report.options, &model));
    zero_status_t status = make_report(report.options, &model, &report);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0)
        status = print_report(&report);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0)
        status = check_fits(&report);
    traffic_free(&report.traffic);
    model_destroy(&model);
    return status;
}

zero_status_t show_plan(const options_t *options, zero_comm_t *comm)
{
    options_t resolved = *options;
    plan_report_t report = {.options = &resolved, .asked = options};
    zero_status_t status = resolve(&resolved, comm, &report);
    if (status == ZERO_OK)
        status = show(&report, comm);
    free(report.ranks.hosts);
    return status;
}
