/* test_fit.c - the solver against brute force over the same model of memory and time; what is advised when nothing
 * fits; zerotrain fit and the settings that are auto, as a user meets them.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/support.h"
#include "train/options/options_table.h"
#include "train/planning/advice.h"
#include "train/planning/solve.h"

/* A search is to take less than a second; sanitizers make it several times as slow. */
#ifdef __SANITIZE_ADDRESS__
#define IN_SECONDS 4.0
#else
#define IN_SECONDS 1.0
#endif

#define RUN_LIMIT_S 60.0

/* ---- brute force ---- */

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

static fit_case_t case_of(int i, fit_open_case_t open)
{
    static const int ranks[N_RANKS] = {1, 2, 4, 8};
    static const zero_dtype_t dtypes[N_DTYPES] = {ZERO_BF16, ZERO_FP32};
    return (fit_case_t){.arch = i % N_ARCHS == 0 ? ARCH_GPT2 : ARCH_LLAMA,
                        .n_ranks = ranks[i / N_ARCHS % N_RANKS],
                        .budget = i / N_ARCHS / N_RANKS % N_BUDGETS,
                        .dtype = dtypes[i / N_ARCHS / N_RANKS / N_BUDGETS],
                        .open = open};
}

static fit_machine_t machine_of(const fit_case_t *c)
{
    return (fit_machine_t){.rates = c->open == ON_CPU ? *fit_rates_of_cpu() : *fit_rates_find("H200"),
                           .n_ranks = c->n_ranks,
                           .ranks_per_host = 8,
                           .host_bytes = FIT_HOST_UNKNOWN};
}

/* Models are always the CPU's, since a build without CUDA does not know a GPU's workspace; libzero plans for GPUs
 * anywhere. */
static options_t options_of(const fit_case_t *c)
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
static fit_t *open_fit(const options_t *o, const fit_machine_t *machine, uint64_t budget)
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

static options_t with_choice(const options_t *base, const fit_choice_t *choice)
{
    options_t o = *base;
    o.zero.stage = choice->stage;
    o.model.recompute = choice->recompute;
    o.model.recompute_none = choice->none;
    o.model.recompute_light = choice->light;
    o.train.micro_batch = choice->micro_batch;
    o.zero.offload_ratio = choice->offload_ratio;
    o.zero.keep = choice->keep;
    return o;
}

static void plan_library(const options_t *o, const fit_machine_t *machine, const zero_model_t *declaration,
                         zero_memory_t *memory)
{
    zero_config_t config = options_config(o, machine->n_ranks);
    config.offload &= config.offload_ratio > 0.0f && machine->rates.is_gpu;
    ck_assert_int_eq(zero_plan(declaration, &config, machine->rates.is_gpu ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU,
                               ZERO_COMM_AUTO, machine->n_ranks, memory),
                     ZERO_OK);
}

/* Plans one choice from nothing: its own model, its own plan. */
static tried_t try_mix(const options_t *base, const fit_machine_t *machine, fit_choice_t choice)
{
    options_t o = with_choice(base, &choice);
    zero_memory_t memory;
    model_t model;
    ck_assert_int_eq(model_create(&o, &model), ZERO_OK);
    plan_library(&o, machine, model.declaration, &memory);
    model_plan(&model, &memory);
    model_destroy(&model);
    fit_time_t time = fit_step_time(&o, machine, (double)memory.bytes[ZERO_MEMORY_ACTIVATIONS]);
    return (tried_t){choice, zero_memory_total(&memory), time.total};
}

static tried_t try_choice(const options_t *base, const fit_machine_t *machine, int stage, int recompute, int64_t micro)
{
    return try_mix(base, machine, (fit_choice_t){.stage = stage, .recompute = recompute, .micro_batch = micro});
}

/* Tries every stage and micro-batch with all blocks alike, nothing offloaded and nothing kept. */
static int try_all(const options_t *o, const fit_machine_t *machine, tried_t *tried)
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
static bool is_simpler(const fit_choice_t *a, const fit_choice_t *b)
{
    const double of_a[] = {a->offload_ratio, fit_is_mixed(a), a->recompute, a->stage, -(double)a->micro_batch};
    const double of_b[] = {b->offload_ratio, fit_is_mixed(b), b->recompute, b->stage, -(double)b->micro_batch};
    for (int i = 0; i < 5; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] < of_b[i];
    return false;
}

/* Every combination of stage, micro-batch, mix of blocks, offload_ratio and keep there is, and those that fit. */
typedef struct everything {
    const options_t *o;
    const fit_machine_t *machine;
    uint64_t budget;
    fit_choice_t *mixes; /* [n_mixes] */
    int n_mixes, n_ratios;
    int64_t most_keep;
    tried_t *fitting; /* [n] of MOST_COMBINATIONS */
    int n;
} everything_t;

