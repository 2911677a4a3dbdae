/* gemm_cuda.c - matrix products on CUDA, by cuBLASLt.
 *
 * The algorithm is chosen once for each shape and kept. cuBLASLt's heuristics name candidates, the likely best first.
 * The first defines the bits of the result; of those that give the same bits, the fastest is used. So timing decides
 * how long a product takes but never what it computes, and two runs agree even if their timings differ. One result
 * shows that two candidates agree only if it is large enough (tells_orders_apart); for smaller products the first is
 * used. Measured on an H200, nearly all candidates give the same bits, and the fastest saves 5% of the time of a step's
 * products over the first. Algorithms that add partial sums by atomics or in a narrow type are excluded beforehand.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cublaslt.h"
#include "train/kernels/cuda/context.h"

/* ---- Plans ---- */

#define MAX_PLANS 1024
#define MAX_CANDIDATES 8

typedef struct plan_key {
    size_t m, n, k, lda, ldb, ldc;
    cudaDataType_t a_type, b_type;
    zero_dtype_t c_dtype;
    unsigned a_align, b_align, c_align; /* bytes, up to 16 */
    bool transpose_a, transpose_b, bias, fast_sums;
} plan_key_t;

/* All that a call needs except the pointers. */
typedef struct plan {
    plan_key_t key;
    zero_cublaslt_product_t blas;
    cublasLtMatmulHeuristicResult_t candidates[MAX_CANDIDATES]; /* usable ones */
    int n_candidates, chosen;
    bool timed; /* if not, the first candidate is used */
} plan_t;

struct zero_gemm_plans {
    zero_cublaslt_t lt;
    cublasLtHandle_t handle;
    zero_fingerprint_t *fingerprint; /* owned, device memory */
    cudaEvent_t start, end;          /* owned */
    size_t n_plans;
    plan_t plans[MAX_PLANS];
};

static void plan_destroy(const zero_cublaslt_t *lt, plan_t *plan)
{
    zero_cublaslt_product_destroy(lt, &plan->blas);
    *plan = (plan_t){0};
}

void zero_gemm_plans_destroy(zero_gemm_plans_t *plans)
{
    if (plans == NULL)
        return;
    for (size_t i = 0; i < plans->n_plans; ++i)
        plan_destroy(&plans->lt, &plans->plans[i]);
    if (plans->end != NULL)
        cudaEventDestroy(plans->end);
    if (plans->start != NULL)
        cudaEventDestroy(plans->start);
    cudaFree(plans->fingerprint);
    if (plans->handle != NULL)
        plans->lt.Destroy(plans->handle);
    free(plans);
}

static zero_status_t open_plans(zero_gemm_plans_t *plans)
{
    const zero_cublaslt_t *lt = &plans->lt;
    ZERO_TRY(zero_cublaslt_load(&plans->lt));
    ZERO_TRY_CUBLASLT(lt->Create(&plans->handle));
    ZERO_TRY_CUDA(cudaMalloc((void **)&plans->fingerprint, sizeof *plans->fingerprint));
    ZERO_TRY_CUDA(cudaEventCreate(&plans->start));
    ZERO_TRY_CUDA(cudaEventCreate(&plans->end));
    return ZERO_OK;
}

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans)
{
    zero_gemm_plans_t *created = calloc(1, sizeof *created);
    if (created == NULL)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the table of matrix products");
    zero_status_t status = open_plans(created);
    if (status != ZERO_OK) {
        zero_gemm_plans_destroy(created);
        return status;
    }
    *plans = created;
    return ZERO_OK;
}

