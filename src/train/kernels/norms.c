/* norms.c - LayerNorm on the CPU, with the residual sum before it (Ba, Kiros, Hinton 2016, arXiv:1607.06450).
 *
 * Threads take rows, which are independent. Mean and variance take two passes over a row, which stays in cache, in a
 * fixed number of lanes. The gradients of weight and bias and dcolumns are column sums: the rows are divided into a
 * fixed number of parts, each part sums its rows in order, and the parts are added in order. So the bits do not depend
 * on the number of threads.
 */
#include "train/kernels/kernels_cpu.h"
#include "train/kernels/vector_math.h"

static float row_sum(const float *x, size_t n)
{
    float lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= n; i += ZERO_LANES)
        for (size_t l = 0; l < ZERO_LANES; ++l)
            lanes[l] += x[i + l];
    for (size_t l = 0; i + l < n; ++l)
        lanes[l] += x[i + l];
    return zero_fold_sum(lanes);
}

/* Returns the sum of (x - mean)^2. */
static float row_variation(const float *x, float mean, size_t n)
{
    float lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= n; i += ZERO_LANES) {
#pragma omp simd
        for (size_t l = 0; l < ZERO_LANES; ++l) {
            float d = x[i + l] - mean;
            lanes[l] = zero_multiply_add(d, d, lanes[l]);
        }
    }
    for (size_t l = 0; i + l < n; ++l) {
        float d = x[i + l] - mean;
        lanes[l] = zero_multiply_add(d, d, lanes[l]);
    }
    return zero_fold_sum(lanes);
}

/* Computes y in forward and in backward, so that both get the same bits. bias may be NULL. */
static void row_apply(float *y, const float *x, float mean, float rstd, const float *weight, const float *bias,
                      size_t dim)
{
    if (bias == NULL) {
        for (size_t i = 0; i < dim; ++i)
            y[i] = (x[i] - mean) * rstd * weight[i];
        return;
    }
    for (size_t i = 0; i < dim; ++i)
        y[i] = zero_multiply_add((x[i] - mean) * rstd, weight[i], bias[i]);
}

size_t ZERO_MODEL_FN(layernorm_workspace)(const zero_model_limits_t *limits)
{
    size_t row = zero_scratch_bytes(limits->max_width * sizeof(float));
    return 2 * row + zero_scratch_bytes(3 * ZERO_ROW_PARTS * limits->max_width * sizeof(float));
}

static zero_status_t read_weights(zero_scratch_t *scratch, zero_weight_t weight, zero_weight_t bias, size_t dim,
                                  const float **w, const float **b)
{
    *b = NULL;
    ZERO_TRY(zero_weight_fp32(scratch, weight, dim, w));
    return bias.data == NULL ? ZERO_OK : zero_weight_fp32(scratch, bias, dim, b);
}

zero_status_t ZERO_MODEL_FN(layernorm)(zero_model_context_t *ctx, void *y, float *mean, float *rstd, void *residual_out,
                                       const void *residual, const void *addend, zero_weight_t weight,
                                       zero_weight_t bias, float eps, size_t n_rows, size_t dim)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const float *w, *b;
    ZERO_TRY(read_weights(&scratch, weight, bias, dim, &w, &b));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        float *x = (float *)residual_out + row * dim;
        zero_row_add(x, (const float *)residual + row * dim, addend == NULL ? NULL : (const float *)addend + row * dim,
                     dim);
        float center = row_sum(x, dim) / (float)dim;
        float scale = 1.0f / sqrtf(row_variation(x, center, dim) / (float)dim + eps);
        row_apply((float *)y + row * dim, x, center, scale, w, b, dim);
        mean[row] = center;
        rstd[row] = scale;
    }
    ZERO_ISA(zero_model_raise_absmax)(ctx, y, n_rows * dim);
    return ZERO_OK;
}

/* Computes, with h = (x - mean) rstd and g = dy w, dx += rstd (g - mean(g) - h mean(g h)). Also adds the row to the
 * column sums of dy h, dy and dx. */
