/* test_linear.c - tests linear layers against plain fp64 loops: both layouts, every dtype, with and without bias and
 * accumulation. Also tests that no product allocates, whatever its size. */
#define SUPPORT_SANITIZE_SOME
#include <omp.h>

#include "tests/support/allocations.h"
#include "tests/support/model_fixture.h"

typedef struct shape {
    size_t n_rows, n_in, n_out;
} shape_t;

/* One element; GPT-2's c_attn and c_proj at dim 36; odd everything; enough for several blocks on any machine; and an
 * inner extent of more than the rows that linear.c copies at a time, with columns copied behind others and alone. */
static const shape_t shapes[] = {{1, 1, 1},       {51, 36, 108}, {51, 144, 36}, {3, 7, 259},
                                 {333, 130, 517}, {2, 1100, 36}, {9, 1030, 7}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static zero_model_limits_t limits_of(shape_t s, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = s.n_rows,
                                 .seq_len = 1,
                                 .max_linear = s.n_in * s.n_out,
                                 .max_width = s.n_in > s.n_out ? s.n_in : s.n_out,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = 1,
                                 .dtype = dtype};
}

/* An fp32 sum of k products of random signs errs by at most about sqrt(k) u of its norm; the factor 4 is margin. */
static double sum_bound(size_t k)
{
    return 4.0 * sqrt((double)k + 4.0) * 0x1p-24;
}

static size_t weight_at(shape_t s, zero_linear_layout_t layout, size_t in, size_t out)
{
    return layout == ZERO_LINEAR_IN_OUT ? in * s.n_out + out : out * s.n_in + in;
}

static void check_forward(int isa, shape_t s, zero_dtype_t dtype, zero_linear_layout_t layout, bool with_bias)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.n_in, ZERO_FP32, 0.0, 1.0, 1);
    array_t weight = array_normal(s.n_in * s.n_out, dtype, 0.0, 0.2, 2);
    array_t bias = array_normal(s.n_out, dtype, 0.0, 1.0, 3);
    array_t y = array_poison(s.n_rows * s.n_out, ZERO_FP32), again = array_copy(&y);
    double *want = fixture_doubles(y.n);
    for (size_t r = 0; r < s.n_rows; ++r)
        for (size_t o = 0; o < s.n_out; ++o) {
            double sum = with_bias ? bias.values[o] : 0.0;
            for (size_t i = 0; i < s.n_in; ++i)
                sum += x.values[r * s.n_in + i] * weight.values[weight_at(s, layout, i, o)];
            want[r * s.n_out + o] = sum;
        }
    zero_weight_t b = with_bias ? array_weight(&bias) : (zero_weight_t){.data = NULL, .dtype = dtype};
    for (int run = 0; run < 2; ++run)
        ck_assert_int_eq(f.kernels->linear(&f.ctx, run == 0 ? y.data : again.data, false, x.data, array_weight(&weight),
                                           layout, b, s.n_rows, s.n_in, s.n_out),
                         ZERO_OK);
    array_expect(&y, want, sum_bound(s.n_in), "y");
    array_expect_same_bits(&y, &again, "y, run to run");
    if (!with_bias) {
        ck_assert_int_eq(f.kernels->linear(&f.ctx, y.data, true, x.data, array_weight(&weight), layout, b, s.n_rows,
                                           s.n_in, s.n_out),
                         ZERO_OK);
        for (size_t i = 0; i < y.n; ++i)
            want[i] *= 2.0;
        array_expect(&y, want, sum_bound(s.n_in), "y, added to y");
    }
    free(want);
    array_free(&x), array_free(&weight), array_free(&bias), array_free(&y), array_free(&again);
    fixture_close(&f);
}

