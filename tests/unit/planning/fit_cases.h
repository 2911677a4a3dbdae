/* fit_cases.h - small models, machines and budgets for the solver, and plans of single choices from nothing: what the
 * solver is compared with. */
#ifndef ZERO_TEST_FIT_CASES_H
#define ZERO_TEST_FIT_CASES_H

#include <time.h>

#include "tests/support/support.h"
#include "train/options/options_table.h"
#include "train/planning/largest.h"
#include "train/planning/solve.h"

/* A search is to take less than a second; sanitizers make it several times as slow. */
#ifdef __SANITIZE_ADDRESS__
#define IN_SECONDS 4.0
#else
#define IN_SECONDS 1.0
#endif

static inline double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What is auto beside stage, recomputation and micro-batch. */
typedef enum fit_open_case { ON_CPU, ON_GPU, RATIO, KEEP, RATIO_AND_KEEP, ON_HOST_AND_KEEP, N_OPEN } fit_open_case_t;

typedef struct fit_case {
    options_arch_t arch;
    int n_ranks, budget; /* budget: 0 little, 1, 2, 3 plenty */
    zero_dtype_t dtype;
    fit_open_case_t open;
} fit_case_t;

#define N_ARCHS 2
#define N_RANKS 4
#define N_BUDGETS 4
#define N_DTYPES 2
#define N_SEARCHES (N_ARCHS * N_RANKS * N_BUDGETS * N_DTYPES)

static inline fit_case_t case_of(int i, fit_open_case_t open)
{
    static const int ranks[N_RANKS] = {1, 2, 4, 8};
    static const zero_dtype_t dtypes[N_DTYPES] = {ZERO_BF16, ZERO_FP32};
    return (fit_case_t){.arch = i % N_ARCHS == 0 ? ARCH_GPT2 : ARCH_LLAMA,
                        .n_ranks = ranks[i / N_ARCHS % N_RANKS],
                        .budget = i / N_ARCHS / N_RANKS % N_BUDGETS,
                        .dtype = dtypes[i / N_ARCHS / N_RANKS / N_BUDGETS],
                        .open = open};
}

static inline fit_machine_t machine_of(const fit_case_t *c)
{
    return (fit_machine_t){.rates = c->open == ON_CPU ? *fit_rates_of_cpu() : *fit_rates_find("H200"),
                           .n_ranks = c->n_ranks,
                           .ranks_per_host = 8,
                           .host_bytes = FIT_HOST_UNKNOWN};
}

/* Models are always the CPU's, since a build without CUDA does not know a GPU's workspace; libzero plans for GPUs
 * anywhere. */
static inline options_t options_of(const fit_case_t *c)
{
    static options_t o;
    options_set_defaults(&o);
    o.device.type = ZERO_DEVICE_CPU;
    o.model.arch = (int)c->arch;
    o.model.layers = c->open == ON_CPU ? 6 : 5;
    o.model.dim = 512;
    o.model.heads = 8;
    o.model.vocab_size = 5000;
    o.model.seq_len = 256;
    o.train.precision = (int)c->dtype;
    o.train.global_batch = 12 * c->n_ranks; /* micro-batches 1, 2, 3, 4, 6 and 12 */
    o.train.micro_batch = MICRO_BATCH_AUTO;
    o.zero.stage = STAGE_AUTO;
    o.model.recompute = RECOMPUTE_AUTO;
    if (c->open == RATIO || c->open == RATIO_AND_KEEP || c->open == ON_HOST_AND_KEEP) {
        o.zero.offload = OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    }
    if (c->open == KEEP || c->open == RATIO_AND_KEEP || c->open == ON_HOST_AND_KEEP)
        o.zero.keep = ZERO_KEEP_AUTO;
    if (c->open == ON_HOST_AND_KEEP)
        o.zero.offload_update = ZERO_OFFLOAD_UPDATE_HOST;
    ck_assert_int_eq(options_resolve(&o, c->n_ranks), ZERO_OK);
    return o;
}

