/* input_file.h - small files that a run reads whole: its configuration, a model's config.json. */
#ifndef ZEROTRAIN_INPUT_FILE_H
#define ZEROTRAIN_INPUT_FILE_H

#include "zero.h"

/* Around the line that says why a file cannot be read: "<before>cannot read 'PATH': why<after>". */
typedef struct input_words {
    const char *before, *after;
} input_words_t;

/* Reads a regular file of at most most_bytes: *text, for free(), has n_bytes and a zero behind them. ZERO_ERROR_USAGE,
 * with a line, where the path leads to no such file; anything that would have to be waited for, a pipe say, is none. */
zero_status_t input_file_read(const char *path, size_t most_bytes, input_words_t words, char **text, size_t *n_bytes);

#endif
