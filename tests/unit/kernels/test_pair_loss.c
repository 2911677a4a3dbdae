/* test_pair_loss.c - tests the loss of pairs of documents (DPO), and the rows' losses that it is made of, against plain
 * fp64 loops, and the gradient of both together against central differences of the fp64 loss.
 */
#include "tests/support/model_fixture.h"

#define LOSS_WEIGHT 0.3
static const float grad_scale = 8.0f;

enum { MAX_DOCUMENTS = 64 };

/* Rows of a micro-batch that are documents, the last of which ends before `n_rows`: what is behind it is padding. */
typedef struct pass {
    size_t n_rows, dim, vocab_size;
    double beta;
    int n_pairs;
    int lengths[MAX_DOCUMENTS]; /* of documents, in turn */
} pass_t;

static const pass_t passes[] = {
    {9, 6, 19, 0.7, 2, {2, 3, 1, 2}},
    {2, 3, 5, 0.1, 1, {1, 1}},
    {301, 40, 131, 0.25, 7, {40, 3, 1, 60, 17, 17, 5, 9, 31, 2, 44, 44, 9, 1}},
};
#define N_PASSES (sizeof passes / sizeof passes[0])

static zero_model_limits_t limits_of(const pass_t *p)
{
    return (zero_model_limits_t){.n_rows = p->n_rows,
                                 .seq_len = 1,
                                 .max_linear = p->dim * p->vocab_size,
                                 .max_width = p->dim,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = p->vocab_size,
                                 .dtype = ZERO_FP32,
                                 .may_skip_targets = true};
}

static int32_t *documents_of(const pass_t *p)
{
    int32_t *documents = malloc((p->n_rows + 1) * sizeof *documents), begin = 0;
    ck_assert_ptr_nonnull(documents);
    for (size_t i = 0; i <= p->n_rows; ++i) {
        documents[i] = i < 2 * (size_t)p->n_pairs ? begin : (int32_t)p->n_rows;
        begin += i < 2 * (size_t)p->n_pairs ? p->lengths[i] : 0;
    }
    return documents;
}

/* The first half of each document is its prompt. */
static int32_t *targets_of(const pass_t *p, uint64_t seed)
{
    int32_t *targets = malloc(p->n_rows * sizeof *targets);
    ck_assert_ptr_nonnull(targets);
    for (size_t row = 0; row < p->n_rows; ++row)
        targets[row] = ZERO_NO_TARGET;
    for (int i = 0, begin = 0; i < 2 * p->n_pairs; begin += p->lengths[i++])
        for (int t = p->lengths[i] / 2; t < p->lengths[i]; ++t)
            targets[begin + t] = (int32_t)(support_random(&seed) % p->vocab_size);
    return targets;
}

/* Returns the sum of the pairs' losses, by losses of rows; sums: as of zero_pair_sum_t, or NULL. */
static double loss_of(const pass_t *p, const double *losses, const double *reference, double *sums, double *slopes)
{
    double loss = 0.0;
    for (int pair = 0, row = 0; pair < p->n_pairs; ++pair) {
        double rewards[2] = {0.0, 0.0};
        for (int i = 0; i < 2; ++i)
            for (int t = 0; t < p->lengths[2 * pair + i]; ++t, ++row)
                rewards[i] += p->beta * (reference[row] - losses[row]);
        const double margin = rewards[0] - rewards[1];
        loss += -log(1.0 / (1.0 + exp(-margin)));
        if (!sums)
            continue;
        sums[ZERO_PAIR_CHOSEN] += rewards[0];
        sums[ZERO_PAIR_REJECTED] += rewards[1];
        sums[ZERO_PAIR_ACCURACY] += rewards[0] > rewards[1];
        slopes[pair] = 1.0 / (1.0 + exp(margin));
    }
    return loss;
}

typedef struct result {
    double loss, sums[ZERO_N_PAIR_SUMS];
} result_t;