static void row_backward(float *dx, float *dweight, float *dbias, float *dcolumns, const float *dy, const float *x,
                         float mean, float rstd, const float *weight, size_t dim)
{
    float g_lanes[ZERO_LANES] = {0}, gh_lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= dim; i += ZERO_LANES) {
#pragma omp simd
        for (size_t l = 0; l < ZERO_LANES; ++l) {
            float g = dy[i + l] * weight[i + l];
            g_lanes[l] += g;
            gh_lanes[l] = zero_multiply_add(g, (x[i + l] - mean) * rstd, gh_lanes[l]);
        }
    }
    for (size_t l = 0; i + l < dim; ++l) {
        float g = dy[i + l] * weight[i + l];
        g_lanes[l] += g;
        gh_lanes[l] = zero_multiply_add(g, (x[i + l] - mean) * rstd, gh_lanes[l]);
    }
    float g_mean = zero_fold_sum(g_lanes) / (float)dim;
    float gh_mean = zero_fold_sum(gh_lanes) / (float)dim;
#pragma omp simd
    for (i = 0; i < dim; ++i) {
        float h = (x[i] - mean) * rstd;
        float centered = zero_multiply_add(-gh_mean, h, dy[i] * weight[i] - g_mean);
        dx[i] = zero_multiply_add(rstd, centered, dx[i]);
        dweight[i] = zero_multiply_add(dy[i], h, dweight[i]);
        dbias[i] += dy[i];
        dcolumns[i] += dx[i];
    }
}

zero_status_t ZERO_MODEL_FN(layernorm_backward)(zero_model_context_t *ctx, void *dresidual, zero_grad_t dweight,
                                                zero_grad_t dbias, zero_grad_t dcolumns, void *y, const void *dy,
                                                const void *residual, const float *mean, const float *rstd,
                                                zero_weight_t weight, zero_weight_t bias, size_t n_rows, size_t dim)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const float *w, *b;
    float *partials; /* [n_parts, 3, dim]: sums of dy h, of dy, of dresidual */
    size_t n_parts = zero_row_parts(n_rows);
    ZERO_TRY(read_weights(&scratch, weight, bias, dim, &w, &b));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * 3 * dim * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * 3 * dim;
        memset(sums, 0, 3 * dim * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            const float *x = (const float *)residual + row * dim;
            row_backward((float *)dresidual + row * dim, sums, sums + dim, sums + 2 * dim,
                         (const float *)dy + row * dim, x, mean[row], rstd[row], w, dim);
            if (y != NULL)
                row_apply((float *)y + row * dim, x, mean[row], rstd[row], w, b, dim);
        }
    }
    const zero_grad_t grads[] = {dweight, dbias, dcolumns};
    for (size_t i = 0; i < 3; ++i)
        ZERO_ISA(zero_model_put_partials)(grads[i], partials + i * dim, n_parts, 3 * dim, dim);
    ZERO_ISA(zero_model_raise_absmax)(ctx, dresidual, n_rows * dim);
    return ZERO_OK;
}

/* ---- rmsnorm ---- */
/* RMSNorm on the CPU (Zhang & Sennrich 2019, arXiv:1910.07467): of rows, with the residual sum before it,
 * and of every q and k head on its own.
 *
 * As above, threads take rows, sums within a row run in a fixed number of lanes, and the weight's gradient is
 * summed in a fixed number of row parts, which are added in order. */

/* Computes y in forward and in backward, so that both get the same bits. */
static void rms_row_apply(float *y, const float *x, float rstd, const float *weight, size_t dim)
{
    for (size_t i = 0; i < dim; ++i)
        y[i] = x[i] * rstd * weight[i];
}

