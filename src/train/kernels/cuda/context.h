/* context.h - what the C files of the CUDA model kernels share: the context behind zero_model_context_t, its
 * stream, and scratch from its workspace.
 *
 * Activations have the dtype of the weights, for which the context was created. The C files decide which algorithm
 * runs, how the workspace is divided and what is refused; the .cu files hold kernels and the launchers of
 * launch.h. Every sum is taken in fp32, in an order that depends on shapes alone.
 */
#ifndef ZERO_CUDA_CONTEXT_H
#define ZERO_CUDA_CONTEXT_H

#include "base/cuda_status.h"
#include "train/kernels/common.h"
#include "train/kernels/cuda/launch.h"
#include "train/kernels/kernels.h"

typedef struct zero_gemm_plans zero_gemm_plans_t; /* gemm_cuda.c: cuBLASLt's algorithm for each shape */
typedef struct zero_cudnn zero_cudnn_t;           /* attention_cudnn.c: cuDNN's plan for each shape */

/* What zero_model_context_t's `backend` points to. */
typedef struct zero_model_cuda {
    zero_dtype_t dtype;       /* of weights and activations */
    size_t n_rows, seq_len;   /* the limits' */
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

/* ---- gemm cuda ---- */
/* Matrix products of a CUDA context. */

zero_status_t zero_gemm_plans_create(zero_gemm_plans_t **plans);
void zero_gemm_plans_destroy(zero_gemm_plans_t *plans); /* NULL is allowed */

/* c[m, n] = scale op(a)[m, k] op(b)[k, n] (+ c) (+ bias[n]), row-major, with rows of stride ld; op may transpose. a, b
 * and bias have the context's dtype; sums are fp32, rounded once to c's dtype. With fp8, a and b are bytes in its
 * formats, and sums are multiplied by both inverse scales; cuBLASLt then rounds them to c's dtype before it adds c,
 * too. */
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
    float scale; /* 0 stands for 1 */
    bool accumulate;
    const void *bias;              /* NULL: none */
    const zero_fp8_product_t *fp8; /* NULL: not in fp8 */
    bool fast_sums;                /* fp8: sums may have fewer bits than fp32 */
} zero_cuda_gemm_t;
/* Queues the product. The first calls of a shape also choose its algorithm, and wait for the device. */
zero_status_t zero_cuda_gemm(zero_model_context_t *ctx, const zero_cuda_gemm_t *gemm);

/* ---- table entries ---- */
/* The functions of the CUDA table that have a C file of their own; kernels_cuda.c enters them in the table. Contracts
 * are in kernels.h. */

/* ---- linear_cuda.c ---- */

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_linear(zero_model_context_t *ctx, void *y, bool accumulate, const void *x, zero_weight_t weight,
                               zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                               size_t n_out);
zero_status_t zero_cuda_linear_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                              zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                              size_t n_in, size_t n_out);
zero_status_t zero_cuda_linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                               zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                               const void *dy, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_cuda_sum_columns(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                    size_t n_columns);

/* ---- linear_cuda.c, in fp8 ---- */

bool zero_cuda_fp8_is_available(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY]);
/* What precedes a cast: refuses what cannot be cast, and finds the absmax unless it is known. */
zero_status_t zero_cuda_fp8_begin_cast(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x,
                                       bool absmax_is_known, size_t n_rows, size_t n_columns);
zero_status_t zero_cuda_fp8_cast(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x, bool absmax_is_known,
                                 size_t n_rows, size_t n_columns);
zero_status_t zero_cuda_fp8_cast_weight(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                        bool absmax_is_known, size_t n_rows, size_t n_columns);
zero_status_t zero_cuda_fp8_widen(zero_model_context_t *ctx, void *weight, zero_fp8_param_t bytes, size_t n_elems);
zero_status_t zero_cuda_fp8_transpose(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                      size_t n_columns);
zero_status_t zero_cuda_linear_fp8(zero_model_context_t *ctx, void *y, bool accumulate, const zero_fp8_t *x8,
                                   const zero_fp8_t *w8, zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows,
                                   size_t n_in, size_t n_out);
zero_status_t zero_cuda_linear_fp8_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate,
                                                  const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                                  zero_linear_layout_t layout, size_t n_rows, size_t n_in,
                                                  size_t n_out);
zero_status_t zero_cuda_linear_fp8_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                                   zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                   const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out);

/* ---- loss_cuda.c ---- */

size_t zero_cuda_loss_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_head_loss(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                  const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                  const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t zero_cuda_head_losses(zero_model_context_t *ctx, double *losses, void *dx, const void *x,
                                    zero_weight_t weight, const int32_t *targets, double loss_weight,
                                    const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t zero_cuda_pair_loss(zero_model_context_t *ctx, const zero_pair_loss_t *pairs);
zero_status_t zero_cuda_head_logits(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                    size_t n_rows, size_t dim, size_t vocab_size);

/* ---- adapters/adapters_cuda.c ---- */

/* Returns the scratch of narrow_product. */
size_t zero_cuda_narrow_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_product(zero_model_context_t *ctx, const zero_product_t *product);
zero_status_t zero_cuda_narrow_product(zero_model_context_t *ctx, const zero_narrow_product_t *product);
bool zero_cuda_fuses_adapters(const zero_model_context_t *ctx, size_t rank, size_t width);
zero_status_t zero_cuda_gated_adapters(zero_model_context_t *ctx, bool is_gelu, const zero_gated_adapters_t *adapters,
                                       void *y, const void *gate_up, size_t n_rows, size_t width);
zero_status_t zero_cuda_gated_adapters_backward(zero_model_context_t *ctx, bool is_gelu,
                                                const zero_gated_adapters_t *adapters, void *dgate_up, void *y,
                                                const void *dy, const void *gate_up, size_t n_rows, size_t width);

/* ---- attention/attention_cuda.c ---- */

zero_status_t zero_cuda_attention_create(zero_model_context_t *ctx); /* what the context keeps for attention */
void zero_cuda_attention_destroy(zero_model_context_t *ctx);
size_t zero_cuda_attention_workspace(const zero_model_limits_t *limits);
bool zero_cuda_attention_is_slow(zero_model_context_t *ctx, const zero_mask_t *mask,
                                 const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);
zero_status_t zero_cuda_attention(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                  const zero_mask_t *mask, const zero_attention_shape_t *shape);
zero_status_t zero_cuda_attention_backward(zero_model_context_t *ctx, void *dqkv, const void *dout, const void *qkv,
                                           const void *out, const float *logsumexp, const zero_mask_t *mask,
                                           const zero_attention_shape_t *shape);
/* Refuses shapes that no kernel of attention takes. */
zero_status_t zero_cuda_check_attention(const zero_attention_shape_t *shape);

/* ---- attention/decode/attention_cached_cuda.c ---- */

size_t zero_cuda_cached_workspace(const zero_model_limits_t *limits);
zero_status_t zero_cuda_attention_cached(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                         const void *qkv, const zero_mask_t *mask, const zero_attention_shape_t *shape);

/* ---- kernels_cuda.c ---- */

zero_status_t zero_cuda_record_begin(zero_model_context_t *ctx);
zero_status_t zero_cuda_record_end(zero_model_context_t *ctx, zero_cuda_graph_t **graph);
zero_status_t zero_cuda_replay(zero_model_context_t *ctx, zero_cuda_graph_t *graph);
void zero_cuda_graph_destroy(zero_cuda_graph_t *graph);

#endif
