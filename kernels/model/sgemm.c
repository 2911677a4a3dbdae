/* sgemm.c - calls OpenBLAS's sgemm so that it never allocates memory. All products go through here.
 *
 * For small products of two matrices, neither transposed, OpenBLAS's AVX-512 kernel copies the last 1 to 8 columns
 * beyond a multiple of 16 to memory from malloc, in every call (in 0.3.20, 0.3.21, 0.3.26 and 0.3.29). Instead, this
 * file copies these columns to the stack, transposed, and multiplies them in a second call, whose kernel allocates
 * nothing. That is the same work and about as fast. Machines without AVX-512 do not have that kernel, so their builds
 * never split a product.
 */
#include "kernels/model/model_cpu.h"

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
