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

/* Clears the maxima of the pass before. */
zero_status_t fp8_begin_pass(model_t *model);
/* Clears those of a layer, which is computed once more of other inputs. */
zero_status_t fp8_forget(model_t *model, int layer);
/* Which operand of a linear layer a kernel writes. */
typedef enum fp8_operand { FP8_X, FP8_W, FP8_DY, FP8_N_OPERANDS } fp8_operand_t;
/* Returns a context for the kernel that writes x or dy of a linear layer, which records its absolute maximum. Without
 * fp8 it is the model's. */
zero_model_context_t fp8_recording(const model_t *model, int layer, arch_matrix_t matrix, fp8_operand_t operand);
/* Returns one for the kernel that writes the gradient of layer `l`'s input, or of the head's: dy of the last matrix of
 * the layer before, if there is one. */
zero_model_context_t fp8_recording_d_x(const model_t *model, int l);

/* Return where a layer's x and dy are cast to, and with which scales; nothing if the model is not in fp8. */
zero_fp8_t fp8_x(const model_t *model, arch_linear_t at);
zero_fp8_t fp8_dy(const model_t *model, arch_linear_t at);
/* With accumulate the product is added to y or dx; then there is no bias. With x or dy NULL, the caller has cast it
 * there last. */
zero_status_t fp8_linear(model_t *model, arch_linear_t at, void *y, bool accumulate, const void *x, zero_weight_t bias);
zero_status_t fp8_linear_backward_input(model_t *model, arch_linear_t at, void *dx, bool accumulate, const void *dy);
/* Uses the copy of dy that fp8_linear_backward_input has made: nothing else may be cast in between. */
zero_status_t fp8_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                         const void *dy);

/* The smallest and the largest scale with which a step's last micro-step cast to fp8, on this rank. */
typedef struct fp8_range {
    bool is_known; /* there is fp8 */
    float min_scale, max_scale;
} fp8_range_t;

/* Queues a copy of the scales to the host, before zero_step. */
zero_status_t fp8_store_range(model_t *model);
/* Returns what the oldest copy holds. The step has been waited for. */
fp8_range_t fp8_read_range(model_t *model);

#endif
