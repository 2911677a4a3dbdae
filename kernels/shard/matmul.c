/* matmul.c - the product of two fp32 matrices on the CPU, for orthogonalize.c: libzero needs no BLAS.
 *
 * Each element of the result is one chain of fma over k, from 0 upwards, so that its bits depend neither on threads nor
 * on the instruction set. Threads take tiles of the result. A tile's rows of p and columns of q are packed, DEPTH
 * numbers of k at a time, so that the inner loop reads memory in order; it keeps ROWS x COLUMNS sums in registers.
 * Everything is on the stack.
 */
#include "kernels/shard/matmul.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 6, /* of the sums in registers: these fill 12 */
#ifdef __AVX512F__
    COLUMNS = 32,
#else
    COLUMNS = 16,
#endif
    TILE_ROWS = 96, /* of the result */
    TILE_COLUMNS = 128,
    DEPTH = 128,
};

/* Products below this are done by one thread: others would take longer to wake. */
#define PARALLEL_MIN 1e6

/* Adds to sums[ROWS][COLUMNS] the product of packed p[depth][ROWS] and q[depth][COLUMNS]. */
static inline void add_products(const float *p, const float *q, size_t depth, float *sums)
{
    float kept[ROWS][COLUMNS];
    memcpy(kept, sums, sizeof kept);
    for (size_t k = 0; k < depth; ++k, p += ROWS, q += COLUMNS) {
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; ++i) {
#pragma omp simd
            for (int j = 0; j < COLUMNS; ++j)
                kept[i][j] = fmaf(p[i], q[j], kept[i][j]);
        }
    }
    memcpy(sums, kept, sizeof kept);
}

/* Packs number k of `rows` rows, which lie `stride` apart. */
static inline void pack_row(const float *from, size_t stride, size_t rows, size_t width, float *to)
{
    for (size_t i = 0; i < rows; ++i)
        to[i] = from[i * stride];
    for (size_t i = rows; i < width; ++i)
        to[i] = 0.0f;
}

/* Packs a[n][depth], with these strides, in groups of `width` rows: packed[group][depth][width], 0 beyond n. Reads
 * memory in its order, as far as possible: with row_stride 1 all rows of one k first. */
static void pack(const float *a, size_t row_stride, size_t depth_stride, size_t n, size_t depth, size_t width,
                 float *packed)
{
    const size_t n_groups = (n + width - 1) / width;
    for (size_t i = 0; i < n_groups * depth; ++i) {
        const size_t group = row_stride == 1 ? i % n_groups : i / depth, k = row_stride == 1 ? i / n_groups : i % depth;
        const size_t first = group * width;
        pack_row(a + first * row_stride + k * depth_stride, row_stride, n - first < width ? n - first : width, width,
                 packed + (group * depth + k) * width);
    }
}

/* Computes one tile: rows [row, row + n_rows) and columns [column, column + n_columns). */
static void compute_tile(const zero_matmul_t *a, size_t row, size_t n_rows, size_t column, size_t n_columns)
{
    float p[TILE_ROWS * DEPTH], q[TILE_COLUMNS * DEPTH];
    float sums[TILE_ROWS / ROWS][TILE_COLUMNS / COLUMNS][ROWS * COLUMNS];
    memset(sums, 0, sizeof sums);
    for (size_t k = 0; k < a->k; k += DEPTH) {
        const size_t depth = a->k - k < DEPTH ? a->k - k : DEPTH;
        pack(a->p + row * a->p_row + k * a->p_k, a->p_row, a->p_k, n_rows, depth, ROWS, p);
        pack(a->q + column * a->q_column + k * a->q_k, a->q_column, a->q_k, n_columns, depth, COLUMNS, q);
        for (size_t i = 0; i * ROWS < n_rows; ++i)
            for (size_t j = 0; j * COLUMNS < n_columns; ++j)
                add_products(p + i * ROWS * depth, q + j * COLUMNS * depth, depth, sums[i][j]);
    }
    for (size_t i = 0; i < n_rows; ++i)
        for (size_t j = 0; j < n_columns; ++j) {
            const float sum = sums[i / ROWS][j / COLUMNS][i % ROWS * COLUMNS + j % COLUMNS];
            const size_t at = (row + i) * a->n + column + j;
            a->out[at] = a->in ? fmaf(a->beta, a->in[at], a->alpha * sum) : a->alpha * sum;
        }
}

void ZERO_ISA(zero_shard_matmul)(const zero_matmul_t *a)
{
    const size_t n_down = (a->m + TILE_ROWS - 1) / TILE_ROWS, n_across = (a->n + TILE_COLUMNS - 1) / TILE_COLUMNS;
#pragma omp parallel for schedule(dynamic) if ((double)a->m * (double)a->n * (double)a->k >= PARALLEL_MIN)
    for (size_t tile = 0; tile < n_down * n_across; ++tile) {
        const size_t row = tile / n_across * TILE_ROWS, column = tile % n_across * TILE_COLUMNS;
        compute_tile(a, row, a->m - row < TILE_ROWS ? a->m - row : TILE_ROWS, column,
                     a->n - column < TILE_COLUMNS ? a->n - column : TILE_COLUMNS);
    }
}