static cudaDataType_t blas_type(zero_dtype_t dtype)
{
    return dtype == ZERO_FP32 ? CUDA_R_32F : dtype == ZERO_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static cudaDataType_t fp8_type(const zero_fp8_operand_t *operand)
{
    return operand->format == ZERO_E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

static const char *blas_type_name(cudaDataType_t type)
{
    return type == CUDA_R_32F       ? "fp32"
           : type == CUDA_R_16BF    ? "bf16"
           : type == CUDA_R_16F     ? "fp16"
           : type == CUDA_R_8F_E4M3 ? "e4m3"
                                    : "e5m2";
}

/* Returns the largest power of two, up to 16, that divides the address. */
static unsigned alignment(const void *data)
{
    uintptr_t address = (uintptr_t)data | 16;
    return (unsigned)(address & (~address + 1));
}

static plan_key_t key_of(zero_dtype_t dtype, const zero_cuda_gemm_t *g)
{
    plan_key_t key;
    memset(&key, 0, sizeof key); /* padding too, since keys are compared as bytes */
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.a_type = g->fp8 != NULL ? fp8_type(&g->fp8->a) : blas_type(dtype);
    key.b_type = g->fp8 != NULL ? fp8_type(&g->fp8->b) : blas_type(dtype);
    key.c_dtype = g->c_dtype;
    key.a_align = alignment(g->a), key.b_align = alignment(g->b), key.c_align = alignment(g->c);
    key.transpose_a = g->transpose_a, key.transpose_b = g->transpose_b;
    key.bias = g->bias != NULL;
    key.fast_sums = g->fast_sums;
    return key;
}

/* Describes the product to cuBLASLt, whose matrices are column-major: it reads each of our matrices as its transpose
 * and computes c^T = op(b)^T op(a)^T. So its A is b, its B is a, and both keep their flags. */
static zero_status_t describe(const zero_cublaslt_t *lt, plan_t *plan)
{
    const plan_key_t *key = &plan->key;
    cublasOperation_t op_a = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    int8_t fast_sums = key->fast_sums;
    ZERO_TRY_CUBLASLT(lt->MatmulDescCreate(&plan->blas.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    ZERO_TRY_CUBLASLT(lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_sums,
                                                 sizeof fast_sums));
    ZERO_TRY_CUBLASLT(lt->MatrixLayoutCreate(&plan->blas.a, key->b_type, key->transpose_b ? key->k : key->n,
                                             key->transpose_b ? key->n : key->k, (int64_t)key->ldb));
    ZERO_TRY_CUBLASLT(lt->MatrixLayoutCreate(&plan->blas.b, key->a_type, key->transpose_a ? key->m : key->k,
                                             key->transpose_a ? key->k : key->m, (int64_t)key->lda));
    ZERO_TRY_CUBLASLT(
        lt->MatrixLayoutCreate(&plan->blas.c, blas_type(key->c_dtype), key->n, key->m, (int64_t)key->ldc));
    return ZERO_OK;
}

static cublasStatus_t set_preference(const zero_cublaslt_t *lt, cublasLtMatmulPreference_t preference,
                                     const plan_key_t *key)
{
    uint32_t aligns[] = {key->b_align, key->a_align, key->c_align, key->c_align};
    static const cublasLtMatmulPreferenceAttributes_t names[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t status = zero_cublaslt_prefer(lt, preference, ZERO_GEMM_WORKSPACE_BYTES);
    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < 4; ++i)
        status = lt->MatmulPreferenceSetAttribute(preference, names[i], &aligns[i], sizeof aligns[i]);
    return status;
}

static zero_status_t find_candidates(zero_gemm_plans_t *plans, plan_t *plan)
{
    const zero_cublaslt_t *lt = &plans->lt;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[MAX_CANDIDATES];
    int n_results = 0;
    ZERO_TRY_CUBLASLT(lt->MatmulPreferenceCreate(&preference));
    cublasStatus_t status = set_preference(lt, preference, &plan->key);
    if (status == CUBLAS_STATUS_SUCCESS)
        status =
            lt->MatmulAlgoGetHeuristic(plans->handle, plan->blas.operation, plan->blas.a, plan->blas.b, plan->blas.c,
                                       plan->blas.c, preference, MAX_CANDIDATES, results, &n_results);
    lt->MatmulPreferenceDestroy(preference);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < n_results; ++i)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            plan->candidates[plan->n_candidates++] = results[i];
    if (plan->n_candidates > 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_DEVICE, "cuBLASLt has no algorithm for %zu x %zu x %zu, %s and %s to %s: %s",
                     plan->key.m, plan->key.n, plan->key.k, blas_type_name(plan->key.a_type),
                     blas_type_name(plan->key.b_type), zero_dtype_name(plan->key.c_dtype), lt->GetStatusString(status));
}

/* Tells cuBLASLt where the call's bias and scales are. */
static zero_status_t set_pointers(const zero_cublaslt_t *lt, const plan_t *plan, const zero_cuda_gemm_t *gemm)
{
    if (gemm->bias != NULL)
        ZERO_TRY_CUBLASLT(lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                     &gemm->bias, sizeof gemm->bias));
    if (gemm->fp8 == NULL)
        return ZERO_OK;
    const float *of_a = &gemm->fp8->a.scales->inverse, *of_b = &gemm->fp8->b.scales->inverse;
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &of_b, sizeof of_b));
    ZERO_TRY_CUBLASLT(
        lt->MatmulDescSetAttribute(plan->blas.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_a, sizeof of_a));
    return ZERO_OK;
}

