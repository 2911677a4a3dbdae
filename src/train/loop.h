/* loop.h - a training run: from a resolved configuration to the last step. */
#ifndef ZEROTRAIN_LOOP_H
#define ZEROTRAIN_LOOP_H

#include "train/options/options.h"

typedef enum loop_end {
    LOOP_COMPLETE,
    LOOP_STOPPED_SAVED, /* by a signal to any rank, after the same step on all; --resume continues from there */
    LOOP_STOPPED_UNSAVED,
    LOOP_ALL_SKIPPED, /* it reached its last step, but no step learned anything; this has been logged */
    LOOP_NOT_LOGGED,  /* a log could not be written, which has been logged; the run was stopped and saved for that */
} loop_end_t;

/* Trains, evaluates, samples and logs. On ZERO_OK, *end says how the run ended. [collective] */
zero_status_t loop_run(const options_t *options, zero_comm_t *comm, loop_end_t *end);

#endif
