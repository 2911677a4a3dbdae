/* shard_math.h - the arithmetic of one element, shared by the CPU and the CUDA shard kernels.
 *
 * Equal bits everywhere rest on this file. All devices use these same functions, which consist of operations that IEEE
 * 754 defines to the last bit (+, -, *, /, fmaf, sqrtf, conversions between integers and floats, integer arithmetic),
 * in an order that no compiler may change. Products that are added to something are written as fmaf, so that there is
 * nothing to contract. The C library's log, sin and cos are not used, since libraries round them differently. IEEE does
 * not define which NaN an operation makes, so results pass zero_one_nan before they are stored.
 *
 * Everything is branch-free (selections, not jumps), so that loops over these functions vectorize. Valid as C17 and as
 * CUDA C++; nvcc must keep its IEEE defaults (-ftz=false -prec-div=true -prec-sqrt=true).
 */
#ifndef ZERO_SHARD_MATH_H
#define ZERO_SHARD_MATH_H

#include <math.h>

#include "kernels/float_bits.h"
#include "kernels/shard.h"

/* ---- Bits ----------------------------------------------------------------------------------------------------------
 */

/* Returns x, but 0x7fc00000 for any NaN: x86, Arm and CUDA make different NaNs of inf - inf and of two NaNs. */
ZERO_MATH float zero_one_nan(float x)
{
    return x == x ? x : zero_float_of_bits(ZERO_FLOAT_NAN_BITS);
}

/* ---- bf16 and fp16 -------------------------------------------------------------------------------------------------
 */

ZERO_MATH float zero_float_of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    uint32_t quiet = (bits & 0x7fffffffu) > ZERO_FLOAT_INF_BITS ? 0x00400000u : 0u;
    return zero_float_of_bits(bits | quiet);
}

/* Adds half a unit (less one if the kept part is even), which carries into the kept part exactly when it must round up.
 * A carry out of the largest number makes infinity. */
ZERO_MATH uint16_t zero_bf16_of_float(float x)
{
    uint32_t bits = zero_bits_of_float(x);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    uint32_t is_nan = (bits & 0x7fffffffu) > ZERO_FLOAT_INF_BITS;
    return (uint16_t)((is_nan ? bits | 0x00400000u : rounded) >> 16);
}

/* fp16 has 5 exponent bits with bias 15, fp32 has 8 with bias 127: exponents move by 112, written 112 << 23. */
ZERO_MATH float zero_float_of_fp16(uint16_t half)
{
    uint32_t sign = ((uint32_t)half & 0x8000u) << 16;
    uint32_t shifted = ((uint32_t)half & 0x7fffu) << 13;
    uint32_t normal = shifted + (112u << 23);
    uint32_t special = (shifted + (224u << 23)) | (shifted > 0x0f800000u ? 0x00400000u : 0u); /* exponent 31 to 255 */
    /* A denormal is mantissa * 2^-24: put the mantissa after the leading one of 2^-14, then subtract 2^-14. Exact. */
    float denormal = zero_float_of_bits(shifted + (113u << 23)) - zero_float_of_bits(113u << 23);
    uint32_t bits = shifted >= 0x0f800000u ? special : shifted >= 0x00800000u ? normal : zero_bits_of_float(denormal);
    return zero_float_of_bits(sign | bits);
}

