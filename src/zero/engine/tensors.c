/* tensors.c - where the acquired unit's parameters and gradients are: zero_param, zero_param_fp32,
 * zero_param_fp8, zero_grad. */
#include "base/log.h"
#include "zero/engine/engine.h"
#include "zero/plan/order.h"
#include "zero/runtime/addresses.h"
#include "zero/step/parameters.h"

/* Returns whether the acquired unit, at `position`, may use a tensor that `flat` owns. */
typedef bool (*order_fn)(const zero_model_t *model, int position, zero_unit_t flat);

static bool is_usable(const zero_engine_t *engine, zero_tensor_t tensor, order_fn allows)
{
    if (!engine || !engine->acquired || tensor < 0)
        return false;
    const zero_model_t *model = engine->context.model;
    return tensor < model->n_tensors && allows(model, engine->context.progress.position, model->tensors[tensor].owner);
}

static bool is_gathered_in_fp8(const zero_context_t *context, const zero_tensor_decl_t *tensor)
{
    return tensor->frozen_fp8 || (context->plan.fp8.is_gathered && tensor->fp8 && !tensor->frozen);
}

/* Finds the flat buffer that the tensor is in. */
static zero_status_t find_params(const zero_engine_t *engine, const zero_tensor_decl_t *tensor, unsigned char **flat)
{
    return tensor->frozen ? zero_param_frozen_address(&engine->context, zero_parameters_unsharded(engine->parameters),
                                                      tensor->owner, flat)
                          : zero_param_address(&engine->context, zero_parameters_unsharded(engine->parameters),
                                               tensor->owner, flat);
}

const void *zero_param(const zero_engine_t *engine, zero_tensor_t tensor)
{
    if (!is_usable(engine, tensor, zero_order_needs))
        return NULL;
    const zero_context_t *context = &engine->context;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    unsigned char *flat;
    if (is_gathered_in_fp8(context, decl)) {
        zero_log(ZERO_LOG_ERROR, "zero_param(%s): it is gathered in fp8: zero_param_fp8 has it", decl->name);
        return NULL;
    }
    if (find_params(engine, decl, &flat) != ZERO_OK)
        return NULL;
    return flat + context->layout.tensor_offsets[tensor] * zero_dtype_size(context->config.dtype);
}

const float *zero_param_fp32(const zero_engine_t *engine, zero_tensor_t tensor)
{
    if (engine && engine->context.config.dtype != ZERO_FP32) {
        zero_log(ZERO_LOG_ERROR, "zero_param_fp32(tensor %d): parameters are %s: zero_param has them", tensor,
                 zero_dtype_name(engine->context.config.dtype));
        return NULL;
    }
    return zero_param(engine, tensor);
}

/* Finds a frozen tensor that is held in fp8. */
static zero_fp8_param_t frozen_fp8(const zero_engine_t *engine, zero_tensor_t tensor)
{
    const zero_context_t *context = &engine->context;
    const zero_layout_t *layout = &context->layout;
    const zero_fp8_scales_t *scales = zero_context_private(context, context->plan.frozen_scales);
    unsigned char *flat;
    if (find_params(engine, &context->model->tensors[tensor], &flat) != ZERO_OK)
        return (zero_fp8_param_t){0};
    return (zero_fp8_param_t){.data = flat + layout->tensor_offsets[tensor] * ZERO_FP8_IN_ELEMENT,
                              .scales = &scales[layout->frozen_matrix_of[tensor]]};
}

zero_fp8_param_t zero_param_fp8(const zero_engine_t *engine, zero_tensor_t tensor)
{
    const zero_fp8_param_t none = {0};
    if (!is_usable(engine, tensor, zero_order_needs))
        return none;
    const zero_context_t *context = &engine->context;
    const zero_layout_t *layout = &context->layout;
    const zero_fp8_scales_t *scales = zero_context_private(context, context->plan.fp8.scales);
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    uint8_t *flat;
    if (decl->frozen_fp8)
        return frozen_fp8(engine, tensor);
    if (!is_gathered_in_fp8(context, decl) ||
        zero_param_fp8_address(&engine->context, zero_parameters_unsharded(engine->parameters), decl->owner, &flat) !=
            ZERO_OK)
        return none;
    return (zero_fp8_param_t){.data = flat + layout->tensor_offsets[tensor],
                              .scales = &scales[layout->matrix_of[tensor]]};
}

