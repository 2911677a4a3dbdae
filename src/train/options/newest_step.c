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

/* Returns the step whose directory in `listing` was written last, of those that have a manifest. */
static int64_t last_written(DIR *listing)
{
    struct timespec newest = {0};
    struct stat info;
    int64_t last = 0;
    char manifest[NEWEST_STEP_BYTES + 16];
    for (struct dirent *entry; (entry = readdir(listing));) {
        int64_t step = step_of(entry->d_name);
        snprintf(manifest, sizeof manifest, "%.31s/manifest.json", entry->d_name);
        if (step == 0 || fstatat(dirfd(listing), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            faccessat(dirfd(listing), manifest, F_OK, 0) != 0)
            continue;
        const struct timespec written = info.st_mtim;
        bool is_later = written.tv_sec != newest.tv_sec     ? written.tv_sec > newest.tv_sec
                        : written.tv_nsec != newest.tv_nsec ? written.tv_nsec > newest.tv_nsec
                                                            : step > last;
        if (last == 0 || is_later) {
            newest = written;
            last = step;
        }
    }
    return last;
}

int64_t newest_step(const char *directory)
{
    char latest[OPTIONS_MAX_PATH + 16], name[NEWEST_STEP_BYTES] = "";
    struct stat info;
    snprintf(latest, sizeof latest, "%s/latest", directory);
    if (!directory[0])
        return 0;
    if (lstat(latest, &info) == 0) {
        int64_t step = readlink(latest, name, sizeof name - 1) > 0 ? step_of(name) : 0;
        return step > 0 ? step : INT64_MAX;
    }
    DIR *listing = errno == ENOENT ? opendir(directory) : NULL;
    int64_t step = listing ? last_written(listing) : 0;
    if (listing)
        closedir(listing);
    return step;
}
