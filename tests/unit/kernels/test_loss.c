/* test_loss.c - tests the fused output head and cross-entropy against plain fp64 loops, and its gradients also against
 * central differences of the fp64 loss.
 */
#include "tests/support/model_fixture.h"

typedef struct shape {
    size_t n_rows, dim, vocab_size;
} shape_t;

/* One token alone; odd sizes; larger than a block of anything. */
static const shape_t shapes[] = {{1, 3, 1}, {51, 36, 259}, {301, 40, 1031}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

#define LOSS_WEIGHT 0.3
static const float grad_scale = 8.0f;

static zero_model_limits_t limits_of(shape_t s, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = s.n_rows,
                                 .seq_len = 1,
                                 .max_linear = s.dim * s.vocab_size,
                                 .max_width = s.dim,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = s.vocab_size,
                                 .dtype = dtype};
}

static int32_t *random_targets(shape_t s, uint64_t seed)
{
    int32_t *targets = malloc(s.n_rows * sizeof *targets);
    ck_assert_ptr_nonnull(targets);
    for (size_t r = 0; r < s.n_rows; ++r)
        targets[r] = (int32_t)(support_random(&seed) % s.vocab_size);
    return targets;
}

/* Computes the softmax of one row. Returns its loss. */
static double row_softmax(shape_t s, const double *x, const double *weight, int32_t target, double *probs)
{
    double sum = 0.0;
    for (size_t v = 0; v < s.vocab_size; ++v) {
        double logit = 0.0;
        for (size_t i = 0; i < s.dim; ++i)
            logit += x[i] * weight[v * s.dim + i];
        probs[v] = exp(logit);
        sum += probs[v];
    }
    for (size_t v = 0; v < s.vocab_size; ++v)
        probs[v] /= sum;
    return -log(probs[target]);
}

/* Returns the sum of losses. Adds to dx and dweight, unless they are NULL. */
static double reference(shape_t s, const double *x, const double *weight, const int32_t *targets, double scale,
                        double *dx, double *dweight)
{
    double loss = 0.0, *probs = fixture_doubles(s.vocab_size);
    for (size_t r = 0; r < s.n_rows; ++r) {
        if (targets[r] == ZERO_NO_TARGET)
            continue;
        loss += row_softmax(s, x + r * s.dim, weight, targets[r], probs);
        for (size_t v = 0; dx != NULL && v < s.vocab_size; ++v) {
            double dlogit = scale * (probs[v] - ((size_t)targets[r] == v ? 1.0 : 0.0));
            for (size_t i = 0; i < s.dim; ++i) {
                dx[r * s.dim + i] += dlogit * weight[v * s.dim + i];
                dweight[v * s.dim + i] += dlogit * x[r * s.dim + i];
            }
        }
    }
    free(probs);
    return loss;
}

typedef struct result {
    double loss;
    array_t dx, dweight;
} result_t;

static result_t run(fixture_t *f, shape_t s, const array_t *x, const array_t *weight, const int32_t *targets,
                    zero_dtype_t grad_dtype, bool accumulate, bool in_place)
{
    result_t r = {.loss = 1.5, /* added to, not overwritten */
                  .dx = in_place ? array_copy(x) : array_poison(x->n, ZERO_FP32),
                  .dweight = array_grad_target(weight->n, grad_dtype, accumulate, 20)};
    ck_assert_int_eq(f->kernels->head_loss(&f->ctx, &r.loss, r.dx.data, array_grad(&r.dweight, accumulate),
                                           in_place ? r.dx.data : x->data, array_weight(weight), targets, LOSS_WEIGHT,
                                           &grad_scale, s.n_rows, s.dim, s.vocab_size),
                     ZERO_OK);
    return r;
}

