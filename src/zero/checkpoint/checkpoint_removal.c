/* checkpoint_removal.c - see checkpoint_removal.h. */
#include "zero/checkpoint/checkpoint_removal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system.h"
#include "zero/format/manifest.h"

/* libzero makes two levels. Each level of a deeper tree would need a descriptor. */
#define MAX_DEPTH 16
#define MAX_BATCH 64                     /* files that are removed together */
#define LARGE_BYTES ((int64_t)256 << 20) /* of files, to be worth threads */

/* ---- recognizing ---- */

zero_status_t zero_marker_make(int directory, const char *path)
{
    int fd = zero_open(directory, ZERO_MARKER_NAME, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (fd < 0)
        return zero_fail(ZERO_ERROR_IO, "cannot create '%s/" ZERO_MARKER_NAME "': %s", path, strerror(errno));
    close(fd);
    return ZERO_OK;
}

zero_status_t zero_marker_remove(const char *path)
{
    char *marker = NULL;
    ZERO_TRY(zero_path_join(path, ZERO_MARKER_NAME, &marker));
    zero_status_t status = ZERO_OK;
    if (unlink(marker) != 0)
        status = zero_fail(ZERO_ERROR_IO, "cannot remove '%s': %s", marker, strerror(errno));
    free(marker);
    return status;
}

static int open_directory(int parent, const char *name)
{
    return ZERO_RETRY(openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

static bool has_marker(int directory)
{
    struct stat info;
    return fstatat(directory, ZERO_MARKER_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

static bool is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool is_empty(int directory)
{
    int fd = open_directory(directory, ".");
    DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
    if (!names) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    struct dirent *item = readdir(names);
    while (item && is_dot(item->d_name))
        item = readdir(names);
    closedir(names);
    return !item;
}

static bool may_go(int directory)
{
    return has_marker(directory) || zero_manifest_is_there(directory) || is_empty(directory);
}

static bool test_directory(int parent, const char *name, bool (*test)(int directory))
{
    int fd = open_directory(parent, name);
    if (fd < 0)
        return false;
    bool answer = test(fd);
    close(fd);
    return answer;
}

bool zero_checkpoint_is_there(int parent, const char *name)
{
    return test_directory(parent, name, zero_manifest_is_there);
}

bool zero_checkpoint_may_go(int parent, const char *name)
{
    return test_directory(parent, name, may_go);
}

/* ---- removing ---- */

/* Returns whether the file proves that the directory is libzero's. Such files go last, so that an interrupted removal
 * can be resumed. */
static bool is_proof(const char *name)
{
    return strcmp(name, ZERO_MARKER_NAME) == 0 || strcmp(name, ZERO_MANIFEST_NAME) == 0;
}

static bool empty_directory(int directory, dev_t device, int depth);

/* Removes a file or a tree. Returns false with errno set if it cannot; so do the next two. */
static bool remove_item(int directory, const char *name, dev_t device, int depth)
{
    struct stat info;
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT;
    if (!S_ISDIR(info.st_mode))
        return unlinkat(directory, name, 0) == 0 || errno == ENOENT;
    int fd = open_directory(directory, name);
    if (fd < 0)
        return false;
    bool done = empty_directory(fd, device, depth + 1); /* also closes fd */
    return done && (unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

/* Names read together, and the bytes of their files. */
typedef struct batch {
    char names[MAX_BATCH][NAME_MAX + 1];
    int n;
    int64_t n_bytes;
} batch_t;

/* Reads the next names that are to go. */
static void read_batch(DIR *names, int depth, batch_t *batch)
{
    struct stat info;
    struct dirent *item;
    batch->n = 0;
    batch->n_bytes = 0;
    while (batch->n < MAX_BATCH && (item = readdir(names)) != NULL) {
        if (is_dot(item->d_name) || (depth == 0 && is_proof(item->d_name)))
            continue;
        if (fstatat(dirfd(names), item->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode))
            batch->n_bytes += info.st_size;
        snprintf(batch->names[batch->n++], sizeof batch->names[0], "%s", item->d_name);
    }
}

/* Removes what a batch names; large files in a thread each, since the kernel frees their memory within the call.
 * Returns 0, or errno of one that stays. */
static int remove_batch(int directory, const batch_t *batch, dev_t device, int depth)
{
    int error = 0;
#pragma omp parallel for schedule(dynamic) reduction(max : error) if (batch->n_bytes >= LARGE_BYTES)
    for (int i = 0; i < batch->n; i++)
        if (!remove_item(directory, batch->names[i], device, depth))
            error = errno;
    return error;
}

/* Walks over the names once and removes them. *n_removed: how many of the directory itself. Returns 0 or errno. */
static int empty_once(DIR *names, dev_t device, int depth, int *n_removed)
{
    batch_t batch;
    *n_removed = 0;
    rewinddir(names);
    for (read_batch(names, depth, &batch); batch.n > 0; read_batch(names, depth, &batch)) {
        const int error = remove_batch(dirfd(names), &batch, device, depth);
        if (error != 0)
            return error;
        *n_removed += batch.n;
    }
    return 0;
}

/* Empties a directory, except for the proof that the outermost one is libzero's. Closes `directory`. */
static bool empty_directory(int directory, dev_t device, int depth)
{
    struct stat info;
    DIR *names = NULL;
    int error = 0, n_removed = 1;
    if (fstat(directory, &info) != 0 || !(names = fdopendir(directory)))
        error = errno;
    else if (info.st_dev != device)
        error = EXDEV;
    else if (depth > MAX_DEPTH)
        error = ELOOP;
    /* Repeated, because a walk may miss names while others are removed. */
    while (error == 0 && n_removed > 0)
        error = empty_once(names, device, depth, &n_removed);
    if (names)
        closedir(names);
    else
        close(directory);
    errno = error;
    return error == 0;
}

static bool remove_opened(int parent, const char *name, int directory, dev_t device)
{
    int walked = open_directory(directory, ".");
    if (walked < 0 || !empty_directory(walked, device, 0))
        return false;
    if ((unlinkat(directory, ZERO_MANIFEST_NAME, 0) != 0 && errno != ENOENT) ||
        (unlinkat(directory, ZERO_MARKER_NAME, 0) != 0 && errno != ENOENT))
        return false;
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

static zero_status_t remove_in(int parent, const char *parent_path, const char *name)
{
    struct stat info;
    int directory = open_directory(parent, name);
    if (directory < 0 && errno == ENOENT)
        return ZERO_OK;
    zero_status_t status = ZERO_OK;
    if (directory < 0 || fstat(directory, &info) != 0)
        status = zero_fail(ZERO_ERROR_IO, "cannot remove '%s/%s': %s", parent_path, name, strerror(errno));
    else if (!may_go(directory))
        status = zero_fail(ZERO_ERROR_IO,
                           "'%s/%s' has neither a manifest nor a marker of libzero's: it is not removed; move it away",
                           parent_path, name);
    else if (!remove_opened(parent, name, directory, info.st_dev))
        status = zero_fail(ZERO_ERROR_IO, "cannot remove '%s/%s': %s", parent_path, name, strerror(errno));
    if (directory >= 0)
        close(directory);
    return status;
}

zero_status_t zero_checkpoint_remove(const char *parent, const char *name)
{
    int fd = ZERO_RETRY(open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return zero_fail(ZERO_ERROR_IO, "cannot open the directory '%s': %s", parent, strerror(errno));
    zero_status_t status = remove_in(fd, parent, name);
    close(fd);
    return status;
}
