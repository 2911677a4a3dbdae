/* test_norms.c - tests LayerNorm and RMSNorm with their residual sum against plain fp64 loops; backward against the
 * closed form in fp64 and, at a small size, against central differences of the fp64 forward.
 *
 * One reference serves both: RMSNorm is LayerNorm with mean 0 and no bias. Also tests the scaled sum, which stands in
 * for the residual sum of a norm in some families.
 */
#include "tests/support/model_fixture.h"

#define EPS 1e-5

typedef enum norm { LAYERNORM, RMSNORM, N_NORMS } norm_t;

typedef struct shape {
    size_t n_rows, dim;
} shape_t;

static const shape_t shapes[] = {{1, 1}, {51, 36}, {7, 5}, {301, 333}, {130, 768}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

/* Opens the fixture for a norm of this shape. Returns false if the machine lacks the instruction set. */
static bool open_fixture(fixture_t *f, int isa, shape_t s, zero_dtype_t dtype)
{
    zero_model_limits_t limits = {.n_rows = s.n_rows,
                                  .seq_len = 1,
                                  .max_linear = 1,
                                  .max_width = s.dim,
                                  .n_heads = 1,
                                  .head_dim = 1,
                                  .vocab_size = 1,
                                  .dtype = dtype};
    return fixture_open(f, isa, &limits);
}

/* ---- the reference ---- */

static void row_moments(norm_t norm, const double *x, size_t dim, double *mean, double *rstd)
{
    double sum = 0.0, variation = 0.0;
    for (size_t i = 0; i < dim; ++i)
        sum += x[i];
    *mean = norm == LAYERNORM ? sum / (double)dim : 0.0;
    for (size_t i = 0; i < dim; ++i)
        variation += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1.0 / sqrt(variation / (double)dim + EPS);
}

/* Adds the closed form of one row's gradients to dx, dweight and dbias. */
static void row_gradients(norm_t norm, double *dx, double *dweight, double *dbias, const double *dy, const double *x,
                          const double *weight, size_t dim)
{
    double mean, rstd, g_mean = 0.0, gh_mean = 0.0;
    row_moments(norm, x, dim, &mean, &rstd);
    for (size_t i = 0; i < dim; ++i) {
        double h = (x[i] - mean) * rstd;
        g_mean += norm == LAYERNORM ? dy[i] * weight[i] / (double)dim : 0.0;
        gh_mean += dy[i] * weight[i] * h / (double)dim;
        dweight[i] += dy[i] * h;
        dbias[i] += dy[i];
    }
    for (size_t i = 0; i < dim; ++i)
        dx[i] += rstd * (dy[i] * weight[i] - g_mean - (x[i] - mean) * rstd * gh_mean);
}

/* ---- the kernels ---- */

typedef struct outputs {
    array_t y, residual, mean, rstd;
} outputs_t;

static outputs_t outputs_create(shape_t s)
{
    size_t n = s.n_rows * s.dim;
    return (outputs_t){array_poison(n, ZERO_FP32), array_poison(n, ZERO_FP32), array_poison(s.n_rows, ZERO_FP32),
                       array_poison(s.n_rows, ZERO_FP32)};
}

static void outputs_free(outputs_t *o)
{
    array_free(&o->y), array_free(&o->residual), array_free(&o->mean), array_free(&o->rstd);
}

/* residual, addend (NULL: none): [n_rows, dim]. RMSNorm ignores the bias and leaves out->mean. */
static void forward(norm_t norm, fixture_t *f, shape_t s, const void *residual, const void *addend,
                    const array_t *weight, zero_weight_t bias, outputs_t *out)
{
    zero_status_t status;
    if (norm == LAYERNORM)
        status = f->kernels->layernorm(&f->ctx, out->y.data, out->mean.data, out->rstd.data, out->residual.data,
                                       residual, addend, array_weight(weight), bias, (float)EPS, s.n_rows, s.dim);
    else
        status = f->kernels->rmsnorm(&f->ctx, out->y.data, out->rstd.data, out->residual.data, residual, addend,
                                     array_weight(weight), (float)EPS, s.n_rows, s.dim);
    ck_assert_int_eq(status, ZERO_OK);
}

typedef struct gradients {
    array_t dresidual, dweight, dbias, dcolumns; /* of RMSNorm the first two */
} gradients_t;

static gradients_t gradients_create(shape_t s, zero_dtype_t dtype, bool accumulate)
{
    return (gradients_t){
        array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 0.1, 11), array_grad_target(s.dim, dtype, accumulate, 12),
        array_grad_target(s.dim, dtype, accumulate, 13), array_grad_target(s.dim, dtype, accumulate, 14)};
}

