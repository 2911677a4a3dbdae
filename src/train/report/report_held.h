/* report_held.h - error lines that are held back until the ranks meet. For report.h.
 *
 * While a run is set up, most errors are found by all ranks. So a line is held back until the ranks meet in
 * report_agree, which prints it once, with the ranks that found it. A held line is never lost: this rank prints it by
 * itself if the ranks cannot meet, when main ends, when a signal ends the process, and after five seconds in any case,
 * since the wait for a peer may be long.
 */
#ifndef ZEROTRAIN_REPORT_HELD_H
#define ZEROTRAIN_REPORT_HELD_H

#include <stdbool.h>
#include <stdint.h>

/* Holds a line back. kind: the text that messages of one kind have in common, apart from numbers. */
void held_add(const char *kind, const char *message);
/* Returns whether any line is held, printed or not. */
bool held_is_any(void);
/* Returns hashes of the lines that have not been printed: of their kinds, and of their texts; 0 if there is none. They
 * are equal on ranks that found the same. */
void held_hash(uint64_t *kind, uint64_t *text);
/* Prints the held lines with the prefix `prefix`. */
void held_print(const char *prefix);
void held_forget(void);

#endif
