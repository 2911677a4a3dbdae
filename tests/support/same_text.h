/* same_text.h - runs one program of tests/mpi/ in many ways, several at a time, and expects the same text of all: what
 * tests of equal bits over stages, ranks and transports share. */
#ifndef ZERO_TEST_SAME_TEXT_H
#define ZERO_TEST_SAME_TEXT_H

#include <string.h>

#include "tests/support/support.h"

#define SAME_TEXT_LIMIT_S 60.0
#define SAME_TEXT_AT_ONCE 4 /* runs: mpirun mostly waits */

typedef struct same_text_case {
    int n_ranks;
    const char *settings;
    bool is_left_out; /* set by the test */
    int exit_code;
    support_output_t output;
} same_text_case_t;

/* Runs "PROGRAM dtype=DTYPE SETTINGS" for each case that is neither left out nor of more ranks than this machine is
 * given. Case 0 always runs. */
static inline void same_text_run(const char *program, const char *dtype, same_text_case_t *cases, int n_cases)
{
    (void)support_build(); /* found once, before the threads */
    for (int i = 0; i < n_cases; i++)
        cases[i].is_left_out |= support_leaves_out(cases[i].n_ranks);
#pragma omp parallel for schedule(dynamic) num_threads(SAME_TEXT_AT_ONCE)
    for (int i = 0; i < n_cases; i++)
        if (!cases[i].is_left_out)
            cases[i].exit_code =
                support_mpirun(&cases[i].output, SAME_TEXT_LIMIT_S, cases[i].n_ranks, "%s/tests/mpi/%s dtype=%s %s",
                               support_build(), program, dtype, cases[i].settings);
}

/* Expects of every case that it succeeded with the text of case 0. Frees what they printed. */
static inline void same_text_check(const char *dtype, same_text_case_t *cases, int n_cases)
{
    for (int i = 0; i < n_cases; i++)
        if (!cases[i].is_left_out)
            ck_assert_msg(cases[i].exit_code == 0 && strcmp(cases[i].output.out, cases[0].output.out) == 0,
                          "%s, %d ranks, %s: exit code %d\n%s%s instead of\n%s", dtype, cases[i].n_ranks,
                          cases[i].settings, cases[i].exit_code, cases[i].output.err, cases[i].output.out,
                          cases[0].output.out);
    for (int i = 0; i < n_cases; i++)
        support_output_free(&cases[i].output);
}

#endif
