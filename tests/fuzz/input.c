/* input.c - see input.h. */
#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero.h"

#define N_PATHS 4
#define MAX_PATH 4096

bool fuzz_accepted;

static char scratch[MAX_PATH - 256];
static char said[1 << 16]; /* error lines of the library and all of the trainer's */
static FILE *listener;

_Noreturn void fuzz_give_up(const char *file, int line, const char *format, ...)
{
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (listener)
        fflush(listener);
    dprintf(STDERR_FILENO, "%s:%d: %s\nwhat was said:\n%s\n", file, line, message, said);
    abort();
}

/* ---- what is logged ---- */

static void on_library_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)rank;
    if (level == ZERO_LOG_ERROR)
        fprintf(listener, "%s\n", line);
}

/* The trainer prints to stderr, which is redirected to a buffer. Sanitizers, libFuzzer and fuzz_give_up print to the
 * descriptor itself. */
static void listen(void)
{
    listener = fmemopen(said, sizeof said, "w");
    FUZZ_REQUIRE(listener, "cannot open a buffer");
    stderr = listener;
    zero_log_set(ZERO_LOG_DEBUG, on_library_line, NULL);
}

/* Whether a line is "zerotrain: 'FILE': keys that are not known ...", which is no refusal. Compared byte by byte:
 * libFuzzer learns what memmem and strcmp look for, and puts it into names and values, which refusals quote. */
static bool names_keys(const char *line, const char *end)
{
    static const char words[] = "': keys that are not known";
    while (line < end && !(line[0] == '\'' && line[1] == ':'))
        line++;
    for (size_t i = 0; words[i]; i++)
        if (line + i >= end || line[i] != words[i])
            return false;
    return true;
}

void fuzz_refused(zero_status_t status)
{
    fflush(listener);
    size_t n_lines = 0;
    const char *line = said;
    for (const char *c = said; *c; c++) {
        if (*c == '\n') {
            n_lines += !names_keys(line, c);
            line = c + 1;
        }
        FUZZ_REQUIRE(*c == '\n' || ((unsigned char)*c >= 0x20 && *c != 0x7f), "a control character, %d", *c);
    }
    FUZZ_REQUIRE(n_lines == 1, "%s was said in %zu lines", zero_status_name(status), n_lines);
}

/* ---- scratch files ---- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info, (void)type, (void)at;
    return remove(path);
}

static void remove_scratch(void)
{
    nftw(scratch, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void make_scratch(void)
{
    const char *base = getenv("TMPDIR");
    if (!base || !base[0])
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(scratch, sizeof scratch, "%s/zero-fuzz-XXXXXX", base);
    FUZZ_REQUIRE(mkdtemp(scratch), "cannot make '%s': %s", scratch, strerror(errno));
    atexit(remove_scratch);
}

void fuzz_begin(void)
{
    if (!listener) {
        make_scratch();
        listen();
    }
    fflush(listener);
    rewind(listener);
    memset(said, 0, strlen(said));
    fuzz_accepted = false;
}

const char *fuzz_path(const char *name)
{
    static char paths[N_PATHS][MAX_PATH];
    static unsigned next;
    char *path = paths[next++ % N_PATHS];
    snprintf(path, MAX_PATH, "%s/%s", scratch, name);
    return path;
}

void fuzz_write(const char *name, const void *data, size_t n_bytes)
{
    int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_REQUIRE(fd >= 0 && write(fd, data, n_bytes) == (ssize_t)n_bytes, "cannot write %s: %s", name, strerror(errno));
    close(fd);
}

void fuzz_write_text(const char *name, const char *text)
{
    fuzz_write(name, text, strlen(text));
}

char *fuzz_read(const char *name, size_t *n_bytes)
{
    struct stat info;
    int fd = open(fuzz_path(name), O_RDONLY | O_CLOEXEC);
    FUZZ_REQUIRE(fd >= 0 && fstat(fd, &info) == 0, "cannot open %s: %s", name, strerror(errno));
    *n_bytes = (size_t)info.st_size;
    char *data = calloc(1, *n_bytes + 1);
    FUZZ_REQUIRE(data && read(fd, data, *n_bytes) == (ssize_t)*n_bytes, "cannot read %s", name);
    close(fd);
    return data;
}
