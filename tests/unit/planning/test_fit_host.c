/* test_fit_host.c - the solver where host memory is short: what it chooses fits the device and the host, and what it
 * refuses does not fit in any way that a coarse search from nothing finds. Sizes and ranks of a host, optimizers, fp8
 * and stages vary.
 */
#define SUPPORT_SANITIZE_SOME
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "train/options/options_table.h"
#include "train/planning/advice.h"
#include "zero/plan/layout.h"
#include "zero/plan/plan.h"

#define GIB ((uint64_t)1 << 30)
#define COARSE 16 /* ratios of the search from nothing */

/* ---- configurations ---- */

typedef struct config {
    options_arch_t arch;
    int n_ranks, ranks_per_host;
    zero_optimizer_t optimizer;
    int fp8;
    zero_dtype_t dtype;
    int stage; /* or STAGE_AUTO */
    int update;
    bool keeps, accumulates;
    int64_t layers; /* with many, ratios between those of the coarse search matter */
} config_t;

#define N_CONFIGS 40

/* Every optimizer that can be offloaded (Muon cannot) with every number of ranks; the rest by turns of other lengths,
 * so that pairs of them vary. */
static config_t config_of(int i)
{
    static const zero_optimizer_t optimizers[] = {ZERO_OPTIMIZER_ADAMW, ZERO_OPTIMIZER_ADAMW8BIT, ZERO_OPTIMIZER_SGD,
                                                  ZERO_OPTIMIZER_LION, ZERO_OPTIMIZER_NESTEROV};
    static const int ranks[][2] = {{1, 1}, {2, 2}, {4, 2}, {8, 8}, {4, 1}, {3, 3}, {8, 4}, {1, 1}};
    static const int stages[] = {STAGE_AUTO, 3, 1, 2, STAGE_AUTO, STAGE_AUTO, 2};
    const int *of_ranks = ranks[i / 5 % 8];
    return (config_t){.arch = i % 2 ? ARCH_LLAMA : ARCH_GPT2,
                      .n_ranks = of_ranks[0],
                      .ranks_per_host = of_ranks[1],
                      .optimizer = optimizers[i % 5],
                      .fp8 = i % 3 == 1 ? FP8_LINEAR : FP8_NONE,
                      .dtype = i % 3 != 1 && i % 11 == 3 ? ZERO_FP32 : ZERO_BF16,
                      .stage = stages[i % 7],
                      .update = i % 9 == 4 ? ZERO_OFFLOAD_UPDATE_HOST : ZERO_OFFLOAD_UPDATE_AUTO,
                      .keeps = i % 4 == 2,
                      .accumulates = i % 6 == 5,
                      .layers = i % 8 == 6 ? 64 : 6};
}

static options_t options_of(const config_t *c)
{
    static options_t o;
    options_set_defaults(&o);
    o.device.type = ZERO_DEVICE_CPU; /* the model's workspaces: a build without CUDA knows no others */
    o.model.arch = (int)c->arch;
    o.model.layers = c->layers;
    o.model.dim = 512;
    o.model.heads = 8;
    o.model.vocab_size = 4096;
    o.model.seq_len = 128;
    o.train.precision = (int)c->dtype;
    o.train.fp8 = c->fp8;
    o.train.optimizer = (int)c->optimizer;
    o.train.global_batch = 4 * c->n_ranks;
    o.train.micro_batch = c->accumulates ? 2 : MICRO_BATCH_AUTO;
    o.model.recompute = RECOMPUTE_AUTO;
    o.zero.stage = c->stage;
    o.zero.offload = OFFLOAD_OPTIMIZER;
    o.zero.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    o.zero.offload_update = c->update;
    o.zero.keep = c->keeps ? ZERO_KEEP_AUTO : 0;
    ck_assert_int_eq(options_resolve(&o, c->n_ranks), ZERO_OK);
    return o;
}

/* ---- a search from nothing ---- */

typedef struct bytes {
    uint64_t device, pinned; /* of a rank */
} bytes_t;

