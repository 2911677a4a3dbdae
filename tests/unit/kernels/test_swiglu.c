/* test_swiglu.c - tests SwiGLU's and GeGLU's products against the C library in fp64, their gradients against central
 * differences.
 */
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

static double gelu64(double x)
{
    const double sqrt_2_by_pi = 0.79788456080286535588;
    return 0.5 * x * (1.0 + tanh(sqrt_2_by_pi * (x + 0.044715 * x * x * x)));
}

static double gelu64_at(void *arg)
{
    return gelu64(*(double *)arg);
}

/* A test runs for every instruction set, with each activation. */
typedef enum gate { SILU, GELU, N_GATES } gate_t;

static double (*const values64[])(double) = {[SILU] = silu64, [GELU] = gelu64};
static double (*const values64_at[])(void *) = {[SILU] = silu64_at, [GELU] = gelu64_at};

typedef struct result {
    array_t y, again, dgate_up;
} result_t;

static void result_free(result_t *r)
{
    array_free(&r->y), array_free(&r->again), array_free(&r->dgate_up);
}

/* in_place: the gradient overwrites gate_up, as in training. */
static result_t run(fixture_t *f, gate_t gate, shape_t s, const array_t *gate_up, const array_t *dy, bool in_place,
                    bool with_y)
{
    size_t n = s.n_rows * s.width;
    result_t r = {array_poison(n, ZERO_FP32), array_poison(n, ZERO_FP32),
                  in_place ? array_copy(gate_up) : array_poison(2 * n, ZERO_FP32)};
    const zero_model_kernels_t *k = f->kernels;
    ck_assert_int_eq((gate == SILU ? k->swiglu : k->geglu)(&f->ctx, r.y.data, gate_up->data, s.n_rows, s.width),
                     ZERO_OK);
    ck_assert_int_eq((gate == SILU ? k->swiglu_backward : k->geglu_backward)(
                         &f->ctx, r.dgate_up.data, with_y ? r.again.data : NULL, dy->data,
                         in_place ? r.dgate_up.data : gate_up->data, s.n_rows, s.width),
                     ZERO_OK);
    return r;
}

START_TEST(forward_and_gradients_equal_fp64)
{
    const gate_t gate_kind = (gate_t)(_i % N_GATES);
    fixture_t f;
    if (!fixture_open(&f, _i / N_GATES, &limits))
        return;
    for (size_t i = 0; i < N_SHAPES; ++i) {
        shape_t s = shapes[i];
        size_t n = s.n_rows * s.width;
        array_t gate_up = array_normal(2 * n, ZERO_FP32, 0.0, 2.0, 1), dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 2);
        double *want = fixture_doubles(n), *want_d = fixture_doubles(2 * n);
        for (size_t k = 0; k < n; ++k) {
            size_t gate = k / s.width * 2 * s.width + k % s.width, up = gate + s.width;
            double at = gate_up.values[gate];
            want[k] = values64[gate_kind](at) * gate_up.values[up];
            want_d[up] = dy.values[k] * values64[gate_kind](at);
            want_d[gate] = dy.values[k] * gate_up.values[up] * fixture_slope(values64_at[gate_kind], &at, &at);
        }
        result_t got = run(&f, gate_kind, s, &gate_up, &dy, false, true),
                 in_place = run(&f, gate_kind, s, &gate_up, &dy, true, true);
        result_t without = run(&f, gate_kind, s, &gate_up, &dy, true, false);
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
    const gate_t gate_kind = (gate_t)(_i % N_GATES);
    fixture_t f;
    if (!fixture_open(&f, _i / N_GATES, &limits))
        return;
    array_t gate_up = array_poison(2 * N, ZERO_FP32), dy = array_poison(N, ZERO_FP32);
    for (size_t i = 0; i < N; ++i) {
        array_set(&gate_up, i, gates[i]);
        array_set(&gate_up, N + i, 1.0);
        array_set(&dy, i, 1.0);
    }
    result_t got = run(&f, gate_kind, (shape_t){1, N}, &gate_up, &dy, false, false);
    for (size_t i = 0; i + 1 < N; ++i) {
        double relu = gates[i] > 0.0 ? gates[i] : 0.0, step = gates[i] > 0.0 ? 1.0 : gates[i] < 0.0 ? 0.0 : 0.5;
        double y = array_get(&got.y, i), dgate = array_get(&got.dgate_up, i), dup = array_get(&got.dgate_up, N + i);
        ck_assert_msg(fabs(y - relu) <= 1e-6 * relu + 1e-11, "value(%g) = %g", gates[i], y);
        ck_assert_msg(fabs(dup - relu) <= 1e-6 * relu + 1e-11, "dup at %g is %g", gates[i], dup);
        ck_assert_msg(fabs(dgate - step) <= 1e-6, "slope(%g) = %g", gates[i], dgate);
    }
    ck_assert(isnan(array_get(&got.y, N - 1)) && isnan(array_get(&got.dgate_up, N - 1)));
    result_free(&got);
    array_free(&gate_up), array_free(&dy);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_and_gradients_equal_fp64, 0, FIXTURE_N_ISAS * N_GATES);
    tcase_add_loop_test(tests, extremes_stay_numbers_and_nan_stays_nan, 0, FIXTURE_N_ISAS * N_GATES);
}

int main(void)
{
    return fixture_main("swiglu", add_tests);
}
