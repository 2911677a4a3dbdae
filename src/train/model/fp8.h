/* fp8.h - the linear layers of blocks in fp8, as [train] fp8 asks.
 *
 * A product multiplies fp8 copies of its operands, each with one scale: E4M3 of inputs and weights, E5M2 of the
 * gradients of outputs. A scale belongs to one matrix of one micro-batch, so it depends on neither ranks nor stages.
 * Sums are fp32 and results have the activation dtype, so nothing outside these layers sees fp8. arch.h says what the
 * functions compute. Called by arch.c and model.c.
 */
#ifndef ZEROTRAIN_FP8_H
#define ZEROTRAIN_FP8_H

#include "train/model/arch.h"

/* Leaves model->fp8 NULL if the options don't ask for fp8. */
zero_status_t fp8_create(model_t *model);
void fp8_destroy(model_t *model);

/* Returns whether the fp8 copy of a linear layer's input is kept from forward to backward, so that nothing reads the
 * input itself after forward. */
bool fp8_keeps_inputs(const model_t *model, int layer);
/* Allocate what all layers share; what one layer keeps, whose lifetime the caller has set. Do nothing without fp8. */
void fp8_allocate(const model_t *model, activations_t *activations);
void fp8_allocate_layer(const model_t *model, activations_t *activations, int layer);
/* Refuses a device without fp8, with the reason. Called once all is allocated. n_steps: that are in flight at most. */
zero_status_t fp8_attach(model_t *model, int64_t n_steps);

zero_status_t fp8_linear(model_t *model, arch_linear_t at, void *y, const void *x, zero_weight_t bias);
zero_status_t fp8_linear_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy);
/* Uses the copy of dy that fp8_linear_backward_input has made: nothing else may be cast in between. */
zero_status_t fp8_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                         const void *dy);

#endif
