/* report.c - see report.h. Lines are report.c's, those that are held back report_agree.c's; the ranks meet in
 * report_agree.c. */
#include "train/report/report.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "train/report/utf8.h"

/* ---- report line ---- */

report_me_t report_me = {.n_ranks = 1};

/* Returns whether a terminal shows the character, which text begins with: not for a control character (C0, DEL, C1) or
 * for what is not UTF-8. The replacement itself may be shown. */
static bool is_shown(uint32_t code, const char *text, size_t n_bytes)
{
    if (code == UTF8_REPLACEMENT)
        return n_bytes == 3 && memcmp(text, "\xef\xbf\xbd", 3) == 0;
    return code >= 0x20 && (code < 0x7f || code > 0x9f);
}

static void make_printable(char *text)
{
    size_t left = strlen(text), n;
    for (; left > 0; text += n, left -= n) {
        uint32_t code;
        n = utf8_read((const unsigned char *)text, left, &code);
        if (!is_shown(code, text, n))
            memset(text, '?', n);
    }
}

size_t line_compose(const char *prefix, const char *message, char line[REPORT_FULL_LINE_BYTES])
{
    snprintf(line, REPORT_LINE_BYTES + REPORT_PREFIX_BYTES + 64, "zerotrain: %s%s%s", prefix, message,
             strlen(message) == REPORT_LINE_BYTES - 1 ? "..." : "");
    make_printable(line);
    size_t length = strlen(line);
    memcpy(line + length, "\n", 2);
    return length + 1;
}

void line_name_me(char prefix[REPORT_PREFIX_BYTES])
{
    snprintf(prefix, REPORT_PREFIX_BYTES, "rank %d%s" REPORT_SEPARATOR, report_me.rank, report_me.host);
}

void line_write(bool with_rank, const char *message)
{
    char prefix[REPORT_PREFIX_BYTES] = "", line[REPORT_FULL_LINE_BYTES];
    if (with_rank)
        line_name_me(prefix);
    line_compose(prefix, message, line);
    fputs(line, stderr);
    fflush(stderr);
}

/* ---- report ---- */

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
