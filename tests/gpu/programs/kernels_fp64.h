/* kernels_fp64.h - what the model kernels compute, in fp64 and from the formulas alone: test_model_cuda.c's references.
 *
 * Inputs are fp32 arrays of the values that the GPU reads. Results are fp64, rounded to fp32 when stored.
 */
#ifndef ZERO_TESTS_KERNELS_FP64_H
#define ZERO_TESTS_KERNELS_FP64_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "train/kernels/kernels.h"

/* ---- RMSNorm: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps) ---- */

static void rmsnorm_fp64(float *y, float *rstd, const float *x, const float *weight, double eps, size_t n_rows,
                         size_t dim)
{
    for (size_t row = 0; row < n_rows; ++row, y += dim, x += dim) {
        double squares = 0.0;
        for (size_t i = 0; i < dim; ++i)
            squares += (double)x[i] * (double)x[i];
        double scale = 1.0 / sqrt(squares / (double)dim + eps);
        rstd[row] = (float)scale;
        for (size_t i = 0; i < dim; ++i)
            y[i] = (float)((double)x[i] * scale * (double)weight[i]);
    }
}

/* d y_j / d x_i = rstd w_j (delta_ij - x_i x_j rstd^2 / dim), put into dresidual and added to dweight. Returns the
 * condition of dresidual: the norm of what is added up for it over the norm of the result. */
static double rmsnorm_backward_fp64(float *dresidual, double *dweight, const float *dy, const float *x,
                                    const float *weight, double eps, size_t n_rows, size_t dim)
{
    double terms = 0.0, results = 0.0;
    for (size_t row = 0; row < n_rows; ++row, dresidual += dim, dy += dim, x += dim) {
        double squares = 0.0, product = 0.0;
        for (size_t i = 0; i < dim; ++i) {
            squares += (double)x[i] * (double)x[i];
            product += (double)dy[i] * (double)weight[i] * (double)x[i];
        }
        double scale = 1.0 / sqrt(squares / (double)dim + eps);
        for (size_t i = 0; i < dim; ++i) {
            double own = (double)dy[i] * (double)weight[i] * scale;
            double others = (double)x[i] * product * scale * scale * scale / (double)dim;
            double result = (double)dresidual[i] + own - others;
            double sizes = fabs((double)dresidual[i]) + fabs(own) + fabs(others);
            terms += sizes * sizes;
            results += result * result;
            dresidual[i] = (float)result;
            dweight[i] += (double)dy[i] * (double)x[i] * scale;
        }
    }
    return sqrt(terms / results);
}

/* ---- Rotary positions ---- */

/* Llama 3.1's scaling, by the part of the way from the longest wavelength that stays to the shortest that is scaled. */
static double rope_scaled_fp64(const zero_rope_t *rope, double frequency)
{
    double turns = (double)rope->original * frequency / (2.0 * 3.14159265358979323846);
    double part = (turns - (double)rope->low_freq) / ((double)rope->high_freq - (double)rope->low_freq);
    if (rope->factor <= 1.0f)
        return frequency;
    part = part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part;
    return frequency * (part + (1.0 - part) / (double)rope->factor);
}

/* A pair's frequency without rounding, scaled by `kind`. */
static double rope_frequency_fp64(const zero_rope_t *rope, size_t i, size_t n_rotated)
{
    double frequency = pow((double)rope->theta, -(double)(2 * i) / (double)n_rotated);
    double scaled = frequency / (double)rope->factor;
    double part = ((double)i - (double)rope->last_kept) / ((double)rope->first_scaled - (double)rope->last_kept);
    if (rope->kind == ZERO_ROPE_LLAMA3)
        return rope_scaled_fp64(rope, frequency);
    if (rope->kind == ZERO_ROPE_LONGROPE)
        return frequency / (double)rope->divisors[i];
    part = rope->kind == ZERO_ROPE_LINEAR || part > 1.0 ? 1.0 : part < 0.0 ? 0.0 : part;
    return frequency + part * (scaled - frequency);
}

