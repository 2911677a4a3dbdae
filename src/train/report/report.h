/* report.h - what zerotrain prints on stderr, and how it fails.
 *
 * Lines begin "zerotrain: ". An error that all ranks find (a bad configuration, a plan that does not fit) is printed
 * once; one that a rank finds alone (a file that only it cannot read) has the rank's number. Which ranks found what is
 * known only in report_agree, where they all meet. Until then, while a run is set up, errors are held back. None is
 * lost: what report_agree has not printed, its rank prints alone after five seconds at most.
 */
#ifndef ZEROTRAIN_REPORT_H
#define ZEROTRAIN_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "zero.h"

/* ---- report line ---- */
/* One line on stderr, and the rank whose lines these are (report_line.c).
 *
 * A line is composed in memory and written at once, so that lines of several ranks do not mix. Control characters,
 * which may come from file names and values that are quoted, become '?': a message is always one line. */

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

/* ---- report held ---- */
/* Error lines that are held back until the ranks meet (report_line.c).
 *
 * While a run is set up, most errors are found by all ranks. So a line is held back until the ranks meet in
 * report_agree, which prints it once, with the ranks that found it. A held line is never lost: this rank prints it by
 * itself if the ranks cannot meet, when main ends, when a signal ends the process, and after five seconds in any case,
 * since the wait for a peer may be long. */

/* Holds a line back. kind: the text that messages of one kind have in common, without the numbers. */
void held_add(const char *kind, const char *message);
/* Prints the lines that have not been printed. For signal handlers. */
void held_write(void);
/* Returns whether any line is held, printed or not. */
bool held_is_any(void);
/* Returns hashes of the lines that have not been printed: of their kinds, and of their texts; 0 if there is none. They
 * are equal on ranks that found the same. */
void held_hash(uint64_t *kind, uint64_t *text);
/* Prints the held lines with the prefix `prefix`. */
void held_print(const char *prefix);
void held_forget(void);

/* ---- report ---- */

/* Sets this rank's number, and sends libzero's log here too. Before the first call this is rank 0 of 1. May be called
 * again when more is known; what is held back stays held. */
void report_init(int rank, int world_size);
/* Sets the host that this rank's own lines name after its number; for jobs of several hosts. */
void report_set_host(const char *host);
/* If on, holds back error lines, libzero's too, for report_agree. If off, as at first, they are printed at once, except
 * those of report_error on ranks other than 0. Prints what is held back when it is called. */
void report_hold_errors(bool on);
/* Prints what is held back as this rank's own: before the program ends, and when the ranks cannot meet. */
void report_flush(void);
/* Returns whether this rank speaks for all: rank 0, which alone prints results to stdout. */
bool report_is_speaker(void);
/* Prints a line of progress, on rank 0 only. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports an error that other ranks probably find too. Lines of one format are of one kind, whatever their values.
 * Returns status. */
zero_status_t report_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Reports an error of this rank alone, with its number. Returns status. */
zero_status_t report_rank_error(zero_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes all ranks agree after a step that one of them may fail alone, such as opening a file that one host lacks.
 * Returns ZERO_OK if `mine` is ZERO_OK on every rank; else, on all ranks, the status of the lowest rank that failed
 * itself, so that they end with one exit code. Prints what the ranks hold back, each line once: without rank numbers if
 * all found the same, else with those of the ranks that did. Of lines of one kind it prints the lowest rank's.
 * [collective] */
zero_status_t report_agree(zero_comm_t *comm, zero_status_t mine);

/* Returns zerotrain's exit code: 0 for ZERO_OK, 2 for ZERO_ERROR_USAGE, 1 for the rest. */
int report_exit_code(zero_status_t status);

#endif