static void check_backward_input(int isa, shape_t s, zero_dtype_t dtype, zero_linear_layout_t layout, bool accumulate)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t dy = array_normal(s.n_rows * s.n_out, ZERO_FP32, 0.0, 1.0, 4);
    array_t weight = array_normal(s.n_in * s.n_out, dtype, 0.0, 0.2, 5);
    array_t dx = array_grad_target(s.n_rows * s.n_in, ZERO_FP32, accumulate, 6), again = array_copy(&dx);
    double *want = fixture_doubles(dx.n);
    for (size_t r = 0; r < s.n_rows; ++r)
        for (size_t i = 0; i < s.n_in; ++i) {
            double sum = accumulate ? dx.values[r * s.n_in + i] : 0.0;
            for (size_t o = 0; o < s.n_out; ++o)
                sum += dy.values[r * s.n_out + o] * weight.values[weight_at(s, layout, i, o)];
            want[r * s.n_in + i] = sum;
        }
    for (int run = 0; run < 2; ++run)
        ck_assert_int_eq(f.kernels->linear_backward_input(&f.ctx, run == 0 ? dx.data : again.data, accumulate, dy.data,
                                                          array_weight(&weight), layout, s.n_rows, s.n_in, s.n_out),
                         ZERO_OK);
    array_expect(&dx, want, sum_bound(s.n_out), "dx");
    array_expect_same_bits(&dx, &again, "dx, run to run");
    free(want);
    array_free(&dy), array_free(&weight), array_free(&dx), array_free(&again);
    fixture_close(&f);
}

static void check_backward_weight(int isa, shape_t s, zero_dtype_t dtype, zero_linear_layout_t layout, bool accumulate)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t x = array_normal(s.n_rows * s.n_in, ZERO_FP32, 0.0, 1.0, 7);
    array_t dy = array_normal(s.n_rows * s.n_out, ZERO_FP32, 0.0, 1.0, 8);
    array_t dweight = array_grad_target(s.n_in * s.n_out, dtype, accumulate, 9), dweight2 = array_copy(&dweight);
    array_t dbias = array_grad_target(s.n_out, dtype, accumulate, 10), dbias2 = array_copy(&dbias);
    double *want = fixture_doubles(dweight.n), *want_bias = fixture_doubles(dbias.n);
    for (size_t o = 0; o < s.n_out; ++o) {
        for (size_t i = 0; i < s.n_in; ++i) {
            size_t at = weight_at(s, layout, i, o);
            want[at] = accumulate ? dweight.values[at] : 0.0;
            for (size_t r = 0; r < s.n_rows; ++r)
                want[at] += x.values[r * s.n_in + i] * dy.values[r * s.n_out + o];
        }
        want_bias[o] = accumulate ? dbias.values[o] : 0.0;
        for (size_t r = 0; r < s.n_rows; ++r)
            want_bias[o] += dy.values[r * s.n_out + o];
    }
    for (int run = 0; run < 2; ++run)
        ck_assert_int_eq(f.kernels->linear_backward_weight(&f.ctx,
                                                           array_grad(run == 0 ? &dweight : &dweight2, accumulate),
                                                           layout, array_grad(run == 0 ? &dbias : &dbias2, accumulate),
                                                           x.data, dy.data, s.n_rows, s.n_in, s.n_out),
                         ZERO_OK);
    /* The sum's own error, and one rounding to the gradient's dtype. */
    double bound = sum_bound(s.n_rows) + fixture_unit(dtype);
    array_expect(&dweight, want, bound, "dweight");
    array_expect(&dbias, want_bias, bound, "dbias");
    array_expect_same_bits(&dweight, &dweight2, "dweight, run to run");
    array_expect_same_bits(&dbias, &dbias2, "dbias, run to run");
    free(want), free(want_bias);
    array_free(&x), array_free(&dy), array_free(&dweight), array_free(&dbias), array_free(&dweight2);
    array_free(&dbias2);
    fixture_close(&f);
}

/* ---- Strided products ---- */

