/* tensorboard.h - the scalars of every step as an event file of TensorBoard, flushed; written by rank 0. */
#ifndef ZEROTRAIN_TENSORBOARD_H
#define ZEROTRAIN_TENSORBOARD_H

#include "train/report/metrics.h"

typedef struct tensorboard tensorboard_t;

/* Makes the directory where it is missing, and a new file in it: what earlier runs left there stays. directory "" gives
 * *tensorboard = NULL, which tensorboard_write accepts and ignores. */
zero_status_t tensorboard_open(const char *directory, tensorboard_t **tensorboard);
/* loss, grad_norm, lr, tokens_per_s, step_ms, exposed_comm_ms, and mfu and val_loss where the row has them.
 * ZERO_ERROR_IO, with a line, when the disk is full or the like. */
zero_status_t tensorboard_write(tensorboard_t *tensorboard, const metrics_row_t *row);
void tensorboard_close(tensorboard_t *tensorboard);

#endif
