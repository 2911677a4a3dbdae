/* orthogonalize_cuda.c - Muon's Newton-Schulz iteration on CUDA: the polynomial of muon.c, by fewer and more
 * exact products. They are cuBLASLt's, in fp16 with sums in fp32.
 *
 * A step multiplies x, which is r x k, by a polynomial P of its Gram matrix G. P and G commute, so the next Gram matrix
 * is P G P, and several steps need x only at the ends:
 *     G = x x^T,   then in each step  P = A + B G + C G G,  Q = P Q,  G = P (P G),   and at last  x = Q x
 * With k = 4 r, three steps and two take 30 products of r x r x r instead of the 45 of five single steps. If k is at
 * most 1.5 r nothing is won, and every step is made alone.
 *
 * Rounding makes small eigenvalues of G negative, and 3.44^2 times as large in each step: after three the Gram matrix
 * is computed from x again. fp16 has 3 more bits than the bf16 of torch.optim.Muon; numbers are scaled by powers of 2
 * so that they fit. Emulated for 33 matrices (Gaussian, power laws, nearly low rank, in shapes up to 768 x 3072), both
 * together are 3 to 38 times as close to fp64 as single steps in bf16.
 *
 * The products of one matrix do not fill a GPU. So matrices are computed side by side, in several streams.
 *
 * The algorithm of a product is the first that cuBLASLt's heuristics name, for shape and types alone: buffers have the
 * same alignment on every rank. So GPUs of one kind compute the same bits, whichever rank has the matrix, alone or
 * together with others. Algorithms that add partial sums by atomics or in a narrow type are excluded. Products are
 * described once for each shape and kept.
 */
#include <stdlib.h>

#include "base/cuda_status.h"
#include "kernels/cublaslt.h"
#include "kernels/cuda/shard_cuda.h"

/* One product of the iteration: out = beta in + alpha a op(b), all row-major. */
typedef struct product {
    zero_cublaslt_product_t blas; /* its a is b, since cuBLASLt reads each matrix as its transpose */
    cublasLtMatmulAlgo_t algorithm;
} product_t;

typedef enum which { GRAM, SQUARE, PRODUCT, N_PRODUCTS } which_t; /* square: of matrices that are square */

/* What one shape needs. */
typedef struct shape {
    uint64_t rows, cols;
    product_t products[N_PRODUCTS];
    struct shape *next;
} shape_t;

/* A stream that overlaps the caller's, and the event behind its last matrix. */
typedef struct lane {
    cudaStream_t stream;
    cudaEvent_t done;
} lane_t;

struct zero_orthogonalizer {
    zero_cublaslt_t lt;
    cublasLtHandle_t handle;
    cudaEvent_t ready; /* in the caller's stream: the matrices are there */
    lane_t lanes[ZERO_ORTHOGONALIZE_LANES - 1];
    shape_t *shapes;
};

/* ---- what is made once ---- */

void zero_cuda_orthogonalizer_destroy(zero_orthogonalizer_t *orthogonalizer)
{
    if (orthogonalizer == NULL)
        return;
    while (orthogonalizer->shapes != NULL) {
        shape_t *shape = orthogonalizer->shapes;
        orthogonalizer->shapes = shape->next;
        for (int i = 0; i < N_PRODUCTS; ++i)
            zero_cublaslt_product_destroy(&orthogonalizer->lt, &shape->products[i].blas);
        free(shape);
    }
    for (int i = 0; i < ZERO_ORTHOGONALIZE_LANES - 1; ++i) {
        if (orthogonalizer->lanes[i].done != NULL)
            cudaEventDestroy(orthogonalizer->lanes[i].done);
        if (orthogonalizer->lanes[i].stream != NULL)
            cudaStreamDestroy(orthogonalizer->lanes[i].stream);
    }
    if (orthogonalizer->ready != NULL)
        cudaEventDestroy(orthogonalizer->ready);
    if (orthogonalizer->handle != NULL)
        orthogonalizer->lt.Destroy(orthogonalizer->handle);
    free(orthogonalizer);
}

