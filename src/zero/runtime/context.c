/* context.c - creates and frees the context; names the call that this rank is in. */
#include "zero/runtime/context.h"

#include <string.h>

#include "base/log.h"

zero_status_t zero_context_create(const zero_model_t *model, const zero_config_t *config, zero_context_t *context)
{
    zero_comm_t *host_comm = context->host_comm;
    context->config = *config;
    if (config->forward_only) { /* neither has anything to act on */
        context->config.offload = false;
        context->config.keep = 0;
    }
    ZERO_TRY(zero_device_comm_create(context->device, host_comm, config->nccl_reduction, &context->comm));
    ZERO_TRY(zero_model_copy(model, &context->model));
    return zero_layout_create(model, host_comm->size, &context->layout);
}

zero_status_t zero_context_allocate(zero_context_t *context)
{
    zero_comm_t *comm = context->comm;
    zero_device_t *device = context->device;
    void *data;
    ZERO_TRY(comm->ops->window_create(comm, context->plan.window_bytes, &context->window));
    zero_status_t status = device->ops->alloc(device, context->plan.private_bytes, &data);
    if (status == ZERO_OK)
        context->private_data = data;
    ZERO_TRY(zero_comm_agree(comm, status));
    context->memory = context->plan.memory;
    return ZERO_OK;
}

void zero_context_destroy(zero_context_t *context)
{
    if (context->private_data)
        context->device->ops->free(context->device, context->private_data, context->plan.private_bytes);
    if (context->window.n_bytes)
        context->comm->ops->window_destroy(context->comm, &context->window);
    zero_arena_plan_destroy(&context->plan);
    zero_layout_destroy(&context->layout);
    zero_model_destroy(context->model);
    zero_device_comm_destroy(context->host_comm, context->comm);
}

/* ---- the call that this rank is in ---- */

static zero_call_t make_call(const zero_context_t *context, const char *name)
{
    const zero_progress_t *progress = &context->progress;
    zero_call_t call = {
        .name = "",
        .has_engine = 1,
        .engine = context->engine_number,
        .pass = progress->in_pass ? progress->pass : ZERO_PASS_TRAIN,
        .micro_step = (uint32_t)progress->micro_step,
        .step = progress->step + 1,
    };
    zero_call_set_text(call.name, sizeof call.name, name);
    return call;
}

void zero_context_enter_unit(zero_context_t *context, const char *name, zero_unit_t unit)
{
    zero_call_t call = make_call(context, name);
    zero_call_set_text(call.unit_name, sizeof call.unit_name, context->model->units[unit].name);
    call.unit = unit;
    zero_comm_enter(context->host_comm, &call, false);
}

void zero_context_enter_group(const zero_context_t *context, zero_comm_t *group, const char *name)
{
    const zero_call_t call = make_call(context, name);
    zero_comm_enter(group, &call, false);
}

void zero_context_enter_step(zero_context_t *context, float lr)
{
    zero_call_t call = make_call(context, "zero_step");
    memcpy(&call.lr_bits, &lr, sizeof lr);
    zero_comm_enter(context->host_comm, &call, false);
}

void zero_context_enter(zero_context_t *context, const char *name)
{
    zero_call_t call = make_call(context, name);
    zero_comm_enter(context->host_comm, &call, true);
}

/* ---- where the caller may be ---- */

zero_status_t zero_context_check_between_steps(const zero_context_t *context, const char *call)
{
    if (context->progress.in_pass || context->progress.micro_step != 0)
        return zero_fail(ZERO_ERROR_ORDER, "%s inside a step: finish it first", call);
    return ZERO_OK;
}

zero_status_t zero_context_check_trains(const zero_context_t *context, const char *call)
{
    if (context->config.forward_only)
        return zero_fail(ZERO_ERROR_ORDER, "%s: the engine is forward_only, it has parameters alone", call);
    return ZERO_OK;
}
