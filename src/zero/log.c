/* log.c - one line at a time to the program's log function, or to stderr. */
#include "zero/log.h"

#include <stdarg.h>
#include <stdio.h>

static struct {
    zero_log_level_t level;
    zero_log_fn fn;
    void *user;
    int rank;
} logger = {ZERO_LOG_WARNING, NULL, NULL, -1};

void zero_log_set(zero_log_level_t level, zero_log_fn fn, void *user)
{
    logger.level = level;
    logger.fn = fn;
    logger.user = user;
}

void zero_log_set_rank(int rank)
{
    logger.rank = rank;
}

static void write_line(zero_log_level_t level, const char *format, va_list args) ZERO_PRINTF(2, 0);
static void write_line(zero_log_level_t level, const char *format, va_list args)
{
    if (level > logger.level)
        return;
    char line[1024];
    vsnprintf(line, sizeof line, format, args);
    if (logger.fn)
        logger.fn(logger.user, level, logger.rank, line);
    else if (logger.rank >= 0)
        fprintf(stderr, "zero: rank %d: %s\n", logger.rank, line);
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

zero_status_t zero_refuse_null(const char *call, const char *argument)
{
    return zero_fail(ZERO_ERROR_ARGUMENT, "%s: %s is NULL", call, argument);
}

zero_status_t zero_fail_alike(zero_status_t status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (logger.rank <= 0)
        write_line(ZERO_LOG_ERROR, format, args);
    va_end(args);
    return status;
}
