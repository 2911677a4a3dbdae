/* gelu.c - the tanh form of GELU on the CPU (Hendrycks, Gimpel 2016, arXiv:1606.08415; HF's gelu_new).
 *
 * With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 = 1 / (1 + e^-2u) = s: one exponential, and no difference of
 * near-equal numbers in the tails.
 */
#include "kernels/model_cpu.h"

#include "kernels/vector_math.h"

#define MINUS_TWO_SQRT_2_OVER_PI (-1.59576912f)
#define CUBIC 0.044715f

/* -2u */
static inline float gelu_exponent(float x)
{
    return MINUS_TWO_SQRT_2_OVER_PI * x * zero_multiply_add(CUBIC * x, x, 1.0f);
}

static inline float gelu_value(float x)
{
    return x / (1.0f + zero_exp(gelu_exponent(x)));
}

/* d/dx (x s) = s + x s (1 - s) 2 u', where 1 - s = e s. Beyond |x| = 10 the second term is below 1e-40: x * x is
 * kept from overflowing there, and e from infinity. */
static inline float gelu_slope(float x)
{
    float t = gelu_exponent(x);
    float e = zero_exp(t > 88.0f ? 88.0f : t);
    float s = 1.0f / (1.0f + e);
    float bounded = x > 10.0f ? 10.0f : x;
    bounded = bounded < -10.0f ? -10.0f : bounded;
    float two_u_slope = -MINUS_TWO_SQRT_2_OVER_PI * zero_multiply_add(3.0f * CUBIC * bounded, bounded, 1.0f);
    return zero_multiply_add(bounded * two_u_slope, e * s * s, s);
}

zero_status_t ZERO_MODEL_FN(gelu)(zero_model_context_t *ctx, void *y, const void *x, size_t n_elems)
{
    (void)ctx;
    float *out = y;
    const float *in = x;
#pragma omp parallel for simd schedule(static) if (parallel : n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        out[i] = gelu_value(in[i]);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(linear_backward_gelu)(zero_model_context_t *ctx, void *dx, const void *dy,
                                                  zero_weight_t weight, zero_linear_layout_t layout, const void *x,
                                                  size_t n_rows, size_t n_in, size_t n_out)
{
    float *out = dx;
    const float *in = x;
    ZERO_TRY(ZERO_MODEL_FN(linear_backward_input)(ctx, dx, false, dy, weight, layout, n_rows, n_in, n_out));
#pragma omp parallel for simd schedule(static) if (parallel : n_rows * n_in >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_rows * n_in; ++i)
        out[i] *= gelu_slope(in[i]);
    return ZERO_OK;
}
