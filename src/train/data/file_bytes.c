/* file_bytes.c - see file_bytes.h. */
#include "train/data/file_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/report/report.h"

/* Returns the likeliest reason why there is no file at `path`. */
static const char *missing_hint(const char *path)
{
    return path[0] == '~'         ? "; ~ is the shell's: write the path in full"
           : strpbrk(path, "*?[") ? "; patterns are the shell's: name the files, with commas between them"
           : path[0] != '/'       ? ", seen from where zerotrain was started"
                                  : "";
}

/* O_NONBLOCK: opening a pipe must not wait for a writer. */
zero_status_t file_bytes_open(const char *path, int *fd, uint64_t *n_bytes)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return report_error(ZERO_ERROR_USAGE, "cannot read data file '%s': %s%s", path, strerror(errno),
                            errno == ENOENT ? missing_hint(path) : "");
    zero_status_t status = ZERO_OK;
    struct stat info;
    if (fstat(*fd, &info) != 0)
        status = report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s' is a directory: name the files in it", path);
    else if (!S_ISREG(info.st_mode))
        status = report_error(ZERO_ERROR_USAGE, "data file '%s' is not a regular file: it must be one", path);
    else if (info.st_size == 0)
        status = report_error(ZERO_ERROR_FORMAT, "data file '%s' is empty", path);
    if (status == ZERO_OK) {
        *n_bytes = (uint64_t)info.st_size;
    } else {
        close(*fd);
        *fd = -1;
    }
    return status;
}

#define FILE_ENDS (-1) /* in place of an errno: the file has fewer bytes */

int file_bytes_read(int fd, uint64_t offset, void *out, size_t n_bytes)
{
    for (size_t n_done = 0; n_done < n_bytes;) {
        ssize_t n = pread(fd, (char *)out + n_done, n_bytes - n_done, (off_t)(offset + n_done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? FILE_ENDS : errno;
        n_done += (size_t)n;
    }
    return 0;
}

const char *file_bytes_error_text(int error)
{
    return error == FILE_ENDS ? "it was truncated while in use" : strerror(error);
}

zero_status_t file_bytes_fail(const char *path, int error)
{
    return report_error(ZERO_ERROR_IO, "cannot read data file '%s': %s", path, file_bytes_error_text(error));
}

static zero_status_t read_into_memory(const char *path, int fd, uint64_t n_bytes, unsigned char **data)
{
    if (n_bytes > PTRDIFF_MAX)
        return report_error(ZERO_ERROR_OVERFLOW, "data file '%s' is larger than the address space", path);
    *data = malloc((size_t)n_bytes);
    if (!*data)
        return report_rank_error(ZERO_ERROR_MEMORY, "out of memory: '%s' takes %" PRIu64 " bytes", path, n_bytes);
    int error = file_bytes_read(fd, 0, *data, (size_t)n_bytes);
    if (error == 0)
        return ZERO_OK;
    free(*data);
    return file_bytes_fail(path, error);
}

zero_status_t file_bytes_read_whole(const char *path, unsigned char **data, size_t *n_bytes)
{
    int fd;
    uint64_t size = 0;
    ZERO_TRY(file_bytes_open(path, &fd, &size));
    zero_status_t status = read_into_memory(path, fd, size, data);
    close(fd);
    *n_bytes = (size_t)size;
    return status;
}

bool path_ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), of_ending = strlen(ending);
    return length > of_ending && strcmp(path + length - of_ending, ending) == 0;
}

bool path_is_file(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISREG(info.st_mode);
}
