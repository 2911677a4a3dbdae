/* checkpoint_directory.h - a directory of checkpoints: names, which is the latest, and how a new one takes its place.
 *
 *     step-00000010/      complete
 *     step-00000020/      complete
 *     latest              a link to step-00000020
 *     tmp.step-00000030/  being written, or left behind by a run that was killed
 *
 * A directory gets its step's name by rename, when all in it is on the disk; so what has that name is complete, and
 * what has a temporary's name is of no use to anyone. Removed is what shows that it is libzero's, and nothing else
 * (checkpoint_removal.h): what is not stays, whatever its name, and is no checkpoint. Rank 0 alone changes anything
 * here. */
#ifndef ZERO_CHECKPOINT_DIRECTORY_H
#define ZERO_CHECKPOINT_DIRECTORY_H

#include "zero.h"

#define ZERO_LATEST_NAME "latest"
#define ZERO_MAX_PATH 4096

/* Makes `parent` where it is missing, removes what was left behind there, and finds out whether it can be written, and
 * `latest` can become a link. */
zero_status_t zero_checkpoints_prepare(const char *parent);
/* Where that step is written before it is complete, for free(). Every rank asks; rank 0 makes it, empty, and holds it
 * locked for as long as it keeps *lock open: whoever finds it locked, in this process or another, finds a save under
 * way, and not what a run that was killed has left. */
zero_status_t zero_checkpoints_temporary(const char *parent, uint64_t step, char **temporary);
zero_status_t zero_checkpoints_begin(const char *parent, const char *temporary, int *lock);
/* Removes it again, however far it is. */
zero_status_t zero_checkpoints_abandon(const char *parent, uint64_t step);
/* Renames it into place, makes it the latest, and removes the oldest beyond `keep` (0: none). */
zero_status_t zero_checkpoints_commit(const char *parent, uint64_t step, const char *temporary, int keep);
/* The checkpoint that `directory` is, or the latest one in it. ZERO_ERROR_USAGE where there is none. */
zero_status_t zero_checkpoints_find(const char *directory, char path[ZERO_MAX_PATH]);

#endif
