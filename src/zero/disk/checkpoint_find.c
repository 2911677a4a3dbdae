/* checkpoint_find.c - which checkpoints a directory has, and which of them a user means. See checkpoint_directory.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/disk/checkpoint_directory.h"
#include "zero/disk/checkpoint_listing.h"
#include "base/files.h"
#include "base/log.h"
#include "zero/disk/manifest.h"

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
    } else if (error != ENOENT) {
        status = zero_fail(ZERO_ERROR_FORMAT, "'%s' is not a link to a checkpoint: name one instead", link);
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