#define MOST_COMBINATIONS (6 * 4 * 28 * 33 * 6)

/* Calls each mix by its own name: all blocks alike have no numbers. */
static void list_mixes(everything_t *all, fit_choice_t mixes[])
{
    const int64_t L = all->o->model.layers;
    all->mixes = mixes;
    for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
        mixes[all->n_mixes++] = (fit_choice_t){.recompute = r};
    for (int64_t none = 1; none < L; none++)
        mixes[all->n_mixes++] = (fit_choice_t){.recompute = RECOMPUTE_LIGHT, .none = none};
    for (int64_t none = 0; none < L; none++)
        for (int64_t light = none == 0; none + light < L; light++)
            mixes[all->n_mixes++] = (fit_choice_t){.recompute = RECOMPUTE_FULL, .none = none, .light = light};
}

#define MOST_MIXES 40
#define MOST_KEEP 6

/* Times every mix, ratio and keep of one stage and micro-batch that fits. */
static void time_all(everything_t *all, fit_choice_t choice)
{
    int64_t most_keep = choice.stage == 3 && all->machine->n_ranks > 1 ? all->most_keep : 0;
    uint64_t plans[33][MOST_KEEP + 1];
    options_t o = with_choice(all->o, &choice);
    model_t model;
    ck_assert_int_eq(model_create(&o, &model), ZERO_OK);
    for (int i = 0; i < all->n_ratios; i++)
        for (o.zero.keep = 0; o.zero.keep <= most_keep; o.zero.keep++) {
            zero_memory_t memory;
            o.zero.offload_ratio = i / 32.0;
            plan_library(&o, all->machine, model.declaration, &memory);
            plans[i][o.zero.keep] = zero_memory_total(&memory);
        }
    for (int m = 0; m < all->n_mixes; m++) {
        zero_memory_t user = {0};
        choice.recompute = all->mixes[m].recompute;
        choice.none = all->mixes[m].none;
        choice.light = all->mixes[m].light;
        o = with_choice(all->o, &choice);
        model_plan(&model, &user);
        for (int i = 0; i < all->n_ratios; i++)
            for (o.zero.keep = choice.keep = 0; choice.keep <= most_keep; o.zero.keep = ++choice.keep) {
                uint64_t bytes = plans[i][choice.keep] + zero_memory_total(&user);
                o.zero.offload_ratio = choice.offload_ratio = i / 32.0;
                if (bytes > all->budget)
                    continue;
                ck_assert_int_lt(all->n, MOST_COMBINATIONS);
                fit_time_t time = fit_step_time(&o, all->machine, (double)user.bytes[ZERO_MEMORY_ACTIVATIONS]);
                all->fitting[all->n++] = (tried_t){choice, bytes, time.total};
            }
    }
    model_destroy(&model);
}

/* Returns the simplest within 0.5% of the least time, and of those as simple the fastest. bytes 0: nothing fits. */
static tried_t best_of_all(const everything_t *all)
{
    double least_ms = 1e300;
    tried_t best = {0};
    for (int i = 0; i < all->n; i++)
        least_ms = all->fitting[i].ms < least_ms ? all->fitting[i].ms : least_ms;
    for (int i = 0; i < all->n; i++) {
        const tried_t *t = &all->fitting[i];
        if (t->ms > 1.005 * least_ms)
            continue;
        bool is_worse = best.bytes > 0 && is_simpler(&best.choice, &t->choice);
        if (best.bytes == 0 || is_simpler(&t->choice, &best.choice) || (!is_worse && t->ms < best.ms))
            best = *t;
    }
    return best;
}

/* Finds the best of everything. */
static tried_t find_best(const options_t *o, const fit_machine_t *machine, uint64_t budget)
{
    static tried_t fitting[MOST_COMBINATIONS];
    bool offloads = o->zero.offload == OFFLOAD_OPTIMIZER;
    fit_choice_t mixes[MOST_MIXES];
    everything_t all = {.o = o,
                        .machine = machine,
                        .budget = budget,
                        .n_ratios = offloads ? 33 : 1,
                        .most_keep = o->zero.keep == ZERO_KEEP_AUTO ? o->model.layers : 0,
                        .fitting = fitting};
    list_mixes(&all, mixes);
    for (int64_t micro = 1; micro <= 12; micro++)
        for (int stage = offloads ? 1 : 0; stage <= 3 && 12 % micro == 0; stage++)
            time_all(&all, (fit_choice_t){.stage = stage, .micro_batch = micro});
    return best_of_all(&all);
}

static const tried_t *best_of(const tried_t *tried, int n, uint64_t budget)
{
    const tried_t *best = NULL;
    double least = 1e300;
    for (int i = 0; i < n; i++)
        if (tried[i].bytes <= budget && tried[i].ms < least)
            least = tried[i].ms;
    for (int i = 0; i < n; i++)
        if (tried[i].bytes <= budget && tried[i].ms <= 1.005 * least &&
            (!best || is_simpler(&tried[i].choice, &best->choice)))
            best = &tried[i];
    return best;
}

