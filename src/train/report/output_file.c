/* output_file.c - see output_file.h. */
#include "train/report/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system.h"
#include "train/report/report.h"

static zero_status_t fail(const output_kind_t *kind, const char *path, const char *why)
{
    return report_error(ZERO_ERROR_IO, "%s: cannot write '%s': %s", kind->setting, path, why);
}

/* Returns stdout or stderr if this is the same file and open for writing; else -1. */
static int standard_stream(const struct stat *info)
{
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat stream;
        int flags = fcntl(fd, F_GETFL);
        if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && fstat(fd, &stream) == 0 && stream.st_dev == info->st_dev &&
            stream.st_ino == info->st_ino)
            return fd;
    }
    return -1;
}

static zero_status_t check_type(const output_kind_t *kind, const char *path, const struct stat *info)
{
    const char *what = S_ISDIR(info->st_mode)    ? "a directory"
                       : S_ISBLK(info->st_mode)  ? "a block device"
                       : S_ISSOCK(info->st_mode) ? "a socket"
                                                 : NULL;
    if (!what)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "%s: '%s' is %s: name a file", kind->setting, path, what);
}

/* Checks what a regular file, open for reading, begins with. */
static zero_status_t check_content(const output_kind_t *kind, const char *path, int fd)
{
    char head[OUTPUT_FILE_HEAD];
    size_t n_bytes = 0;
    while (n_bytes < sizeof head) {
        ssize_t n = pread(fd, head + n_bytes, sizeof head - n_bytes, (off_t)n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(kind, path, strerror(errno));
        if (n == 0)
            break;
        n_bytes += (size_t)n;
    }
    if (n_bytes == 0 || kind->begins_so(head, n_bytes))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "%s: '%s' exists and does not begin like %s, so it is left as it is: name another file",
                        kind->setting, path, kind->name);
}

/* Locks the regular file until it is closed: shared to check, so that checks do not refuse each other; exclusive to
 * write. Fails if another run writes it. On file systems without locks none is locked. */
static zero_status_t lock(const output_kind_t *kind, const char *path, int fd, int operation)
{
    if (ZERO_RETRY(flock(fd, operation | LOCK_NB)) == 0 || errno != EWOULDBLOCK)
        return ZERO_OK;
    return fail(kind, path, "another run is writing it; end that first, or name another file");
}

zero_status_t output_file_check(const output_kind_t *kind, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? ZERO_OK : fail(kind, path, strerror(errno));
    if (standard_stream(&info) >= 0)
        return ZERO_OK;
    ZERO_TRY(check_type(kind, path, &info));
    if (!S_ISREG(info.st_mode))
        return ZERO_OK;
    int fd = ZERO_RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return fail(kind, path, strerror(errno));
    zero_status_t status = check_content(kind, path, fd);
    if (status == ZERO_OK)
        status = lock(kind, path, fd, LOCK_SH);
    close(fd);
    return status;
}

bool output_file_can_be_truncated(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && standard_stream(&info) < 0;
}

/* Opens a regular file also for reading, so that it can be checked; a pipe or terminal must not be. O_NONBLOCK: do not
 * wait for a reader. */
