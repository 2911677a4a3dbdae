/* report.h - what zerotrain says on stderr, and how it fails.
 *
 * Lines begin "zerotrain: ". Rank 0 speaks for all where every rank sees the same (a bad configuration, progress); a
 * rank that has something of its own to say (a file it alone cannot read) speaks for itself and gives its number.
 */
#ifndef ZEROTRAIN_REPORT_H
#define ZEROTRAIN_REPORT_H

#include "zero.h"

/* Also routes libzero's log through the same voice. Before it is called this is rank 0 of 1. May be called again, when
 * more is known: what report_error kept back stays for report_agree. */
void report_init(int rank, int world_size);
/* Whether this is the rank that speaks for all: rank 0. It alone prints results to stdout. */
bool report_is_speaker(void);
/* A line of progress, from rank 0 alone. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One error line that is the same on every rank: rank 0 prints it. Returns status. */
zero_status_t report_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One error line of this rank's own, with its number. Returns status. */
zero_status_t report_rank_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* zero_comm_agree for what every rank does alike but may fail on one alone, such as opening a file that one host lacks:
 * where rank 0 was fine, the lowest rank that failed now says what report_error kept back there. [collective] */
zero_status_t report_agree(zero_comm_t *comm, zero_status_t mine);

/* 2 for ZERO_ERROR_USAGE, 0 for ZERO_OK, 1 for the rest: zerotrain's exit codes. */
int report_exit_code(zero_status_t status);

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        zero_status_t try_status = (call);                                                                             \
        if (try_status != ZERO_OK)                                                                                     \
            return try_status;                                                                                         \
    } while (0)

#endif
