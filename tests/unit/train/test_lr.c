/* test_lr.c - learning rates against closed forms. */
#include "tests/support/support.h"
#include "train/schedules.h"

#include <math.h>

static options_t schedule_of(options_schedule_t schedule, int64_t steps, int64_t warmup)
{
    static options_t options;
    options.train.lr = 0.8;
    options.train.min_lr = 0.2;
    options.train.steps = steps;
    options.train.warmup_steps = warmup;
    options.train.schedule = (int)schedule;
    return options;
}

static void expect_rate(const options_t *options, int64_t step, double want)
{
    ck_assert_double_eq_tol(lr_at(&options->train, step), want, 1e-15);
}

START_TEST(warm_up_rises_in_equal_steps_to_lr)
{
    for (int schedule = SCHEDULE_COSINE; schedule <= SCHEDULE_WSD; schedule++) {
        options_t options = schedule_of((options_schedule_t)schedule, 100, 8);
        for (int64_t step = 1; step <= 8; step++)
            expect_rate(&options, step, 0.1 * (double)step);
        ck_assert(lr_at(&options.train, 8) == 0.8);
    }
}
END_TEST

START_TEST(first_step_has_the_full_rate_without_warm_up)
{
    for (int schedule = SCHEDULE_COSINE; schedule <= SCHEDULE_WSD; schedule++)
        for (int64_t warmup = 0; warmup <= 1; warmup++) {
            options_t options = schedule_of((options_schedule_t)schedule, 100, warmup);
            ck_assert(lr_at(&options.train, 1) == 0.8);
        }
}
END_TEST

START_TEST(last_step_has_min_lr_and_later_ones_keep_it)
{
    for (int schedule = SCHEDULE_COSINE; schedule <= SCHEDULE_WSD; schedule++) {
        options_t options = schedule_of((options_schedule_t)schedule, 103, 8);
        double want = schedule == SCHEDULE_CONSTANT ? 0.8 : 0.2;
        expect_rate(&options, 103, want);
        expect_rate(&options, 104, want);
        expect_rate(&options, 1000000, want);
    }
}
END_TEST

/* cos 60 and 90 degrees: after a third of the steps three quarters of the height, after half of them half. */
START_TEST(cosine_passes_through_known_points)
{
    options_t options = schedule_of(SCHEDULE_COSINE, 130, 10);
    expect_rate(&options, 10, 0.8);
    expect_rate(&options, 50, 0.2 + 0.6 * 0.75);
    expect_rate(&options, 70, 0.5);
    expect_rate(&options, 90, 0.2 + 0.6 * 0.25);
}
END_TEST

START_TEST(linear_is_a_line)
{
    options_t options = schedule_of(SCHEDULE_LINEAR, 70, 10);
    for (int64_t step = 10; step <= 70; step++)
        expect_rate(&options, step, 0.8 - 0.01 * (double)(step - 10));
}
END_TEST

START_TEST(wsd_is_stable_and_falls_in_the_last_fifth)
{
    options_t options = schedule_of(SCHEDULE_WSD, 100, 10);
    for (int64_t step = 10; step <= 80; step++)
        expect_rate(&options, step, 0.8);
    for (int64_t step = 80; step <= 100; step++)
        expect_rate(&options, step, 0.8 - 0.03 * (double)(step - 80));
}
END_TEST

START_TEST(no_schedule_leaves_its_bounds_at_any_size)
{
    for (int schedule = SCHEDULE_COSINE; schedule <= SCHEDULE_WSD; schedule++)
        for (int64_t steps = 1; steps <= 12; steps++)
            for (int64_t warmup = 0; warmup <= steps; warmup++) {
                options_t options = schedule_of((options_schedule_t)schedule, steps, warmup);
                double before = INFINITY;
                for (int64_t step = 1; step <= steps + 2; step++) {
                    double rate = lr_at(&options.train, step);
                    ck_assert(rate > 0 && rate <= 0.8);
                    if (step > warmup)
                        ck_assert_msg(rate >= 0.2 - 1e-15 && rate <= before,
                                      "schedule %d, %d steps, warm-up %d: step %d", schedule, (int)steps, (int)warmup,
                                      (int)step);
                    before = step >= warmup ? rate : INFINITY;
                }
            }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("lr");
    TCase *c = tcase_create("schedules");
    tcase_add_test(c, warm_up_rises_in_equal_steps_to_lr);
    tcase_add_test(c, first_step_has_the_full_rate_without_warm_up);
    tcase_add_test(c, last_step_has_min_lr_and_later_ones_keep_it);
    tcase_add_test(c, cosine_passes_through_known_points);
    tcase_add_test(c, linear_is_a_line);
    tcase_add_test(c, wsd_is_stable_and_falls_in_the_last_fifth);
    tcase_add_test(c, no_schedule_leaves_its_bounds_at_any_size);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