static zero_status_t create(zero_orthogonalizer_t *orthogonalizer)
{
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    ZERO_TRY(zero_cublaslt_load(&orthogonalizer->lt));
    ZERO_TRY_CUBLASLT(lt->Create(&orthogonalizer->handle));
    ZERO_TRY_CUDA(cudaEventCreateWithFlags(&orthogonalizer->ready, cudaEventDisableTiming));
    for (int i = 0; i < ZERO_ORTHOGONALIZE_LANES - 1; ++i) {
        ZERO_TRY_CUDA(cudaStreamCreateWithFlags(&orthogonalizer->lanes[i].stream, cudaStreamNonBlocking));
        ZERO_TRY_CUDA(cudaEventCreateWithFlags(&orthogonalizer->lanes[i].done, cudaEventDisableTiming));
    }
    return ZERO_OK;
}

zero_status_t zero_cuda_orthogonalizer_create(zero_orthogonalizer_t **orthogonalizer)
{
    zero_orthogonalizer_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for Muon's matrix products");
    zero_status_t status = create(made);
    if (status != ZERO_OK) {
        zero_cuda_orthogonalizer_destroy(made);
        return status;
    }
    *orthogonalizer = made;
    return ZERO_OK;
}

/* Returns the algorithm for a product that has been described. */
static zero_status_t find_algorithm(const zero_orthogonalizer_t *orthogonalizer, product_t *product)
{
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int n_results = 0;
    ZERO_TRY_CUBLASLT(lt->MatmulPreferenceCreate(&preference));
    cublasStatus_t status = zero_cublaslt_prefer(lt, preference, ZERO_ORTHOGONALIZE_WORKSPACE_BYTES);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->MatmulAlgoGetHeuristic(orthogonalizer->handle, product->blas.operation, product->blas.a,
                                            product->blas.b, product->blas.c, product->blas.c, preference, 1, &result,
                                            &n_results);
    lt->MatmulPreferenceDestroy(preference);
    ZERO_TRY_CUBLASLT(status);
    if (n_results < 1)
        return zero_fail(ZERO_ERROR_DEVICE, "cuBLASLt has no algorithm for one of Muon's products in fp16");
    product->algorithm = result.algo;
    return ZERO_OK;
}

/* Describes out[m][n] = beta in + alpha op(a) op(b), with a[m][k] and b[k][n], stored the other way round if they are
 * transposed. cuBLASLt's matrices are column-major, so it computes out^T = op(b)^T op(a)^T. */
