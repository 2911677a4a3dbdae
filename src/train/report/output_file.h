/* output_file.h - opens the files that settings name for output, so that a wrong name destroys nothing.
 *
 * A regular file is overwritten or truncated only if it is empty or begins like a file of its kind. Opening never
 * waits, and a file that another run writes is refused. Pipes, terminals and devices like /dev/null are written to as
 * they are. If the file is this process's stdout or stderr, /dev/stdout say, output goes there after what has been
 * written already.
 */
#ifndef ZEROTRAIN_OUTPUT_FILE_H
#define ZEROTRAIN_OUTPUT_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "zero.h"

/* Bytes at the beginning of a file by which its kind is recognized. */
#define OUTPUT_FILE_HEAD 4096

typedef struct output_kind {
    const char *setting;                                 /* "[log] metrics" */
    const char *name;                                    /* "metrics", for log lines */
    bool (*begins_so)(const char *text, size_t n_bytes); /* the file's first OUTPUT_FILE_HEAD bytes, or all of them */
} output_kind_t;

/* Checks whether output_file_open would accept what is at `path` now. Changes nothing. Returns ZERO_ERROR_USAGE, with a
 * log line, if it cannot be written to or is a file of another kind; ZERO_ERROR_IO if that cannot be found out, or
 * another run writes it. */
zero_status_t output_file_check(const output_kind_t *kind, const char *path);

/* Checks the same and opens the file for appending. Returns ZERO_ERROR_IO, with a log line, if it cannot be opened,
 * such as a named pipe without a reader. */
zero_status_t output_file_open(const output_kind_t *kind, const char *path, FILE **file);

/* Truncates the file if it can be truncated. Returns ZERO_ERROR_IO, with a log line, if that fails. */
zero_status_t output_file_empty(const output_kind_t *kind, const char *path, FILE *file);

/* Returns whether it is a regular file, and not this process's stdout or stderr. */
bool output_file_can_be_truncated(const char *path);

/* ---- log file ---- */
/* Appends the rows of a log, such as metrics, to its file; rank 0 only.
 *
 * What must hold: while the process lives no row is lost, and the file ends with a whole row. What a full disk does not
 * take stays in memory and is written before the next row. */

typedef struct log_file log_file_t;

/* Begins to append to `file`, which is open for that, and takes it. can_truncate: it is a regular file of ours, from
 * which a row that was written by half can be removed. setting: "[log] metrics", for log lines. On failure, which has a
 * log line, `file` is closed. */
zero_status_t log_file_open(const char *setting, const char *path, FILE *file, bool can_truncate, log_file_t **log);
/* Returns the stream for the next row, which log_file_write writes. */
FILE *log_file_row(log_file_t *log);
/* Writes the row, and those that could not be written before. Returns ZERO_ERROR_IO if they could not, for the first
 * time with a log line. Allocates nothing, except to keep what was not written. */
zero_status_t log_file_write(log_file_t *log);
/* Tries once more to write what is left, and closes the file. NULL is allowed. */
void log_file_close(log_file_t *log);

#endif
