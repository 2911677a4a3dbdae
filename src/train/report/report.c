/* report.c - see report.h.
 *
 * A line is composed in memory and written at once, so that lines of several ranks do not mix. Control characters,
 * which may come from file names and values that are quoted, become '?': a message is always one line.
 *
 * While a run is set up, most errors are found by all ranks. So a line is held back until the ranks meet in
 * report_agree, which prints it once, with the ranks that found it. A held line is never lost: this rank prints it by
 * itself if the ranks cannot meet, when main ends, when a signal ends the process, and after HOLD_S in any case, since
 * the wait for a peer may be long. So a signal handler must be able to print the buffer: it is a text of finished lines
 * that only grows until it is taken.
 */
#include "train/report/report.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/report/utf8.h"

/* Enough for two paths of the greatest length and the words around them. */
#define LINE_BYTES 10240
#define HELD_BYTES (4 * LINE_BYTES)
#define HOLD_S 5
#define PREFIX_BYTES 160

static int my_rank;
static int n_ranks = 1;
static char my_host[PREFIX_BYTES / 2]; /* " on node2", or empty */
static bool holds_errors;              /* report_hold_errors */
static bool is_meeting;                /* in report_agree, with an error of this rank's own */

static struct {
    char text[HELD_BYTES];            /* each line with its newline and with this rank's number, which SEPARATOR ends */
    atomic_size_t n_bytes, n_printed; /* if the second is less, there is something to print */
    uint64_t kind;                    /* of the messages: equal on ranks that found the same */
} held;

#define SEPARATOR ": "

/* ---- one line ---- */

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

/* Composes a line and returns its length with the newline. prefix: "rank 2: ", or empty. A message that fills
 * LINE_BYTES was cut, and gets "...". */
static size_t compose(const char *prefix, const char *message, char line[LINE_BYTES + 2 * PREFIX_BYTES])
{
    snprintf(line, LINE_BYTES + PREFIX_BYTES + 64, "zerotrain: %s%s%s", prefix, message,
             strlen(message) == LINE_BYTES - 1 ? "..." : "");
    make_printable(line);
    size_t length = strlen(line);
    memcpy(line + length, "\n", 2);
    return length + 1;
}

/* Writes the prefix of this rank's own lines. */
static void name_me(char prefix[PREFIX_BYTES])
{
    snprintf(prefix, PREFIX_BYTES, "rank %d%s" SEPARATOR, my_rank, my_host);
}

static void write_line(bool with_rank, const char *message)
{
    char prefix[PREFIX_BYTES] = "", line[LINE_BYTES + 2 * PREFIX_BYTES];
    if (with_rank)
        name_me(prefix);
    compose(prefix, message, line);
    fputs(line, stderr);
    fflush(stderr);
}

/* ---- lines that are held ---- */

/* Takes over printing of the held lines that have not been printed. Returns where they end, and in *begin where they
 * begin. */
static size_t take_held(size_t *begin)
{
    size_t end = atomic_load(&held.n_bytes);
    *begin = atomic_exchange(&held.n_printed, end);
    return end;
}

static void forget_held(void)
{
    if (atomic_load(&held.n_bytes) == 0)
        return;
    atomic_store(&held.n_bytes, 0);
    atomic_store(&held.n_printed, 0);
    held.kind = 0;
    alarm(0);
}

static void on_signal(int number)
{
    int error = errno;
    size_t begin, end = take_held(&begin);
    while (begin < end) {
        ssize_t n = write(STDERR_FILENO, held.text + begin, end - begin);
        if (n <= 0 && errno != EINTR)
            break;
        begin += n > 0 ? (size_t)n : 0;
    }
    errno = error;
    if (number == SIGALRM)
        return;
    signal(number, SIG_DFL);
    raise(number);
}