ZERO_MATH uint16_t zero_fp16_of_float(float x)
{
    uint32_t bits = zero_bits_of_float(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13; /* as for bf16 */
    /* Below 2^-14 the unit is 2^-24, like that of 0.5f. So adding 0.5f rounds to this unit, and the low bits of the sum
     * count the units. */
    uint32_t denormal = zero_bits_of_float(zero_float_of_bits(magnitude) + 0.5f) - zero_bits_of_float(0.5f);
    uint32_t special = magnitude > ZERO_FLOAT_INF_BITS ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t rounded = magnitude >= (143u << 23)   ? special /* 2^16 and beyond */
                       : magnitude >= (113u << 23) ? normal
                                                   : denormal;
    return (uint16_t)(sign | rounded);
}

/* ---- Master weights split into a bf16 parameter and 16 low bits ----------------------------------------------------
 */

/* The master weight's bits are (param << 16) + master_lo modulo 2^32, with master_lo from -2^15 to 2^15 - 1. Every bit
 * pattern has exactly one such pair. */
ZERO_MATH uint16_t zero_split_param(float master)
{
    return (uint16_t)((zero_bits_of_float(master) + 0x8000u) >> 16);
}

ZERO_MATH int16_t zero_split_master_lo(float master)
{
    return (int16_t)(uint16_t)zero_bits_of_float(master);
}

ZERO_MATH float zero_join_master(uint16_t param, int16_t master_lo)
{
    return zero_float_of_bits(((uint32_t)param << 16) + (uint32_t)(int32_t)master_lo);
}

/* ---- What a segment is updated with --------------------------------------------------------------------------------
 */

/* Replaces the step's scalars and the segment's decay by those of its tensor, if tensors have their own. */
ZERO_MATH void zero_take_tensor_scalars(const zero_adam_t *args, const zero_adam_segment_t *segment,
                                        zero_adam_scalars_t *scalars, float *decay)
{
    if (args->by_tensor) {
        *scalars = args->by_tensor[segment->tensor].scalars;
        *decay = args->by_tensor[segment->tensor].decay;
    }
}

/* ---- AdamW ---------------------------------------------------------------------------------------------------------
 */

/* Evaluates the expressions of zero_adam_t. shrink is -(lr * decay). */
ZERO_MATH void zero_adam_element(const zero_adam_scalars_t *s, float shrink, float grad, float *w, float *m, float *v)
{
    float g = grad * s->grad_scale;
    float new_m = fmaf(s->beta1, *m, s->one_minus_beta1 * g);
    float new_v = fmaf(s->beta2, *v, s->one_minus_beta2 * (g * g));
    float d = fmaf(sqrtf(new_v), s->inv_sqrt_bias2, s->eps);
    float shrunk = fmaf(shrink, *w, *w);
    float new_w = fmaf(-s->lr, (new_m * s->inv_bias1) / d, shrunk);
    *m = zero_one_nan(new_m);
    *v = zero_one_nan(new_v);
    *w = zero_one_nan(new_w);
}

/* ---- Optimizers with one state array -------------------------------------------------------------------------------
 */

/* Evaluate the expressions of zero_shard_kernels_t's sgd, nesterov and lion. */

ZERO_MATH void zero_sgd_element(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
{
    float g = fmaf(decay, *w, grad * s->grad_scale);
    float new_m = fmaf(s->beta1, *m, g);
    float new_w = fmaf(-s->lr, new_m, *w);
    *m = zero_one_nan(new_m);
    *w = zero_one_nan(new_w);
}

ZERO_MATH void zero_nesterov_element(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
{
    float g = fmaf(decay, *w, grad * s->grad_scale);
    float new_m = fmaf(s->beta1, *m, g);
    float new_w = fmaf(-s->lr, fmaf(s->beta1, new_m, g), *w);
    *m = zero_one_nan(new_m);
    *w = zero_one_nan(new_w);
}

ZERO_MATH void zero_lion_element(const zero_adam_scalars_t *s, float decay, float grad, float *w, float *m)
{
    float g = grad * s->grad_scale;
    float c = fmaf(s->beta1, *m, s->one_minus_beta1 * g);
    float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f;
    float new_m = fmaf(s->beta2, *m, s->one_minus_beta2 * g);
    float new_w = fmaf(-s->lr, sign, fmaf(-(s->lr * decay), *w, *w));
    *m = zero_one_nan(new_m);
    *w = zero_one_nan(new_w);
}

/* ---- Muon ----------------------------------------------------------------------------------------------------------
 */

/* Evaluate the expressions of zero_shard_kernels_t's muon_momentum, whose update they return, and muon_apply. */

ZERO_MATH float zero_muon_momentum_element(float momentum, float one_minus_momentum, float grad_scale, float grad,
                                           float *m)
{
    float g = one_minus_momentum * (grad * grad_scale);
    float new_m = fmaf(momentum, *m, g);
    *m = zero_one_nan(new_m);
    return zero_one_nan(fmaf(momentum, new_m, g));
}

/* shrink: -(lr * decay); step: -(lr * scale). */
ZERO_MATH float zero_muon_apply_element(float shrink, float step, float update, float w)
{
    return zero_one_nan(fmaf(step, update, fmaf(shrink, w, w)));
}

/* Returns the factor by which clipping multiplies gradients; 1 if grad_clip is 0 or the norm is NaN (such a step is
 * skipped). */
ZERO_MATH float zero_clip_coefficient(float grad_norm, float grad_clip)
{
    float coefficient = grad_clip / (grad_norm + 1e-6f);
    return grad_clip > 0.0f && coefficient < 1.0f ? coefficient : 1.0f;
}

/* ---- Normal numbers: Philox4x32-10, then Box-Muller ----------------------------------------------------------------
 */

#define ZERO_PHILOX_ROUNDS 10

/* Replaces the counter c0..c3 by the output. Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3
 * (SC'11). */
ZERO_MATH void zero_philox(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < ZERO_PHILOX_ROUNDS; ++round) {
        uint64_t product0 = (uint64_t)0xd2511f53u * *c0;
        uint64_t product1 = (uint64_t)0xcd9e8d57u * *c2;
        *c0 = (uint32_t)(product1 >> 32) ^ *c1 ^ key0;
        *c2 = (uint32_t)(product0 >> 32) ^ *c3 ^ key1;
        *c1 = (uint32_t)product1;
        *c3 = (uint32_t)product0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

/* Returns the natural logarithm of a positive normal float, with an error below 1 ulp on (0, 1]. x = 2^e * f with f in
 * [sqrt(1/2), sqrt(2)). log f is the polynomial of Cephes' logf (Moshier). log 2 is added in two parts, the first of
 * which gives an exact product with e. */
ZERO_MATH float zero_math_log(float x)
{
    uint32_t bits = zero_bits_of_float(x);
    int32_t exponent = (int32_t)(bits - 0x3f3504f3u) >> 23; /* 0x3f3504f3: sqrt(1/2) */
    float e = (float)exponent;
    float f = zero_float_of_bits(bits - ((uint32_t)exponent << 23)) - 1.0f;
    float p = 7.0376836292e-2f;
    p = fmaf(p, f, -1.1514610310e-1f);
    p = fmaf(p, f, 1.1676998740e-1f);
    p = fmaf(p, f, -1.2420140846e-1f);
    p = fmaf(p, f, 1.4249322787e-1f);
    p = fmaf(p, f, -1.6668057665e-1f);
    p = fmaf(p, f, 2.0000714765e-1f);
    p = fmaf(p, f, -2.4999993993e-1f);
    p = fmaf(p, f, 3.3333331174e-1f);
    float square = f * f;
    float tail = fmaf(p * f, square, -2.12194440e-4f * e);
    tail = fmaf(-0.5f, square, tail);
    return fmaf(0.693359375f, e, f + tail);
}

/* Computes sin and cos of 2 pi turn / 2^32. The nearest quarter turn is split off in integers, so the rest is exact and
 * at most an eighth of a turn, for which the polynomials of Cephes' sinf and cosf are used. */
ZERO_MATH void zero_math_sin_cos(uint32_t turn, float *sine, float *cosine)
{
    uint32_t quarter = (turn + 0x20000000u) >> 30;
    int32_t rest = (int32_t)(turn - (quarter << 30));
    float x = (float)rest * 1.46291807926715968e-9f; /* 2 pi / 2^32 */
    float square = x * x;
    float s = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
    s = fmaf(s, square, -1.6666654611e-1f);
    s = fmaf(s * square, x, x);
    float c = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
    c = fmaf(c, square, 4.166664568298827e-2f);
    c = fmaf(c, square, -0.5f);
    c = fmaf(c, square, 1.0f);
    uint32_t odd = quarter & 1u;
    uint32_t sine_sign = (quarter & 2u) << 30;
    uint32_t cosine_sign = ((quarter + 1u) & 2u) << 30;
    *sine = zero_float_of_bits(zero_bits_of_float(odd ? c : s) ^ sine_sign);
    *cosine = zero_float_of_bits(zero_bits_of_float(odd ? s : c) ^ cosine_sign);
}

/* Turns two words into two normals, r cos(t) and r sin(t), with r = sqrt(-2 log u), u = (word0 + 1/2) / 2^32 rounded
 * once, and t = 2 pi word1 / 2^32 (Box and Muller 1958). u uses all 32 bits, so the tails reach 6.7 standard
 * deviations. */
ZERO_MATH void zero_box_muller(uint32_t word0, uint32_t word1, float *first, float *second)
{
    float high = (float)(int32_t)(word0 >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
    float low =
        fmaf((float)(int32_t)(word0 & 0xffu), 2.3283064365386963e-10f, 1.1641532182693481e-10f); /* 2^-32, 2^-33 */
    float radius = sqrtf(-2.0f * zero_math_log(high + low));
    float sine, cosine;
    zero_math_sin_cos(word1, &sine, &cosine);
    *first = radius * cosine;
    *second = radius * sine;
}

#endif
