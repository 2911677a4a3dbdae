/* cuda_graphs.h - runs a unit's kernels as a CUDA graph: captured once, launched again and again.
 *
 * A step launches some hundred kernels or more on a GPU. That keeps the host busy, and the gaps between kernels cost
 * small models most. A graph starts a whole unit with one launch. It contains every address and number that it was
 * captured with. Activations, the batch and the workspace never move, but weights and gradients do, since units take
 * turns in the unsharded buffers. So a graph remembers which tensors the capture asked the engine for and what the
 * answers were. It is launched only while the answers are the same; if they differ, another graph is captured. What
 * cannot be captured is computed kernel by kernel.
 */
#ifndef ZEROTRAIN_CUDA_GRAPHS_H
#define ZEROTRAIN_CUDA_GRAPHS_H

#include "train/kernels/kernels.h"

/* Micro-steps before anything is captured: in the first ones libraries choose their algorithms by timing them. */
#define CUDA_GRAPHS_WARM_UP 3

typedef struct model model_t;
typedef struct cuda_graphs cuda_graphs_t;

/* Leaves *graphs NULL if the kernels cannot be captured (on the CPU). */
zero_status_t cuda_graphs_create(const zero_model_kernels_t *kernels, int n_units, cuda_graphs_t **graphs);
/* Only when the device is idle. NULL is allowed. */
void cuda_graphs_destroy(cuda_graphs_t *graphs);

/* Does what compute(model, unit) does. The unit is acquired. compute must depend only on the model's addresses, its
 * loss_weight, and what it asks for through arch.h. */
zero_status_t cuda_graphs_run(cuda_graphs_t *graphs, model_t *model, zero_unit_t unit,
                              zero_status_t (*compute)(model_t *model, zero_unit_t unit));

/* Note what the engine answered, if a graph is being captured. For arch.c; graphs may be NULL. */
void cuda_graphs_note_weight(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_weight_t weight);
void cuda_graphs_note_fp8_weight(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_fp8_param_t weight);
void cuda_graphs_note_grad(cuda_graphs_t *graphs, zero_tensor_t tensor, zero_grad_t grad);

#endif
