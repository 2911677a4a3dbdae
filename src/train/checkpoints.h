/* checkpoints.h - when a run saves, what it adds to libzero's checkpoint, and how it goes on from one. */
#ifndef ZEROTRAIN_CHECKPOINTS_H
#define ZEROTRAIN_CHECKPOINTS_H

#include "train/options/options.h"
#include "train/data/data_identity.h"

typedef struct checkpoints {
    const options_t *options;
    zero_comm_t *comm;
    data_identity_t data;       /* that the run trains on */
    zero_save_t *save;          /* under way; NULL: none */
    zero_checkpoint_t *resumed; /* until it is loaded */
    int64_t first_step;         /* of this run: 1, or the one after the checkpoint's */
    int64_t sequences_before;   /* seen by the steps before it, all ranks */
    int64_t last_saved;         /* step; 0: none */
} checkpoints_t;

/* Opens and checks what --resume names, and compares what it was made with (resume_check.h). data: of this run. Changes
 * nothing. [collective] */
zero_status_t checkpoints_open(const options_t *options, zero_comm_t *comm, const data_identity_t *data,
                               checkpoints_t *checkpoints);
/* Makes sure that [checkpoint] dir can be written, and removes what saves that were killed have left there: when it is
 * certain that the run begins. [collective] */
zero_status_t checkpoints_prepare(const checkpoints_t *checkpoints);
/* Says, before the first step, where nothing will be saved or an earlier run's checkpoints are. */
void checkpoints_report(const checkpoints_t *checkpoints);
/* Takes over what was resumed. [collective] */
zero_status_t checkpoints_load(checkpoints_t *checkpoints, zero_engine_t *engine);
/* Sequences that all ranks have seen when `step` is done. */
int64_t checkpoints_sequences(const checkpoints_t *checkpoints, int64_t step);

/* Whether `step`, the run's last or not, ends with a save; so its result cannot be told of late. */
bool checkpoints_are_due(const checkpoints_t *checkpoints, int64_t step, int64_t last_step);
/* After every step that was waited for: begins a save where one is due, takes along one that is under way.
 * [collective] */
zero_status_t checkpoints_after_step(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step,
                                     int64_t last_step);
/* Before the engine goes: waits for a save that is under way. [collective] */
zero_status_t checkpoints_finish(checkpoints_t *checkpoints);
void checkpoints_close(checkpoints_t *checkpoints);

#endif