static bytes_t bytes_of(const options_t *base, const fit_choice_t *choice, int n_ranks, const model_t *model)
{
    options_t o = *base;
    zero_memory_t memory;
    o.zero.stage = choice->stage;
    o.model.recompute = choice->recompute;
    o.model.recompute_none = choice->none;
    o.model.recompute_light = choice->light;
    o.train.micro_batch = choice->micro_batch;
    o.zero.offload_ratio = choice->offload_ratio;
    o.zero.keep = choice->keep;
    zero_config_t config = options_config(&o, n_ranks);
    config.offload = choice->offload_ratio > 0.0;
    ck_assert_int_eq(zero_plan(model->declaration, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, n_ranks, &memory),
                     ZERO_OK);
    bytes_t bytes = {.pinned = memory.pinned_bytes};
    model_t own;
    ck_assert_int_eq(model_create(&o, &own), ZERO_OK);
    model_plan(&own, &memory);
    model_destroy(&own);
    bytes.device = zero_memory_total(&memory);
    return bytes;
}

#define MOST_TRIED (3 * 3 * 3 * (COARSE + 1) * 2)

/* Plans all choices of a coarse grid. Returns how many. */
static int try_all(const options_t *o, const config_t *c, bytes_t tried[MOST_TRIED])
{
    int n = 0;
    model_t model;
    options_t one = *o;
    one.train.micro_batch = 1;
    ck_assert_int_eq(model_create(&one, &model), ZERO_OK);
    for (int64_t micro = c->accumulates ? 2 : 1; micro <= (c->accumulates ? 2 : 4); micro *= 2)
        for (int stage = c->stage == STAGE_AUTO ? 1 : c->stage; stage <= (c->stage == STAGE_AUTO ? 3 : c->stage);
             stage++)
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
                for (int ratio = 0; ratio <= COARSE; ratio++)
                    for (int64_t keep = 0; keep <= (c->keeps ? o->model.layers : 0); keep += o->model.layers)
                        tried[n++] = bytes_of(o,
                                              &(fit_choice_t){.stage = stage,
                                                              .recompute = recompute,
                                                              .micro_batch = micro,
                                                              .offload_ratio = (double)ratio / COARSE,
                                                              .keep = keep},
                                              c->n_ranks, &model);
    model_destroy(&model);
    return n;
}

/* Returns the least that is pinned of what fits the device; UINT64_MAX: nothing does. */
static uint64_t least_pinned(const bytes_t *tried, int n, uint64_t budget)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < n; i++)
        if (tried[i].device <= budget && tried[i].pinned < least)
            least = tried[i].pinned;
    return least;
}

/* Returns a budget for which something has to be offloaded: between the least that all choices take, and the least that
 * those take which offload nothing. */
static uint64_t device_budget(const bytes_t *tried, int n, double part)
{
    double least = 1e300, without = 1e300;
    for (int i = 0; i < n; i++) {
        least = (double)tried[i].device < least ? (double)tried[i].device : least;
        if (tried[i].pinned == 0)
            without = (double)tried[i].device < without ? (double)tried[i].device : without;
    }
    return (uint64_t)(least + part * (without - least));
}

/* ---- the solver ---- */

static fit_t *open_fit(const options_t *o, const config_t *c, uint64_t budget, uint64_t host_bytes)
{
    fit_t *fit;
    fit_machine_t machine = {.rates = *fit_rates_find("H200"),
                             .n_ranks = c->n_ranks,
                             .ranks_per_host = c->ranks_per_host,
                             .host_bytes = host_bytes};
    ck_assert_int_eq(fit_create(o, &machine, budget, &fit), ZERO_OK);
    fit->options.device.type = ZERO_DEVICE_CUDA;
    return fit;
}

