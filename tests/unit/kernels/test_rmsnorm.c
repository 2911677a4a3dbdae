/* test_rmsnorm.c - RMSNorm with its residual sum against plain fp64 loops; backward against the closed form in fp64
 * and, at a small size, against central differences of the fp64 forward.
 */
#include "tests/support/model_fixture.h"

#define EPS 1e-5

typedef struct shape {
    size_t n_rows, dim;
} shape_t;

static const shape_t shapes[] = {{1, 1}, {51, 36}, {7, 5}, {301, 333}, {130, 768}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static zero_model_limits_t limits_of(shape_t s, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = s.n_rows,
                                 .seq_len = 1,
                                 .max_linear = 1,
                                 .max_width = s.dim,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = 1,
                                 .dtype = dtype};
}

static double row_rstd(const double *x, size_t dim)
{
    double squares = 0.0;
    for (size_t i = 0; i < dim; ++i)
        squares += x[i] * x[i];
    return 1.0 / sqrt(squares / (double)dim + EPS);
}

/* The closed form of one row, added to dx and dweight. */
static void row_gradients(double *dx, double *dweight, const double *dy, const double *x, const double *weight,
                          size_t dim)
{
    double rstd = row_rstd(x, dim), gh_mean = 0.0;
    for (size_t i = 0; i < dim; ++i) {
        gh_mean += dy[i] * weight[i] * x[i] * rstd / (double)dim;
        dweight[i] += dy[i] * x[i] * rstd;
    }
    for (size_t i = 0; i < dim; ++i)
        dx[i] += rstd * (dy[i] * weight[i] - x[i] * rstd * gh_mean);
}

/* A few roundings per element, sums of dim numbers in 16 lanes. */
static const double forward_bound = 16 * 0x1p-24;

static void check_forward(int isa, shape_t s, zero_dtype_t dtype, bool with_addend, bool in_place)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    size_t n = s.n_rows * s.dim;
    array_t residual = array_normal(n, ZERO_FP32, 0.5, 1.0, 1), addend = array_normal(n, ZERO_FP32, 0.0, 1.0, 2);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 3);
    array_t out = in_place ? array_copy(&residual) : array_poison(n, ZERO_FP32);
    array_t y = array_poison(n, ZERO_FP32), rstd = array_poison(s.n_rows, ZERO_FP32);
    double *sum = fixture_doubles(n), *want = fixture_doubles(n), *want_rstd = fixture_doubles(s.n_rows);
    for (size_t r = 0; r < s.n_rows; ++r) {
        for (size_t i = r * s.dim; i < (r + 1) * s.dim; ++i)
            sum[i] = fixture_round(residual.values[i] + (with_addend ? addend.values[i] : 0.0), ZERO_FP32);
        want_rstd[r] = row_rstd(sum + r * s.dim, s.dim);
        for (size_t i = 0; i < s.dim; ++i)
            want[r * s.dim + i] = sum[r * s.dim + i] * want_rstd[r] * weight.values[i];
    }
    ck_assert_int_eq(f.kernels->rmsnorm(&f.ctx, y.data, rstd.data, out.data, in_place ? out.data : residual.data,
                                        with_addend ? addend.data : NULL, array_weight(&weight), (float)EPS, s.n_rows,
                                        s.dim),
                     ZERO_OK);
    array_expect(&out, sum, 0.0, "residual_out: one fp32 sum, exactly");
    array_expect(&y, want, forward_bound, "y");
    array_expect(&rstd, want_rstd, forward_bound, "rstd");
    free(sum), free(want), free(want_rstd);
    array_free(&residual), array_free(&addend), array_free(&weight), array_free(&out);
    array_free(&y), array_free(&rstd);
    fixture_close(&f);
}

START_TEST(forward_equals_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int flags = 0; flags < 4; ++flags)
                check_forward(_i, shapes[s], fixture_dtypes[d], (flags & 1) != 0, (flags & 2) != 0);
}
END_TEST

typedef struct gradients {
    array_t dresidual, dweight, y;
} gradients_t;

static void gradients_free(gradients_t *g)
{
    array_free(&g->dresidual), array_free(&g->dweight), array_free(&g->y);
}

static gradients_t run_backward(fixture_t *f, shape_t s, zero_dtype_t dtype, bool accumulate, bool with_y,
                                const array_t *dy, const array_t *x, const array_t *rstd, const array_t *weight)
{
    size_t n = s.n_rows * s.dim;
    gradients_t g = {array_normal(n, ZERO_FP32, 0.0, 0.1, 11), array_grad_target(s.dim, dtype, accumulate, 12),
                     array_poison(n, ZERO_FP32)};
    ck_assert_int_eq(f->kernels->rmsnorm_backward(&f->ctx, g.dresidual.data, array_grad(&g.dweight, accumulate),
                                                  with_y ? g.y.data : NULL, dy->data, x->data, rstd->data,
                                                  array_weight(weight), s.n_rows, s.dim),
                     ZERO_OK);
    return g;
}

