/* test_fit_advice.c - the largest sizes that fit beside a choice, and what is advised when nothing fits. */
#include "tests/unit/planning/fit_cases.h"
#include "train/planning/advice.h"

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

static Suite *suite(void)
{
    Suite *s = suite_create("fit_advice");
    TCase *c = tcase_create("advice");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, one_more_of_the_largest_does_not_fit);
    tcase_add_loop_test(c, advice_fits_and_is_by_time, 0, 4);
    tcase_add_test(c, more_ranks_are_advised_where_they_help);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
