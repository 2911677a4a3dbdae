/* lora.h - adapters (Hu et al. 2021, arXiv:2106.09685) on the blocks' linear layers, as [lora] asks.
 *
 * A layer with an adapter computes y = x W + scale (x A^T) B^T. W and everything else of the model is frozen; A [rank,
 * n_in] and B [width, rank], in PEFT's layout and by its names, are trained tensors of the same unit. Where several
 * matrices are multiplied as one (q, k and v; gate and up), each has its own A and B; the A are packed, so that one
 * product computes all x A^T. In linear.c adapters write a layer's output and its product adds to that; in forward,
 * where the layer has a bias or adapters on some columns only, it is the other way round. Where adding them is
 * fused with a gated MLP's activation function, they are in no layer's output at all: lora_gated_adapters.
 */
#ifndef ZEROTRAIN_LORA_H
#define ZEROTRAIN_LORA_H

#include "train/model/arch.h"

/* Leaves model->lora NULL if the options don't ask for adapters. */
zero_status_t lora_create(model_t *model);
void lora_destroy(model_t *model);
/* Declares a block's adapters, behind the other tensors of its unit. */
zero_status_t lora_declare(model_t *model, int layer, zero_unit_t unit);
/* Returns how many tensors the adapters are. */
int lora_n_tensors(const model_t *model);
/* Returns how many elements all adapters have. */
int64_t lora_n_params(const model_t *model);

/* Allocate what all layers share; what one layer keeps, whose lifetime the caller has set. Do nothing without
 * adapters. */
void lora_allocate(const model_t *model, activations_t *activations);
void lora_allocate_layer(const model_t *model, activations_t *activations, int layer);
/* Returns the widest x A^T of a layer, in columns, for the kernels' limits; 0: there are no adapters. */
size_t lora_width(const model_t *model);
/* Returns the most elements of a B, or of a layer's A together, likewise. */
size_t lora_largest(const model_t *model);

/* Writes random A, uniform in +-1 / sqrt(n_in), as PEFT does, by [lora] seed; and zeros to B. [collective] */
zero_status_t lora_init(const model_t *model, zero_engine_t *engine);

/* Widens a layer's matrix, which is held in fp8, into room that all layers share: *weight is of the model's precision,
 * until the next call. */
zero_status_t lora_widen(model_t *model, arch_linear_t at, zero_weight_t *weight);

typedef enum lora_pass { LORA_FORWARD, LORA_BACKWARD, LORA_N_PASSES } lora_pass_t;

/* Returns whether a layer has adapters, in this pass: the reference has none. */
bool lora_is_on(const model_t *model, arch_linear_t at);
/* Returns whether it has them on all columns of its output. */
bool lora_writes_output(const model_t *model, arch_linear_t at);
/* Returns whether the activation function of a gated MLP adds what the layer's adapters give, to the layer's output in
 * forward, or to its input's gradient in backward; then nothing else adds it. */
bool lora_is_fused(const model_t *model, arch_matrix_t matrix, lora_pass_t pass);
/* Sets *adapters to what that function adds in a layer. Returns false if it adds nothing. Called after lora_forward of
 * the MLP's first matrix; in backward, also after lora_backward_input of the last one, and before the next. */
bool lora_gated_adapters(const model_t *model, int layer, lora_pass_t pass, zero_gated_adapters_t *adapters);
/* Returns true the first time that it is called for a matrix and a pass. */
bool lora_take_first_product(model_t *model, arch_matrix_t matrix, lora_pass_t pass);

/* y = scale (x A^T) B^T in the columns of the adapters, or added to y; y is NULL where that is fused. Keeps x A^T for
 * backward. With `casts_x` it also casts x for a product in fp8, as fp8_x says. This and the next only if lora_is_on.
 */
zero_status_t lora_forward(model_t *model, arch_linear_t at, void *y, bool accumulate, const void *x, bool casts_x);
/* dx = scale (dy B) A, dB = scale dy^T (x A^T); dx is NULL where that is fused. In fp8 it also casts dy, as fp8_dy
 * says. Keeps dy B for lora_backward_weight. */
zero_status_t lora_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy);
/* dA = scale (dy B)^T x */
zero_status_t lora_backward_weight(model_t *model, arch_linear_t at, const void *x);

#endif