/* What adapters multiply: columns of wider matrices, of which the others stay; ranks of one; every transposition. */
static void check_product(int isa, bool transpose_a, bool transpose_b, bool accumulate, zero_dtype_t dtype)
{
    enum { M = 53, N = 7, K = 131, APART = 5 }; /* columns between rows */
    const size_t lda = (transpose_a ? M : K) + APART, ldb = (transpose_b ? K : N) + (dtype == ZERO_FP32 ? APART : 0);
    const size_t ldc = N + APART;
    const float scale = 0.75f;
    fixture_t f;
    zero_model_limits_t limits = limits_of((shape_t){M, K, N}, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t a = array_normal((transpose_a ? K : M) * lda, ZERO_FP32, 0.0, 1.0, 21);
    array_t b = array_normal((transpose_b ? N : K) * ldb, dtype, 0.0, 1.0, 22);
    array_t c = array_normal(M * ldc, ZERO_FP32, 0.0, 1.0, 23);
    double *want = fixture_doubles(c.n);
    for (size_t i = 0; i < c.n; ++i)
        want[i] = c.values[i];
    for (size_t i = 0; i < M; ++i)
        for (size_t j = 0; j < N; ++j) {
            double sum = 0.0;
            for (size_t k = 0; k < K; ++k)
                sum += a.values[transpose_a ? k * lda + i : i * lda + k] *
                       b.values[transpose_b ? j * ldb + k : k * ldb + j];
            want[i * ldc + j] = scale * sum + (accumulate ? c.values[i * ldc + j] : 0.0);
        }
    const zero_product_t product = {.transpose_a = transpose_a,
                                    .transpose_b = transpose_b,
                                    .m = M,
                                    .n = N,
                                    .k = K,
                                    .a = array_weight(&a),
                                    .lda = lda,
                                    .b = array_weight(&b),
                                    .ldb = ldb,
                                    .c = array_grad(&c, accumulate),
                                    .ldc = ldc,
                                    .scale = scale};
    ck_assert_int_eq(f.kernels->product(&f.ctx, &product), ZERO_OK);
    array_expect(&c, want, sum_bound(K), "product");
    for (size_t i = 0; i < c.n; ++i) /* beside the columns nothing changes */
        ck_assert(i % ldc < N || array_get(&c, i) == c.values[i]);
    free(want);
    array_free(&a), array_free(&b), array_free(&c);
    fixture_close(&f);
}

START_TEST(products_of_strided_matrices_equal_fp64)
{
    for (int flags = 0; flags < 8; ++flags)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            check_product(_i, flags & 1, flags & 2, flags & 4, fixture_dtypes[d]);
}
END_TEST

/* ---- Narrow products ---- */

/* What adapters take from x: two parts, between and behind which are columns that count for nothing; or all of x with a
 * transposed matrix. */
static void check_narrow(int isa, bool transposed, bool has_u, bool accumulate, zero_dtype_t dtype)
{
    enum { ROWS = 53, COLUMNS = 131, RANK = 7, MOST = 2 };
    static const size_t first[] = {3, 70}, width[] = {64, 37};
    const int n_parts = transposed ? 1 : MOST;
    fixture_t f;
    zero_model_limits_t limits = limits_of((shape_t){ROWS, COLUMNS, COLUMNS}, dtype);
    limits.narrow_width = MOST * RANK;
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t x = array_normal(ROWS * COLUMNS, ZERO_FP32, 0.0, 1.0, 31);
    array_t u = array_normal((size_t)(ROWS * n_parts * RANK), ZERO_FP32, 0.0, 1.0, 32),
            out = array_poison(u.n, ZERO_FP32);
    array_t b[MOST], db[MOST];
    zero_narrow_product_t product = {.n_rows = ROWS,
                                     .n_columns = COLUMNS,
                                     .rank = RANK,
                                     .x = x.data,
                                     .n_parts = n_parts,
                                     .transposed = transposed,
                                     .scale = 0.75f,
                                     .out = out.data,
                                     .u = has_u ? u.data : NULL};
    double *want = fixture_doubles(out.n), *want_db[MOST];
    for (int i = 0; i < n_parts; ++i) {
        const size_t begin = transposed ? 0 : first[i], n = transposed ? COLUMNS : width[i];
        b[i] = array_normal(n * RANK, dtype, 0.0, 0.2, 33 + (uint64_t)i);
        db[i] = array_normal(n * RANK, dtype, 0.0, 1.0, 35 + (uint64_t)i);
        want_db[i] = fixture_doubles(db[i].n);
        product.parts[i] = (zero_narrow_part_t){begin, n, array_weight(&b[i]), array_grad(&db[i], accumulate)};
        for (size_t r = 0; r < RANK; ++r) {
            const size_t at = (size_t)i * RANK + r, apart = (size_t)n_parts * RANK;
            for (size_t row = 0; row < ROWS; ++row) {
                double sum = 0.0;
                for (size_t c = 0; c < n; ++c)
                    sum += x.values[row * COLUMNS + begin + c] * b[i].values[transposed ? r * n + c : c * RANK + r];
                want[row * apart + at] = 0.75 * sum;
            }
            for (size_t c = 0; c < n; ++c) {
                double sum = accumulate || !has_u ? db[i].values[c * RANK + r] : 0.0;
                for (size_t row = 0; row < ROWS && has_u; ++row)
                    sum += x.values[row * COLUMNS + begin + c] * u.values[row * apart + at];
                want_db[i][c * RANK + r] = sum;
            }
        }
    }
    ck_assert_int_eq(f.kernels->narrow_product(&f.ctx, &product), ZERO_OK);
    array_expect(&out, want, sum_bound(COLUMNS), "out");
    for (int i = 0; i < n_parts; ++i) {
        array_expect(&db[i], want_db[i], sum_bound(ROWS) + fixture_unit(dtype), "db");
        free(want_db[i]);
        array_free(&b[i]), array_free(&db[i]);
    }
    free(want);
    array_free(&x), array_free(&u), array_free(&out);
    fixture_close(&f);
}

START_TEST(narrow_products_equal_fp64)
{
    for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d) {
        check_narrow(_i, true, false, false, fixture_dtypes[d]);
        for (int flags = 0; flags < 4; ++flags)
            check_narrow(_i, false, flags & 1, flags & 2, fixture_dtypes[d]);
    }
}
END_TEST

