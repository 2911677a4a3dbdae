/* model_cuda.h - what the CUDA model kernel files share: the context's own part, scratch from the workspace, the way to
 * cuBLASLt, and how CUDA's errors become a status.
 *
 * Policy (which algorithm, how the workspace is shared, what is refused) is in the .c files; the .cu files hold kernels
 * and the launchers of model_launch.h. On CUDA activations are of the weights' dtype, the one that the context was made
 * for. Every sum is taken in fp32 in an order that depends on shapes alone.
 */
#ifndef ZERO_MODEL_CUDA_H
#define ZERO_MODEL_CUDA_H

#include <cublasLt.h>

#include "kernels/model/attention_shape.h"
#include "kernels/model/model.h"
#include "kernels/model/cuda/model_launch.h"
#include "base/cuda_status.h"
#include "base/log.h"

typedef struct zero_gemm_plans zero_gemm_plans_t; /* gemm_cuda.c: cuBLASLt's algorithm for each shape met */
typedef struct zero_cudnn zero_cudnn_t;           /* attention_cudnn.c: cuDNN's plan for each shape met */

/* zero_model_context_t's backend. */
typedef struct zero_model_cuda {
    zero_dtype_t dtype;       /* of weights and activations */
    zero_gemm_plans_t *gemms; /* owned */
    zero_cudnn_t *cudnn;      /* owned; NULL where attention.cu does all */
} zero_model_cuda_t;

static inline zero_model_cuda_t *zero_model_cuda(const zero_model_context_t *ctx)
{
    return (zero_model_cuda_t *)ctx->backend;
}

static inline cudaStream_t zero_model_stream(const zero_model_context_t *ctx)
{
    return (cudaStream_t)ctx->stream;
}

/* ---- Status ---- */

/* Weights of another dtype than the context's are the trainer's mistake. */
static inline zero_status_t zero_check_weight(const zero_model_context_t *ctx, zero_weight_t weight)
{
    if (weight.data != NULL && weight.dtype != zero_model_cuda(ctx)->dtype)
        return zero_fail(ZERO_ERROR_ARGUMENT, "a %s weight in a %s context", zero_dtype_name(weight.dtype),
                         zero_dtype_name(zero_model_cuda(ctx)->dtype));
    return ZERO_OK;
}

/* ---- Scratch: behind cuBLASLt's part of the workspace, taken afresh by each call ---- */

#define ZERO_CUDA_ALIGN 256
#define ZERO_GEMM_WORKSPACE_BYTES ((size_t)32 << 20) /* what cuBLAS asks for on Hopper */

typedef struct zero_cuda_scratch {
    char *next;
    size_t bytes_left;
} zero_cuda_scratch_t;

static inline size_t zero_cuda_bytes(size_t n_bytes)
{
    return (n_bytes + ZERO_CUDA_ALIGN - 1) / ZERO_CUDA_ALIGN * ZERO_CUDA_ALIGN;
}

static inline zero_cuda_scratch_t zero_cuda_scratch(const zero_model_context_t *ctx)
{
    return (zero_cuda_scratch_t){(char *)ctx->workspace + ZERO_GEMM_WORKSPACE_BYTES,
                                 ctx->workspace_bytes - ZERO_GEMM_WORKSPACE_BYTES};
}

/* The call is larger than the limits that the workspace was sized by: the trainer's mistake. NULL then. */
static inline void *zero_cuda_take(zero_cuda_scratch_t *scratch, size_t n_bytes)
{
    size_t taken = zero_cuda_bytes(n_bytes);
    if (taken > scratch->bytes_left) {
        (void)zero_fail(ZERO_ERROR_ARGUMENT, "workspace too small: %zu bytes wanted, %zu left", taken,
                        scratch->bytes_left);
        return NULL;
    }
    void *data = scratch->next;
    scratch->next += taken;
    scratch->bytes_left -= taken;
    return data;
}

/* ---- Products of matrices: gemm_cuda.c; linear layers: linear_cuda.c ---- */

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans);
void zero_gemm_plans_destroy(zero_gemm_plans_t *plans); /* NULL is allowed */

/* c[m, n] = op(a)[m, k] op(b)[k, n] (+ c) (+ bias[n]), row-major; rows start ld elements apart. op transposes what is
 * stored. a, b and bias are of the context's dtype; sums are fp32, rounded once to c's. */
typedef struct zero_cuda_gemm {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    const void *a;
    size_t lda;
    const void *b;
    size_t ldb;
    void *c;
    size_t ldc;
    zero_dtype_t c_dtype;
    bool accumulate;
    const void *bias; /* NULL: none */
} zero_cuda_gemm_t;
zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm);

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_linear(zero_model_context_t *ctx, void *y, const void *x, zero_weight_t weight,
                               zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                               size_t n_out);
zero_status_t zero_cuda_linear_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                              zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                              size_t n_in, size_t n_out);
zero_status_t zero_cuda_linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                               zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                               const void *dy, size_t n_rows, size_t n_in, size_t n_out);

/* ---- Recordings: graph_cuda.c ---- */

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx);
zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **recording);
zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *recording);
void zero_cuda_graph_destroy(zero_cuda_graph_t *recording);

/* ---- Output head: loss_cuda.c ---- */

size_t zero_cuda_loss_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_head_loss(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                  const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                  const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t zero_cuda_head_logits(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                    size_t n_rows, size_t dim, size_t vocab_size);

/* ---- Attention by cuDNN: attention_cudnn.c ---- */

zero_status_t zero_cudnn_create(zero_model_context_t *ctx, zero_cudnn_t **cudnn);
void zero_cudnn_destroy(zero_cudnn_t *cudnn); /* NULL is allowed */
/* Whether cuDNN computes this shape here, deterministically and within the workspace; the same answer at every call
 * for a shape, forward and backward alike. May build the shape's plans. `why` as for zero_cudnn_may_serve. */
bool zero_cudnn_serves(zero_model_context_t *ctx, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);
size_t zero_cudnn_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cudnn_attention(zero_model_context_t *ctx, const zero_attention_shape_t *shape, void *out,
                                   float *logsumexp, const void *qkv);
zero_status_t zero_cudnn_attention_backward(zero_model_context_t *ctx, const zero_attention_shape_t *shape, void *dqkv,
                                            const void *dout, const void *qkv, const void *out, const float *logsumexp);

#endif
