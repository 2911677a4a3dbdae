/* tensor_groups.h - settings of the optimizer that single tensors have of their own (zero_set_group), on their way to
 * the device.
 *
 * The host has the settings of every tensor. A step that finds them changed copies them to the device, where a kernel
 * makes them the scalars of each tensor once the step is decided: it knows t and the clipping then. While all tensors
 * have the configuration's, nothing is copied, and no kernel runs.
 */
#ifndef ZERO_TENSOR_GROUPS_H
#define ZERO_TENSOR_GROUPS_H

#include "zero/runtime/context.h"

typedef struct zero_tensor_groups zero_tensor_groups_t;

/* max_steps_in_flight: steps of which the device may be at work when the host queues another. */
zero_status_t zero_tensor_groups_create(zero_context_t *context, int max_steps_in_flight,
                                        zero_tensor_groups_t **groups);
void zero_tensor_groups_destroy(zero_tensor_groups_t *groups); /* when the device is idle; NULL is allowed */

/* As zero_set_group and zero_get_group, of a tensor that is trained. */
zero_status_t zero_tensor_groups_set(zero_tensor_groups_t *groups, zero_tensor_t tensor, const zero_group_t *group);
zero_group_t zero_tensor_groups_get(const zero_tensor_groups_t *groups, zero_tensor_t tensor);

/* Takes what was set since the last step into this one. Returns a hash of it, which ranks compare; 0 if no tensor
 * differs from the configuration. */
uint64_t zero_tensor_groups_take(zero_tensor_groups_t *groups);

#define ZERO_ALL_UNITS ((zero_unit_t)(-1))
/* Queues what makes the scalars of a unit's tensors, or of all units', from those that have been decided in `stream`,
 * and sets context->by_tensor to those of all tensors; to NULL if no tensor differs. Those of other units stay: their
 * update may read them. */
zero_status_t zero_tensor_groups_decide(zero_tensor_groups_t *groups, zero_unit_t unit,
                                        const zero_adam_scalars_t *scalars, zero_stream_t stream);

#endif
