/* test_gelu.c - tests exp and GELU against the C library in fp64; the slope also against central differences. */
#include "tests/support/model_fixture.h"

#include "train/kernels/vector_math.h"

#define N_ROWS 187
#define WIDTH 107
#define N_ELEMS (N_ROWS * WIDTH) /* enough for several threads; rows are no multiple of a vector */

static const zero_model_limits_t limits = {
    .n_rows = N_ROWS, .seq_len = 1, .max_linear = 1, .max_width = WIDTH, .n_heads = 1, .head_dim = 1, .vocab_size = 1};

static const zero_grad_t no_sums = {0};

static double gelu64(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu64_at(void *arg)
{
    return gelu64(*(double *)arg);
}

/* 2 units in the last place, since this file is compiled without fma instructions. */
START_TEST(exp_is_within_two_units_of_the_c_library)
{
    double worst = 0.0;
    for (int i = 0; i <= 1760000; ++i) {
        float x = -87.3f + (float)i * 1e-4f;
        if (x > 88.7f)
            break;
        double want = exp((double)x), unit = ldexp(1.0, ilogb(want) - 23);
        worst = fmax(worst, fabs((double)zero_exp(x) - want) / unit);
    }
    ck_assert_msg(worst < 2.0, "%.3g units", worst);
    ck_assert(zero_exp(0.0f) == 1.0f);
    ck_assert(zero_exp(-INFINITY) == 0.0f && zero_exp(-1e30f) == 0.0f && zero_exp(-88.0f) == 0.0f);
    ck_assert(zero_exp(INFINITY) == INFINITY && zero_exp(88.9f) == INFINITY && isfinite(zero_exp(88.7f)));
    ck_assert(isnan(zero_exp(NAN)));
}
END_TEST

START_TEST(forward_and_slope_equal_fp64)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(N_ELEMS, ZERO_FP32, 0.0, 2.0, 1), dy = array_normal(N_ELEMS, ZERO_FP32, 0.0, 1.0, 2);
    array_t y = array_poison(N_ELEMS, ZERO_FP32), dx = array_copy(&y), again = array_copy(&y);
    array_t in_place = array_copy(&dy), sums = array_poison(WIDTH, ZERO_FP32);
    double *want_sums = fixture_doubles(WIDTH);
    double *want = fixture_doubles(N_ELEMS), *want_dx = fixture_doubles(N_ELEMS);
    for (size_t i = 0; i < N_ELEMS; ++i) {
        want[i] = gelu64(x.values[i]);
        double at = x.values[i];
        want_dx[i] = dy.values[i] * fixture_slope(gelu64_at, &at, &at);
        want_sums[i % WIDTH] += want_dx[i];
    }
    ck_assert_int_eq(f.kernels->gelu(&f.ctx, y.data, x.data, N_ELEMS), ZERO_OK);
    ck_assert_int_eq(
        f.kernels->gelu_backward(&f.ctx, dx.data, array_grad(&sums, false), again.data, dy.data, x.data, N_ROWS, WIDTH),
        ZERO_OK);
    ck_assert_int_eq(
        f.kernels->gelu_backward(&f.ctx, in_place.data, no_sums, NULL, in_place.data, x.data, N_ROWS, WIDTH), ZERO_OK);
    /* A few roundings. The largest is that of the exponent, times its size. */
    array_expect(&y, want, 4 * 0x1p-24, "y");
    array_expect(&dx, want_dx, 8 * 0x1p-24, "dx");
    array_expect(&sums, want_sums, 8 * 0x1p-24, "dcolumns");
    array_expect_same_bits(&dx, &in_place, "dx in place of dy, without y and sums");
    array_expect_same_bits(&y, &again, "y, made again by backward");
    free(want), free(want_dx), free(want_sums);
    array_free(&again), array_free(&sums);
    array_free(&x), array_free(&dy), array_free(&y), array_free(&dx), array_free(&in_place);
    fixture_close(&f);
}
END_TEST

START_TEST(extremes_stay_numbers_and_nan_stays_nan)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    static const double xs[] = {-3e38, -1e20, -30.0, -10.0, -0.0, 0.0, 10.0, 30.0, 1e20, 3e38};
    array_t x = array_poison(11, ZERO_FP32), dy = array_copy(&x), y = array_copy(&x), dx = array_copy(&x);
    for (size_t i = 0; i < 11; ++i) {
        array_set(&x, i, i < 10 ? xs[i] : (double)NAN);
        array_set(&dy, i, 1.0);
    }
    ck_assert_int_eq(f.kernels->gelu(&f.ctx, y.data, x.data, 11), ZERO_OK);
    ck_assert_int_eq(f.kernels->gelu_backward(&f.ctx, dx.data, no_sums, NULL, dy.data, x.data, 1, 11), ZERO_OK);
    for (size_t i = 0; i < 10; ++i) {
        double relu = x.values[i] > 0.0 ? x.values[i] : 0.0;
        ck_assert_msg(fabs(array_get(&y, i) - relu) <= 1e-6 * relu + 1e-15, "gelu(%g) = %g", x.values[i],
                      array_get(&y, i));
        double step = x.values[i] > 0.0 ? 1.0 : x.values[i] < 0.0 ? 0.0 : 0.5;
        ck_assert_msg(fabs(array_get(&dx, i) - step) <= 1e-6, "gelu'(%g) = %g", x.values[i], array_get(&dx, i));
    }
    ck_assert(isnan(array_get(&y, 10)) && isnan(array_get(&dx, 10)));
    array_free(&x), array_free(&dy), array_free(&y), array_free(&dx);
    fixture_close(&f);
}
END_TEST

START_TEST(put_grad_adds_or_overwrites_with_one_rounding)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d) {
        for (int accumulate = 0; accumulate < 2; ++accumulate) {
            zero_dtype_t dtype = fixture_dtypes[d];
            array_t sums = array_normal(WIDTH, ZERO_FP32, 0.0, 1.0, 5);
            array_t grad = array_grad_target(WIDTH, dtype, accumulate != 0, 6);
            ck_assert_int_eq(f.kernels->put_grad(&f.ctx, array_grad(&grad, accumulate != 0), sums.data, WIDTH),
                             ZERO_OK);
            for (size_t i = 0; i < WIDTH; ++i) /* values: what it held before, 0 if it is overwritten */
                ck_assert(array_get(&grad, i) ==
                          fixture_round(fixture_round(grad.values[i] + sums.values[i], ZERO_FP32), dtype));
            array_free(&sums), array_free(&grad);
        }
    }
    fixture_close(&f);
}
END_TEST

START_TEST(zero_fill_zeroes)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t y = array_normal(N_ELEMS, ZERO_FP32, 0.0, 1.0, 4);
    ck_assert_int_eq(f.kernels->zero_fill(&f.ctx, y.data, N_ELEMS * sizeof(float)), ZERO_OK);
    for (size_t i = 0; i < N_ELEMS; ++i)
        ck_assert(array_get(&y, i) == 0.0);
    array_free(&y);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_test(tests, exp_is_within_two_units_of_the_c_library);
    tcase_add_loop_test(tests, forward_and_slope_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, extremes_stay_numbers_and_nan_stays_nan, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, put_grad_adds_or_overwrites_with_one_rounding, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, zero_fill_zeroes, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("gelu", add_tests);
}
