/* log.c - passes one line at a time to the program's log function, or to stderr.
 *
 * Many lines quote names and values from files, which could contain control sequences or newlines. So all lines are
 * escaped here: control characters and bytes that are not UTF-8 become \x1b, for example.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Room for two paths of the greatest length and the text around them. */
#define LINE_BYTES 10240
#define ESCAPE_BYTES 4
#define CUT "..."

static struct {
    zero_log_level_t level;
    zero_log_fn fn;
    void *user;
    atomic_int rank; /* a save's thread logs, too */
    char host[64];
} logger = {ZERO_LOG_WARNING, NULL, NULL, -1, ""};

static _Thread_local char last_error[LINE_BYTES];
static _Thread_local bool is_muted;

const char *zero_last_error(void)
{
    return last_error;
}

void zero_log_set(zero_log_level_t level, zero_log_fn fn, void *user)
{
    logger.level = level;
    logger.fn = fn;
    logger.user = user;
}

void zero_log_mute(bool muted)
{
    is_muted = muted;
}

void zero_log_set_rank(int rank)
{
    logger.rank = rank;
}

void zero_log_set_host(const char *host)
{
    snprintf(logger.host, sizeof logger.host, "%s", host);
}

/* Returns how many bytes the UTF-8 character at `at` has; 0 for a control character and for what is not UTF-8. */
static size_t printable_bytes(const unsigned char *at)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t
            least; /* the lowest code allowed: lower ones have a shorter form, or are the controls U+0080 to U+009F */
    } FORMS[] = {{0x80, 0x00, 0x20}, {0xe0, 0xc0, 0xa0}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    size_t n = 0;
    while (n < sizeof FORMS / sizeof FORMS[0] && (at[0] & FORMS[n].mask) != FORMS[n].lead)
        n++;
    if (n == sizeof FORMS / sizeof FORMS[0])
        return 0;
    uint32_t code = at[0] & (unsigned char)~FORMS[n].mask;
    for (size_t i = 1; i <= n; i++) {
        if ((at[i] & 0xc0) != 0x80) /* also at the end of the string */
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < FORMS[n].least || code == 0x7f || is_surrogate || code > 0x10ffff ? 0 : n + 1;
}

/* Writes `text` to `line` with escapes. If it does not fit, it is truncated and ends with CUT. */
static void escape(const char *text, char line[LINE_BYTES])
{
    char *to = line, *const last = line + LINE_BYTES - ESCAPE_BYTES - sizeof CUT;
    for (const char *from = text; *from;) {
        size_t n = printable_bytes((const unsigned char *)from);
        if (to > last) {
            memcpy(to, CUT, sizeof CUT);
            return;
        }
        if (n > 0)
            memcpy(to, from, n);
        else
            snprintf(to, ESCAPE_BYTES + 1, "\\x%02x", (unsigned)(unsigned char)*from);
        to += n > 0 ? n : ESCAPE_BYTES;
        from += n > 0 ? n : 1;
    }
    *to = 0;
}

/* Makes a line. Error lines are also this thread's last error. */
static void make_line(zero_log_level_t level, char line[LINE_BYTES], const char *format, va_list args)
    ZERO_PRINTF(3, 0);
static void make_line(zero_log_level_t level, char line[LINE_BYTES], const char *format, va_list args)
{
    char text[LINE_BYTES];
    vsnprintf(text, sizeof text, format, args);
    escape(text, line);
    if (level == ZERO_LOG_ERROR)
        memcpy(last_error, line, strlen(line) + 1);
}

static void write_line(zero_log_level_t level, const char *format, va_list args) ZERO_PRINTF(2, 0);
static void write_line(zero_log_level_t level, const char *format, va_list args)
{
    if (level > logger.level || is_muted)
        return;
    char line[LINE_BYTES];
    make_line(level, line, format, args);
    const int rank = logger.rank;
    if (logger.fn)
        logger.fn(logger.user, level, rank, line);
    else if (rank >= 0)
        fprintf(stderr, "zero: rank %d%s%s: %s\n", rank, logger.host[0] ? " on " : "", logger.host, line);
    else
        fprintf(stderr, "zero: %s\n", line);
}

void zero_log(zero_log_level_t level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
}

zero_status_t zero_fail(zero_status_t status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(ZERO_LOG_ERROR, format, args);
    va_end(args);
    return status;
}

void zero_note_error(const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    make_line(ZERO_LOG_ERROR, line, format, args);
    va_end(args);
}

zero_status_t zero_refuse_null(const char *call, const char *argument)
{
    return zero_fail(ZERO_ERROR_ARGUMENT, "%s: %s is NULL", call, argument);
}

void zero_log_assert(const char *file, int line, const char *condition)
{
    zero_log(ZERO_LOG_ERROR, "%s:%d: %s does not hold: this is a defect of libzero, please report it", file, line,
             condition);
}

zero_status_t zero_fail_collective(zero_status_t status, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    if (logger.rank <= 0)
        write_line(ZERO_LOG_ERROR, format, args);
    else
        make_line(ZERO_LOG_ERROR, line, format, args);
    va_end(args);
    return status;
}