/* libzero, which decides the exact ratio when memory is taken, finds one that fits both as well. */
static void expect_libzero_fits(const options_t *o, const config_t *c, const fit_choice_t *choice, uint64_t budget,
                                uint64_t room, const model_t *model)
{
    const zero_plan_target_t target = {.on_gpu = true, .needs_staging = true};
    options_t with = *o;
    zero_memory_t user = {0}, memory;
    zero_layout_t layout;
    float ratio;
    with.zero.stage = choice->stage;
    with.train.micro_batch = choice->micro_batch;
    with.zero.keep = choice->keep;
    zero_config_t config = options_config(&with, c->n_ranks);
    model_plan(model, &user);
    config.user_bytes = zero_memory_total(&user);
    ck_assert_int_eq(zero_layout_create(model->declaration, c->n_ranks, &layout), ZERO_OK);
    ck_assert_int_eq(zero_plan_smallest_offload(model->declaration, &layout, &config, target, budget, &ratio), ZERO_OK);
    zero_layout_destroy(&layout);
    config.offload_ratio = ratio;
    config.offload = ratio > 0.0f;
    ck_assert_int_eq(zero_plan(model->declaration, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, c->n_ranks, &memory),
                     ZERO_OK);
    ck_assert_uint_le(zero_memory_total(&memory) + config.user_bytes, budget);
    ck_assert_uint_le(memory.pinned_bytes, room);
}

typedef struct seen {
    int n, chosen, refused, between; /* between: with a ratio that is no multiple of 1 / FIT_RATIOS */
    int unlimited;                   /* without the host's limit the choice would need more of it */
} seen_t;

/* Solves for one amount of host memory of each rank, of which the coarse search needs at least `least`. */
static void solve(const options_t *o, const config_t *c, uint64_t budget, uint64_t room, uint64_t least, seen_t *seen)
{
    fit_result_t result;
    const int sharers = c->ranks_per_host < c->n_ranks ? c->ranks_per_host : c->n_ranks;
    const uint64_t host_bytes = room * (uint64_t)sharers;
    fit_t *fit = open_fit(o, c, budget, host_bytes);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    seen->n++;
    if (result.best < 0) {
        ck_assert_msg(room < least, "refused with %llu bytes of the host, where %llu are enough",
                      (unsigned long long)room, (unsigned long long)least);
        seen->refused++;
    } else {
        const fit_point_t *p = &result.points[result.best];
        options_t chosen = *o;
        model_t model;
        fit_apply(&p->choice, &chosen);
        ck_assert_int_eq(model_create(&chosen, &model), ZERO_OK);
        bytes_t bytes = bytes_of(&chosen, &p->choice, c->n_ranks, &model);
        ck_assert_uint_eq(bytes.device, p->bytes);
        ck_assert_uint_le(bytes.device, budget);
        ck_assert_msg(bytes.pinned * (uint64_t)sharers <= host_bytes,
                      "%d ranks of a host take %llu bytes each, of %llu", sharers, (unsigned long long)bytes.pinned,
                      (unsigned long long)host_bytes);
        if (c->update != ZERO_OFFLOAD_UPDATE_HOST)
            expect_libzero_fits(o, c, &p->choice, budget, room, &model);
        model_destroy(&model);
        double steps = p->choice.offload_ratio * FIT_RATIOS;
        seen->chosen++;
        seen->between += steps != (double)(int)steps;
    }
    for (int i = 0; i < result.n_points; i++)
        ck_assert(!result.points[i].fits || result.points[i].memory.pinned_bytes <= room);
    free(result.points);
    fit_destroy(fit);
}

static uint64_t pinned_without_limit(const options_t *o, const config_t *c, uint64_t budget)
{
    fit_result_t result;
    fit_t *fit = open_fit(o, c, budget, FIT_HOST_UNKNOWN);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    ck_assert_int_ge(result.best, 0);
    uint64_t pinned = result.points[result.best].memory.pinned_bytes;
    free(result.points);
    fit_destroy(fit);
    return pinned;
}

START_TEST(what_is_chosen_fits_the_host_and_what_is_refused_does_not)
{
    static bytes_t tried[MOST_TRIED];
    seen_t seen = {0};
    for (int i = 0; i < N_CONFIGS; i++) {
        config_t c = config_of(i);
        options_t o = options_of(&c);
        int n = try_all(&o, &c, tried);
        uint64_t budget = device_budget(tried, n, i % 2 ? 0.3 : 0.8), least = least_pinned(tried, n, budget);
        ck_assert(least > 0 && least < UINT64_MAX);
        const uint64_t rooms[] = {least / 8, least - 1, least, least + least / 50, least + least / 3};
        seen.unlimited += pinned_without_limit(&o, &c, budget) > least + least / 50;
        for (size_t r = 0; r < sizeof rooms / sizeof rooms[0]; r++)
            solve(&o, &c, budget, rooms[r], least, &seen);
    }
    printf("%d searches: %d chosen, %d of them between ratios, %d refused; of %d configurations %d need more without "
           "the limit\n",
           seen.n, seen.chosen, seen.between, seen.refused, N_CONFIGS, seen.unlimited);
    ck_assert(seen.chosen >= 3 * N_CONFIGS && seen.refused >= N_CONFIGS);
    ck_assert(seen.between > 0 && seen.unlimited >= N_CONFIGS / 4);
}
END_TEST

