/* checkpoint_listing.c - see checkpoint_listing.h. */
#include "zero/checkpoint/checkpoint_listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/files.h"
#include "base/log.h"
#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/checkpoint/checkpoint_removal.h"
#include "zero/format/manifest.h"

#define STEP_PREFIX "step-"

void zero_step_name(char name[ZERO_STEP_NAME_BYTES], const char *prefix, uint64_t step)
{
    snprintf(name, ZERO_STEP_NAME_BYTES, "%s" STEP_PREFIX "%08" PRIu64, prefix, step);
}

bool zero_step_name_parse(const char *name, uint64_t *step)
{
    char again[ZERO_STEP_NAME_BYTES];
    if (strncmp(name, STEP_PREFIX, strlen(STEP_PREFIX)) != 0 || strlen(name) >= ZERO_STEP_NAME_BYTES)
        return false;
    *step = strtoull(name + strlen(STEP_PREFIX), NULL, 10);
    zero_step_name(again, "", *step);
    return strcmp(name, again) == 0;
}

bool zero_step_name_is_temporary(const char *name)
{
    char step_text[ZERO_STEP_NAME_BYTES];
    uint64_t step;
    size_t n_prefix = strlen(ZERO_TEMPORARY_PREFIX), n_suffix = strlen(ZERO_REPLACED_SUFFIX), n_bytes = strlen(name);
    if (strncmp(name, ZERO_TEMPORARY_PREFIX, n_prefix) != 0 || n_bytes >= ZERO_STEP_NAME_BYTES)
        return false;
    strcpy(step_text, name + n_prefix);
    n_bytes -= n_prefix;
    if (n_bytes > n_suffix && strcmp(step_text + n_bytes - n_suffix, ZERO_REPLACED_SUFFIX) == 0)
        step_text[n_bytes - n_suffix] = 0;
    return zero_step_name_parse(step_text, &step);
}

