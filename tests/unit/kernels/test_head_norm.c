/* test_head_norm.c - tests RMSNorm of q and k, of every head on its own and of all heads as one, against plain fp64
 * loops, and its gradients against central differences of them.
 */
#include "tests/support/model_fixture.h"

#define EPS 1e-5

typedef struct shape {
    size_t n_rows, n_heads, n_kv_heads, head_dim;
    bool is_joined; /* projection_norm: all of q is normalized as one, and all of k */
} shape_t;

static const shape_t shapes[] = {
    {1, 1, 1, 1, false}, {3, 2, 1, 5, false}, {67, 6, 3, 18, false}, {130, 4, 4, 64, false}, {301, 3, 1, 128, false}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

/* A test runs for every instruction set, with each of both norms. */
enum { N_NORMS = 2 };

static shape_t shape_of(size_t i, int run)
{
    shape_t s = shapes[i];
    s.is_joined = run % N_NORMS == 1;
    return s;
}

/* What is normalized as one: a part of a row. */
typedef struct group {
    size_t first, width;
    enum { OF_Q, OF_K, OF_V } kind; /* v stays */
} group_t;

static size_t n_groups(shape_t s)
{
    return s.is_joined ? 3 : s.n_heads + 2 * s.n_kv_heads;
}

static group_t group_of(shape_t s, size_t i)
{
    const size_t q = s.n_heads * s.head_dim, k = s.n_kv_heads * s.head_dim;
    if (s.is_joined)
        return (group_t){i == 0 ? 0 : q + (i - 1) * k, i == 0 ? q : k, i == 0 ? OF_Q : i == 1 ? OF_K : OF_V};
    return (group_t){i * s.head_dim, s.head_dim, i < s.n_heads ? OF_Q : i < s.n_heads + s.n_kv_heads ? OF_K : OF_V};
}

static size_t q_width(shape_t s)
{
    return group_of(s, 0).width;
}

static size_t k_width(shape_t s)
{
    return s.is_joined ? s.n_kv_heads * s.head_dim : s.head_dim;
}

static size_t row_width(shape_t s)
{
    return (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
}

static size_t n_elems(shape_t s)
{
    return s.n_rows * row_width(s);
}

static bool open_fixture(fixture_t *f, int isa, shape_t s, zero_dtype_t dtype)
{
    zero_model_limits_t limits = {.n_rows = s.n_rows,
                                  .seq_len = 1,
                                  .max_linear = 1,
                                  .max_width = !s.is_joined              ? 1
                                               : q_width(s) > k_width(s) ? q_width(s)
                                                                         : k_width(s),
                                  .n_heads = s.n_heads,
                                  .n_kv_heads = s.n_kv_heads,
                                  .head_dim = s.is_joined ? 1 : s.head_dim,
                                  .vocab_size = 1,
                                  .normalizes_projections = s.is_joined,
                                  .dtype = dtype};
    return fixture_open(f, isa, &limits);
}

/* ---- the reference ---- */

static double rstd_fp64(const double *x, size_t width)
{
    double squares = 0.0;
    for (size_t k = 0; k < width; ++k)
        squares += x[k] * x[k];
    return 1.0 / sqrt(squares / (double)width + EPS);
}

/* y of every row, in fp64; v stays. */
static void norm_fp64(double *y, const double *qkv, const double *q_weight, const double *k_weight, shape_t s)
{
    for (size_t i = 0; i < s.n_rows * n_groups(s); ++i) {
        const group_t group = group_of(s, i % n_groups(s));
        const size_t at = i / n_groups(s) * row_width(s) + group.first;
        const double rstd = rstd_fp64(qkv + at, group.width), *weight = group.kind == OF_Q ? q_weight : k_weight;
        for (size_t k = 0; k < group.width; ++k)
            y[at + k] = group.kind == OF_V ? qkv[at + k] : qkv[at + k] * rstd * weight[k];
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
    array_t q_weight = array_normal(q_width(s), dtype, 1.0, 0.5, 2),
            k_weight = array_normal(k_width(s), dtype, 1.0, 0.5, 3);
    double *y = fixture_doubles(n);
    norm_fp64(y, qkv.values, q_weight.values, k_weight.values, s);
    if (in_place)
        memcpy(out.data, qkv.data, n * sizeof(float));
    const void *x = in_place ? out.data : qkv.data;
    const zero_weight_t q = array_weight(&q_weight), k = array_weight(&k_weight);
    ck_assert_int_eq(s.is_joined ? f.kernels->projection_norm(&f.ctx, out.data, x, q, k, (float)EPS, s.n_rows,
                                                              q_width(s), k_width(s))
                                 : f.kernels->head_norm(&f.ctx, out.data, x, q, k, (float)EPS, s.n_rows, s.n_heads,
                                                        s.n_kv_heads, s.head_dim),
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
                check_forward(_i / N_NORMS, shape_of(s, _i), fixture_dtypes[d], in_place != 0);
}
END_TEST

/* ---- backward ---- */

typedef struct operands {
    array_t dy, qkv, q_weight, k_weight;
} operands_t;

static operands_t operands_create(shape_t s, zero_dtype_t dtype)
{
    return (operands_t){array_normal(n_elems(s), ZERO_FP32, 0.0, 1.0, 4),
                        array_normal(n_elems(s), ZERO_FP32, 0.5, 1.0, 5), array_normal(q_width(s), dtype, 1.0, 0.5, 6),
                        array_normal(k_width(s), dtype, 1.0, 0.5, 7)};
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
    const zero_grad_t q_grad = array_grad(dq, accumulate), k_grad = array_grad(dk, accumulate);
    const zero_weight_t q = array_weight(&o->q_weight), k = array_weight(&o->k_weight);
    ck_assert_int_eq(s.is_joined
                         ? f->kernels->projection_norm_backward(&f->ctx, dqkv->data, q_grad, k_grad, o->qkv.data, q, k,
                                                                (float)EPS, s.n_rows, q_width(s), k_width(s))
                         : f->kernels->head_norm_backward(&f->ctx, dqkv->data, q_grad, k_grad, o->qkv.data, q, k,
                                                          (float)EPS, s.n_rows, s.n_heads, s.n_kv_heads, s.head_dim),
                     ZERO_OK);
}

/* Sets dqkv by the closed form of the gradients, and adds to those of weights: with h = x rstd, dweight += dy h and dx
 * = rstd (dy w - h mean(dy w h)). gradients_are_central_differences shows that this is the gradient. */
static void gradients_fp64(double *dqkv, double *dq, double *dk, const operands_t *o, shape_t s)
{
    for (size_t i = 0; i < s.n_rows * n_groups(s); ++i) {
        const group_t group = group_of(s, i % n_groups(s));
        const size_t at = i / n_groups(s) * row_width(s) + group.first;
        const double *x = o->qkv.values + at, *dy = o->dy.values + at;
        const double *weight = group.kind == OF_Q ? o->q_weight.values : o->k_weight.values;
        double *dweight = group.kind == OF_Q ? dq : dk;
        const double rstd = rstd_fp64(x, group.width);
        double mean = 0.0;
        for (size_t k = 0; k < group.width && group.kind != OF_V; ++k)
            mean += dy[k] * weight[k] * x[k] * rstd / (double)group.width;
        for (size_t k = 0; k < group.width; ++k) {
            dqkv[at + k] = group.kind == OF_V ? dy[k] : rstd * (dy[k] * weight[k] - x[k] * rstd * mean);
            if (group.kind != OF_V)
                dweight[k] += dy[k] * x[k] * rstd;
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
        dq[run] = array_grad_target(q_width(s), dtype, accumulate, 8);
        dk[run] = array_grad_target(k_width(s), dtype, accumulate, 9);
        backward(&f, s, &o, accumulate, &dqkv[run], &dq[run], &dk[run]);
    }
    array_expect_same_bits(&dqkv[0], &dqkv[1], "dqkv, run to run");
    array_expect_same_bits(&dq[0], &dq[1], "dq_weight, run to run");
    array_expect_same_bits(&dk[0], &dk[1], "dk_weight, run to run");
    gradients_fp64(want, dq[0].values, dk[0].values, &o, s); /* on top of what the targets held */
    double bound = 32 * 0x1p-24;
    /* Of one element, everything cancels but eps: h is 1 to a rounding. */
    double alone = q_width(s) == 1 ? 1e-5 : 0.0;
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
                check_backward(_i / N_NORMS, shape_of(s, _i), fixture_dtypes[d], accumulate != 0);
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
    const shape_t s = {4, 3, 2, 10, .is_joined = _i % N_NORMS == 1};
    fixture_t f;
    if (!open_fixture(&f, _i / N_NORMS, s, ZERO_FP32))
        return;
    operands_t o = operands_create(s, ZERO_FP32);
    array_t dqkv = array_poison(n_elems(s), ZERO_FP32), dq = array_poison(q_width(s), ZERO_FP32);
    array_t dk = array_poison(k_width(s), ZERO_FP32);
    scalar_t scalar = {s, &o, fixture_doubles(n_elems(s))};
    backward(&f, s, &o, false, &dqkv, &dq, &dk);
    const struct {
        array_t *got;
        double *values;
        size_t n;
    } all[] = {
        {&dqkv, o.qkv.values, n_elems(s)}, {&dq, o.q_weight.values, q_width(s)}, {&dk, o.k_weight.values, k_width(s)}};
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
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS * N_NORMS);
    tcase_add_loop_test(tests, backward_equals_fp64, 0, FIXTURE_N_ISAS * N_NORMS);
    tcase_add_loop_test(tests, gradients_are_central_differences, 0, FIXTURE_N_ISAS * N_NORMS);
}

int main(void)
{
    return fixture_main("head_norm", add_tests);
}
