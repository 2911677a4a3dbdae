/* rmsnorm.c - RMSNorm on the CPU, with the residual sum before it (Zhang & Sennrich 2019, arXiv:1910.07467).
 *
 * As in layernorm.c, threads take rows, sums within a row run in a fixed number of lanes, and the weight's gradient is
 * summed in a fixed number of row parts, which are added in order.
 */
#include "kernels/model/model_cpu.h"

#include "kernels/model/vector_math.h"

/* Computes y for forward and backward alike, so that both get the same bits. */
static void row_apply(float *y, const float *x, float rstd, const float *weight, size_t dim)
{
    for (size_t i = 0; i < dim; ++i)
        y[i] = x[i] * rstd * weight[i];
}

size_t ZERO_MODEL_FN(rmsnorm_workspace)(const zero_model_limits_t *limits)
{
    size_t row = zero_scratch_bytes(limits->max_width * sizeof(float));
    return row + zero_scratch_bytes(ZERO_ROW_PARTS * limits->max_width * sizeof(float));
}

zero_status_t ZERO_MODEL_FN(rmsnorm)(zero_model_context_t *ctx, void *y, float *rstd, void *residual_out,
                                     const void *residual, const void *addend, zero_weight_t weight, float eps,
                                     size_t n_rows, size_t dim)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const float *w;
    ZERO_TRY(zero_weight_fp32(&scratch, weight, dim, &w));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        float *x = (float *)residual_out + row * dim;
        zero_row_add(x, (const float *)residual + row * dim, addend == NULL ? NULL : (const float *)addend + row * dim,
                     dim);
        rstd[row] = 1.0f / sqrtf(zero_row_dot(x, x, dim) / (float)dim + eps);
        row_apply((float *)y + row * dim, x, rstd[row], w, dim);
    }
    return ZERO_OK;
}

/* Computes, with h = x rstd and g = dy w, dx += rstd (g - h mean(g h)). Also adds the row to the column sums of dy h.
 */
static void row_backward(float *dx, float *dweight, const float *dy, const float *x, float rstd, const float *weight,
                         size_t dim)
{
    float lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= dim; i += ZERO_LANES) {
#pragma omp simd
        for (size_t l = 0; l < ZERO_LANES; ++l)
            lanes[l] = zero_multiply_add(dy[i + l] * weight[i + l], x[i + l] * rstd, lanes[l]);
    }
    for (size_t l = 0; i + l < dim; ++l)
        lanes[l] = zero_multiply_add(dy[i + l] * weight[i + l], x[i + l] * rstd, lanes[l]);
    float gh_mean = zero_fold_sum(lanes) / (float)dim;
#pragma omp simd
    for (i = 0; i < dim; ++i) {
        float h = x[i] * rstd;
        dx[i] = zero_multiply_add(rstd, zero_multiply_add(-gh_mean, h, dy[i] * weight[i]), dx[i]);
        dweight[i] = zero_multiply_add(dy[i], h, dweight[i]);
    }
}

zero_status_t ZERO_MODEL_FN(rmsnorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight, void *y,
                                              const void *dy, const void *residual, const float *rstd,
                                              zero_weight_t weight, size_t n_rows, size_t dim)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const float *w;
    float *partials; /* [n_parts, dim]: sums of dy h */
    size_t n_parts = zero_row_parts(n_rows);
    ZERO_TRY(zero_weight_fp32(&scratch, weight, dim, &w));
    ZERO_TRY(zero_scratch_take(&scratch, n_parts * dim * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * dim;
        memset(sums, 0, dim * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            const float *x = (const float *)residual + row * dim;
            row_backward((float *)dresidual + row * dim, sums, (const float *)dy + row * dim, x, rstd[row], w, dim);
            if (y != NULL)
                row_apply((float *)y + row * dim, x, rstd[row], w, dim);
        }
    }
    ZERO_ISA(zero_model_put_partials)(dweight, partials, n_parts, dim, dim);
    return ZERO_OK;
}