static void gradients_free(gradients_t *g)
{
    array_free(&g->dresidual), array_free(&g->dweight), array_free(&g->dbias), array_free(&g->dcolumns);
}

/* y: NULL, or receives the norm's output once more, for which LayerNorm needs the bias. */
static void backward(norm_t norm, fixture_t *f, shape_t s, bool accumulate, const array_t *dy, const array_t *x,
                     const float *mean, const float *rstd, const array_t *weight, zero_weight_t bias, void *y,
                     gradients_t *g)
{
    zero_grad_t dweight = array_grad(&g->dweight, accumulate);
    zero_status_t status;
    if (norm == LAYERNORM)
        status = f->kernels->layernorm_backward(&f->ctx, g->dresidual.data, dweight, array_grad(&g->dbias, accumulate),
                                                array_grad(&g->dcolumns, accumulate), y, dy->data, x->data, mean, rstd,
                                                array_weight(weight), bias, s.n_rows, s.dim);
    else
        status = f->kernels->rmsnorm_backward(&f->ctx, g->dresidual.data, dweight, y, dy->data, x->data, rstd,
                                              array_weight(weight), s.n_rows, s.dim);
    ck_assert_int_eq(status, ZERO_OK);
}

/* The same with the exact moments of each row, and without y. */
static gradients_t run_backward(norm_t norm, fixture_t *f, shape_t s, zero_dtype_t dtype, bool accumulate,
                                const array_t *dy, const array_t *x, const array_t *weight)
{
    gradients_t g = gradients_create(s, dtype, accumulate);
    float *mean = calloc(2 * s.n_rows, sizeof *mean), *rstd = mean + s.n_rows;
    for (size_t r = 0; r < s.n_rows; ++r) {
        double exact_mean, exact_rstd;
        row_moments(norm, x->values + r * s.dim, s.dim, &exact_mean, &exact_rstd);
        mean[r] = (float)exact_mean;
        rstd[r] = (float)exact_rstd;
    }
    backward(norm, f, s, accumulate, dy, x, mean, rstd, weight, (zero_weight_t){.data = NULL, .dtype = dtype}, NULL,
             &g);
    free(mean);
    return g;
}

/* ---- forward ---- */

/* A few roundings per element, and sums of dim numbers in 16 lanes. In rows of one element everything cancels, and y is
 * the bias. */
static const double FORWARD_BOUND = 16 * 0x1p-24;

static void expect_forward(norm_t norm, shape_t s, const outputs_t *out, const double *sum, const array_t *weight,
                           const array_t *bias)
{
    double *y = fixture_doubles(s.n_rows * s.dim), *mean = fixture_doubles(s.n_rows), *rstd = fixture_doubles(s.n_rows);
    for (size_t r = 0; r < s.n_rows; ++r) {
        row_moments(norm, sum + r * s.dim, s.dim, &mean[r], &rstd[r]);
        for (size_t i = 0; i < s.dim; ++i)
            y[r * s.dim + i] = (sum[r * s.dim + i] - mean[r]) * rstd[r] * weight->values[i] +
                               (norm == LAYERNORM ? bias->values[i] : 0.0);
    }
    array_expect(&out->residual, sum, 0.0, "residual_out: one fp32 sum, exactly");
    array_expect(&out->y, y, FORWARD_BOUND, "y");
    array_expect(&out->rstd, rstd, FORWARD_BOUND, "rstd");
    if (norm == LAYERNORM)
        array_expect(&out->mean, mean, FORWARD_BOUND, "mean");
    free(y), free(mean), free(rstd);
}

