/* test_rope.c - tests rotary positions against complex multiplication in fp64, with angles rounded to fp32 as Hugging
 * Face does, and for their purpose: the product of rotated queries and keys depends only on their distance. */
#include <complex.h>

#include "tests/support/model_fixture.h"

#define THETA 10000.0

typedef zero_attention_shape_t shape_t;

/* One pair; an odd model; shared heads; Llama's heads over several threads; more pairs than are held at once. */
static const shape_t shapes[] = {
    {1, 3, 1, 1, 2}, {3, 17, 3, 1, 12}, {2, 33, 6, 2, 10}, {2, 130, 8, 2, 64}, {1, 5, 2, 1, 262},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static const zero_model_limits_t limits = {
    .n_rows = 1, .seq_len = 1, .max_linear = 1, .max_width = 1, .n_heads = 1, .head_dim = 1, .vocab_size = 1};

static size_t n_elems_of(shape_t s)
{
    return s.n_batch * s.seq_len * (s.n_heads + 2 * s.n_kv_heads) * s.head_dim;
}

/* Elements i and i + head_dim / 2 of every q and k head are one complex number, times e^(i angle). */
static void turn(double *qkv, shape_t s, const int32_t *starts, double theta, double sign)
{
    size_t half = s.head_dim / 2, n_all = s.n_heads + 2 * s.n_kv_heads;
    for (size_t row = 0; row < s.n_batch * s.seq_len; ++row)
        for (size_t head = 0; head < s.n_heads + s.n_kv_heads; ++head)
            for (size_t i = 0; i < half; ++i) {
                double *x = qkv + (row * n_all + head) * s.head_dim + i;
                float frequency = 1.0f / powf((float)theta, (float)(2 * i) / (float)s.head_dim);
                float angle = (float)(row % s.seq_len - (starts ? (size_t)starts[row] : 0)) * frequency;
                double complex z = (x[0] + x[half] * I) * cexp(I * sign * (double)angle);
                x[0] = creal(z);
                x[half] = cimag(z);
            }
}

static void run(fixture_t *f, array_t *qkv, shape_t s, double theta, bool inverse)
{
    const zero_rope_t rope = {.theta = (float)theta};
    ck_assert_int_eq(f->kernels->rope(&f->ctx, qkv->data, inverse, &rope, &s), ZERO_OK);
}

START_TEST(forward_and_backward_equal_complex_multiplication)
{
    static const double thetas[] = {THETA, 500000.0};
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t i = 0; i < 4 * N_SHAPES; ++i) {
        shape_t s = shapes[i / 4];
        double theta = thetas[i % 2];
        bool inverse = i / 2 % 2 == 1;
        array_t qkv = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, i);
        turn(qkv.values, s, NULL, theta, inverse ? -1.0 : 1.0);
        run(&f, &qkv, s, theta, inverse);
        array_expect(&qkv, qkv.values, 4 * 0x1p-24, "qkv"); /* sine, cosine, two products and their sum are rounded */
        array_free(&qkv);
    }
    fixture_close(&f);
}
END_TEST

/* Documents of 5 positions and, in later sequences, of 6, 7 ...; each is rotated as if it were alone. */
START_TEST(positions_are_counted_from_where_a_document_begins)
{
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t i = 0; i < 2 * N_SHAPES; ++i) {
        shape_t s = shapes[i / 2];
        bool inverse = i % 2 == 1;
        int32_t *starts = malloc(s.n_batch * s.seq_len * sizeof *starts);
        for (size_t row = 0; row < s.n_batch * s.seq_len; ++row) {
            size_t length = 5 + row / s.seq_len;
            starts[row] = (int32_t)(row % s.seq_len / length * length);
        }
        const zero_rope_t rope = {.theta = (float)THETA, .starts = starts};
        array_t qkv = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, i);
        turn(qkv.values, s, starts, THETA, inverse ? -1.0 : 1.0);
        ck_assert_int_eq(f.kernels->rope(&f.ctx, qkv.data, inverse, &rope, &s), ZERO_OK);
        array_expect(&qkv, qkv.values, 4 * 0x1p-24, "qkv");
        array_free(&qkv);
        free(starts);
    }
    fixture_close(&f);
}
END_TEST

START_TEST(values_and_position_0_keep_their_bits)
{
    const shape_t s = {2, 7, 4, 2, 6};
    const size_t width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim, turned = (s.n_heads + s.n_kv_heads) * s.head_dim;
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, 1);
    run(&f, &qkv, s, THETA, false);
    for (size_t i = 0; i < qkv.n; ++i)
        if (i % width >= turned || i / width % s.seq_len == 0)
            ck_assert(array_get(&qkv, i) == qkv.values[i]);
    array_free(&qkv);
    fixture_close(&f);
}
END_TEST

