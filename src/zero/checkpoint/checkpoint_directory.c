/* checkpoint_directory.c - makes, commits and removes checkpoints in their directory: see checkpoint_directory.h. */
#include "zero/checkpoint/checkpoint_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system.h"
#include "zero/checkpoint/checkpoint_listing.h"
#include "zero/checkpoint/checkpoint_removal.h"

#define PROBE_STEP 0          /* that is never saved */
#define MOVED_SUFFIX ".moved" /* something that is not libzero's and had a step's name */
#define MAX_MOVED 1000
#define TEMPORARY_NAME_BYTES (ZERO_STEP_NAME_BYTES + 16) /* with prefix and suffix */

/* Returns whether a save holds the directory. On file systems that cannot lock directories none is locked. */
static bool is_locked(int parent_fd, const char *name)
{
    int fd = ZERO_RETRY(openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0)
        return false;
    bool is_free = ZERO_RETRY(flock(fd, LOCK_EX | LOCK_NB)) == 0 || errno != EWOULDBLOCK;
    close(fd);
    return !is_free;
}

/* Removes what a killed save has left; fails if that save is still running. A save that was killed between making its
 * directory and marking it has left an empty one, which is all that unlinkat removes. */
static zero_status_t remove_leftover(void *user, const char *parent, int fd, const char *name)
{
    (void)user;
    if (!zero_step_name_is_temporary(name))
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
    return check_link(parent, ZERO_TEMPORARY_PREFIX ZERO_LATEST_NAME);
}

zero_status_t zero_checkpoints_temporary(const char *parent, uint64_t step, char **temporary)
{
    char name[ZERO_STEP_NAME_BYTES];
    zero_step_name(name, ZERO_TEMPORARY_PREFIX, step);
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
    (void)ZERO_RETRY(flock(fd, LOCK_EX | LOCK_NB));
    *lock = fd;
    return zero_marker_make(fd, temporary);
}

zero_status_t zero_checkpoints_begin(const char *parent, const char *temporary, int *lock)
{
    ZERO_TRY(zero_directory_make(parent));
    ZERO_TRY(check_links(parent));
    ZERO_TRY(zero_directory_visit(parent, remove_leftover, NULL));
    return make_temporary(parent, temporary, lock);
}

zero_status_t zero_checkpoints_abandon(const char *parent, uint64_t step)
{
    char name[ZERO_STEP_NAME_BYTES];
    zero_step_name(name, ZERO_TEMPORARY_PREFIX, step);
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
    snprintf(temporary_name, sizeof temporary_name, ZERO_TEMPORARY_PREFIX "%s", name);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        ZERO_TRY(zero_directory_sync(parent));
        return zero_checkpoint_remove(parent, temporary_name);
    }
    snprintf(replaced_name, sizeof replaced_name, ZERO_TEMPORARY_PREFIX "%s" ZERO_REPLACED_SUFFIX, name);
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
    ZERO_TRY_GOTO(zero_path_join(parent, ZERO_TEMPORARY_PREFIX ZERO_LATEST_NAME, &link), done);
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
    snprintf(hidden_name, sizeof hidden_name, ZERO_TEMPORARY_PREFIX "%s", name);
    ZERO_TRY_GOTO(zero_path_join(parent, name, &path), done);
    ZERO_TRY_GOTO(zero_path_join(parent, hidden_name, &hidden), done);
    ZERO_TRY_GOTO(rename_in(parent, path, hidden), done);
    status = zero_checkpoint_remove(parent, hidden_name);
done:
    free(hidden);
    free(path);
    return status;
}

/* Removes one that `keep` has no place for. */
static zero_status_t remove_beyond_keep(const char *parent, const zero_listing_entry_t *entry, uint64_t newest)
{
    ZERO_TRY(remove_checkpoint(parent, entry->name));
    if (entry->step > newest)
        zero_log(ZERO_LOG_WARNING,
                 "removed '%s/%s', of an earlier run that went further than step %llu: that run was continued or begun "
                 "anew before it",
                 parent, entry->name, (unsigned long long)newest);
    return ZERO_OK;
}

/* Removes checkpoints beyond `keep`: first those of later steps than the newest, then the oldest. A failure is only a
 * warning: the new checkpoint is complete. */
static void remove_oldest(const char *parent, uint64_t newest, int keep)
{
    zero_listing_t listing = {0};
    zero_status_t status = zero_listing_read(parent, &listing);
    size_t n_left = listing.n_entries, n_until = 0; /* up to the newest: entries are in the order of their steps */
    while (n_until < listing.n_entries && listing.entries[n_until].step <= newest)
        n_until++;
    for (size_t i = 0; i < listing.n_entries && n_left > (size_t)keep && status == ZERO_OK; i++) {
        const zero_listing_entry_t *entry = &listing.entries[(n_until + i) % listing.n_entries];
        if (entry->step == newest)
            continue;
        status = remove_beyond_keep(parent, entry, newest);
        n_left--;
    }
    if (status != ZERO_OK)
        zero_log(ZERO_LOG_WARNING, "more than %d checkpoints stay in '%s'", keep, parent);
    free(listing.entries);
}

zero_status_t zero_checkpoints_commit(const char *parent, uint64_t step, const char *temporary)
{
    char name[ZERO_STEP_NAME_BYTES], *final = NULL;
    zero_step_name(name, "", step);
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
    remove_oldest(parent, step, keep);
}

zero_status_t zero_checkpoints_clear(const char *parent, uint64_t step)
{
    zero_listing_t listing = {0};
    char *latest = NULL;
    struct stat info;
    if (stat(parent, &info) != 0 && errno == ENOENT)
        return ZERO_OK;
    zero_status_t status = zero_listing_read(parent, &listing);
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
