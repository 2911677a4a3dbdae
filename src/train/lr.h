/* lr.h - learning rate schedules: pure functions of the step. */
#ifndef ZEROTRAIN_LR_H
#define ZEROTRAIN_LR_H

#include "train/options/options.h"

/* Returns the rate of step 1..steps: linear warm-up from lr / warmup_steps to lr over warmup_steps, then
 *   cosine    half a cosine from lr to min_lr at the last step
 *   linear    a line from lr to min_lr at the last step
 *   constant  lr
 *   wsd       lr, then over the last fifth of the steps a line to min_lr (warm-up, stable, decay; arXiv:2404.06395)
 * Steps after the last keep min_lr (constant: lr). */
double lr_at(const options_t *options, int64_t step);

#endif
