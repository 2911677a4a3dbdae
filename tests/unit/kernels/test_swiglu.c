/* test_swiglu.c - tests SwiGLU's product against the C library in fp64, its gradients against central differences. */
#include "tests/support/model_fixture.h"

typedef struct shape {
    size_t n_rows, width;
} shape_t;

/* Odd, tiny, enough for several threads. */
static const shape_t shapes[] = {{1, 1}, {7, 5}, {51, 96}, {33, 1237}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static const zero_model_limits_t limits = {
    .n_rows = 1, .seq_len = 1, .max_linear = 1, .max_width = 1, .n_heads = 1, .head_dim = 1, .vocab_size = 1};

static double silu64(double x)
{
    return x / (1.0 + exp(-x));
}

static double silu64_at(void *arg)
{
    return silu64(*(double *)arg);
}

typedef struct result {
    array_t y, again, dgate_up;
} result_t;

static void result_free(result_t *r)
{
    array_free(&r->y), array_free(&r->again), array_free(&r->dgate_up);
}

/* in_place: the gradient overwrites gate_up, as in training. */
static result_t run(fixture_t *f, shape_t s, const array_t *gate_up, const array_t *dy, bool in_place, bool with_y)
{
    size_t n = s.n_rows * s.width;
    result_t r = {array_poison(n, ZERO_FP32), array_poison(n, ZERO_FP32),
                  in_place ? array_copy(gate_up) : array_poison(2 * n, ZERO_FP32)};
    ck_assert_int_eq(f->kernels->swiglu(&f->ctx, r.y.data, gate_up->data, s.n_rows, s.width), ZERO_OK);
    ck_assert_int_eq(f->kernels->swiglu_backward(&f->ctx, r.dgate_up.data, with_y ? r.again.data : NULL, dy->data,
                                                 in_place ? r.dgate_up.data : gate_up->data, s.n_rows, s.width),
                     ZERO_OK);
    return r;
}

START_TEST(forward_and_gradients_equal_fp64)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t i = 0; i < N_SHAPES; ++i) {
        shape_t s = shapes[i];
        size_t n = s.n_rows * s.width;
        array_t gate_up = array_normal(2 * n, ZERO_FP32, 0.0, 2.0, 1), dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 2);
        double *want = fixture_doubles(n), *want_d = fixture_doubles(2 * n);
        for (size_t k = 0; k < n; ++k) {
            size_t gate = k / s.width * 2 * s.width + k % s.width, up = gate + s.width;
            double at = gate_up.values[gate];
            want[k] = silu64(at) * gate_up.values[up];
            want_d[up] = dy.values[k] * silu64(at);
            want_d[gate] = dy.values[k] * gate_up.values[up] * fixture_slope(silu64_at, &at, &at);
        }
        result_t got = run(&f, s, &gate_up, &dy, false, true), in_place = run(&f, s, &gate_up, &dy, true, true);
        result_t without = run(&f, s, &gate_up, &dy, true, false);
        /* A few roundings. The largest is that of the exponent, times its size. */
        array_expect(&got.y, want, 4 * 0x1p-24, "y");
        array_expect(&got.dgate_up, want_d, 8 * 0x1p-24, "dgate_up");
        array_expect_same_bits(&got.y, &got.again, "y, made again");
        array_expect_same_bits(&got.y, &in_place.again, "y, made again from what is overwritten");
        array_expect_same_bits(&got.dgate_up, &in_place.dgate_up, "dgate_up in place of gate_up");
        array_expect_same_bits(&got.dgate_up, &without.dgate_up, "dgate_up without y");
        result_free(&got), result_free(&in_place), result_free(&without);
        free(want), free(want_d);
        array_free(&gate_up), array_free(&dy);
    }
    fixture_close(&f);
}
END_TEST

START_TEST(extremes_stay_numbers_and_nan_stays_nan)
{
    static const double gates[] = {-3e38, -1e20, -100.0, -30.0, -0.0, 0.0, 30.0, 100.0, 1e20, 3e38, (double)NAN};
    enum { N = sizeof gates / sizeof gates[0] };
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t gate_up = array_poison(2 * N, ZERO_FP32), dy = array_poison(N, ZERO_FP32);
    for (size_t i = 0; i < N; ++i) {
        array_set(&gate_up, i, gates[i]);
        array_set(&gate_up, N + i, 1.0);
        array_set(&dy, i, 1.0);
    }
    result_t got = run(&f, (shape_t){1, N}, &gate_up, &dy, false, false);
    for (size_t i = 0; i + 1 < N; ++i) {
        double relu = gates[i] > 0.0 ? gates[i] : 0.0, step = gates[i] > 0.0 ? 1.0 : gates[i] < 0.0 ? 0.0 : 0.5;
        double y = array_get(&got.y, i), dgate = array_get(&got.dgate_up, i), dup = array_get(&got.dgate_up, N + i);
        ck_assert_msg(fabs(y - relu) <= 1e-6 * relu + 1e-11, "silu(%g) = %g", gates[i], y);
        ck_assert_msg(fabs(dup - relu) <= 1e-6 * relu + 1e-11, "dup at %g is %g", gates[i], dup);
        ck_assert_msg(fabs(dgate - step) <= 1e-6, "silu'(%g) = %g", gates[i], dgate);
    }
    ck_assert(isnan(array_get(&got.y, N - 1)) && isnan(array_get(&got.dgate_up, N - 1)));
    result_free(&got);
    array_free(&gate_up), array_free(&dy);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_and_gradients_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, extremes_stay_numbers_and_nan_stays_nan, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("swiglu", add_tests);
}