START_TEST(a_narrow_product_casts_x_as_fp8_cast_does)
{
    enum { ROWS = 32, COLUMNS = 48, RANK = 3 };
    fixture_t f;
    zero_model_limits_t limits = limits_of((shape_t){ROWS, COLUMNS, COLUMNS}, ZERO_BF16);
    limits.narrow_width = RANK;
    limits.fp8 = true;
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(ROWS * COLUMNS, ZERO_FP32, 0.0, 1.0, 41),
            b = array_normal(COLUMNS * RANK, ZERO_BF16, 0.0, 1.0, 42);
    array_t out = array_poison(ROWS * RANK, ZERO_FP32);
    uint8_t rows[2][ROWS * COLUMNS];
    const uint32_t absmax = zero_bits_of_float(9.0f); /* a known one is not measured */
    for (int known = 0; known < 2; known++) {
        zero_fp8_scales_t scales[2] = {{.absmax = absmax}, {.absmax = absmax}};
        const zero_fp8_t x8[2] = {{ZERO_E5M2, rows[0], NULL, &scales[0]}, {ZERO_E5M2, rows[1], NULL, &scales[1]}};
        memset(rows, known, sizeof rows);
        const zero_narrow_product_t product = {.n_rows = ROWS,
                                               .n_columns = COLUMNS,
                                               .rank = RANK,
                                               .x = x.data,
                                               .n_parts = 1,
                                               .parts = {{.width = COLUMNS, .b = array_weight(&b)}},
                                               .scale = 1.0f,
                                               .out = out.data,
                                               .x8 = &x8[0],
                                               .absmax_is_known = known};
        ck_assert_int_eq(f.kernels->narrow_product(&f.ctx, &product), ZERO_OK);
        ck_assert_int_eq(f.kernels->fp8_cast(&f.ctx, &x8[1], x.data, known, ROWS, COLUMNS), ZERO_OK);
        ck_assert_mem_eq(rows[0], rows[1], sizeof rows[0]);
        ck_assert(scales[0].absmax == scales[1].absmax && scales[0].scale == scales[1].scale);
        ck_assert((scales[0].absmax == absmax) == known);
    }
    array_free(&x), array_free(&b), array_free(&out);
    fixture_close(&f);
}
END_TEST

/* ---- Numbers of threads ---- */

typedef struct products {
    array_t y, dx, dweight;
} products_t;