/* q alone is scaled; with an infinite factor of linear scaling nothing is rotated, to the bit. */
START_TEST(q_is_scaled_with_and_without_rotation)
{
    const shape_t s = {2, 33, 6, 2, 10};
    const size_t width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim, of_q = s.n_heads * s.head_dim;
    const float q_scale = 0.7f;
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    for (int i = 0; i < 4; ++i) {
        const bool inverse = i % 2 == 1, is_rotated = i / 2 == 0;
        const zero_rope_t rope = {.theta = (float)THETA,
                                  .kind = ZERO_ROPE_LINEAR,
                                  .factor = is_rotated ? 1.0f : INFINITY,
                                  .q_scale = q_scale};
        array_t qkv = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, 4);
        ck_assert_int_eq(f.kernels->rope(&f.ctx, qkv.data, inverse, &rope, &s), ZERO_OK);
        if (!is_rotated)
            for (size_t e = 0; e < qkv.n; ++e)
                ck_assert(array_get(&qkv, e) ==
                          (e % width < of_q ? (double)(q_scale * (float)qkv.values[e]) : qkv.values[e]));
        if (is_rotated)
            turn(qkv.values, s, NULL, THETA, inverse ? -1.0 : 1.0);
        for (size_t e = 0; e < qkv.n; ++e)
            qkv.values[e] *= e % width < of_q ? (double)q_scale : 1.0;
        array_expect(&qkv, qkv.values, 5 * 0x1p-24, "qkv");
        array_free(&qkv);
    }
    fixture_close(&f);
}
END_TEST

/* A rotation is orthogonal: its inverse is its transpose, the gradient. So <rotate(x), y> = <x, rotate_back(y)>. */
START_TEST(rotating_back_is_the_gradient)
{
    const shape_t s = {2, 17, 3, 1, 12};
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, 2);
    array_t y = array_normal(n_elems_of(s), ZERO_FP32, 0.0, 1.0, 3);
    double left = 0.0, right = 0.0;
    run(&f, &x, s, THETA, false);
    run(&f, &y, s, THETA, true);
    for (size_t i = 0; i < x.n; ++i) {
        left += array_get(&x, i) * y.values[i];
        right += x.values[i] * array_get(&y, i);
    }
    ck_assert_double_eq_tol(left, right, 1e-5);
    array_free(&x), array_free(&y);
    fixture_close(&f);
}
END_TEST

/* With the same q and k at every position, q_t . k_u depends only on t - u, up to the error of angles in fp32: 2^-12 at
 * position 5,000. */
START_TEST(scores_depend_on_the_distance_alone)
{
    const shape_t s = {1, 5000, 1, 1, 8};
    const size_t width = 3 * s.head_dim, far = 4900;
    fixture_t f;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t qkv = array_poison(n_elems_of(s), ZERO_FP32);
    uint64_t seed = 4;
    for (size_t i = 0; i < qkv.n; ++i)
        array_set(&qkv, i, i < width ? support_normal(&seed) : qkv.values[i % width]);
    run(&f, &qkv, s, THETA, false);
    for (size_t distance = 0; distance < 100; ++distance) {
        double near_origin = 0.0, far_away = 0.0;
        for (size_t i = 0; i < s.head_dim; ++i) {
            near_origin += array_get(&qkv, distance * width + i) * array_get(&qkv, s.head_dim + i);
            far_away += array_get(&qkv, (far + distance) * width + i) * array_get(&qkv, far * width + s.head_dim + i);
        }
        ck_assert_double_eq_tol(near_origin, far_away, 4 * 0x1p-12);
    }
    array_free(&qkv);
    fixture_close(&f);
}
END_TEST

START_TEST(every_instruction_set_gives_the_same_bits)
{
    fixture_t f, scalar;
    if (!fixture_open(&f, _i, &limits) || !fixture_open(&scalar, 0, &limits))
        return;
    for (size_t i = 0; i < N_SHAPES; ++i) {
        array_t a = array_normal(n_elems_of(shapes[i]), ZERO_FP32, 0.0, 1.0, i), b = array_copy(&a);
        run(&f, &a, shapes[i], THETA, false);
        run(&scalar, &b, shapes[i], THETA, false);
        array_expect_same_bits(&a, &b, "qkv");
        array_free(&a), array_free(&b);
    }
    fixture_close(&f), fixture_close(&scalar);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_and_backward_equal_complex_multiplication, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, positions_are_counted_from_where_a_document_begins, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, q_is_scaled_with_and_without_rotation, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, values_and_position_0_keep_their_bits, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, rotating_back_is_the_gradient, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, scores_depend_on_the_distance_alone, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, every_instruction_set_gives_the_same_bits, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("rope", add_tests);
}
