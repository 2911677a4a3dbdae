/* show_plan.c - see show_plan.h. */
#include "train/show_plan.h"

#include <stdio.h>

#include "train/model/model.h"
#include "train/report/report.h"

enum { N_STAGES = 4 };

static zero_status_t plan_stages(const options_t *options, const zero_comm_t *comm, const model_t *model, bool offload,
                                 zero_memory_t plans[N_STAGES])
{
    int n_ranks = zero_comm_size(comm);
    for (int stage = 0; stage < N_STAGES; stage++) {
        zero_config_t config = options_config(options, n_ranks);
        config.stage = stage;
        config.offload &= offload && stage > 0; /* stage 0 has none */
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

static void print_plans(const options_t *options, int n_ranks, uint64_t n_params, const zero_memory_t plans[N_STAGES],
                        const zero_memory_t without[N_STAGES])
{
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
        print_row("total, no offload", without, zero_memory_total);
        printf("with offload_ratio = auto, the total is between these two: as little is offloaded as the GPUs' free "
               "memory allows\n");
    }
}

zero_status_t show_plan(const options_t *options, const zero_comm_t *comm)
{
    zero_memory_t plans[N_STAGES] = {0}, without[N_STAGES] = {0}; /* without: nothing is offloaded */
    model_t model;
    zero_device_t *device; /* sets how many threads a rank has, on which workspaces depend */
    TRY(zero_device_create(ZERO_DEVICE_CPU, comm, &device));
    zero_device_destroy(device);
    TRY(model_create(options, &model));
    zero_status_t status = plan_stages(options, comm, &model, true, plans);
    if (status == ZERO_OK)
        status = plan_stages(options, comm, &model, false, without);
    if (status == ZERO_OK && zero_comm_rank(comm) == 0)
        print_plans(options, zero_comm_size(comm), zero_model_n_params(model.declaration), plans, without);
    model_destroy(&model);
    return status;
}