static products_t compute(fixture_t *f, shape_t s, zero_linear_layout_t layout, int n_threads)
{
    array_t x = array_normal(s.n_rows * s.n_in, ZERO_FP32, 0.0, 1.0, 11);
    array_t weight = array_normal(s.n_in * s.n_out, ZERO_FP32, 0.0, 0.2, 12);
    array_t dy = array_normal(s.n_rows * s.n_out, ZERO_FP32, 0.0, 1.0, 13);
    products_t p = {array_poison(dy.n, ZERO_FP32), array_poison(x.n, ZERO_FP32), array_poison(weight.n, ZERO_FP32)};
    const zero_weight_t no_bias = {.dtype = ZERO_FP32};
    const zero_grad_t no_grad = {0};
    omp_set_num_threads(n_threads);
    ck_assert_int_eq(f->kernels->linear(&f->ctx, p.y.data, false, x.data, array_weight(&weight), layout, no_bias,
                                        s.n_rows, s.n_in, s.n_out),
                     ZERO_OK);
    ck_assert_int_eq(f->kernels->linear_backward_input(&f->ctx, p.dx.data, false, dy.data, array_weight(&weight),
                                                       layout, s.n_rows, s.n_in, s.n_out),
                     ZERO_OK);
    ck_assert_int_eq(f->kernels->linear_backward_weight(&f->ctx, array_grad(&p.dweight, false), layout, no_grad, x.data,
                                                        dy.data, s.n_rows, s.n_in, s.n_out),
                     ZERO_OK);
    array_free(&x), array_free(&weight), array_free(&dy);
    return p;
}

static void products_free(products_t *p)
{
    array_free(&p->y), array_free(&p->dx), array_free(&p->dweight);
}

/* Sizes on both sides of what OpenBLAS calls small, 10^6 multiply-adds, whole or cut among few threads; odd ones; ones
 * that no block's extent divides. */
static const shape_t cut_shapes[] = {{99, 100, 101},  {100, 100, 100}, {101, 100, 101}, {64, 256, 96},
                                     {333, 130, 517}, {17, 1030, 259}, {256, 320, 960}, {1, 700, 1500}};

/* What is cut into blocks for other numbers of threads has the same bits. */
START_TEST(the_number_of_threads_does_not_change_bits)
{
    if (zero_model_cpu_bits_depend_on_threads()) {
        printf("SKIP: bits depend on the number of threads on this CPU, since it has no AVX-512\n");
        return;
    }
    int n_threads = omp_get_max_threads();
    for (size_t i = 0; i < sizeof cut_shapes / sizeof cut_shapes[0]; ++i)
        for (int layout = 0; layout < 2; ++layout) {
            fixture_t f;
            zero_model_limits_t limits = limits_of(cut_shapes[i], ZERO_FP32);
            if (!fixture_open(&f, _i, &limits))
                return;
            products_t one = compute(&f, cut_shapes[i], (zero_linear_layout_t)layout, 1);
            for (int n = 2; n <= 8; n += n < 4 ? 1 : 4) { /* 2, 3, 4, 8 */
                products_t other = compute(&f, cut_shapes[i], (zero_linear_layout_t)layout, n);
                array_expect_same_bits(&one.y, &other.y, "y");
                array_expect_same_bits(&one.dx, &other.dx, "dx");
                array_expect_same_bits(&one.dweight, &other.dweight, "dweight");
                products_free(&other);
            }
            products_free(&one);
            fixture_close(&f);
        }
    omp_set_num_threads(n_threads);
}
END_TEST

static void for_every_case(int isa, void (*check)(int, shape_t, zero_dtype_t, zero_linear_layout_t, bool))
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int flags = 0; flags < 4; ++flags)
                check(isa, shapes[s], fixture_dtypes[d], flags & 1 ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT,
                      (flags & 2) != 0);
}

START_TEST(forward_equals_fp64)
{
    for_every_case(_i, check_forward);
}
END_TEST

START_TEST(input_gradient_equals_fp64)
{
    for_every_case(_i, check_backward_input);
}
END_TEST

START_TEST(weight_and_bias_gradients_equal_fp64)
{
    for_every_case(_i, check_backward_weight);
}
END_TEST

START_TEST(weight_gradient_without_bias_touches_nothing_else)
{
    fixture_t f;
    shape_t s = {5, 3, 4};
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t x = array_normal(15, ZERO_FP32, 0.0, 1.0, 1), dy = array_normal(20, ZERO_FP32, 0.0, 1.0, 2);
    array_t dweight = array_poison(12, ZERO_FP32);
    zero_grad_t none = {NULL, ZERO_FP32, false};
    ck_assert_int_eq(f.kernels->linear_backward_weight(&f.ctx, array_grad(&dweight, false), ZERO_LINEAR_IN_OUT, none,
                                                       x.data, dy.data, s.n_rows, s.n_in, s.n_out),
                     ZERO_OK);
    for (size_t i = 0; i < dweight.n; ++i)
        ck_assert(isfinite(array_get(&dweight, i)));
    array_free(&x), array_free(&dy), array_free(&dweight);
    fixture_close(&f);
}
END_TEST