/* Qwen2.5-14B's shape in fp8 on one H200, all auto, of a host with 126 GiB of which 90% may be taken. It was given
 * micro_batch 16 with offload_ratio 0.97, which takes 188.65 GiB of the host. */
START_TEST(a_host_that_has_less_than_the_gpu_is_enough_for_14b)
{
    options_t o;
    fit_result_t result;
    config_t c = {.n_ranks = 1, .ranks_per_host = 1};
    const uint64_t host = zero_pinned_to_plan(0.9, 1, 126 * GIB, 126 * GIB);
    options_set_defaults(&o);
    o.device.type = ZERO_DEVICE_CPU;
    o.model.arch = ARCH_QWEN2;
    o.model.layers = 48;
    o.model.dim = 5120;
    o.model.heads = 40;
    o.model.kv_heads = 8;
    o.model.ffn_dim = 13824;
    o.model.vocab_size = 152064;
    o.model.seq_len = 4096;
    o.train.precision = ZERO_BF16;
    o.train.fp8 = FP8_LINEAR;
    o.train.global_batch = 16;
    o.train.micro_batch = MICRO_BATCH_AUTO;
    o.model.recompute = RECOMPUTE_AUTO;
    o.zero.stage = STAGE_AUTO;
    o.zero.offload = OFFLOAD_OPTIMIZER;
    o.zero.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    o.zero.keep = ZERO_KEEP_AUTO;
    ck_assert_int_eq(options_resolve(&o, 1), ZERO_OK);
    ck_assert_uint_gt(pinned_without_limit(&o, &c, 138 * GIB), host);
    fit_t *fit = open_fit(&o, &c, 138 * GIB, host);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    ck_assert_int_ge(result.best, 0);
    const fit_point_t *p = &result.points[result.best];
    printf("stage %d, recompute %d, micro_batch %d, offload_ratio %g: %.2f GiB, and %.2f of the host's %.2f\n",
           p->choice.stage, p->choice.recompute, (int)p->choice.micro_batch, p->choice.offload_ratio,
           (double)p->bytes / (double)GIB, (double)p->memory.pinned_bytes / (double)GIB, (double)host / (double)GIB);
    ck_assert_uint_le(p->memory.pinned_bytes, host);
    free(result.points);
    fit_destroy(fit);
}
END_TEST

/* Returns the least time of a choice that fits if these shares leave; INFINITY: none does. */
static double fastest_with(const options_t *asked, const config_t *c, uint64_t budget, double activations,
                           double params)
{
    options_t o = *asked;
    fit_result_t result;
    o.model.offload_activations = activations;
    o.zero.offload_params_ratio = params;
    fit_t *fit = open_fit(&o, c, budget, FIT_HOST_UNKNOWN);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    const double ms = result.best < 0 ? (double)INFINITY : result.points[result.best].time.total;
    free(result.points);
    fit_destroy(fit);
    return ms;
}

/* With less and less room on the device, inputs of blocks leave first, then parameters. What is chosen fits. With
 * recompute = full, where it can save no time, nothing leaves without need; with auto, no other share would be faster,
 * of inputs or of parameters. */