static result_t run(fixture_t *f, const pass_t *p, size_t n_rows, const double *losses, const double *reference,
                    const int32_t *documents, void *dx)
{
    result_t r = {.loss = 1.5, .sums = {0.25, -0.5, 1.0}}; /* added to, not overwritten */
    double *pairs = malloc((n_rows / 2 + 1) * (ZERO_N_PAIR_SUMS + 1) * sizeof *pairs);
    float *factors = malloc(n_rows * sizeof *factors);
    ck_assert(pairs && factors);
    const zero_pair_loss_t call = {.loss_sum = &r.loss,
                                   .sums = r.sums,
                                   .dx = dx,
                                   .losses = losses,
                                   .reference = reference,
                                   .documents = documents,
                                   .pairs = pairs,
                                   .factors = factors,
                                   .beta = p->beta,
                                   .loss_weight = LOSS_WEIGHT,
                                   .n_rows = n_rows,
                                   .dim = p->dim};
    ck_assert_int_eq(f->kernels->pair_loss(&f->ctx, &call), ZERO_OK);
    free(pairs), free(factors);
    return r;
}

/* Padding has none. */
static double *random_losses(const pass_t *p, uint64_t seed)
{
    double *losses = fixture_doubles(p->n_rows);
    int n = 0;
    for (int i = 0; i < 2 * p->n_pairs; ++i)
        n += p->lengths[i];
    for (int i = 0; i < n; ++i)
        losses[i] = (double)(support_random(&seed) % 8192) / 1024.0;
    return losses;
}

START_TEST(sums_and_factors_equal_fp64)
{
    for (size_t i = 0; i < N_PASSES; ++i) {
        const pass_t *p = &passes[i];
        const zero_model_limits_t limits = limits_of(p);
        fixture_t f;
        if (!fixture_open(&f, _i, &limits))
            return;
        double *losses = random_losses(p, 1), *reference = random_losses(p, 2);
        double sums[ZERO_N_PAIR_SUMS] = {0}, slopes[MAX_DOCUMENTS];
        const double loss = loss_of(p, losses, reference, sums, slopes);
        int32_t *documents = documents_of(p);
        array_t dx = array_normal(p->n_rows * p->dim, ZERO_FP32, 0.0, 1.0, 3);
        const result_t got = run(&f, p, p->n_rows, losses, reference, documents, dx.data);
        ck_assert_double_eq_tol(got.loss, 1.5 + LOSS_WEIGHT * loss, 1e-11);
        ck_assert_double_eq_tol(got.sums[0], 0.25 + LOSS_WEIGHT * sums[0], 1e-10);
        ck_assert_double_eq_tol(got.sums[1], -0.5 + LOSS_WEIGHT * sums[1], 1e-10);
        ck_assert_double_eq_tol(got.sums[2], 1.0 + LOSS_WEIGHT * sums[2], 1e-11);
        for (int s = 0; s < ZERO_N_PAIR_SUMS; ++s) /* multiples of 2^-42, as were the first values */
            ck_assert_double_eq(ldexp(got.sums[s], 42), rint(ldexp(got.sums[s], 42)));
        double *want = fixture_doubles(dx.n);
        for (int d = 0, row = 0; d < 2 * p->n_pairs; ++d)
            for (int t = 0; t < p->lengths[d]; ++t, ++row)
                for (size_t k = 0; k < p->dim; ++k)
                    want[(size_t)row * p->dim + k] =
                        dx.values[(size_t)row * p->dim + k] * slopes[d / 2] * (d % 2 ? -1.0 : 1.0);
        const size_t n_counted = (size_t)documents[2 * p->n_pairs - 1] + (size_t)p->lengths[2 * p->n_pairs - 1];
        for (size_t k = 0; k < n_counted * p->dim; ++k)
            ck_assert_double_eq_tol(array_get(&dx, k), want[k], 1e-6);
        const result_t alone = run(&f, p, p->n_rows, losses, reference, documents, NULL);
        ck_assert(memcmp(&alone, &got, sizeof got) == 0);
        free(losses), free(reference), free(documents), free(want);
        array_free(&dx);
        fixture_close(&f);
    }
}
END_TEST