static void check_forward(int isa, norm_t norm, shape_t s, zero_dtype_t dtype, bool with_addend, bool in_place)
{
    fixture_t f;
    if (!open_fixture(&f, isa, s, dtype))
        return;
    size_t n = s.n_rows * s.dim;
    array_t residual = array_normal(n, ZERO_FP32, 0.5, 1.0, 1), addend = array_normal(n, ZERO_FP32, 0.0, 1.0, 2);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 3), bias = array_normal(s.dim, dtype, 0.0, 1.0, 4);
    outputs_t out = outputs_create(s);
    double *sum = fixture_doubles(n);
    for (size_t i = 0; i < n; ++i)
        sum[i] = fixture_round(residual.values[i] + (with_addend ? addend.values[i] : 0.0), ZERO_FP32);
    if (in_place)
        memcpy(out.residual.data, residual.data, n * sizeof(float));
    forward(norm, &f, s, in_place ? out.residual.data : residual.data, with_addend ? addend.data : NULL, &weight,
            array_weight(&bias), &out);
    expect_forward(norm, s, &out, sum, &weight, &bias);
    free(sum);
    array_free(&residual), array_free(&addend), array_free(&weight), array_free(&bias);
    outputs_free(&out);
    fixture_close(&f);
}

START_TEST(forward_equals_fp64)
{
    for (int norm = 0; norm < N_NORMS; ++norm)
        for (size_t s = 0; s < N_SHAPES; ++s)
            for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
                for (int flags = 0; flags < 4; ++flags)
                    check_forward(_i, (norm_t)norm, shapes[s], fixture_dtypes[d], (flags & 1) != 0, (flags & 2) != 0);
}
END_TEST

/* ---- backward ---- */

/* g->*.values: what the targets held before, 0 if they are overwritten. */
static void expect_gradients(norm_t norm, shape_t s, zero_dtype_t dtype, const array_t *dy, const array_t *x,
                             const array_t *weight, gradients_t *g)
{
    for (size_t r = 0; r < s.n_rows; ++r)
        row_gradients(norm, g->dresidual.values + r * s.dim, g->dweight.values, g->dbias.values, dy->values + r * s.dim,
                      x->values + r * s.dim, weight->values, s.dim);
    for (size_t i = 0; i < s.n_rows * s.dim; ++i)
        g->dcolumns.values[i % s.dim] += g->dresidual.values[i];
    double bound = 2 * FORWARD_BOUND; /* sums over rows are cut in 64 parts */
    /* With one element, LayerNorm's h is 0 but for the rounding of mean, times rstd = 316. */
    double alone = norm == LAYERNORM && s.dim == 1 ? 1e-3 : 0.0;
    array_expect(&g->dresidual, g->dresidual.values, bound + alone, "dresidual");
    array_expect(&g->dweight, g->dweight.values, bound + alone + fixture_unit(dtype), "dweight");
    if (norm == LAYERNORM) {
        array_expect(&g->dbias, g->dbias.values, bound + fixture_unit(dtype), "dbias");
        array_expect(&g->dcolumns, g->dcolumns.values, bound + alone + fixture_unit(dtype), "dcolumns");
    }
}

static void expect_same_gradients(const gradients_t *a, const gradients_t *b, const char *what)
{
    array_expect_same_bits(&a->dresidual, &b->dresidual, what);
    array_expect_same_bits(&a->dweight, &b->dweight, what);
    array_expect_same_bits(&a->dbias, &b->dbias, what);
    array_expect_same_bits(&a->dcolumns, &b->dcolumns, what);
}

