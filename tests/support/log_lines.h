/* log_lines.h - counts libzero's log lines and keeps the last one, for tests that expect one line and its words. */
#ifndef ZERO_TEST_LOG_LINES_H
#define ZERO_TEST_LOG_LINES_H

#include <stdio.h>

#include "zero.h"

static int n_lines;
static char last_line[1 << 14];

static inline void on_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank;
    snprintf(last_line, sizeof last_line, "%s", line);
    n_lines++;
}

/* Counts warnings and errors from here on. */
static inline void listen_to_log(void)
{
    n_lines = 0;
    last_line[0] = 0;
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
}

#endif
