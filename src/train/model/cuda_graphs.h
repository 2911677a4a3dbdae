/* cuda_graphs.h - a unit's work, recorded once and replayed.
 *
 * On a GPU a step is some hundred launches or more: queueing them keeps the host busy, and the gaps between them cost
 * small models most. A unit's recording starts with one launch. It holds every address and number that it was made
 * with. Activations, the batch and the workspace stay where they are, but weights and gradients move, where slots take
 * turns. So a recording remembers what was asked of the engine and what the answers were, and is replayed only while
 * they are the same; where they are not, another is made. What cannot be recorded is computed.
 */
#ifndef ZEROTRAIN_RECORDINGS_H
#define ZEROTRAIN_RECORDINGS_H

#include "kernels/model/model.h"

/* Micro-steps before anything is recorded: in the first ones libraries choose their algorithms, by timing them. */
#define RECORDINGS_WARM_UP 3

typedef struct model model_t;
typedef struct recordings cuda_graphs_t;

/* *recordings stays NULL where the kernels record nothing. */
zero_status_t cuda_graphs_create(const zero_model_kernels_t *kernels, int n_units, cuda_graphs_t **recordings);
void cuda_graphs_destroy(cuda_graphs_t *recordings); /* when the device is idle; NULL is allowed */

/* Does what compute(model, unit) does, which must depend on nothing but the model's addresses, its loss_weight, and
 * what it asks through model_weight and model_grad. The unit is acquired. */
zero_status_t cuda_graphs_run(cuda_graphs_t *recordings, model_t *model, zero_unit_t unit,
                              zero_status_t (*compute)(model_t *model, zero_unit_t unit));

/* What the engine answered; for model.c. Nothing is noted where no recording is being made. */
void cuda_graphs_note_weight(cuda_graphs_t *recordings, zero_tensor_t tensor, zero_weight_t weight);
void cuda_graphs_note_grad(cuda_graphs_t *recordings, zero_tensor_t tensor, zero_grad_t grad);

#endif
