/* muon.c - Muon on the CPU: products of matrices, the Newton-Schulz iteration, momentum before it and the step of the
 * weights behind it. Called through the table. On CUDA the iteration is in orthogonalize_cuda.c.
 */
#include <math.h>
#include <string.h>

#include "kernels/matmul.h"
#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* ---- matmul ---- */
/* The product of two fp32 matrices on the CPU, for muon.c: libzero needs no BLAS.
 *
 * Each element of the result is one chain of fma over k, from 0 upwards, so that its bits depend neither on threads nor
 * on the instruction set. Threads take tiles of the result. A tile's rows of p and columns of q are packed, DEPTH
 * numbers of k at a time, so that the inner loop reads memory in order; it keeps ROWS x COLUMNS sums in registers.
 * Everything is on the stack. */

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

/* Packs number k of `rows` rows, whose stride is `stride`. */
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

/* ---- orthogonalize ---- */
/* Muon's Newton-Schulz iteration on the CPU, in fp32. Called through the table; the arithmetic is
 * described at zero_orthogonalize_t. */

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

/* ---- muon ---- */

static void momentum_of_segment(const zero_muon_t *args, const zero_muon_segment_t *segment)
{
    const float *grad = args->grad + segment->grad, scale = args->scalars->grad_scale;
    const float momentum = args->momentum, rest = args->one_minus_momentum;
    float *m = args->m + segment->state;
    float *as_fp32 = args->update_dtype == ZERO_FP32 && args->update ? (float *)args->update + segment->at : NULL;
    uint16_t *as_bf16 = args->update_dtype == ZERO_BF16 && args->update ? (uint16_t *)args->update + segment->at : NULL;
#pragma omp parallel for simd if (segment->n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (uint64_t i = 0; i < segment->n_elems; ++i) {
        float update = zero_muon_momentum_element(momentum, rest, scale, grad[i], &m[i]);
        if (as_fp32)
            as_fp32[i] = update;
        if (as_bf16)
            as_bf16[i] = zero_bf16_of_float(update);
    }
}

zero_status_t ZERO_ISA(zero_shard_muon_momentum)(const zero_muon_t *args, zero_stream_t stream)
{
    (void)stream;
    for (size_t s = 0; s < args->n_segments && !args->scalars->skip; ++s)
        momentum_of_segment(args, &args->segments[s]);
    return ZERO_OK;
}

static inline float update_of(const zero_muon_t *args, const zero_muon_segment_t *segment, uint64_t i)
{
    return args->update_dtype == ZERO_FP32 ? ((const float *)args->update)[segment->at + i]
                                           : zero_float_of_bf16(((const uint16_t *)args->update)[segment->at + i]);
}

/* The same loop for each dtype of parameters, which are joined with the rest of the master weights, stepped, and split
 * again. */
static void apply_to_segment(const zero_muon_t *args, const zero_muon_segment_t *segment)
{
    const zero_tensor_scalars_t *own = args->by_tensor ? &args->by_tensor[segment->tensor] : NULL;
    const float lr = own ? own->scalars.lr : args->scalars->lr, decay = own ? own->decay : segment->decay;
    const float shrink = -(lr * decay), step = -(lr * segment->scale);
    const uint64_t n = segment->n_elems;
    if (args->param_dtype == ZERO_FP32) {
        float *param = (float *)args->param + segment->param;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i)
            param[i] = zero_muon_apply_element(shrink, step, update_of(args, segment, i), param[i]);
    } else if (args->param_dtype == ZERO_BF16) {
        uint16_t *param = (uint16_t *)args->param + segment->param;
        int16_t *low = (int16_t *)args->master_lo + segment->state;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i) {
            float w = zero_join_master(param[i], low[i]);
            w = zero_muon_apply_element(shrink, step, update_of(args, segment, i), w);
            param[i] = zero_split_param(w);
            low[i] = zero_split_master_lo(w);
        }
    } else {
        uint16_t *param = (uint16_t *)args->param + segment->param;
        float *master = (float *)args->master_lo + segment->state;
#pragma omp parallel for simd if (n >= ZERO_SHARD_PARALLEL_MIN)
        for (uint64_t i = 0; i < n; ++i) {
            master[i] = zero_muon_apply_element(shrink, step, update_of(args, segment, i), master[i]);
            param[i] = zero_fp16_of_float(master[i]);
        }
    }
}

zero_status_t ZERO_ISA(zero_shard_muon_apply)(const zero_muon_t *args, zero_stream_t stream)
{
    (void)stream;
    for (size_t s = 0; s < args->n_segments && !args->scalars->skip; ++s)
        apply_to_segment(args, &args->segments[s]);
    return ZERO_OK;
}
