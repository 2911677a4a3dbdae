/* input_file.c - see input_file.h. */
#include "train/options/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/retry.h"
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
    TRY(check_kind(path, words, &info, most_bytes));
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
