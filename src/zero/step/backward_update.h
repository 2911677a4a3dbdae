/* backward_update.h - ZERO_UPDATE_IN_BACKWARD: each unit is updated in the last micro-step's backward pass, as soon as
 * its gradients are summed and every rank has said that its own part of them is finite. */
#ifndef ZERO_BACKWARD_UPDATE_H
#define ZERO_BACKWARD_UPDATE_H

#include "zero/offload/offload.h"
#include "zero/runtime/tensor_groups.h"
#include "zero/step/device_update.h"
#include "zero/step/gradients.h"

typedef struct zero_backward_update zero_backward_update_t;

/* *update is NULL if units are updated in the step. All must outlive it. Makes gradients call it. */
zero_status_t zero_backward_update_create(zero_context_t *context, zero_offload_t *offload, zero_gradients_t *gradients,
                                          zero_device_update_t *device_update, zero_tensor_groups_t *groups,
                                          const zero_step_rules_t *rules, zero_backward_update_t **update);
void zero_backward_update_destroy(zero_backward_update_t *update); /* NULL is allowed */

/* As zero_set_lr. */
zero_status_t zero_backward_update_set_lr(zero_backward_update_t *update, float lr);
/* Refuses to begin the last micro-step without one. */
zero_status_t zero_backward_update_check_begin(const zero_backward_update_t *update);
/* Refuses a step with another learning rate than its units had. */
zero_status_t zero_backward_update_check_lr(const zero_backward_update_t *update, float lr);
/* Updates the units that are left: all ranks' contributions are here, in `stream`, and the step is not decided yet. */
zero_status_t zero_backward_update_finish(zero_backward_update_t *update, zero_stream_t stream);
/* Returns whether a unit of the step at hand has been updated, or may have been. */
bool zero_backward_update_has_begun(const zero_backward_update_t *update);

#endif