START_TEST(activations_leave_before_parameters)
{
    config_t c = config_of(0);
    c.arch = ARCH_LLAMA;
    c.layers = 64;
    options_t o = options_of(&c);
    o.model.recompute = _i ? RECOMPUTE_AUTO : RECOMPUTE_FULL;
    o.train.micro_batch = o.train.global_batch = 64;
    o.zero.stage = 3;
    o.zero.offload = OFFLOAD_ALL;
    o.zero.offload_ratio = o.zero.offload_params_ratio = o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    int n_none = 0, n_inputs = 0, n_params = 0, n_mixed = 0, round = 0;
    for (uint64_t budget = (_i ? 64 : 8) * GIB, fits = 1; fits; budget -= budget / 50, round++) {
        fit_result_t result = {0};
        fit_t *fit = open_fit(&o, &c, budget, FIT_HOST_UNKNOWN);
        ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
        fits = result.best >= 0;
        if (fits) {
            const fit_point_t *p = &result.points[result.best];
            const bool inputs = p->choice.activations > 0.0, params = p->choice.params_ratio > 0.0;
            ck_assert(p->bytes <= budget && (_i || !params || p->choice.activations == 1.0));
            ck_assert((p->memory.pinned_bytes > 0) == (inputs || p->choice.offload_ratio > 0.0));
            n_none += !inputs && !params;
            n_inputs += inputs && !params;
            n_params += params;
            n_mixed += inputs && fit_is_mixed(&p->choice);
            for (int part = 0; _i && round % 10 == 0 && part <= 4; part++)
                ck_assert_double_ge(1.026 * fmin(fastest_with(&o, &c, budget, part / 4.0, p->choice.params_ratio),
                                                 fastest_with(&o, &c, budget, p->choice.activations, part / 4.0)),
                                    p->time.total); /* what is not worth leaving, and a tie */
        }
        free(result.points);
        fit_destroy(fit);
    }
    ck_assert_msg(n_none > 0 && n_inputs > 0 && n_params > 0 && (n_mixed > 0) == _i, "%d, %d, %d, %d", n_none, n_inputs,
                  n_params, n_mixed);
}
END_TEST

/* Evaluates full recomputation with this share of all that the options leave auto in host memory. */
static fit_point_t in_host_memory(const options_t *o, const config_t *c, double share)
{
    const bool leave_inputs = o->model.offload_activations == (double)ZERO_OFFLOAD_AUTO;
    const fit_choice_t choice = {.stage = o->zero.stage == STAGE_AUTO ? 3 : (int)o->zero.stage,
                                 .recompute = RECOMPUTE_FULL,
                                 .micro_batch = o->train.micro_batch == MICRO_BATCH_AUTO ? 1 : o->train.micro_batch,
                                 .offload_ratio = o->zero.offload == OFFLOAD_NONE ? 0.0 : share,
                                 .params_ratio = o->zero.offload == OFFLOAD_ALL ? share : 0.0,
                                 .activations = leave_inputs ? share : 0.0};
    fit_point_t point;
    fit_t *fit = open_fit(o, c, UINT64_MAX, FIT_HOST_UNKNOWN);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &point), ZERO_OK);
    fit_destroy(fit);
    return point;
}

/* Random settings, budgets and hosts: the fast search finds that something fits where the solver does. */
START_TEST(that_anything_fits_is_found_fast)
{
    static const int offloads[] = {OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_ALL, OFFLOAD_ALL};
    uint64_t random = 77;
    int n_fit = 0, n_params = 0, n_inputs = 0;
    for (int round = 0; round < 300; round++) {
        const config_t c = config_of((int)(support_random(&random) % N_CONFIGS));
        options_t o = options_of(&c);
        fit_result_t result;
        bool fits;
        const bool may_leave = o.zero.offload_update != ZERO_OFFLOAD_UPDATE_HOST && c.fp8 == FP8_NONE;
        o.zero.offload = may_leave ? offloads[support_random(&random) % 4] : OFFLOAD_OPTIMIZER;
        if (o.zero.offload == OFFLOAD_ALL) {
            o.zero.stage = 3;
            o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
        }
        if (round % 2) { /* with large activations */
            o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
            o.train.micro_batch = 64;
            o.train.global_batch = 128 * c.n_ranks;
        }
        const fit_point_t least = in_host_memory(&o, &c, 1.0), most = in_host_memory(&o, &c, 0.0);
        const double u = support_uniform(&random), part = 1.1 * u * u * u - 0.05, host = 0.5 + support_uniform(&random);
        const int sharers = c.ranks_per_host < c.n_ranks ? c.ranks_per_host : c.n_ranks;
        const uint64_t budget = (uint64_t)((double)least.bytes + part * ((double)most.bytes - (double)least.bytes));
        fit_t *fit = open_fit(&o, &c, budget, (uint64_t)(host * sharers * (double)least.memory.pinned_bytes));
        ck_assert_int_eq(fit_find_whether_any_fits(fit, &fits), ZERO_OK);
        ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
        ck_assert_msg(fits == (result.best >= 0), "round %d: %d, but the solver's best is %d", round, fits,
                      result.best);
        n_fit += fits;
        n_params += fits && o.zero.offload == OFFLOAD_ALL && result.points[result.best].choice.params_ratio > 0.0;
        n_inputs += fits && result.points[result.best].choice.activations > 0.0;
        free(result.points);
        fit_destroy(fit);
    }
    ck_assert_msg(n_fit > 80 && n_fit < 220 && n_params > 1 && n_inputs > 10, "%d fit, %d with params, %d with inputs",
                  n_fit, n_params, n_inputs);
}
END_TEST

