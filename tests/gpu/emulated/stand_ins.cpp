/* stand_ins.cpp - what takes the place of CUDA's runtime, of cuBLASLt, and of attention's kernels.
 *
 * Memory is the host's, and NaN when allocated. Work is done when a call returns. The GPU is an A100, so that nothing
 * is asked to use clusters, launches that overlap, or fp8 products. Attention is not emulated: its calls fail. Nor
 * are the kernels of adapters, which take nothing.
 */
#include <malloc.h>
#include <stdlib.h>

#include <vector>

#include "tests/gpu/emulated/device.h"

extern "C" {
#include "train/kernels/adapters/adapters.h"
#include "train/kernels/cuda/context.h"
}
#include "kernels/cuda/shard_cuda.h"
#include "kernels/float_bits.h"
#include "kernels/shard_math.h"

extern "C" {
/* ---- CUDA's runtime ---- */
cudaError_t cudaMalloc(void **memory, size_t n_bytes)
{
    /* Freed memory is kept: filling pages that the system has just given takes most of the time. */
    static const bool kept = mallopt(M_MMAP_MAX, 0) && mallopt(M_TRIM_THRESHOLD, 1 << 30);
    *memory = kept ? aligned_alloc(256, (n_bytes + 511) / 256 * 256) : nullptr;
    if (*memory == nullptr)
        return cudaErrorMemoryAllocation;
    memset(*memory, 0xff, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 8
             : attribute == cudaDevAttrComputeCapabilityMinor ? 9
             : attribute == cudaDevAttrMultiProcessorCount    ? 132
                                                              : 99 << 10; /* shared memory of a block */
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t)
{
    return "the emulated runtime has no such call";
}
const char *cudaGetErrorName(cudaError_t)
{
    return "emulated";
}

/* A call that does this and succeeds; one that has nothing to do; one that this runtime lacks. */
#define DOES(name, parameters, action)                                                                                 \
    cudaError_t name parameters                                                                                        \
    {                                                                                                                  \
        return (void)(action), cudaSuccess;                                                                            \
    }
#define NEEDS_NOT(name, ...)                                                                                           \
    cudaError_t name(__VA_ARGS__)                                                                                      \
    {                                                                                                                  \
        return cudaSuccess;                                                                                            \
    }
#define LACKS(name, ...)                                                                                               \
    cudaError_t name(__VA_ARGS__)                                                                                      \
    {                                                                                                                  \
        return cudaErrorNotSupported;                                                                                  \
    }

DOES(cudaFree, (void *memory), (free(memory), 0))
DOES(cudaFreeHost, (void *memory), (free(memory), 0))
DOES(cudaMemset, (void *memory, int value, size_t n_bytes), memset(memory, value, n_bytes))
DOES(cudaMemsetAsync, (void *memory, int value, size_t n_bytes, cudaStream_t), memset(memory, value, n_bytes))
DOES(cudaMemcpy, (void *to, const void *from, size_t n_bytes, cudaMemcpyKind), memmove(to, from, n_bytes))
DOES(cudaMemcpyAsync, (void *to, const void *from, size_t n_bytes, cudaMemcpyKind, cudaStream_t),
     memmove(to, from, n_bytes))
DOES(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned), *stream = (cudaStream_t)malloc(1))
DOES(cudaStreamDestroy, (cudaStream_t stream), (free(stream), 0))
DOES(cudaGetDevice, (int *gpu), *gpu = 0)
DOES(cudaGetDeviceCount, (int *n_gpus), *n_gpus = 1)
NEEDS_NOT(cudaDeviceSynchronize, void)
NEEDS_NOT(cudaStreamSynchronize, cudaStream_t)
NEEDS_NOT(cudaGetLastError, void)
NEEDS_NOT(cudaPeekAtLastError, void)
NEEDS_NOT(cudaFuncSetAttribute, const void *, cudaFuncAttribute, int)
LACKS(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
LACKS(cudaStreamEndCapture, cudaStream_t, cudaGraph_t *)
LACKS(cudaGraphInstantiate, cudaGraphExec_t *, cudaGraph_t, unsigned long long)
LACKS(cudaGraphDestroy, cudaGraph_t)
LACKS(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
LACKS(cudaGraphExecDestroy, cudaGraphExec_t)

cudaError_t cudaMallocHost(void **memory, size_t n_bytes)
{
    return cudaMalloc(memory, n_bytes);
}

/* ---- Products: loops, with sums in double that are rounded once ---- */
static float element(const void *data, size_t i, zero_dtype_t dtype)
{
    if (dtype == ZERO_FP32)
        return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return dtype == ZERO_BF16 ? zero_float_of_bf16(half) : zero_float_of_fp16(half);
}
static void put_element(void *data, size_t i, zero_dtype_t dtype, float x)
{
    if (dtype == ZERO_FP32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = dtype == ZERO_BF16 ? zero_bf16_of_float(x) : zero_fp16_of_float(x);
}

/* Returns the matrix with rows of k elements, which are columns if `transpose`. */
static std::vector<float> rows_of(const void *data, zero_dtype_t dtype, bool transpose, size_t n, size_t k, size_t ld)
{
    std::vector<float> rows(n * k);
    for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < k; ++j)
            rows[i * k + j] = element(data, transpose ? j * ld + i : i * ld + j, dtype);
    return rows;
}

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans)
{
    *plans = nullptr;
    return ZERO_OK;
}
void zero_gemm_plans_destroy(zero_gemm_plans_t *)
{
}
zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *g)
{
    const zero_dtype_t dtype = zero_model_cuda(ctx)->dtype;
    if (g->fp8 != nullptr)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "products in fp8 are not emulated");
    const std::vector<float> a = rows_of(g->a, dtype, g->transpose_a, g->m, g->k, g->lda);
    const std::vector<float> b = rows_of(g->b, dtype, !g->transpose_b, g->n, g->k, g->ldb);
    for (size_t i = 0; i < g->m; ++i)
        for (size_t j = 0; j < g->n; ++j) {
            double sum = 0.0;
            for (size_t k = 0; k < g->k; ++k)
                sum += (double)a[i * g->k + k] * (double)b[j * g->k + k];
            sum *= g->scale == 0.0f ? 1.0 : (double)g->scale;
            if (g->accumulate)
                sum += (double)element(g->c, i * g->ldc + j, g->c_dtype);
            if (g->bias != nullptr)
                sum += (double)element(g->bias, j, dtype);
            put_element(g->c, i * g->ldc + j, g->c_dtype, (float)sum);
        }
    return ZERO_OK;
}

