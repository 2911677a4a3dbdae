/* context.h - what the C files of the CUDA model kernels share: the context behind zero_model_context_t, its stream,
 * and scratch from its workspace.
 *
 * Activations have the dtype of the weights, for which the context was created. The C files decide which algorithm
 * runs, how the workspace is divided and what is refused; the .cu files hold kernels and the launchers of
 * model_launch.h. Every sum is taken in fp32, in an order that depends on shapes alone.
 */
#ifndef ZERO_CUDA_CONTEXT_H
#define ZERO_CUDA_CONTEXT_H

#include "base/cuda_status.h"
#include "kernels/model/cuda/model_launch.h"
#include "kernels/model/scratch.h"

typedef struct zero_gemm_plans zero_gemm_plans_t; /* gemm_cuda.c: cuBLASLt's algorithm for each shape */
typedef struct zero_cudnn zero_cudnn_t;           /* attention_cudnn.c: cuDNN's plan for each shape */

/* What zero_model_context_t's `backend` points to. */
typedef struct zero_model_cuda {
    zero_dtype_t dtype;       /* of weights and activations */
    size_t seq_len;           /* the limits' */
    zero_gemm_plans_t *gemms; /* owned */
    zero_cudnn_t *cudnn;      /* owned; NULL if our own kernels compute all attention */
} zero_model_cuda_t;

static inline zero_model_cuda_t *zero_model_cuda(const zero_model_context_t *ctx)
{
    return (zero_model_cuda_t *)ctx->backend;
}

static inline cudaStream_t zero_model_stream(const zero_model_context_t *ctx)
{
    return (cudaStream_t)ctx->stream;
}

/* Refuses a weight whose dtype is not the context's, which is the trainer's mistake. */
static inline zero_status_t zero_check_weight(const zero_model_context_t *ctx, zero_weight_t weight)
{
    if (weight.data != NULL && weight.dtype != zero_model_cuda(ctx)->dtype)
        return zero_fail(ZERO_ERROR_ARGUMENT, "a %s weight in a %s context", zero_dtype_name(weight.dtype),
                         zero_dtype_name(zero_model_cuda(ctx)->dtype));
    return ZERO_OK;
}

/* The workspace begins with cuBLASLt's part; scratch is behind it. */
#define ZERO_GEMM_WORKSPACE_BYTES ((size_t)32 << 20) /* what cuBLAS asks for on Hopper */

static inline zero_scratch_t zero_cuda_scratch(const zero_model_context_t *ctx)
{
    return (zero_scratch_t){(char *)ctx->workspace + ZERO_GEMM_WORKSPACE_BYTES,
                            ctx->workspace_bytes - ZERO_GEMM_WORKSPACE_BYTES};
}

#endif
