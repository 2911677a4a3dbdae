/* input_file.h - reads small files whole: the configuration, a model's config.json. */
#ifndef ZEROTRAIN_INPUT_FILE_H
#define ZEROTRAIN_INPUT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "train/options/options.h"
#include "zero.h"

/* Texts around the reason why a file cannot be read: "<before>cannot read 'PATH': why<after>". */
typedef struct input_words {
    const char *before, *after;
} input_words_t;

/* Reads a regular file of at most most_bytes. *text, for free(), has n_bytes and then a zero. Returns ZERO_ERROR_USAGE,
 * with a log line, if there is no such file. A pipe or a device is not one: reading it might wait forever. */
zero_status_t input_file_read(const char *path, size_t most_bytes, input_words_t words, char **text, size_t *n_bytes);

/* Returns whether the path leads to a regular file, which can be opened without waiting. */
bool input_file_is_there(const char *path);

/* ---- newest step ---- */
/* Finds the newest checkpoint in a directory of checkpoints, as zero_checkpoint_open takes it: the one
 * that `latest` links to; without that link, as after a crash between the first checkpoint and its link, or if what it
 * names is gone, the highest step. */

#define NEWEST_STEP_BYTES 32 /* of "step-00000020" */

#define BEST_MAX_PATH (OPTIONS_MAX_PATH + 8)
/* Writes where a run whose checkpoints are in `directory` keeps the best of them. */
void best_directory(const char *directory, char path[BEST_MAX_PATH]);

/* Returns the step that `latest` links to, or the highest one if that is gone; 0: there is none. INT64_MAX: `latest` is
 * there and links to no step, which zero_checkpoint_open reports. */
int64_t newest_step(const char *directory);
/* The same of a run's directory: if that has none, of its folder best, since a run that is killed before its first save
 * may have only that. *is_best: the step is there. */
int64_t newest_step_of_run(const char *directory, bool *is_best);
/* Returns the step whose directory has this name; 0: of none. */
int64_t newest_step_named(const char *name);
/* Writes the name of a step's directory. */
void newest_step_name(int64_t step, char name[NEWEST_STEP_BYTES]);

#endif
