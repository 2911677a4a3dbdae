/* param_address.c - see param_address.h. */
#include "zero/step/param_address.h"

#include "base/log.h"
#include "zero/runtime/addresses.h"

/* Finds the unit's unsharded buffer. */
static zero_status_t buffer_of(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                               unsigned char **address)
{
    const zero_unsharded_buffer_t *buffer = zero_unsharded_find(unsharded, flat);
    ZERO_ASSERT(buffer);
    *address = zero_context_private(context, buffer->offset);
    return ZERO_OK;
}

zero_status_t zero_param_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                 unsigned char **address)
{
    const zero_layout_t *layout = &context->layout;
    bool is_fp8 = zero_plan_gathers_fp8(&context->plan, layout, flat);
    if (context->plan.stage.shard_params) {
        ZERO_TRY(buffer_of(context, unsharded, flat, address));
        if (is_fp8) /* the others are behind the matrices */
            *address += zero_layout_buffer_elems(layout, layout->units[flat].buffer_class);
    } else {
        bool is_sharded = is_fp8 && context->plan.stage.shard_state && context->comm->size > 1;
        *address = is_sharded ? zero_context_fp8_others(context, flat) : zero_context_params_of(context, flat);
    }
    return ZERO_OK;
}

zero_status_t zero_param_frozen_address(const zero_context_t *context, const zero_unsharded_t *unsharded,
                                        zero_unit_t flat, unsigned char **address)
{
    if (context->plan.stage.shard_params) {
        ZERO_TRY(buffer_of(context, unsharded, flat, address));
        *address += context->plan.unsharded_frozen[context->layout.units[flat].buffer_class];
    } else {
        *address = zero_context_frozen_of(context, flat);
    }
    return ZERO_OK;
}

zero_status_t zero_param_fp8_address(const zero_context_t *context, const zero_unsharded_t *unsharded, zero_unit_t flat,
                                     uint8_t **address)
{
    if (context->plan.stage.shard_params)
        return buffer_of(context, unsharded, flat, address);
    *address = zero_context_window(context, zero_context_fp8_offset(context, flat));
    return ZERO_OK;
}
