/* linear_cuda.c - linear layers on CUDA: matrix products (gemm_cuda.c) that add the bias in their epilogue, and that
 * accumulate into the weight's gradient themselves.
 */
#include "kernels/model/cuda/gemm/gemm_cuda.h"
#include "kernels/model/cuda/table_entries.h"

size_t zero_cuda_linear_workspace(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(zero_column_sum_bytes(limits->max_width));
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

zero_status_t zero_cuda_sum_columns(zero_model_context_t *ctx, zero_grad_t sums, const void *x, size_t n_rows,
                                    size_t n_columns)
{
    zero_scratch_t scratch = zero_cuda_scratch(ctx);
    float *partials;
    ZERO_TRY(zero_scratch_take(&scratch, zero_column_sum_parts(n_rows, n_columns) * n_columns * sizeof *partials,
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
