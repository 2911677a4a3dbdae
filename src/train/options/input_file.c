/* input_file.c - see input_file.h. */
#include "train/options/input_file.h"

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

#include "base/status.h"
#include "base/system.h"
#include "train/options/options.h"
#include "train/report/report.h"

static zero_status_t fail(const char *path, input_words_t words, const char *why)
{
    return report_error(ZERO_ERROR_USAGE, "%scannot read '%s': %s%s", words.before, path, why, words.after);
}

static zero_status_t check_kind(const char *path, input_words_t words, const struct stat *info, size_t most_bytes)
{
    if (S_ISDIR(info->st_mode))
        return fail(path, words, "it is a directory");
    if (!S_ISREG(info->st_mode))
        return fail(path, words, "it is not a regular file");
    if ((uint64_t)info->st_size > most_bytes)
        return report_error(ZERO_ERROR_USAGE, "%scannot read '%s': it has more than %zu bytes%s", words.before, path,
                            most_bytes, words.after);
    return ZERO_OK;
}

/* Reads `size` bytes, or fewer if the file has been cut off meanwhile. What has been appended is left out. */
static zero_status_t read_all(int fd, const char *path, input_words_t words, size_t size, char *text, size_t *n_bytes)
{
    size_t n_read = 0;
    while (n_read < size) {
        ssize_t n = read(fd, text + n_read, size - n_read);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(path, words, strerror(errno));
        if (n == 0)
            break;
        n_read += (size_t)n;
    }
    text[n_read] = 0;
    *n_bytes = n_read;
    return ZERO_OK;
}

static zero_status_t read_open(int fd, const char *path, size_t most_bytes, input_words_t words, char **text,
                               size_t *n_bytes)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return fail(path, words, strerror(errno));
    ZERO_TRY(check_kind(path, words, &info, most_bytes));
    char *buffer = malloc((size_t)info.st_size + 1);
    if (!buffer)
        return report_error(ZERO_ERROR_MEMORY, "'%s': out of memory", path);
    zero_status_t status = read_all(fd, path, words, (size_t)info.st_size, buffer, n_bytes);
    if (status == ZERO_OK)
        *text = buffer;
    else
        free(buffer);
    return status;
}

zero_status_t input_file_read(const char *path, size_t most_bytes, input_words_t words, char **text, size_t *n_bytes)
{
    /* O_NONBLOCK: opening a pipe must not wait for a writer. */
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return fail(path, words, strerror(errno));
    zero_status_t status = read_open(fd, path, most_bytes, words, text, n_bytes);
    close(fd);
    return status;
}

bool input_file_is_there(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* ---- newest step ---- */
/* Of the directory it trusts the names alone: zero_checkpoint_open reads the rest. */

void newest_step_name(int64_t step, char name[NEWEST_STEP_BYTES])
{
    snprintf(name, NEWEST_STEP_BYTES, "step-%08" PRId64, step);
}

/* Returns the step whose directory has this name; 0: none has. */
int64_t newest_step_named(const char *name)
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
        int64_t step = newest_step_named(entry->d_name);
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
    int64_t linked = readlinkat(dirfd(listing), "latest", name, sizeof name - 1) > 0 ? newest_step_named(name) : 0;
    const bool is_there = linked > 0 && fstatat(dirfd(listing), name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    const int64_t step = is_linked && linked == 0 ? INT64_MAX : is_there ? linked : highest_step(listing);
    closedir(listing);
    return step;
}

void best_directory(const char *directory, char path[BEST_MAX_PATH])
{
    snprintf(path, BEST_MAX_PATH, "%s/best", directory);
}

int64_t newest_step_of_run(const char *directory, bool *is_best)
{
    char best[BEST_MAX_PATH];
    const int64_t step = newest_step(directory);
    best_directory(directory, best);
    const int64_t best_step = step == 0 && directory[0] ? newest_step(best) : 0;
    *is_best = best_step > 0;
    return *is_best ? best_step : step;
}
