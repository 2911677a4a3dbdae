/* activation.cuh - GELU's tanh form, silu, and their derivatives.
 *
 * The formulas are mlp.c's. FAST: for 16-bit types, the fast exponential and reciprocal, whose errors are below their
 * rounding.
 */
#ifndef ZERO_ACTIVATION_CUH
#define ZERO_ACTIVATION_CUH

#include "train/kernels/cuda/pack.cuh"

#define ZERO_MINUS_TWO_SQRT_2_OVER_PI (-1.59576912f)
#define ZERO_CUBIC 0.044715f

/* Returns -2u, with u = sqrt(2/pi) (x + 0.044715 x^3), given x^2. */
__device__ __forceinline__ float zero_gelu_exponent(float x, float square)
{
    return ZERO_MINUS_TWO_SQRT_2_OVER_PI * x * fmaf(ZERO_CUBIC, square, 1.0f);
}

/* Returns s = (1 + tanh u) / 2 = 1 / (1 + e^-2u), precise enough for 16 bits: 0 and 1 in the tails. */
__device__ __forceinline__ float zero_gelu_gate(float x, float square)
{
    return zero_fast_reciprocal(1.0f + zero_fast_exp(zero_gelu_exponent(x, square)));
}

/* Returns x s; in fp32 by a division, which rounds once less. */
template <bool FAST> __device__ __forceinline__ float zero_gelu_value(float x)
{
    if (FAST)
        return x * zero_gelu_gate(x, x * x);
    return x / (1.0f + expf(zero_gelu_exponent(x, x * x)));
}

/* Returns s + x s (1 - s) 2u'. In fp32 1 - s = e^-2u s, as in mlp.c, and x is bounded once the second term vanishes.
 * In 16 bits s (1 - s) is 0 there, so it is multiplied first. */
template <bool FAST> __device__ __forceinline__ float zero_gelu_slope(float x)
{
    float square = x * x, bounded = square > 100.0f ? 100.0f : square;
    float two_u_slope = -ZERO_MINUS_TWO_SQRT_2_OVER_PI * fmaf(3.0f * ZERO_CUBIC, bounded, 1.0f);
    if (FAST) {
        float s = zero_gelu_gate(x, square);
        return fmaf(x * (s * (1.0f - s)), two_u_slope, s);
    }
    float t = zero_gelu_exponent(x, square);
    float e = expf(t > 80.0f ? 80.0f : t), s = 1.0f / (1.0f + e);
    float bounded_x = x > 10.0f ? 10.0f : x < -10.0f ? -10.0f : x;
    return fmaf(bounded_x * two_u_slope, e * s * s, s);
}

/* act(gate) and its derivative. */
struct zero_activation {
    float value, slope;
};

/* gate s and s + gate s (1 - s), s = 1 / (1 + exp(-gate)). Not FAST: computed without subtracting near-equal numbers
 * and without overflow. FAST: an infinite exponential makes s 0, and 1 - s, where s is near 1, is as precise as s. */
struct zero_silu {
    template <bool FAST> static __device__ __forceinline__ zero_activation of(float gate)
    {
        if (FAST) {
            const float s = zero_fast_reciprocal(1.0f + zero_fast_exp(-gate)), value = gate * s;
            return {value, fmaf(value, 1.0f - s, s)};
        }
        float e = expf(-fabsf(gate)), larger = 1.0f / (1.0f + e), smaller = e * larger;
        float s = gate < 0.0f ? smaller : larger, rest = gate < 0.0f ? larger : smaller;
        return {gate * s, fmaf(gate * s, rest, s)};
    }
};

struct zero_gelu {
    template <bool FAST> static __device__ __forceinline__ zero_activation of(float gate)
    {
        return {zero_gelu_value<FAST>(gate), zero_gelu_slope<FAST>(gate)};
    }
};

#endif
