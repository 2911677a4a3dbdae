/* common.h - what the model kernels of every device share: the unit of losses, scratch, attention's sizes, products in
 * fp8, rope's frequencies.
 */
#ifndef ZERO_COMMON_H
#define ZERO_COMMON_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "train/kernels/kernels.h"

/* What head_loss adds to the loss is a multiple of this: sums of such numbers over micro-steps and ranks are exact
 * below 2^11, and so have no order. It is 2^-15 of a unit in the last place of a loss of 0.1 in fp32. */
#define ZERO_LOSS_UNIT 0x1p-42

ZERO_MATH double zero_loss_rounded(double loss)
{
    return rint(loss / ZERO_LOSS_UNIT) * ZERO_LOSS_UNIT;
}

/* Return -log sigmoid(margin), the loss of a pair, and sigmoid(-margin), its slope but for the sign; of any margin
 * without overflow. */
ZERO_MATH double zero_pair_loss_of(double margin)
{
    return margin > 0.0 ? log1p(exp(-margin)) : log1p(exp(margin)) - margin;
}

ZERO_MATH double zero_pair_slope_of(double margin)
{
    return margin > 0.0 ? exp(-margin) / (1.0 + exp(-margin)) : 1.0 / (1.0 + exp(margin));
}

/* The arguments of head_loss and head_losses (kernels.h). */
typedef struct zero_head_call {
    void *dx;
    zero_grad_t dweight;
    const void *x;
    zero_weight_t weight;
    const int32_t *targets;
    double loss_weight;
    const float *grad_scale;
    size_t n_rows, dim, vocab_size;
} zero_head_call_t;

/* ---- scratch ---- */
/* Temporary memory of one call of a model kernel, from the context's workspace.
 *
 * Each call allocates from the start of the workspace and frees nothing, since the next call starts anew. */

#define ZERO_SCRATCH_ALIGN 256

/* What is left of the workspace. */
typedef struct zero_scratch {
    char *next;
    size_t bytes_left;
} zero_scratch_t;

/* Returns what an allocation of n_bytes uses up, for sizing a workspace. */
static inline size_t zero_scratch_bytes(size_t n_bytes)
{
    return (n_bytes + ZERO_SCRATCH_ALIGN - 1) / ZERO_SCRATCH_ALIGN * ZERO_SCRATCH_ALIGN;
}

/* Allocates n_bytes and sets the pointer at `out`. Fails if the call is larger than the limits that the workspace was
 * sized for, which is the trainer's mistake. */
static inline zero_status_t zero_scratch_alloc(zero_scratch_t *scratch, size_t n_bytes, void *out)
{
    size_t n_used = zero_scratch_bytes(n_bytes);
    if (n_used > scratch->bytes_left) {
        zero_fail(ZERO_ERROR_ARGUMENT, "workspace too small: %zu bytes wanted, %zu left", n_used, scratch->bytes_left);
        return ZERO_ERROR_ARGUMENT; /* a constant, so that the compiler sees *out set in every other case */
    }
    memcpy(out, &scratch->next, sizeof scratch->next);
    scratch->next += n_used;
    scratch->bytes_left -= n_used;
    return ZERO_OK;
}

/* ---- attention shape ---- */
/* Which sizes of attention fast kernels compute: pure arithmetic, in every build. */

/* Returns whether cuDNN may be asked for attention of these sizes. If not, `why` (unless NULL) says what prevents it
 * and which sizes would do. */
bool zero_cudnn_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

/* Returns the same of our own kernel for tensor cores. */
#define ZERO_ATTENTION_MMA_MAX_HEAD_DIM 128
bool zero_attention_mma_may_serve(zero_dtype_t dtype, const zero_attention_shape_t *shape, char why[ZERO_MODEL_WHY]);

/* The ways to compute attention on CUDA, the preferred first. */
typedef enum zero_attention_kind {
    ZERO_ATTENTION_HOPPER,
    ZERO_ATTENTION_CUDNN,
    ZERO_ATTENTION_MMA,
    ZERO_ATTENTION_SIMT,
    ZERO_ATTENTION_KINDS
} zero_attention_kind_t;

/* A call of attention, as far as it decides which kernels compute it. */
typedef struct zero_attention_call {
    zero_dtype_t dtype;
    zero_attention_shape_t shape;
    bool is_hopper;                /* the GPU */
    bool hides;                    /* the mask hides more than later keys */
    bool qkv_aligned, all_aligned; /* to 16 bytes: qkv; it and the other tensors of dtype */
} zero_attention_call_t;

