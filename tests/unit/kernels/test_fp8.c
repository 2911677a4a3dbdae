/* test_fp8.c - fp8 against its definition written with ldexp and a search for the nearest number: all bytes, every
 * place where rounding turns, scales, casts of matrices from every dtype; and products against fp64. */
#include "kernels/float_bits.h"
#include "tests/support/model_fixture.h"

/* ---- The formats by their definition ---- */

typedef struct format {
    zero_fp8_format_t name;
    int mantissa_bits, bias, largest; /* largest: the byte of the largest number */
} format_t;

static const format_t formats[] = {{ZERO_E4M3, 3, 7, 0x7e}, {ZERO_E5M2, 2, 15, 0x7b}};
#define N_FORMATS 2

static double value_of(const format_t *f, uint8_t byte)
{
    int exponent = (byte & 0x7f) >> f->mantissa_bits, mantissa = byte & ((1 << f->mantissa_bits) - 1);
    double magnitude = exponent == 0 ? ldexp(mantissa, 1 - f->bias - f->mantissa_bits)
                                     : ldexp(mantissa + (1 << f->mantissa_bits), exponent - f->bias - f->mantissa_bits);
    if ((byte & 0x7f) > f->largest)
        magnitude = f->name == ZERO_E5M2 && (byte & 0x7f) == 0x7c ? (double)INFINITY : (double)NAN;
    return byte & 0x80 ? -magnitude : magnitude;
}

/* The byte whose number is nearest to x; of two, the even one. */
static uint8_t nearest(const format_t *f, double x)
{
    int below = 0, above = f->largest;
    if (isnan(x))
        return 0x7f;
    while (below + 1 < above) {
        int middle = (below + above) / 2;
        if (value_of(f, (uint8_t)middle) <= fabs(x))
            below = middle;
        else
            above = middle;
    }
    double under = fabs(x) - value_of(f, (uint8_t)below), over = value_of(f, (uint8_t)above) - fabs(x);
    int byte = under < over || (under == over && below % 2 == 0) ? below : above;
    return (uint8_t)(byte | (signbit(x) ? 0x80 : 0));
}

/* The largest power of two up to 2^126 that takes absmax into the range. */
static double scale_for(const format_t *f, double absmax)
{
    int exponent = 126;
    if (absmax == 0.0 || !isfinite(absmax))
        return 1.0;
    while (ldexp(absmax, exponent) > value_of(f, (uint8_t)f->largest))
        --exponent;
    return ldexp(1.0, exponent);
}

START_TEST(every_byte_is_the_number_of_its_definition)
{
    for (int f = 0; f < N_FORMATS; ++f)
        for (int byte = 0; byte < 256; ++byte) {
            double want = value_of(&formats[f], (uint8_t)byte);
            float is = zero_float_of_fp8(formats[f].name, (uint8_t)byte);
            ck_assert_msg(isnan(want) ? isnan(is) : (double)is == want && !signbit(is) == !signbit(want),
                          "byte %02x of format %d is %g, not %g", (unsigned)byte, f, (double)is, want);
        }
}
END_TEST

START_TEST(scales_are_the_largest_powers_of_two_that_stay_in_range)
{
    static const uint32_t mantissas[] = {0, 1, 0x5fffff, 0x600000, 0x600001, 0x7fffff};
    for (int f = 0; f < N_FORMATS; ++f)
        for (uint32_t exponent = 0; exponent < 255; ++exponent)
            for (size_t m = 0; m < sizeof mantissas / sizeof *mantissas; ++m) {
                float absmax = zero_float_of_bits(exponent << 23 | mantissas[m]);
                double want = scale_for(&formats[f], (double)absmax);
                zero_fp8_scales_t is = zero_fp8_scales_of(formats[f].name, zero_bits_of_float(absmax));
                ck_assert_msg((double)is.scale == want && (double)is.inverse == 1.0 / want, "%a: %a, not %a",
                              (double)absmax, (double)is.scale, want);
            }
}
END_TEST

/* ---- Casts ---- */

