/* show_plan.c - see show_plan.h. */
#include "train/show_plan.h"

#include <stdio.h>

#include "train/model/model.h"
#include "train/report/report.h"

enum { N_STAGES = 4 };

/* What a plan leaves open is planned at one end of its range. */
typedef struct choice {
    bool offload; /* else nothing is offloaded */
    bool keep;    /* every block, where [zero] keep is auto */
} choice_t;

static zero_status_t plan_stages(const options_t *options, const zero_comm_t *comm, const model_t *model,
                                 choice_t choice, zero_memory_t plans[N_STAGES])
{
    int n_ranks = zero_comm_size(comm);
    for (int stage = 0; stage < N_STAGES; stage++) {
        zero_config_t config = options_config(options, n_ranks);
        config.stage = stage;
        config.offload &= choice.offload && stage > 0; /* stage 0 has none */
        if (choice.keep && config.keep == ZERO_KEEP_AUTO)
            config.keep = zero_model_n_units(model->declaration);
        if (config.shard_group == ZERO_SHARD_GROUP_HOST)
            config.shard_group = zero_comm_local_size(comm);
        TRY(zero_plan(model->declaration, &config, (zero_device_type_t)options->device.type, zero_comm_get_kind(comm),
                      n_ranks, &plans[stage]));
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
    bool on_gpus = options->device.type != ZERO_DEVICE_CPU, hosts = plans[1].pinned_bytes > 0;
    printf("bytes held by each of %d rank%s, %.2fM parameters, %s, on %s; [zero] stage is %lld\n", n_ranks,
           n_ranks == 1 ? "" : "s", (double)n_params * 1e-6, zero_dtype_name((zero_dtype_t)options->train.precision),
           on_gpus ? "GPUs" : "the CPU", (long long)options->zero.stage);
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

zero_status_t show_plan(const options_t *options, const zero_comm_t *comm)
{
    plans_t plans = {0};
    model_t model;
    zero_device_t *device; /* sets how many threads a rank has, on which workspaces depend */
    TRY(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_device_destroy(device);
    TRY(model_create(options, &model));
    zero_status_t status = plan_stages(options, comm, &model, (choice_t){.offload = true}, plans.least);
    if (status == ZERO_OK)
        status = plan_stages(options, comm, &model, (choice_t){.offload = false}, plans.without);
    if (status == ZERO_OK)
        status = plan_stages(options, comm, &model, (choice_t){.offload = true, .keep = true}, plans.kept);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0)
        print_plans(options, zero_comm_size(comm), zero_model_n_params(model.declaration), &plans);
    model_destroy(&model);
    return status;
}
