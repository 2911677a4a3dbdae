/* model_files.c - see model_files.h. A model may come from anywhere: a link in it must not bring another file of this
 * machine into the checkpoint, which may be given away. */
#include "train/hub/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/status.h"
#include "base/system.h"
#include "train/report/report.h"

#define TOKENIZER "tokenizer.json"
#define MAX_BYTES ((uint64_t)64 << 20)
#define NAME_BYTES 200 /* of a chat template, with its folder */

static const char *const NAMES[] = {TOKENIZER,           "tokenizer.model",     "tokenizer_config.json",
                                    "vocab.json",        "merges.txt",          "special_tokens_map.json",
                                    "added_tokens.json", "chat_template.jinja", "generation_config.json"};
_Static_assert(sizeof NAMES / sizeof NAMES[0] + MODEL_TEMPLATES_MAX == MODEL_FILES_MAX, "room for every file");

/* Returns whether a path without links is of a file right in the directory or in its folder of templates, or in the
 * blobs of its model in Hugging Face's cache: models--X/snapshots/REVISION links to models--X/blobs. */
static bool belongs(const char *file, const char *directory)
{
    char parent[PATH_MAX], templates[PATH_MAX + 32], blobs[PATH_MAX + 16];
    size_t length = (size_t)(strrchr(file, '/') - file);
    snprintf(parent, sizeof parent, "%.*s", (int)length, file);
    snprintf(templates, sizeof templates, "%s/" MODEL_TEMPLATES, directory);
    if (strcmp(parent, directory) == 0 || strcmp(parent, templates) == 0)
        return true;
    snprintf(blobs, sizeof blobs, "%s", directory);
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(blobs, '/');
        if (!slash)
            return false;
        *slash = 0;
        if (up == 0 && strcmp(strrchr(blobs, '/') ? strrchr(blobs, '/') : "", "/snapshots") != 0)
            return false;
    }
    strcat(blobs, "/blobs");
    return strcmp(parent, blobs) == 0;
}

/* Reads a whole file. Returns why it cannot be kept; NULL: *data is its content, for free(). */
static const char *read_file(const char *path, void **data, size_t *n_bytes)
{
    struct stat info;
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
    if (fd < 0)
        return strerror(errno);
    const char *fault = fstat(fd, &info) != 0             ? strerror(errno)
                        : !S_ISREG(info.st_mode)          ? "it is not a regular file"
                        : info.st_size == 0               ? "it is empty"
                        : info.st_size > (off_t)MAX_BYTES ? "it is larger than 64 MiB"
                                                          : NULL;
    *data = fault ? NULL : malloc((size_t)info.st_size);
    size_t n = 0, size = fault ? 0 : (size_t)info.st_size;
    if (!fault && !*data)
        fault = "there is no memory for it";
    while (!fault && n < size) {
        ssize_t got = read(fd, (char *)*data + n, size - n);
        if (got > 0)
            n += (size_t)got;
        else if (got == 0 || errno != EINTR)
            fault = got == 0 ? "it becomes shorter" : strerror(errno);
    }
    close(fd);
    if (fault)
        free(*data);
    *n_bytes = size;
    return fault;
}

/* Adds a file. Returns false if there is no memory for its name. */
static bool add(model_files_t *files, const char *name, void *data, size_t n_bytes)
{
    char *copy = strdup(name);
    if (!copy)
        return false;
    files->files[files->n_files++] = (zero_save_file_t){.name = copy, .data = data, .n_bytes = n_bytes};
    files->n_bytes += n_bytes;
    if (strcmp(name, TOKENIZER) == 0) {
        files->tokenizer = XXH3_64bits(data, n_bytes);
        files->tokenizer_text = data;
        files->tokenizer_bytes = n_bytes;
    }
    return true;
}

/* Notes that the model has a tokenizer if this file, which is there, is one: it need not be kept for that. */
static void note_vocabulary(model_files_t *files, const char *name)
{
    static const char *const vocabularies[] = {TOKENIZER, "tokenizer.model", "vocab.json"};
    for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++)
        if (!files->vocabulary && strcmp(name, vocabularies[i]) == 0)
            files->vocabulary = vocabularies[i];
}

/* Reads a file if it is there. `directory` has no links. */
static void take(model_files_t *files, const char *directory, const char *name)
{
    char path[PATH_MAX + NAME_BYTES + 2], real[PATH_MAX];
    void *data = NULL;
    size_t n_bytes = 0;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!realpath(path, real)) {
        if (errno != ENOENT || faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            report("'%s' is not kept in checkpoints: %s", path, strerror(errno));
        return;
    }
    note_vocabulary(files, name);
    const char *fault =
        belongs(real, directory) ? read_file(real, &data, &n_bytes) : "it is a link out of the model's directory";
    if (!fault && !add(files, name, data, n_bytes)) {
        free(data);
        fault = "there is no memory for it";
    }
    if (fault)
        report("'%s' is not kept in checkpoints: %s", path, fault);
}

/* Returns whether a manifest can list a template's file. */
static bool is_plain(const char *name)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    return strlen(MODEL_TEMPLATES "/") + strlen(name) < NAME_BYTES && strspn(name, plain) == strlen(name) &&
           !strstr(name, "..");
}

static int is_template(const struct dirent *entry)
{
    const char *ending = strrchr(entry->d_name, '.');
    return entry->d_name[0] != '.' && ending && strcmp(ending, ".jinja") == 0;
}

/* Reads the named templates, in the order of their names. */
static void take_templates(model_files_t *files, const char *directory)
{
    char path[PATH_MAX + 32], name[NAME_BYTES];
    struct dirent **entries = NULL;
    snprintf(path, sizeof path, "%s/" MODEL_TEMPLATES, directory);
    const int n = scandir(path, &entries, is_template, alphasort);
    for (int i = 0; i < n; i++) {
        const char *file = entries[i]->d_name;
        const char *fault = i >= MODEL_TEMPLATES_MAX ? "there are more templates than 16"
                            : !is_plain(file) ? "its name is long, or has '..' or other characters than A-Za-z0-9_-."
                                              : NULL;
        if (fault) {
            report("'%s/%s' is not kept in checkpoints: %s", path, file, fault);
        } else {
            snprintf(name, sizeof name, MODEL_TEMPLATES "/%s", file);
            take(files, directory, name);
        }
        free(entries[i]);
    }
    free(entries);
}

zero_status_t model_files_read(const char *directory, model_files_t *files)
{
    char real[PATH_MAX];
    *files = (model_files_t){0};
    if (!realpath(directory, real))
        return report_error(ZERO_ERROR_USAGE, "cannot read the directory '%s': %s", directory, strerror(errno));
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        take(files, real, NAMES[i]);
    take_templates(files, real);
    return ZERO_OK;
}

void model_files_free(model_files_t *files)
{
    for (int i = 0; i < files->n_files; i++) {
        free((void *)files->files[i].name);
        free((void *)files->files[i].data);
    }
    *files = (model_files_t){0};
}