/* Installs on_signal for signals that have no handler yet. */
static void print_before_the_end(void)
{
    static const int numbers[] = {SIGALRM, SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
}

/* Hashes a message without its numbers: ranks that run out of memory, say, may need different amounts. */
static uint64_t hash_kind(const char *text, uint64_t seed)
{
    static const char digits[] = "0123456789.";
    uint64_t hash = seed;
    while (*text) {
        size_t n_bytes = strcspn(text, digits);
        hash = XXH3_64bits_withSeed(text, n_bytes, hash + 1);
        text += n_bytes;
        text += strspn(text, digits);
    }
    return hash;
}

/* Holds a line back. kind: the text that messages of one kind have in common, apart from numbers. */
static void hold(const char *kind, const char *message)
{
    char prefix[PREFIX_BYTES], line[LINE_BYTES + 2 * PREFIX_BYTES];
    size_t n_held = atomic_load(&held.n_bytes);
    name_me(prefix);
    size_t n_bytes = compose(prefix, message, line);
    if (n_bytes > HELD_BYTES - n_held) {
        fputs(line, stderr);
        return;
    }
    held.kind = hash_kind(kind, held.kind);
    memcpy(held.text + n_held, line, n_bytes);
    atomic_store(&held.n_bytes, n_held + n_bytes);
    print_before_the_end();
    alarm(HOLD_S);
}

/* Returns where the message of a held line begins. It ends at the newline. */
static const char *message_of(const char *line)
{
    const char *rank = strstr(line, SEPARATOR) + strlen(SEPARATOR);
    return strstr(rank, SEPARATOR) + strlen(SEPARATOR);
}

/* Prints the held lines with the prefix `prefix`. */
static void print_held(const char *prefix)
{
    size_t begin, end = take_held(&begin);
    for (const char *line = held.text + begin; line < held.text + end; line = strchr(line, '\n') + 1) {
        const char *message = message_of(line);
        fprintf(stderr, "zerotrain: %s%.*s\n", prefix, (int)strcspn(message, "\n"), message);
    }
    fflush(stderr);
    forget_held();
}

void report_flush(void)
{
    char prefix[PREFIX_BYTES] = "";
    if (n_ranks > 1)
        name_me(prefix);
    print_held(prefix);
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
    if (level == ZERO_LOG_ERROR && is_meeting)
        return;
    if (level == ZERO_LOG_ERROR && holds_errors)
        hold(line, line);
    else
        write_line(true, line);
}

void report_init(int rank, int world_size)
{
    my_rank = rank;
    n_ranks = world_size;
    zero_log_set(ZERO_LOG_INFO, on_library_line, NULL);
}

void report_set_host(const char *host)
{
    snprintf(my_host, sizeof my_host, " on %s", host);
}

bool report_is_speaker(void)
{
    return my_rank == 0;
}

void report(const char *format, ...)
{
    if (!report_is_speaker())
        return;
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_line(false, message);
}

zero_status_t report_error(zero_status_t status, const char *format, ...)
{
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (holds_errors || !report_is_speaker())
        hold(format, message);
    else
        write_line(false, message);
    return status;
}

zero_status_t report_rank_error(zero_status_t status, const char *format, ...)
{
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (holds_errors)
        hold(message, message);
    else
        write_line(n_ranks > 1, message);
    return status;
}

/* ---- agreeing ---- */

/* What a rank contributes: doubles, which are summed over ranks. A hash is two halves, and 0 if nothing is held. */
enum { WORD_STATUS, WORD_KIND, WORD_TEXT = WORD_KIND + 2, N_WORDS = WORD_TEXT + 2 };

static void put_hash(uint64_t hash, double words[2])
{
    words[0] = (double)(hash & UINT32_MAX);
    words[1] = (double)(hash >> 32);
}

static void describe_held(double words[N_WORDS])
{
    size_t begin = atomic_load(&held.n_printed), end = atomic_load(&held.n_bytes);
    uint64_t hash = 0;
    for (const char *line = held.text + begin; line < held.text + end; line = strchr(line, '\n') + 1) {
        const char *message = message_of(line);
        hash = XXH3_64bits_withSeed(message, strcspn(message, "\n"), hash + 1);
    }
    put_hash(begin < end ? held.kind : 0, words + WORD_KIND);
    put_hash(hash, words + WORD_TEXT);
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
    char list[300] = "", mine[PREFIX_BYTES] = "";
    int n_named = 0;
    bool is_same = true;
    for (int first = 0; first < n_ranks; first++) {
        int last = first - 1;
        while (last + 1 < n_ranks && holds_same(words, WORD_KIND, last + 1, my_rank))
            is_same &= holds_same(words, WORD_TEXT, ++last, my_rank);
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
        snprintf(mine, sizeof mine, "%s", my_host);
    else if (!is_same || my_host[0])
        snprintf(mine, sizeof mine, " (here rank %d%s)", my_rank, my_host);
    snprintf(prefix, 512, "%s %s%s" SEPARATOR, n_named > 1 ? "ranks" : "rank", list, mine);
    if (n_named == n_ranks && is_same)
        prefix[0] = 0;
}

/* Prints this rank's lines if it is the lowest of the ranks that found the same. */
static void print_together(const double *words)
{
    char prefix[512] = "";
    int first = 0;
    while (!holds_same(words, WORD_KIND, first, my_rank))
        first++;
    name_ranks(words, prefix);
    if (first == my_rank)
        print_held(prefix);
    else
        forget_held();
}

/* Returns the status of the lowest rank that failed itself. */
static zero_status_t common_status(const double *words)
{
    zero_status_t found = ZERO_OK;
    for (int rank = 0; rank < n_ranks && (found == ZERO_OK || found == ZERO_ERROR_PEER); rank++)
        if (words[rank * N_WORDS + WORD_STATUS] != ZERO_OK)
            found = (zero_status_t)words[rank * N_WORDS + WORD_STATUS];
    return found;
}

/* Returns whether the peers may be gone, or in another call. A rank that only heard of a peer's failure holds no line.
 */
static bool cannot_meet(zero_status_t mine)
{
    return mine == ZERO_ERROR_COMM || mine == ZERO_ERROR_TIMEOUT ||
           (mine == ZERO_ERROR_PEER && atomic_load(&held.n_bytes) > 0);
}

zero_status_t report_agree(zero_comm_t *comm, zero_status_t mine)
{
    double *words = cannot_meet(mine) ? NULL : calloc((size_t)n_ranks * N_WORDS, sizeof *words);
    if (!words) {
        report_flush();
        return mine == ZERO_OK ? report_rank_error(ZERO_ERROR_MEMORY, "out of memory") : mine;
    }
    words[my_rank * N_WORDS + WORD_STATUS] = mine;
    describe_held(words + my_rank * N_WORDS);
    is_meeting = mine != ZERO_OK; /* then a lost peer is no news */
    zero_status_t status = zero_comm_sum(comm, words, (size_t)n_ranks * N_WORDS);
    if (status == ZERO_OK) {
        print_together(words);
        status = zero_comm_barrier(comm); /* no rank ends the job before all have printed */
    }
    is_meeting = false;
    report_flush();
    zero_status_t agreed = status == ZERO_OK ? common_status(words) : status;
    free(words);
    return mine != ZERO_OK && status != ZERO_OK ? mine : agreed;
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
