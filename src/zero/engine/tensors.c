/* tensors.c - where the acquired unit's parameters and gradients are: zero_param, zero_grad. */
#include "zero/engine/engine.h"

#include "zero/plan/order.h"

static bool is_usable(const zero_engine_t *engine, zero_tensor_t tensor)
{
    if (!engine || !engine->acquired || tensor < 0)
        return false;
    const zero_model_t *model = engine->context.model;
    return tensor < model->n_tensors &&
           zero_order_needs(model, engine->context.progress.position, model->tensors[tensor].owner);
}

const void *zero_param(const zero_engine_t *engine, zero_tensor_t tensor)
{
    const unsigned char *flat;
    if (!is_usable(engine, tensor) ||
        zero_parameters_address(engine->parameters, engine->context.model->tensors[tensor].owner, &flat) != ZERO_OK)
        return NULL;
    return flat + engine->context.layout.tensor_offsets[tensor] * zero_dtype_size(engine->context.config.dtype);
}

zero_grad_t zero_grad(const zero_engine_t *engine, zero_tensor_t tensor)
{
    zero_grad_t grad = {.dtype = engine ? engine->context.plan.stage.grad_dtype : ZERO_FP32};
    if (!is_usable(engine, tensor) ||
        !zero_order_is_backward(engine->context.progress.position, engine->context.model->n_units))
        return grad;
    const zero_context_t *context = &engine->context;
    const zero_progress_t *progress = &context->progress;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    unsigned char *flat;
    if (zero_gradients_address(engine->gradients, decl->owner, &flat) != ZERO_OK)
        return grad;
    grad.data = flat + context->layout.tensor_offsets[tensor] * zero_dtype_size(grad.dtype);
    /* Backward comes to the last user first, which overwrites; the others add. */
    bool was_begun = zero_order_unit(progress->position, context->model->n_units) != decl->last_user;
    grad.accumulate = was_begun || (context->plan.stage.accumulate_locally && progress->micro_step > 0);
    return grad;
}
