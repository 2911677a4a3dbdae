/* own_update.h - within update: a caller's own optimizer, or hook behind the update, over what this rank holds.
 * Matrices that it sees whole are updated by step/muon_update.c, with zero_own_matrices. */
#ifndef ZERO_OWN_UPDATE_H
#define ZERO_OWN_UPDATE_H

#include "zero/runtime/tensor_groups.h"
#include "zero/step/muon_update.h"

/* What the functions of zero_own_matrices get. */
typedef struct zero_own_step {
    const zero_context_t *context;
    const zero_tensor_groups_t *groups;
    float lr;              /* of this step */
    zero_status_t failure; /* of the first function that failed in this step; ZERO_OK: of none */
} zero_own_step_t;

/* The caller's functions of whole matrices; their `user` is a zero_own_step_t. They always return ZERO_OK, since ranks
 * wait for each other between them: what fails is kept in `failure`, and no more of them are called. */
extern const zero_matrix_fns_t zero_own_matrices;

/* Returns whether the caller has a hook behind the update. */
static inline bool zero_own_hooks_updates(const zero_context_t *context)
{
    return context->config.hooks && context->config.hooks->updated;
}

/* Queues the caller's update of all tensors but those that it sees whole, in `stream`, in which the step has been
 * decided. */
zero_status_t zero_own_update(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                              zero_stream_t stream);
/* The same of zero_hooks_t's updated, behind the update. */
zero_status_t zero_own_updated(const zero_context_t *context, const zero_tensor_groups_t *groups, float lr,
                               zero_stream_t stream);

#endif