static void check_backward(int isa, shape_t s, zero_dtype_t dtype, bool accumulate)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    size_t n = s.n_rows * s.dim;
    array_t dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 5), x = array_normal(n, ZERO_FP32, 0.5, 1.0, 6);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 7), rstd = array_poison(s.n_rows, ZERO_FP32);
    array_t y = array_poison(n, ZERO_FP32);
    ck_assert_int_eq(f.kernels->rmsnorm(&f.ctx, y.data, rstd.data, x.data, x.data, NULL, array_weight(&weight),
                                        (float)EPS, s.n_rows, s.dim),
                     ZERO_OK);
    gradients_t g = run_backward(&f, s, dtype, accumulate, true, &dy, &x, &rstd, &weight);
    gradients_t again = run_backward(&f, s, dtype, accumulate, false, &dy, &x, &rstd, &weight);
    /* values: what the targets held before, 0 if they are overwritten */
    for (size_t r = 0; r < s.n_rows; ++r)
        row_gradients(g.dresidual.values + r * s.dim, g.dweight.values, dy.values + r * s.dim, x.values + r * s.dim,
                      weight.values, s.dim);
    double bound = 32 * 0x1p-24; /* as forward, twice over; sums over rows are cut in 64 parts */
    array_expect(&g.dresidual, g.dresidual.values, bound, "dresidual");
    array_expect(&g.dweight, g.dweight.values, bound + fixture_unit(dtype), "dweight");
    array_expect_same_bits(&g.y, &y, "y, made again");
    array_expect_same_bits(&g.dresidual, &again.dresidual, "dresidual, without y");
    array_expect_same_bits(&g.dweight, &again.dweight, "dweight, without y");
    gradients_free(&g), gradients_free(&again);
    array_free(&dy), array_free(&x), array_free(&weight), array_free(&rstd), array_free(&y);
    fixture_close(&f);
}

START_TEST(backward_equals_fp64_and_makes_y_again)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int accumulate = 0; accumulate < 2; ++accumulate)
                check_backward(_i, shapes[s], fixture_dtypes[d], accumulate != 0);
}
END_TEST

/* f = sum of dy * RMSNorm(x) in fp64. */
typedef struct scalar {
    shape_t s;
    const double *dy;
    double *x, *weight;
} scalar_t;

static double scalar_loss(void *arg)
{
    const scalar_t *p = arg;
    double loss = 0.0;
    for (size_t r = 0; r < p->s.n_rows; ++r) {
        const double *x = p->x + r * p->s.dim;
        double rstd = row_rstd(x, p->s.dim);
        for (size_t i = 0; i < p->s.dim; ++i)
            loss += p->dy[r * p->s.dim + i] * x[i] * rstd * p->weight[i];
    }
    return loss;
}

START_TEST(backward_equals_central_differences)
{
    const shape_t s = {5, 36};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t dy = array_normal(180, ZERO_FP32, 0.0, 1.0, 8), x = array_normal(180, ZERO_FP32, 0.5, 1.0, 9);
    array_t weight = array_normal(36, ZERO_FP32, 1.0, 0.5, 10);
    array_t rstd = array_poison(s.n_rows, ZERO_FP32);
    for (size_t r = 0; r < s.n_rows; ++r)
        array_set(&rstd, r, row_rstd(x.values + r * s.dim, s.dim));
    gradients_t g = run_backward(&f, s, ZERO_FP32, false, false, &dy, &x, &rstd, &weight);
    scalar_t scalar = {s, dy.values, x.values, weight.values};
    double *dx = fixture_slopes(scalar_loss, &scalar, x.values, 180);
    double *dweight = fixture_slopes(scalar_loss, &scalar, weight.values, 36);
    for (size_t i = 0; i < 180; ++i)
        dx[i] += g.dresidual.values[i];
    array_expect(&g.dresidual, dx, 1e-6, "dresidual"); /* fp32 arithmetic; the differences are better than that */
    array_expect(&g.dweight, dweight, 1e-6, "dweight");
    free(dx), free(dweight);
    gradients_free(&g);
    array_free(&dy), array_free(&x), array_free(&rstd), array_free(&weight);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_fp64_and_makes_y_again, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_central_differences, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("rmsnorm", add_tests);
}