static uint8_t *bytes_new(size_t n)
{
    uint8_t *bytes = malloc(n);
    ck_assert(bytes != NULL);
    memset(bytes, 0xaa, n);
    return bytes;
}

static zero_model_limits_t limits_of(size_t n_rows, size_t n_in, size_t n_out, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = n_rows,
                                 .seq_len = 1,
                                 .max_linear = n_in * n_out,
                                 .max_width = n_in > n_out ? n_in : n_out,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = 1,
                                 .dtype = dtype,
                                 .fp8 = true};
}

/* Appends x and what is next to it, of both signs. */
static size_t put_neighbours(float *out, size_t at, float x)
{
    const float near[] = {x, nextafterf(x, 0.0f), nextafterf(x, INFINITY)};
    for (int i = 0; i < 3; ++i) {
        out[at++] = near[i];
        out[at++] = -near[i];
    }
    return at;
}

#define N_SPECIAL ((size_t)16 * 112)
#define N_RANDOM ((size_t)16 * 4096)

/* All numbers of the format, all midpoints between them, their neighbours, what is beyond the range; random bits. */
static float *floats_of_all_kinds(const format_t *f)
{
    static const float beyond[] = {0.0f, 464.0f, 480.0f, 61440.0f, 65536.0f, 1e30f, 3.4e38f, INFINITY, 1e-40f, 1e-20f};
    float *x = malloc((N_SPECIAL + N_RANDOM) * sizeof *x);
    size_t at = 0;
    uint64_t seed = 11;
    ck_assert(x != NULL);
    for (int byte = 0; byte < f->largest; ++byte) {
        double below = value_of(f, (uint8_t)byte), above = value_of(f, (uint8_t)(byte + 1));
        at = put_neighbours(x, at, (float)above);
        at = put_neighbours(x, at, (float)((below + above) / 2.0));
    }
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; ++i)
        at = put_neighbours(x, at, beyond[i]);
    x[at++] = NAN;
    x[at++] = -NAN;
    ck_assert_uint_le(at, N_SPECIAL);
    while (at < N_SPECIAL + N_RANDOM)
        x[at++] = zero_float_of_bits((uint32_t)support_random(&seed));
    return x;
}