/* one_in: every how many rows one has a target; 1: all. */
static void check_targets(int isa, shape_t s, zero_dtype_t dtype, zero_dtype_t grad_dtype, bool accumulate, int one_in)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    limits.may_skip_targets = one_in > 1;
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 1);
    array_t weight = array_normal(s.vocab_size * s.dim, dtype, 0.0, 0.3, 2);
    int32_t *targets = random_targets(s, 3);
    for (size_t r = 0; r < s.n_rows; ++r)
        targets[r] = r % (size_t)one_in == 0 ? targets[r] : ZERO_NO_TARGET;
    result_t got = run(&f, s, &x, &weight, targets, grad_dtype, accumulate, false);
    result_t again = run(&f, s, &x, &weight, targets, grad_dtype, accumulate, true);
    double *dx = fixture_doubles(x.n), *dweight = fixture_doubles(weight.n);
    memcpy(dweight, got.dweight.values, weight.n * sizeof *dweight);
    double loss = reference(s, x.values, weight.values, targets, LOSS_WEIGHT * (double)grad_scale, dx, dweight);
    /* Sums of dim and of vocab_size products of random signs, logits of a few units: as in test_linear and, for the
     * exponentials, test_attention. */
    double bound = 4.0 * sqrt((double)(s.dim + 16)) * 0x1p-24;
    ck_assert_double_eq_tol(got.loss, 1.5 + LOSS_WEIGHT * loss, 1e-7 * (1.0 + loss));
    array_expect(&got.dx, dx, 4.0 * bound, "dx");
    array_expect(&got.dweight, dweight, 4.0 * bound + fixture_unit(grad_dtype), "dweight");
    ck_assert(memcmp(&got.loss, &again.loss, sizeof got.loss) == 0);
    ck_assert_double_eq(ldexp(got.loss, 42), rint(ldexp(got.loss, 42))); /* a multiple of 2^-42, as was 1.5 */
    array_expect_same_bits(&got.dx, &again.dx, "dx in place of x, run to run");
    array_expect_same_bits(&got.dweight, &again.dweight, "dweight, run to run");
    free(dx), free(dweight), free(targets);
    array_free(&got.dx), array_free(&got.dweight), array_free(&again.dx), array_free(&again.dweight);
    array_free(&x), array_free(&weight);
    fixture_close(&f);
}

static void check(int isa, shape_t s, zero_dtype_t dtype, zero_dtype_t grad_dtype, bool accumulate)
{
    check_targets(isa, s, dtype, grad_dtype, accumulate, 1);
}

START_TEST(loss_and_gradients_equal_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int accumulate = 0; accumulate < 2; ++accumulate)
                check(_i, shapes[s], fixture_dtypes[d], fixture_dtypes[d], accumulate != 0);
}
END_TEST

/* 2^23 logits at a time, 64 rows at least: 64, 64 and 2 rows. */
START_TEST(several_chunks_equal_fp64)
{
    check(_i, (shape_t){130, 2, 131200}, ZERO_BF16, ZERO_BF16, true);
}
END_TEST

/* Micro-steps are accumulated in fp32 though weights are bf16. */
START_TEST(fp32_gradient_of_a_bf16_weight_equals_fp64)
{
    check(_i, shapes[1], ZERO_BF16, ZERO_FP32, true);
}
END_TEST

START_TEST(loss_alone_has_the_same_bits_and_leaves_dweight)
{
    const shape_t s = shapes[1];
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_BF16);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 4);
    array_t weight = array_normal(s.vocab_size * s.dim, ZERO_BF16, 0.0, 0.3, 5);
    array_t untouched = array_poison(weight.n, ZERO_BF16), poison = array_copy(&untouched);
    int32_t *targets = random_targets(s, 6);
    result_t full = run(&f, s, &x, &weight, targets, ZERO_BF16, false, false);
    double loss = 1.5;
    ck_assert_int_eq(f.kernels->head_loss(&f.ctx, &loss, NULL, array_grad(&untouched, false), x.data,
                                          array_weight(&weight), targets, LOSS_WEIGHT, NULL, s.n_rows, s.dim,
                                          s.vocab_size),
                     ZERO_OK);
    ck_assert(memcmp(&loss, &full.loss, sizeof loss) == 0);
    array_expect_same_bits(&untouched, &poison, "dweight of a loss alone");
    free(targets);
    array_free(&full.dx), array_free(&full.dweight), array_free(&untouched), array_free(&poison);
    array_free(&x), array_free(&weight);
    fixture_close(&f);
}
END_TEST

START_TEST(logits_equal_fp64)
{
    const shape_t s = shapes[1];
    for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d) {
        fixture_t f;
        zero_model_limits_t limits = limits_of(s, fixture_dtypes[d]);
        if (!fixture_open(&f, _i, &limits))
            return;
        array_t x = array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 7);
        array_t weight = array_normal(s.vocab_size * s.dim, fixture_dtypes[d], 0.0, 0.3, 8);
        array_t logits = array_poison(s.n_rows * s.vocab_size, ZERO_FP32);
        double *want = fixture_doubles(logits.n);
        for (size_t r = 0; r < s.n_rows; ++r)
            for (size_t v = 0; v < s.vocab_size; ++v)
                for (size_t i = 0; i < s.dim; ++i)
                    want[r * s.vocab_size + v] += x.values[r * s.dim + i] * weight.values[v * s.dim + i];
        ck_assert_int_eq(
            f.kernels->head_logits(&f.ctx, logits.data, x.data, array_weight(&weight), s.n_rows, s.dim, s.vocab_size),
            ZERO_OK);
        array_expect(&logits, want, 4.0 * sqrt((double)s.dim + 4.0) * 0x1p-24, "logits");
        free(want);
        array_free(&x), array_free(&weight), array_free(&logits);
        fixture_close(&f);
    }
}
END_TEST

