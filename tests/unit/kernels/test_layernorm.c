/* test_layernorm.c - LayerNorm with its residual sum against plain fp64 loops; backward against the closed form in fp64
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

static void row_moments(const double *x, size_t dim, double *mean, double *rstd)
{
    double sum = 0.0, variation = 0.0;
    for (size_t i = 0; i < dim; ++i)
        sum += x[i];
    *mean = sum / (double)dim;
    for (size_t i = 0; i < dim; ++i)
        variation += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1.0 / sqrt(variation / (double)dim + EPS);
}

/* The closed form of one row, added to dx, dweight and dbias. */
static void row_gradients(double *dx, double *dweight, double *dbias, const double *dy, const double *x,
                          const double *weight, size_t dim)
{
    double mean, rstd, g_mean = 0.0, gh_mean = 0.0;
    row_moments(x, dim, &mean, &rstd);
    for (size_t i = 0; i < dim; ++i) {
        double h = (x[i] - mean) * rstd;
        g_mean += dy[i] * weight[i] / (double)dim;
        gh_mean += dy[i] * weight[i] * h / (double)dim;
        dweight[i] += dy[i] * h;
        dbias[i] += dy[i];
    }
    for (size_t i = 0; i < dim; ++i)
        dx[i] += rstd * (dy[i] * weight[i] - g_mean - (x[i] - mean) * rstd * gh_mean);
}

/* A few roundings per element, sums of dim numbers in 16 lanes; rows of one element are all cancellation: y is bias. */
static const double forward_bound = 16 * 0x1p-24;

static void check_forward(int isa, shape_t s, zero_dtype_t dtype, bool with_addend, bool in_place)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    size_t n = s.n_rows * s.dim;
    array_t residual = array_normal(n, ZERO_FP32, 0.5, 1.0, 1), addend = array_normal(n, ZERO_FP32, 0.0, 1.0, 2);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 3), bias = array_normal(s.dim, dtype, 0.0, 1.0, 4);
    array_t out = in_place ? array_copy(&residual) : array_poison(n, ZERO_FP32);
    array_t y = array_poison(n, ZERO_FP32);
    array_t mean = array_poison(s.n_rows, ZERO_FP32), rstd = array_copy(&mean);
    double *sum = fixture_doubles(n), *want = fixture_doubles(n);
    double *want_mean = fixture_doubles(s.n_rows), *want_rstd = fixture_doubles(s.n_rows);
    for (size_t r = 0; r < s.n_rows; ++r) {
        for (size_t i = r * s.dim; i < (r + 1) * s.dim; ++i)
            sum[i] = fixture_round(residual.values[i] + (with_addend ? addend.values[i] : 0.0), ZERO_FP32);
        row_moments(sum + r * s.dim, s.dim, &want_mean[r], &want_rstd[r]);
        for (size_t i = 0; i < s.dim; ++i)
            want[r * s.dim + i] =
                (sum[r * s.dim + i] - want_mean[r]) * want_rstd[r] * weight.values[i] + bias.values[i];
    }
    ck_assert_int_eq(f.kernels->layernorm(&f.ctx, y.data, mean.data, rstd.data, out.data,
                                          in_place ? out.data : residual.data, with_addend ? addend.data : NULL,
                                          array_weight(&weight), array_weight(&bias), (float)EPS, s.n_rows, s.dim),
                     ZERO_OK);
    array_expect(&out, sum, 0.0, "residual_out: one fp32 sum, exactly");
    array_expect(&y, want, forward_bound, "y");
    array_expect(&mean, want_mean, forward_bound, "mean");
    array_expect(&rstd, want_rstd, forward_bound, "rstd");
    free(sum), free(want), free(want_mean), free(want_rstd);
    array_free(&residual), array_free(&addend), array_free(&weight), array_free(&bias), array_free(&out);
    array_free(&y), array_free(&mean), array_free(&rstd);
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
    array_t dresidual, dweight, dbias, dcolumns;
} gradients_t;

static void gradients_free(gradients_t *g)
{
    array_free(&g->dresidual), array_free(&g->dweight), array_free(&g->dbias), array_free(&g->dcolumns);
}

