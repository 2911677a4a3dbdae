/* input_file.h - reads small files whole: the configuration, a model's config.json. */
#ifndef ZEROTRAIN_INPUT_FILE_H
#define ZEROTRAIN_INPUT_FILE_H

#include <stdbool.h>

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

#endif