/* Returns bytes from that of the smallest choice (part 0) to that of the largest (1). */
static uint64_t budget_of(const tried_t *tried, int n, double part)
{
    double least = 1e300, most = 0.0;
    for (int i = 0; i < n; i++) {
        least = (double)tried[i].bytes < least ? (double)tried[i].bytes : least;
        most = (double)tried[i].bytes > most ? (double)tried[i].bytes : most;
    }
    return (uint64_t)(least + part * (most - least));
}

static void expect_same(const fit_choice_t *a, const fit_choice_t *b, const char *what)
{
    ck_assert_msg(a->stage == b->stage && a->recompute == b->recompute && a->micro_batch == b->micro_batch &&
                      a->offload_ratio == b->offload_ratio,
                  "%s: stage %d, recompute %d, micro-batch %d, offload %g instead of %d, %d, %d, %g", what, a->stage,
                  a->recompute, (int)a->micro_batch, a->offload_ratio, b->stage, b->recompute, (int)b->micro_batch,
                  b->offload_ratio);
}

/* Checks that rows are what they say, and that those of the frontier are not beaten by one that is not there. */
static void check_points(const options_t *o, const fit_machine_t *machine, uint64_t budget, const fit_result_t *result,
                         const tried_t *tried, int n)
{
    for (int i = 0; i < result->n_points; i++) {
        const fit_point_t *p = &result->points[i];
        tried_t t = try_mix(o, machine, p->choice);
        ck_assert_uint_eq(t.bytes, p->bytes);
        ck_assert_double_eq_tol(t.ms, p->time.total, 1e-9 * t.ms);
        ck_assert(p->fits == (p->bytes <= budget));
        bool is_beaten = false;
        for (int k = 0; k < n && o->zero.offload == OFFLOAD_NONE && o->zero.keep == 0; k++)
            is_beaten |= tried[k].bytes <= p->bytes && tried[k].ms < p->time.total;
        ck_assert(!is_beaten || !p->is_on_frontier);
    }
}

/* What kinds of choices a search has come to. */
typedef struct seen {
    int mixes, offloads, keeps, all_three;
} seen_t;

static void compare(const fit_case_t *c, seen_t *seen)
{
    static const double parts[N_BUDGETS] = {0.02, 0.12, 0.4, 1.0};
    static tried_t tried[6 * 4 * 3];
    options_t o = options_of(c), plain = o;
    fit_machine_t machine = machine_of(c);
    fit_result_t result;
    plain.zero.offload = OFFLOAD_NONE;
    int n = try_all(&plain, &machine, tried);
    /* Offload fits into less than the least of the others. */
    uint64_t budget = budget_of(tried, n, parts[c->budget] - (o.zero.offload == OFFLOAD_OPTIMIZER ? 0.02 : 0.0));
    tried_t best = find_best(&o, &machine, budget);
    fit_t *fit = open_fit(&o, &machine, budget);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    ck_assert(best.bytes > 0);
    ck_assert_int_ge(result.best, 0);
    const fit_point_t *chosen = &result.points[result.best];
    expect_same(&chosen->choice, &best.choice, "the best");
    ck_assert_double_eq_tol(chosen->time.total, best.ms, 1e-9 * best.ms);
    ck_assert(chosen->fits);
    check_points(&o, &machine, budget, &result, tried, n);
    bool is_mixed = fit_is_mixed(&chosen->choice), offloads = chosen->choice.offload_ratio > 0.0;
    seen->mixes += is_mixed;
    seen->offloads += offloads && chosen->choice.offload_ratio < 1.0;
    seen->keeps += chosen->choice.keep > 1;
    seen->all_three += is_mixed && offloads && chosen->choice.keep > 1;
    free(result.points);
    fit_destroy(fit);
}

START_TEST(the_choice_is_that_of_brute_force)
{
    const fit_open_case_t open = (fit_open_case_t)_i;
    seen_t seen = {0};
    for (int i = 0; i < N_SEARCHES; i++) {
        fit_case_t c = case_of(i, open);
        compare(&c, &seen);
    }
    printf("%d: of %d choices %d mix, %d offload a part, %d keep, %d do all three\n", _i, N_SEARCHES, seen.mixes,
           seen.offloads, seen.keeps, seen.all_three);
    /* The cases reach what they are for. */
    ck_assert_int_gt(seen.mixes, 0);
    ck_assert(seen.offloads > 0 || (open != RATIO && open != RATIO_AND_KEEP && open != ON_HOST_AND_KEEP));
    ck_assert(seen.keeps > 0 || (open != KEEP && open != RATIO_AND_KEEP && open != ON_HOST_AND_KEEP));
}
END_TEST

