/* check.c - config.check: finds gradients that were not written.
 *
 * A gradient that should be overwritten but is not keeps what its memory held before, another unit's or step's values,
 * which are then summed in silence. So its memory is filled at acquire with a NaN that no arithmetic makes, and
 * searched for exactly these bits at grad_ready. A NaN of the caller's own is left to the step, which is skipped.
 * Gradients that are added to (accumulate) hold numbers by then and are not checked.
 */
#include "base/log.h"
#include "zero/engine/engine.h"
#include "zero/runtime/addresses.h"

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
