/* report_agree.c - the ranks meet: who found which errors, and the status that all end with. See report.h. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "train/report/report.h"

/* ---- report held ---- */
/* A signal handler must be able to print the buffer, so it is a text of finished
 * lines that only grows until it is taken. */

#define HELD_BYTES (4 * REPORT_LINE_BYTES)
#define HOLD_S 5

static struct {
    /* Each line with its newline and with this rank's number, which REPORT_SEPARATOR ends. */
    char text[HELD_BYTES];
    atomic_size_t n_bytes, n_printed; /* if the second is less, there is something to print */
    uint64_t kind;                    /* of the messages: equal on ranks that found the same */
} held;

/* Takes over printing of the held lines that have not been printed. Returns where they end, and in *begin where they
 * begin. */
static size_t take_held(size_t *begin)
{
    size_t end = atomic_load(&held.n_bytes);
    *begin = atomic_exchange(&held.n_printed, end);
    return end;
}

void held_forget(void)
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

void held_add(const char *kind, const char *message)
{
    char prefix[REPORT_PREFIX_BYTES], line[REPORT_FULL_LINE_BYTES];
    size_t n_held = atomic_load(&held.n_bytes);
    line_name_me(prefix);
    size_t n_bytes = line_compose(prefix, message, line);
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
    const char *rank = strstr(line, REPORT_SEPARATOR) + strlen(REPORT_SEPARATOR);
    return strstr(rank, REPORT_SEPARATOR) + strlen(REPORT_SEPARATOR);
}

void held_print(const char *prefix)
{
    size_t begin, end = take_held(&begin);
    for (const char *line = held.text + begin; line < held.text + end; line = strchr(line, '\n') + 1) {
        const char *message = message_of(line);
        fprintf(stderr, "zerotrain: %s%.*s\n", prefix, (int)strcspn(message, "\n"), message);
    }
    fflush(stderr);
    held_forget();
}

bool held_is_any(void)
{
    return atomic_load(&held.n_bytes) > 0;
}

void held_hash(uint64_t *kind, uint64_t *text)
{
    size_t begin = atomic_load(&held.n_printed), end = atomic_load(&held.n_bytes);
    *kind = begin < end ? held.kind : 0;
    *text = 0;
    for (const char *line = held.text + begin; line < held.text + end; line = strchr(line, '\n') + 1) {
        const char *message = message_of(line);
        *text = XXH3_64bits_withSeed(message, strcspn(message, "\n"), *text + 1);
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
