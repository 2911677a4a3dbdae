/* manifest.h - manifest.json: every file of a checkpoint with its size and XXH3. It is written last, so a directory
 * that has one is complete. No file is trusted before it has been compared with the manifest. */
#ifndef ZERO_MANIFEST_H
#define ZERO_MANIFEST_H

#include "zero.h"

#define ZERO_MANIFEST_NAME "manifest.json"

typedef struct zero_manifest_file {
    char *name; /* in the checkpoint's directory: FILE or FOLDER/FILE, without ".." */
    uint64_t n_bytes, xxh3;
} zero_manifest_file_t;

typedef struct zero_manifest {
    size_t n_files;
    zero_manifest_file_t *files;
} zero_manifest_t;

/* Returns whether a name is of a file in the checkpoint's directory or in one folder of it. */
bool zero_manifest_name_is_safe(const char *name);
/* Adds a file, for which size and hash are still to be set. The name is copied. */
zero_status_t zero_manifest_add(zero_manifest_t *manifest, const char *name);
zero_status_t zero_manifest_write(const zero_manifest_t *manifest, const char *directory);
/* Reads the manifest and checks its form, but not the files. */
zero_status_t zero_manifest_read(const char *directory, zero_manifest_t *manifest);
/* Returns whether a directory has a manifest of libzero's, whatever it lists. Logs nothing. */
bool zero_manifest_is_there(int directory);
/* Checks that file i exists and is as it was written. */
zero_status_t zero_manifest_check(const zero_manifest_t *manifest, const char *directory, size_t i);
/* Returns the number of the file with that name; n_files if there is none. */
size_t zero_manifest_find(const zero_manifest_t *manifest, const char *name);
void zero_manifest_destroy(zero_manifest_t *manifest);

#endif