static void check_backward(int isa, norm_t norm, shape_t s, zero_dtype_t dtype, bool accumulate)
{
    fixture_t f;
    if (!open_fixture(&f, isa, s, dtype))
        return;
    size_t n = s.n_rows * s.dim;
    array_t dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 5), x = array_normal(n, ZERO_FP32, 0.5, 1.0, 6);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 7);
    gradients_t g = run_backward(norm, &f, s, dtype, accumulate, &dy, &x, &weight);
    gradients_t again = run_backward(norm, &f, s, dtype, accumulate, &dy, &x, &weight);
    expect_same_gradients(&g, &again, "gradients, run to run");
    expect_gradients(norm, s, dtype, &dy, &x, &weight, &g);
    gradients_free(&g), gradients_free(&again);
    array_free(&dy), array_free(&x), array_free(&weight);
    fixture_close(&f);
}

START_TEST(backward_equals_fp64)
{
    for (int norm = 0; norm < N_NORMS; ++norm)
        for (size_t s = 0; s < N_SHAPES; ++s)
            for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
                for (int accumulate = 0; accumulate < 2; ++accumulate)
                    check_backward(_i, (norm_t)norm, shapes[s], fixture_dtypes[d], accumulate != 0);
}
END_TEST

static void check_y_again(int isa, norm_t norm, shape_t s, zero_dtype_t dtype, bool with_bias)
{
    fixture_t f;
    if (!open_fixture(&f, isa, s, dtype))
        return;
    size_t n = s.n_rows * s.dim;
    array_t x = array_normal(n, ZERO_FP32, 0.5, 1.0, 15), dy = array_normal(n, ZERO_FP32, 0.0, 1.0, 16);
    array_t weight = array_normal(s.dim, dtype, 1.0, 0.5, 17), bias = array_normal(s.dim, dtype, 0.0, 1.0, 18);
    array_t y = array_poison(n, ZERO_FP32);
    zero_weight_t b = with_bias ? array_weight(&bias) : (zero_weight_t){.data = NULL, .dtype = dtype};
    outputs_t out = outputs_create(s);
    gradients_t with = gradients_create(s, dtype, false), without = gradients_create(s, dtype, false);
    if (!with_bias) /* no bias has no gradient; nor is one asked for of the linear layer before it */
        array_free(&with.dbias), array_free(&with.dcolumns), array_free(&without.dbias), array_free(&without.dcolumns);
    forward(norm, &f, s, x.data, NULL, &weight, b, &out);
    backward(norm, &f, s, false, &dy, &x, out.mean.data, out.rstd.data, &weight, b, y.data, &with);
    backward(norm, &f, s, false, &dy, &x, out.mean.data, out.rstd.data, &weight, b, NULL, &without);
    array_expect_same_bits(&out.y, &y, "y, recomputed by backward");
    expect_same_gradients(&with, &without, "gradients, with y and without");
    array_free(&x), array_free(&dy), array_free(&weight), array_free(&bias), array_free(&y);
    outputs_free(&out);
    gradients_free(&with), gradients_free(&without);
    fixture_close(&f);
}

START_TEST(backward_recomputes_the_bits_of_y)
{
    for (int norm = 0; norm < N_NORMS; ++norm)
        for (size_t s = 0; s < N_SHAPES; ++s)
            for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
                for (int with_bias = 0; with_bias < (norm == LAYERNORM ? 2 : 1); ++with_bias)
                    check_y_again(_i, (norm_t)norm, shapes[s], fixture_dtypes[d], with_bias != 0);
}
END_TEST

/* ---- central differences ---- */

typedef struct scalar {
    norm_t norm;
    shape_t s;
    const double *dy;
    double *x, *weight;
} scalar_t;