/* Opens the solver; libzero's plans are for a GPU if the machine is one. */
static inline fit_t *open_fit(const options_t *o, const fit_machine_t *machine, uint64_t budget)
{
    fit_t *fit;
    ck_assert_int_eq(fit_create(o, machine, budget, &fit), ZERO_OK);
    fit->options.device.type = machine->rates.is_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU;
    return fit;
}

typedef struct tried {
    fit_choice_t choice;
    uint64_t bytes;
    double ms;
} tried_t;

static inline options_t with_choice(const options_t *base, const fit_choice_t *choice)
{
    options_t o = *base;
    o.zero.stage = choice->stage;
    o.model.recompute = choice->recompute;
    o.model.recompute_none = choice->none;
    o.model.recompute_light = choice->light;
    o.train.micro_batch = choice->micro_batch;
    o.zero.offload_ratio = choice->offload_ratio;
    o.zero.keep = choice->keep;
    o.model.offload_activations = choice->activations;
    if (choice->offload_grads != ZERO_OFFLOAD_GRADS_AUTO)
        o.zero.offload_grads = choice->offload_grads;
    return o;
}

static inline void plan_library(const options_t *o, const fit_machine_t *machine, const zero_model_t *declaration,
                                zero_memory_t *memory)
{
    zero_config_t config = options_config(o, machine->n_ranks);
    config.offload &= config.offload_ratio > 0.0f && machine->rates.is_gpu;
    ck_assert_int_eq(zero_plan(declaration, &config, machine->rates.is_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU,
                               ZERO_COMM_AUTO, machine->n_ranks, memory),
                     ZERO_OK);
}

/* Plans one choice from nothing: its own model, its own plan. */
static inline tried_t try_mix(const options_t *base, const fit_machine_t *machine, fit_choice_t choice)
{
    options_t o = with_choice(base, &choice);
    zero_memory_t memory;
    model_t model;
    ck_assert_int_eq(model_create(&o, &model), ZERO_OK);
    o.device.type = machine->rates.is_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU; /* as in open_fit */
    plan_library(&o, machine, model.declaration, &memory);
    model_plan(&model, &memory);
    model_destroy(&model);
    fit_time_t time = fit_step_time(&o, machine, (double)memory.bytes[ZERO_MEMORY_ACTIVATIONS]);
    return (tried_t){choice, zero_memory_total(&memory), time.total};
}

static inline tried_t try_choice(const options_t *base, const fit_machine_t *machine, int stage, int recompute,
                                 int64_t micro)
{
    return try_mix(base, machine, (fit_choice_t){.stage = stage, .recompute = recompute, .micro_batch = micro});
}

/* Tries every stage and micro-batch with all blocks alike, nothing offloaded and nothing kept. */
static inline int try_all(const options_t *o, const fit_machine_t *machine, tried_t *tried)
{
    int n = 0;
    for (int64_t micro = 1; micro <= 12; micro++)
        for (int stage = 0; stage <= 3 && 12 % micro == 0; stage++)
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
                tried[n++] = try_choice(o, machine, stage, recompute, micro);
    return n;
}

/* Returns whether a is simpler than b: less offloaded, blocks alike, less recomputed, a lower stage, fewer micro-steps.
 */
static inline bool is_simpler(const fit_choice_t *a, const fit_choice_t *b)
{
    const double of_a[] = {a->offload_ratio, fit_is_mixed(a), a->recompute, a->stage, -(double)a->micro_batch};
    const double of_b[] = {b->offload_ratio, fit_is_mixed(b), b->recompute, b->stage, -(double)b->micro_batch};
    for (int i = 0; i < 5; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] < of_b[i];
    return false;
}

/* Returns bytes from that of the smallest choice (part 0) to that of the largest (1). */
static inline uint64_t budget_of(const tried_t *tried, int n, double part)
{
    double least = 1e300, most = 0.0;
    for (int i = 0; i < n; i++) {
        least = (double)tried[i].bytes < least ? (double)tried[i].bytes : least;
        most = (double)tried[i].bytes > most ? (double)tried[i].bytes : most;
    }
    return (uint64_t)(least + part * (most - least));
}

#endif