zero_grad_t zero_grad(const zero_engine_t *engine, zero_tensor_t tensor)
{
    zero_grad_t grad = {.dtype = engine ? engine->context.plan.stage.grad_dtype : ZERO_FP32};
    if (!is_usable(engine, tensor, zero_order_uses) || engine->context.progress.pass == ZERO_PASS_INPUT_GRAD ||
        !zero_order_is_backward(engine->context.progress.position, engine->context.model->n_units))
        return grad;
    const zero_context_t *context = &engine->context;
    const zero_progress_t *progress = &context->progress;
    const zero_tensor_decl_t *decl = &context->model->tensors[tensor];
    const zero_unit_t unit = zero_order_unit(progress->position, context->model->n_units);
    unsigned char *flat;
    if (decl->frozen ||
        unit > decl->last_user) /* of an owner that the unit shares another tensor of: it would be lost */
        return grad;
    if (zero_gradients_address(engine->gradients, decl->owner, &flat) != ZERO_OK)
        return grad;
    grad.data = flat + context->layout.tensor_offsets[tensor] * zero_dtype_size(grad.dtype);
    /* Backward comes to the last user first, which overwrites; the others add. */
    bool was_begun = unit != decl->last_user;
    grad.accumulate = was_begun || (context->plan.stage.accumulate_locally && progress->micro_step > 0);
    return grad;
}

/* ---- check ---- */
/* Config.check: finds gradients that were not written.
 *
 * A gradient that should be overwritten but is not keeps what its memory held before, another unit's or step's values,
 * which are then summed in silence. So its memory is filled at acquire with a NaN that no arithmetic makes, and
 * searched for exactly these bits at grad_ready. A NaN of the caller's own is left to the step, which is skipped.
 * Gradients that are added to (accumulate) hold numbers by then and are not checked. */

/* Returns whether the tensor's gradient is to be overwritten in `unit`, which is acquired: backward comes to it first
 * there. */
static bool begins_in(const zero_engine_t *engine, zero_unit_t unit, zero_tensor_t tensor, zero_grad_t *grad)
{
    if (engine->context.model->tensors[tensor].last_user != unit)
        return false;
    *grad = zero_grad(engine, tensor);
    return grad->data && !grad->accumulate;
}

zero_status_t zero_engine_poison_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    const zero_context_t *context = &engine->context;
    const zero_model_t *model = context->model;
    zero_grad_t grad;
    for (zero_tensor_t t = 0; t < model->n_tensors && context->config.check; t++)
        if (begins_in(engine, unit, t, &grad))
            ZERO_TRY(context->device->kernels->poison(grad.data, grad.dtype, model->tensors[t].n_elems, stream));
    return ZERO_OK;
}

/* Waits for the stream. */
static zero_status_t count_unwritten(const zero_context_t *context, zero_tensor_t tensor, zero_grad_t grad, uint64_t *n,
                                     zero_stream_t stream)
{
    zero_device_t *device = context->device;
    uint64_t *on_device = &zero_context_step_scratch(context)->n_unwritten;
    ZERO_TRY(device->kernels->count_poison(grad.data, grad.dtype, context->model->tensors[tensor].n_elems, on_device,
                                           stream));
    ZERO_TRY(zero_device_copy(device, n, on_device, sizeof *n, stream));
    return device->ops->synchronize_stream ? device->ops->synchronize_stream(device, stream) : ZERO_OK;
}

zero_status_t zero_engine_check_grads(zero_engine_t *engine, zero_unit_t unit, zero_stream_t stream)
{
    const zero_context_t *context = &engine->context;
    const zero_model_t *model = context->model;
    zero_tensor_t first = -1;
    uint64_t n_of_first = 0, n;
    int n_others = 0;
    zero_grad_t grad;
    for (zero_tensor_t t = 0; t < model->n_tensors && context->config.check; t++) {
        if (!begins_in(engine, unit, t, &grad))
            continue;
        ZERO_TRY(count_unwritten(context, t, grad, &n, stream));
        n_others += n > 0 && first >= 0;
        if (n > 0 && first < 0) {
            first = t;
            n_of_first = n;
        }
    }
    if (first < 0)
        return ZERO_OK;
    return zero_fail(
        ZERO_ERROR_ARGUMENT,
        "zero_grad_ready(%s): %llu of %llu elements of %s's gradient were not written, and %d more tensors' "
        "were not complete: if zero_grad says accumulate = false, overwrite every element, with 0 if there is "
        "nothing to add",
        model->units[unit].name, (unsigned long long)n_of_first, (unsigned long long)model->tensors[first].n_elems,
        model->tensors[first].name, n_others);
}
