/* support.h - what every test needs beside Check: running programs and mpirun under a time limit, scratch directories,
 * files, random numbers, error measures.
 *
 * A test program ends with
 *     int main(void) { return support_main(suite()); }
 * and gives each TCase a limit (tcase_set_timeout) above the sum of the limits that it passes here: Check's own default
 * is 4 seconds. Programs to run are found below support_build(). A helper that cannot do its work prints why and
 * aborts, so callers check only what they test.
 */
#ifndef ZERO_TEST_SUPPORT_H
#define ZERO_TEST_SUPPORT_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check's own macros, but they do nothing if the assertion holds: Check tells its runner about each one, which took
 * half the time of tests that look at every element. After a crash it still names the test, but not the line. */
#undef ck_assert_msg
#define ck_assert_msg(expr, ...) ((expr) ? (void)0 : ck_abort_msg(__VA_ARGS__))
#undef ck_assert
#define ck_assert(expr) ck_assert_msg(expr, "Assertion '%s' failed", #expr)

/* Runs the suite; returns main's exit code. Owns the scratch directories and removes them, whatever happens. */
int support_main(Suite *suite);

/* Absolute path of the build folder: ZERO_BUILD, else "build" below the current directory. */
const char *support_build(void);

/* A new empty directory of this test's own; removed by support_main. Free the path. */
char *support_scratch(void);

/* ---- Running programs ---- */

#define SUPPORT_TIMED_OUT (-1)

typedef struct support_output {
    char *out, *err; /* all of stdout and of stderr, each ended by a zero; support_output_free */
    double seconds;  /* it took */
} support_output_t;

/* Runs a shell command, built as by printf. Returns its exit code, 128 + signal if a signal ended it, or
 * SUPPORT_TIMED_OUT. When it returns, every process that the command started is gone. output: what it printed; NULL
 * lets it print to the test's output. */
int support_run(support_output_t *output, double timeout_s, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs the command under mpirun with n_ranks ranks: also as root, more ranks than cores, unbound, one OpenMP thread per
 * rank unless OMP_NUM_THREADS is set. The command is one program with its arguments; options of mpirun may come before
 * it. */
int support_mpirun(support_output_t *output, double timeout_s, int n_ranks, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Returns whether ZERO_TEST_MAX_RANKS in the environment excludes this many ranks; if so, it has reported a skipped
 * test, and the test returns. tests/run-all sets it for sanitized builds, in which every rank costs several times as
 * much. */
bool support_leaves_out(int n_ranks);

/* Under sanitizers, which check memory and not bits, each kind of run is tried once; the plain build's tests do the
 * rest. Returns whether this is a build with AddressSanitizer; if so, it has reported a skipped test, and the test
 * returns. */
bool support_is_left_to_plain_build(void);

/* Adds a skipped test, of the same reason. */
void support_leave_to_plain_build(TCase *group);
#if defined __SANITIZE_ADDRESS__ && defined SUPPORT_SANITIZE_SOME
/* For programs that define SUPPORT_SANITIZE_SOME, since all their turns would take a minute: Check's own macro, but it
 * runs the first of a loop's turns and every third after it. */
#undef tcase_add_loop_test
#define tcase_add_loop_test(group, test, begin, end)                                                                   \
    do {                                                                                                               \
        TCase *group_ = (group);                                                                                       \
        for (int turn_ = (begin); turn_ < (int)(end); turn_++) {                                                       \
            if ((turn_ - (begin)) % 3 == 0)                                                                            \
                _tcase_add_test(group_, (test), 0, 0, turn_, turn_ + 1);                                               \
            else                                                                                                       \
                support_leave_to_plain_build(group_);                                                                  \
        }                                                                                                              \
    } while (0)
#endif

/* Returns a group `long` of tests, which only run if ZERO_TEST_SLOW is set in the environment: part `long` of
 * launch/check, which finds it by this call. */
TCase *support_long_case(Suite *suite, double timeout_s);
/* Adds the first n_quick of a test's n turns to a group, and the others to one of support_long_case. */
#define SUPPORT_ADD_LOOP(group, lengthy, test, n_quick, n)                                                             \
    do {                                                                                                               \
        tcase_add_loop_test(group, test, 0, n_quick);                                                                  \
        tcase_add_loop_test(lengthy, test, n_quick, n);                                                                \
    } while (0)

/* The rank, in a shell under mpirun. It lets one rank behave differently: Open MPI 5.0 crashes on "program : program".
 */
#define SUPPORT_RANK "${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}"

void support_output_free(support_output_t *output);

/* Returns the last 3 KiB of a text, for a failure's message: Check cuts off what is past 8 KiB, and the reason is at
 * the end. */
const char *support_tail(const char *text);

/* Times that `needle` occurs in `text`, without overlap. */
size_t support_count(const char *text, const char *needle);

/* ---- Files ---- */

/* The whole file, closed by a zero that n_bytes (may be NULL) does not count. Free it. */
char *support_read_file(const char *path, size_t *n_bytes);
/* step, loss and grad_norm of every row of a file of metrics. Free it. */
char *support_metric_rows(const char *path);
void support_write_file(const char *path, const void *data, size_t n_bytes);
/* Writes a safetensors file, from the format's description alone: the header's length in 8 bytes, least significant
 * first, then header and data. */
void support_write_safetensors(const char *path, const void *header, size_t header_bytes, const void *data,
                               size_t data_bytes);

/* ---- Numbers ---- */

/* SplitMix64 (Steele, Lea, Flood 2014): any seed is a good one. */
uint64_t support_random(uint64_t *state);
double support_uniform(uint64_t *state); /* in [0, 1) */
double support_normal(uint64_t *state);  /* mean 0, variance 1 */

/* |got - want| / |want|; the absolute difference if want is 0. Infinite if got is not finite and want is. */
double support_relative_error(double got, double want);
/* Of whole arrays, in the largest norm: max |got - want| / max |want|. */
double support_max_error(const float *got, const double *want, size_t n_elems);
/* In the Euclidean norm: |got - want| / |want|. */
double support_l2_error(const float *got, const double *want, size_t n_elems);

#endif
