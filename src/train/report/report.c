/* report.c - see report.h. Lines are report_line.c's, those that are held back report_held.c's; the ranks meet in
 * report_agree.c. */
#include "train/report/report.h"

#include <stdarg.h>
#include <stdio.h>

#include "train/report/report_held.h"
#include "train/report/report_line.h"

static bool holds_errors; /* report_hold_errors */

void report_flush(void)
{
    char prefix[REPORT_PREFIX_BYTES] = "";
    if (report_me.n_ranks > 1)
        line_name_me(prefix);
    held_print(prefix);
}

void report_hold_errors(bool on)
{
    report_flush();
    holds_errors = on;
}

/* ---- reporting ---- */

static void on_library_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)rank;
    if (level == ZERO_LOG_ERROR && report_me.is_meeting)
        return;
    if (level == ZERO_LOG_ERROR && holds_errors)
        held_add(line, line);
    else
        line_write(true, line);
}

void report_init(int rank, int world_size)
{
    report_me.rank = rank;
    report_me.n_ranks = world_size;
    zero_log_set(ZERO_LOG_INFO, on_library_line, NULL);
}

void report_set_host(const char *host)
{
    snprintf(report_me.host, sizeof report_me.host, " on %s", host);
}

bool report_is_speaker(void)
{
    return report_me.rank == 0;
}

void report(const char *format, ...)
{
    if (!report_is_speaker())
        return;
    char message[REPORT_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    line_write(false, message);
}

zero_status_t report_error(zero_status_t status, const char *format, ...)
{
    char message[REPORT_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (holds_errors || !report_is_speaker())
        held_add(format, message);
    else
        line_write(false, message);
    return status;
}

zero_status_t report_rank_error(zero_status_t status, const char *format, ...)
{
    char message[REPORT_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (holds_errors)
        held_add(message, message);
    else
        line_write(report_me.n_ranks > 1, message);
    return status;
}

int report_exit_code(zero_status_t status)
{
    switch (status) {
    case ZERO_OK:
        return 0;
    case ZERO_ERROR_USAGE:
        return 2;
    default:
        return 1;
    }
}
