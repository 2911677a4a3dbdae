/* update.h - the end of a step: global norm, clipping, AdamW, new weights to every rank, and the step's result. */
#ifndef ZERO_UPDATE_H
#define ZERO_UPDATE_H

#include "zero/engine/gradients.h"
#include "zero/engine/parameters.h"
#include "zero/offload/offload.h"
#include "zero/runtime/context.h"
#include "zero/runtime/tensor_groups.h"

typedef struct zero_update zero_update_t;

/* Writes to the device what AdamW updates and the step's state. offload: NULL without offload. All must outlive the
 * update. */
zero_status_t zero_update_create(zero_context_t *context, zero_offload_t *offload, zero_parameters_t *parameters,
                                 zero_gradients_t *gradients, zero_update_t **update);
void zero_update_destroy(zero_update_t *update); /* NULL is allowed */

/* Records when the first micro-step of a step begins. */
zero_status_t zero_update_begin_step(zero_update_t *update, zero_stream_t stream);
/* As zero_step, zero_step_wait, zero_loss_scale, zero_set_notice, zero_get_adam_step, zero_set_adam_step. */
zero_status_t zero_update_step(zero_update_t *update, float lr, const double *local_loss, zero_stream_t stream);
zero_status_t zero_update_wait(zero_update_t *update, zero_step_result_t *result);
/* Returns the settings that single tensors have of their own. */
zero_tensor_groups_t *zero_update_groups(const zero_update_t *update);
const float *zero_update_loss_scale(const zero_update_t *update);
void zero_update_set_notice(zero_update_t *update, uint32_t notice);
uint64_t zero_update_adam_step(const zero_update_t *update);
zero_status_t zero_update_set_adam_step(zero_update_t *update, uint64_t adam_step);

/* Return ZERO_ERROR_ORDER inside a pass or between the micro-steps of a step; the second also if a step's result has
 * not been waited for. call: named in the error line. */
zero_status_t zero_update_check_between_steps(const zero_update_t *update, const char *call);
zero_status_t zero_update_check_no_step(const zero_update_t *update, const char *call);
/* Refuses a call that needs gradients or AdamW's state if the engine has none. */
zero_status_t zero_update_check_trains(const zero_update_t *update, const char *call);

/* Returns how many steps have been waited for. */
uint64_t zero_update_n_steps(const zero_update_t *update);
/* Read and write what a step hands to the next, while no step is under way. n_steps: steps so far. */
zero_status_t zero_update_get_state(zero_update_t *update, const char *call, zero_step_state_t *state);
zero_status_t zero_update_set_state(zero_update_t *update, const char *call, uint64_t n_steps,
                                    const zero_step_state_t *state);

#endif
