/* log_file.c - see log_file.h. */
#include "train/report/log_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/retry.h"
#include "train/report/report.h"

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