START_TEST(what_is_given_is_kept)
{
    fit_case_t c = case_of(2, ON_CPU); /* two ranks */
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_result_t result;
    fit_t *fit;
    o.zero.stage = 2;
    o.model.recompute = RECOMPUTE_FULL;
    o.train.micro_batch = 3;
    ck_assert_int_eq(fit_create(&o, &machine, UINT64_MAX, &fit), ZERO_OK);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    ck_assert_int_eq(result.n_points, 1);
    expect_same(&result.points[0].choice, &(fit_choice_t){.stage = 2, .recompute = RECOMPUTE_FULL, .micro_batch = 3},
                "given");
    free(result.points);
    fit_destroy(fit);
}
END_TEST

/* offload_ratio = auto takes the least share, in steps of 1/32, with which GPUs have room. */
START_TEST(the_least_share_is_offloaded)
{
    fit_case_t c = case_of(2, RATIO);
    fit_point_t whole, none, some;
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_choice_t choice = {.stage = 2, .recompute = RECOMPUTE_NONE, .micro_batch = 12, .offload_ratio = 0.0};
    fit_t *fit = open_fit(&o, &machine, UINT64_MAX);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &none), ZERO_OK);
    choice.offload_ratio = 1.0;
    ck_assert_int_eq(fit_evaluate(fit, &choice, &whole), ZERO_OK);
    ck_assert_uint_gt(none.bytes, whole.bytes);
    fit->budget = whole.bytes + (none.bytes - whole.bytes) / 2;
    choice.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    ck_assert_int_eq(fit_evaluate(fit, &choice, &some), ZERO_OK);
    ck_assert(some.fits && some.choice.offload_ratio > 0.0 && some.choice.offload_ratio < 1.0);
    choice.offload_ratio = some.choice.offload_ratio - 1.0 / FIT_RATIOS;
    ck_assert_int_eq(fit_evaluate(fit, &choice, &none), ZERO_OK);
    ck_assert(!none.fits);
    fit_destroy(fit);
}
END_TEST

/* What Muon adds to the wait for other ranks are the bytes that libzero counts of its exchange, but for padding. */
START_TEST(muon_waits_for_the_bytes_that_it_exchanges)
{
    double ms[2];
    zero_traffic_t traffic[2][8];
    for (int i = 0; i < N_ARCHS * N_RANKS * 4; i++) {
        fit_case_t c = case_of(i % (N_ARCHS * N_RANKS), ON_CPU);
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        const int hosts[8] = {0};
        model_t model;
        if (c.n_ranks == 1)
            continue;
        o.train.micro_batch = 12;
        o.zero.stage = i / (N_ARCHS * N_RANKS);
        o.model.recompute = RECOMPUTE_NONE;
        ck_assert_int_eq(model_create(&o, &model), ZERO_OK);
        for (int muon = 0; muon < 2; muon++) {
            o.train.optimizer = muon ? ZERO_OPTIMIZER_MUON : ZERO_OPTIMIZER_ADAMW;
            zero_config_t config = options_config(&o, c.n_ranks);
            ck_assert_int_eq(zero_plan_traffic(model.declaration, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, c.n_ranks,
                                               hosts, traffic[muon]),
                             ZERO_OK);
            ms[muon] = fit_step_time(&o, &machine, 0.0).wire;
        }
        double expected = (double)(traffic[1][0].local_bytes - traffic[0][0].local_bytes) / machine.rates.link * 1e3;
        ck_assert_double_gt(expected, 0.0);
        ck_assert_double_eq_tol((ms[1] - ms[0]) / expected, 1.0, 0.01);
        model_destroy(&model);
    }
}
END_TEST

/* ---- the largest sizes ---- */

START_TEST(one_more_of_the_largest_does_not_fit)
{
    fit_case_t c = case_of(3, ON_CPU); /* Llama, two ranks */
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_choice_t choice = {.stage = 3, .recompute = RECOMPUTE_LIGHT, .micro_batch = 4};
    tried_t as_chosen = try_choice(&o, &machine, 3, RECOMPUTE_LIGHT, 4);
    uint64_t budget = as_chosen.bytes * 3;
    fit_largest_t largest;
    fit_t *fit;
    ck_assert_int_eq(fit_create(&o, &machine, budget, &fit), ZERO_OK);
    ck_assert_int_eq(fit_find_largest(fit, &choice, &largest), ZERO_OK);
    ck_assert_int_gt(largest.micro_batch, 4);
    ck_assert_int_gt(largest.layers, 6);
    ck_assert_int_gt(largest.seq_len, 256);
    for (int more = 0; more <= 1; more++) {
        options_t changed = o;
        changed.train.global_batch = (largest.micro_batch + more) * 3 * c.n_ranks; /* as many micro-steps: three */
        tried_t t = try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, largest.micro_batch + more);
        ck_assert_int_eq(t.bytes <= budget, !more);
        changed = o;
        changed.model.layers = largest.layers + more;
        ck_assert_int_eq(try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, 4).bytes <= budget, !more);
        changed = o;
        changed.model.seq_len = largest.seq_len + more * FIT_SEQ_LEN_MULTIPLE;
        ck_assert_int_eq(try_choice(&changed, &machine, 3, RECOMPUTE_LIGHT, 4).bytes <= budget, !more);
    }
    fit_destroy(fit);
}
END_TEST