/* Returns whether kernels of this kind are made for the call. If not, `why` (unless NULL) may say what prevents it. */
bool zero_attention_takes(zero_attention_kind_t kind, const zero_attention_call_t *call, char why[ZERO_MODEL_WHY]);
/* Returns whether Hopper's kernels are made for such heads. */
bool zero_attention_hopper_heads(zero_dtype_t dtype, size_t head_dim);

/* ---- fp8 product ---- */
/* Which copies of its operands a linear layer's product in fp8 reads, for every device. */

/* An operand, with the summed extent contiguous. */
typedef struct zero_fp8_operand {
    zero_fp8_format_t format;
    const uint8_t *bytes;
    const zero_fp8_scales_t *scales;
} zero_fp8_operand_t;

/* c[m, n] = a[m, k] b[n, k]^T */
typedef struct zero_fp8_product {
    size_t m, n, k;
    zero_fp8_operand_t a, b;
} zero_fp8_product_t;

/* Set *product to that of a function of the table; fail if an extent is no multiple of 16, or if the copy that the
 * product reads was not made. */
zero_status_t zero_fp8_forward(zero_fp8_product_t *product, const zero_fp8_t *x8, const zero_fp8_t *w8,
                               zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_fp8_backward_input(zero_fp8_product_t *product, const zero_fp8_t *dy8, const zero_fp8_t *w8,
                                      zero_linear_layout_t layout, size_t n_rows, size_t n_in, size_t n_out);
zero_status_t zero_fp8_backward_weight(zero_fp8_product_t *product, zero_linear_layout_t layout, const zero_fp8_t *x8,
                                       const zero_fp8_t *dy8, size_t n_rows, size_t n_in, size_t n_out);

/* Refuses a matrix that no product could read. */
zero_status_t zero_fp8_check_matrix(size_t n_rows, size_t n_columns);

/* ---- narrow product ---- */

/* Computes narrow_product by fp8_cast and a `product` for each part and result. */
zero_status_t zero_narrow_by_parts(const zero_model_kernels_t *kernels, zero_model_context_t *ctx,
                                   const zero_narrow_product_t *product, zero_dtype_t activations);

/* ---- rope ---- */
/* The frequencies of rotary position embedding, with the same bits on every device.
 *
 * Hugging Face's Llama computes them in fp32, as 1 / theta^(2 i / head_dim), each step rounded, and scales those of
 * Llama 3.1 likewise. A difference in the last bit rotates a pair at position 10^6 by 0.06, so the same steps are
 * rounded here. */

/* Returns a frequency with the "llama3" scaling of transformers' modeling_rope_utils.py. */
static inline float zero_rope_scaled(const zero_rope_t *rope, float frequency)
{
    float wavelength = 1.0f / frequency * 6.2831853071795865f;
    if (wavelength < rope->original / rope->high_freq)
        return frequency;
    if (wavelength > rope->original / rope->low_freq)
        return frequency / rope->factor;
    float smooth = (1.0f / wavelength * rope->original - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1.0f - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns how much of yarn's scaling pair i gets, 0 to 1. */
static inline float zero_rope_ramp(const zero_rope_t *rope, size_t i)
{
    float share = ((float)i - rope->last_kept) / (rope->first_scaled - rope->last_kept);
    return share < 0.0f ? 0.0f : share > 1.0f ? 1.0f : share;
}

/* Returns the radians that pair i of the n_rotated elements of a head is rotated by from one position to the next. */
static inline float zero_rope_frequency(const zero_rope_t *rope, size_t i, size_t n_rotated)
{
    float exponent = (float)(2 * i) / (float)n_rotated;
    float power = (float)pow((double)rope->theta, (double)exponent), frequency = 1.0f / power;
    if (rope->kind == ZERO_ROPE_LONGROPE)
        return 1.0f / (rope->divisors[i] * power);
    if (!(rope->factor > 1.0f))
        return frequency;
    if (rope->kind == ZERO_ROPE_LINEAR)
        return frequency / rope->factor;
    if (rope->kind == ZERO_ROPE_YARN) {
        float kept = 1.0f - zero_rope_ramp(rope, i);
        return 1.0f / (rope->factor * power) * (1.0f - kept) + frequency * kept;
    }
    return zero_rope_scaled(rope, frequency);
}

/* Returns how many elements of a head are rotated. */
static inline size_t zero_rope_n_rotated(const zero_rope_t *rope, const zero_attention_shape_t *shape)
{
    return rope->n_rotated > 0 ? rope->n_rotated : shape->head_dim;
}

/* Refuses what no device rotates. */
zero_status_t zero_rope_check(const zero_rope_t *rope, const zero_attention_shape_t *shape);

#endif
