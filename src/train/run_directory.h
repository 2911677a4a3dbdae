/* run_directory.h - whether a run may save into [checkpoint] dir: nothing of a model, of an earlier run or of a run in
 * progress is replaced. */
#ifndef ZEROTRAIN_RUN_DIRECTORY_H
#define ZEROTRAIN_RUN_DIRECTORY_H

#include "train/options/options.h"

/* Refuses a model's own directory, which could then be taken for the model or for what was made of it. [collective] */
zero_status_t run_directory_check(const options_t *options, zero_comm_t *comm);

/* Refuses to begin anew where an earlier run has saved, for that would cost its checkpoints: who forgets --resume has
 * not meant it. With --auto-resume the error says to start again. [collective] */
zero_status_t run_directory_check_earlier(const options_t *options, zero_comm_t *comm);

/* Locks the directory, if it is there and *lock is 0, until run_directory_unlock or the end of rank 0. Refuses it while
 * another run has it. On file systems that cannot lock directories none is locked. [collective] */
zero_status_t run_directory_lock(const char *directory, zero_comm_t *comm, int *lock);
/* Makes the directory, if it is not there, and locks it, if *lock is 0. If another run has meanwhile made it and saved
 * there, this one is refused as above. [collective] */
zero_status_t run_directory_make(const options_t *options, zero_comm_t *comm, int *lock);
void run_directory_unlock(int *lock);

#endif
