/* best_checkpoint.h - the checkpoint with the lowest loss on validation data ([checkpoint] best), in dir/best: which
 * one it is, as every checkpoint's state.json says, and what another run has left there.
 *
 * What must hold: a loss is compared with this run's alone, those before the step that it resumed from included; and
 * another run's checkpoint in dir/best is gone when this run's first one is in dir.
 */
#ifndef ZEROTRAIN_BEST_CHECKPOINT_H
#define ZEROTRAIN_BEST_CHECKPOINT_H

#include <jansson.h>

#include "train/data/data_identity.h"
#include "train/options/options.h"

/* The same on all ranks. */
typedef struct best_checkpoint {
    data_identity_t val;         /* what this run's losses are of */
    int64_t step;                /* of the lowest loss so far; 0: there is none */
    double loss;                 /* that one */
    data_identity_t measured_on; /* what it is of */
    double to_beat;              /* the same if both are of the same data, else infinite */
    bool is_saved;               /* dir/best has it */
    bool is_due;                 /* the last step's loss is lower, and its checkpoint is not saved yet */
    int64_t other_step;          /* of another run's checkpoint in dir/best; 0: there is none */
} best_checkpoint_t;

/* Finds the lowest loss so far and what dir/best has. state: of the checkpoint that is resumed; NULL: none. One of an
 * older version does not say which was the best: then it is what dir/best has. val: of this run. [collective] */
zero_status_t best_checkpoint_find(const options_t *options, zero_comm_t *comm, const json_t *state,
                                   const data_identity_t *val, best_checkpoint_t *best);
/* Says what this run will do with dir/best, if that is not what its user expects. */
void best_checkpoint_report(const best_checkpoint_t *best, const options_t *options);
/* Adds to state.json which one is the best, and of the best one itself its loss. */
bool best_checkpoint_add(const best_checkpoint_t *best, json_t *state);
/* Notes a loss; if it is the lowest, the checkpoint of `step` is due. */
void best_checkpoint_note(best_checkpoint_t *best, int64_t step, double loss);
/* Notes that it is saved: nothing else is in dir/best. */
void best_checkpoint_saved(best_checkpoint_t *best);
/* Removes another run's checkpoint from dir/best, if there is one. Called when this run has saved in dir. [collective]
 */
zero_status_t best_checkpoint_remove_other(best_checkpoint_t *best, const options_t *options, zero_comm_t *comm);

#endif
