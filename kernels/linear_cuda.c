/* linear_cuda.c - linear layers on CUDA: products of matrices by cuBLASLt, bias in the epilogue, weight gradients summed
 * into the gradient by the product itself.
 *
 * The algorithm is chosen once for each shape and kept. It is the first that cuBLASLt's heuristics name: the choice must
 * be the same in every run, since another algorithm may round differently, so nothing is timed. Algorithms that add
 * partial sums by atomics or in a narrow type are ruled out beforehand.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/model_cuda.h"

/* ---- Plans ---- */

#define MAX_PLANS 256

typedef struct plan_key {
    size_t m, n, k, lda, ldb, ldc;
    zero_dtype_t dtype, c_dtype;
    unsigned a_align, b_align, c_align; /* bytes, up to 16 */
    bool transpose_a, transpose_b, accumulate, bias;
} plan_key_t;

/* Everything a call needs but the pointers. */
typedef struct plan {
    plan_key_t key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
} plan_t;

struct zero_gemm_plans {
    cublasLtHandle_t handle;
    size_t n_plans;
    plan_t plans[MAX_PLANS];
};

#define TRY_BLAS(call)                                                                                                 \
    do {                                                                                                               \
        cublasStatus_t blas_status = (call);                                                                           \
        if (blas_status != CUBLAS_STATUS_SUCCESS)                                                                      \
            return zero_fail(ZERO_ERROR_DEVICE, "%s: %s", #call, cublasLtGetStatusString(blas_status));                \
    } while (0)

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans)
{
    zero_gemm_plans_t *created = calloc(1, sizeof *created);
    if (created == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the table of matrix products");
    cublasStatus_t status = cublasLtCreate(&created->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(created);
        return zero_fail(ZERO_ERROR_DEVICE, "cublasLtCreate: %s", cublasLtGetStatusString(status));
    }
    *plans = created;
    return ZERO_OK;
}

static void plan_destroy(plan_t *plan)
{
    if (plan->operation != NULL)
        cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a != NULL)
        cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b != NULL)
        cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c != NULL)
        cublasLtMatrixLayoutDestroy(plan->c);
    *plan = (plan_t){0};
}

void zero_gemm_plans_destroy(zero_gemm_plans_t *plans)
{
    if (plans == NULL)
        return;
    for (size_t i = 0; i < plans->n_plans; ++i)
        plan_destroy(&plans->plans[i]);
    cublasLtDestroy(plans->handle);
    free(plans);
}

static cudaDataType_t blas_type(zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? CUDA_R_32F : dtype == ZERO_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* The largest power of two up to 16 that divides the address. */
static unsigned alignment(const void *data)
{
    uintptr_t address = (uintptr_t)data | 16;
    return (unsigned)(address & (~address + 1));
}

static plan_key_t key_of(zero_dtype_t dtype, const zero_cuda_gemm_t *g)
{
    plan_key_t key;
    memset(&key, 0, sizeof key); /* keys are compared as bytes: padding too */
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.dtype = dtype, key.c_dtype = g->c_dtype;
    key.a_align = alignment(g->a), key.b_align = alignment(g->b), key.c_align = alignment(g->c);
    if (g->bias != NULL && alignment(g->bias) < key.c_align)
        key.c_align = alignment(g->bias); /* the epilogue reads it as it writes c, and has no alignment of its own */
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.accumulate = g->accumulate, key.bias = g->bias != NULL;
    return key;
}

/* cuBLASLt counts columns first: it computes c^T = op(b)^T op(a)^T, and what is stored by rows it takes for the
 * transpose. So its A is b, its B is a, and both keep their flags. */
static zero_status_t describe(plan_t *plan)
{
    const plan_key_t *key = &plan->key;
    cublasOperation_t op_a = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType_t in = blas_type(key->dtype), out = blas_type(key->c_dtype);
    TRY_BLAS(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    TRY_BLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    TRY_BLAS(
        cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&plan->a, in, key->transpose_b ? key->k : key->n,
                                        key->transpose_b ? key->n : key->k, (int64_t)key->ldb));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&plan->b, in, key->transpose_a ? key->m : key->k,
                                        key->transpose_a ? key->k : key->m, (int64_t)key->lda));
    TRY_BLAS(cublasLtMatrixLayoutCreate(&plan->c, out, key->n, key->m, (int64_t)key->ldc));
    return ZERO_OK;
}

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, const plan_key_t *key)
{
    size_t workspace = ZERO_GEMM_WORKSPACE_BYTES;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* not INPLACE, whose atomics add in any order */
    uint32_t aligns[] = {key->b_align, key->a_align, key->c_align, key->c_align};
    static const cublasLtMatmulPreferenceAttributes_t names[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                 &workspace, sizeof workspace);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reductions, sizeof reductions);
    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < 4; ++i)
        status = cublasLtMatmulPreferenceSetAttribute(preference, names[i], &aligns[i], sizeof aligns[i]);
    return status;
}

