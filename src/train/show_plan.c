/* show_plan.c - see show_plan.h. */
#include "train/show_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/model/model.h"
#include "train/report/report.h"

enum { N_STAGES = 4 };

/* What a plan leaves open is planned at one end of its range. */
typedef struct choice {
    bool offload; /* else nothing is offloaded */
    bool keep;    /* every block, where [zero] keep is auto */
} choice_t;

/* The ranks that a plan is for. */
typedef struct ranks {
    int n, n_hosts, per_host; /* per_host: of rank 0's host */
    int *hosts;               /* [n] by rank */
    zero_comm_kind_t memory_kind, traffic_kind;
} ranks_t;

/* Finds on which hosts the ranks are, or deals them out to as many as --hosts says. */
static zero_status_t find_ranks(const options_t *options, const zero_comm_t *comm, ranks_t *ranks)
{
    *ranks = (ranks_t){.n = zero_comm_size(comm), .per_host = zero_comm_local_size(comm)};
    ranks->hosts = calloc((size_t)ranks->n, sizeof *ranks->hosts);
    if (!ranks->hosts)
        return report_error(ZERO_ERROR_MEMORY, "--plan: no memory for the hosts of %d ranks", ranks->n);
    ranks->n_hosts = zero_comm_hosts(comm, ranks->hosts);
    ranks->memory_kind = zero_comm_get_kind(comm);
    ranks->traffic_kind = strcmp(zero_comm_name(comm), "mpi") == 0 ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
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

static zero_config_t stage_config(const options_t *options, const ranks_t *ranks, int stage)
{
    zero_config_t config = options_config(options, ranks->n);
    config.stage = stage;
    if (config.shard_group == ZERO_SHARD_GROUP_HOST)
        config.shard_group = ranks->per_host;
    return config;
}

static zero_status_t plan_stages(const options_t *options, const ranks_t *ranks, const model_t *model, choice_t choice,
                                 zero_memory_t plans[N_STAGES])
{
    for (int stage = 0; stage < N_STAGES; stage++) {
        zero_config_t config = stage_config(options, ranks, stage);
        config.offload &= choice.offload && stage > 0; /* stage 0 has none */
        if (choice.keep && config.keep == ZERO_KEEP_AUTO)
            config.keep = zero_model_n_units(model->declaration);
        TRY(zero_plan(model->declaration, &config, (zero_device_type_t)options->device.type, ranks->memory_kind,
                      ranks->n, &plans[stage]));
        model_plan(model, &plans[stage]);
    }
    return ZERO_OK;
}

static void print_row(const char *name, const zero_memory_t plans[N_STAGES], uint64_t (*value)(const zero_memory_t *))
{
    printf("%-20s", name);
    for (int stage = 0; stage < N_STAGES; stage++)
        printf(" %15llu", (unsigned long long)value(&plans[stage]));
    printf("\n");
}

static uint64_t pinned_bytes(const zero_memory_t *plan)
{
    return plan->pinned_bytes;
}

/* The plans of all stages: at the least that the device can hold, with nothing offloaded, with all blocks kept. */
typedef struct plans {
    zero_memory_t least[N_STAGES], without[N_STAGES], kept[N_STAGES];
} plans_t;

static void print_plans(const options_t *options, int n_ranks, uint64_t n_params, const plans_t *all)
{
    const zero_memory_t *plans = all->least;
    char set[24] = "auto";
    if (options->zero.stage != STAGE_AUTO)
        snprintf(set, sizeof set, "%lld", (long long)options->zero.stage);
    bool on_gpus = options->device.type != ZERO_DEVICE_CPU, hosts = plans[1].pinned_bytes > 0;
    printf("bytes held by each of %d rank%s, %.2fM parameters, %s, on %s; [zero] stage is %s\n", n_ranks,
           n_ranks == 1 ? "" : "s", (double)n_params * 1e-6, zero_dtype_name((zero_dtype_t)options->train.precision),
           on_gpus ? "GPUs" : "the CPU", set);
    printf("%-20s %15s %15s %15s %15s\n", "", "stage 0", "stage 1", "stage 2", "stage 3");
    for (int c = 0; c < ZERO_MEMORY_N_CATEGORIES; c++) {
        printf("%-20s", zero_memory_name((zero_memory_category_t)c));
        for (int stage = 0; stage < N_STAGES; stage++)
            printf(" %15llu", (unsigned long long)plans[stage].bytes[c]);
        printf("\n");
    }
    print_row("total", plans, zero_memory_total);
    if (on_gpus)
        printf("plus CUDA, its libraries and graphs: about 590000000 (seen on H200s)\n");
    if (options->zero.offload == OFFLOAD_OPTIMIZER && hosts)
        print_row("pinned host memory", plans, pinned_bytes);
    if (options->zero.offload_ratio == (double)ZERO_OFFLOAD_AUTO && hosts) {
        print_row("total, no offload", all->without, zero_memory_total);
        printf("with offload_ratio = auto, the total is between these two: as little is offloaded as the GPUs' free "
               "memory allows\n");
    }
    if (options->zero.keep == ZERO_KEEP_AUTO && on_gpus) {
        print_row("total, all kept", all->kept, zero_memory_total);
        printf("with keep = auto, stage 3 keeps as many of the last blocks as the GPUs' free memory allows\n");
    }
}

/* ---- traffic ---- */

/* Of each stage: the most that a rank receives, and what each host receives and sends. */
typedef struct traffic {
    zero_traffic_t *ranks; /* [n] */
    uint64_t most_local[N_STAGES], most_received[N_STAGES];
    uint64_t (*received)[N_STAGES], (*sent)[N_STAGES]; /* [n_hosts] */
} traffic_t;

static void traffic_free(traffic_t *traffic)
{
    free(traffic->ranks);
    free(traffic->received);
    free(traffic->sent);
}

static zero_status_t plan_traffic(const options_t *options, const ranks_t *ranks, const model_t *model,
                                  traffic_t *traffic)
{
    *traffic = (traffic_t){.ranks = calloc((size_t)ranks->n, sizeof *traffic->ranks),
                           .received = calloc((size_t)ranks->n_hosts, sizeof *traffic->received),
                           .sent = calloc((size_t)ranks->n_hosts, sizeof *traffic->sent)};
    if (!traffic->ranks || !traffic->received || !traffic->sent)
        return report_error(ZERO_ERROR_MEMORY, "--plan: no memory for the traffic of %d ranks", ranks->n);
    for (int stage = 0; stage < N_STAGES; stage++) {
        zero_config_t config = stage_config(options, ranks, stage);
        config.offload &= stage > 0;
        TRY(zero_plan_traffic(model->declaration, &config, (zero_device_type_t)options->device.type,
                              ranks->traffic_kind, ranks->n, ranks->hosts, traffic->ranks));
        for (int rank = 0; rank < ranks->n; rank++) {
            const zero_traffic_t *of = &traffic->ranks[rank];
            uint64_t *local = &traffic->most_local[stage], *received = &traffic->most_received[stage];
            *local = of->local_bytes > *local ? of->local_bytes : *local;
            *received = of->received_bytes > *received ? of->received_bytes : *received;
            traffic->received[ranks->hosts[rank]][stage] += of->received_bytes;
            traffic->sent[ranks->hosts[rank]][stage] += of->sent_bytes;
        }
    }
    return ZERO_OK;
}

static void print_bytes(const char *name, const uint64_t bytes[N_STAGES])
{
    printf("%-20s", name);
    for (int stage = 0; stage < N_STAGES; stage++)
        printf(" %15llu", (unsigned long long)bytes[stage]);
    printf("\n");
}

/* Returns whether every host receives and sends as much as host 0. */
static bool hosts_are_alike(const ranks_t *ranks, const traffic_t *traffic)
{
    bool alike = true;
    for (int host = 1; host < ranks->n_hosts; host++)
        alike = alike && memcmp(traffic->received[host], traffic->received[0], sizeof traffic->received[0]) == 0 &&
                memcmp(traffic->sent[host], traffic->sent[0], sizeof traffic->sent[0]) == 0;
    return alike;
}

static void print_traffic(const ranks_t *ranks, const traffic_t *traffic)
{
    if (ranks->n == 1)
        return;
    printf("bytes received in a step, %d ranks on %d host%s\n", ranks->n, ranks->n_hosts,
           ranks->n_hosts == 1 ? "" : "s");
    print_bytes("rank, from its host", traffic->most_local);
    if (ranks->n_hosts == 1)
        return;
    print_bytes("rank, from others", traffic->most_received);
    const bool alike = hosts_are_alike(ranks, traffic);
    for (int host = 0; host < (alike ? 1 : ranks->n_hosts); host++) {
        char received[32] = "host, received", sent[32] = "host, sent";
        if (!alike) {
            snprintf(received, sizeof received, "host %d, received", host);
            snprintf(sent, sizeof sent, "host %d, sent", host);
        }
        print_bytes(received, traffic->received[host]);
        print_bytes(sent, traffic->sent[host]);
    }
}

/* Prints what checkpoints in memory take on a host. */
static zero_status_t print_memory_checkpoints(const options_t *options, const zero_model_t *declaration)
{
    uint64_t n_bytes;
    if (options->checkpoint.memory_every == 0)
        return ZERO_OK;
    TRY(zero_checkpoint_bytes(declaration, (zero_dtype_t)options->train.precision, &n_bytes));
    printf("memory checkpoint    %15llu bytes in each host's memory, and as many again while the next is written\n",
           (unsigned long long)n_bytes);
    return ZERO_OK;
}

zero_status_t show_plan(const options_t *options, const zero_comm_t *comm)
{
    plans_t plans = {0};
    model_t model;
    ranks_t ranks;
    traffic_t traffic = {0};
    if (options->train.micro_batch == MICRO_BATCH_AUTO || options->model.recompute == RECOMPUTE_AUTO)
        return report_error(ZERO_ERROR_USAGE,
                            "--plan: micro_batch or recompute is auto, which depends on the memory that "
                            "there is: set it, or let zerotrain fit choose");
    zero_device_t *device; /* sets how many threads a rank has, on which workspaces depend */
    TRY(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_device_destroy(device);
    TRY(model_create(options, &model));
    zero_status_t status = find_ranks(options, comm, &ranks);
    if (status == ZERO_OK)
        status = plan_stages(options, &ranks, &model, (choice_t){.offload = true}, plans.least);
    if (status == ZERO_OK)
        status = plan_stages(options, &ranks, &model, (choice_t){.offload = false}, plans.without);
    if (status == ZERO_OK)
        status = plan_stages(options, &ranks, &model, (choice_t){.offload = true, .keep = true}, plans.kept);
    if (status == ZERO_OK)
        status = plan_traffic(options, &ranks, &model, &traffic);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0) {
        print_plans(options, ranks.n, zero_model_n_params(model.declaration), &plans);
        print_traffic(&ranks, &traffic);
        status = print_memory_checkpoints(options, model.declaration);
    }
    traffic_free(&traffic);
    free(ranks.hosts);
    model_destroy(&model);
    return status;
}
