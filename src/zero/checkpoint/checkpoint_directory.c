/* checkpoint_directory.c - see checkpoint_directory.h. */
#include "zero/checkpoint/checkpoint_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/checkpoint/checkpoint_removal.h"
#include "base/files.h"
#include "base/grow.h"
#include "base/log.h"
#include "zero/checkpoint/manifest.h"
#include "zero/checkpoint/safetensors.h"

#define STEP_PREFIX "step-"
#define TEMPORARY_PREFIX "tmp."
#define PROBE_STEP 0           /* that is never saved */
#define REPLACED_SUFFIX ".old" /* a step's earlier directory, until the new one has its name */
#define MOVED_SUFFIX ".moved"  /* something that is not libzero's and had a step's name */
#define MAX_MOVED 1000
#define NAME_BYTES 64
#define TEMPORARY_NAME_BYTES (NAME_BYTES + 16) /* with prefix and suffix */

static void step_name(char name[NAME_BYTES], const char *prefix, uint64_t step)
{
    snprintf(name, NAME_BYTES, "%s" STEP_PREFIX "%08" PRIu64, prefix, step);
}

/* Returns whether step_name makes this name, and for which step. */
static bool parse_step_name(const char *name, uint64_t *step)
{
    char again[NAME_BYTES];
    if (strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0 || strlen(name) >= NAME_BYTES)
        return false;
    *step = strtoull(name + strlen(STEP_PREFIX), NULL, 10);
    step_name(again, "", *step);
    return strcmp(name, again) == 0;
}

/* Returns whether a save gives this name to a directory that it will remove. */
static bool is_temporary_name(const char *name)
{
    char step_text[NAME_BYTES];
    uint64_t step;
    size_t n_prefix = strlen(TEMPORARY_PREFIX), n_suffix = strlen(REPLACED_SUFFIX), n_bytes = strlen(name);
    if (strncmp(name, TEMPORARY_PREFIX, n_prefix) != 0 || n_bytes >= NAME_BYTES)
        return false;
    strcpy(step_text, name + n_prefix);
    n_bytes -= n_prefix;
    if (n_bytes > n_suffix && strcmp(step_text + n_bytes - n_suffix, REPLACED_SUFFIX) == 0)
        step_text[n_bytes - n_suffix] = 0;
    return parse_step_name(step_text, &step);
}

/* ---- what is there ---- */

typedef struct entry {
    char name[NAME_BYTES];
    uint64_t step;
    struct timespec written; /* when the last file was added */
} entry_t;

typedef struct listing {
    size_t n_entries, capacity;
    entry_t *entries; /* libzero's checkpoints, in the order in which they were written */
} listing_t;

