/* preference.h - learning from pairs of documents, of which the first is preferred ([train] objective = dpo: Rafailov
 * et al. 2023, arXiv:2305.18290).
 *
 * The loss measures the model by a reference, which here is the frozen model without its adapters. Both are computed in
 * one pass: each unit computes the reference's part first, then the model's, so that parameters are gathered once. The
 * reference borrows the layer's activations, which the model's part then overwrites; only its residual stream, on its
 * way from layer to layer, has memory of its own.
 *
 *     unit       embedding   block l                                head
 *     computes   x_0         reference's mid, addend; model's own   losses of the reference's rows; those of the
 * model's
 */
#ifndef ZEROTRAIN_PREFERENCE_H
#define ZEROTRAIN_PREFERENCE_H

#include "train/model/arch.h"
#include "train/report/metrics.h"

/* Leaves model->preference NULL if the options ask for another objective. */
zero_status_t preference_create(model_t *model);
void preference_destroy(model_t *model);
/* Allocates what all layers share. Does nothing without preferences, as the functions below. */
void preference_allocate(const model_t *model, activations_t *activations);
/* Allocates host memory. n_steps: that are in flight at most. */
zero_status_t preference_attach(model_t *model, int64_t n_steps);

/* Returns whether it is the reference that is being computed. */
bool preference_is_reference(const model_t *model);
/* Computes the reference's part of a unit, which is acquired; before the model's. */
zero_status_t preference_forward(model_t *model, zero_unit_t unit);
/* Adds to model->loss and the sums behind it what the last norm's output and that of the reference give; and sets dx,
 * unless it is NULL, to the gradient of the former. */
zero_status_t preference_loss(model_t *model, void *dx);

/* Returns the means over pairs from their weighted sums on all ranks. */
rewards_t preference_rewards(const double sums[ZERO_N_PAIR_SUMS]);
/* Queues a copy of this rank's sums to the host, before zero_step. */
zero_status_t preference_store(model_t *model);
/* Adds up the ranks' oldest copies. The step has been waited for. [collective] */
zero_status_t preference_read(model_t *model, zero_comm_t *comm, rewards_t *rewards);

#endif
