/* linear_cuda.c - linear layers on CUDA: matrix products (gemm_cuda.c) that add the bias in their epilogue, and that
 * accumulate into the weight's gradient themselves.
 */
#include <stdio.h>

#include "train/kernels/common.h"
#include "train/kernels/cuda/context.h"
#include "train/kernels/cuda/launch.h"

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits)
{
    const size_t sums = zero_scratch_bytes(zero_column_sum_bytes(limits->max_width));
    const size_t narrow = zero_cuda_narrow_workspace(limits);
    return narrow > sums ? narrow : sums;
}

zero_status_t zero_cuda_linear(zero_model_context_t *ctx, void *y, bool accumulate, const void *x, zero_weight_t weight,
                               zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows, size_t n_in,
                               size_t n_out)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    ZERO_TRY(zero_check_weight(ctx, bias));
    ZERO_ASSERT(!accumulate || bias.data == NULL);
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
                             .accumulate = accumulate,
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

zero_status_t zero_cuda_sum_columns(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                    size_t n_columns)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    float *partials;
    ZERO_TRY(zero_scratch_alloc(&scratch, zero_column_sum_parts(n_rows, n_columns) * n_columns * sizeof *partials,
                                &partials));
    ZERO_TRY_CUDA(zero_launch_column_sum(zero_model_stream(ctx), zero_model_cuda(ctx)->dtype, sums, x, partials, n_rows,
                                         n_columns));
    return ZERO_OK;
}

zero_status_t zero_cuda_linear_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                               zero_linear_layout_t layout, zero_grad_t dbias, const void *x,
                                               const void *dy, size_t n_rows, size_t n_in, size_t n_out)
{
    bool in_out = layout == ZERO_LINEAR_IN_OUT; /* dW = x^T dy, else dW = dy^T x */
    if (dweight.data == NULL)
        return dbias.data == NULL ? ZERO_OK : zero_cuda_sum_columns(ctx, dbias, dy, n_rows, n_out);
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
    return dbias.data == NULL ? ZERO_OK : zero_cuda_sum_columns(ctx, dbias, dy, n_rows, n_out);
}

/* ---- fp8 cuda ---- */
/* Linear layers in fp8 on CUDA: casts by fp8.cu, products by cuBLASLt (gemm_cuda.c), whose inverse scales
 * are read from device memory. Contexts of bf16 only.
 *
 * Forward sums in the tensor cores' own registers (fast accumulation), which keep fewer bits than fp32; the products of
 * backward, whose sums are longer and whose errors reach the weights, add those partial sums in fp32. */

bool zero_cuda_fp8_is_available(zero_model_context_t *ctx, char why[ZERO_MODEL_WHY])
{
    int gpu, major = 0, minor = 0;
    why[0] = '\0';
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu) != cudaSuccess)
        snprintf(why, ZERO_MODEL_WHY, "the GPU's compute capability cannot be read");
    else if (major * 10 + minor < 89)
        snprintf(why, ZERO_MODEL_WHY, "the GPU has compute capability %d.%d; fp8 needs 8.9 or newer", major, minor);
    else if (zero_model_cuda(ctx)->dtype != ZERO_BF16)
        snprintf(why, ZERO_MODEL_WHY, "fp8 is cast from bf16, and the weights are %s",
                 zero_dtype_name(zero_model_cuda(ctx)->dtype));
    return why[0] == '\0';
}

/* ---- Casts ---- */

static zero_status_t check_bf16(const zero_model_context_t *ctx)
{
    if (zero_model_cuda(ctx)->dtype == ZERO_BF16)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_UNSUPPORTED, "fp8 in a %s context", zero_dtype_name(zero_model_cuda(ctx)->dtype));
}

zero_status_t zero_cuda_fp8_begin_cast(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x,
                                       bool absmax_is_known, size_t n_rows, size_t n_columns)
{
    ZERO_TRY(check_bf16(ctx));
    ZERO_TRY(zero_fp8_check_matrix(n_rows, n_columns));
    if (!absmax_is_known)
        ZERO_TRY_CUDA(zero_launch_fp8_absmax(zero_model_stream(ctx), &x8->scales->absmax, x, n_rows * n_columns));
    return ZERO_OK;
}