/* Returns whether the inputs of some number of the blocks can leave so that the rest fits on the device, and they on
 * the host. */
static bool fits_with_some_inputs(const options_t *o, fit_t *fit)
{
    bool fits = false;
    for (int64_t n = 0; n <= o->model.layers && !fits; n++) {
        const fit_choice_t choice = {.stage = (int)o->zero.stage,
                                     .recompute = RECOMPUTE_FULL,
                                     .micro_batch = o->train.micro_batch,
                                     .activations = (double)n / (double)o->model.layers};
        fit_point_t point;
        ck_assert_int_eq(fit_evaluate(fit, &choice, &point), ZERO_OK);
        fits = point.fits;
    }
    return fits;
}

/* Random room on the device and on the host, often too little on both sides for all shares but one or two. */
START_TEST(the_inputs_that_must_leave_are_found)
{
    uint64_t random = 5;
    int n_fit = 0;
    config_t c = config_of(0);
    c.arch = ARCH_LLAMA;
    c.layers = 32;
    options_t o = options_of(&c);
    o.model.recompute = RECOMPUTE_FULL;
    o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    o.train.micro_batch = 64;
    o.train.global_batch = 64 * c.n_ranks;
    o.zero.stage = 3;
    o.zero.offload = OFFLOAD_NONE;
    const fit_point_t least = in_host_memory(&o, &c, 1.0), most = in_host_memory(&o, &c, 0.0);
    const int sharers = c.ranks_per_host < c.n_ranks ? c.ranks_per_host : c.n_ranks;
    for (int round = 0; round < 100; round++) {
        const double leave = support_uniform(&random), slack = 0.1 * support_uniform(&random) - 0.02;
        const uint64_t budget = most.bytes - (uint64_t)(leave * (double)(most.bytes - least.bytes));
        fit_t *fit =
            open_fit(&o, &c, budget, (uint64_t)((leave + slack) * sharers * (double)least.memory.pinned_bytes));
        fit_result_t result = {0};
        ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
        const bool fits = fits_with_some_inputs(&o, fit);
        ck_assert_msg(fits == (result.best >= 0), "round %d: %.3f must leave, and %.3f have room", round, leave,
                      leave + slack);
        n_fit += fits;
        free(result.points);
        fit_destroy(fit);
    }
    ck_assert_msg(n_fit > 20 && n_fit < 90, "%d fit", n_fit);
}
END_TEST

/* Returns whether the options, with what they leave auto, fit. */
static bool fits_with(const options_t *o, const config_t *c, uint64_t budget)
{
    fit_result_t result = {0};
    fit_t *fit = open_fit(o, c, budget, FIT_HOST_UNKNOWN);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    free(result.points);
    fit_destroy(fit);
    return result.best >= 0;
}