static zero_status_t choose_algorithm(cublasLtHandle_t handle, plan_t *plan)
{
    enum { MOST = 8 };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[MOST];
    int n_results = 0;
    TRY_BLAS(cublasLtMatmulPreferenceCreate(&preference));
    cublasStatus_t status = set_preference(preference, &plan->key);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(handle, plan->operation, plan->a, plan->b, plan->c, plan->c, preference,
                                                MOST, results, &n_results);
    cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n_results; ++i) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS) {
            plan->algorithm = results[i].algo;
            return ZERO_OK;
        }
    }
    return zero_fail(ZERO_ERROR_DEVICE, "cuBLASLt has no algorithm for %zu x %zu x %zu, %s to %s: %s", plan->key.m,
                     plan->key.n, plan->key.k, zero_dtype_name(plan->key.dtype), zero_dtype_name(plan->key.c_dtype),
                     cublasLtGetStatusString(status));
}

static zero_status_t add_plan(zero_gemm_plans_t *plans, const plan_key_t *key, plan_t **out)
{
    if (plans->n_plans == MAX_PLANS)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "more than %d shapes of matrix products", MAX_PLANS);
    plan_t *plan = &plans->plans[plans->n_plans];
    plan->key = *key;
    zero_status_t status = describe(plan);
    if (status == ZERO_OK)
        status = choose_algorithm(plans->handle, plan);
    if (status != ZERO_OK) {
        plan_destroy(plan);
        return status;
    }
    ++plans->n_plans;
    *out = plan;
    return ZERO_OK;
}

static zero_status_t find_plan(zero_gemm_plans_t *plans, const plan_key_t *key, plan_t **out)
{
    for (size_t i = 0; i < plans->n_plans; ++i) {
        if (memcmp(&plans->plans[i].key, key, sizeof *key) == 0) {
            *out = &plans->plans[i];
            return ZERO_OK;
        }
    }
    return add_plan(plans, key, out);
}

zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm)
{
    zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    plan_key_t key = key_of(cuda->dtype, gemm);
    plan_t *plan = NULL;
    float alpha = 1.0f, beta = gemm->accumulate ? 1.0f : 0.0f;
    ZERO_TRY(find_plan(cuda->gemms, &key, &plan));
    if (gemm->bias != NULL)
        TRY_BLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &gemm->bias,
                                                sizeof gemm->bias));
    TRY_BLAS(cublasLtMatmul(cuda->gemms->handle, plan->operation, &alpha, gemm->b, plan->a, gemm->a, plan->b, &beta,
                            gemm->c, plan->c, gemm->c, plan->c, &plan->algorithm, ctx->workspace,
                            ZERO_GEMM_WORKSPACE_BYTES, zero_model_stream(ctx)));
    return ZERO_OK;
}

/* ---- The table's functions ---- */

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits)
{
    return zero_cuda_bytes(zero_column_sum_parts(limits->n_rows) * limits->max_width * sizeof(float));
}

zero_status_t zero_cuda_linear(zero_model_context_t *ctx, void *y, const void *x, zero_weight_t weight,
                               zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                               size_t n_out)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    ZERO_TRY(zero_check_weight(ctx, bias));
    bool in_out = layout == ZERO_LINEAR_IN_OUT;
    zero_cuda_gemm_t gemm = {.transpose_b = !in_out,
                             .m = n_rows,
                             .n = n_out,
                             .k = n_in,
                             .a = x,
                             .lda = n_in,
                             .b = weight.data,
                             .ldb = in_out ? n_out : n_in,
                             .c = y,
                             .ldc = n_out,
                             .c_dtype = weight.dtype,
                             .bias = bias.data};
    return zero_cuda_gemm(ctx, &gemm);
}

zero_status_t zero_cuda_linear_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                              zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                              size_t n_in, size_t n_out)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    bool in_out = layout == ZERO_LINEAR_IN_OUT;
    zero_cuda_gemm_t gemm = {.transpose_b = in_out,
                             .m = n_rows,
                             .n = n_in,
                             .k = n_out,
                             .a = dy,
                             .lda = n_out,
                             .b = weight.data,
                             .ldb = in_out ? n_out : n_in,
                             .c = dx,
                             .ldc = n_in,
                             .c_dtype = weight.dtype,
                             .accumulate = accumulate};
    return zero_cuda_gemm(ctx, &gemm);
}

zero_status_t zero_cuda_linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                               zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                               const void *dy, size_t n_rows, size_t n_in, size_t n_out)
{
    bool in_out = layout == ZERO_LINEAR_IN_OUT; /* dW = x^T dy, else dW = dy^T x */
    zero_cuda_gemm_t gemm = {.transpose_a = true,
                             .m = in_out ? n_in : n_out,
                             .n = in_out ? n_out : n_in,
                             .k = n_rows,
                             .a = in_out ? x : dy,
                             .lda = in_out ? n_in : n_out,
                             .b = in_out ? dy : x,
                             .ldb = in_out ? n_out : n_in,
                             .c = dweight.data,
                             .ldc = in_out ? n_out : n_in,
                             .c_dtype = dweight.dtype,
                             .accumulate = dweight.accumulate};
    ZERO_TRY(zero_cuda_gemm(ctx, &gemm));
    if (dbias.data == NULL)
        return ZERO_OK;
    zero_cuda_scratch_t scratch = zero_cuda_scratch(ctx);
    float *partials = zero_cuda_take(&scratch, zero_column_sum_parts(n_rows) * n_out * sizeof *partials);
    if (partials == NULL)
        return ZERO_ERROR_ARGUMENT;
    ZERO_TRY_CUDA(zero_launch_column_sum(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, dbias, dy, partials,
                                         n_rows, n_out));
    return ZERO_OK;
}