static int by_age(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;
    if (x->written.tv_sec != y->written.tv_sec)
        return x->written.tv_sec < y->written.tv_sec ? -1 : 1;
    if (x->written.tv_nsec != y->written.tv_nsec)
        return x->written.tv_nsec < y->written.tv_nsec ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

static zero_status_t list_one(listing_t *listing, const char *parent, int fd, const char *name)
{
    struct stat info;
    uint64_t step;
    if (!parse_step_name(name, &step) || fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !zero_checkpoint_is_there(fd, name))
        return ZERO_OK;
    entry_t *entries = zero_grow(listing->entries, listing->n_entries, &listing->capacity, sizeof *entries);
    if (!entries)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list '%s'", parent);
    listing->entries = entries;
    entry_t *entry = &listing->entries[listing->n_entries++];
    *entry = (entry_t){.step = step, .written = info.st_mtim};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return ZERO_OK;
}

/* Calls `visit` for every name in the directory. */
static zero_status_t for_each_name(const char *parent, listing_t *listing,
                                   zero_status_t (*visit)(listing_t *listing, const char *parent, int fd,
                                                          const char *name))
{
    zero_status_t status = ZERO_OK;
    DIR *directory = opendir(parent);
    if (!directory)
        return zero_fail(ZERO_ERROR_IO, "cannot read the directory '%s': %s", parent, strerror(errno));
    for (struct dirent *item; status == ZERO_OK && (item = readdir(directory)) != NULL;)
        status = visit(listing, parent, dirfd(directory), item->d_name);
    closedir(directory);
    return status;
}

static zero_status_t list(const char *parent, listing_t *listing)
{
    zero_status_t status = for_each_name(parent, listing, list_one);
    if (status == ZERO_OK && listing->n_entries > 0)
        qsort(listing->entries, listing->n_entries, sizeof *listing->entries, by_age);
    return status;
}

/* ---- writing ---- */

/* Returns whether a save holds the directory. On file systems that cannot lock directories none is locked. */
static bool is_locked(int parent_fd, const char *name)
{
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool is_free = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    close(fd);
    return !is_free;
}

/* Removes what a killed save has left; fails if that save is still running. A save that was killed between making its
 * directory and marking it has left an empty one, which is all that unlinkat removes. */
static zero_status_t remove_leftover(listing_t *listing, const char *parent, int fd, const char *name)
{
    (void)listing;
    if (!is_temporary_name(name))
        return ZERO_OK;
    if (!zero_checkpoint_may_go(fd, name)) {
        (void)unlinkat(fd, name, AT_REMOVEDIR);
        return ZERO_OK;
    }
    if (is_locked(fd, name))
        return zero_fail(ZERO_ERROR_IO,
                         "'%s/%s' is being written: a save into '%s' is under way; end it first, and let no other run "
                         "save there",
                         parent, name, parent);
    return zero_checkpoint_remove(parent, name);
}

/* Checks that `name` can become a link: it is free or a link already. Anything else is kept. */
static zero_status_t check_link(const char *parent, const char *name)
{
    char *path = NULL;
    struct stat info;
    ZERO_TRY(zero_path_join(parent, name, &path));
    zero_status_t status = ZERO_OK;
    if (lstat(path, &info) == 0 && !S_ISLNK(info.st_mode))
        status = zero_fail(ZERO_ERROR_IO, "'%s' is a %s, and has to be a link to the newest checkpoint: move it away",
                           path, S_ISDIR(info.st_mode) ? "directory" : "file");
    free(path);
    return status;
}

static zero_status_t check_links(const char *parent)
{
    ZERO_TRY(check_link(parent, ZERO_LATEST_NAME));
    return check_link(parent, TEMPORARY_PREFIX ZERO_LATEST_NAME);
}

zero_status_t zero_checkpoints_temporary(const char *parent, uint64_t step, char **temporary)
{
    char name[NAME_BYTES];
    step_name(name, TEMPORARY_PREFIX, step);
    return zero_path_join(parent, name, temporary);
}

/* Creates the directory, locks it and marks it as libzero's. *lock is set once it exists. */
static zero_status_t make_temporary(const char *parent, const char *temporary, int *lock)
{
    int error = mkdir(temporary, 0777) == 0 ? 0 : errno;
    if (error == EEXIST)
        return zero_fail(ZERO_ERROR_IO, "'%s' is in the way of a checkpoint and not libzero's: move it away",
                         temporary);
    if (error != 0)
        return zero_fail(ZERO_ERROR_IO, "cannot write checkpoints in '%s': %s", parent, strerror(error));
    int fd = zero_open(AT_FDCWD, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0) {
        zero_status_t status =
            zero_fail(ZERO_ERROR_IO, "cannot open the directory '%s': %s", temporary, strerror(errno));
        rmdir(temporary);
        return status;
    }
    (void)flock(fd, LOCK_EX | LOCK_NB);
    *lock = fd;
    return zero_marker_make(fd, temporary);
}

zero_status_t zero_checkpoints_begin(const char *parent, const char *temporary, int *lock)
{
    ZERO_TRY(zero_directory_make(parent));
    ZERO_TRY(check_links(parent));
    ZERO_TRY(for_each_name(parent, NULL, remove_leftover));
    return make_temporary(parent, temporary, lock);
}

zero_status_t zero_checkpoints_abandon(const char *parent, uint64_t step)
{
    char name[NAME_BYTES];
    step_name(name, TEMPORARY_PREFIX, step);
    return zero_checkpoint_remove(parent, name);
}

zero_status_t zero_checkpoints_probe_begin(const char *parent, int *lock)
{
    char *temporary = NULL;
    *lock = -1;
    ZERO_TRY(zero_checkpoints_temporary(parent, PROBE_STEP, &temporary));
    zero_status_t status = zero_checkpoints_begin(parent, temporary, lock);
    free(temporary);
    return status;
}

zero_status_t zero_checkpoints_probe_see(const char *parent)
{
    char *temporary = NULL;
    ZERO_TRY(zero_checkpoints_temporary(parent, PROBE_STEP, &temporary));
    int error = access(temporary, F_OK) == 0 ? 0 : errno;
    free(temporary);
    if (error == 0)
        return ZERO_OK;
    return zero_fail(ZERO_ERROR_IO,
                     "'%s' is not the directory that rank 0 has by this name: checkpoints need one that all hosts "
                     "share (%s)",
                     parent, strerror(error));
}

zero_status_t zero_checkpoints_probe_end(const char *parent, int lock)
{
    if (lock < 0)
        return ZERO_OK;
    zero_status_t status = zero_checkpoints_abandon(parent, PROBE_STEP);
    close(lock);
    return status;
}

static zero_status_t rename_in(const char *parent, const char *from, const char *to)
{
    if (rename(from, to) != 0)
        return zero_fail(ZERO_ERROR_IO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
    return zero_directory_sync(parent);
}

/* Renames something that is not libzero's and has a step's name. Its content stays as it is. */
static zero_status_t move_away(const char *parent, const char *path)
{
    char *moved = NULL;
    struct stat info;
    zero_status_t status = ZERO_ERROR_IO;
    for (int n = 1; n <= MAX_MOVED; n++) {
        int made =
            n == 1 ? asprintf(&moved, "%s" MOVED_SUFFIX, path) : asprintf(&moved, "%s" MOVED_SUFFIX ".%d", path, n);
        if (made < 0)
            return zero_fail(ZERO_ERROR_MEMORY, "no memory to rename '%s'", path);
        if (lstat(moved, &info) != 0) {
            status = rename_in(parent, path, moved);
            if (status == ZERO_OK)
                zero_log(ZERO_LOG_WARNING, "'%s' was not libzero's and had a checkpoint's name: it is now '%s'", path,
                         moved);
            free(moved);
            return status;
        }
        free(moved);
    }
    return zero_fail(status, "'%s' is not libzero's and in the way of a checkpoint: move it away", path);
}

/* Renames the temporary directory to the step's name. An earlier checkpoint of the same step is replaced: in one atomic
 * exchange if the file system can do that, so that a complete checkpoint has the name at any time. The earlier one then
 * has a temporary name, and is removed. */
static zero_status_t take_name(const char *parent, const char *name, const char *temporary, const char *final)
{
    char temporary_name[TEMPORARY_NAME_BYTES], replaced_name[TEMPORARY_NAME_BYTES];
    char *replaced = NULL;
    struct stat info;
    if (lstat(final, &info) != 0)
        return rename_in(parent, temporary, final);
    if (!zero_checkpoint_may_go(AT_FDCWD, final)) {
        ZERO_TRY(move_away(parent, final));
        return rename_in(parent, temporary, final);
    }
    snprintf(temporary_name, sizeof temporary_name, TEMPORARY_PREFIX "%s", name);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        ZERO_TRY(zero_directory_sync(parent));
        return zero_checkpoint_remove(parent, temporary_name);
    }
    snprintf(replaced_name, sizeof replaced_name, TEMPORARY_PREFIX "%s" REPLACED_SUFFIX, name);
    ZERO_TRY(zero_path_join(parent, replaced_name, &replaced));
    zero_status_t status = rename_in(parent, final, replaced);
    free(replaced);
    ZERO_TRY(status);
    ZERO_TRY(rename_in(parent, temporary, final));
    return zero_checkpoint_remove(parent, replaced_name);
}

static zero_status_t set_latest(const char *parent, const char *name)
{
    char *link = NULL, *latest = NULL;
    zero_status_t status;
    ZERO_TRY(check_links(parent)); /* they may have changed since the save began */
    ZERO_TRY_GOTO(zero_path_join(parent, TEMPORARY_PREFIX ZERO_LATEST_NAME, &link), done);
    ZERO_TRY_GOTO(zero_path_join(parent, ZERO_LATEST_NAME, &latest), done);
    unlink(link);
    if (symlink(name, link) != 0)
        status = zero_fail(ZERO_ERROR_IO, "cannot make the link '%s': %s", link, strerror(errno));
    else
        status = rename_in(parent, link, latest);
done:
    free(latest);
    free(link);
    return status;
}

/* Removes a checkpoint. Renames it first, so that an interrupted removal leaves nothing that looks complete. */
static zero_status_t remove_checkpoint(const char *parent, const char *name)
{
    char hidden_name[TEMPORARY_NAME_BYTES];
    char *path = NULL, *hidden = NULL;
    zero_status_t status;
    snprintf(hidden_name, sizeof hidden_name, TEMPORARY_PREFIX "%s", name);
    ZERO_TRY_GOTO(zero_path_join(parent, name, &path), done);
    ZERO_TRY_GOTO(zero_path_join(parent, hidden_name, &hidden), done);
    ZERO_TRY_GOTO(rename_in(parent, path, hidden), done);
    status = zero_checkpoint_remove(parent, hidden_name);
done:
    free(hidden);
    free(path);
    return status;
}

/* Removes the oldest checkpoints beyond `keep`. A failure is only a warning: the new checkpoint is complete. */
static void remove_oldest(const char *parent, const char *newest, int keep)
{
    listing_t listing = {0};
    zero_status_t status = list(parent, &listing);
    size_t n_left = listing.n_entries;
    for (size_t i = 0; i < listing.n_entries && n_left > (size_t)keep && status == ZERO_OK; i++)
        if (strcmp(listing.entries[i].name, newest) != 0) {
            status = remove_checkpoint(parent, listing.entries[i].name);
            n_left--;
        }
    if (status != ZERO_OK)
        zero_log(ZERO_LOG_WARNING, "more than %d checkpoints stay in '%s'", keep, parent);
    free(listing.entries);
}

zero_status_t zero_checkpoints_commit(const char *parent, uint64_t step, const char *temporary)
{
    char name[NAME_BYTES], *final = NULL;
    step_name(name, "", step);
    /* Whenever the power fails, the directory has marker or manifest. */
    ZERO_TRY(zero_directory_sync(temporary));
    ZERO_TRY(zero_marker_remove(temporary));
    ZERO_TRY(zero_directory_sync(temporary));
    ZERO_TRY(zero_path_join(parent, name, &final));
    zero_status_t status = take_name(parent, name, temporary, final);
    free(final);
    ZERO_TRY(status);
    return set_latest(parent, name);
}

void zero_checkpoints_keep(const char *parent, uint64_t step, int keep)
{
    char name[NAME_BYTES];
    step_name(name, "", step);
    remove_oldest(parent, name, keep);
}

zero_status_t zero_checkpoints_clear(const char *parent, uint64_t step)
{
    listing_t listing = {0};
    char *latest = NULL;
    struct stat info;
    if (stat(parent, &info) != 0 && errno == ENOENT)
        return ZERO_OK;
    zero_status_t status = list(parent, &listing);
    for (size_t i = 0; i < listing.n_entries && status == ZERO_OK; i++)
        if (listing.entries[i].step != step)
            status = remove_checkpoint(parent, listing.entries[i].name);
    free(listing.entries);
    if (status != ZERO_OK || step != 0)
        return status;
    ZERO_TRY(zero_path_join(parent, ZERO_LATEST_NAME, &latest));
    if (lstat(latest, &info) == 0 && S_ISLNK(info.st_mode))
        unlink(latest);
    free(latest);
    (void)rmdir(parent); /* something else may be in it */
    return ZERO_OK;
}

zero_status_t zero_checkpoints_list(const char *parent, size_t n_steps, uint64_t *steps)
{
    listing_t listing = {0};
    struct stat info;
    memset(steps, 0, n_steps * sizeof *steps);
    if (stat(parent, &info) != 0 && errno == ENOENT)
        return ZERO_OK;
    zero_status_t status = list(parent, &listing);
    for (size_t i = 0; i < n_steps && i < listing.n_entries; i++)
        steps[i] = listing.entries[listing.n_entries - 1 - i].step;
    free(listing.entries);
    return status;
}

zero_status_t zero_checkpoints_path(const char *parent, uint64_t step, char **path)
{
    char name[NAME_BYTES];
    step_name(name, "", step);
    return zero_path_join(parent, name, path);
}

/* ---- finding ---- */

static bool has_manifest(const char *directory)
{
    char *path = NULL;
    if (zero_path_join(directory, ZERO_MANIFEST_NAME, &path) != ZERO_OK)
        return false;
    bool is_there = access(path, F_OK) == 0;
    free(path);
    return is_there;
}

/* Finds the name that `latest` links to. If there is no such link, as after a crash between the first checkpoint and
 * its link, takes the newest checkpoint; "" if there is none. */
static zero_status_t latest_name(const char *parent, char name[NAME_BYTES])
{
    char *link = NULL;
    uint64_t step;
    name[0] = 0;
    ZERO_TRY(zero_path_join(parent, ZERO_LATEST_NAME, &link));
    ssize_t n_bytes = readlink(link, name, NAME_BYTES - 1);
    int error = errno;
    zero_status_t status = ZERO_OK;
    if (n_bytes >= 0) {
        name[n_bytes] = 0;
        if (!parse_step_name(name, &step))
            status =
                zero_fail(ZERO_ERROR_FORMAT, "'%s' does not link to a checkpoint beside it: name one instead", link);
    } else if (error != ENOENT) {
        status = zero_fail(ZERO_ERROR_FORMAT, "'%s' is not a link to a checkpoint: name one instead", link);
    }
    free(link);
    if (status != ZERO_OK || n_bytes >= 0)
        return status;

    listing_t listing = {0};
    status = list(parent, &listing);
    if (status == ZERO_OK && listing.n_entries > 0)
        memcpy(name, listing.entries[listing.n_entries - 1].name, NAME_BYTES);
    free(listing.entries);
    return status;
}

zero_status_t zero_checkpoints_find(const char *directory, char path[ZERO_MAX_PATH])
{
    char name[NAME_BYTES] = "";
    struct stat info;
    uint64_t step;
    const char *base = strrchr(directory, '/') ? strrchr(directory, '/') + 1 : directory;
    if (stat(directory, &info) != 0)
        return zero_fail(ZERO_ERROR_USAGE, "no checkpoint in '%s': %s", directory, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return zero_fail(ZERO_ERROR_USAGE, "no checkpoint in '%s': it is not a directory", directory);
    /* A step's directory without a manifest is still the one that is meant: reading it reports what is wrong. */
    bool is_one = has_manifest(directory) || parse_step_name(base, &step);
    if (!is_one)
        ZERO_TRY(latest_name(directory, name));
    if (!is_one && !name[0])
        return zero_fail(ZERO_ERROR_USAGE,
                         "no checkpoint in '%s': it has neither %s nor a step-... directory "
                         "with a manifest",
                         directory, ZERO_LATEST_NAME);
    if (snprintf(path, ZERO_MAX_PATH, "%s%s%s", directory, is_one ? "" : "/", name) >= ZERO_MAX_PATH)
        return zero_fail(ZERO_ERROR_USAGE, "the path of '%s' is too long", directory);
    return ZERO_OK;
}