typedef struct scalar {
    shape_t s;
    const double *x, *weight;
    const int32_t *targets;
} scalar_t;

static double scalar_loss(void *arg)
{
    const scalar_t *p = arg;
    return LOSS_WEIGHT * (double)grad_scale * reference(p->s, p->x, p->weight, p->targets, 0.0, NULL, NULL);
}

START_TEST(gradients_equal_central_differences)
{
    const shape_t s = {7, 6, 19};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 9);
    array_t weight = array_normal(s.vocab_size * s.dim, ZERO_FP32, 0.0, 0.5, 10);
    int32_t *targets = random_targets(s, 11);
    result_t got = run(&f, s, &x, &weight, targets, ZERO_FP32, false, false);
    scalar_t scalar = {s, x.values, weight.values, targets};
    double *dx = fixture_slopes(scalar_loss, &scalar, x.values, x.n);
    double *dweight = fixture_slopes(scalar_loss, &scalar, weight.values, weight.n);
    array_expect(&got.dx, dx, 1e-6, "dx"); /* fp32 arithmetic; the differences are more exact */
    array_expect(&got.dweight, dweight, 1e-6, "dweight");
    free(dx), free(dweight), free(targets);
    array_free(&got.dx), array_free(&got.dweight), array_free(&x), array_free(&weight);
    fixture_close(&f);
}
END_TEST

/* Also where whole chunks, or all rows but one, have no target. */
START_TEST(rows_without_a_target_have_neither_loss_nor_gradient)
{
    for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d) {
        check_targets(_i, shapes[1], fixture_dtypes[d], fixture_dtypes[d], d % 2 == 0, 3);
        check_targets(_i, shapes[2], fixture_dtypes[d], ZERO_FP32, true, 1000);
    }
    check_targets(_i, (shape_t){130, 2, 131200}, ZERO_BF16, ZERO_BF16, true, 70);
}
END_TEST

/* They are refused before any memory is addressed by them. */
START_TEST(targets_beyond_the_vocabulary_are_refused)
{
    const shape_t s = {3, 4, 5};
    static const int32_t bad[] = {-1, 5, INT32_MIN, INT32_MAX};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(12, ZERO_FP32, 0.0, 1.0, 12), weight = array_normal(20, ZERO_FP32, 0.0, 1.0, 13);
    for (size_t i = 0; i < 4; ++i) {
        int32_t targets[3] = {0, 4, bad[i]};
        double loss = 1.5;
        ck_assert_int_eq(f.kernels->head_loss(&f.ctx, &loss, NULL, (zero_grad_t){0}, x.data, array_weight(&weight),
                                              targets, 1.0, NULL, s.n_rows, s.dim, s.vocab_size),
                         ZERO_ERROR_ARGUMENT);
        ck_assert(loss == 1.5);
    }
    array_free(&x), array_free(&weight);
    fixture_close(&f);
}
END_TEST

/* The engine finds a NaN only if it reaches the loss or the gradients. */
START_TEST(nan_reaches_loss_and_gradients)
{
    const shape_t s = {40, 8, 33};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 14);
    array_t weight = array_normal(s.vocab_size * s.dim, ZERO_FP32, 0.0, 0.5, 15);
    int32_t *targets = random_targets(s, 16);
    ((float *)x.data)[17 * s.dim + 3] = NAN;
    result_t got = run(&f, s, &x, &weight, targets, ZERO_FP32, false, false);
    ck_assert(isnan(got.loss));
    ck_assert(isnan(array_get(&got.dx, 17 * s.dim)) && isnan(array_get(&got.dweight, 5)));
    free(targets);
    array_free(&got.dx), array_free(&got.dweight), array_free(&x), array_free(&weight);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, loss_and_gradients_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, several_chunks_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, fp32_gradient_of_a_bf16_weight_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, loss_alone_has_the_same_bits_and_leaves_dweight, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, logits_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, gradients_equal_central_differences, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, rows_without_a_target_have_neither_loss_nor_gradient, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, targets_beyond_the_vocabulary_are_refused, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, nan_reaches_loss_and_gradients, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("loss", add_tests);
}