/* An evaluation may end within a batch: documents behind its rows are no part of it. */
START_TEST(pairs_behind_the_rows_of_a_pass_do_not_count)
{
    const pass_t *p = &passes[2], first = {p->n_rows, p->dim, p->vocab_size, p->beta, 2, {40, 3, 1, 60}};
    const zero_model_limits_t limits = limits_of(p);
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    double *losses = random_losses(p, 1), *reference = random_losses(p, 2);
    double sums[ZERO_N_PAIR_SUMS] = {0}, slopes[MAX_DOCUMENTS];
    int32_t *documents = documents_of(p);
    const result_t got = run(&f, p, 104, losses, reference, documents, NULL);
    ck_assert_double_eq_tol(got.loss, 1.5 + LOSS_WEIGHT * loss_of(&first, losses, reference, sums, slopes), 1e-11);
    ck_assert_double_eq_tol(got.sums[1], -0.5 + LOSS_WEIGHT * sums[1], 1e-10);
    free(losses), free(reference), free(documents);
    fixture_close(&f);
}
END_TEST

START_TEST(large_margins_do_not_overflow_and_nan_reaches_loss_and_gradient)
{
    static const pass_t p = {2, 1, 5, 1.0, 1, {1, 1}};
    static const int32_t documents[] = {0, 1, 2};
    static const struct {
        double first, loss, slope;
    } cases[] = {{0.0, 0.6931471805599453, 0.5}, {-1e6, 1e6, 1.0}, {1e6, 0.0, 0.0}, {(double)NAN, (double)NAN, 0.0}};
    const zero_model_limits_t limits = limits_of(&p);
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const double losses[] = {0.0, 3.0}, reference[] = {cases[i].first, 3.0};
        float dx[] = {1.0f, 1.0f};
        const result_t got = run(&f, &p, 2, losses, reference, documents, dx);
        if (isnan(cases[i].loss)) {
            ck_assert(isnan(got.loss) && isnan(dx[0]) && isnan(dx[1]) && isnan(got.sums[0]));
            continue;
        }
        ck_assert_double_eq_tol(got.loss, 1.5 + LOSS_WEIGHT * cases[i].loss, 1e-12 * (1.0 + cases[i].loss));
        ck_assert(dx[0] == (float)cases[i].slope && dx[1] == -dx[0]);
    }
    fixture_close(&f);
}
END_TEST

/* ---- with the rows' losses ---- */

static void row_losses(const pass_t *p, const double *x, const double *weight, const int32_t *targets, double *losses)
{
    for (size_t row = 0; row < p->n_rows; ++row) {
        double sum = 0.0, of_target = 0.0;
        for (size_t v = 0; v < p->vocab_size; ++v) {
            double logit = 0.0;
            for (size_t i = 0; i < p->dim; ++i)
                logit += x[row * p->dim + i] * weight[v * p->dim + i];
            sum += exp(logit);
            of_target = targets[row] == (int32_t)v ? logit : of_target;
        }
        losses[row] = targets[row] == ZERO_NO_TARGET ? 0.0 : log(sum) - of_target;
    }
}

typedef struct scalar {
    const pass_t *p;
    const double *x, *weight, *reference;
    const int32_t *targets;
    double *losses;
} scalar_t;

static double scalar_loss(void *arg)
{
    const scalar_t *s = arg;
    row_losses(s->p, s->x, s->weight, s->targets, s->losses);
    return LOSS_WEIGHT * (double)grad_scale * loss_of(s->p, s->losses, s->reference, NULL, NULL);
}