START_TEST(casts_round_to_nearest_even_and_saturate)
{
    fixture_t f;
    size_t n = N_SPECIAL + N_RANDOM;
    zero_model_limits_t limits = limits_of(16, 16, 16, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    for (int i = 0; i < N_FORMATS; ++i) {
        float *x = floats_of_all_kinds(&formats[i]);
        uint8_t *bytes = bytes_new(n);
        zero_fp8_scales_t scales = {.absmax =
                                        zero_bits_of_float((float)value_of(&formats[i], (uint8_t)formats[i].largest))};
        zero_fp8_t x8 = {formats[i].name, bytes, NULL, &scales};
        ck_assert_int_eq(f.kernels->fp8_cast(&f.ctx, &x8, x, true, n / 16, 16), ZERO_OK);
        ck_assert(scales.scale == 1.0f && scales.inverse == 1.0f);
        for (size_t j = 0; j < n; ++j)
            ck_assert_msg(bytes[j] == nearest(&formats[i], (double)x[j]), "format %d: %a is %02x, not %02x", i,
                          (double)x[j], bytes[j], nearest(&formats[i], (double)x[j]));
        free(x), free(bytes);
    }
    fixture_close(&f);
}
END_TEST

typedef struct extents {
    size_t n_rows, n_columns;
} extents_t;

static void expect_bytes(const format_t *format, const array_t *x, const zero_fp8_t *x8, extents_t e)
{
    double absmax = 0.0;
    for (size_t i = 0; i < x->n; ++i)
        absmax = fmax(absmax, fabs(x->values[i]));
    double scale = scale_for(format, absmax);
    ck_assert((double)x8->scales->scale == scale && (double)x8->scales->inverse == 1.0 / scale);
    ck_assert((double)zero_float_of_bits(x8->scales->absmax) == absmax);
    for (size_t row = 0; row < e.n_rows; ++row)
        for (size_t column = 0; column < e.n_columns; ++column) {
            size_t at = row * e.n_columns + column;
            uint8_t want = nearest(format, x->values[at] * scale);
            if (x8->rows != NULL)
                ck_assert_uint_eq(x8->rows[at], want);
            if (x8->columns != NULL)
                ck_assert_uint_eq(x8->columns[column * e.n_rows + row], want);
        }
}

static void check_cast(const fixture_t *f, const format_t *format, zero_dtype_t dtype, extents_t e, double std)
{
    size_t n = e.n_rows * e.n_columns;
    array_t x = array_normal(n, dtype, 0.0, std, n);
    uint8_t *rows = bytes_new(n), *columns = bytes_new(n), *transposed = bytes_new(n);
    zero_fp8_scales_t scales[3];
    const zero_fp8_t both = {format->name, rows, columns, &scales[0]};
    zero_model_context_t ctx = f->ctx;
    ck_assert_int_eq(f->kernels->fp8_cast_weight(&ctx, &both, array_weight(&x), false, e.n_rows, e.n_columns), ZERO_OK);
    expect_bytes(format, &x, &both, e);
    ck_assert_int_eq(f->kernels->fp8_transpose(&ctx, transposed, rows, e.n_rows, e.n_columns), ZERO_OK);
    ck_assert_int_eq(memcmp(transposed, columns, n), 0);
    memset(rows, 0xaa, n), memset(columns, 0xaa, n);
    const zero_fp8_t only_rows = {format->name, rows, NULL, &scales[1]};
    const zero_fp8_t only_columns = {format->name, NULL, columns, &scales[2]};
    ck_assert_int_eq(f->kernels->fp8_cast_weight(&ctx, &only_rows, array_weight(&x), false, e.n_rows, e.n_columns),
                     ZERO_OK);
    ck_assert_int_eq(f->kernels->fp8_cast_weight(&ctx, &only_columns, array_weight(&x), false, e.n_rows, e.n_columns),
                     ZERO_OK);
    expect_bytes(format, &x, &only_rows, e);
    expect_bytes(format, &x, &only_columns, e);
    array_free(&x), free(rows), free(columns), free(transposed);
}

START_TEST(matrices_are_cast_in_both_orientations_with_the_scale_of_their_maximum)
{
    static const extents_t extents[] = {{16, 16}, {48, 80}, {64, 128}, {272, 144}};
    static const double stds[] = {1.0, 3e-7, 2e4};
    fixture_t f;
    zero_model_limits_t limits = limits_of(16, 16, 16, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    for (size_t e = 0; e < sizeof extents / sizeof *extents; ++e)
        for (int format = 0; format < N_FORMATS; ++format)
            for (size_t dtype = 0; dtype < FIXTURE_N_DTYPES; ++dtype)
                for (size_t std = 0; std < (fixture_dtypes[dtype] == ZERO_FP16 ? 1 : 3); ++std)
                    check_cast(&f, &formats[format], fixture_dtypes[dtype], extents[e], stds[std]);
    fixture_close(&f);
}
END_TEST

START_TEST(a_matrix_of_zeros_has_scale_1_and_one_that_is_not_finite_makes_products_nan)
{
    static const float worst[] = {0.0f, INFINITY, -INFINITY, NAN};
    fixture_t f;
    zero_model_limits_t limits = limits_of(16, 16, 16, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    for (int i = 0; i < 4; ++i) {
        float x[256] = {[77] = worst[i]}, y[256];
        uint8_t bytes[256];
        zero_fp8_scales_t scales;
        zero_fp8_t x8 = {ZERO_E4M3, bytes, NULL, &scales};
        ck_assert_int_eq(f.kernels->fp8_cast(&f.ctx, &x8, x, false, 16, 16), ZERO_OK);
        ck_assert(scales.scale == 1.0f && (i == 0 ? scales.inverse == 1.0f : isnan(scales.inverse)));
        ck_assert_uint_eq(bytes[77], nearest(&formats[0], (double)worst[i]));
        ck_assert_int_eq(
            f.kernels->linear_fp8(&f.ctx, y, false, &x8, &x8, ZERO_LINEAR_OUT_IN, (zero_weight_t){0}, 16, 16, 16),
            ZERO_OK);
        for (int j = 0; j < 256; ++j)
            ck_assert(i == 0 ? y[j] == 0.0f : isnan(y[j]));
    }
    fixture_close(&f);
}
END_TEST

/* ---- Products ---- */

/* A random matrix in both orientations, and the numbers that its bytes stand for. */
typedef struct matrix {
    zero_fp8_t x8;
    zero_fp8_scales_t scales;
    double *values; /* [n_rows, n_columns] */
} matrix_t;

static void matrix_open(matrix_t *m, const format_t *format, size_t n_rows, size_t n_columns, double std, uint64_t seed)
{
    size_t n = n_rows * n_columns;
    m->x8 = (zero_fp8_t){format->name, bytes_new(n), bytes_new(n), &m->scales};
    m->scales = (zero_fp8_scales_t){.scale = 64.0f / (float)std, .inverse = (float)std / 64.0f};
    m->values = fixture_doubles(n);
    for (size_t i = 0; i < n; ++i) {
        uint8_t byte = nearest(format, 64.0 * support_normal(&seed));
        m->x8.rows[i] = m->x8.columns[i % n_columns * n_rows + i / n_columns] = byte;
        m->values[i] = value_of(format, byte) * (double)m->scales.inverse;
    }
}

static void matrix_close(matrix_t *m)
{
    free(m->x8.rows), free(m->x8.columns), free(m->values);
}

/* As in test_linear.c; the values themselves are exact. */
static double sum_bound(size_t k)
{
    return 4.0 * sqrt((double)k + 4.0) * 0x1p-24;
}

/* One linear layer's operands. Products may read only the orientation that they say, so the other one is withheld. */
typedef struct layer {
    fixture_t f;
    size_t n_rows, n_in, n_out;
    zero_linear_layout_t layout;
    matrix_t x, w, dy;
} layer_t;

static double weight_at(const layer_t *l, size_t in, size_t out)
{
    return l->w.values[l->layout == ZERO_LINEAR_IN_OUT ? in * l->n_out + out : out * l->n_in + in];
}

static zero_fp8_t rows_of(zero_fp8_t x8)
{
    x8.columns = NULL;
    return x8;
}

static zero_fp8_t columns_of(zero_fp8_t x8)
{
    x8.rows = NULL;
    return x8;
}

static void check_forward(layer_t *l, zero_dtype_t dtype, bool with_bias)
{
    array_t y = array_poison(l->n_rows * l->n_out, ZERO_FP32), bias = array_normal(l->n_out, dtype, 0.0, 1.0, 3);
    zero_fp8_t x8 = rows_of(l->x.x8), w8 = l->layout == ZERO_LINEAR_OUT_IN ? rows_of(l->w.x8) : columns_of(l->w.x8);
    double *want = fixture_doubles(y.n);
    for (size_t i = 0; i < y.n; ++i) {
        want[i] = with_bias ? bias.values[i % l->n_out] : 0.0;
        for (size_t k = 0; k < l->n_in; ++k)
            want[i] += l->x.values[i / l->n_out * l->n_in + k] * weight_at(l, k, i % l->n_out);
    }
    ck_assert_int_eq(
        l->f.kernels->linear_fp8(&l->f.ctx, y.data, false, &x8, &w8, l->layout,
                                 with_bias ? array_weight(&bias) : (zero_weight_t){.data = NULL, .dtype = dtype},
                                 l->n_rows, l->n_in, l->n_out),
        ZERO_OK);
    array_expect(&y, want, sum_bound(l->n_in), "y");
    ck_assert_int_eq(l->f.kernels->linear_fp8(&l->f.ctx, y.data, true, &x8, &w8, l->layout, (zero_weight_t){0},
                                              l->n_rows, l->n_in, l->n_out),
                     ZERO_OK);
    for (size_t i = 0; i < y.n; ++i)
        want[i] = 2.0 * want[i] - (with_bias ? bias.values[i % l->n_out] : 0.0);
    array_expect(&y, want, sum_bound(l->n_in), "y, added to y");
    array_free(&y), array_free(&bias), free(want);
}

static void check_backward_input(layer_t *l)
{
    array_t dx = array_poison(l->n_rows * l->n_in, ZERO_FP32);
    zero_fp8_t dy8 = rows_of(l->dy.x8), w8 = l->layout == ZERO_LINEAR_OUT_IN ? columns_of(l->w.x8) : rows_of(l->w.x8);
    double *want = fixture_doubles(dx.n);
    for (size_t i = 0; i < dx.n; ++i)
        for (size_t k = 0; k < l->n_out; ++k)
            want[i] += l->dy.values[i / l->n_in * l->n_out + k] * weight_at(l, i % l->n_in, k);
    ck_assert_int_eq(l->f.kernels->linear_fp8_backward_input(&l->f.ctx, dx.data, false, &dy8, &w8, l->layout, l->n_rows,
                                                             l->n_in, l->n_out),
                     ZERO_OK);
    array_expect(&dx, want, sum_bound(l->n_out), "dx");
    ck_assert_int_eq(l->f.kernels->linear_fp8_backward_input(&l->f.ctx, dx.data, true, &dy8, &w8, l->layout, l->n_rows,
                                                             l->n_in, l->n_out),
                     ZERO_OK);
    for (size_t i = 0; i < dx.n; ++i)
        want[i] *= 2.0;
    array_expect(&dx, want, sum_bound(l->n_out), "dx, added to dx");
    array_free(&dx), free(want);
}

static void check_backward_weight(layer_t *l, zero_dtype_t dtype, bool accumulate)
{
    array_t dweight = array_grad_target(l->n_in * l->n_out, dtype, accumulate, 9);
    zero_fp8_t x8 = columns_of(l->x.x8), dy8 = columns_of(l->dy.x8);
    double *want = fixture_doubles(dweight.n);
    for (size_t i = 0; i < dweight.n; ++i) {
        bool in_out = l->layout == ZERO_LINEAR_IN_OUT;
        size_t in = in_out ? i / l->n_out : i % l->n_in, out = in_out ? i % l->n_out : i / l->n_in;
        want[i] = accumulate ? dweight.values[i] : 0.0;
        for (size_t k = 0; k < l->n_rows; ++k)
            want[i] += l->x.values[k * l->n_in + in] * l->dy.values[k * l->n_out + out];
    }
    ck_assert_int_eq(l->f.kernels->linear_fp8_backward_weight(&l->f.ctx, array_grad(&dweight, accumulate), l->layout,
                                                              &x8, &dy8, l->n_rows, l->n_in, l->n_out),
                     ZERO_OK);
    array_expect(&dweight, want, sum_bound(l->n_rows) + fixture_unit(dtype), "dweight");
    array_free(&dweight), free(want);
}

START_TEST(products_equal_fp64)
{
    static const size_t shapes[][3] = {{16, 16, 16}, {48, 80, 112}, {32, 272, 144}};
    for (size_t s = 0; s < 3; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int flags = 0; flags < 4; ++flags) {
                layer_t l = {.n_rows = shapes[s][0], .n_in = shapes[s][1], .n_out = shapes[s][2]};
                zero_model_limits_t limits = limits_of(l.n_rows, l.n_in, l.n_out, fixture_dtypes[d]);
                if (!fixture_open(&l.f, _i, &limits))
                    return;
                l.layout = flags & 1 ? ZERO_LINEAR_OUT_IN : ZERO_LINEAR_IN_OUT;
                matrix_open(&l.x, &formats[0], l.n_rows, l.n_in, 1.0, 1);
                bool in_out = l.layout == ZERO_LINEAR_IN_OUT;
                matrix_open(&l.w, &formats[0], in_out ? l.n_in : l.n_out, in_out ? l.n_out : l.n_in, 0.0625, 2);
                matrix_open(&l.dy, &formats[1], l.n_rows, l.n_out, 0.25, 3);
                check_forward(&l, fixture_dtypes[d], flags & 2);
                check_backward_input(&l);
                check_backward_weight(&l, fixture_dtypes[d], flags & 2);
                matrix_close(&l.x), matrix_close(&l.w), matrix_close(&l.dy);
                fixture_close(&l.f);
            }
}
END_TEST

/* ---- What is refused ---- */

START_TEST(extents_that_are_no_multiples_of_16_are_refused)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(32, 32, 32, ZERO_FP32);
    float x[1024] = {0}, y[1024];
    uint8_t bytes[1024];
    zero_fp8_scales_t scales = {.inverse = 1.0f, .scale = 1.0f};
    zero_fp8_t x8 = {ZERO_E4M3, bytes, bytes, &scales};
    if (!fixture_open(&f, _i, &limits))
        return;
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 3; ++i) {
        size_t r = i == 0 ? 24 : 32, in = i == 1 ? 24 : 32, out = i == 2 ? 24 : 32;
        ck_assert_int_eq(
            f.kernels->linear_fp8(&f.ctx, y, false, &x8, &x8, ZERO_LINEAR_OUT_IN, (zero_weight_t){0}, r, in, out),
            ZERO_ERROR_UNSUPPORTED);
        ck_assert_int_eq(
            f.kernels->linear_fp8_backward_input(&f.ctx, y, false, &x8, &x8, ZERO_LINEAR_OUT_IN, r, in, out),
            ZERO_ERROR_UNSUPPORTED);
        ck_assert_int_eq(f.kernels->linear_fp8_backward_weight(&f.ctx, (zero_grad_t){y, ZERO_FP32, false},
                                                               ZERO_LINEAR_OUT_IN, &x8, &x8, r, in, out),
                         ZERO_ERROR_UNSUPPORTED);
    }
    ck_assert_int_eq(f.kernels->fp8_cast(&f.ctx, &x8, x, false, 32, 24), ZERO_ERROR_UNSUPPORTED);
    ck_assert_int_eq(f.kernels->fp8_cast(&f.ctx, &x8, x, false, 24, 32), ZERO_ERROR_UNSUPPORTED);
    ck_assert_int_eq(f.kernels->fp8_transpose(&f.ctx, bytes, bytes, 32, 24), ZERO_ERROR_UNSUPPORTED);
    fixture_close(&f);
}
END_TEST

START_TEST(an_operand_that_was_not_cast_as_the_product_reads_it_is_refused)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(16, 16, 16, ZERO_FP32);
    float y[256];
    uint8_t bytes[256] = {0};
    zero_fp8_scales_t scales = {.inverse = 1.0f, .scale = 1.0f};
    zero_fp8_t rows = {ZERO_E4M3, bytes, NULL, &scales}, columns = {ZERO_E4M3, NULL, bytes, &scales};
    if (!fixture_open(&f, _i, &limits))
        return;
    ck_assert_int_eq(
        f.kernels->linear_fp8(&f.ctx, y, false, &columns, &rows, ZERO_LINEAR_OUT_IN, (zero_weight_t){0}, 16, 16, 16),
        ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(
        f.kernels->linear_fp8_backward_input(&f.ctx, y, false, &rows, &rows, ZERO_LINEAR_OUT_IN, 16, 16, 16),
        ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(f.kernels->linear_fp8_backward_weight(&f.ctx, (zero_grad_t){y, ZERO_FP32, false},
                                                           ZERO_LINEAR_OUT_IN, &rows, &columns, 16, 16, 16),
                     ZERO_ERROR_ARGUMENT);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_test(tests, every_byte_is_the_number_of_its_definition);
    tcase_add_test(tests, scales_are_the_largest_powers_of_two_that_stay_in_range);
    tcase_add_loop_test(tests, casts_round_to_nearest_even_and_saturate, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, matrices_are_cast_in_both_orientations_with_the_scale_of_their_maximum, 0,
                        FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, a_matrix_of_zeros_has_scale_1_and_one_that_is_not_finite_makes_products_nan, 0,
                        FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, products_equal_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, extents_that_are_no_multiples_of_16_are_refused, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, an_operand_that_was_not_cast_as_the_product_reads_it_is_refused, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("fp8", add_tests);
}
