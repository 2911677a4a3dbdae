/* support.c - see support.h.
 *
 * A command runs in a session of its own. mpirun gives its ranks process groups of their own, so a group would not hold
 * every process that it started; a session does, and whatever is left of it at the end (a stopped rank, say) is killed.
 * Output goes to unlinked files rather than pipes: a pipe would have to be drained while waiting, and stays open as
 * long as any process holds it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/clock.h"
#include "tests/support/support.h"

static char scratch_root[PATH_MAX];

static _Noreturn void give_up(const char *what, const char *name)
{
    fprintf(stderr, "test support: %s: %s: %s\n", what, name, strerror(errno));
    abort();
}

/* ---- Scratch ---- */

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
    (void)stat, (void)ftw;
    if (type == FTW_DNR)
        (void)chmod(path, 0700);
    return remove(path);
}

static void make_scratch_root(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(scratch_root, sizeof(scratch_root), "%s/zero-test-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(scratch_root))
        give_up("cannot make a scratch directory", scratch_root);
}

char *support_scratch(void)
{
    char *path = NULL;
    if (asprintf(&path, "%s/XXXXXX", scratch_root) < 0 || !mkdtemp(path))
        give_up("cannot make a scratch directory (support_main makes the one above)", path ? path : "");
    return path;
}

int support_main(Suite *suite)
{
    /* Check's messages have up to 8 KiB, more than it passes on by default. */
    setenv("CK_MAX_MSG_SIZE", "65536", 0);
    make_scratch_root(); /* in the parent of Check's children, so that a failed test leaves nothing behind */
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    nftw(scratch_root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

const char *support_build(void)
{
    static char path[PATH_MAX];
    const char *build = getenv("ZERO_BUILD");
    if (path[0] == '\0' && !realpath(build && build[0] ? build : "build", path))
        give_up("no build folder (set ZERO_BUILD)", build ? build : "build");
    return path;
}

/* ---- Running programs ---- */

/* Whether a process is of the session and not yet ended (one that only waits to be collected cannot be killed). */
static bool runs_in_session(pid_t pid, pid_t session)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n_bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n_bytes > 0 ? n_bytes : 0] = '\0';
    const char *after_name = strrchr(text, ')'); /* pid (name) state parent group session ... */
    char state = 'Z';
    int parent, group, its_session = 0;
    return after_name && sscanf(after_name + 1, " %c %d %d %d", &state, &parent, &group, &its_session) == 4 &&
           its_session == session && state != 'Z' && state != 'X';
}

/* Kills what is left of a session; returns how many processes that were. */
static int kill_session(pid_t session)
{
    int n_killed = 0;
    DIR *proc = opendir("/proc");
    if (!proc)
        give_up("cannot list processes", "/proc");
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && runs_in_session(pid, session) && kill(pid, SIGKILL) == 0)
            n_killed++;
    }
    closedir(proc);
    return n_killed;
}

