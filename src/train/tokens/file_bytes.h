/* file_bytes.h - opens regular files and reads their bytes.
 *
 * A file may change at any moment, so bytes are copied by pread, and the copy is checked and used. A mapping would be
 * shorter, but truncating the file would kill the run by a signal.
 */
#ifndef ZEROTRAIN_FILE_BYTES_H
#define ZEROTRAIN_FILE_BYTES_H

#include <stdbool.h>

#include "zero.h"

/* Opens a regular file that is not empty. *fd is -1 after a failure, of which a log line says what to do. */
zero_status_t file_bytes_open(const char *path, int *fd, uint64_t *n_bytes);
/* Reads exactly n_bytes from `offset`. Returns 0, or an error for the two functions below. Logs nothing. */
int file_bytes_read(int fd, uint64_t offset, void *out, size_t n_bytes);
const char *file_bytes_error_text(int error);
/* Logs the error and returns ZERO_ERROR_IO. */
zero_status_t file_bytes_fail(const char *path, int error);
/* Reads a whole file into *data, for free(). */
zero_status_t file_bytes_read_whole(const char *path, unsigned char **data, size_t *n_bytes);

bool path_ends_in(const char *path, const char *ending);
bool path_is_file(const char *path); /* NULL is none */

#endif