/* As model.h has it: the angle as Hugging Face rounds it to fp32, or as the formula has it. */
static double rope_angle_fp64(const zero_rope_t *rope, size_t position, size_t i, size_t n_rotated, bool as_rounded)
{
    double exponent = (double)(2 * i) / (double)n_rotated, theta = (double)rope->theta;
    if (!as_rounded)
        return (double)position * rope_frequency_fp64(rope, i, n_rotated);
    float power = (float)pow(theta, (double)(float)exponent), frequency = 1.0f / power;
    return (double)((float)position * frequency);
}

static void rope_fp64(float *qkv, bool inverse, const zero_rope_t *rope, bool as_rounded, size_t n_batch,
                      size_t seq_len, size_t n_heads, size_t n_kv_heads, size_t head_dim)
{
    size_t row_heads = n_heads + 2 * n_kv_heads, n_rotated = rope->n_rotated > 0 ? rope->n_rotated : head_dim;
    size_t half = n_rotated / 2;
    double scale = rope->scale != 0.0f ? (double)rope->scale : 1.0;
    for (size_t row = 0; row < n_batch * seq_len; ++row)
        for (size_t i = 0; i < half; ++i) {
            double angle = rope_angle_fp64(rope, row % seq_len - (rope->starts ? (size_t)rope->starts[row] : 0), i,
                                           n_rotated, as_rounded);
            double c = scale * cos(angle), s = scale * (inverse ? -sin(angle) : sin(angle));
            for (size_t head = 0; head < n_heads + n_kv_heads; ++head) {
                float *x = qkv + (row * row_heads + head) * head_dim + i;
                double a = (double)x[0], b = (double)x[half];
                double factor = head < n_heads && rope->q_scale != 0.0f ? (double)rope->q_scale : 1.0;
                x[0] = (float)((a * c - b * s) * factor);
                x[half] = (float)((b * c + a * s) * factor);
            }
        }
}

/* ---- SwiGLU and GeGLU ---- */

/* Sets the activation's value and its derivative: silu or GELU's tanh form. */
static void activation_fp64(bool gelu, double x, double *value, double *slope)
{
    double c = sqrt(2.0 / 3.14159265358979323846), u = gelu ? 2.0 * c * (x + 0.044715 * x * x * x) : x;
    double du = gelu ? 2.0 * c * (1.0 + 3.0 * 0.044715 * x * x) : 1.0;
    double s = 1.0 / (1.0 + exp(-u)), rest = 1.0 / (1.0 + exp(u)); /* (1 + tanh(u / 2)) / 2 */
    *value = x * s;
    *slope = s * (1.0 + x * du * rest);
}

static void gated_fp64(bool gelu, float *y, float *dgate_up, const float *dy, const float *gate_up, size_t n_rows,
                       size_t width)
{
    for (size_t row = 0; row < n_rows; ++row, y += width, dy += width, gate_up += 2 * width, dgate_up += 2 * width)
        for (size_t i = 0; i < width; ++i) {
            double value, slope, up = (double)gate_up[width + i];
            activation_fp64(gelu, (double)gate_up[i], &value, &slope);
            y[i] = (float)(value * up);
            dgate_up[i] = (float)((double)dy[i] * up * slope);
            dgate_up[width + i] = (float)((double)dy[i] * value);
        }
}

/* ---- Causal attention ---- */

typedef zero_attention_shape_t attention_shape_t;

static double dot_fp64(const float *a, const float *b, size_t n)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; ++i)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add_scaled_fp64(double *sum, double factor, const float *x, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        sum[i] += factor * (double)x[i];
}

static void put_fp64(float *out, const double *x, size_t n)
{
    for (size_t i = 0; i < n; ++i)
        out[i] = (float)x[i];
}

/* Returns the first key that query t sees. */
static size_t first_key_fp64(const zero_mask_t *mask, size_t seq_len, size_t batch, size_t t)
{
    size_t first = mask->starts ? (size_t)mask->starts[batch * seq_len + t] : 0;
    return mask->window > 0 && first + mask->window < t + 1 ? t + 1 - mask->window : first;
}

