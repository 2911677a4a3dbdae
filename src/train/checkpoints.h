/* checkpoints.h - when a run saves, what it adds to libzero's checkpoint, and how it resumes from one. */
#ifndef ZEROTRAIN_CHECKPOINTS_H
#define ZEROTRAIN_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "train/best_checkpoint.h"
#include "train/data/data_identity.h"
#include "train/hub/model_files.h"
#include "train/options/options.h"
#include "train/schedules.h"

typedef struct checkpoints {
    const options_t *options;
    zero_comm_t *comm;
    data_identity_t data;       /* that the run trains on */
    zero_save_t *save;          /* in progress; NULL: none */
    bool saves_in_memory;       /* and not in checkpoint.dir */
    int64_t memory_step;        /* that the run resumed from, if it was in memory_dir; else 0 */
    zero_checkpoint_t *resumed; /* until it is loaded; else NULL */
    char *model_config;         /* what config.json said where the model comes from; NULL: there is none */
    model_files_t model_files;  /* what else there was, for every checkpoint */
    uint64_t base_sample;       /* of the model that adapters are trained on; 0: there are none, or it is random */
    int64_t first_step;         /* of this run: 1, or the one after the checkpoint's */
    int64_t sequences_before;   /* by all ranks in the steps before it */
    int64_t last_saved;         /* step; 0: none */
    memory_schedule_t schedule; /* of checkpoints in memory */
    int *lock;                  /* the caller's, of checkpoint.dir: run_directory_lock */
    best_checkpoint_t best;
} checkpoints_t;

/* Where a run finds what it may resume from. */
typedef struct checkpoints_found {
    int64_t on_disk;   /* the step that checkpoint.dir's latest is of, INT64_MAX if its name says none; 0: no latest */
    int64_t in_memory; /* the newest step that a host has in memory_dir; 0: none, or memory_every is 0 */
    bool is_best;      /* on_disk is that of dir/best: a run that is killed before its first save in dir has no other */
} checkpoints_found_t;

/* Looks for checkpoints of this run. Opens none. [collective] */
zero_status_t checkpoints_find(const checkpoint_options_t *options, zero_comm_t *comm, checkpoints_found_t *found);
/* Opens and checks the checkpoint that --resume names, if it is given, and compares it with this run (resume_check.h).
 * lock: the caller's, of checkpoint.dir; 0 if that was not there. data, val: of this run. Changes nothing.
 * [collective] */
zero_status_t checkpoints_open(const options_t *options, zero_comm_t *comm, int *lock, const data_identity_t *data,
                               const data_identity_t *val, checkpoints_t *checkpoints);
/* Makes sure that [checkpoint] dir is locked and can be written and that memory_dir has room for the model, and removes
 * what killed saves have left there. Called when it is certain that the run begins. [collective] */
zero_status_t checkpoints_prepare(checkpoints_t *checkpoints, const zero_model_t *model);
/* Reports, before the first step, that nothing will be saved or that checkpoints of an earlier run are there. */
void checkpoints_report(const checkpoints_t *checkpoints);
/* Loads the checkpoint that checkpoints_open has opened. [collective] */
zero_status_t checkpoints_load(checkpoints_t *checkpoints, zero_engine_t *engine);
/* Returns how many sequences all ranks together have seen after `step`. */
int64_t checkpoints_sequences(const checkpoints_t *checkpoints, int64_t step);

/* Notes the loss on validation data after `step`, the last one. With [checkpoint] best, checkpoints_after_step then
 * saves it if there was no lower one. */
void checkpoints_note_loss(checkpoints_t *checkpoints, int64_t step, double val_loss);
/* Returns whether a save begins or must be whole after `step`. Then its result must be waited for at once. */
bool checkpoints_are_due(const checkpoints_t *checkpoints, int64_t step, int64_t last_step);
/* Begins a save if one is due, and continues one that is in progress. Called after every step that was waited for.
 * [collective] */
zero_status_t checkpoints_after_step(checkpoints_t *checkpoints, zero_engine_t *engine, int64_t step,
                                     int64_t last_step);
/* Waits for a save that is in progress. Called before the engine is destroyed. [collective] */
zero_status_t checkpoints_finish(checkpoints_t *checkpoints);
/* Removes what is in memory_dir, since the run has ended well. has_steps: it has made any. One that has made none
 * leaves the copies if they may be newer than all on the disk: it resumed from one, or from what --resume names.
 * [collective] */
zero_status_t checkpoints_remove_memory(const checkpoints_t *checkpoints, bool has_steps);
void checkpoints_close(checkpoints_t *checkpoints);

#endif
