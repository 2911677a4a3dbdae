/* own_update.h - within update: a caller's own optimizer over what this rank holds. */
#ifndef ZERO_OWN_UPDATE_H
#define ZERO_OWN_UPDATE_H

#include "zero/runtime/tensor_groups.h"

/* Queues the caller's update of all tensors in `stream`: the step has been decided there. */
zero_status_t zero_own_update(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                              zero_stream_t stream);

#endif
