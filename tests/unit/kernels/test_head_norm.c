/* test_head_norm.c - tests RMSNorm of q and k heads against plain fp64 loops, and its gradients against central
 * differences of them.
 */
#include "tests/support/model_fixture.h"

#define EPS 1e-5

typedef struct shape {
    size_t n_rows, n_heads, n_kv_heads, head_dim;
} shape_t;

static const shape_t shapes[] = {{1, 1, 1, 1}, {3, 2, 1, 5}, {67, 6, 3, 18}, {130, 4, 4, 64}, {301, 3, 1, 128}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static size_t heads_of_row(shape_t s)
{
    return s.n_heads + 2 * s.n_kv_heads;
}

static size_t n_elems(shape_t s)
{
    return s.n_rows * heads_of_row(s) * s.head_dim;
}

static bool open_fixture(fixture_t *f, int isa, shape_t s, zero_dtype_t dtype)
{
    zero_model_limits_t limits = {.n_rows = s.n_rows,
                                  .seq_len = 1,
                                  .max_linear = 1,
                                  .max_width = 1,
                                  .n_heads = s.n_heads,
                                  .n_kv_heads = s.n_kv_heads,
                                  .head_dim = s.head_dim,
                                  .vocab_size = 1,
                                  .dtype = dtype};
    return fixture_open(f, isa, &limits);
}

/* ---- the reference ---- */

/* y of every head, in fp64; v stays. */
static void norm_fp64(double *y, const double *qkv, const double *q_weight, const double *k_weight, shape_t s)
{
    for (size_t i = 0; i < s.n_rows * heads_of_row(s); ++i) {
        size_t head = i % heads_of_row(s);
        const double *x = qkv + i * s.head_dim, *weight = head < s.n_heads ? q_weight : k_weight;
        double squares = 0.0;
        for (size_t k = 0; k < s.head_dim; ++k)
            squares += x[k] * x[k];
        double rstd = 1.0 / sqrt(squares / (double)s.head_dim + EPS);
        for (size_t k = 0; k < s.head_dim; ++k)
            y[i * s.head_dim + k] = head < s.n_heads + s.n_kv_heads ? x[k] * rstd * weight[k] : x[k];
    }
}

/* ---- forward ---- */

static void check_forward(int isa, shape_t s, zero_dtype_t dtype, bool in_place)
{
    fixture_t f;
    if (!open_fixture(&f, isa, s, dtype))
        return;
    size_t n = n_elems(s);
    array_t qkv = array_normal(n, ZERO_FP32, 0.5, 1.0, 1), out = array_poison(n, ZERO_FP32);
    array_t q_weight = array_normal(s.head_dim, dtype, 1.0, 0.5, 2),
            k_weight = array_normal(s.head_dim, dtype, 1.0, 0.5, 3);
    double *y = fixture_doubles(n);
    norm_fp64(y, qkv.values, q_weight.values, k_weight.values, s);
    if (in_place)
        memcpy(out.data, qkv.data, n * sizeof(float));
    ck_assert_int_eq(f.kernels->head_norm(&f.ctx, out.data, in_place ? out.data : qkv.data, array_weight(&q_weight),
                                          array_weight(&k_weight), (float)EPS, s.n_rows, s.n_heads, s.n_kv_heads,
                                          s.head_dim),
                     ZERO_OK);
    array_expect(&out, y, 16 * 0x1p-24, "y"); /* a few roundings, and sums in 16 lanes */
    free(y);
    array_free(&qkv), array_free(&out), array_free(&q_weight), array_free(&k_weight);
    fixture_close(&f);
}

START_TEST(forward_equals_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int in_place = 0; in_place < 2; ++in_place)
                check_forward(_i, shapes[s], fixture_dtypes[d], in_place != 0);
}
END_TEST

/* ---- backward ---- */

typedef struct operands {
    array_t dy, qkv, q_weight, k_weight;
} operands_t;

static operands_t operands_create(shape_t s, zero_dtype_t dtype)
{
    return (operands_t){array_normal(n_elems(s), ZERO_FP32, 0.0, 1.0, 4),
                        array_normal(n_elems(s), ZERO_FP32, 0.5, 1.0, 5), array_normal(s.head_dim, dtype, 1.0, 0.5, 6),
                        array_normal(s.head_dim, dtype, 1.0, 0.5, 7)};
}

static void operands_free(operands_t *o)
{
    array_free(&o->dy), array_free(&o->qkv), array_free(&o->q_weight), array_free(&o->k_weight);
}

/* Leaves the gradient of qkv in `dqkv`. */
static void backward(fixture_t *f, shape_t s, const operands_t *o, bool accumulate, array_t *dqkv, array_t *dq,
                     array_t *dk)
{
    memcpy(dqkv->data, o->dy.data, n_elems(s) * sizeof(float));
    ck_assert_int_eq(f->kernels->head_norm_backward(&f->ctx, dqkv->data, array_grad(dq, accumulate),
                                                    array_grad(dk, accumulate), o->qkv.data, array_weight(&o->q_weight),
                                                    array_weight(&o->k_weight), (float)EPS, s.n_rows, s.n_heads,
                                                    s.n_kv_heads, s.head_dim),
                     ZERO_OK);
}

