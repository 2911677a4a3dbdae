/* own_update.h - within update: a caller's own optimizer, or hook behind the update, over what this rank holds. */
#ifndef ZERO_OWN_UPDATE_H
#define ZERO_OWN_UPDATE_H

#include "zero/runtime/tensor_groups.h"

/* Returns whether the caller has a hook behind the update. */
static inline bool zero_own_hooks_updates(const zero_context_t *context)
{
    return context->config.hooks && context->config.hooks->updated;
}

/* Queues the caller's update of all tensors in `stream`: the step has been decided there. */
zero_status_t zero_own_update(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                              zero_stream_t stream);
/* The same of zero_hooks_t's updated, behind the update. */
zero_status_t zero_own_updated(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                               zero_stream_t stream);

#endif