static zero_status_t describe(const zero_orthogonalizer_t *orthogonalizer, product_t *product, uint64_t m, uint64_t n,
                              uint64_t k, bool transpose_a, bool transpose_b)
{
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    const cublasOperation_t op_a = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t b_cols = transpose_b ? k : n, a_cols = transpose_a ? m : k; /* of the row-major matrices */
    ZERO_TRY_CUBLASLT(lt->MatmulDescCreate(&product->blas.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(product->blas.operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(product->blas.operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    ZERO_TRY_CUBLASLT(
        lt->MatrixLayoutCreate(&product->blas.a, CUDA_R_16F, b_cols, transpose_b ? n : k, (int64_t)b_cols));
    ZERO_TRY_CUBLASLT(
        lt->MatrixLayoutCreate(&product->blas.b, CUDA_R_16F, a_cols, transpose_a ? k : m, (int64_t)a_cols));
    ZERO_TRY_CUBLASLT(lt->MatrixLayoutCreate(&product->blas.c, CUDA_R_16F, n, m, (int64_t)n));
    return find_algorithm(orthogonalizer, product);
}

static zero_status_t describe_all(const zero_orthogonalizer_t *orthogonalizer, shape_t *shape)
{
    const uint64_t rows = shape->rows, cols = shape->cols;
    const bool is_tall = rows > cols;
    const uint64_t r = is_tall ? cols : rows, k = is_tall ? rows : cols;
    ZERO_TRY(describe(orthogonalizer, &shape->products[GRAM], r, r, k, is_tall, !is_tall));
    ZERO_TRY(describe(orthogonalizer, &shape->products[SQUARE], r, r, r, false, false));
    return describe(orthogonalizer, &shape->products[PRODUCT], rows, cols, r, false, false);
}

static zero_status_t find_shape(zero_orthogonalizer_t *orthogonalizer, uint64_t rows, uint64_t cols, shape_t **found)
{
    for (shape_t *shape = orthogonalizer->shapes; shape != NULL; shape = shape->next)
        if (shape->rows == rows && shape->cols == cols) {
            *found = shape;
            return ZERO_OK;
        }
    shape_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for Muon's matrix products");
    *made = (shape_t){.rows = rows, .cols = cols, .next = orthogonalizer->shapes};
    orthogonalizer->shapes = made; /* also if what follows fails: it is destroyed with the rest */
    ZERO_TRY(describe_all(orthogonalizer, made));
    *found = made;
    return ZERO_OK;
}

zero_status_t zero_cuda_orthogonalizer_prepare(zero_orthogonalizer_t *orthogonalizer, uint64_t rows, uint64_t cols)
{
    shape_t *shape;
    return find_shape(orthogonalizer, rows, cols, &shape);
}

/* ---- one matrix ---- */

/* Scales of x as it is normalized, and of its Gram matrix: its elements, and their squares' sums, would be too small
 * for fp16. Later ones have a norm of 0.7 or more. */
#define FIRST_SCALE 256.0f

/* A matrix at work. `square` are products of the shorter side's squares. */
typedef struct work {
    const zero_orthogonalize_t *args;
    const shape_t *shape;
    cudaStream_t stream;
    uint16_t *from, *to;     /* x before and after the steps that come next: the matrix and scratch take turns */
    uint16_t *g, *q, *t, *w; /* square; q and w are there if steps are joined */
    float scale, gram_scale; /* of from; of g */
} work_t;

static zero_status_t multiply(const work_t *work, which_t which, float alpha, const void *a, const void *b, float beta,
                              const void *in, void *out)
{
    const zero_orthogonalizer_t *orthogonalizer = work->args->orthogonalizer;
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    const product_t *product = &work->shape->products[which];
    ZERO_TRY_CUBLASLT(lt->Matmul(orthogonalizer->handle, product->blas.operation, &alpha, b, product->blas.a, a,
                                 product->blas.b, &beta, in, product->blas.c, out, product->blas.c, &product->algorithm,
                                 work->args->workspace, ZERO_ORTHOGONALIZE_WORKSPACE_BYTES, work->stream));
    return ZERO_OK;
}

static void swap(uint16_t **a, uint16_t **b)
{
    uint16_t *c = *a;
    *a = *b;
    *b = c;
}

/* Computes g, the Gram matrix of x. */
static zero_status_t gram(work_t *work)
{
    work->gram_scale = work->scale;
    return multiply(work, GRAM, work->gram_scale / (work->scale * work->scale), work->from, work->from, 0.0f, work->g,
                    work->g);
}

/* Computes out = B G + C G G. */
static zero_status_t polynomial(const work_t *work, uint16_t *out)
{
    const float scale = work->gram_scale;
    return multiply(work, SQUARE, ZERO_MUON_C / (scale * scale), work->g, work->g, ZERO_MUON_B / scale, work->g, out);
}

/* Multiplies x by a square matrix and adds beta times x. */
static zero_status_t advance(work_t *work, const uint16_t *by, float beta)
{
    const bool is_tall = work->shape->rows > work->shape->cols;
    ZERO_TRY(multiply(work, PRODUCT, 1.0f / work->scale, is_tall ? work->from : by, is_tall ? by : work->from,
                      beta / work->scale, work->from, work->to));
    work->scale = 1.0f;
    swap(&work->from, &work->to);
    return ZERO_OK;
}

/* Makes one step. */
static zero_status_t step_alone(work_t *work)
{
    ZERO_TRY(gram(work));
    ZERO_TRY(polynomial(work, work->t));
    return advance(work, work->t, ZERO_MUON_A);
}

/* Makes the first of several steps: q = P, g = P G P. */
static zero_status_t step_first(work_t *work)
{
    const uint64_t rows = work->shape->rows, cols = work->shape->cols;
    ZERO_TRY(gram(work));
    ZERO_TRY(polynomial(work, work->q));
    ZERO_TRY_CUDA(zero_cuda_muon_add_diagonal(work->q, rows < cols ? rows : cols, ZERO_MUON_A, work->stream));
    ZERO_TRY(multiply(work, SQUARE, 1.0f, work->q, work->g, 0.0f, work->t, work->t));
    ZERO_TRY(multiply(work, SQUARE, 1.0f / work->gram_scale, work->q, work->t, 0.0f, work->g, work->g));
    work->gram_scale = 1.0f;
    return ZERO_OK;
}

/* Makes a later one: q = P q and, unless it is the last, g = P G P. */
static zero_status_t step_next(work_t *work, bool is_last)
{
    ZERO_TRY(polynomial(work, work->t));
    if (!is_last) {
        ZERO_TRY(multiply(work, SQUARE, 1.0f, work->t, work->g, ZERO_MUON_A, work->g, work->w));
        ZERO_TRY(multiply(work, SQUARE, 1.0f, work->t, work->w, ZERO_MUON_A, work->w, work->g));
    }
    ZERO_TRY(multiply(work, SQUARE, 1.0f, work->t, work->q, ZERO_MUON_A, work->q, work->w));
    swap(&work->q, &work->w);
    return ZERO_OK;
}

static zero_status_t steps_joined(work_t *work, int n_steps)
{
    ZERO_TRY(step_first(work));
    for (int step = 1; step < n_steps; ++step)
        ZERO_TRY(step_next(work, step == n_steps - 1));
    return advance(work, work->q, 0.0f);
}

/* Returns how many of the steps that are left are made together: 3, and 2 rather than 1 at the end. */
static int together(const zero_orthogonalize_t *args, int n_left)
{
    if (!zero_orthogonalize_joins(args->rows, args->cols) || n_left < 2)
        return 1;
    return n_left == 2 || n_left == 4 ? 2 : 3;
}

static zero_status_t orthogonalize(const zero_orthogonalize_t *args, cudaStream_t stream)
{
    const uint64_t n = args->rows * args->cols, r = args->rows < args->cols ? args->rows : args->cols;
    const uint64_t room = zero_orthogonalize_room(r * r);
    uint16_t *x = args->x, *other = args->scratch, *g = other + zero_orthogonalize_room(n);
    bool is_odd = false;
    shape_t *shape;
    ZERO_TRY(find_shape(args->orthogonalizer, args->rows, args->cols, &shape));
    for (int step = 0; step < args->n_steps; step += together(args, args->n_steps - step))
        is_odd = !is_odd;
    /* The last result is in scratch: so it begins where it must for that. */
    work_t work = {.args = args,
                   .shape = shape,
                   .stream = stream,
                   .from = is_odd ? x : other,
                   .to = is_odd ? other : x,
                   .g = g,
                   .t = g + room,
                   .q = g + 2 * room,
                   .w = g + 3 * room,
                   .scale = FIRST_SCALE};
    ZERO_TRY_CUDA(zero_cuda_muon_normalize(x, n, FIRST_SCALE, args->workspace, work.from, stream));
    for (int step = 0, n_joined; step < args->n_steps; step += n_joined) {
        n_joined = together(args, args->n_steps - step);
        ZERO_TRY(n_joined == 1 ? step_alone(&work) : steps_joined(&work, n_joined));
    }
    ZERO_TRY_CUDA(zero_cuda_cast(x, ZERO_BF16, work.from, ZERO_FP16, n, stream));
    return ZERO_OK;
}

/* ---- several side by side ---- */

/* Returns the stream of the i-th matrix. */
static cudaStream_t stream_of(const zero_orthogonalizer_t *orthogonalizer, int i, cudaStream_t stream)
{
    const int lane = i % ZERO_ORTHOGONALIZE_LANES;
    return lane == 0 ? stream : orthogonalizer->lanes[lane - 1].stream;
}

zero_status_t zero_cuda_orthogonalize(const zero_orthogonalize_t *matrices, int n_matrices, cudaStream_t stream)
{
    const zero_orthogonalizer_t *orthogonalizer = n_matrices > 0 ? matrices[0].orthogonalizer : NULL;
    const int n_lanes = n_matrices < ZERO_ORTHOGONALIZE_LANES ? n_matrices : ZERO_ORTHOGONALIZE_LANES;
    if (n_lanes > 1)
        ZERO_TRY_CUDA(cudaEventRecord(orthogonalizer->ready, stream));
    for (int lane = 1; lane < n_lanes; ++lane)
        ZERO_TRY_CUDA(cudaStreamWaitEvent(orthogonalizer->lanes[lane - 1].stream, orthogonalizer->ready, 0));
    for (int i = 0; i < n_matrices; ++i)
        ZERO_TRY(orthogonalize(&matrices[i], stream_of(orthogonalizer, i, stream)));
    for (int lane = 1; lane < n_lanes; ++lane) {
        const lane_t *used = &orthogonalizer->lanes[lane - 1];
        ZERO_TRY_CUDA(cudaEventRecord(used->done, used->stream));
        ZERO_TRY_CUDA(cudaStreamWaitEvent(stream, used->done, 0));
    }
    return ZERO_OK;
}
