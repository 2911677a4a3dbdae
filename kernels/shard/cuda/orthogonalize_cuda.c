/* orthogonalize_cuda.c - Muon's Newton-Schulz iteration on CUDA: orthogonalize.c's twin, in bf16. Products are
 * cuBLASLt's, with sums in fp32; each result is rounded to bf16, as in torch.optim.Muon.
 *
 * The algorithm of a product is the first that cuBLASLt's heuristics name, for shape and types alone: buffers are
 * aligned alike on every rank. So GPUs of one kind compute the same bits, whichever rank has the matrix. Algorithms
 * that add partial sums by atomics or in a narrow type are excluded. Products are described once for each shape and
 * kept.
 */
#include <stdlib.h>

#include "base/cuda_status.h"
#include "kernels/cublaslt.h"
#include "kernels/shard/cuda/shard_cuda.h"

/* One product of the iteration: out = beta in + alpha a op(b), all row-major. */
typedef struct product {
    zero_cublaslt_product_t blas; /* its a is b, since cuBLASLt reads each matrix as its transpose */
    cublasLtMatmulAlgo_t algorithm;
} product_t;

typedef enum which { GRAM, POLYNOMIAL, PRODUCT, N_PRODUCTS } which_t;

/* What one shape needs. */
typedef struct shape {
    uint64_t rows, cols;
    product_t products[N_PRODUCTS];
    struct shape *next;
} shape_t;

struct zero_orthogonalizer {
    zero_cublaslt_t lt;
    cublasLtHandle_t handle;
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
    if (orthogonalizer->handle != NULL)
        orthogonalizer->lt.Destroy(orthogonalizer->handle);
    free(orthogonalizer);
}

static zero_status_t open_handle(zero_orthogonalizer_t *orthogonalizer)
{
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    ZERO_TRY(zero_cublaslt_load(&orthogonalizer->lt));
    ZERO_TRY_CUBLASLT(lt->Create(&orthogonalizer->handle));
    return ZERO_OK;
}

zero_status_t zero_cuda_orthogonalizer_create(zero_orthogonalizer_t **orthogonalizer)
{
    zero_orthogonalizer_t *made = calloc(1, sizeof *made);
    if (made == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for Muon's matrix products");
    zero_status_t status = open_handle(made);
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
        return zero_fail(ZERO_ERROR_DEVICE, "cuBLASLt has no algorithm for one of Muon's products in bf16");
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
        lt->MatrixLayoutCreate(&product->blas.a, CUDA_R_16BF, b_cols, transpose_b ? n : k, (int64_t)b_cols));
    ZERO_TRY_CUBLASLT(
        lt->MatrixLayoutCreate(&product->blas.b, CUDA_R_16BF, a_cols, transpose_a ? k : m, (int64_t)a_cols));
    ZERO_TRY_CUBLASLT(lt->MatrixLayoutCreate(&product->blas.c, CUDA_R_16BF, n, m, (int64_t)n));
    return find_algorithm(orthogonalizer, product);
}

static zero_status_t describe_all(const zero_orthogonalizer_t *orthogonalizer, shape_t *shape)
{
    const uint64_t rows = shape->rows, cols = shape->cols;
    const bool is_tall = rows > cols;
    const uint64_t r = is_tall ? cols : rows, k = is_tall ? rows : cols;
    ZERO_TRY(describe(orthogonalizer, &shape->products[GRAM], r, r, k, is_tall, !is_tall));
    ZERO_TRY(describe(orthogonalizer, &shape->products[POLYNOMIAL], r, r, r, false, false));
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

/* ---- the iteration ---- */

static zero_status_t multiply(const zero_orthogonalize_t *args, const product_t *product, float alpha, const void *a,
                              const void *b, float beta, const void *in, void *out, cudaStream_t stream)
{
    const zero_orthogonalizer_t *orthogonalizer = args->orthogonalizer;
    const zero_cublaslt_t *lt = &orthogonalizer->lt;
    ZERO_TRY_CUBLASLT(lt->Matmul(orthogonalizer->handle, product->blas.operation, &alpha, b, product->blas.a, a,
                                 product->blas.b, &beta, in, product->blas.c, out, product->blas.c, &product->algorithm,
                                 args->workspace, ZERO_ORTHOGONALIZE_WORKSPACE_BYTES, stream));
    return ZERO_OK;
}

zero_status_t zero_cuda_orthogonalize(const zero_orthogonalize_t *args, cudaStream_t stream)
{
    const uint64_t n = args->rows * args->cols, r = args->rows < args->cols ? args->rows : args->cols;
    const bool is_tall = args->rows > args->cols;
    uint16_t *x = args->x, *other = args->scratch, *gram = other + zero_orthogonalize_room(n);
    uint16_t *poly = gram + zero_orthogonalize_room(r * r);
    shape_t *shape;
    ZERO_TRY(find_shape(args->orthogonalizer, args->rows, args->cols, &shape));
    ZERO_TRY_CUDA(zero_cuda_muon_normalize(x, n, args->workspace, stream));
    for (int step = 0; step < args->n_steps; ++step) {
        uint16_t *from = step % 2 == 0 ? x : other, *to = step % 2 == 0 ? other : x;
        ZERO_TRY(multiply(args, &shape->products[GRAM], 1.0f, from, from, 0.0f, gram, gram, stream));
        ZERO_TRY(
            multiply(args, &shape->products[POLYNOMIAL], ZERO_MUON_C, gram, gram, ZERO_MUON_B, gram, poly, stream));
        ZERO_TRY(multiply(args, &shape->products[PRODUCT], 1.0f, is_tall ? from : poly, is_tall ? poly : from,
                          ZERO_MUON_A, from, to, stream));
    }
    if (args->n_steps % 2 == 1)
        ZERO_TRY_CUDA(cudaMemcpyAsync(x, other, n * sizeof *x, cudaMemcpyDeviceToDevice, stream));
    return ZERO_OK;
}