static zero_status_t add_plan(zero_gemm_plans_t *plans, const plan_key_t *key, const zero_cuda_gemm_t *gemm,
                              plan_t **out)
{
    if (plans->n_plans == MAX_PLANS)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "more than %d shapes of matrix products", MAX_PLANS);
    plan_t *plan = &plans->plans[plans->n_plans];
    plan->key = *key;
    zero_status_t status = describe(&plans->lt, plan);
    if (status == ZERO_OK)
        status = set_pointers(&plans->lt, plan, gemm);
    if (status == ZERO_OK)
        status = find_candidates(plans, plan);
    if (status != ZERO_OK) {
        plan_destroy(&plans->lt, plan);
        return status;
    }
    ++plans->n_plans;
    *out = plan;
    return ZERO_OK;
}

static zero_status_t find_plan(zero_gemm_plans_t *plans, const plan_key_t *key, const zero_cuda_gemm_t *gemm,
                               plan_t **out)
{
    for (size_t i = 0; i < plans->n_plans; ++i) {
        if (memcmp(&plans->plans[i].key, key, sizeof *key) == 0) {
            *out = &plans->plans[i];
            return set_pointers(&plans->lt, *out, gemm);
        }
    }
    return add_plan(plans, key, gemm, out);
}

static cublasStatus_t run(zero_model_context_t *ctx, const plan_t *plan, const zero_cuda_gemm_t *gemm, int candidate)
{
    const zero_gemm_plans_t *plans = zero_model_cuda(ctx)->gemms;
    float alpha = gemm->scale != 0.0f ? gemm->scale : 1.0f, beta = gemm->accumulate ? 1.0f : 0.0f;
    return plans->lt.Matmul(plans->handle, plan->blas.operation, &alpha, gemm->b, plan->blas.a, gemm->a, plan->blas.b,
                            &beta, gemm->c, plan->blas.c, gemm->c, plan->blas.c, &plan->candidates[candidate].algo,
                            ctx->workspace, ZERO_GEMM_WORKSPACE_BYTES, zero_model_stream(ctx));
}

/* ---- The fastest candidate ---- */

#define N_TIMED_RUNS 3
#define LONG_MS 5.0f /* a run this long is timed once: noise hardly matters */

/* Runs a candidate several times, or once or twice if that takes long, and returns its least time and the fingerprint
 * of c. If that time is at least `limit_ms`, there is no fingerprint. */
static zero_status_t time_candidate(zero_model_context_t *ctx, const plan_t *plan, const zero_cuda_gemm_t *gemm,
                                    int candidate, float limit_ms, float *least_ms, zero_fingerprint_t *fingerprint)
{
    zero_gemm_plans_t *plans = zero_model_cuda(ctx)->gemms;
    const zero_cublaslt_t *lt = &plans->lt;
    cudaStream_t stream = zero_model_stream(ctx);
    bool is_long = true;
    *least_ms = INFINITY;
    for (int i = 0; i <= N_TIMED_RUNS; ++i) { /* the first loads the kernel, which may take milliseconds */
        float ms;
        ZERO_TRY_CUDA(cudaEventRecord(plans->start, stream));
        ZERO_TRY_CUBLASLT(run(ctx, plan, gemm, candidate));
        ZERO_TRY_CUDA(cudaEventRecord(plans->end, stream));
        ZERO_TRY_CUDA(cudaEventSynchronize(plans->end));
        ZERO_TRY_CUDA(cudaEventElapsedTime(&ms, plans->start, plans->end));
        is_long = is_long && ms >= LONG_MS;
        const bool is_too_slow = limit_ms >= LONG_MS && ms > 1.5f * limit_ms + LONG_MS; /* even if it was loaded */
        if ((i > 0 || is_too_slow) && ms < *least_ms)
            *least_ms = ms;
        if (is_long && *least_ms < INFINITY)
            break;
    }
    if (*least_ms >= limit_ms)
        return ZERO_OK;
    ZERO_TRY_CUDA(
        zero_launch_fingerprint(stream, gemm->c_dtype, plans->fingerprint, gemm->c, gemm->m, gemm->n, gemm->ldc));
    ZERO_TRY_CUDA(
        cudaMemcpyAsync(fingerprint, plans->fingerprint, sizeof *fingerprint, cudaMemcpyDeviceToHost, stream));
    ZERO_TRY_CUDA(cudaStreamSynchronize(stream));
    return ZERO_OK;
}

