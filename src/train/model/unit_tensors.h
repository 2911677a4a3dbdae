/* unit_tensors.h - what the engine holds of the acquired unit's tensors, for the functions that compute a unit. */
#ifndef ZEROTRAIN_UNIT_TENSORS_H
#define ZEROTRAIN_UNIT_TENSORS_H

#include "train/model/model_state.h"

/* Return what the engine holds of the acquired unit's tensor, for an architecture's compute functions. While a CUDA
 * graph is captured, they also note the answer. */
zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor);
zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor); /* data is NULL: it is in bf16 */
zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor);

#endif
