/* manifest.c - see manifest.h.
 *
 *     {"files": {"state.json": {"bytes": 512, "xxh3": "0123456789abcdef"}, ...}, "format": "libzero checkpoint",
 *      "version": 1}
 */
#include "zero/format/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json_build.h"
#include "base/log.h"
#include "zero/format/safetensors.h"

#define FORMAT "libzero checkpoint"
#define VERSION 1
#define HASH_DIGITS 16

bool zero_manifest_name_is_safe(const char *name)
{
    const char *slash = strchr(name, '/');
    char folder[NAME_MAX + 1];
    if (!slash)
        return zero_safetensors_name_is_safe(name);
    if (name[0] == '.' || slash - name > NAME_MAX)
        return false;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - name), name);
    return zero_safetensors_name_is_safe(folder) && zero_safetensors_name_is_safe(slash + 1);
}

zero_status_t zero_manifest_add(zero_manifest_t *manifest, const char *name)
{
    zero_manifest_file_t *files = realloc(manifest->files, (manifest->n_files + 1) * sizeof *files);
    if (files)
        manifest->files = files;
    char *copy = files ? strdup(name) : NULL;
    if (!copy)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list the file %s of a checkpoint", name);
    files[manifest->n_files++] = (zero_manifest_file_t){.name = copy};
    return ZERO_OK;
}

void zero_manifest_destroy(zero_manifest_t *manifest)
{
    for (size_t i = 0; i < manifest->n_files; i++)
        free(manifest->files[i].name);
    free(manifest->files);
    *manifest = (zero_manifest_t){0};
}

zero_status_t zero_manifest_write(const zero_manifest_t *manifest, const char *directory)
{
    json_t *files = json_object();
    for (size_t i = 0; i < manifest->n_files; i++) {
        char hash[HASH_DIGITS + 1];
        const zero_manifest_file_t *file = &manifest->files[i];
        snprintf(hash, sizeof hash, "%016" PRIx64, file->xxh3);
        zero_json_set(&files, file->name, json_pack("{s:I, s:s}", "bytes", (json_int_t)file->n_bytes, "xxh3", hash));
    }
    json_t *object = json_pack("{s:s, s:i, s:o}", "format", FORMAT, "version", VERSION, "files", files);
    zero_status_t status = object && json_object_size(files) == manifest->n_files
                               ? zero_file_write_json(directory, ZERO_MANIFEST_NAME, object)
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory for the manifest of '%s'", directory);
    json_decref(object);
    return status;
}

/* ---- reading ---- */

static bool parse_hash(const char *text, uint64_t *hash)
{
    if (!text || strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS)
        return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

static zero_status_t take_file(zero_manifest_t *manifest, const char *path, const char *name, const json_t *entry)
{
    const json_t *bytes = json_object_get(entry, "bytes");
    uint64_t hash;
    if (!zero_manifest_name_is_safe(name))
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' lists a file outside its own directory (a name that is neither FILE nor FOLDER/FILE, or "
                         "has '..' or a control character): take another checkpoint",
                         path);
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
        !parse_hash(json_string_value(json_object_get(entry, "xxh3")), &hash))
        return zero_fail(ZERO_ERROR_FORMAT, "'%s': size or xxh3 of %s is missing or malformed: take another checkpoint",
                         path, name);
    ZERO_TRY(zero_manifest_add(manifest, name));
    zero_manifest_file_t *file = &manifest->files[manifest->n_files - 1];
    file->n_bytes = (uint64_t)json_integer_value(bytes);
    file->xxh3 = hash;
    return ZERO_OK;
}

static zero_status_t take_object(zero_manifest_t *manifest, const char *path, const json_t *object)
{
    const char *name, *format = json_string_value(json_object_get(object, "format"));
    json_t *entry, *files = json_object_get(object, "files");
    if (!format || strcmp(format, FORMAT) != 0 || !json_is_object(files))
        return zero_fail(ZERO_ERROR_FORMAT, "'%s' is not the manifest of a " FORMAT ": take another checkpoint", path);
    if (json_integer_value(json_object_get(object, "version")) != VERSION)
        return zero_fail(ZERO_ERROR_UNSUPPORTED, "'%s' is not of version %d, which libzero %s reads", path, VERSION,
                         zero_version());
    json_object_foreach(files, name, entry) ZERO_TRY(take_file(manifest, path, name, entry));
    return ZERO_OK;
}

zero_status_t zero_manifest_read(const char *directory, zero_manifest_t *manifest)
{
    char *path = NULL;
    json_t *object = NULL;
    zero_manifest_t taken = {0};
    ZERO_TRY(zero_path_join(directory, ZERO_MANIFEST_NAME, &path));
    zero_status_t status = ZERO_OK;
    if (access(path, F_OK) != 0 && errno == ENOENT) /* reading reports all else */
        status =
            zero_fail(ZERO_ERROR_IO, "'%s' is not there, so this is not a complete checkpoint: take another", path);
    if (status == ZERO_OK)
        status = zero_file_read_json(path, "take another checkpoint", &object);
    if (status == ZERO_OK)
        status = take_object(&taken, path, object);
    json_decref(object);
    free(path);
    if (status == ZERO_OK)
        *manifest = taken;
    else
        zero_manifest_destroy(&taken);
    return status;
}

bool zero_manifest_is_there(int directory)
{
    struct stat info;
    int fd = zero_open(directory, ZERO_MANIFEST_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return false;
    bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    json_t *object = is_file ? json_loadfd(fd, 0, NULL) : NULL;
    const char *format = json_string_value(json_object_get(object, "format"));
    bool is_ours = format && strcmp(format, FORMAT) == 0;
    json_decref(object);
    close(fd);
    return is_ours;
}

static zero_status_t compare(const zero_manifest_file_t *file, const char *path)
{
    uint64_t n_bytes, xxh3;
    if (access(path, F_OK) != 0 && errno == ENOENT) /* reading reports all else */
        return zero_fail(ZERO_ERROR_IO, "'%s' is in the manifest but not there: take another checkpoint", path);
    ZERO_TRY(zero_file_hash(path, &n_bytes, &xxh3));
    if (n_bytes != file->n_bytes)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' has %" PRIu64 " bytes but the manifest says %" PRIu64 ": it is damaged, take another "
                         "checkpoint",
                         path, n_bytes, file->n_bytes);
    if (xxh3 != file->xxh3)
        return zero_fail(ZERO_ERROR_FORMAT,
                         "'%s' is not as it was written: its XXH3 is %016" PRIx64 " but the manifest says %016" PRIx64
                         ": it is damaged, take another checkpoint",
                         path, xxh3, file->xxh3);
    return ZERO_OK;
}

zero_status_t zero_manifest_check(const zero_manifest_t *manifest, const char *directory, size_t i)
{
    char *path = NULL;
    ZERO_TRY(zero_path_join(directory, manifest->files[i].name, &path));
    zero_status_t status = compare(&manifest->files[i], path);
    free(path);
    return status;
}

size_t zero_manifest_find(const zero_manifest_t *manifest, const char *name)
{
    size_t i = 0;
    while (i < manifest->n_files && strcmp(manifest->files[i].name, name) != 0)
        i++;
    return i;
}
