/* linear.c - linear layers on the CPU: three matrix products by OpenBLAS, with one block of the output per thread.
 *
 * A block is one single-threaded sgemm over the whole inner extent, so its elements are summed in one fixed order, and
 * the same number of threads gives the same bits. With OpenBLAS's AVX-512 kernels any number does: they sum every
 * element in the same order, whatever the block, if blocks begin at multiples of GEMM_TILE and are too large for the
 * kernels of small products. Those for AVX2 do not. Blocks are as large and as square as possible, since every sgemm
 * packs its operands anew. sgemm itself adds to weight gradients that are fp32.
 */
#include <omp.h>

#include "train/kernels/kernels_cpu.h"
#include "train/kernels/vector_math.h"

/* ---- sgemm ---- */
/* Calls OpenBLAS's sgemm so that it never allocates memory. All products go through here.
 *
 * For small products of two matrices, neither transposed, OpenBLAS's AVX-512 kernel copies the last 1 to 8 columns
 * beyond a multiple of 16 to memory from malloc, in every call (in 0.3.20, 0.3.21, 0.3.26 and 0.3.29). Instead, this
 * file copies these columns to the stack, transposed, and multiplies them in a second call, whose kernel allocates
 * nothing. That is the same work and about as fast. Machines without AVX-512 do not have that kernel, so their builds
 * never split a product. */

enum {
    SMALL_LANES = 16,     /* floats of an AVX-512 register */
    SMALL_MAX_COPIED = 8, /* with more columns, OpenBLAS masks them instead of copying */
    SMALL_MIN_INNER = 32, /* likewise with a shorter inner extent */
    COPIED_ROWS = 512,    /* of b, at a time: 16 KiB of stack */
};
#define SMALL_MAX_PRODUCTS 1e6 /* m n k of the largest small product */

#ifdef __AVX512F__
enum { BLAS_HAS_AVX512 = 1 };
#else
enum { BLAS_HAS_AVX512 = 0 };
#endif

/* Returns how many of the last columns OpenBLAS would copy to memory of its own. */
static size_t copied_columns(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, size_t m, size_t n, size_t k)
{
    size_t rest = n % SMALL_LANES;
    bool small = (double)m * (double)n * (double)k <= SMALL_MAX_PRODUCTS;
    bool copies = op_a == CblasNoTrans && op_b == CblasNoTrans && k >= SMALL_MIN_INNER && rest <= SMALL_MAX_COPIED;
    return BLAS_HAS_AVX512 && small && copies ? rest : 0;
}

