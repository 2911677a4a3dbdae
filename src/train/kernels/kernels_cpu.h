/* kernels_cpu.h - what the CPU's model kernels share: the functions that each build (isa.h) enters in its table, casts
 * between a tensor's dtype and fp32, and calls of OpenBLAS.
 *
 * All arithmetic is in fp32. Weights of another dtype are first cast into scratch; their gradients are summed in fp32
 * and rounded once. OpenMP divides the work; OpenBLAS runs each call on one thread, so that two thread pools do not
 * compete.
 */
#ifndef ZERO_KERNELS_CPU_H
#define ZERO_KERNELS_CPU_H

#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "base/log.h"
#include "kernels/isa.h"
#include "kernels/shard_math.h"
#include "train/kernels/common.h"
#include "train/kernels/kernels.h"

/* Returns one build's table by name (scalar, avx2, avx512), or NULL if it was not built or the machine lacks the
 * instructions. Tests use it too. */
const zero_model_kernels_t *zero_model_kernels_cpu_named(const char *name);

/* With fewer elements, waking the other threads costs more than they save. */
#define ZERO_MODEL_PARALLEL_MIN ((size_t)1 << 14)

static inline zero_scratch_t zero_scratch_begin(const zero_model_context_t *ctx)
{
    return (zero_scratch_t){ctx->workspace, ctx->workspace_bytes};
}

/* ---- Casts ---- */

/* Reads elements first .. first + n of a tensor of any dtype into out[n]. */
static inline void zero_read_fp32(float *out, zero_weight_t tensor, size_t first, size_t n)
{
    if (tensor.dtype == ZERO_FP32) {
        memcpy(out, (const float *)tensor.data + first, n * sizeof *out);
    } else if (tensor.dtype == ZERO_BF16) {
        const uint16_t *data = (const uint16_t *)tensor.data + first;
        for (size_t i = 0; i < n; ++i)
            out[i] = zero_float_of_bf16(data[i]);
    } else {
        const uint16_t *data = (const uint16_t *)tensor.data + first;
        for (size_t i = 0; i < n; ++i)
            out[i] = zero_float_of_fp16(data[i]);
    }
}

/* Adds values[n] to elements first .. first + n of a gradient, or overwrites them, and rounds once to its dtype. */
static inline void zero_grad_put(zero_grad_t grad, size_t first, const float *values, size_t n)
{
    bool add = grad.accumulate;
    if (grad.dtype == ZERO_FP32) {
        float *data = (float *)grad.data + first;
        for (size_t i = 0; i < n; ++i)
            data[i] = add ? data[i] + values[i] : values[i];
    } else if (grad.dtype == ZERO_BF16) {
        uint16_t *data = (uint16_t *)grad.data + first;
        for (size_t i = 0; i < n; ++i)
            data[i] = zero_bf16_of_float(add ? zero_float_of_bf16(data[i]) + values[i] : values[i]);
    } else {
        uint16_t *data = (uint16_t *)grad.data + first;
        for (size_t i = 0; i < n; ++i)
            data[i] = zero_fp16_of_float(add ? zero_float_of_fp16(data[i]) + values[i] : values[i]);
    }
}

#define ZERO_CAST_BLOCK ((size_t)4096) /* elements that one thread casts at a time */

/* Sets *out to a weight of n_elems in fp32: its own data, or a copy in scratch. */
static inline zero_status_t zero_weight_fp32(zero_scratch_t *scratch, zero_weight_t weight, size_t n_elems,
                                             const float **out)
{
    if (weight.dtype == ZERO_FP32 && weight.offset == 0.0f) {
        *out = weight.data;
        return ZERO_OK;
    }
    float *copy;
    ZERO_TRY(zero_scratch_alloc(scratch, n_elems * sizeof *copy, &copy));
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; i += ZERO_CAST_BLOCK)
        zero_read_fp32(copy + i, weight, i, n_elems - i < ZERO_CAST_BLOCK ? n_elems - i : ZERO_CAST_BLOCK);
    for (size_t i = 0; weight.offset != 0.0f && i < n_elems; ++i)
        copy[i] += weight.offset;
    *out = copy;
    return ZERO_OK;
}

