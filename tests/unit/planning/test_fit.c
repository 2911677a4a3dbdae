/* test_fit.c - the solver against brute force over the same model of memory and time, and how long it searches. */
#define SUPPORT_SANITIZE_SOME
#include <stdlib.h>

#include "tests/unit/planning/fit_cases.h"

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

/* Where nothing else takes time, adapters with offload = all wait for the bytes that libzero counts: what is frozen
 * comes for both passes of each micro-step and is never stored. 3% are units that buffers still have where forward and
 * backward meet, and padding. With two micro-steps gradients stay. */
START_TEST(offload_of_adapters_takes_the_time_of_its_bytes)
{
    static const double FAST = 1e30;
    for (int i = 0; i < N_ARCHS * 3 * 2; i++) {
        fit_case_t c = case_of(i % (N_ARCHS * 3), ON_GPU); /* 1, 2 and 4 ranks */
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        fit_rates_t *r = &machine.rates;
        zero_traffic_t traffic[4];
        const int hosts[4] = {0};
        model_t model;
        r->half = r->single = r->pass = r->sum = r->link = r->nccl = r->host_pcie = r->host_memory = FAST;
        r->attention_forward[0] = r->attention_backward[0] = r->attention_forward[1] = r->attention_backward[1] = FAST;
        r->kernel_s = r->wait_s = 0.0;
        o.model.layers = 96;
        o.model.vocab_size = 256;
        o.train.micro_batch = 6;
        o.lora.rank = 4;
        o.lora.base = i < N_ARCHS * 3 ? BASE_BF16 : BASE_FP8;
        o.zero.stage = 3;
        o.zero.offload = OFFLOAD_ALL;
        o.zero.offload_ratio = o.zero.offload_params_ratio = 1.0;
        o.model.recompute = RECOMPUTE_NONE;
        ck_assert_int_eq(options_resolve(&o, c.n_ranks), ZERO_OK);
        ck_assert_int_eq(model_create(&o, &model), ZERO_OK);
        zero_config_t config = options_config(&o, c.n_ranks);
        ck_assert_int_eq(
            zero_plan_traffic(model.declaration, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, c.n_ranks, hosts, traffic),
            ZERO_OK);
        /* The state goes out under the last fetch of parameters, which takes longer. */
        ck_assert_uint_gt(traffic[0].to_gpu_bytes, 4 * traffic[0].to_host_bytes);
        const double expected = (double)traffic[0].to_gpu_bytes / r->pcie * 1e3;
        ck_assert_double_eq_tol(fit_step_time(&o, &machine, 1e12).pcie / expected, 1.0, 0.03);
        model_destroy(&model);
    }
}
END_TEST

/* ---- speed ---- */

/* 126 layers, as many as Llama 3.1 405B has, on 1,024 ranks. With plenty of memory, and with budgets between the least
 * and the most that choices take, for which mixes, offload and keep have to be weighed. */
START_TEST(the_largest_model_is_solved_within_a_second)
{
    static const double parts[] = {1.0, 0.5, 0.1, 0.02, 0.001};
    static const fit_open_case_t opens[] = {ON_CPU, ON_GPU, RATIO, RATIO_AND_KEEP, ON_HOST_AND_KEEP, RATIO};
    fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 1024, .dtype = ZERO_BF16, .open = opens[_i]};
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_result_t result;
    fit_largest_t largest;
    double slowest = 0.0, least = 0.0, most = 0.0;
    int n_mixes = 0;
    o.model.layers = 126;
    if (_i == 5) { /* parameters and inputs may leave, too */
        o.zero.offload = OFFLOAD_ALL;
        o.zero.stage = 3;
        o.zero.offload_params_ratio = o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    }
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

/* Returns the best point with recompute as it is asked for, a fit's; time INFINITY if none fits. */
static fit_point_t best_of_long(int recompute, bool keep_attention, uint64_t budget)
{
    const fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 2, .dtype = ZERO_BF16, .open = ON_GPU};
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_result_t result;
    o.model.seq_len = 65536;
    o.model.recompute = recompute;
    o.model.keep_attention = keep_attention;
    o.train.micro_batch = 1;
    o.train.global_batch = 2;
    fit_t *fit = open_fit(&o, &machine, budget);
    ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
    ck_assert(fit->asked.model.keep_attention == keep_attention);
    fit_point_t best = {.time.total = INFINITY};
    if (result.best >= 0)
        best = result.points[result.best];
    free(result.points);
    fit_destroy(fit);
    return best;
}

