/* swiglu.c - SwiGLU's product on the CPU: silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020, arXiv:2002.05202).
 *
 * It takes one exponential per element, and subtracts no near-equal numbers in the tails, as in gelu.c.
 */
#include "kernels/model/model_cpu.h"

#include "kernels/model/vector_math.h"

static inline float silu(float x)
{
    return x / (1.0f + zero_exp(-x));
}

/* Returns, with s = 1 / (1 + e^-x), s + x s (1 - s), where 1 - s = e^-x s. Beyond |x| = 88 the second term is below
 * 1e-35; bounding x there keeps the product of x and e^-x finite. */
static inline float silu_slope(float x)
{
    float bounded = x > 88.0f ? 88.0f : x;
    bounded = bounded < -88.0f ? -88.0f : bounded;
    float e = zero_exp(-bounded);
    float s = 1.0f / (1.0f + e);
    return zero_multiply_add(bounded * (e * s), s, s);
}

static void row_forward(float *y, const float *gate_up, size_t width)
{
    const float *gate = gate_up, *up = gate_up + width;
    for (size_t i = 0; i < width; ++i)
        y[i] = silu(gate[i]) * up[i];
}

/* dgate_up may be gate_up. */
static void row_backward(float *dgate_up, const float *dy, const float *gate_up, size_t width)
{
    float *dgate = dgate_up, *dup = dgate_up + width;
    const float *gate = gate_up, *up = gate_up + width;
#pragma omp simd
    for (size_t i = 0; i < width; ++i) {
        float g = gate[i], u = up[i];
        dgate[i] = dy[i] * u * silu_slope(g);
        dup[i] = dy[i] * silu(g);
    }
}

zero_status_t ZERO_MODEL_FN(swiglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows,
                                    size_t width)
{
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row)
        row_forward((float *)y + row * width, (const float *)gate_up + row * 2 * width, width);
    ZERO_ISA(zero_model_raise_absmax)(ctx, y, n_rows * width);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(swiglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                             const void *gate_up, size_t n_rows, size_t width)
{
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        const float *inputs = (const float *)gate_up + row * 2 * width;
        if (y != NULL) /* first: row_backward may overwrite the inputs */
            row_forward((float *)y + row * width, inputs, width);
        row_backward((float *)dgate_up + row * 2 * width, (const float *)dy + row * width, inputs, width);
    }
    ZERO_ISA(zero_model_raise_absmax)(ctx, dgate_up, n_rows * 2 * width);
    return ZERO_OK;
}