/* Returns the sum of dy * norm(x) in fp64, whose gradient backward computes. */
static double scalar_loss(void *arg)
{
    const scalar_t *p = arg;
    double loss = 0.0;
    for (size_t r = 0; r < p->s.n_rows; ++r) {
        double mean, rstd;
        const double *x = p->x + r * p->s.dim;
        row_moments(p->norm, x, p->s.dim, &mean, &rstd);
        for (size_t i = 0; i < p->s.dim; ++i)
            loss += p->dy[r * p->s.dim + i] * (x[i] - mean) * rstd * p->weight[i];
    }
    return loss;
}

static void check_differences(int isa, norm_t norm)
{
    enum { N_ROWS = 5, DIM = 36, N = N_ROWS * DIM };
    const shape_t s = {N_ROWS, DIM};
    fixture_t f;
    if (!open_fixture(&f, isa, s, ZERO_FP32))
        return;
    array_t dy = array_normal(N, ZERO_FP32, 0.0, 1.0, 8), x = array_normal(N, ZERO_FP32, 0.5, 1.0, 9);
    array_t weight = array_normal(DIM, ZERO_FP32, 1.0, 0.5, 10);
    gradients_t g = run_backward(norm, &f, s, ZERO_FP32, false, &dy, &x, &weight);
    scalar_t scalar = {norm, s, dy.values, x.values, weight.values};
    double *dx = fixture_slopes(scalar_loss, &scalar, x.values, N);
    double *dweight = fixture_slopes(scalar_loss, &scalar, weight.values, DIM);
    for (size_t i = 0; i < N; ++i)
        dx[i] += g.dresidual.values[i];
    array_expect(&g.dresidual, dx, 1e-6, "dresidual"); /* fp32 arithmetic; the differences are more exact */
    array_expect(&g.dweight, dweight, 1e-6, "dweight");
    free(dx), free(dweight);
    gradients_free(&g);
    array_free(&dy), array_free(&x), array_free(&weight);
    fixture_close(&f);
}

START_TEST(backward_equals_central_differences)
{
    check_differences(_i, LAYERNORM);
    check_differences(_i, RMSNORM);
}
END_TEST

/* ---- the scaled sum ---- */

/* Of every alias that the contract allows, and of a NaN. Without fused operations the product is rounded, too. */
START_TEST(a_scaled_sum_is_that_of_fp64)
{
    enum { N = 70001 }; /* enough for several threads */
    const float factor = 0.22f;
    fixture_t f;
    if (!open_fixture(&f, _i, shapes[0], ZERO_FP32))
        return;
    for (int alias = 0; alias < 3; ++alias)
        for (int with_residual = 0; with_residual < 2; ++with_residual) {
            array_t x = array_normal(N, ZERO_FP32, 0.0, 1.0, 10), residual = array_normal(N, ZERO_FP32, 0.0, 3.0, 11);
            array_t y = array_poison(N, ZERO_FP32);
            array_set(&x, 77, (double)NAN);
            void *out = alias == 0 ? y.data : alias == 1 ? x.data : residual.data;
            ck_assert_int_eq(
                f.kernels->add_scaled(&f.ctx, out, with_residual ? residual.data : NULL, x.data, factor, N), ZERO_OK);
            for (size_t i = 0; i < N; ++i) {
                const double product = (double)factor * x.values[i], added = with_residual ? residual.values[i] : 0.0;
                const double got = (double)((float *)out)[i], far = fabs(got - (product + added));
                ck_assert_msg(i == 77 ? isnan(got) : far <= 0x1p-24 * (fabs(product) + fabs(product + added)),
                              "alias %d: %zu is %g", alias, i, got);
            }
            array_free(&x), array_free(&residual), array_free(&y);
        }
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_recomputes_the_bits_of_y, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_central_differences, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_scaled_sum_is_that_of_fp64, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("norms", add_tests);
}
