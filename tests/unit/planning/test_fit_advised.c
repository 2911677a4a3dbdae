/* test_fit_advised.c - a run with the options that are advised is the one that was promised; the largest sizes
 * beyond where tiles begin. */
#include <stdlib.h>

#include "tests/unit/planning/fit_cases.h"
#include "train/planning/advice.h"

/* Opens a fit whose options take more than fits, in 3 to 7 eighths of their memory, and asks for advice. */
static fit_t *open_advised(const options_t *o, const fit_machine_t *machine, int i, fit_advice_t *advice)
{
    const fit_choice_t choice = fit_choice_of(o);
    fit_point_t given;
    fit_t *fit = open_fit(o, machine, UINT64_MAX);
    ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
    fit->budget = given.bytes / 8 * (uint64_t)(3 + i % 5);
    ck_assert_int_eq(fit_advise(fit, &given, advice), ZERO_OK);
    return fit;
}

/* Some state is to be in host memory, and what would fit with more or less of it is looked for, too. A choice of
 * another ratio says so, since a run without that option keeps to the given one. */
START_TEST(another_offload_ratio_than_the_given_is_named)
{
    int n_named = 0, n_kept = 0, n_less = 0;
    for (int i = 0; i < 64; i++) {
        const fit_case_t c = case_of(i, ON_GPU);
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        fit_advice_t advice;
        o.zero.stage = 1 + i % 3;
        o.zero.offload = OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = 0.40625;
        o.model.recompute = RECOMPUTE_NONE;
        o.train.micro_batch = 12;
        fit_t *fit = open_advised(&o, &machine, i, &advice);
        for (int p = 0; p < advice.n_points; p++) {
            const bool is_named = (advice.points[p].changes & FIT_CHANGES_OFFLOAD) != 0;
            const double ratio = advice.points[p].point.choice.offload_ratio;
            ck_assert_msg(is_named || ratio == o.zero.offload_ratio, "case %d: %g", i, ratio);
            n_named += is_named;
            n_kept += !is_named;
            n_less += ratio < o.zero.offload_ratio;
        }
        fit_destroy(fit);
    }
    printf("another ratio is named in %d, less in %d, the given kept in %d\n", n_named, n_less, n_kept);
    ck_assert(n_named > 0 && n_less > 0 && n_kept > 0);
}
END_TEST

/* Returns the options with an advice, of settings that leave nothing auto. */
static options_t options_with(const options_t *asked, const fit_advised_t *advised)
{
    options_t o = *asked;
    const fit_choice_t *named = &advised->named;
    o.zero.stage = named->stage;
    o.model.recompute = fit_is_mixed(named) ? RECOMPUTE_AUTO : named->recompute;
    o.model.keep_attention ^= (advised->changes & FIT_CHANGES_KEEP_ATTENTION) != 0;
    o.train.micro_batch = named->micro_batch;
    o.zero.keep = named->keep;
    if (advised->changes & FIT_CHANGES_ACTIVATIONS)
        o.model.offload_activations = (double)ZERO_OFFLOAD_AUTO;
    if (advised->changes & FIT_CHANGES_OFFLOAD) {
        o.zero.offload = OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = (double)ZERO_OFFLOAD_AUTO;
    }
    if (advised->changes & FIT_CHANGES_OFFLOAD_PARAMS) {
        o.zero.offload = OFFLOAD_ALL;
        o.zero.offload_params_ratio = (double)ZERO_OFFLOAD_AUTO;
    }
    if (advised->changes & FIT_CHANGES_UPDATE)
        o.zero.update = ZERO_UPDATE_IN_BACKWARD;
    return o;
}

/* Long and short sequences, few and many blocks, where auto settings have much to choose from. */
START_TEST(a_run_with_the_advice_takes_what_is_promised)
{
    int n_advised = 0, n_auto = 0;
    for (int i = 0; i < 64; i++) {
        const fit_case_t c = case_of(i, i % 4 < 2 ? ON_GPU : ON_CPU);
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        fit_advice_t advice;
        if (i % 3 == 0) {
            o.model.seq_len = 16384;
            o.model.positions = o.model.arch == ARCH_GPT2 ? o.model.seq_len : 0;
        }
        o.model.layers = 3 + i % 5;
        o.zero.stage = i / 2 % 4;
        o.model.recompute = i % 3;
        o.train.micro_batch = i % 3 == 0 ? 1 : 12;
        o.train.grad_clip = 0.0;
        fit_t *fit = open_advised(&o, &machine, i, &advice);
        for (int p = 0; p < advice.n_points; p++) {
            const options_t advised = options_with(&o, &advice.points[p]);
            const fit_point_t *promised = &advice.points[p].point;
            fit_result_t result;
            fit_t *run = open_fit(&advised, &machine, fit->budget);
            ck_assert_int_eq(fit_solve(run, &result), ZERO_OK);
            ck_assert_int_ge(result.best, 0);
            const fit_point_t *taken = &result.points[result.best];
            ck_assert_msg(taken->bytes == promised->bytes && taken->time.total == promised->time.total,
                          "case %d, changes %#x: %llu bytes, %g ms promised, %llu, %g taken", i,
                          advice.points[p].changes, (unsigned long long)promised->bytes, promised->time.total,
                          (unsigned long long)taken->bytes, taken->time.total);
            for (int q = 0; q < p; q++)
                ck_assert_msg(advice.points[q].point.bytes != promised->bytes ||
                                  advice.points[q].point.time.total != promised->time.total,
                              "case %d: changes %#x and %#x start one run", i, advice.points[q].changes,
                              advice.points[p].changes);
            n_advised++;
            n_auto += fit_is_mixed(&advice.points[p].named);
            free(result.points);
            fit_destroy(run);
        }
        fit_destroy(fit);
    }
    printf("%d advices, %d with recompute = auto\n", n_advised, n_auto);
    ck_assert(n_advised > 50 && n_auto > 10);
}
END_TEST

/* Tiles of the MLP begin at 9 x 4096 rows, which take less than 8 x 4096 at once. */
START_TEST(the_largest_may_be_beyond_where_tiles_begin)
{
    const fit_case_t c = {.arch = ARCH_LLAMA, .n_ranks = 1, .dtype = ZERO_BF16, .open = ON_CPU};
    options_t o = options_of(&c);
    fit_machine_t machine = machine_of(&c);
    fit_largest_t largest;
    o.model.seq_len = 4096;
    o.model.dim = 64;
    o.model.heads = o.model.kv_heads = 1;
    o.model.ffn_dim = 4096;
    o.train.global_batch = o.train.micro_batch = 10;
    const fit_choice_t choice = {.stage = 2, .recompute = RECOMPUTE_FULL, .micro_batch = 10};
    const uint64_t budget = try_choice(&o, &machine, 2, RECOMPUTE_FULL, 10).bytes;
    ck_assert_uint_gt(try_choice(&o, &machine, 2, RECOMPUTE_FULL, 8).bytes, budget);
    fit_t *fit = open_fit(&o, &machine, budget);
    ck_assert_int_eq(fit_find_largest(fit, &choice, &largest), ZERO_OK);
    ck_assert_int_eq(largest.micro_batch, 10);
    ck_assert_int_eq(largest.seq_len, 4096);
    fit_destroy(fit);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fit_advised");
    TCase *c = tcase_create("advised");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, another_offload_ratio_than_the_given_is_named);
    tcase_add_test(c, a_run_with_the_advice_takes_what_is_promised);
    tcase_add_test(c, the_largest_may_be_beyond_where_tiles_begin);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