/* Returns the options with what is advised, as a user would set it. */
static options_t with_advice(const options_t *asked, const fit_advised_t *advised, int n_ranks)
{
    options_t o = *asked;
    const unsigned changes = advised->changes;
    o.zero.stage = advised->point.choice.stage;
    o.model.recompute = RECOMPUTE_AUTO;
    o.train.micro_batch = advised->point.choice.micro_batch;
    if (changes & FIT_CHANGES_OFFLOAD)
        o.zero.offload_ratio = o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
    o.zero.offload = changes & FIT_CHANGES_OFFLOAD_PARAMS ? OFFLOAD_ALL
                     : changes & FIT_CHANGES_OFFLOAD      ? OFFLOAD_OPTIMIZER
                                                          : OFFLOAD_NONE;
    if (changes & FIT_CHANGES_ACTIVATIONS)
        o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    o.train.optimizer = changes & FIT_CHANGES_OPTIMIZER ? ZERO_OPTIMIZER_ADAMW8BIT : asked->train.optimizer;
    if (changes & FIT_CHANGES_UPDATE) {
        o.zero.update = ZERO_UPDATE_IN_BACKWARD;
        o.train.grad_clip = 0.0;
    }
    o.train.sequence_ranks = advised->sequence_ranks;
    ck_assert_int_eq(options_resolve(&o, n_ranks), ZERO_OK);
    return o;
}

/* Long sequences in less and less room. What is advised fits, if it is set. Inputs of blocks are to leave where
 * nothing less is enough, and ranks are to share sequences where the results would change in any case. */
START_TEST(advice_for_long_sequences)
{
    int n_inputs = 0, n_shared = 0;
    config_t c = config_of(0);
    c.arch = ARCH_LLAMA;
    c.layers = 24;
    c.n_ranks = c.ranks_per_host = 4;
    c.stage = 3;
    options_t o = options_of(&c);
    o.zero.offload = OFFLOAD_NONE;
    o.model.seq_len = 16384;
    o.model.recompute = RECOMPUTE_NONE;
    o.train.micro_batch = 1;
    o.train.asked_global = o.train.global_batch;
    ck_assert_int_eq(options_resolve(&o, c.n_ranks), ZERO_OK);
    const fit_choice_t choice = fit_choice_of(&o);
    options_t leaves = o;
    leaves.model.recompute = RECOMPUTE_AUTO;
    leaves.zero.stage = STAGE_AUTO;
    for (uint64_t budget = 4 * GIB; budget > GIB / 8; budget -= budget / 16) {
        fit_point_t given;
        fit_advice_t advice;
        fit_t *fit = open_fit(&o, &c, budget, FIT_HOST_UNKNOWN);
        ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
        if (!given.fits) {
            ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
            unsigned all = 0;
            for (int i = 0; i < advice.n_points; i++) {
                const options_t set = with_advice(&o, &advice.points[i], c.n_ranks);
                ck_assert(fits_with(&set, &c, budget));
                all |= advice.points[i].changes;
            }
            if (advice.other.changes) {
                const options_t set = with_advice(&o, &advice.other, c.n_ranks);
                ck_assert(fits_with(&set, &c, budget));
                n_shared += (advice.other.changes & FIT_CHANGES_SEQUENCES) != 0;
            }
            leaves.model.offload_activations = 0.0;
            const bool fits_inside = fits_with(&leaves, &c, budget);
            leaves.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
            if (!fits_inside && fits_with(&leaves, &c, budget)) {
                ck_assert_msg(all & FIT_CHANGES_ACTIVATIONS, "%.3f GiB: %x", (double)budget / 0x1p30, all);
                n_inputs++;
            }
        }
        fit_destroy(fit);
    }
    printf("inputs leave in %d budgets, ranks share sequences in %d\n", n_inputs, n_shared);
    ck_assert(n_inputs > 2 && n_shared > 2);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fit_host");
    TCase *c = tcase_create("fit_host");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, what_is_chosen_fits_the_host_and_what_is_refused_does_not);
    tcase_add_loop_test(c, activations_leave_before_parameters, 0, 2);
    tcase_add_test(c, the_inputs_that_must_leave_are_found);
    tcase_add_test(c, that_anything_fits_is_found_fast);
    tcase_add_test(c, advice_for_long_sequences);
    tcase_add_test(c, a_host_that_has_less_than_the_gpu_is_enough_for_14b);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
