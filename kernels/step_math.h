/* step_math.h - the decision at the end of a step, as one pure function that the CPU and a CUDA thread both run. From
 * all ranks' contributions it computes the global norm, whether the update is skipped, AdamW's scalars, and fp16's loss
 * scale for the next step. The device decides, so the host need not wait for the norm.
 *
 * The rules of shard_math.h hold here too: only operations that IEEE 754 defines, in a fixed order, so that every rank
 * and every device gets the same bits.
 */
#ifndef ZERO_STEP_MATH_H
#define ZERO_STEP_MATH_H

#include "kernels/shard_math.h"

/* ---- norm math ---- */
/* The sum of squares behind the gradient's norm, exact and therefore free of any order: shared by the CPU
 * and the CUDA kernels, as shard_math.h is.
 *
 * The sum of squares of a cell is one float (zero_norm_t in shard.h). A float is a whole number of 2^-149, its smallest
 * unit, so cells can be added as integers, and integers have the same sum in every order: it does not matter which
 * rank, block or thread adds a cell, nor when. Only the total is rounded, once for each digit. */

/* A cell's sum, split: `low` belongs to words[at] and `high` to words[at + 1] of a zero_norm_t. */
typedef struct zero_norm_part {
    uint32_t at, low, high;
} zero_norm_part_t;

/* Splits a sum of squares, which is not negative; infinity and NaN count as one cell that is not finite. A finite x is
 * mantissa * 2^(e - 149) with e from 0 to 253: its 24 bits are shifted to their place among the digits. */
ZERO_MATH zero_norm_part_t zero_norm_split(float x)
{
    uint32_t bits = zero_bits_of_float(x), exponent = (bits >> 23) & 0xffu, fraction = bits & 0x7fffffu;
    uint32_t e = exponent == 0 ? 0u : exponent - 1u, mantissa = exponent == 0 ? fraction : fraction | 0x800000u;
    uint32_t at = e / ZERO_NORM_DIGIT_BITS;
    uint64_t shifted = (uint64_t)mantissa << (e - at * ZERO_NORM_DIGIT_BITS);
    zero_norm_part_t part;
    part.at = exponent == 0xffu ? ZERO_NORM_DIGITS : at;
    part.low = exponent == 0xffu ? 1u : (uint32_t)shifted & ((1u << ZERO_NORM_DIGIT_BITS) - 1u);
    part.high = exponent == 0xffu ? 0u : (uint32_t)(shifted >> ZERO_NORM_DIGIT_BITS);
    return part;
}

/* Returns the sum as a double: infinity if a cell was not finite. Digits are carried first, so that equal sums have
 * equal digits; then one rounding for each digit below the highest. */
ZERO_MATH double zero_norm_value(const zero_norm_t *norm)
{
    uint64_t digits[ZERO_NORM_DIGITS], carry = 0;
    for (int i = 0; i < ZERO_NORM_DIGITS; i++) {
        uint64_t digit = norm->words[i] + carry;
        int is_last = i == ZERO_NORM_DIGITS - 1;
        digits[i] = is_last ? digit : digit & ((1u << ZERO_NORM_DIGIT_BITS) - 1u);
        carry = digit >> ZERO_NORM_DIGIT_BITS;
    }
    double value = 0.0;
    for (int i = ZERO_NORM_DIGITS - 1; i >= 0; i--)
        value = fma(value, (double)(1u << ZERO_NORM_DIGIT_BITS), (double)digits[i]);
    return norm->words[ZERO_NORM_DIGITS] != 0 ? (double)INFINITY : value * 0x1p-149;
}

/* ---- step math ---- */

#define ZERO_LOSS_SCALE_MAX 16777216.0f

ZERO_MATH uint32_t zero_is_finite(float x)
{
    return (zero_bits_of_float(x) & 0x7fffffffu) < ZERO_FLOAT_INF_BITS;
}

/* Returns base^n, by squaring. pow rounds differently between libraries and devices; this does not. */
ZERO_MATH double zero_power(double base, uint64_t n)
{
    double result = 1.0;
    for (; n != 0; n >>= 1) {
        if (n & 1)
            result *= base;
        base *= base;
    }
    return result;
}

/* Sets what the optimizer's settings and t make of a learning rate. adam_step is the t of this update, from 1. */
ZERO_MATH void zero_adam_rates_decide(zero_adam_scalars_t *out, float lr, float beta1, float beta2, float eps,
                                      uint64_t adam_step)
{
    out->adam_step = adam_step;
    out->lr = lr;
    out->beta1 = beta1;
    out->beta2 = beta2;
    out->eps = eps;
    out->one_minus_beta1 = 1.0f - beta1;
    out->one_minus_beta2 = 1.0f - beta2;
    out->inv_bias1 = (float)(1.0 / (1.0 - zero_power((double)beta1, adam_step)));
    out->inv_sqrt_bias2 = (float)(1.0 / sqrt(1.0 - zero_power((double)beta2, adam_step)));
}

/* Fills *out. grad_scale is the clip coefficient min(1, grad_clip / (norm + 1e-6)) (1 if grad_clip is 0) divided by the
 * loss scale. grad_norm is free of the loss scale. The rest is as in zero_adam_rates_decide. */
