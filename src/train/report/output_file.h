/* output_file.h - files that a run writes because a setting names them: opened so that nothing else is lost by a name
 * that was mistaken.
 *
 * A regular file is written over or cut only where it is empty or begins as one of its kind does. Opening waits for
 * nobody. Pipes, terminals and devices like /dev/null are written to as they are. What is this process's stdout or
 * stderr already, /dev/stdout say, is written to through that, behind what is there.
 */
#ifndef ZEROTRAIN_OUTPUT_FILE_H
#define ZEROTRAIN_OUTPUT_FILE_H

#include <stdio.h>

#include "zero.h"

/* Bytes of a file's beginning by which its kind is told. */
#define OUTPUT_FILE_HEAD 4096

typedef struct output_kind {
    const char *setting;                                 /* "[log] metrics" */
    const char *name;                                    /* "metrics": for lines */
    bool (*begins_so)(const char *text, size_t n_bytes); /* a file's first bytes, OUTPUT_FILE_HEAD or all of them */
} output_kind_t;

/* Whether output_file_open will take what is at `path` now; opens nothing for writing. ZERO_ERROR_USAGE, with a line,
 * where it is no file to write to, or one of another kind; ZERO_ERROR_IO where that cannot be found out. */
zero_status_t output_file_check(const output_kind_t *kind, const char *path);

/* Checks the same and opens it for writing behind what is there, which stays. ZERO_ERROR_IO, with a line, where it
 * cannot be opened, as a named pipe that nobody reads. */
zero_status_t output_file_open(const output_kind_t *kind, const char *path, FILE **file);

/* Takes away what is there, where it is a file that can be cut. ZERO_ERROR_IO, with a line, where that fails. */
zero_status_t output_file_empty(const output_kind_t *kind, const char *path, FILE *file);

/* Whether it is a regular file, and not this process's stdout or stderr, so that rows can be taken from it. */
bool output_file_can_be_cut(const char *path);

#endif