/* ---- Gradients that a GEMM sums ---- */

/* Where dW is summed in fp32: the gradient itself if it is fp32, else scratch, which the first product overwrites. */
typedef struct zero_grad_sum {
    float *data;
    float beta; /* for the first product */
} zero_grad_sum_t;

static inline zero_status_t zero_grad_sum_begin(zero_scratch_t *scratch, zero_grad_t grad, size_t n_elems,
                                                zero_grad_sum_t *sum)
{
    if (grad.dtype == ZERO_FP32) {
        *sum = (zero_grad_sum_t){grad.data, grad.accumulate ? 1.0f : 0.0f};
        return ZERO_OK;
    }
    sum->beta = 0.0f;
    return zero_scratch_alloc(scratch, n_elems * sizeof(float), &sum->data);
}

static inline void zero_grad_sum_end(const zero_grad_sum_t *sum, zero_grad_t grad, size_t n_elems)
{
    if (grad.dtype == ZERO_FP32)
        return;
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; i += ZERO_CAST_BLOCK)
        zero_grad_put(grad, i, sum->data + i, n_elems - i < ZERO_CAST_BLOCK ? n_elems - i : ZERO_CAST_BLOCK);
}

/* ---- OpenBLAS ---- */

/* Refuses extents that OpenBLAS, which counts in int, cannot take. `largest`: the greatest extent or row length of a
 * call. */
static inline zero_status_t zero_check_blas_size(size_t largest)
{
    if (largest > INT_MAX)
        return zero_fail(ZERO_ERROR_OVERFLOW, "a matrix extent of %zu does not fit OpenBLAS's int", largest);
    return ZERO_OK;
}

/* Computes c[m, n] = alpha op(a) op(b) + beta c, row-major, on one thread. beta 0 overwrites c, even NaN. */
void ZERO_ISA(zero_model_sgemm)(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, size_t m, size_t n, size_t k, float alpha,
                                const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                                size_t ldc);

/* c[m, n] = alpha op(a) op(b) + beta c + bias[n] (NULL: none), row-major, on all threads. alpha 0 stands for 1. */
typedef struct zero_gemm {
    CBLAS_TRANSPOSE op_a, op_b;
    size_t m, n, k;
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb;
    float alpha, beta;
    float *c;
    size_t ldc;
    const float *bias;
} zero_gemm_t;
void ZERO_ISA(zero_model_gemm)(const zero_gemm_t *gemm);

/* ---- Column sums: rows are divided into parts by their number alone, whatever the number of threads ---- */

#define ZERO_ROW_PARTS 64

static inline size_t zero_row_parts(size_t n_rows)
{
    size_t parts = (n_rows + 7) / 8;
    return parts < ZERO_ROW_PARTS ? parts : ZERO_ROW_PARTS;
}

/* Writes the sum of the partials, n_parts rows of `width` elements with stride `stride`, to the gradient, if it has
 * data. */
void ZERO_ISA(zero_model_put_partials)(zero_grad_t grad, const float *partials, size_t n_parts, size_t stride,
                                       size_t width);

/* ---- fp8 ---- */

/* Raises *ctx->absmax, if it is asked for, to the largest magnitude of x. */
void ZERO_ISA(zero_model_raise_absmax)(const zero_model_context_t *ctx, const float *x, size_t n_elems);

/* ---- Norms ---- */

/* Computes out = residual + addend, or copies residual if addend is NULL. out may be residual. */
static inline void zero_row_add(float *out, const float *residual, const float *addend, size_t dim)
{
    if (addend != NULL) {
        for (size_t i = 0; i < dim; ++i)
            out[i] = residual[i] + addend[i];
    } else if (out != residual) {
        memcpy(out, residual, dim * sizeof *out);
    }
}

/* ---- The functions of the table; contracts are in kernels.h ---- */

#define ZERO_MODEL_FN(name) ZERO_ISA(zero_model_##name)

