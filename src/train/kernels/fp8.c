/* fp8.c - linear layers in fp8 on the CPU: the bytes that a GPU computes with, and products of their values in fp32.
 *
 * Bytes are cast by float_bits.h, like those of every device. For a product they are turned back into fp32, times their
 * inverse scale, which is exact since that is a power of two. The rest is linear.c's product.
 */
#include "train/kernels/kernels_cpu.h"

#include "kernels/float_bits.h"
#include "train/kernels/common.h"

#define TILE ((size_t)64) /* elements that are transposed at a time, in rows and in columns */

size_t ZERO_MODEL_FN(fp8_workspace)(const zero_model_limits_t *limits)
{
    if (!limits->fp8)
        return 0;
    size_t activation = zero_scratch_bytes(limits->n_rows * limits->max_width * sizeof(float));
    size_t weight = zero_scratch_bytes(limits->max_linear * sizeof(float)); /* or the sum of its gradient */
    return 2 * activation + weight + zero_scratch_bytes(limits->max_width * sizeof(float));
}

bool ZERO_MODEL_FN(fp8_is_available)(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY])
{
    (void)ctx;
    why[0] = '\0';
    return true;
}

/* ---- Casts ---- */

static uint32_t absmax_of(zero_weight_t x, size_t n_elems)
{
    uint32_t largest = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) if (n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t first = 0; first < n_elems; first += ZERO_CAST_BLOCK) {
        float values[ZERO_CAST_BLOCK];
        size_t n = n_elems - first < ZERO_CAST_BLOCK ? n_elems - first : ZERO_CAST_BLOCK;
        zero_read_fp32(values, x, first, n);
        for (size_t i = 0; i < n; ++i) {
            uint32_t magnitude = zero_fp8_magnitude(values[i]);
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    return largest;
}

void ZERO_ISA(zero_model_raise_absmax)(const zero_model_context_t *ctx, const float *x, size_t n_elems)
{
    if (ctx->absmax == NULL)
        return;
    uint32_t largest = absmax_of((zero_weight_t){.data = x, .dtype = ZERO_FP32}, n_elems);
    *ctx->absmax = largest > *ctx->absmax ? largest : *ctx->absmax;
}

static void cast_elements(zero_fp8_format_t format, uint8_t *out, const float *x, float scale, size_t n)
{
    if (format == ZERO_E4M3)
        for (size_t i = 0; i < n; ++i)
            out[i] = zero_fp8_of_float(ZERO_E4M3, x[i] * scale);
    else
        for (size_t i = 0; i < n; ++i)
            out[i] = zero_fp8_of_float(ZERO_E5M2, x[i] * scale);
}

/* Writes a tile of m x n bytes, whose rows have stride TILE, transposed; rows of `columns` have stride ld. */
static void write_transposed(uint8_t *columns, size_t ld, const uint8_t *tile, size_t m, size_t n)
{
    for (size_t column = 0; column < n; ++column)
        for (size_t row = 0; row < m; ++row)
            columns[column * ld + row] = tile[row * TILE + column];
}

/* Casts a tile of m x n elements. */
static void cast_tile(const zero_fp8_t *x8, zero_weight_t x, size_t n_rows, size_t n_columns, size_t first_row,
                      size_t first_column, size_t m, size_t n)
{
    uint8_t tile[TILE * TILE];
    float values[TILE];
    for (size_t row = 0; row < m; ++row) {
        size_t at = (first_row + row) * n_columns + first_column;
        zero_read_fp32(values, x, at, n);
        cast_elements(x8->format, tile + row * TILE, values, x8->scales->scale, n);
        if (x8->rows != NULL)
            memcpy(x8->rows + at, tile + row * TILE, n);
    }
    if (x8->columns != NULL)
        write_transposed(x8->columns + first_column * n_rows + first_row, n_rows, tile, m, n);
}

zero_status_t ZERO_MODEL_FN(fp8_cast_weight)(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                             bool absmax_is_known, size_t n_rows, size_t n_columns)
{
    (void)ctx;
    ZERO_TRY(zero_fp8_check_matrix(n_rows, n_columns));
    uint32_t absmax = absmax_is_known ? w8->scales->absmax : absmax_of(weight, n_rows * n_columns);
    *w8->scales = zero_fp8_scales_of(w8->format, absmax);
#pragma omp parallel for schedule(static) collapse(2) if (n_rows * n_columns >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; row += TILE)
        for (size_t column = 0; column < n_columns; column += TILE)
            cast_tile(w8, weight, n_rows, n_columns, row, column, n_rows - row < TILE ? n_rows - row : TILE,
                      n_columns - column < TILE ? n_columns - column : TILE);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(fp8_cast)(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x,
                                      bool absmax_is_known, size_t n_rows, size_t n_columns)
{
    return ZERO_MODEL_FN(fp8_cast_weight)(ctx, x8, (zero_weight_t){.data = x, .dtype = ZERO_FP32}, absmax_is_known,
                                          n_rows, n_columns);
}

zero_status_t ZERO_MODEL_FN(fp8_widen)(zero_model_context_t *ctx, void *weight, zero_fp8_param_t bytes, size_t n_elems)
{
    uint16_t *out = weight;
    (void)ctx;
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        out[i] = zero_bf16_of_float(zero_float_of_fp8(ZERO_E4M3, bytes.data[i]) * bytes.scales->inverse);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(fp8_transpose)(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows,
                                           size_t n_rows, size_t n_columns)
{
    (void)ctx;
    ZERO_TRY(zero_fp8_check_matrix(n_rows, n_columns));
#pragma omp parallel for schedule(static) if (n_rows * n_columns >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t column = 0; column < n_columns; ++column)
        for (size_t row = 0; row < n_rows; ++row)
            columns[column * n_rows + row] = rows[row * n_columns + column];
    return ZERO_OK;
}

/* ---- Products ---- */

/* Sets *out to n_elems values in scratch. */
static zero_status_t decode(zero_scratch_t *scratch, const zero_fp8_operand_t *operand, size_t n_elems,
                            const float **out)
{
    float value[256], *values;
    for (int byte = 0; byte < 256; ++byte)
        value[byte] = zero_float_of_fp8(operand->format, (uint8_t)byte) * operand->scales->inverse;
    ZERO_TRY(zero_scratch_alloc(scratch, n_elems * sizeof *values, &values));
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        values[i] = value[operand->bytes[i]];
    *out = values;
    return ZERO_OK;
}

/* Computes c[m, n] = a b^T + beta c + bias[n] (NULL: none). */
static zero_status_t multiply(zero_scratch_t *scratch, const zero_fp8_product_t *product, float *c, float beta,
                              const float *bias)
{
    zero_gemm_t gemm = {CblasNoTrans,    CblasTrans,        .m = product->m,   .n = product->n,
                        .k = product->k, .lda = product->k, .ldb = product->k, .beta = beta,
                        .c = c,          .ldc = product->n, .bias = bias};
    size_t largest = product->m > product->n ? product->m : product->n;
    ZERO_TRY(zero_check_blas_size(largest > product->k ? largest : product->k));
    ZERO_TRY(decode(scratch, &product->a, product->m * product->k, &gemm.a));
    ZERO_TRY(decode(scratch, &product->b, product->n * product->k, &gemm.b));
    ZERO_ISA(zero_model_gemm)(&gemm);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(linear_fp8)(zero_model_context_t *ctx, void *y, bool accumulate, const zero_fp8_t *x8,
                                        const zero_fp8_t *w8, zero_linear_layout_t layout, zero_weight_t bias,
                                        size_t n_rows, size_t n_in, size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_fp8_product_t product;
    const float *bias_fp32 = NULL;
    ZERO_ASSERT(!accumulate || bias.data == NULL);
    ZERO_TRY(zero_fp8_forward(&product, x8, w8, layout, n_rows, n_in, n_out));
    if (bias.data != NULL)
        ZERO_TRY(zero_weight_fp32(&scratch, bias, n_out, &bias_fp32));
    return multiply(&scratch, &product, y, accumulate ? 1.0f : 0.0f, bias_fp32);
}

zero_status_t ZERO_MODEL_FN(linear_fp8_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate,
                                                       const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                                       zero_linear_layout_t layout, size_t n_rows, size_t n_in,
                                                       size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_fp8_product_t product;
    ZERO_TRY(zero_fp8_backward_input(&product, dy8, w8, layout, n_rows, n_in, n_out));
    return multiply(&scratch, &product, dx, accumulate ? 1.0f : 0.0f, NULL);
}

zero_status_t ZERO_MODEL_FN(linear_fp8_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight,
                                                        zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                        const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_fp8_product_t product;
    zero_grad_sum_t sum;
    ZERO_TRY(zero_fp8_backward_weight(&product, layout, x8, dy8, n_rows, n_in, n_out));
    ZERO_TRY(zero_grad_sum_begin(&scratch, dweight, n_in * n_out, &sum));
    ZERO_TRY(multiply(&scratch, &product, sum.data, sum.beta, NULL));
    zero_grad_sum_end(&sum, dweight, n_in * n_out);
    return ZERO_OK;
}
