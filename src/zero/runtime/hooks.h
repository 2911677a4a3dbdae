/* hooks.h - within gradients: the caller's function over what this rank has reduced (zero_hooks_t). */
#ifndef ZERO_HOOKS_H
#define ZERO_HOOKS_H

#include "zero/runtime/context.h"

/* Returns whether the caller wants to see reduced gradients. The norm is then taken of what its function leaves. */
static inline bool zero_hooks_see_reduced(const zero_context_t *context)
{
    return context->config.hooks && context->config.hooks->reduced;
}

/* Calls the function for all tensors of the unit, whose reduction for this step is complete in `stream`, and adds the
 * squares of what it leaves to the norm. If the function fails, the progress keeps its status, and it is not called
 * again in this step: other ranks do not know of it, so this one goes on to where they meet. */
zero_status_t zero_hooks_reduced(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);

#endif