/* A call beyond the limits returns a status and does not write past the workspace. */
START_TEST(workspace_too_small_is_refused)
{
    fixture_t f;
    shape_t s = {5, 3, 4};
    zero_model_limits_t limits = limits_of(s, ZERO_BF16);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t weight = array_normal(300 * 400, ZERO_BF16, 0.0, 1.0, 1), x = array_normal(300, ZERO_FP32, 0.0, 1.0, 2);
    array_t y = array_poison(400, ZERO_FP32);
    ck_assert_int_eq(f.kernels->linear(&f.ctx, y.data, false, x.data, array_weight(&weight), ZERO_LINEAR_IN_OUT,
                                       (zero_weight_t){.data = NULL, .dtype = ZERO_BF16}, 1, 300, 400),
                     ZERO_ERROR_ARGUMENT);
    array_free(&weight), array_free(&x), array_free(&y);
    fixture_close(&f);
}
END_TEST

/* ---- Allocations ---- */

static bool allocations_are_counted(void)
{
    allocations_start();
    void *volatile block = malloc(1);
    free(block);
    return allocations_stop() == 1;
}

/* Widths around the limits of OpenBLAS's small kernels, 16 columns and 32 products, in both layouts, so that either
 * operand is transposed or not. Only for the instruction set that this machine uses, since OpenBLAS differs by machine.
 */
START_TEST(matrix_products_allocate_nothing)
{
    static const size_t rows[] = {1, 17, 40}, inner[] = {1, 16, 31, 32, 33, 108, 513};
    enum { N_ROWS = sizeof rows / sizeof *rows, N_INNER = sizeof inner / sizeof *inner, WIDEST = 50 };
    shape_t largest = {40, 513, WIDEST};
    zero_model_limits_t limits = limits_of(largest, ZERO_FP32);
    fixture_t f;
    if (zero_model_kernels_cpu_named(fixture_isas[_i]) != zero_model_kernels_cpu())
        return;
    if (!allocations_are_counted()) {
        printf("SKIP: this build's allocator is not ours to count\n");
        return;
    }
    ck_assert(fixture_open(&f, _i, &limits));
    zero_weight_t no_bias = {.dtype = ZERO_FP32};
    array_t x = array_normal(largest.n_rows * largest.n_in, ZERO_FP32, 0.0, 1.0, 1), y = array_poison(x.n, ZERO_FP32);
    array_t weight = array_normal(limits.max_linear, ZERO_FP32, 0.0, 1.0, 2);
    for (size_t i = 0; i < (size_t)N_ROWS * N_INNER * WIDEST * 2; ++i) {
        zero_linear_layout_t layout = i % 2 ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT;
        size_t n = i / 2 % WIDEST + 1, k = inner[i / 2 / WIDEST % N_INNER], m = rows[i / 2 / WIDEST / N_INNER];
        /* The first call creates threads and OpenBLAS's packing buffers, which stay. */
        for (int run = 0; run < 2; ++run) {
            allocations_start();
            f.kernels->linear(&f.ctx, y.data, false, x.data, array_weight(&weight), layout, no_bias, m, k, n);
            f.kernels->linear_backward_input(&f.ctx, y.data, false, x.data, array_weight(&weight), layout, m, n, k);
        }
        unsigned long count = allocations_stop();
        ck_assert_msg(count == 0, "%zu x %zu x %zu, layout %d: %lu allocations", m, n, k, layout, count);
    }
    array_free(&x), array_free(&y), array_free(&weight);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, the_number_of_threads_does_not_change_bits, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, input_gradient_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, weight_and_bias_gradients_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, products_of_strided_matrices_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, narrow_products_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_narrow_product_casts_x_as_fp8_cast_does, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, weight_gradient_without_bias_touches_nothing_else, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, workspace_too_small_is_refused, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, matrix_products_allocate_nothing, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("linear", add_tests);
}