/* Whether two algorithms that add in different orders would give different bits here, all but certainly. Their sums of
 * k products differ by about 2^-24 sqrt(k / 16) of their size: a step of a tensor core adds 16 products and rounds
 * once. An element is unlike if a rounding boundary of c's dtype lies in between, which then happens at random. On an
 * H100, of 1024 x 1024 sums in bf16, 0.4 times as many were unlike as this says with k = 32, 0.7 times with 64, 1.9
 * with 256 and 7.7 with 4096. Sums of fp8's short products are rounded more seldom, how much is not known: hence
 * the 16. With 25 unlike elements expected, there are none once in e^25 cases. */
static bool tells_orders_apart(const plan_key_t *key)
{
    const int digits = key->c_dtype == ZERO_FP32 ? 24 : key->c_dtype == ZERO_BF16 ? 8 : 11;
    const bool in_fp8 = key->a_type == CUDA_R_8F_E4M3 || key->a_type == CUDA_R_8F_E5M2;
    const double share = ldexp(sqrt((double)key->k) / 4.0, digits - 24) / (in_fp8 ? 16.0 : 1.0);
    return (double)key->m * (double)key->n * (share < 0.5 ? share : 0.5) >= 64.0;
}

/* Times all candidates, with c as scratch: only for products that overwrite c. If most of c's elements are equal, the
 * bits prove nothing, and a later call chooses. */
static zero_status_t choose_fastest(zero_model_context_t *ctx, plan_t *plan, const zero_cuda_gemm_t *gemm)
{
    zero_fingerprint_t first, other;
    float best_ms, ms;
    ZERO_TRY(time_candidate(ctx, plan, gemm, 0, INFINITY, &best_ms, &first));
    if (first.n_unlike_first < gemm->m * gemm->n / 2)
        return ZERO_OK;
    for (int i = 1; i < plan->n_candidates; ++i) {
        ZERO_TRY(time_candidate(ctx, plan, gemm, i, best_ms, &ms, &other));
        if (ms < best_ms && other.hash == first.hash) {
            best_ms = ms;
            plan->chosen = i;
        }
    }
    plan->timed = true;
    return ZERO_OK;
}

/* Returns whether waiting for the device, as timing does, is allowed: not while a graph is captured. */
static bool may_wait(zero_model_context_t *ctx)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    return cudaStreamIsCapturing(zero_model_stream(ctx), &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusNone;
}

/* Fills c with the bias and accumulates the product there, so that each sum is still rounded once. For a bias that is
 * not aligned to 16 bytes, which no algorithm promises to read. */
static zero_status_t gemm_onto_bias(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm)
{
    zero_cuda_gemm_t onto = *gemm;
    ZERO_TRY_CUDA(zero_launch_fill_rows(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, gemm->c, gemm->bias,
                                        gemm->m, gemm->n));
    onto.bias = NULL;
    onto.accumulate = true;
    return zero_cuda_gemm(ctx, &onto);
}

zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm)
{
    zero_model_cuda_t *cuda = zero_model_cuda(ctx);
    const zero_cublaslt_t *lt = &cuda->gemms->lt;
    plan_key_t key = key_of(cuda->dtype, gemm);
    plan_t *plan = NULL;
    if (gemm->bias != NULL && alignment(gemm->bias) < 16)
        return gemm_onto_bias(ctx, gemm);
    ZERO_TRY(find_plan(cuda->gemms, &key, gemm, &plan));
    if (!plan->timed && !gemm->accumulate && tells_orders_apart(&plan->key) && may_wait(ctx))
        ZERO_TRY(choose_fastest(ctx, plan, gemm));
    ZERO_TRY_CUBLASLT(run(ctx, plan, gemm, plan->chosen));
    return ZERO_OK;
}
