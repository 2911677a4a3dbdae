/* test_fit_advised.c - a run with the options that are advised is the one that was promised. */
#include "tests/unit/planning/fit_cases.h"
#include "train/planning/advice.h"

/* Some state is to be in host memory, and what would fit with more or less of it is looked for, too. A choice of
 * another ratio says so, since a run without that option keeps to the given one. */
START_TEST(another_offload_ratio_than_the_given_is_named)
{
    int n_named = 0, n_kept = 0, n_less = 0;
    for (int i = 0; i < 64; i++) {
        const fit_case_t c = case_of(i, ON_GPU);
        options_t o = options_of(&c);
        fit_machine_t machine = machine_of(&c);
        fit_point_t given;
        fit_advice_t advice;
        o.zero.stage = 1 + i % 3;
        o.zero.offload = OFFLOAD_OPTIMIZER;
        o.zero.offload_ratio = 0.40625;
        o.model.recompute = RECOMPUTE_NONE;
        o.train.micro_batch = 12;
        const fit_choice_t choice = fit_choice_of(&o);
        fit_t *fit = open_fit(&o, &machine, UINT64_MAX);
        ck_assert_int_eq(fit_evaluate(fit, &choice, &given), ZERO_OK);
        fit->budget = given.bytes / 8 * (uint64_t)(3 + i % 5);
        ck_assert_int_eq(fit_advise(fit, &given, &advice), ZERO_OK);
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

static Suite *suite(void)
{
    Suite *s = suite_create("fit_advised");
    TCase *c = tcase_create("advised");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, another_offload_ratio_than_the_given_is_named);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