START_TEST(gradient_equals_central_differences)
{
    const pass_t *p = &passes[0];
    const zero_model_limits_t limits = limits_of(p);
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(p->n_rows * p->dim, ZERO_FP32, 0.0, 1.0, 9);
    array_t weight = array_normal(p->vocab_size * p->dim, ZERO_FP32, 0.0, 0.5, 10);
    array_t dx = array_poison(x.n, ZERO_FP32);
    double *losses = fixture_doubles(p->n_rows), *own = fixture_doubles(p->n_rows), *again = fixture_doubles(p->n_rows);
    double *reference = random_losses(p, 12);
    int32_t *documents = documents_of(p), *targets = targets_of(p, 11);
    ck_assert_int_eq(f.kernels->head_losses(&f.ctx, own, dx.data, x.data, array_weight(&weight), targets,
                                            p->beta * LOSS_WEIGHT, &grad_scale, p->n_rows, p->dim, p->vocab_size),
                     ZERO_OK);
    ck_assert_int_eq(f.kernels->head_losses(&f.ctx, again, NULL, x.data, array_weight(&weight), targets, 0.0, NULL,
                                            p->n_rows, p->dim, p->vocab_size),
                     ZERO_OK);
    ck_assert(memcmp(own, again, p->n_rows * sizeof *own) == 0);
    row_losses(p, x.values, weight.values, targets, losses);
    for (size_t row = 0; row < p->n_rows; ++row)
        ck_assert_double_eq_tol(own[row], losses[row], 1e-5); /* logits of a few units, in fp32 */
    run(&f, p, p->n_rows, own, reference, documents, dx.data);
    scalar_t scalar = {p, x.values, weight.values, reference, targets, losses};
    double *slopes = fixture_slopes(scalar_loss, &scalar, x.values, x.n);
    array_expect(&dx, slopes, 2e-6, "dx"); /* fp32 arithmetic; the differences are more exact */
    free(losses), free(own), free(again), free(reference), free(documents), free(targets), free(slopes);
    array_free(&x), array_free(&weight), array_free(&dx);
    fixture_close(&f);
}
END_TEST

/* What head_loss adds up: of several chunks of rows, too (64 at least; test_loss.c). */
START_TEST(losses_of_rows_add_up_to_the_loss)
{
    const pass_t p = {.n_rows = 130, .dim = 2, .vocab_size = 131200, .n_pairs = 2, .lengths = {60, 3, 33, 34}};
    const zero_model_limits_t limits = limits_of(&p);
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(p.n_rows * p.dim, ZERO_FP32, 0.0, 1.0, 4);
    array_t weight = array_normal(p.vocab_size * p.dim, ZERO_FP32, 0.0, 0.3, 5);
    array_t dx = array_poison(x.n, ZERO_FP32), same = array_poison(x.n, ZERO_FP32);
    double *losses = fixture_doubles(p.n_rows), loss = 0.0, sum = 0.0;
    int32_t *targets = targets_of(&p, 6);
    ck_assert_int_eq(f.kernels->head_loss(&f.ctx, &loss, same.data, (zero_grad_t){0}, x.data, array_weight(&weight),
                                          targets, LOSS_WEIGHT, &grad_scale, p.n_rows, p.dim, p.vocab_size),
                     ZERO_OK);
    ck_assert_int_eq(f.kernels->head_losses(&f.ctx, losses, dx.data, x.data, array_weight(&weight), targets,
                                            LOSS_WEIGHT, &grad_scale, p.n_rows, p.dim, p.vocab_size),
                     ZERO_OK);
    for (size_t row = 0; row < p.n_rows; ++row)
        sum += losses[row];
    ck_assert_double_eq_tol(loss, LOSS_WEIGHT * sum, 1e-11 * sum);
    array_expect_same_bits(&dx, &same, "dx of head_losses and head_loss");
    free(losses), free(targets);
    array_free(&x), array_free(&weight), array_free(&dx), array_free(&same);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, sums_and_factors_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, pairs_behind_the_rows_of_a_pass_do_not_count, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, large_margins_do_not_overflow_and_nan_reaches_loss_and_gradient, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, gradient_equals_central_differences, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, losses_of_rows_add_up_to_the_loss, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("pair_loss", add_tests);
}
