/* schedules.h - what a run does at which step: its learning rate, and its checkpoints in memory. Arithmetic alone. */
#ifndef ZEROTRAIN_SCHEDULES_H
#define ZEROTRAIN_SCHEDULES_H

#include <stdbool.h>
#include <stdint.h>

#include "train/options/options.h"

/* ---- learning rate ---- */

/* Returns the rate of step 1..steps: linear warm-up from lr / warmup_steps to lr over warmup_steps, then
 *   cosine    half a cosine from lr to min_lr at the last step
 *   linear    a line from lr to min_lr at the last step
 *   constant  lr
 *   wsd       lr, then over the last fifth of the steps a line to min_lr (warm-up, stable, decay; arXiv:2404.06395)
 * Steps after the last keep min_lr (constant: lr). */
double lr_at(const train_options_t *train, int64_t step);

/* ---- checkpoints in memory ---- */
/* When checkpoints in memory are begun and waited for, so that at most memory_every steps are lost
 * whenever a process is.
 *
 * What must hold: after each step, the newest whole checkpoint is at most memory_every steps old. A save that is
 * written while training goes on is whole only some steps after it was begun. So it is begun that much earlier than the
 * newest whole one is too old, as the last save took, and waited for if it takes longer. The numbers are the same on
 * all ranks: ranks learn together that a save is whole. */

typedef struct memory_schedule {
    int64_t every; /* 0: no checkpoints in memory */
    int64_t whole; /* step of the newest whole checkpoint, in memory or on the disk; 0: the beginning */
    int64_t begun; /* step of the save in progress; 0: none */
    int64_t first; /* step at which the next save can begin at the earliest: later ones are not queued yet */
    int64_t lead;  /* steps that a save in memory is expected to take */
} memory_schedule_t;

/* whole: the step that the run begins after. async: saves are written while training goes on. */
memory_schedule_t memory_schedule_make(int64_t every, int64_t whole, bool async);
/* Returns whether a save in memory is to begin after `step`. */
bool memory_schedule_is_due(const memory_schedule_t *schedule, int64_t step);
/* Returns whether the save in progress must be waited for after `step`. */
bool memory_schedule_must_end(const memory_schedule_t *schedule, int64_t step);
/* Notes that a save of `step` has begun, in memory or on the disk. */
void memory_schedule_begin(memory_schedule_t *schedule, int64_t step);
/* Notes that after `step` the save in progress was found to be whole. */
void memory_schedule_end(memory_schedule_t *schedule, int64_t step, bool in_memory);

#endif
