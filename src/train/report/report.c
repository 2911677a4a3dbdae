/* report.c - see report.h. Lines are written, and held back, in report_line.c; the ranks meet here. */
#include "train/report/report.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/report/utf8.h"

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

/* ---- report agree ---- */

/* What a rank contributes: doubles, which are summed over ranks. A hash is two halves, and 0 if nothing is held. */
enum { WORD_STATUS, WORD_KIND, WORD_TEXT = WORD_KIND + 2, N_WORDS = WORD_TEXT + 2 };

static void put_hash(uint64_t hash, double words[2])
{
    words[0] = (double)(hash & UINT32_MAX);
    words[1] = (double)(hash >> 32);
}

static void describe_held(double words[N_WORDS])
{
    uint64_t kind, text;
    held_hash(&kind, &text);
    put_hash(kind, words + WORD_KIND);
    put_hash(text, words + WORD_TEXT);
}

/* word: WORD_KIND or WORD_TEXT */
static bool holds_same(const double *words, int word, int a, int b)
{
    const double *of_a = words + a * N_WORDS + word, *of_b = words + b * N_WORDS + word;
    return of_a[0] == of_b[0] && of_a[1] == of_b[1];
}

/* Names the ranks that found what this rank found: "ranks 0-2, 5: ", "rank 2: "; empty if all did. If the values in
 * their lines differ, this rank's line is printed for all: "ranks 0-2 (here rank 0): ". With several hosts this rank's
 * is named: "rank 2 on node2: ", "ranks 2-3 (here rank 2 on node2): ". */
static void name_ranks(const double *words, char prefix[512])
{
    char list[300] = "", mine[REPORT_PREFIX_BYTES] = "";
    int n_named = 0;
    bool is_same = true;
    for (int first = 0; first < report_me.n_ranks; first++) {
        int last = first - 1;
        while (last + 1 < report_me.n_ranks && holds_same(words, WORD_KIND, last + 1, report_me.rank))
            is_same &= holds_same(words, WORD_TEXT, ++last, report_me.rank);
        if (last < first)
            continue;
        size_t length = strlen(list);
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%d", length > 0 ? ", " : "", first);
        if (last > first && length < sizeof list) /* what does not fit is cut off */
            snprintf(list + length, sizeof list - length, "-%d", last);
        n_named += last - first + 1;
        first = last;
    }
    if (n_named == 1)
        snprintf(mine, sizeof mine, "%s", report_me.host);
    else if (!is_same || report_me.host[0])
        snprintf(mine, sizeof mine, " (here rank %d%s)", report_me.rank, report_me.host);
    snprintf(prefix, 512, "%s %s%s" REPORT_SEPARATOR, n_named > 1 ? "ranks" : "rank", list, mine);
    if (n_named == report_me.n_ranks && is_same)
        prefix[0] = 0;
}

/* Prints this rank's lines if it is the lowest of the ranks that found the same. */
static void print_together(const double *words)
{
    char prefix[512] = "";
    int first = 0;
    while (!holds_same(words, WORD_KIND, first, report_me.rank))
        first++;
    name_ranks(words, prefix);
    if (first == report_me.rank)
        held_print(prefix);
    else
        held_forget();
}

/* Returns the status of the lowest rank that failed itself. */
static zero_status_t common_status(const double *words)
{
    zero_status_t found = ZERO_OK;
    for (int rank = 0; rank < report_me.n_ranks && (found == ZERO_OK || found == ZERO_ERROR_PEER); rank++)
        if (words[rank * N_WORDS + WORD_STATUS] != ZERO_OK)
            found = (zero_status_t)words[rank * N_WORDS + WORD_STATUS];
    return found;
}

/* Returns whether the peers may be gone, or in another call. A rank that only heard of a peer's failure holds no line.
 */
static bool cannot_meet(zero_status_t mine)
{
    return mine == ZERO_ERROR_COMM || mine == ZERO_ERROR_TIMEOUT || (mine == ZERO_ERROR_PEER && held_is_any());
}

zero_status_t report_agree(zero_comm_t *comm, zero_status_t mine)
{
    double *words = cannot_meet(mine) ? NULL : calloc((size_t)report_me.n_ranks * N_WORDS, sizeof *words);
    if (!words) {
        report_flush();
        return mine == ZERO_OK ? report_rank_error(ZERO_ERROR_MEMORY, "out of memory") : mine;
    }
    words[report_me.rank * N_WORDS + WORD_STATUS] = mine;
    describe_held(words + report_me.rank * N_WORDS);
    report_me.is_meeting = mine != ZERO_OK; /* then a lost peer is no news */
    zero_status_t status = zero_comm_sum(comm, words, (size_t)report_me.n_ranks * N_WORDS);
    if (status == ZERO_OK) {
        print_together(words);
        status = zero_comm_barrier(comm); /* no rank ends the job before all have printed */
    }
    report_me.is_meeting = false;
    report_flush();
    zero_status_t agreed = status == ZERO_OK ? common_status(words) : status;
    free(words);
    return mine != ZERO_OK && status != ZERO_OK ? mine : agreed;
}