static void end_session(pid_t session)
{
    for (int round = 0; round < 100 && kill_session(session) > 0; round++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static int capture_file(void)
{
    FILE *file = tmpfile();
    int fd = file ? fcntl(fileno(file), F_DUPFD_CLOEXEC, 3) : -1;
    if (fd < 0)
        give_up("cannot make a temporary file", "capture");
    fclose(file);
    return fd;
}

static char *take_captured(int fd)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        give_up("cannot read the output of a command", "fstat");
    size_t n_bytes = (size_t)stat.st_size;
    char *text = malloc(n_bytes + 1);
    if (!text || pread(fd, text, n_bytes, 0) != (ssize_t)n_bytes)
        give_up("cannot read the output of a command", "pread");
    text[n_bytes] = '\0';
    close(fd);
    return text;
}

static _Noreturn void become_command(const char *command, const int *captures)
{
    int in = open("/dev/null", O_RDONLY);
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* Check may kill the test process when its own limit is reached */
    dup2(in, STDIN_FILENO);
    if (captures) {
        dup2(captures[0], STDOUT_FILENO);
        dup2(captures[1], STDERR_FILENO);
    }
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static int wait_with_limit(pid_t pid, double deadline_s)
{
    int state = 0;
    for (;;) {
        pid_t done = waitpid(pid, &state, WNOHANG);
        if (done < 0 && errno != EINTR)
            give_up("cannot wait for a command", "waitpid");
        if (done == pid)
            return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
        if (now_s() > deadline_s)
            return SUPPORT_TIMED_OUT;
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
}

static int run_command(support_output_t *output, double timeout_s, const char *command)
{
    int captures[2] = {-1, -1};
    if (output) {
        captures[0] = capture_file();
        captures[1] = capture_file();
    }
    double start_s = now_s();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        give_up("cannot start", command);
    if (pid == 0)
        become_command(command, output ? captures : NULL);

    int exit_code = wait_with_limit(pid, start_s + timeout_s);
    end_session(pid);
    if (exit_code == SUPPORT_TIMED_OUT)
        waitpid(pid, NULL, 0);
    if (output) {
        output->out = take_captured(captures[0]);
        output->err = take_captured(captures[1]);
        output->seconds = now_s() - start_s;
    }
    return exit_code;
}

static char *format_text(const char *format, va_list args)
{
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0)
        give_up("cannot format", format);
    return text;
}

int support_run(support_output_t *output, double timeout_s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *command = format_text(format, args);
    va_end(args);
    int exit_code = run_command(output, timeout_s, command);
    free(command);
    return exit_code;
}

int support_mpirun(support_output_t *output, double timeout_s, int n_ranks, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *program = format_text(format, args);
    va_end(args);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* mpiruns that share a session directory disturb each other: one creates what another removes. */
    char *command = NULL, *sessions = support_scratch();
    if (asprintf(&command,
                 "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMPI_MCA_orte_tmpdir_base=%s PRTE_MCA_prte_tmpdir_base=%s "
                 "exec mpirun --oversubscribe --bind-to none -n %d %s",
                 sessions, sessions, n_ranks, program) < 0)
        give_up("cannot format", program);
    int exit_code = run_command(output, timeout_s, command);
    free(command);
    free(sessions);
    free(program);
    return exit_code;
}

bool support_leaves_out(int n_ranks)
{
    const char *text = getenv("ZERO_TEST_MAX_RANKS");
    if (!text || n_ranks <= atoi(text))
        return false;
    printf("SKIP: a case of %d ranks (ZERO_TEST_MAX_RANKS=%s)\n", n_ranks, text);
    fflush(stdout);
    return true;
}

bool support_is_left_to_plain_build(void)
{
#ifdef __SANITIZE_ADDRESS__
    printf("SKIP: more of the same runs, under sanitizers\n");
    fflush(stdout);
    return true;
#else
    return false;
#endif
}

START_TEST(a_turn_is_left_to_the_plain_build)
{
    ck_assert(support_is_left_to_plain_build());
}
END_TEST

void support_leave_to_plain_build(TCase *group)
{
    tcase_add_test(group, a_turn_is_left_to_the_plain_build);
}

TCase *support_long_case(Suite *suite, double timeout_s)
{
    static TCase *group; /* reachable, also if no suite has it */
    group = tcase_create("long");
    tcase_set_timeout(group, timeout_s);
    if (getenv("ZERO_TEST_SLOW"))
        suite_add_tcase(suite, group);
    return group;
}

void support_output_free(support_output_t *output)
{
    free(output->out);
    free(output->err);
    *output = (support_output_t){0};
}

const char *support_tail(const char *text)
{
    const size_t n_bytes = strlen(text), at_most = 3072;
    return n_bytes > at_most ? text + n_bytes - at_most : text;
}

size_t support_count(const char *text, const char *needle)
{
    size_t n_found = 0;
    for (const char *at = text; (at = strstr(at, needle)) != NULL; at += strlen(needle))
        n_found++;
    return n_found;
}

/* ---- Files ---- */

char *support_read_file(const char *path, size_t *n_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    if (fd < 0 || fstat(fd, &stat) != 0)
        give_up("cannot open", path);
    if (n_bytes)
        *n_bytes = (size_t)stat.st_size;
    return take_captured(fd);
}

char *support_metric_rows(const char *path)
{
    char *text = support_read_file(path, NULL), *rest = text;
    char *rows = calloc(1, strlen(text) + 1);
    for (char *line; (line = strsep(&rest, "\n")) && line[0];) {
        char *end = strstr(line, ", \"lr\"");
        ck_assert_msg(end != NULL, "%s", line);
        *end = 0;
        strcat(strcat(rows, line), "\n");
    }
    free(text);
    return rows;
}

/* Truncates the file to its new length at the end, not to 0 first: ext4 flushes a file that was truncated to 0 when it
 * is closed, which takes milliseconds, and tests overwrite files thousands of times. */
void support_write_file(const char *path, const void *data, size_t n_bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        give_up("cannot open", path);
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = write(fd, (const char *)data + done, n_bytes - done);
        if (n < 0)
            give_up("cannot write", path);
        done += (size_t)n;
    }
    if (ftruncate(fd, (off_t)n_bytes) != 0 || close(fd) != 0)
        give_up("cannot write", path);
}

void support_write_safetensors(const char *path, const void *header, size_t header_bytes, const void *data,
                               size_t data_bytes)
{
    enum { LENGTH_BYTES = 8 };
    size_t n_bytes = LENGTH_BYTES + header_bytes + data_bytes;
    unsigned char *file = malloc(n_bytes);
    if (!file)
        give_up("no memory for", path);
    for (int i = 0; i < LENGTH_BYTES; i++)
        file[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + LENGTH_BYTES, header, header_bytes);
    if (data_bytes > 0)
        memcpy(file + LENGTH_BYTES + header_bytes, data, data_bytes);
    support_write_file(path, file, n_bytes);
    free(file);
}

/* ---- Numbers ---- */

uint64_t support_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double support_uniform(uint64_t *state)
{
    return (double)(support_random(state) >> 11) * 0x1p-53;
}

double support_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(1.0 - support_uniform(state)));
    return radius * cos(6.283185307179586 * support_uniform(state));
}

double support_relative_error(double got, double want)
{
    if (got == want)
        return 0.0; /* infinities too */
    double error = fabs(got - want) / (want != 0.0 ? fabs(want) : 1.0);
    return isnan(error) ? INFINITY : error;
}

double support_max_error(const float *got, const double *want, size_t n_elems)
{
    double largest_error = 0.0, largest = 0.0;
    for (size_t i = 0; i < n_elems; i++) {
        double error = fabs((double)got[i] - want[i]);
        largest_error = isnan(error) ? INFINITY : fmax(largest_error, error);
        largest = fmax(largest, fabs(want[i]));
    }
    return largest_error / (largest > 0.0 ? largest : 1.0);
}

double support_l2_error(const float *got, const double *want, size_t n_elems)
{
    double error = 0.0, square = 0.0;
    for (size_t i = 0; i < n_elems; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        square += want[i] * want[i];
    }
    double relative = sqrt(error / (square > 0.0 ? square : 1.0));
    return isnan(relative) ? INFINITY : relative;
}