size_t ZERO_MODEL_FN(rmsnorm_workspace)(const zero_model_limits_t *limits)
{
    size_t row = zero_scratch_bytes(limits->max_width * sizeof(float));
    size_t head = zero_scratch_bytes(limits->head_dim * sizeof(float));
    size_t of_rows = row + zero_scratch_bytes(ZERO_ROW_PARTS * limits->max_width * sizeof(float));
    size_t of_projections = limits->normalizes_projections ? 2 * row + of_rows : 0;
    size_t of_heads = 2 * head + zero_scratch_bytes(ZERO_ROW_PARTS * 2 * limits->head_dim * sizeof(float));
    of_rows = of_rows > of_projections ? of_rows : of_projections;
    return of_rows > of_heads ? of_rows : of_heads;
}

static float row_rstd(const float *x, size_t dim, float eps)
{
    return 1.0f / sqrtf(zero_row_dot(x, x, dim) / (float)dim + eps);
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
        rstd[row] = row_rstd(x, dim, eps);
        rms_row_apply((float *)y + row * dim, x, rstd[row], w, dim);
    }
    ZERO_ISA(zero_model_raise_absmax)(ctx, y, n_rows * dim);
    return ZERO_OK;
}

/* Returns the mean of g h, with h = x rstd and g = dy w. */
static float row_gh_mean(const float *dy, const float *x, float rstd, const float *weight, size_t dim)
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
    return zero_fold_sum(lanes) / (float)dim;
}

/* Computes dx += rstd (g - h mean(g h)). Also adds the row to the column sums of dy h. */
static void rms_row_backward(float *dx, float *dweight, const float *dy, const float *x, float rstd,
                             const float *weight, size_t dim)
{
    float gh_mean = row_gh_mean(dy, x, rstd, weight, dim);
#pragma omp simd
    for (size_t i = 0; i < dim; ++i) {
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
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * dim * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * dim;
        memset(sums, 0, dim * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            const float *x = (const float *)residual + row * dim;
            rms_row_backward((float *)dresidual + row * dim, sums, (const float *)dy + row * dim, x, rstd[row], w, dim);
            if (y != NULL)
                rms_row_apply((float *)y + row * dim, x, rstd[row], w, dim);
        }
    }
    ZERO_ISA(zero_model_put_partials)(dweight, partials, n_parts, dim, dim);
    ZERO_ISA(zero_model_raise_absmax)(ctx, dresidual, n_rows * dim);
    return ZERO_OK;
}

/* ---- of q and k heads ---- */

zero_status_t ZERO_MODEL_FN(head_norm)(zero_model_context_t *ctx, void *y, const void *qkv, zero_weight_t q_weight,
                                       zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                       size_t n_kv_heads, size_t head_dim)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t n_normed = n_heads + n_kv_heads, width = (n_normed + n_kv_heads) * head_dim;
    const float *q_w, *k_w;
    ZERO_TRY(zero_weight_fp32(&scratch, q_weight, head_dim, &q_w));
    ZERO_TRY(zero_weight_fp32(&scratch, k_weight, head_dim, &k_w));
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        const float *x = (const float *)qkv + row * width;
        float *out = (float *)y + row * width;
        for (size_t head = 0; head < n_normed; ++head, x += head_dim, out += head_dim)
            rms_row_apply(out, x, row_rstd(x, head_dim, eps), head < n_heads ? q_w : k_w, head_dim);
        memcpy(out, x, n_kv_heads * head_dim * sizeof *out);
    }
    return ZERO_OK;
}

/* Turns dy of a row into the gradient of x, in place, to the bits of rms_row_backward onto zeros. Also adds the row to
 * the column sums of dy h. */
static void rms_row_backward_in_place(float *dy, float *dweight, const float *x, const float *weight, float eps,
                                      size_t dim)
{
    const float rstd = row_rstd(x, dim, eps), gh_mean = row_gh_mean(dy, x, rstd, weight, dim);
#pragma omp simd
    for (size_t i = 0; i < dim; ++i) {
        float h = x[i] * rstd, d = dy[i];
        dweight[i] = zero_multiply_add(d, h, dweight[i]);
        dy[i] = zero_multiply_add(rstd, zero_multiply_add(-gh_mean, h, d * weight[i]), 0.0f);
    }
}