/* ---- advice ---- */

START_TEST(advice_fits_and_is_by_time)
{
    fit_case_t c = case_of(2 + _i, ON_CPU); /* GPT-2 and Llama, two and four ranks */
    static tried_t tried[6 * 4 * 3];
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_advice_t advice;
    fit_point_t given;
    fit_t *fit;
    int n = try_all(&o, &machine, tried);
    o.zero.stage = 1;
    o.model.recompute = RECOMPUTE_NONE;
    o.train.micro_batch = 12;
    fit_choice_t choice = fit_choice_of(&o);
    ck_assert_int_eq(fit_create(&o, &machine, budget_of(tried, n, 0.2), &fit), ZERO_OK);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
    ck_assert(!given.fits);
    ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
    ck_assert_int_ge(advice.n_points, 1);
    for (int i = 0; i < advice.n_points; i++) {
        const fit_choice_t *a = &advice.points[i].choice;
        tried_t t = try_mix(&o, &machine, *a);
        ck_assert_uint_eq(t.bytes, advice.points[i].bytes);
        ck_assert_uint_le(t.bytes, fit->budget);
        ck_assert(i == 0 || advice.points[i - 1].time.total <= advice.points[i].time.total);
    }
    /* The first is the fastest that fits, unless one with fewer changes takes at most 2% longer. */
    const tried_t *fastest = best_of(tried, n, fit->budget);
    ck_assert_double_le(advice.points[0].time.total, 1.03 * fastest->ms);
    fit_destroy(fit);
}
END_TEST

START_TEST(more_ranks_are_advised_where_they_help)
{
    fit_case_t c = case_of(0, ON_CPU);
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_advice_t advice;
    fit_point_t given;
    fit_t *fit;
    o.zero.stage = 3;
    o.model.recompute = RECOMPUTE_FULL;
    o.train.micro_batch = 1;
    fit_choice_t choice = fit_choice_of(&o);
    tried_t on_one = try_choice(&o, &machine, 3, RECOMPUTE_FULL, 1);
    fit_machine_t four = machine;
    options_t shared = o;
    four.n_ranks = 4;
    shared.train.global_batch *= 4;
    tried_t on_four = try_choice(&shared, &four, 3, RECOMPUTE_FULL, 1);
    ck_assert_uint_lt(on_four.bytes, on_one.bytes);
    ck_assert_int_eq(fit_create(&o, &machine, on_four.bytes, &fit), ZERO_OK);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
    ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
    ck_assert_int_eq(advice.n_points, 0);
    ck_assert_int_eq(advice.n_ranks, 4);
    ck_assert_uint_eq(advice.on_ranks.bytes, on_four.bytes);
    ck_assert_double_eq_tol(advice.on_ranks.time.total, on_four.ms, 1e-9 * on_four.ms);
    fit_destroy(fit);
}
END_TEST

/* ---- speed ---- */

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* 126 layers, as many as Llama 3.1 405B has, on 1,024 ranks. With plenty of memory, and with budgets between the least
 * and the most that choices take, for which mixes, offload and keep have to be weighed. */
START_TEST(the_largest_model_is_solved_within_a_second)
{
    static const double parts[] = {1.0, 0.5, 0.1, 0.02, 0.001};
    static const fit_open_case_t opens[] = {ON_CPU, ON_GPU, RATIO, RATIO_AND_KEEP, ON_HOST_AND_KEEP};
    fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 1024, .dtype = ZERO_BF16, .open = opens[_i]};
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_result_t result;
    fit_largest_t largest;
    double slowest = 0.0, least = 0.0, most = 0.0;
    int n_mixes = 0;
    o.model.layers = 126;
    for (int i = 0; i < 5; i++) {
        fit_t *fit =
            open_fit(&o, &machine, i == 0 ? (uint64_t)80 << 30 : (uint64_t)(least + parts[i] * (most - least)));
        double begin = cpu_seconds();
        ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
        if (i == 0)
            ck_assert_int_eq(fit_find_largest(fit, &result.points[result.best].choice, &largest), ZERO_OK);
        double seconds = cpu_seconds() - begin;
        slowest = seconds > slowest ? seconds : slowest;
        if (i == 0) {
            least = (double)result.points[0].bytes;
            most = (double)result.points[result.n_points - 1].bytes;
        }
        for (int p = 0; p < result.n_points; p++)
            n_mixes += fit_is_mixed(&result.points[p].choice);
        free(result.points);
        fit_destroy(fit);
    }
    printf("%d: %.3f s at most, %d mixes\n", _i, slowest, n_mixes);
    ck_assert_int_gt(n_mixes, 0);
    ck_assert_double_lt(slowest, IN_SECONDS);
}
END_TEST