/* Adds the closed form of the gradients, by q's and k's heads: with h = x rstd, dweight += dy h and dx = rstd (dy w - h
 * mean(dy w h)). check_differences shows that this is the gradient. */
static void gradients_fp64(double *dqkv, double *dq, double *dk, const operands_t *o, shape_t s)
{
    for (size_t i = 0; i < s.n_rows * heads_of_row(s); ++i) {
        size_t head = i % heads_of_row(s), at = i * s.head_dim;
        const double *x = o->qkv.values + at, *dy = o->dy.values + at;
        const double *weight = head < s.n_heads ? o->q_weight.values : o->k_weight.values;
        double squares = 0.0, mean = 0.0;
        for (size_t k = 0; k < s.head_dim; ++k)
            squares += x[k] * x[k];
        double rstd = 1.0 / sqrt(squares / (double)s.head_dim + EPS);
        for (size_t k = 0; k < s.head_dim; ++k)
            mean += dy[k] * weight[k] * x[k] * rstd / (double)s.head_dim;
        bool is_v = head >= s.n_heads + s.n_kv_heads;
        for (size_t k = 0; k < s.head_dim; ++k) {
            dqkv[at + k] = is_v ? dy[k] : rstd * (dy[k] * weight[k] - x[k] * rstd * mean);
            if (!is_v)
                (head < s.n_heads ? dq : dk)[k] += dy[k] * x[k] * rstd;
        }
    }
}

static void check_backward(int isa, shape_t s, zero_dtype_t dtype, bool accumulate)
{
    fixture_t f;
    if (!open_fixture(&f, isa, s, dtype))
        return;
    operands_t o = operands_create(s, dtype);
    array_t dqkv[2], dq[2], dk[2];
    double *want = fixture_doubles(n_elems(s));
    for (int run = 0; run < 2; ++run) {
        dqkv[run] = array_poison(n_elems(s), ZERO_FP32);
        dq[run] = array_grad_target(s.head_dim, dtype, accumulate, 8);
        dk[run] = array_grad_target(s.head_dim, dtype, accumulate, 9);
        backward(&f, s, &o, accumulate, &dqkv[run], &dq[run], &dk[run]);
    }
    array_expect_same_bits(&dqkv[0], &dqkv[1], "dqkv, run to run");
    array_expect_same_bits(&dq[0], &dq[1], "dq_weight, run to run");
    array_expect_same_bits(&dk[0], &dk[1], "dk_weight, run to run");
    gradients_fp64(want, dq[0].values, dk[0].values, &o, s); /* on top of what the targets held */
    double bound = 32 * 0x1p-24;
    /* Of one element, everything cancels but eps: h is 1 to a rounding. */
    double alone = s.head_dim == 1 ? 1e-5 : 0.0;
    array_expect(&dqkv[0], want, bound + alone, "dqkv");
    array_expect(&dq[0], dq[0].values, bound + fixture_unit(dtype), "dq_weight");
    array_expect(&dk[0], dk[0].values, bound + fixture_unit(dtype), "dk_weight");
    for (int run = 0; run < 2; ++run)
        array_free(&dqkv[run]), array_free(&dq[run]), array_free(&dk[run]);
    free(want);
    operands_free(&o);
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

/* ---- central differences ---- */

typedef struct scalar {
    shape_t s;
    const operands_t *o;
    double *y;
} scalar_t;

/* Returns the sum of dy * norm(qkv) in fp64, whose gradient backward computes. */
static double scalar_loss(void *arg)
{
    const scalar_t *p = arg;
    double loss = 0.0;
    norm_fp64(p->y, p->o->qkv.values, p->o->q_weight.values, p->o->k_weight.values, p->s);
    for (size_t i = 0; i < n_elems(p->s); ++i)
        loss += p->o->dy.values[i] * p->y[i];
    return loss;
}

START_TEST(gradients_are_central_differences)
{
    const shape_t s = {4, 3, 2, 10};
    fixture_t f;
    if (!open_fixture(&f, _i, s, ZERO_FP32))
        return;
    operands_t o = operands_create(s, ZERO_FP32);
    array_t dqkv = array_poison(n_elems(s), ZERO_FP32), dq = array_poison(s.head_dim, ZERO_FP32);
    array_t dk = array_poison(s.head_dim, ZERO_FP32);
    scalar_t scalar = {s, &o, fixture_doubles(n_elems(s))};
    backward(&f, s, &o, false, &dqkv, &dq, &dk);
    const struct {
        array_t *got;
        double *values;
        size_t n;
    } all[] = {
        {&dqkv, o.qkv.values, n_elems(s)}, {&dq, o.q_weight.values, s.head_dim}, {&dk, o.k_weight.values, s.head_dim}};
    for (int i = 0; i < 3; ++i) {
        double *slopes = fixture_slopes(scalar_loss, &scalar, all[i].values, all[i].n);
        array_expect(all[i].got, slopes, 1e-6, "central differences"); /* fp32 arithmetic */
        free(slopes);
    }
    free(scalar.y);
    array_free(&dqkv), array_free(&dq), array_free(&dk);
    operands_free(&o);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, gradients_are_central_differences, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("head_norm", add_tests);
}
