/* report_line.h - one line on stderr, and the rank whose lines these are. For report.h.
 *
 * A line is composed in memory and written at once, so that lines of several ranks do not mix. Control characters,
 * which may come from file names and values that are quoted, become '?': a message is always one line.
 */
#ifndef ZEROTRAIN_REPORT_LINE_H
#define ZEROTRAIN_REPORT_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* Enough for two paths of the greatest length and the words around them. */
#define REPORT_LINE_BYTES 10240
#define REPORT_PREFIX_BYTES 160
#define REPORT_FULL_LINE_BYTES                                                                                         \
    (REPORT_LINE_BYTES + 2 * REPORT_PREFIX_BYTES) /* a message between prefix and newline                              \
                                                   */
#define REPORT_SEPARATOR ": "

/* This rank. */
typedef struct report_me {
    int rank, n_ranks;
    char host[REPORT_PREFIX_BYTES / 2]; /* " on node2", or empty */
    bool is_meeting;                    /* in report_agree, with an error of this rank's own */
} report_me_t;
extern report_me_t report_me;

/* Composes a line and returns its length with the newline. prefix: "rank 2: ", or empty. A message that fills
 * REPORT_LINE_BYTES was cut, and gets "...". */
size_t line_compose(const char *prefix, const char *message, char line[REPORT_FULL_LINE_BYTES]);
/* Writes the prefix of this rank's own lines. */
void line_name_me(char prefix[REPORT_PREFIX_BYTES]);
/* Prints a line, with this rank's prefix or none. */
void line_write(bool with_rank, const char *message);

#endif
