/* vector_math.h - exp for loops that the compiler vectorizes, and sums in an order that it may not change.
 *
 * The C library's expf is a call per element. This one is branch-free arithmetic, so the compiler turns a plain loop
 * over it into SIMD in every build. IEEE rules forbid vectorizing a sum into one variable, so sums here run in
 * ZERO_LANES separate lanes, folded in halves at the end: fast, and in the same order in every build.
 * Included by the model kernels that are built per instruction set (isa.h).
 */
#ifndef ZERO_VECTOR_MATH_H
#define ZERO_VECTOR_MATH_H

#include <math.h>
#include <stddef.h>

#include "kernels/shard_math.h"

/* Returns a * b + c, rounded once if the machine has an instruction for that. Without one, fmaf would be a slow call,
 * and here speed matters more than the last bit. */
static inline float zero_multiply_add(float a, float b, float c)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Returns e^x within 1 ulp (2 without fma): 0 if it would be denormal, infinity if it is too large, NaN for NaN.
 * x = k log 2 + r, |r| <= log(2)/2. e^r is the polynomial of Cephes' expf (Moshier); 2^k is made of exponent bits, in
 * two factors since 2^128 is not a float. log 2 is in two parts, and k times the first is exact. */
static inline float zero_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    float bounded = x > 89.0f ? 89.0f : x;
    bounded = bounded < -88.0f ? -88.0f : bounded;
    float shifted = zero_multiply_add(bounded, 1.44269504f, magic);
    float k = shifted - magic;
    float r = zero_multiply_add(k, -0.693359375f, bounded);
    r = zero_multiply_add(k, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = zero_multiply_add(p, r, 1.3981999507e-3f);
    p = zero_multiply_add(p, r, 8.3334519073e-3f);
    p = zero_multiply_add(p, r, 4.1665795894e-2f);
    p = zero_multiply_add(p, r, 1.6666665459e-1f);
    p = zero_multiply_add(p, r, 5.0000001201e-1f);
    p = zero_multiply_add(p, r * r, r) + 1.0f;
    int32_t exponent = (int32_t)(zero_bits_of_float(shifted) - zero_bits_of_float(magic));
    int32_t half = exponent >> 1;
    float scale0 = zero_float_of_bits((uint32_t)(half + 127) << 23);
    float scale1 = zero_float_of_bits((uint32_t)(exponent - half + 127) << 23);
    float result = p * scale0 * scale1;
    return x < -87.3365448f ? 0.0f : result; /* denormals would slow down what reads them */
}

/* ---- Sums and maxima in lanes ---- */

#define ZERO_LANES 16

static inline float zero_fold_sum(const float lanes[ZERO_LANES])
{
    float t[ZERO_LANES / 2];
    for (size_t l = 0; l < ZERO_LANES / 2; ++l)
        t[l] = lanes[l] + lanes[l + ZERO_LANES / 2];
    for (size_t s = ZERO_LANES / 4; s > 0; s /= 2)
        for (size_t l = 0; l < s; ++l)
            t[l] += t[l + s];
    return t[0];
}

/* Returns the largest of x[n], or -infinity if n is 0. Ignores NaN, which the exponentials bring back. */
static inline float zero_row_max(const float *x, size_t n)
{
    float lanes[ZERO_LANES];
    for (size_t l = 0; l < ZERO_LANES; ++l)
        lanes[l] = -INFINITY;
    size_t i = 0;
    for (; i + ZERO_LANES <= n; i += ZERO_LANES) {
#pragma omp simd
        for (size_t l = 0; l < ZERO_LANES; ++l)
            lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    }
    for (size_t l = 0; i + l < n; ++l)
        lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    for (size_t s = ZERO_LANES / 2; s > 0; s /= 2)
        for (size_t l = 0; l < s; ++l)
            lanes[l] = lanes[l + s] > lanes[l] ? lanes[l + s] : lanes[l];
    return lanes[0];
}

/* Replaces x[i] by exp(x[i] - shift) and returns their sum. */
static inline float zero_row_exp(float *x, size_t n, float shift)
{
    float lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= n; i += ZERO_LANES) {
        for (size_t l = 0; l < ZERO_LANES; ++l) {
            float e = zero_exp(x[i + l] - shift);
            x[i + l] = e;
            lanes[l] += e;
        }
    }
    for (size_t l = 0; i + l < n; ++l) {
        x[i + l] = zero_exp(x[i + l] - shift);
        lanes[l] += x[i + l];
    }
    return zero_fold_sum(lanes);
}

static inline float zero_row_dot(const float *x, const float *y, size_t n)
{
    float lanes[ZERO_LANES] = {0};
    size_t i = 0;
    for (; i + ZERO_LANES <= n; i += ZERO_LANES)
        for (size_t l = 0; l < ZERO_LANES; ++l)
            lanes[l] = zero_multiply_add(x[i + l], y[i + l], lanes[l]);
    for (size_t l = 0; i + l < n; ++l)
        lanes[l] = zero_multiply_add(x[i + l], y[i + l], lanes[l]);
    return zero_fold_sum(lanes);
}

#endif