ZERO_MATH void zero_adam_scalars_decide(zero_adam_scalars_t *out, float lr, float beta1, float beta2, float eps,
                                        float grad_norm, float grad_clip, float loss_scale, uint64_t adam_step)
{
    zero_adam_rates_decide(out, lr, beta1, beta2, eps, adam_step);
    out->grad_scale = zero_clip_coefficient(grad_norm, grad_clip) / loss_scale;
    out->skip = !zero_is_finite(grad_norm);
}

/* Fills *out for a tensor with rules of its own. With the configuration's they are the step's scalars, to the bit. */
ZERO_MATH void zero_tensor_scalars_decide(const zero_tensor_rules_t *rules, const zero_adam_scalars_t *scalars,
                                          zero_tensor_scalars_t *out)
{
    out->scalars = *scalars;
    zero_adam_rates_decide(&out->scalars, scalars->lr * rules->lr_scale, rules->beta1, rules->beta2, rules->eps,
                           scalars->adam_step);
    out->decay = rules->decay;
}

/* Updates fp16's dynamic loss scale, as Megatron-LM's DynamicGradScaler does. It is halved when `hysteresis` steps have
 * overflowed since it last grew, and by every overflow after that. It is doubled after a window of good steps in a
 * row. */
ZERO_MATH void zero_loss_scale_decide(const zero_step_rules_t *rules, uint32_t skipped, zero_step_state_t *state)
{
    if (!rules->dynamic_loss_scale)
        return;
    if (skipped) {
        state->good_steps = 0;
        state->overflows++;
        if (state->overflows >= rules->loss_scale_hysteresis)
            state->loss_scale = state->loss_scale > 2.0f ? state->loss_scale * 0.5f : 1.0f;
    } else if (++state->good_steps >= rules->loss_scale_window) {
        state->good_steps = 0;
        state->overflows = 0;
        state->loss_scale =
            state->loss_scale * 2.0f < ZERO_LOSS_SCALE_MAX ? state->loss_scale * 2.0f : ZERO_LOSS_SCALE_MAX;
    }
}

/* Finds the first rank that disagrees with rank 0, and whether on the learning rate, the tensors' rules or the calls.
 */
ZERO_MATH void zero_step_compare(const zero_contribution_t *contributions, int n_ranks, zero_step_outcome_t *outcome)
{
    const zero_contribution_t *first = &contributions[0];
    outcome->odd_rank = 0;
    outcome->odd_lr = 0;
    outcome->odd_groups = 0;
    outcome->lr = outcome->lr_of_odd = first->lr;
    for (int r = n_ranks - 1; r > 0; r--) {
        const zero_contribution_t *other = &contributions[r];
        uint32_t odd_lr = zero_bits_of_float(other->lr) != zero_bits_of_float(first->lr);
        uint32_t odd_groups = other->groups != first->groups;
        if (!odd_lr && !odd_groups && other->calls == first->calls)
            continue;
        outcome->odd_rank = (uint32_t)r;
        outcome->odd_lr = odd_lr;
        outcome->odd_groups = odd_groups;
        outcome->lr_of_odd = other->lr;
    }
}

/* Fills *scalars for the update of a unit whose gradient has been summed, though the step's norm is not known yet: so
 * nothing is clipped. From the first gradient on that is not finite, this unit and all that follow are left alone. */
ZERO_MATH void zero_unit_decide(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars)
{
    uint64_t n = 0;
    for (int r = 0; r < n_ranks; r++)
        n += nonfinite[(size_t)r * stride];
    if (n != 0 && state->stopped_unit == 0)
        state->stopped_unit = unit + 1;
    zero_adam_rates_decide(scalars, lr, rules->beta1, rules->beta2, rules->eps, state->adam_step + 1);
    scalars->grad_scale = 1.0f / state->loss_scale;
    scalars->skip = state->stopped_unit != 0;
}

/* Decides the step: fills *scalars and *outcome, and advances *state unless the ranks disagree. */
ZERO_MATH void zero_step_decide(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                zero_step_outcome_t *outcome)
{
    zero_contribution_t total = contributions[0];
    for (int r = 1; r < n_ranks; r++) {
        for (int i = 0; i < ZERO_NORM_WORDS; i++)
            total.norm.words[i] += contributions[r].norm.words[i];
        total.loss += contributions[r].loss;
        total.notice = contributions[r].notice > total.notice ? contributions[r].notice : total.notice;
    }
    float grad_norm = (float)(sqrt(zero_norm_value(&total.norm)) / (double)state->loss_scale);
    uint32_t skipped = !zero_is_finite(grad_norm) || state->stopped_unit != 0;
    zero_adam_scalars_decide(scalars, lr, rules->beta1, rules->beta2, rules->eps, grad_norm, rules->grad_clip,
                             state->loss_scale, state->adam_step + 1);
    outcome->loss = (float)total.loss;
    outcome->grad_norm = grad_norm;
    outcome->loss_scale = state->loss_scale;
    outcome->skipped = skipped;
    outcome->notice = total.notice;
    outcome->stopped_unit = state->stopped_unit;
    zero_step_compare(contributions, n_ranks, outcome);
    if (outcome->odd_rank != 0) {
        scalars->skip = 1;
    } else {
        state->adam_step += !skipped;
        state->skipped_in_row = skipped ? state->skipped_in_row + 1 : 0;
        zero_loss_scale_decide(rules, skipped, state);
    }
    outcome->adam_step = state->adam_step;
    outcome->skipped_in_row = state->skipped_in_row;
}

#endif