/* ---- the program ---- */

static char scratch[400];

#define CONFIG                                                                                                         \
    "[model]\nlayers = 4\ndim = 128\nheads = 4\nseq_len = 128\n[data]\ntrain = text.txt\n"                             \
    "[train]\nsteps = 2\nglobal_batch = 16\nprecision = fp32\n[log]\nmetrics = m.jsonl\n[device]\ntype = cpu\n"

static void set_up(void)
{
    char *directory = support_scratch(), path[512], text[8000];
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    memset(text, 'a', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", scratch);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, CONFIG, strlen(CONFIG));
}

static int run(support_output_t *output, const char *arguments)
{
    return support_run(output, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec %s/zerotrain %s cfg.ini", scratch,
                       support_build(), arguments);
}

static json_t *fit_json(const char *arguments)
{
    support_output_t output;
    json_error_t error;
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
    json_t *found = json_loads(output.out, 0, &error);
    ck_assert_msg(found != NULL, "%s: %s\n%s", arguments, error.text, output.out);
    support_output_free(&output);
    return found;
}

static long long chosen(const json_t *found, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(found, "chosen"), key));
}

/* What fit chooses within a limit is what a run with auto settings then takes, and holds to the byte. */
START_TEST(a_run_takes_what_fit_chooses)
{
    static const char *const limits[] = {"0.1", "0.06", "0.04"};
    support_output_t output;
    char arguments[600], line[128];
    json_error_t error;
    snprintf(arguments, sizeof arguments, "fit --json --set device.memory=%s", limits[_i]);
    json_t *found = fit_json(arguments);
    snprintf(arguments, sizeof arguments,
             "--set device.memory=%s --set train.micro_batch=auto --set zero.stage=auto --set model.recompute=auto",
             limits[_i]);
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    snprintf(line, sizeof line, "auto: stage %lld, recompute %s, micro_batch %lld;", chosen(found, "stage"),
             json_string_value(json_object_get(json_object_get(found, "chosen"), "recompute")),
             chosen(found, "micro_batch"));
    ck_assert_msg(strstr(output.err, line), "no '%s' in\n%s", line, output.err);
    snprintf(arguments, sizeof arguments, "%s/m.jsonl", scratch);
    char *rows = support_read_file(arguments, NULL);
    json_t *row = json_loads(rows, JSON_DISABLE_EOF_CHECK, &error);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "device_bytes")), chosen(found, "bytes"));
    json_decref(row);
    free(rows);
    json_decref(found);
    support_output_free(&output);
}
END_TEST

/* Within a limit between none and full, blocks recompute differently, and a run holds what was planned. */
START_TEST(a_run_mixes_as_fit_does)
{
    support_output_t output;
    char arguments[600], line[128];
    json_error_t error;
    json_t *found = fit_json("fit --json --stage 3 --set train.micro_batch=8");
    const json_t *points = json_object_get(found, "points"),
                 *last = json_array_get(points, json_array_size(points) - 1);
    double least = (double)json_integer_value(json_object_get(json_array_get(points, 0), "bytes"));
    double limit = (least + (double)json_integer_value(json_object_get(last, "bytes"))) / 2.0 / 0x1p30;
    json_decref(found);
    snprintf(arguments, sizeof arguments, "fit --json --stage 3 --set train.micro_batch=8 --set device.memory=%.9g",
             limit);
    found = fit_json(arguments);
    ck_assert_int_gt(chosen(found, "recompute_none") + chosen(found, "recompute_light"), 0);
    snprintf(arguments, sizeof arguments,
             "--stage 3 --set train.micro_batch=8 --set model.recompute=auto --set device.memory=%.9g", limit);
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    snprintf(line, sizeof line, "+%lld+%lld (full+light+none)", chosen(found, "recompute_light"),
             chosen(found, "recompute_none"));
    ck_assert_msg(strstr(output.err, line), "no '%s' in\n%s", line, output.err);
    snprintf(arguments, sizeof arguments, "%s/m.jsonl", scratch);
    char *rows = support_read_file(arguments, NULL);
    json_t *row = json_loads(rows, JSON_DISABLE_EOF_CHECK, &error);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "device_bytes")), chosen(found, "bytes"));
    json_decref(row);
    free(rows);
    json_decref(found);
    support_output_free(&output);
}
END_TEST

/* One rank and three, with other numbers of threads: each rank must take the same, although by itself it would plan
 * another workspace, and another way for its bytes. */
