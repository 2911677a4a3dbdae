/* report_line.c - lines on stderr, one at a time, and error lines that are held back until the ranks meet: see
 * report.h.
 */
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

/* ---- report line ---- */

report_me_t report_me = {.n_ranks = 1};

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

size_t line_compose(const char *prefix, const char *message, char line[REPORT_FULL_LINE_BYTES])
{
    snprintf(line, REPORT_LINE_BYTES + REPORT_PREFIX_BYTES + 64, "zerotrain: %s%s%s", prefix, message,
             strlen(message) == REPORT_LINE_BYTES - 1 ? "..." : "");
    make_printable(line);
    size_t length = strlen(line);
    memcpy(line + length, "\n", 2);
    return length + 1;
}

void line_name_me(char prefix[REPORT_PREFIX_BYTES])
{
    snprintf(prefix, REPORT_PREFIX_BYTES, "rank %d%s" REPORT_SEPARATOR, report_me.rank, report_me.host);
}

void line_write(bool with_rank, const char *message)
{
    char prefix[REPORT_PREFIX_BYTES] = "", line[REPORT_FULL_LINE_BYTES];
    if (with_rank)
        line_name_me(prefix);
    line_compose(prefix, message, line);
    fputs(line, stderr);
    fflush(stderr);
}

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

void held_write(void)
{
    size_t begin, end = take_held(&begin);
    while (begin < end) {
        ssize_t n = write(STDERR_FILENO, held.text + begin, end - begin);
        if (n <= 0 && errno != EINTR)
            break;
        begin += n > 0 ? (size_t)n : 0;
    }
}

static void on_signal(int number)
{
    int error = errno;
    held_write();
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
