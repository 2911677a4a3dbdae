/* files.h - reads and writes files: safely against crashes (sync after writing), at offsets, hashed, and as JSON. Also
 * the one way in which input files are opened. Every failure is logged in one line with the path. Used by whatever
 * reads and writes checkpoints and models. */
#ifndef ZERO_FILES_H
#define ZERO_FILES_H

#include <jansson.h>
#include <sys/types.h>

#include "zero.h"

/* Sets *path to "directory/name"; the caller frees it. */
zero_status_t zero_path_join(const char *directory, const char *name, char **path);

/* Opens a file as openat does, with O_CLOEXEC and at a descriptor above 2. If a program has closed its standard
 * descriptors, a file could get one of them, and lines written to stderr would end up in it. */
int zero_open(int directory, const char *path, int flags, mode_t mode);

/* Creates a file of n_bytes. Reserves its space on the disk if the file system can, so that a full disk is found here
 * and not halfway through the writing. */
zero_status_t zero_file_create(const char *path, uint64_t n_bytes);
zero_status_t zero_file_open_for_writing(const char *path, int *fd);
zero_status_t zero_file_write(int fd, const char *path, uint64_t offset, const void *data, size_t n_bytes);
/* Syncs and closes fd. If it returns ZERO_OK, what was written is on the disk; fd is closed in any case. */
zero_status_t zero_file_close_synced(int fd, const char *path);
/* Creates a file of file_bytes that begins with this content, synced. */
zero_status_t zero_file_write_new(const char *directory, const char *name, uint64_t file_bytes, const void *data,
                                  size_t n_bytes);
/* Creates a small file with this content alone, synced. */
zero_status_t zero_file_write_whole(const char *directory, const char *name, const void *data, size_t n_bytes);

/* Opens a regular file for reading. Fails for anything else, such as a named pipe, without waiting for it. */
zero_status_t zero_file_open(const char *path, int *fd, uint64_t *n_bytes);
/* Reads n_bytes at an offset. Returns ZERO_ERROR_IO if the file ends before that. */
zero_status_t zero_file_read(int fd, const char *path, uint64_t offset, void *data, size_t n_bytes);
typedef zero_status_t (*zero_block_fn)(void *user, const void *block, size_t n_bytes);
/* Reads a whole regular file and passes it to `take` block by block. Stops if `take` returns another status than
 * ZERO_OK. */
zero_status_t zero_file_read_blocks(const char *path, zero_block_fn take, void *user);
/* Computes the size and the 64-bit XXH3 hash of a regular file. */
zero_status_t zero_file_hash(const char *path, uint64_t *n_bytes, uint64_t *xxh3);

/* Reads the JSON value in a file, in which no key may occur twice. The caller releases it with json_decref. remedy:
 * ends the line of a failure. */
zero_status_t zero_file_read_json(const char *path, const char *remedy, json_t **value);
/* Writes a JSON value as text, with sorted keys and an indent of two spaces. The caller frees it. name: for the line of
 * a failure. */
zero_status_t zero_json_text(const char *name, const json_t *value, char **text);
zero_status_t zero_file_write_json(const char *directory, const char *name, const json_t *object);

/* Creates a directory and its parents, unless they exist. */
zero_status_t zero_directory_make(const char *path);
/* Syncs a directory: the names in it are then on the disk. */
zero_status_t zero_directory_sync(const char *path);
/* Calls `act`, one of these two, with the folder of `directory` that a file's name begins with; does nothing if the
 * name has none. */
zero_status_t zero_folder_of_name(const char *directory, const char *name, zero_status_t (*act)(const char *path));

#endif