START_TEST(hosts_that_differ_choose_alike)
{
    static const char *const limits[] = {"0.014", "0.02"};
    support_output_t output;
    int code = support_mpirun(&output, RUN_LIMIT_S, 4,
                              "--wdir %s sh -c 'export ZERO_HOST_ID=$((" SUPPORT_RANK " > 0)); "
                              "export OMP_NUM_THREADS=$((1 + ZERO_HOST_ID)); exec %s/zerotrain --set zero.stage=auto "
                              "--set model.recompute=auto --set train.micro_batch=auto --set train.global_batch=24 "
                              "--set device.memory=%s --steps 1 cfg.ini'",
                              scratch, support_build(), limits[_i]);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    ck_assert_msg(support_count(output.err, "auto: stage ") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(what_does_not_fit_is_refused_with_what_would)
{
    support_output_t output;
    char arguments[600];
    int code = run(&output, "--set device.memory=0.03");
    ck_assert_int_eq(code, 1);
    ck_assert(strstr(output.err, "zerotrain:   activations"));
    ck_assert(strstr(output.err, "the plan needs"));
    const char *advice = strstr(output.err, "what would fit: --set ");
    ck_assert_msg(advice != NULL, "no advice in\n%s", output.err);
    advice += strlen("what would fit: ");
    snprintf(arguments, sizeof arguments, "--set device.memory=0.03 %.*s", (int)strcspn(advice, ":"), advice);
    support_output_free(&output);
    code = run(&output, arguments); /* the advice, as it stands there */
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
    support_output_free(&output);
    code = run(&output, "--set device.memory=0.001 --set zero.stage=auto");
    ck_assert_int_eq(code, 1);
    ck_assert(strstr(output.err, "the plan needs"));
    support_output_free(&output);
}
END_TEST

/* Where the settings fit on no number of ranks, more ranks are advised with those that take the least memory. What is
 * said runs as it stands there. */
START_TEST(more_ranks_are_advised_with_what_they_need)
{
    static const char *const batches[] = {"--set train.micro_batch=8", /* then the file's global_batch is set, too */
                                          "--set train.micro_batch=8 --set train.global_batch=0"};
    support_output_t output;
    char options[300], arguments[400];
    int n_ranks = 0, n_read = 0;
    snprintf(options, sizeof options, "--set device.memory=0.01 %s", batches[_i]);
    int code = run(&output, options);
    ck_assert_int_eq(code, 1);
    const char *advice = strstr(output.err, "what would fit: ");
    ck_assert_msg(advice && sscanf(advice, "what would fit: %d ranks with %n", &n_ranks, &n_read) == 1 && n_read > 0,
                  "%s", output.err);
    snprintf(arguments, sizeof arguments, "%s %.*s", options, (int)strcspn(advice + n_read, ":"), advice + n_read);
    ck_assert(strstr(advice, " MiB each, predicted ") && strstr(advice, " sequences\n"));
    support_output_free(&output);
    if (support_leaves_out(n_ranks))
        return;
    code = support_mpirun(&output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s --steps 1 cfg.ini", scratch,
                          support_build(), arguments);
    ck_assert_msg(code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, arguments, code, output.err);
    support_output_free(&output);
}
END_TEST

/* A limit of the process, which the plan does not know of, stands for a process that has taken a GPU's memory. The rank
 * that fails says what it would have held, and what is free; two ranks: only rank 1 has the limit. */
#define LIMIT_KIB 1500000 /* the plan takes more */
START_TEST(memory_that_is_gone_is_explained)
{
    static const char *const lines[] = {"cannot allocate ",       "memory ran out although the plan fitted",
                                        "  activations ",         "  total ",
                                        " GiB are free now",      "who holds the rest is not known: this is not a GPU",
                                        "set [device] memory to "};
    support_output_t output;
    char program[700], first[800] = "";
#ifdef __SANITIZE_ADDRESS__
    printf("SKIP: a sanitizer needs more addresses than the limit leaves\n");
    return;
#endif
    snprintf(program, sizeof program,
             "%s/zerotrain --set train.micro_batch=64 --set train.global_batch=0 --set model.dim=512 --set "
             "model.layers=16 cfg.ini",
             support_build());
    if (_i == 1)
        snprintf(first, sizeof first, "mpirun --oversubscribe --bind-to none -n 1 %s : -n 1 ", program);
    int code = support_run(&output, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec %sbash -c 'ulimit -v %d; exec %s'",
                           scratch, first, LIMIT_KIB, program);
    ck_assert_msg(code == 1, "exit code %d\n%s", code, output.err);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(support_count(output.err, lines[i]) == 1, "'%s' is not once in\n%s", lines[i], output.err);
    ck_assert_msg((strstr(output.err, "zerotrain: rank 1: memory ran out") != NULL) == (_i == 1), "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(fit_prints_a_table_for_people)
{
    static const char *const lines[] = {"a step: 16 sequences of 128 tokens",
                                        "\n* ",
                                        "* chosen",
                                        "\nactivations ",
                                        "\nmatrix products ",
                                        "micro_batch ",
                                        "To take it: --set zero.stage="};
    support_output_t output;
    int code = run(&output, "fit");
    ck_assert_int_eq(code, 0);
    ck_assert_str_eq(output.err, "");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(strstr(output.out, lines[i]), "no '%s' in\n%s", lines[i], output.out);
    support_output_free(&output);
}
END_TEST

/* The picture has a dot for each choice at least on the frontier, one ring, and a part for each category; it is written
 * over an older one, but over no other file. */
START_TEST(fit_draws_a_picture)
{
    support_output_t output;
    char path[512];
    snprintf(path, sizeof path, "%s/p.svg", scratch);
    for (int time = 0; time < 2; time++) {
        ck_assert_int_eq(run(&output, "fit --svg p.svg --set device.memory=0.06"), 0);
        support_output_free(&output);
        char *svg = support_read_file(path, NULL);
        ck_assert(strncmp(svg, "<svg ", 5) == 0 && support_count(svg, "</svg>\n") == 1);
        ck_assert_int_eq(support_count(svg, "id=\"chosen\""), 1);
        ck_assert_int_eq(support_count(svg, "id=\"room\""), 1);
        ck_assert_int_eq(support_count(svg, "<rect "), 1 + ZERO_MEMORY_N_CATEGORIES);
        ck_assert_int_gt(support_count(svg, "<title>"), 3);
        ck_assert(!strstr(svg, "nan") && !strstr(svg, "inf"));
        free(svg);
    }
    ck_assert_int_eq(run(&output, "fit --svg cfg.ini"), 2);
    ck_assert_msg(support_count(output.err, "\n") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    const char *arguments, *says;
} refusals[] = {
    {"--svg p.svg", "option of zerotrain fit"},
    {"--gpus 4", "option of zerotrain fit"},
    {"--json", "option of zerotrain fit, zerotrain evaluate, --plan"},
    {"--gpu H200", "option of zerotrain fit, --plan"},
    {"--plan --gpus 4", "option of zerotrain fit"},
    {"--plan --gpu H200", "this plan is for the CPU"},
    {"fit --plan", "give one of them"},
    {"fit --gpus 0", "--gpus: 0 is out of range"},
    {"fit --gpus 300", "need [zero] reduction = nccl"},
    {"fit --gpu-memory 80", "is no size"},
    {"fit --gpu-memory 80XiB", "is no size"},
    {"fit --gpu-memory 1GB", "CUDA alone takes"},
    {"fit --gpu K80", "'K80' is unknown"},
    {"fit --gpu A100 --set train.precision=bf16 --set train.fp8=linear", "an A100 has none"},
    {"--plan --set device.type=cuda --set model.recompute=auto",
     "say what it has with --gpu-memory SIZE or --gpu NAME"},
    {"--set train.micro_batch=auto --set train.global_batch=0", "set global_batch"},
};

START_TEST(mistakes_are_refused_with_a_line)
{
    support_output_t output;
    int code = run(&output, refusals[_i].arguments);
    ck_assert_msg(code == 2, "%s: exit code %d\n%s", refusals[_i].arguments, code, output.err);
    ck_assert_msg(strstr(output.err, refusals[_i].says) && support_count(output.err, "\n") == 1, "%s: %s",
                  refusals[_i].arguments, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fit");
    TCase *c = tcase_create("solver");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, the_choice_is_that_of_brute_force, 0, N_OPEN);
    tcase_add_test(c, what_is_given_is_kept);
    tcase_add_test(c, the_least_share_is_offloaded);
    tcase_add_test(c, muon_waits_for_the_bytes_that_it_exchanges);
    tcase_add_test(c, one_more_of_the_largest_does_not_fit);
    tcase_add_loop_test(c, advice_fits_and_is_by_time, 0, 4);
    tcase_add_test(c, more_ranks_are_advised_where_they_help);
    tcase_add_loop_test(c, the_largest_model_is_solved_within_a_second, 0, 5);
    suite_add_tcase(s, c);
    c = tcase_create("program");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, a_run_takes_what_fit_chooses, 0, 3);
    tcase_add_test(c, a_run_mixes_as_fit_does);
    tcase_add_loop_test(c, hosts_that_differ_choose_alike, 0, 2);
    tcase_add_test(c, what_does_not_fit_is_refused_with_what_would);
    tcase_add_loop_test(c, more_ranks_are_advised_with_what_they_need, 0, 2);
    tcase_add_loop_test(c, memory_that_is_gone_is_explained, 0, 2);
    tcase_add_test(c, fit_prints_a_table_for_people);
    tcase_add_test(c, fit_draws_a_picture);
    tcase_add_loop_test(c, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