/* Row i of one head, which sees the keys from `first` on: out, logsumexp (also to lse), delta = out . dout, and dq. k
 * and v rows start `ld` apart. */
static void attention_row_fp64(float *out, float *logsumexp, double *lse, double *delta, float *dq, const float *dout,
                               const float *q, const float *k, const float *v, size_t first, size_t i, size_t ld,
                               size_t head_dim)
{
    double scale = 1.0 / sqrt((double)head_dim), top = -INFINITY, sum = 0.0;
    double *p = malloc((i + 1) * sizeof *p), *row = calloc(head_dim, sizeof *row);
    if (p == NULL || row == NULL)
        abort();
    for (size_t j = first; j <= i; ++j) {
        p[j] = scale * dot_fp64(q, k + j * ld, head_dim);
        top = fmax(top, p[j]);
    }
    for (size_t j = first; j <= i; ++j)
        sum += p[j] = exp(p[j] - top);
    *lse = top + log(sum);
    *logsumexp = (float)*lse;
    for (size_t j = first; j <= i; ++j)
        add_scaled_fp64(row, p[j] /= sum, v + j * ld, head_dim);
    put_fp64(out, row, head_dim);
    *delta = 0.0;
    for (size_t d = 0; d < head_dim; ++d) {
        *delta += row[d] * (double)dout[d];
        row[d] = 0.0;
    }
    for (size_t j = first; j <= i; ++j)
        add_scaled_fp64(row, scale * p[j] * (dot_fp64(dout, v + j * ld, head_dim) - *delta), k + j * ld, head_dim);
    put_fp64(dq, row, head_dim);
    free(p), free(row);
}

/* Forward and backward; arrays as in model.h, the mask's in host memory. */
static void attention_fp64(float *out, float *logsumexp, float *dqkv, const float *dout, const float *qkv,
                           const zero_mask_t *mask, attention_shape_t s)
{
    size_t H = s.n_heads, K = s.n_kv_heads, D = s.head_dim, T = s.seq_len, ld = (H + 2 * K) * D, group = H / K;
    double scale = 1.0 / sqrt((double)D);
    double *lse = malloc(s.n_batch * H * T * sizeof *lse), *delta = malloc(s.n_batch * H * T * sizeof *delta);
    if (lse == NULL || delta == NULL)
        abort();
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < s.n_batch * H * T; ++at) {
        size_t i = at % T, head = at / T % H, batch = at / T / H;
        const float *sequence = qkv + batch * T * ld, *k = sequence + (H + head / group) * D;
        size_t out_at = ((batch * T + i) * H + head) * D;
        attention_row_fp64(out + out_at, &logsumexp[at], &lse[at], &delta[at], dqkv + (batch * T + i) * ld + head * D,
                           dout + out_at, sequence + i * ld + head * D, k, k + K * D, first_key_fp64(mask, T, batch, i),
                           i, ld, D);
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t at = 0; at < s.n_batch * K * T; ++at) {
        size_t j = at % T, kv_head = at / T % K, batch = at / T / K;
        size_t k_at = (batch * T + j) * ld + (H + kv_head) * D, v_at = k_at + K * D;
        double *dk = calloc(D, sizeof *dk), *dv = calloc(D, sizeof *dv);
        if (dk == NULL || dv == NULL)
            abort();
        for (size_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
            for (size_t i = j; i < T && first_key_fp64(mask, T, batch, i) <= j; ++i) {
                const float *q = qkv + (batch * T + i) * ld + head * D;
                const float *d = dout + ((batch * T + i) * H + head) * D;
                size_t row = (batch * H + head) * T + i;
                double p = exp(scale * dot_fp64(q, qkv + k_at, D) - lse[row]);
                add_scaled_fp64(dv, p, d, D);
                add_scaled_fp64(dk, scale * p * (dot_fp64(d, qkv + v_at, D) - delta[row]), q, D);
            }
        put_fp64(dqkv + k_at, dk, D);
        put_fp64(dqkv + v_at, dv, D);
        free(dk), free(dv);
    }
    free(lse), free(delta);
}

#endif
