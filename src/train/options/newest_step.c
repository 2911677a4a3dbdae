/* newest_step.c - see newest_step.h. Of the directory it trusts the names alone: zero_checkpoint_open reads the rest.
 */
#include "train/options/newest_step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/options/options.h"

void newest_step_name(int64_t step, char name[NEWEST_STEP_BYTES])
{
    snprintf(name, NEWEST_STEP_BYTES, "step-%08" PRId64, step);
}

/* Returns the step whose directory has this name; 0: none has. */
static int64_t step_of(const char *name)
{
    char again[NEWEST_STEP_BYTES];
    if (strncmp(name, "step-", strlen("step-")) != 0)
        return 0;
    int64_t step = strtoll(name + strlen("step-"), NULL, 10);
    newest_step_name(step, again);
    return step > 0 && step < INT64_MAX && strcmp(name, again) == 0 ? step : 0;
}

/* Returns the highest step in `listing` whose directory has a manifest. */
static int64_t highest_step(DIR *listing)
{
    int64_t highest = 0;
    char manifest[NEWEST_STEP_BYTES + 16];
    for (struct dirent *entry; (entry = readdir(listing));) {
        int64_t step = step_of(entry->d_name);
        snprintf(manifest, sizeof manifest, "%.31s/manifest.json", entry->d_name);
        if (step > highest && faccessat(dirfd(listing), manifest, F_OK, 0) == 0)
            highest = step;
    }
    return highest;
}

int64_t newest_step(const char *directory)
{
    char name[NEWEST_STEP_BYTES] = "";
    struct stat info;
    DIR *listing = directory[0] ? opendir(directory) : NULL;
    if (!listing)
        return 0;
    const bool is_linked = fstatat(dirfd(listing), "latest", &info, AT_SYMLINK_NOFOLLOW) == 0;
    int64_t linked = readlinkat(dirfd(listing), "latest", name, sizeof name - 1) > 0 ? step_of(name) : 0;
    const bool is_there = linked > 0 && fstatat(dirfd(listing), name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    int64_t step = is_linked && linked == 0 ? INT64_MAX : is_there ? linked : highest_step(listing);
    closedir(listing);
    return step > 0 ? step : linked;
}