static int open_for_writing(const char *path, const struct stat *existing)
{
    int access_mode = !existing || S_ISREG(existing->st_mode) ? O_RDWR | O_CREAT : O_WRONLY;
    return ZERO_RETRY(open(path, access_mode | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
}

/* Checks the file that is now open, which may be another than was there before. */
static zero_status_t check_opened(const output_kind_t *kind, const char *path, int fd)
{
    struct stat info;
    int flags = fcntl(fd, F_GETFL);
    if (fstat(fd, &info) != 0 || flags < 0)
        return fail(kind, path, strerror(errno));
    ZERO_TRY(check_type(kind, path, &info));
    if (S_ISREG(info.st_mode)) {
        if ((flags & O_ACCMODE) != O_RDWR)
            return fail(kind, path, "it has become another file");
        ZERO_TRY(check_content(kind, path, fd));
        ZERO_TRY(lock(kind, path, fd, LOCK_EX));
    }
    if (fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) /* from here on, wait for a slow reader */
        return fail(kind, path, strerror(errno));
    return ZERO_OK;
}

static zero_status_t open_path(const output_kind_t *kind, const char *path, const struct stat *existing, int *fd)
{
    *fd = open_for_writing(path, existing);
    if (*fd < 0 && errno == ENXIO)
        return fail(kind, path, "this pipe has no reader: start one first, or name a file");
    if (*fd < 0)
        return fail(kind, path, strerror(errno));
    zero_status_t status = check_opened(kind, path, *fd);
    if (status != ZERO_OK)
        close(*fd);
    return status;
}

zero_status_t output_file_open(const output_kind_t *kind, const char *path, FILE **file)
{
    struct stat info;
    bool is_there = stat(path, &info) == 0;
    int fd, stream = is_there ? standard_stream(&info) : -1;
    if (is_there && stream < 0)
        ZERO_TRY(check_type(kind, path, &info));
    if (stream < 0)
        ZERO_TRY(open_path(kind, path, is_there ? &info : NULL, &fd));
    else if ((fd = fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) < 0)
        return fail(kind, path, strerror(errno));
    if (!output_file_can_be_truncated(path))
        signal(SIGPIPE, SIG_IGN); /* writing to a closed pipe then fails with a log line */
    *file = fdopen(fd, "w");
    if (*file)
        return ZERO_OK;
    int error = errno;
    close(fd);
    return fail(kind, path, strerror(error));
}

zero_status_t output_file_empty(const output_kind_t *kind, const char *path, FILE *file)
{
    if (output_file_can_be_truncated(path) && ZERO_RETRY(ftruncate(fileno(file), 0)) != 0)
        return fail(kind, path, strerror(errno));
    return ZERO_OK;
}

/* ---- log file ---- */

struct log_file {
    const char *setting;
    char *path;
    FILE *file; /* written to by its descriptor alone: stdio would forget what a full disk did not take */
    bool can_truncate;
    bool has_failed;
    FILE *rows; /* into text */
    char *text; /* rows that are not written yet */
    size_t n_bytes, n_written;
};

zero_status_t log_file_open(const char *setting, const char *path, FILE *file, bool can_truncate, log_file_t **log)
{
    log_file_t *opened = calloc(1, sizeof *opened);
    if (opened) {
        *opened = (log_file_t){.setting = setting, .file = file, .can_truncate = can_truncate};
        opened->path = strdup(path);
        opened->rows = open_memstream(&opened->text, &opened->n_bytes);
    }
    if (opened && opened->path && opened->rows) {
        *log = opened;
        return ZERO_OK;
    }
    if (opened)
        log_file_close(opened);
    else
        fclose(file);
    return report_error(ZERO_ERROR_MEMORY, "%s: out of memory", setting);
}

FILE *log_file_row(log_file_t *log)
{
    return log->rows;
}

/* Removes what the attempt to write has left of a row. If that fails, the next attempt goes on behind it. */
static void take_back(log_file_t *log)
{
    off_t end = log->can_truncate ? lseek(fileno(log->file), 0, SEEK_END) : -1;
    if (log->n_written > 0 && end >= (off_t)log->n_written &&
        ZERO_RETRY(ftruncate(fileno(log->file), end - (off_t)log->n_written)) == 0)
        log->n_written = 0;
}

/* Writes all that is left. Returns 0, or why it could not. */
static int write_rest(log_file_t *log)
{
    while (log->n_written < log->n_bytes) {
        ssize_t n = write(fileno(log->file), log->text + log->n_written, log->n_bytes - log->n_written);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int error = errno;
            take_back(log);
            return error;
        }
        log->n_written += (size_t)n;
    }
    log->n_written = 0;
    rewind(log->rows); /* the next row is the first again */
    return 0;
}

zero_status_t log_file_write(log_file_t *log)
{
    int error = fflush(log->rows) != 0 || ferror(log->rows) ? ENOMEM : write_rest(log);
    if (error == 0)
        return ZERO_OK;
    if (!log->has_failed)
        report_error(ZERO_ERROR_IO, "%s: writing '%s' failed: %s", log->setting, log->path, strerror(error));
    log->has_failed = true;
    return ZERO_ERROR_IO;
}

void log_file_close(log_file_t *log)
{
    if (!log)
        return;
    if (log->rows && fflush(log->rows) == 0)
        (void)write_rest(log); /* has been reported */
    if (log->rows)
        fclose(log->rows);
    fclose(log->file);
    free(log->text);
    free(log->path);
    free(log);
}
