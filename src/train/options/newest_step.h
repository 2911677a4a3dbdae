/* newest_step.h - finds the newest checkpoint in a directory of checkpoints, as zero_checkpoint_open takes it: the one
 * that `latest` links to; without that link, as after a crash between the first checkpoint and its link, or if what it
 * names is gone, the highest step. */
#ifndef ZEROTRAIN_NEWEST_STEP_H
#define ZEROTRAIN_NEWEST_STEP_H

#include <stdint.h>

#define NEWEST_STEP_BYTES 32 /* of "step-00000020" */

/* Returns the step; 0: there is none. INT64_MAX: `latest` is there and no link to a step, which zero_checkpoint_open
 * reports. */
int64_t newest_step(const char *directory);
/* Writes the name of a step's directory. */
void newest_step_name(int64_t step, char name[NEWEST_STEP_BYTES]);

#endif