static int by_step(const void *a, const void *b)
{
    const zero_listing_entry_t *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

static zero_status_t list_one(void *user, const char *parent, int fd, const char *name)
{
    zero_listing_t *listing = user;
    uint64_t step;
    if (!zero_step_name_parse(name, &step) || !zero_checkpoint_is_there(fd, name))
        return ZERO_OK;
    zero_listing_entry_t *entries =
        zero_grow(listing->entries, listing->n_entries, &listing->capacity, sizeof *entries);
    if (!entries)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to list '%s'", parent);
    listing->entries = entries;
    zero_listing_entry_t *entry = &listing->entries[listing->n_entries++];
    *entry = (zero_listing_entry_t){.step = step};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return ZERO_OK;
}

zero_status_t zero_directory_visit(const char *parent, zero_visit_fn visit, void *user)
{
    zero_status_t status = ZERO_OK;
    DIR *directory = opendir(parent);
    if (!directory)
        return zero_fail(ZERO_ERROR_IO, "cannot read the directory '%s': %s", parent, strerror(errno));
    for (struct dirent *item; status == ZERO_OK && (item = readdir(directory)) != NULL;)
        status = visit(user, parent, dirfd(directory), item->d_name);
    closedir(directory);
    return status;
}

zero_status_t zero_listing_read(const char *parent, zero_listing_t *listing)
{
    zero_status_t status = zero_directory_visit(parent, list_one, listing);
    if (status == ZERO_OK && listing->n_entries > 0)
        qsort(listing->entries, listing->n_entries, sizeof *listing->entries, by_step);
    return status;
}

/* ---- checkpoint find ---- */
/* Which checkpoints a directory has, and which of them a user means. See checkpoint_directory.h. */

zero_status_t zero_checkpoints_list(const char *parent, size_t n_steps, uint64_t *steps)
{
    zero_listing_t listing = {0};
    struct stat info;
    memset(steps, 0, n_steps * sizeof *steps);
    if (stat(parent, &info) != 0 && errno == ENOENT)
        return ZERO_OK;
    zero_status_t status = zero_listing_read(parent, &listing);
    for (size_t i = 0; i < n_steps && i < listing.n_entries; i++)
        steps[i] = listing.entries[listing.n_entries - 1 - i].step;
    free(listing.entries);
    return status;
}

zero_status_t zero_checkpoints_path(const char *parent, uint64_t step, char **path)
{
    char name[ZERO_STEP_NAME_BYTES];
    zero_step_name(name, "", step);
    return zero_path_join(parent, name, path);
}

static bool has_manifest(const char *directory)
{
    char *path = NULL;
    if (zero_path_join(directory, ZERO_MANIFEST_NAME, &path) != ZERO_OK)
        return false;
    bool is_there = access(path, F_OK) == 0;
    free(path);
    return is_there;
}

/* Returns the name that `latest` links to; "" without such a link. */
static zero_status_t linked_name(const char *parent, char name[ZERO_STEP_NAME_BYTES])
{
    char *link = NULL;
    uint64_t step;
    name[0] = 0;
    ZERO_TRY(zero_path_join(parent, ZERO_LATEST_NAME, &link));
    ssize_t n_bytes = readlink(link, name, ZERO_STEP_NAME_BYTES - 1);
    int error = errno;
    zero_status_t status = ZERO_OK;
    if (n_bytes >= 0) {
        name[n_bytes] = 0;
        if (!zero_step_name_parse(name, &step))
            status =
                zero_fail(ZERO_ERROR_FORMAT, "'%s' does not link to a checkpoint beside it: name one instead", link);
    } else if (error == EINVAL) {
        status = zero_fail(ZERO_ERROR_FORMAT,
                           "'%s' is not a link, as in a copy whose links were followed: remove it, and the newest step "
                           "beside it is found",
                           link);
    } else if (error != ENOENT) {
        status = zero_fail(ZERO_ERROR_IO, "cannot read the link '%s': %s", link, strerror(error));
    }
    free(link);
    return status;
}

/* Returns whether the directory has something by that name. */
static bool has_entry(const char *parent, const char *name)
{
    char *path = NULL;
    struct stat info;
    if (zero_path_join(parent, name, &path) != ZERO_OK)
        return false;
    bool is_there = lstat(path, &info) == 0 || errno != ENOENT;
    free(path);
    return is_there;
}

/* Finds the checkpoint that `latest` links to. If there is no such link, as after a crash between the first checkpoint
 * and its link, or what it names is gone, takes the highest step; "" if there is neither. */
static zero_status_t latest_name(const char *parent, char name[ZERO_STEP_NAME_BYTES])
{
    zero_listing_t listing = {0};
    ZERO_TRY(linked_name(parent, name));
    if (name[0] && has_entry(parent, name))
        return ZERO_OK;
    zero_status_t status = zero_listing_read(parent, &listing);
    if (status == ZERO_OK && listing.n_entries > 0) {
        const char *highest = listing.entries[listing.n_entries - 1].name;
        if (name[0])
            zero_log(ZERO_LOG_WARNING, "'%s/" ZERO_LATEST_NAME "' links to %s, which is gone: taking %s", parent, name,
                     highest);
        memcpy(name, highest, ZERO_STEP_NAME_BYTES);
    }
    free(listing.entries);
    return status;
}

zero_status_t zero_checkpoints_find(const char *directory, char path[ZERO_MAX_PATH])
{
    char name[ZERO_STEP_NAME_BYTES] = "";
    struct stat info;
    uint64_t step;
    const char *base = strrchr(directory, '/') ? strrchr(directory, '/') + 1 : directory;
    if (stat(directory, &info) != 0)
        return zero_fail(ZERO_ERROR_USAGE, "no checkpoint in '%s': %s", directory, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return zero_fail(ZERO_ERROR_USAGE, "no checkpoint in '%s': it is not a directory", directory);
    /* A step's directory without a manifest is still the one that is meant: reading it reports what is wrong. */
    bool is_one = has_manifest(directory) || zero_step_name_parse(base, &step);
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