/* From what recomputing everything takes, in steps, to enough for none: never slower than with attention given as kept
 * or not, and kept by some. */
START_TEST(attention_of_long_sequences_is_kept_where_that_is_faster)
{
    const fit_point_t least = best_of_long(RECOMPUTE_FULL, false, UINT64_MAX),
                      most = best_of_long(RECOMPUTE_NONE, false, UINT64_MAX);
    int n_kept = 0;
    for (int i = 0; i <= 8; i++) {
        const uint64_t budget = least.bytes + (most.bytes - least.bytes) / 8 * (uint64_t)i;
        const fit_point_t best = best_of_long(RECOMPUTE_AUTO, false, budget),
                          kept = best_of_long(RECOMPUTE_AUTO, true, budget),
                          full = best_of_long(RECOMPUTE_FULL, false, budget);
        ck_assert_uint_le(best.bytes, budget);
        ck_assert_double_le(best.time.total, kept.time.total * (1.0 + FIT_TIE) * (1.0 + FIT_TIE));
        ck_assert_double_le(best.time.total, full.time.total * (1.0 + FIT_TIE));
        n_kept += best.choice.keep_attention;
    }
    printf("attention is kept within %d of 9 budgets\n", n_kept);
    ck_assert_int_gt(n_kept, 0);
    ck_assert_int_lt(n_kept, 9);
}
END_TEST

/* offload_grads = auto: sums stay on the device where the choice fits with them, and leave where nothing fits else. */
START_TEST(sums_of_gradients_leave_where_nothing_fits_with_them)
{
    fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 1 + _i, .dtype = ZERO_BF16, .open = ON_GPU};
    options_t o = options_of(&c);
    const fit_machine_t machine = machine_of(&c);
    o.zero.stage = 3;
    o.zero.offload = OFFLOAD_ALL;
    o.model.layers = 12;
    o.model.recompute = RECOMPUTE_FULL;
    o.train.micro_batch = 2;
    fit_choice_t choice = fit_choice_of(&o);
    fit_point_t here, there, found;
    fit_t *fit = open_fit(&o, &machine, UINT64_MAX);
    choice.offload_grads = ZERO_OFFLOAD_GRADS_DEVICE;
    ck_assert_int_eq(fit_evaluate(fit, &choice, &here), ZERO_OK);
    choice.offload_grads = ZERO_OFFLOAD_GRADS_HOST;
    ck_assert_int_eq(fit_evaluate(fit, &choice, &there), ZERO_OK);
    fit_destroy(fit);
    ck_assert_uint_lt(there.bytes, here.bytes);
    ck_assert_uint_gt(there.memory.pinned_bytes, here.memory.pinned_bytes);
    ck_assert_double_ge(there.time.total, here.time.total);
    const uint64_t budgets[] = {there.bytes - 1, there.bytes, here.bytes - 1, here.bytes};
    for (int i = 0; i < 4; i++) {
        fit_result_t result;
        fit = open_fit(&o, &machine, budgets[i]);
        choice.offload_grads = ZERO_OFFLOAD_GRADS_AUTO;
        ck_assert_int_eq(fit_evaluate(fit, &choice, &found), ZERO_OK);
        ck_assert_int_eq(found.choice.offload_grads, i < 3 ? ZERO_OFFLOAD_GRADS_HOST : ZERO_OFFLOAD_GRADS_DEVICE);
        ck_assert_uint_eq(found.bytes, i < 3 ? there.bytes : here.bytes);
        ck_assert_int_eq(found.fits, i > 0);
        ck_assert_int_eq(fit_solve(fit, &result), ZERO_OK);
        ck_assert_int_eq(result.best >= 0, i > 0);
        if (result.best >= 0)
            ck_assert_int_eq(result.points[result.best].choice.offload_grads, found.choice.offload_grads);
        free(result.points);
        fit_destroy(fit);
    }
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
    tcase_add_test(c, offload_of_adapters_takes_the_time_of_its_bytes);
    tcase_add_loop_test(c, the_largest_model_is_solved_within_a_second, 0, 6);
    tcase_add_loop_test(c, sums_of_gradients_leave_where_nothing_fits_with_them, 0, 2);
    tcase_add_test(c, attention_of_long_sequences_is_kept_where_that_is_faster);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