static gradients_t run_backward(fixture_t *f, shape_t s, zero_dtype_t dtype, bool accumulate, const array_t *dy,
                                const array_t *x, const array_t *weight)
{
    gradients_t g = {array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 0.1, 11),
                     array_grad_target(s.dim, dtype, accumulate, 12), array_grad_target(s.dim, dtype, accumulate, 13),
                     array_grad_target(s.dim, dtype, accumulate, 14)};
    float *mean = calloc(2 * s.n_rows, sizeof *mean), *rstd = mean + s.n_rows;
    for (size_t r = 0; r < s.n_rows; ++r) {
        double exact_mean, exact_rstd;
        row_moments(x->values + r * s.dim, s.dim, &exact_mean, &exact_rstd);
        mean[r] = (float)exact_mean;
        rstd[r] = (float)exact_rstd;
    }
    ck_assert_int_eq(f->kernels->layernorm_backward(
                         &f->ctx, g.dresidual.data, array_grad(&g.dweight, accumulate),
                         array_grad(&g.dbias, accumulate), array_grad(&g.dcolumns, accumulate), NULL, dy->data, x->data,
                         mean, rstd, array_weight(weight), (zero_weight_t){NULL, dtype}, s.n_rows, s.dim),
                     ZERO_OK);
    free(mean);
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
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 7);
    gradients_t g = run_backward(&f, s, dtype, accumulate, &dy, &x, &weight);
    gradients_t again = run_backward(&f, s, dtype, accumulate, &dy, &x, &weight);
    /* values: what the targets held before, 0 if they are overwritten */
    for (size_t r = 0; r < s.n_rows; ++r)
        row_gradients(g.dresidual.values + r * s.dim, g.dweight.values, g.dbias.values, dy.values + r * s.dim,
                      x.values + r * s.dim, weight.values, s.dim);
    for (size_t i = 0; i < n; ++i)
        g.dcolumns.values[i % s.dim] += g.dresidual.values[i];
    double bound = 32 * 0x1p-24; /* as forward, twice over; sums over rows are cut in 64 parts */
    /* One element: h = 0 but for the rounding of mean, times rstd = 316. */
    double alone = s.dim == 1 ? 1e-3 : 0.0;
    array_expect(&g.dresidual, g.dresidual.values, bound + alone, "dresidual");
    array_expect(&g.dweight, g.dweight.values, bound + alone + fixture_unit(dtype), "dweight");
    array_expect(&g.dbias, g.dbias.values, bound + fixture_unit(dtype), "dbias");
    array_expect(&g.dcolumns, g.dcolumns.values, bound + alone + fixture_unit(dtype), "dcolumns");
    array_expect_same_bits(&g.dresidual, &again.dresidual, "dresidual, run to run");
    array_expect_same_bits(&g.dweight, &again.dweight, "dweight, run to run");
    array_expect_same_bits(&g.dbias, &again.dbias, "dbias, run to run");
    array_expect_same_bits(&g.dcolumns, &again.dcolumns, "dcolumns, run to run");
    gradients_free(&g), gradients_free(&again);
    array_free(&dy), array_free(&x), array_free(&weight);
    fixture_close(&f);
}

START_TEST(backward_equals_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int accumulate = 0; accumulate < 2; ++accumulate)
                check_backward(_i, shapes[s], fixture_dtypes[d], accumulate != 0);
}
END_TEST

static void check_again(int isa, shape_t s, bool with_bias)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_BF16);
    if (!fixture_open(&f, isa, &limits))
        return;
    size_t n = s.n_rows * s.dim;
    array_t x = array_normal(n, ZERO_FP32, 0.5, 1.0, 15), dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 16);
    array_t weight = array_normal(s.dim, ZERO_BF16, 1.0, 0.5, 17), bias = array_normal(s.dim, ZERO_BF16, 0.0, 1.0, 18);
    array_t y = array_poison(n, ZERO_FP32), again = array_copy(&y), dx = array_normal(n, ZERO_FP32, 0.0, 1.0, 19);
    array_t without = array_copy(&dx), dweight = array_poison(s.dim, ZERO_FP32);
    array_t mean = array_poison(s.n_rows, ZERO_FP32), rstd = array_copy(&mean);
    zero_weight_t b = with_bias ? array_weight(&bias) : (zero_weight_t){NULL, ZERO_BF16};
    zero_grad_t none = {NULL, ZERO_FP32, false};
    ck_assert_int_eq(f.kernels->layernorm(&f.ctx, y.data, mean.data, rstd.data, x.data, x.data, NULL,
                                          array_weight(&weight), b, (float)EPS, s.n_rows, s.dim),
                     ZERO_OK);
    for (int i = 0; i < 2; ++i)
        ck_assert_int_eq(f.kernels->layernorm_backward(&f.ctx, i ? dx.data : without.data, array_grad(&dweight, false),
                                                       none, none, i ? again.data : NULL, dy.data, x.data, mean.data,
                                                       rstd.data, array_weight(&weight), b, s.n_rows, s.dim),
                         ZERO_OK);
    array_expect_same_bits(&y, &again, "y, made again by backward");
    array_expect_same_bits(&dx, &without, "dresidual, with y and without");
    array_free(&x), array_free(&dy), array_free(&weight), array_free(&bias), array_free(&y), array_free(&again);
    array_free(&dx), array_free(&without), array_free(&dweight), array_free(&mean), array_free(&rstd);
    fixture_close(&f);
}

START_TEST(backward_repeats_the_bits_of_y)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (int with_bias = 0; with_bias < 2; ++with_bias)
            check_again(_i, shapes[s], with_bias != 0);
}
END_TEST

/* f = sum of dy * LayerNorm(x) in fp64. */
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
        double mean, rstd;
        const double *x = p->x + r * p->s.dim;
        row_moments(x, p->s.dim, &mean, &rstd);
        for (size_t i = 0; i < p->s.dim; ++i)
            loss += p->dy[r * p->s.dim + i] * (x[i] - mean) * rstd * p->weight[i];
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
    gradients_t g = run_backward(&f, s, ZERO_FP32, false, &dy, &x, &weight);
    scalar_t scalar = {s, dy.values, x.values, weight.values};
    double *dx = fixture_slopes(scalar_loss, &scalar, x.values, 180);
    double *dweight = fixture_slopes(scalar_loss, &scalar, weight.values, 36);
    for (size_t i = 0; i < 180; ++i)
        dx[i] += g.dresidual.values[i];
    array_expect(&g.dresidual, dx, 1e-6, "dresidual"); /* fp32 arithmetic; the differences are better than that */
    array_expect(&g.dweight, dweight, 1e-6, "dweight");
    free(dx), free(dweight);
    gradients_free(&g);
    array_free(&dy), array_free(&x), array_free(&weight);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_repeats_the_bits_of_y, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_central_differences, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("layernorm", add_tests);
}
