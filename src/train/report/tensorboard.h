/* tensorboard.h - writes the scalars of every step to a TensorBoard event file; rank 0 only. */
#ifndef ZEROTRAIN_TENSORBOARD_H
#define ZEROTRAIN_TENSORBOARD_H

#include "train/report/metrics.h"

typedef struct tensorboard tensorboard_t;

/* Creates the directory if it is missing, and a new file in it; the files of earlier runs stay. resumed_at: the first
 * step that a resumed run makes; TensorBoard then drops this and later steps of the earlier files. 0: the run is new.
 * If directory is "", *tensorboard is NULL, which tensorboard_write accepts and ignores. */
zero_status_t tensorboard_open(const char *directory, int64_t resumed_at, tensorboard_t **tensorboard);
/* Writes what the metrics have of the row, as fp32; skipped is 0 or 1. What is not known is left out. Returns
 * ZERO_ERROR_IO, the first time with a log line, if the disk is full, say: the event is then kept for the next call. */
zero_status_t tensorboard_write(tensorboard_t *tensorboard, const metrics_row_t *row);
void tensorboard_close(tensorboard_t *tensorboard);

#endif
