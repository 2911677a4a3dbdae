/* tensorboard.h - writes the scalars of every step to a TensorBoard event file; rank 0 only. */
#ifndef ZEROTRAIN_TENSORBOARD_H
#define ZEROTRAIN_TENSORBOARD_H

#include "train/report/metrics.h"

typedef struct tensorboard tensorboard_t;

/* Creates the directory if it is missing, and a new file in it; the files of earlier runs stay. If directory is "",
 * *tensorboard is NULL, which tensorboard_write accepts and ignores. */
zero_status_t tensorboard_open(const char *directory, tensorboard_t **tensorboard);
/* Writes and flushes what the metrics have of the row, as fp32; skipped is 0 or 1. What is not known is left out.
 * Returns ZERO_ERROR_IO, with a log line, if the disk is full, say. */
zero_status_t tensorboard_write(tensorboard_t *tensorboard, const metrics_row_t *row);
void tensorboard_close(tensorboard_t *tensorboard);

#endif