/* ---- Not emulated: attention, and Muon's orthogonalization, whose products are cuBLASLt's own ---- */
#define REFUSES(name, ...)                                                                                             \
    zero_status_t name(__VA_ARGS__)                                                                                    \
    {                                                                                                                  \
        return zero_fail(ZERO_ERROR_UNSUPPORTED, #name " is not emulated");                                            \
    }
REFUSES(zero_cuda_attention, zero_model_context_t *, void *, float *, const void *, const zero_mask_t *,
        const zero_attention_shape_t *)
REFUSES(zero_cuda_attention_backward, zero_model_context_t *, void *, const void *, const void *, const void *,
        const float *, const zero_mask_t *, const zero_attention_shape_t *)
REFUSES(zero_cuda_attention_cached, zero_model_context_t *, void *, float *, void *, const void *, const zero_mask_t *,
        const zero_attention_shape_t *)
REFUSES(zero_cuda_orthogonalize, const zero_orthogonalize_t *, int, cudaStream_t)
REFUSES(zero_cuda_orthogonalizer_create, zero_orthogonalizer_t **)
REFUSES(zero_cuda_orthogonalizer_prepare, zero_orthogonalizer_t *, uint64_t, uint64_t)

#define ANSWERS(type, name, answer, ...)                                                                               \
    type name(__VA_ARGS__)                                                                                             \
    {                                                                                                                  \
        return answer;                                                                                                 \
    }
ANSWERS(void, zero_cuda_orthogonalizer_destroy, (void)0, zero_orthogonalizer_t *)
ANSWERS(zero_status_t, zero_cuda_attention_create, ZERO_OK, zero_model_context_t *)
ANSWERS(void, zero_cuda_attention_destroy, (void)0, zero_model_context_t *)
ANSWERS(size_t, zero_cuda_attention_workspace, 0, const zero_model_limits_t *)
ANSWERS(size_t, zero_cuda_cached_workspace, 0, const zero_model_limits_t *)
ANSWERS(zero_status_t, zero_cuda_check_attention, ZERO_OK, const zero_attention_shape_t *)
ANSWERS(bool, zero_cuda_attention_is_slow, false, zero_model_context_t *, const zero_mask_t *,
        const zero_attention_shape_t *, char *)
/* ---- adapters ---- */
bool zero_narrow_takes(const zero_narrow_product_t *)
{
    return false;
}
cudaError_t zero_launch_narrow(cudaStream_t, const zero_narrow_product_t *, float *)
{
    return cudaErrorNotSupported;
}
bool zero_low_rank_takes(const zero_product_t *)
{
    return false;
}
cudaError_t zero_launch_low_rank(cudaStream_t, const zero_product_t *)
{
    return cudaErrorNotSupported;
}
bool zero_gated_takes(size_t, size_t)
{
    return false;
}
cudaError_t zero_launch_gated(cudaStream_t, bool, const zero_gated_adapters_t *, void *, const void *, size_t, size_t,
                              uint32_t *)
{
    return cudaErrorNotSupported;
}
cudaError_t zero_launch_gated_backward(cudaStream_t, bool, const zero_gated_adapters_t *, void *, void *, const void *,
                                       const void *, size_t, size_t, uint32_t *)
{
    return cudaErrorNotSupported;
}
} // extern "C"