static void multiply(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, size_t m, size_t n, size_t k, float alpha,
                     const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    cblas_sgemm(CblasRowMajor, op_a, op_b, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* Computes c[m, n] = alpha a[m, k] b[k, n] + beta c for n <= SMALL_MAX_COPIED. */
static void multiply_copied(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda, const float *b,
                            size_t ldb, float beta, float *c, size_t ldc)
{
    float columns[SMALL_MAX_COPIED][COPIED_ROWS];
    for (size_t first = 0; first < k; first += COPIED_ROWS) {
        size_t rows = k - first < COPIED_ROWS ? k - first : COPIED_ROWS;
        for (size_t row = 0; row < rows; ++row)
            for (size_t column = 0; column < n; ++column)
                columns[column][row] = b[(first + row) * ldb + column];
        multiply(CblasNoTrans, CblasTrans, m, n, rows, alpha, a + first, lda, columns[0], COPIED_ROWS,
                 first == 0 ? beta : 1.0f, c, ldc);
    }
}

void ZERO_ISA(zero_model_sgemm)(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, size_t m, size_t n, size_t k, float alpha,
                                const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                                size_t ldc)
{
    size_t copied = copied_columns(op_a, op_b, m, n, k), whole = n - copied;
    if (whole > 0)
        multiply(op_a, op_b, m, whole, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (copied > 0)
        multiply_copied(m, copied, k, alpha, a, lda, b + whole, ldb, beta, c + whole, ldc);
}

/* ---- linear ---- */

/* ---- One product over all threads ---- */

/* Products of at most this many multiply-adds are small to OpenBLAS, which then sums in another order. A product is cut
 * only into blocks with more: a smaller one takes a thread some 20 us. */
#define GEMM_SMALL ((size_t)1000 * 1000)
/* OpenBLAS's x86 kernels compute tiles of 16 elements of a row. Packing a row of an operand costs about as much as 32
 * multiply-adds per element (measured). */
#define GEMM_TILE 16
#define GEMM_PACK_COST 32

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t block_extent(size_t extent, size_t n_blocks)
{
    return divide_up(divide_up(extent, n_blocks), GEMM_TILE) * GEMM_TILE;
}

/* Returns the extent of the last block. */
static size_t last_extent(size_t extent, size_t block)
{
    return extent - (divide_up(extent, block) - 1) * block;
}

static bool makes_small_blocks(const zero_gemm_t *gemm, size_t block_m, size_t block_n)
{
    return last_extent(gemm->m, block_m) * last_extent(gemm->n, block_n) * gemm->k <= GEMM_SMALL;
}

/* Chooses the blocks' extents for which the slowest thread finishes earliest, at most one block for each thread. */
static void choose_blocks(const zero_gemm_t *gemm, size_t *block_m, size_t *block_n)
{
    size_t n_threads = (size_t)omp_get_max_threads(), least = SIZE_MAX;
    if (gemm->m == 0 || gemm->n == 0 || makes_small_blocks(gemm, gemm->m, gemm->n))
        return;
    for (size_t across = 1; across <= n_threads; ++across)
        for (size_t down = 1; down <= n_threads / across; ++down) {
            size_t m = block_extent(gemm->m, down), n = block_extent(gemm->n, across);
            size_t cost = m * n + GEMM_PACK_COST * (m + n);
            if (cost < least && !makes_small_blocks(gemm, m, n)) {
                least = cost;
                *block_m = m;
                *block_n = n;
            }
        }
}

static void compute_block(const zero_gemm_t *g, size_t row, size_t column, size_t m, size_t n)
{
    const float *a = g->a + (g->op_a == CblasNoTrans ? row * g->lda : row);
    const float *b = g->b + (g->op_b == CblasNoTrans ? column : column * g->ldb);
    float *c = g->c + row * g->ldc + column;
    const float alpha = g->alpha != 0.0f ? g->alpha : 1.0f;
    ZERO_ISA(zero_model_sgemm)(g->op_a, g->op_b, m, n, g->k, alpha, a, g->lda, b, g->ldb, g->beta, c, g->ldc);
    if (g->bias == NULL)
        return;
    for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < n; ++j)
            c[i * g->ldc + j] += g->bias[column + j];
}

void ZERO_ISA(zero_model_gemm)(const zero_gemm_t *gemm)
{
    size_t block_m = gemm->m, block_n = gemm->n;
    choose_blocks(gemm, &block_m, &block_n);
    size_t n_across = divide_up(gemm->n, block_n);
    size_t n_blocks = divide_up(gemm->m, block_m) * n_across;
#pragma omp parallel for schedule(static, 1) if (n_blocks > 1)
    for (size_t block = 0; block < n_blocks; ++block) {
        size_t row = block / n_across * block_m, column = block % n_across * block_n;
        size_t m = gemm->m - row < block_m ? gemm->m - row : block_m;
        size_t n = gemm->n - column < block_n ? gemm->n - column : block_n;
        compute_block(gemm, row, column, m, n);
    }
}

/* ---- Column sums ---- */

#define COLUMN_TILE ((size_t)256)

void ZERO_ISA(zero_model_put_partials)(zero_grad_t grad, const float *partials, size_t n_parts, size_t stride,
                                       size_t width)
{
    if (grad.data == NULL)
        return;
#pragma omp parallel for schedule(static) if (n_parts * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t first = 0; first < width; first += COLUMN_TILE) {
        size_t n = width - first < COLUMN_TILE ? width - first : COLUMN_TILE;
        float sum[COLUMN_TILE];
        memcpy(sum, partials + first, n * sizeof *sum);
        for (size_t part = 1; part < n_parts; ++part)
            for (size_t i = 0; i < n; ++i)
                sum[i] += partials[part * stride + first + i];
        zero_grad_put(grad, first, sum, n);
    }
}

zero_status_t ZERO_MODEL_FN(sum_columns)(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                         size_t n_columns)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t n_parts = zero_row_parts(n_rows);
    float *partials; /* [n_parts, n_columns] */
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * n_columns * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * n_columns >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sum = partials + part * n_columns;
        size_t first = part * n_rows / n_parts, last = (part + 1) * n_rows / n_parts;
        memcpy(sum, (const float *)x + first * n_columns, n_columns * sizeof *sum);
        for (size_t row = first + 1; row < last; ++row)
            for (size_t i = 0; i < n_columns; ++i)
                sum[i] += ((const float *)x)[row * n_columns + i];
    }
    ZERO_ISA(zero_model_put_partials)(sums, partials, n_parts, n_columns, n_columns);
    return ZERO_OK;
}

/* ---- The table's functions ---- */

static zero_status_t check_sizes(size_t n_rows, size_t n_in, size_t n_out)
{
    size_t largest = n_rows > n_in ? n_rows : n_in;
    return zero_check_blas_size(largest > n_out ? largest : n_out);
}

size_t ZERO_MODEL_FN(linear_workspace)(const zero_model_limits_t *limits)
{
    size_t matrix = limits->dtype == ZERO_FP32 ? 0 : zero_scratch_bytes(limits->max_linear * sizeof(float));
    return matrix + zero_scratch_bytes(ZERO_ROW_PARTS * limits->max_width * sizeof(float));
}

