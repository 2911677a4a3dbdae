/* checkpoint_directory.h - a directory of checkpoints: names, which is the latest, and how a new one is committed.
 *
 *     step-00000010/      complete
 *     step-00000020/      complete
 *     latest              a link to step-00000020
 *     tmp.step-00000030/  being written, or left behind by a run that was killed
 *
 * A directory gets its step's name by rename, after everything in it is on the disk. So a directory with a step's name
 * is complete, and one with a temporary name is of no use. Only directories that are recognizably libzero's are removed
 * (checkpoint_removal.h); all others stay, whatever their names, and are no checkpoints. Only rank 0 changes anything
 * here. */
#ifndef ZERO_CHECKPOINT_DIRECTORY_H
#define ZERO_CHECKPOINT_DIRECTORY_H

#include "zero.h"

#define ZERO_LATEST_NAME "latest"
#define ZERO_MAX_PATH 4096

/* Creates `parent` if it is missing, removes what was left behind there, and checks that it can be written and that
 * `latest` can become a link. Until zero_checkpoints_probe_end, a directory is there by which other hosts recognize
 * `parent`. *lock is -1 if it could not be made. */
zero_status_t zero_checkpoints_probe_begin(const char *parent, int *lock);
/* Fails if that directory cannot be seen from here: this host has another `parent` than rank 0's. */
zero_status_t zero_checkpoints_probe_see(const char *parent);
zero_status_t zero_checkpoints_probe_end(const char *parent, int lock);
/* Returns the path of the directory in which a step is written until it is complete; the caller frees it. */
zero_status_t zero_checkpoints_temporary(const char *parent, uint64_t step, char **temporary);
/* Creates that directory, empty, and locks it until *lock is closed. The lock tells other saves, in this process or
 * another, that a save is under way, and that the directory is not a leftover of a run that was killed. *lock may be
 * set even if this fails. */
zero_status_t zero_checkpoints_begin(const char *parent, const char *temporary, int *lock);
/* Removes it again, however much has been written. */
zero_status_t zero_checkpoints_abandon(const char *parent, uint64_t step);
/* Renames it to the step's name and makes it the latest. */
zero_status_t zero_checkpoints_commit(const char *parent, uint64_t step, const char *temporary);
/* Removes the oldest checkpoints but `keep`, of which this step's is one. A later step than this is of an earlier run,
 * which was continued from a step before it: such go first, with a warning, since this run makes those steps again.
 * What cannot be removed is a warning. */
void zero_checkpoints_keep(const char *parent, uint64_t step, int keep);
/* Removes all checkpoints but this step's; 0: all, with `latest`, and `parent` if it is then empty. No `parent` is
 * ZERO_OK. */
zero_status_t zero_checkpoints_clear(const char *parent, uint64_t step);
/* Sets steps[] to those of the checkpoints that are there, the latest steps first, and 0 beyond. */
zero_status_t zero_checkpoints_list(const char *parent, size_t n_steps, uint64_t *steps);
/* Returns the path of a step's directory; the caller frees it. */
zero_status_t zero_checkpoints_path(const char *parent, uint64_t step, char **path);
/* Returns the path of the checkpoint that `directory` is, or of the one that `latest` links to in it. Without that
 * link, or if what it names is gone (then with a warning), it is the highest step; ZERO_ERROR_USAGE if there is none.
 */
zero_status_t zero_checkpoints_find(const char *directory, char path[ZERO_MAX_PATH]);

#endif
