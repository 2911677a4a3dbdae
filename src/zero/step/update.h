/* update.h - the end of a step: global norm, clipping, AdamW, new weights to every rank. */
#ifndef ZERO_UPDATE_H
#define ZERO_UPDATE_H

#include "zero/offload/offload.h"
#include "zero/runtime/context.h"
#include "zero/runtime/tensor_groups.h"
#include "zero/step/backward_update.h"
#include "zero/step/gradients.h"
#include "zero/step/parameters.h"
#include "zero/step/results.h"

typedef struct zero_update zero_update_t;

/* Writes to the device what the optimizer updates. offload: NULL without offload. All must outlive the update. */
zero_status_t zero_update_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t *parameters,
                                 zero_gradients_t *gradients, zero_results_t *results, zero_update_t **update);
void zero_update_destroy(zero_update_t *update); /* NULL is allowed */

/* As zero_step, zero_loss_scale, zero_set_notice. weights_are_partial: set if it fails with some weights updated and
 * others not. */
zero_status_t zero_update_step(zero_update_t *update, float lr, const double *local_loss, bool *weights_are_partial,
                               zero_stream_t stream);
const float *zero_update_loss_scale(const zero_update_t *update);
void zero_update_set_notice(zero_update_t *update, uint32_t notice);
/* Returns the update of units in backward; NULL: they are updated in the step. */
zero_backward_update_t *zero_update_backward(const zero_update_t *update);
/* Returns the settings that single tensors have of their own. */
zero_tensor_groups_t *zero_update_groups(const zero_update_t *update);

#endif