zero_status_t ZERO_MODEL_FN(linear)(zero_model_context_t *ctx, void *y, bool accumulate, const void *x,
                                    zero_weight_t weight, zero_linear_layout_t layout, zero_weight_t bias,
                                    size_t n_rows, size_t n_in, size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_gemm_t gemm = {CblasNoTrans,
                        layout == ZERO_LINEAR_IN_OUT ? CblasNoTrans : CblasTrans,
                        .m = n_rows,
                        .n = n_out,
                        .k = n_in,
                        .a = x,
                        .lda = n_in,
                        .ldb = layout == ZERO_LINEAR_IN_OUT ? n_out : n_in,
                        .c = y,
                        .ldc = n_out,
                        .beta = accumulate ? 1.0f : 0.0f};
    ZERO_ASSERT(!accumulate || bias.data == NULL);
    ZERO_TRY(check_sizes(n_rows, n_in, n_out));
    ZERO_TRY(zero_weight_fp32(&scratch, weight, n_in * n_out, &gemm.b));
    if (bias.data != NULL)
        ZERO_TRY(zero_weight_fp32(&scratch, bias, n_out, &gemm.bias));
    ZERO_ISA(zero_model_gemm)(&gemm);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(linear_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                                   zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                                   size_t n_in, size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_gemm_t gemm = {CblasNoTrans,
                        layout == ZERO_LINEAR_IN_OUT ? CblasTrans : CblasNoTrans,
                        .m = n_rows,
                        .n = n_in,
                        .k = n_out,
                        .a = dy,
                        .lda = n_out,
                        .ldb = layout == ZERO_LINEAR_IN_OUT ? n_out : n_in,
                        .beta = accumulate ? 1.0f : 0.0f,
                        .c = dx,
                        .ldc = n_in};
    ZERO_TRY(check_sizes(n_rows, n_in, n_out));
    ZERO_TRY(zero_weight_fp32(&scratch, weight, n_in * n_out, &gemm.b));
    ZERO_ISA(zero_model_gemm)(&gemm);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(linear_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight,
                                                    zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                                    const void *dy, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_grad_sum_t sum;
    if (dweight.data == NULL)
        return dbias.data == NULL ? ZERO_OK : ZERO_MODEL_FN(sum_columns)(ctx, dbias, dy, n_rows, n_out);
    ZERO_TRY(check_sizes(n_rows, n_in, n_out));
    ZERO_TRY(zero_grad_sum_begin(&scratch, dweight, n_in * n_out, &sum));
    bool in_out = layout == ZERO_LINEAR_IN_OUT; /* dW = x^T dy, else dW = dy^T x */
    zero_gemm_t gemm = {CblasTrans,
                        CblasNoTrans,
                        .m = in_out ? n_in : n_out,
                        .n = in_out ? n_out : n_in,
                        .k = n_rows,
                        .a = in_out ? x : dy,
                        .lda = in_out ? n_in : n_out,
                        .b = in_out ? dy : x,
                        .ldb = in_out ? n_out : n_in,
                        .beta = sum.beta,
                        .c = sum.data,
                        .ldc = in_out ? n_out : n_in};
    ZERO_ISA(zero_model_gemm)(&gemm);
    zero_grad_sum_end(&sum, dweight, n_in * n_out);
    return dbias.data == NULL ? ZERO_OK : ZERO_MODEL_FN(sum_columns)(ctx, dbias, dy, n_rows, n_out);
}

zero_status_t ZERO_MODEL_FN(product)(zero_model_context_t *ctx, const zero_product_t *p)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    zero_grad_sum_t sum;
    zero_gemm_t gemm = {p->transpose_a ? CblasTrans : CblasNoTrans,
                        p->transpose_b ? CblasTrans : CblasNoTrans,
                        .m = p->m,
                        .n = p->n,
                        .k = p->k,
                        .lda = p->lda,
                        .ldb = p->ldb,
                        .alpha = p->scale,
                        .ldc = p->ldc};
    ZERO_TRY(check_sizes(p->m > p->k ? p->m : p->k, p->lda > p->ldb ? p->lda : p->ldb, p->ldc));
    ZERO_TRY(zero_weight_fp32(&scratch, p->a, p->m * p->k, &gemm.a));
    ZERO_TRY(zero_weight_fp32(&scratch, p->b, p->k * p->n, &gemm.b));
    ZERO_TRY(zero_grad_sum_begin(&scratch, p->c, p->m * p->n, &sum));
    gemm.beta = sum.beta;
    gemm.c = sum.data;
    ZERO_ISA(zero_model_gemm)(&gemm);
    zero_grad_sum_end(&sum, p->c, p->m * p->n);
    return ZERO_OK;
}
