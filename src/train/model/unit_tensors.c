/* unit_tensors.c - see unit_tensors.h. */
#include "train/model/unit_tensors.h"

#include "train/model/cuda_graphs.h"

zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_weight_t weight = {.data = zero_param(model->engine, tensor),
                            .dtype = (zero_dtype_t)model->options->train.precision};
    cuda_graphs_note_weight(model->graphs, tensor, weight);
    return weight;
}

zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_fp8_param_t weight = zero_param_fp8(model->engine, tensor);
    if (weight.data)
        cuda_graphs_note_fp8_weight(model->graphs, tensor, weight);
    return weight;
}

zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor)
{
    zero_grad_t grad = zero_grad(model->engine, tensor);
    cuda_graphs_note_grad(model->graphs, tensor, grad);
    return grad;
}
