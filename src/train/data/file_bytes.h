/* file_bytes.h - opens regular files and reads their bytes.
 *
 * A file may change at any moment, so bytes are copied by pread, and the copy is checked and used. A mapping would be
 * shorter, but truncating the file would kill the run by a signal.
 */
#ifndef ZEROTRAIN_FILE_BYTES_H
#define ZEROTRAIN_FILE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero.h"

/* ---- little endian ---- */
/* Numbers in the bytes of a file, at any alignment. */

/* Returns the i-th number of an array of integers of `width` bytes: 1, 2 or 4. */
static inline uint32_t load_uint(const unsigned char *array, int width, int64_t i)
{
    const unsigned char *bytes = array + (size_t)i * (size_t)width;
    switch (width) {
    case 1:
        return bytes[0];
    case 2:
        return (uint32_t)(bytes[0] | bytes[1] << 8);
    default:
        return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    }
}

/* The same of 8 bytes. */
static inline uint64_t load_uint64(const unsigned char *array, int64_t i)
{
    return load_uint(array, 4, 2 * i) | (uint64_t)load_uint(array, 4, 2 * i + 1) << 32;
}

/* ---- file bytes ---- */

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
