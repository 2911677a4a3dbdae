/* log_file.h - appends the rows of a log, such as metrics, to its file; rank 0 only.
 *
 * What must hold: while the process lives no row is lost, and the file ends with a whole row. What a full disk does not
 * take stays in memory and is written before the next row.
 */
#ifndef ZEROTRAIN_LOG_FILE_H
#define ZEROTRAIN_LOG_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "zero.h"

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