/* Return the most workspace that a call within the limits takes. */
size_t ZERO_MODEL_FN(linear_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(fp8_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(attention_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(layernorm_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(rmsnorm_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(gelu_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(loss_workspace)(const zero_model_limits_t *limits);
size_t ZERO_MODEL_FN(embed_workspace)(const zero_model_limits_t *limits);

zero_status_t ZERO_MODEL_FN(linear)(zero_model_context_t *ctx, void *y, bool accumulate, const void *x,
                                    zero_weight_t weight, zero_linear_layout_t layout, zero_weight_t bias,
                                    size_t n_rows, size_t n_in, size_t n_out);
zero_status_t ZERO_MODEL_FN(linear_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate, const void *dy,
                                                   zero_weight_t weight, zero_linear_layout_t layout, size_t n_rows,
                                                   size_t n_in, size_t n_out);
zero_status_t ZERO_MODEL_FN(linear_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight,
                                                    zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                                    const void *dy, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t ZERO_MODEL_FN(product)(zero_model_context_t *ctx, const zero_product_t *product);
zero_status_t ZERO_MODEL_FN(sum_columns)(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                         size_t n_columns);
bool ZERO_MODEL_FN(fp8_is_available)(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY]);
zero_status_t ZERO_MODEL_FN(fp8_cast)(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x,
                                      bool absmax_is_known, size_t n_rows, size_t n_columns);
zero_status_t ZERO_MODEL_FN(fp8_cast_weight)(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                             bool absmax_is_known, size_t n_rows, size_t n_columns);
zero_status_t ZERO_MODEL_FN(fp8_widen)(zero_model_context_t *ctx, void *weight, zero_fp8_param_t bytes, size_t n_elems);
zero_status_t ZERO_MODEL_FN(fp8_transpose)(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows,
                                           size_t n_rows, size_t n_columns);
zero_status_t ZERO_MODEL_FN(linear_fp8)(zero_model_context_t *ctx, void *y, bool accumulate, const zero_fp8_t *x8,
                                        const zero_fp8_t *w8, zero_linear_layout_t layout, zero_weight_t bias,
                                        size_t n_rows, size_t n_in, size_t n_out);
zero_status_t ZERO_MODEL_FN(linear_fp8_backward_input)(zero_model_context_t *ctx, void *dx, bool accumulate,
                                                       const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                                       zero_linear_layout_t layout, size_t n_rows, size_t n_in,
                                                       size_t n_out);
zero_status_t ZERO_MODEL_FN(linear_fp8_backward_weight)(zero_model_context_t *ctx, zero_grad_t dweight,
                                                        zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                        const zero_fp8_t *dy8, size_t n_rows, size_t n_in,
                                                        size_t n_out);
zero_status_t ZERO_MODEL_FN(layernorm)(zero_model_context_t *ctx, void *y, float *mean, float *rstd, void *residual_out,
                                       const void *residual, const void *addend, zero_weight_t weight,
                                       zero_weight_t bias, float eps, size_t n_rows, size_t dim);
zero_status_t ZERO_MODEL_FN(layernorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight,
                                                zero_grad_t dbias, zero_grad_t dcolumns, void *y, const void *dy,
                                                const void *residual, const float *mean, const float *rstd,
                                                zero_weight_t weight, zero_weight_t bias, size_t n_rows, size_t dim);
zero_status_t ZERO_MODEL_FN(rmsnorm)(zero_model_context_t *ctx, void *y, float *rstd, void *residual_out,
                                     const void *residual, const void *addend, zero_weight_t weight, float eps,
                                     size_t n_rows, size_t dim);
zero_status_t ZERO_MODEL_FN(rmsnorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight, void *y,
                                              const void *dy, const void *residual, const float *rstd,
                                              zero_weight_t weight, size_t n_rows, size_t dim);
zero_status_t ZERO_MODEL_FN(head_norm)(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                                       zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                       size_t n_kv_heads, size_t head_dim);
zero_status_t ZERO_MODEL_FN(head_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                                zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                                zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                                size_t n_kv_heads, size_t head_dim);
zero_status_t ZERO_MODEL_FN(projection_norm)(zero_model_context_t *ctx, void *y, const void *qkv,
                                             zero_weight_t q_weight, zero_weight_t k_weight, float eps, size_t n_rows,
                                             size_t q_width, size_t k_width);
zero_status_t ZERO_MODEL_FN(projection_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                                      zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                                      zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width,
                                                      size_t k_width);
zero_status_t ZERO_MODEL_FN(rope)(zero_model_context_t *ctx, void *qkv, bool inverse, const zero_rope_t *rope,
                                  const zero_attention_shape_t *shape);
zero_status_t ZERO_MODEL_FN(swiglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows,
                                    size_t width);
zero_status_t ZERO_MODEL_FN(swiglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                             const void *gate_up, size_t n_rows, size_t width);
zero_status_t ZERO_MODEL_FN(geglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows,
                                   size_t width);
zero_status_t ZERO_MODEL_FN(geglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                            const void *gate_up, size_t n_rows, size_t width);
zero_status_t ZERO_MODEL_FN(gelu)(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems);
zero_status_t ZERO_MODEL_FN(gelu_backward)(zero_model_context_t *ctx, void *dx, zero_grad_t dcolumns, void *y,
                                           const void *dy, const void *x, size_t n_rows, size_t width);
zero_status_t ZERO_MODEL_FN(attention)(zero_model_context_t *ctx, void *out, float *logsumexp, const void *qkv,
                                       const zero_mask_t *mask, const zero_attention_shape_t *shape);
zero_status_t ZERO_MODEL_FN(attention_cached)(zero_model_context_t *ctx, void *out, float *logsumexp, void *cache,
                                              const void *qkv, const zero_mask_t *mask,
                                              const zero_attention_shape_t *shape);
zero_status_t ZERO_MODEL_FN(attention_backward)(zero_model_context_t *ctx, void *dqkv, const void *dout,
                                                const void *qkv, const void *out, const float *logsumexp,
                                                const zero_mask_t *mask, const zero_attention_shape_t *shape);
zero_status_t ZERO_MODEL_FN(embed)(zero_model_context_t *ctx, void *out, const int32_t *tokens, const int32_t *starts,
                                   zero_weight_t token_table, zero_weight_t position_table, size_t n_batch,
                                   size_t seq_len, size_t dim, size_t vocab_size);
zero_status_t ZERO_MODEL_FN(embed_backward)(zero_model_context_t *ctx, zero_grad_t dtokens, zero_grad_t dpositions,
                                            const void *dout, const int32_t *tokens, const int32_t *starts,
                                            size_t n_batch, size_t seq_len, size_t n_positions, size_t dim,
                                            size_t vocab_size);
zero_status_t ZERO_MODEL_FN(sum_blocks)(zero_model_context_t *ctx, void *dst, size_t dst_stride,
                                        const zero_block_t *blocks, int n_blocks, size_t n_rows, size_t n_columns);
zero_status_t ZERO_MODEL_FN(head_loss)(zero_model_context_t *ctx, double *loss_sum, void *dx, zero_grad_t dweight,
                                       const void *x, zero_weight_t weight, const int32_t *targets, double loss_weight,
                                       const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t ZERO_MODEL_FN(head_losses)(zero_model_context_t *ctx, double *losses, void *dx, const void *x,
                                         zero_weight_t weight, const int32_t *targets, double loss_weight,
                                         const float *grad_scale, size_t n_rows, size_t dim, size_t vocab_size);
zero_status_t ZERO_MODEL_FN(pair_loss)(zero_model_context_t *ctx, const zero_pair_loss_t *pairs);
zero_status_t ZERO_MODEL_FN(head_logits)(zero_model_context_t *ctx, float *logits, const void *x, zero_weight_t weight,
                                         size_t n_rows, size_t dim, size_t vocab_size);

/* This build's table; kernels_cpu.c lists all of them. */
extern const zero_model_kernels_t ZERO_ISA(zero_model_kernels);

#endif
