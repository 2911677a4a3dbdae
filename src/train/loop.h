/* loop.h - a training run: from a resolved configuration to the last step. */
#ifndef ZEROTRAIN_LOOP_H
#define ZEROTRAIN_LOOP_H

#include "train/options/options.h"

typedef enum loop_end {
    LOOP_COMPLETE,
    LOOP_STOPPED_SAVED, /* by a signal to any rank, after the same step on all; --resume goes on from there */
    LOOP_STOPPED_UNSAVED,
    LOOP_ALL_SKIPPED, /* it came to its last step, but no step changed the weights; a line has said so */
} loop_end_t;

/* Trains, evaluates, samples, logs. *end: how it ended, where the status is ZERO_OK. [collective] */
zero_status_t loop_run(const options_t *options, zero_comm_t *comm, loop_end_t *end);

#endif
