/* report.h - what zerotrain says on stderr, and how it fails.
 *
 * Lines begin "zerotrain: ". What all ranks find alike (a bad configuration, a plan that fits nowhere) is said once; a
 * rank that has something of its own to say (a file it alone cannot read) speaks for itself and gives its number. Who
 * found what is known where the ranks meet, in report_agree. Until then, while a run is set up, errors are held back;
 * none is lost by that: what no meeting says is said by its rank alone, after two seconds at most.
 */
#ifndef ZEROTRAIN_REPORT_H
#define ZEROTRAIN_REPORT_H

#include "zero.h"

/* Also routes libzero's log through the same voice. Before it is called this is rank 0 of 1. May be called again, when
 * more is known: what is held back stays for report_agree. */
void report_init(int rank, int world_size);
/* On: error lines, libzero's too, are held back for report_agree. Off, as it is at first: they are said at once, but
 * for report_error's on ranks other than 0. What is held when this is called is said. */
void report_hold_errors(bool on);
/* Says what is held back as this rank's own: before the program ends, and where ranks cannot meet. */
void report_flush(void);
/* Whether this is the rank that speaks for all: rank 0. It alone prints results to stdout. */
bool report_is_speaker(void);
/* A line of progress, from rank 0 alone. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One error line that other ranks are likely to have, too; what differs in numbers, or between lines of
 * one format, is of one kind. Returns status. */
zero_status_t report_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One error line of this rank's own, with its number. Returns status. */
zero_status_t report_rank_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes all ranks take the same way after what one of them may fail alone, such as opening a file that one host lacks:
 * ZERO_OK where `mine` is that on every rank, else the status of the lowest rank that failed itself, on all ranks, so
 * that they end with one exit code. Says what the ranks hold back, each line once: without numbers of ranks what all
 * found alike, else with those of the ranks that did, and of lines of one kind the lowest rank's. [collective] */
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