zero_status_t ZERO_MODEL_FN(head_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                                zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                                zero_weight_t k_weight, float eps, size_t n_rows, size_t n_heads,
                                                size_t n_kv_heads, size_t head_dim)
{
    enum { DQ, DK, N_SUMS }; /* of a part: both weights' sums */
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t n_normed = n_heads + n_kv_heads, width = (n_normed + n_kv_heads) * head_dim, stride = N_SUMS * head_dim;
    const float *q_w, *k_w;
    float *partials; /* [n_parts, N_SUMS, head_dim] */
    size_t n_parts = zero_row_parts(n_rows);
    ZERO_TRY(zero_weight_fp32(&scratch, q_weight, head_dim, &q_w));
    ZERO_TRY(zero_weight_fp32(&scratch, k_weight, head_dim, &k_w));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * stride * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * stride;
        memset(sums, 0, stride * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            const float *x = (const float *)qkv + row * width;
            float *dy = (float *)dqkv + row * width;
            for (size_t head = 0; head < n_normed; ++head, x += head_dim, dy += head_dim)
                rms_row_backward_in_place(dy, sums + (head < n_heads ? DQ : DK) * head_dim, x,
                                          head < n_heads ? q_w : k_w, eps, head_dim);
        }
    }
    ZERO_ISA(zero_model_put_partials)(dq_weight, partials + DQ * head_dim, n_parts, stride, head_dim);
    ZERO_ISA(zero_model_put_partials)(dk_weight, partials + DK * head_dim, n_parts, stride, head_dim);
    return ZERO_OK;
}

/* ---- of all of q and of k ---- */

zero_status_t ZERO_MODEL_FN(projection_norm)(zero_model_context_t *ctx, void *y, const void *qkv,
                                             zero_weight_t q_weight, zero_weight_t k_weight, float eps, size_t n_rows,
                                             size_t q_width, size_t k_width)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const size_t width = q_width + 2 * k_width;
    const float *q_w, *k_w;
    ZERO_TRY(zero_weight_fp32(&scratch, q_weight, q_width, &q_w));
    ZERO_TRY(zero_weight_fp32(&scratch, k_weight, k_width, &k_w));
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        const float *q = (const float *)qkv + row * width, *k = q + q_width;
        float *out = (float *)y + row * width;
        rms_row_apply(out, q, row_rstd(q, q_width, eps), q_w, q_width);
        rms_row_apply(out + q_width, k, row_rstd(k, k_width, eps), k_w, k_width);
        memcpy(out + q_width + k_width, k + k_width, k_width * sizeof *out);
    }
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(projection_norm_backward)(zero_model_context_t *ctx, void *dqkv, zero_grad_t dq_weight,
                                                      zero_grad_t dk_weight, const void *qkv, zero_weight_t q_weight,
                                                      zero_weight_t k_weight, float eps, size_t n_rows, size_t q_width,
                                                      size_t k_width)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    const size_t n_normed = q_width + k_width, width = n_normed + k_width, n_parts = zero_row_parts(n_rows);
    const float *q_w, *k_w;
    float *partials; /* [n_parts, n_normed] */
    ZERO_TRY(zero_weight_fp32(&scratch, q_weight, q_width, &q_w));
    ZERO_TRY(zero_weight_fp32(&scratch, k_weight, k_width, &k_w));
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * n_normed * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * n_normed;
        memset(sums, 0, n_normed * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            const float *q = (const float *)qkv + row * width;
            float *dq = (float *)dqkv + row * width;
            rms_row_backward_in_place(dq, sums, q, q_w, eps, q_width);
            rms_row_backward_in_place(dq + q_width, sums + q_width, q + q_width, k_w, eps, k_width);
        }
    }
    ZERO_ISA(zero_model_put_partials)(dq_weight, partials, n_parts, n_normed, q_width);
    ZERO_ISA(zero_model_put_partials)(dk_weight, partials + q_width, n_parts, n_normed, k_width);
    return ZERO_OK;
}
