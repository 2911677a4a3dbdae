/* files.h - files and directories that must be whole after a crash: written at offsets, synced, renamed, hashed; and
 * the one way in which files of others are opened. Every failure is one line that names the path. Used by what reads
 * and writes checkpoints and models. */
#ifndef ZERO_FILES_H
#define ZERO_FILES_H

#include <jansson.h>
#include <sys/types.h>

#include "zero.h"

/* "directory/name", for free(). */
zero_status_t zero_path_join(const char *directory, const char *name, char **path);

/* Opens as openat does, with O_CLOEXEC and at a descriptor above 2. Where a program has closed its standard ones a file
 * would get one of them, and the next line that anybody writes to stderr would stand in it. */
int zero_open(int directory, const char *path, int flags, mode_t mode);

/* A new file of n_bytes whose place on the disk is taken now where the file system can do so: a full disk is found here
 * and not after half of the writing. */
zero_status_t zero_file_create(const char *path, uint64_t n_bytes);
zero_status_t zero_file_open_for_writing(const char *path, int *fd);
zero_status_t zero_file_write(int fd, const char *path, uint64_t offset, const void *data, size_t n_bytes);
/* What was written is on the disk when this returns ZERO_OK; fd is closed in any case. */
zero_status_t zero_file_close_synced(int fd, const char *path);
/* A whole small file, synced. */
zero_status_t zero_file_write_text(const char *directory, const char *name, const char *text);

/* Opens a regular file for reading, whatever stands under its name: nothing that is not one is waited for. */
zero_status_t zero_file_open(const char *path, int *fd, uint64_t *n_bytes);
/* Reads n_bytes at an offset; ZERO_ERROR_IO where the file ends before that. */
zero_status_t zero_file_read(int fd, const char *path, uint64_t offset, void *data, size_t n_bytes);
typedef zero_status_t (*zero_block_fn)(void *user, const void *block, size_t n_bytes);
/* Reads a whole regular file: `take` gets one block after the other and ends it with a status that is not ZERO_OK. */
zero_status_t zero_file_read_blocks(const char *path, zero_block_fn take, void *user);
/* Size and XXH3 (64 bits) of a regular file. */
zero_status_t zero_file_hash(const char *path, uint64_t *n_bytes, uint64_t *xxh3);

/* Reads the one JSON value of a file, no key twice; for json_decref. remedy: what the line of a failure ends with. */
zero_status_t zero_file_read_json(const char *path, const char *remedy, json_t **value);
/* The text of a file of JSON: sorted keys, two spaces a level; for free(). name: for the line of a failure. */
zero_status_t zero_json_text(const char *name, const json_t *value, char **text);
zero_status_t zero_file_write_json(const char *directory, const char *name, const json_t *object);

/* With its parents; there already is fine. */
zero_status_t zero_directory_make(const char *path);
/* Names in a directory are on the disk. */
zero_status_t zero_directory_sync(const char *path);

#endif
