/* mlp.c - the tanh form of GELU on the CPU (Hendrycks, Gimpel 2016, arXiv:1606.08415; Hugging Face's gelu_new).
 *
 * With u = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh u) / 2 = 1 / (1 + e^-2u) = s. This form takes one exponential, and
 * subtracts no near-equal numbers in the tails.
 *
 * Backward also sums the columns of dx, as norms.c does: a fixed number of row parts, added in order.
 */
#include "train/kernels/kernels_cpu.h"
#include "train/kernels/vector_math.h"

#define MINUS_TWO_SQRT_2_OVER_PI (-1.59576912f)
#define CUBIC 0.044715f

/* Returns -2u. */
static inline float gelu_exponent(float x)
{
    return MINUS_TWO_SQRT_2_OVER_PI * x * zero_multiply_add(CUBIC * x, x, 1.0f);
}

static inline float gelu_value(float x)
{
    return x / (1.0f + zero_exp(gelu_exponent(x)));
}

/* Returns d/dx (x s) = s + x s (1 - s) 2 u', where 1 - s = e s. Beyond |x| = 10 the second term is below 1e-40;
 * bounding x and the exponent there keeps x * x and e finite. */
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
    float *out = y;
    const float *in = x;
#pragma omp parallel for simd schedule(static) if (parallel : n_elems >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        out[i] = gelu_value(in[i]);
    ZERO_ISA(zero_model_raise_absmax)(ctx, y, n_elems);
    return ZERO_OK;
}

size_t ZERO_MODEL_FN(gelu_workspace)(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(ZERO_ROW_PARTS * limits->max_width * sizeof(float));
}

static void gelu_row_backward(float *dx, const float *dy, const float *x, size_t width)
{
#pragma omp simd
    for (size_t i = 0; i < width; ++i)
        dx[i] = dy[i] * gelu_slope(x[i]);
}

static void row_values(float *y, const float *x, size_t width)
{
#pragma omp simd
    for (size_t i = 0; i < width; ++i)
        y[i] = gelu_value(x[i]);
}

zero_status_t ZERO_MODEL_FN(gelu_backward)(zero_model_context_t *ctx, void *dx, zero_grad_t dcolumns, void *y,
                                           const void *dy, const void *x, size_t n_rows, size_t width)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t n_parts = zero_row_parts(n_rows);
    float *partials; /* [n_parts, width] */
    ZERO_TRY(zero_scratch_alloc(&scratch, n_parts * width * sizeof *partials, &partials));
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t part = 0; part < n_parts; ++part) {
        float *sums = partials + part * width;
        memset(sums, 0, width * sizeof *sums);
        for (size_t row = part * n_rows / n_parts; row < (part + 1) * n_rows / n_parts; ++row) {
            float *out = (float *)dx + row * width;
            const float *in = (const float *)x + row * width;
            gelu_row_backward(out, (const float *)dy + row * width, in, width);
            if (y != NULL)
                row_values((float *)y + row * width, in, width);
            for (size_t i = 0; i < width; ++i)
                sums[i] += out[i];
        }
    }
    ZERO_ISA(zero_model_put_partials)(dcolumns, partials, n_parts, width, width);
    ZERO_ISA(zero_model_raise_absmax)(ctx, dx, n_rows * width);
    return ZERO_OK;
}

/* ---- swiglu ---- */
/* SwiGLU's product on the CPU: silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020, arXiv:2002.05202).
 *
 * It takes one exponential per element, and subtracts no near-equal numbers in the tails, as GELU does. */

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

/* GeGLU has GELU's tanh form in place of silu. Rows are inlined with the activation known, so that they become vector
 * code. */
typedef float (*activation_fn)(float x);
#define INLINED static inline __attribute__((always_inline))

INLINED void gated_row(float *y, const float *gate_up, size_t width, activation_fn value)
{
    const float *gate = gate_up, *up = gate_up + width;
    for (size_t i = 0; i < width; ++i)
        y[i] = value(gate[i]) * up[i];
}

/* dgate_up may be gate_up. */
INLINED void gated_row_backward(float *dgate_up, const float *dy, const float *gate_up, size_t width,
                                activation_fn value, activation_fn slope)
{
    float *dgate = dgate_up, *dup = dgate_up + width;
    const float *gate = gate_up, *up = gate_up + width;
#pragma omp simd
    for (size_t i = 0; i < width; ++i) {
        float g = gate[i], u = up[i];
        dgate[i] = dy[i] * u * slope(g);
        dup[i] = dy[i] * value(g);
    }
}

typedef struct gated_rows {
    void (*forward)(float *y, const float *gate_up, size_t width);
    void (*backward)(float *dgate_up, const float *dy, const float *gate_up, size_t width);
} gated_rows_t;

#define GATED_ROWS(name, value, slope)                                                                                 \
    static void name##_row(float *y, const float *gate_up, size_t width)                                               \
    {                                                                                                                  \
        gated_row(y, gate_up, width, value);                                                                           \
    }                                                                                                                  \
    static void name##_row_backward(float *dgate_up, const float *dy, const float *gate_up, size_t width)              \
    {                                                                                                                  \
        gated_row_backward(dgate_up, dy, gate_up, width, value, slope);                                                \
    }                                                                                                                  \
    static const gated_rows_t name##_rows = {name##_row, name##_row_backward};
GATED_ROWS(swiglu, silu, silu_slope)
GATED_ROWS(geglu, gelu_value, gelu_slope)

static zero_status_t gated(zero_model_context_t *ctx, const gated_rows_t *rows, void *y, const void *gate_up,
                           size_t n_rows, size_t width)
{
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row)
        rows->forward((float *)y + row * width, (const float *)gate_up + row * 2 * width, width);
    ZERO_ISA(zero_model_raise_absmax)(ctx, y, n_rows * width);
    return ZERO_OK;
}

static zero_status_t gated_backward(zero_model_context_t *ctx, const gated_rows_t *rows, void *dgate_up, void *y,
                                    const void *dy, const void *gate_up, size_t n_rows, size_t width)
{
#pragma omp parallel for schedule(static) if (n_rows * width >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        const float *inputs = (const float *)gate_up + row * 2 * width;
        if (y != NULL) /* first: backward may overwrite the inputs */
            rows->forward((float *)y + row * width, inputs, width);
        rows->backward((float *)dgate_up + row * 2 * width, (const float *)dy + row * width, inputs, width);
    }
    ZERO_ISA(zero_model_raise_absmax)(ctx, dgate_up, n_rows * 2 * width);
    return ZERO_OK;
}

zero_status_t ZERO_MODEL_FN(swiglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows,
                                    size_t width)
{
    return gated(ctx, &swiglu_rows, y, gate_up, n_rows, width);
}

zero_status_t ZERO_MODEL_FN(swiglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                             const void *gate_up, size_t n_rows, size_t width)
{
    return gated_backward(ctx, &swiglu_rows, dgate_up, y, dy, gate_up, n_rows, width);
}

zero_status_t ZERO_MODEL_FN(geglu)(zero_model_context_t *ctx, void *y, const void *gate_up, size_t n_rows, size_t width)
{
    return gated(ctx, &geglu_rows, y, gate_up, n_rows, width);
}

zero_status_t ZERO_MODEL_FN(geglu_backward)(zero_model_context_t *ctx, void *dgate_up, void *y, const void *dy,
                                            const void *gate_up, size_t n_rows, size_t width)
{
    return gated_backward(ctx, &geglu_rows, dgate_up, y, dy, gate_up, n_rows, width);
}
