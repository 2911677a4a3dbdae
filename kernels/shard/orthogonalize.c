/* orthogonalize.c - Muon's Newton-Schulz iteration on the CPU, in fp32. Called through the table; the arithmetic is
 * described at zero_orthogonalize_t.
 */
#include <math.h>
#include <string.h>

#include "kernels/shard/matmul.h"
#include "kernels/shard/shard_isa.h"

/* Squares are summed in so many parts, whose number does not depend on that of threads. */
enum { N_PARTS = 64, LANES = 8 };

/* Returns the sum of squares of x[n], in lanes, so that the compiler may vectorize it. */
static double sum_squares(const float *x, size_t n)
{
    double lanes[LANES] = {0}, sum = 0.0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t lane = 0; lane < LANES; ++lane)
            lanes[lane] += (double)x[i + lane] * (double)x[i + lane];
    for (; i < n; ++i)
        lanes[0] += (double)x[i] * (double)x[i];
    for (size_t lane = 0; lane < LANES; ++lane)
        sum += lanes[lane];
    return sum;
}

/* Divides x[n] by its Frobenius norm, or by ZERO_MUON_EPS if that is larger. */
static void normalize(float *x, size_t n)
{
    double parts[N_PARTS], sum = 0.0;
    const size_t share = (n + N_PARTS - 1) / N_PARTS;
#pragma omp parallel for if (n >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t part = 0; part < N_PARTS; ++part) {
        const size_t begin = part * share < n ? part * share : n, end = begin + share < n ? begin + share : n;
        parts[part] = sum_squares(x + begin, end - begin);
    }
    for (size_t part = 0; part < N_PARTS; ++part)
        sum += parts[part];
    const float norm = (float)sqrt(sum), divisor = norm > ZERO_MUON_EPS ? norm : ZERO_MUON_EPS;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t i = 0; i < n; ++i)
        x[i] /= divisor;
}

/* Computes out = x times a polynomial of its Gram matrix: one iteration. gram, poly: square, of the shorter side. */
static void iterate(const float *x, size_t rows, size_t cols, float *gram, float *poly, float *out)
{
    const bool is_tall = rows > cols;
    const size_t r = is_tall ? cols : rows, k = is_tall ? rows : cols;
    const size_t along = is_tall ? 1 : cols, across = is_tall ? cols : 1; /* strides of the shorter and longer side */
    const zero_matmul_t square = {.out = gram,
                                  .p = x,
                                  .q = x,
                                  .m = r,
                                  .n = r,
                                  .k = k,
                                  .alpha = 1.0f,
                                  .p_row = along,
                                  .p_k = across,
                                  .q_k = across,
                                  .q_column = along};
    /* The Gram matrix is symmetric, to the last bit. */
    const zero_matmul_t polynomial = {.out = poly,
                                      .in = gram,
                                      .beta = ZERO_MUON_B,
                                      .alpha = ZERO_MUON_C,
                                      .p = gram,
                                      .q = gram,
                                      .m = r,
                                      .n = r,
                                      .k = r,
                                      .p_row = r,
                                      .p_k = 1,
                                      .q_k = r,
                                      .q_column = 1};
    const zero_matmul_t product = {.out = out,
                                   .in = x,
                                   .beta = ZERO_MUON_A,
                                   .alpha = 1.0f,
                                   .p = is_tall ? x : poly,
                                   .q = is_tall ? poly : x,
                                   .m = rows,
                                   .n = cols,
                                   .k = r,
                                   .p_row = is_tall ? cols : r,
                                   .p_k = 1,
                                   .q_k = cols,
                                   .q_column = 1};
    ZERO_ISA(zero_shard_matmul)(&square);
    ZERO_ISA(zero_shard_matmul)(&polynomial);
    ZERO_ISA(zero_shard_matmul)(&product);
}

static void orthogonalize(const zero_orthogonalize_t *args)
{
    const size_t rows = args->rows, cols = args->cols, r = rows < cols ? rows : cols, n = rows * cols;
    float *x = args->x, *other = args->scratch, *gram = other + zero_orthogonalize_room(n);
    float *poly = gram + zero_orthogonalize_room(r * r);
    if (*args->skip)
        return;
    normalize(x, n);
    for (int step = 0; step < args->n_steps; ++step) {
        float *from = step % 2 == 0 ? x : other, *to = step % 2 == 0 ? other : x;
        iterate(from, rows, cols, gram, poly, to);
    }
    if (args->n_steps % 2 == 1)
        memcpy(x, other, n * sizeof *x);
}

zero_status_t ZERO_ISA(zero_shard_orthogonalize)(const zero_orthogonalize_t *matrices, int n_matrices,
                                                 zero_stream_t stream)
{
    (void)stream;
    for (int i = 0; i < n_matrices; ++i)
        orthogonalize(&matrices[i]);
    return ZERO_OK;
}