zero_status_t zero_cuda_fp8_cast(zero_model_context_t *ctx, const zero_fp8_t *x8, const void *x, bool absmax_is_known,
                                 size_t n_rows, size_t n_columns)
{
    ZERO_TRY(zero_cuda_fp8_begin_cast(ctx, x8, x, absmax_is_known, n_rows, n_columns));
    ZERO_TRY_CUDA(zero_launch_fp8_cast(zero_model_stream(ctx), x8, x, n_rows, n_columns));
    return ZERO_OK;
}

zero_status_t zero_cuda_fp8_cast_weight(zero_model_context_t *ctx, const zero_fp8_t *w8, zero_weight_t weight,
                                        bool absmax_is_known, size_t n_rows, size_t n_columns)
{
    ZERO_TRY(zero_check_weight(ctx, weight));
    return zero_cuda_fp8_cast(ctx, w8, weight.data, absmax_is_known, n_rows, n_columns);
}

zero_status_t zero_cuda_fp8_widen(zero_model_context_t *ctx, void *weight, zero_fp8_param_t bytes, size_t n_elems)
{
    ZERO_TRY(check_bf16(ctx));
    ZERO_TRY_CUDA(zero_launch_fp8_widen(zero_model_stream(ctx), weight, bytes, n_elems));
    return ZERO_OK;
}

zero_status_t zero_cuda_fp8_transpose(zero_model_context_t *ctx, uint8_t *columns, const uint8_t *rows, size_t n_rows,
                                      size_t n_columns)
{
    ZERO_TRY(zero_fp8_check_matrix(n_rows, n_columns));
    ZERO_TRY_CUDA(zero_launch_fp8_transpose(zero_model_stream(ctx), columns, rows, n_rows, n_columns));
    return ZERO_OK;
}

/* ---- Products ---- */

static zero_cuda_gemm_t gemm_of(const zero_fp8_product_t *product, void *c, zero_dtype_t c_dtype)
{
    return (zero_cuda_gemm_t){.transpose_b = true,
                              .m = product->m,
                              .n = product->n,
                              .k = product->k,
                              .a = product->a.bytes,
                              .lda = product->k,
                              .b = product->b.bytes,
                              .ldb = product->k,
                              .c = c,
                              .ldc = product->n,
                              .c_dtype = c_dtype,
                              .fp8 = product};
}

zero_status_t zero_cuda_linear_fp8(zero_model_context_t *ctx, void *y, bool accumulate, const zero_fp8_t *x8,
                                   const zero_fp8_t *w8, zero_linear_layout_t layout, zero_weight_t bias, size_t n_rows,
                                   size_t n_in, size_t n_out)
{
    zero_fp8_product_t product;
    ZERO_TRY(check_bf16(ctx));
    ZERO_TRY(zero_check_weight(ctx, bias));
    ZERO_TRY(zero_fp8_forward(&product, x8, w8, layout, n_rows, n_in, n_out));
    ZERO_ASSERT(!accumulate || bias.data == NULL);
    zero_cuda_gemm_t gemm = gemm_of(&product, y, ZERO_BF16);
    gemm.bias = bias.data;
    gemm.fast_sums = true;
    gemm.accumulate = accumulate;
    return zero_cuda_gemm(ctx, &gemm);
}

zero_status_t zero_cuda_linear_fp8_backward_input(zero_model_context_t *ctx, void *dx, bool accumulate,
                                                  const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                                  zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_product_t product;
    ZERO_TRY(check_bf16(ctx));
    ZERO_TRY(zero_fp8_backward_input(&product, dy8, w8, layout, n_rows, n_in, n_out));
    zero_cuda_gemm_t gemm = gemm_of(&product, dx, ZERO_BF16);
    gemm.accumulate = accumulate;
    return zero_cuda_gemm(ctx, &gemm);
}

zero_status_t zero_cuda_linear_fp8_backward_weight(zero_model_context_t *ctx, zero_grad_t dweight,
                                                   zero_linear_layout_t layout, const zero_fp8_t *x8,
                                                   const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out)
{
    zero_fp8_product_t product;
    ZERO_TRY(check_bf16(ctx));
    ZERO_TRY(zero_fp8_backward_weight(&product, layout, x8, dy8, n_rows, n_in, n_out));
    zero_cuda_gemm_t gemm = gemm_of(&product, dweight.data, dweight.dtype);
    gemm.accumulate = dweight.accumulate;
    return zero_cuda_gemm(ctx, &gemm);
}
