/* stream_runs.h - what tests on the device of random speed share: the text that tests/mpi/stream_cases prints for some
 * settings, on that device and on the plain CPU, and what it must be. */
#ifndef ZERO_TEST_STREAM_RUNS_H
#define ZERO_TEST_STREAM_RUNS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/async/async_device.h"
#include "tests/support/support.h"

#define LIMIT_S 120.0

/* config.check waits for the stream at the end of every unit, and these tests are about what does not wait: programs
 * call this first. check=1 turns it on for the runs that test it. */
static inline void leave_out_checks(void)
{
    setenv("ZERO_CHECK", "0", 1);
}

/* Returns what `settings` prints; NULL if the run fails. Free it. */
static inline char *text_of(int n_ranks, const char *settings)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/stream_cases %s", support_build(), settings);
    char *text = code == 0 ? strdup(output.out) : NULL;
    if (code != 0)
        fprintf(stderr, "%d ranks, %s: exit code %d\n%.600s\n", n_ranks, settings, code, output.err);
    support_output_free(&output);
    return text;
}

/* The runs of all `variants` of `settings` give the text that the plain CPU gives, which the same ranks run first. NULL
 * ends the variants. hosts: "hosts=HOW", or "" for one. */
static inline void expect_text_among(const char *hosts, int n_ranks, const char *settings, const char *const *variants)
{
    char runs[1024];
    size_t n_runs = 1;
    snprintf(runs, sizeof runs, "%s device=cpu %s", hosts, settings);
    for (; variants[n_runs - 1]; n_runs++)
        snprintf(runs + strlen(runs), sizeof runs - strlen(runs), " / %s %s", settings, variants[n_runs - 1]);
    char *got = text_of(n_ranks, runs);
    ck_assert_msg(got != NULL, "%d ranks, %s", n_ranks, runs);
    size_t length = strlen(got) / n_runs;
    ck_assert_msg(length > 100 && strlen(got) == n_runs * length, "%d ranks, %s: %s", n_ranks, runs, got);
    for (size_t i = 1; i < n_runs; i++)
        ck_assert_msg(strncmp(got + i * length, got, length) == 0, "%d ranks, %s: %s gives\n%sinstead of\n%s", n_ranks,
                      settings, variants[i - 1], got + i * length, got);
    free(got);
}

static inline void expect_plain_text(int n_ranks, const char *settings, const char *const *variants)
{
    expect_text_among("", n_ranks, settings, variants);
}

/* One of each type: plain, with accumulation, with a step that is skipped. */
static const char *const settings_of[] = {"steps=12 dtype=bf16", "steps=6 dtype=fp32 micro_steps=3 every=1",
                                          "steps=12 dtype=fp16 nan_at=5"};
#define N_SETTINGS 3

/* Returns whether the outcome of a faulty run comes from work in the wrong order: it ends well with another text than
 * `want`, or one of its checks of values fails. Any other failure (no memory, a crash, a wrong setting) proves nothing
 * about the fault. */
static inline bool fault_shows(int exit_code, const char *out, const char *err, const char *want)
{
    static const char *const signs[] = {"parameters changed while they were in use",
                                        "of what was kept for backward has changed",
                                        "parameters differ by rank",
                                        "the state changed without a step",
                                        "not so: result->notice == want",
                                        "ranks call different things", /* contributions that are read too early */
                                        "a time of what is to come",   /* the device is asked for it too early */
                                        "gradients were not finite 20 steps in a row"};
    if (exit_code == 0)
        return strcmp(out, want) != 0;
    for (size_t i = 0; exit_code == 1 && i < sizeof signs / sizeof signs[0]; i++)
        if (strstr(err, signs[i]))
            return true;
    return false;
}

/* `settings` with a fault give another text than the plain CPU with `toy`, or a value that is seen to be wrong. With
 * other delays up to twice more, if a busy machine hid it. */
static inline void expect_fault_shows_among(const char *hosts, int n_ranks, async_fault_t fault, const char *settings,
                                            const char *toy)
{
    static const char *const seeds[] = {"", "seed=2", "seed=3"};
    char plain[96];
    bool shows = false;
    snprintf(plain, sizeof plain, "device=cpu dtype=fp32 steps=20 %s", toy);
    char *want = text_of(n_ranks, plain);
    ck_assert(want != NULL);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0] && !shows; i++) {
        support_output_t output;
        int code = support_mpirun(&output, LIMIT_S, n_ranks,
                                  "%s/tests/mpi/stream_cases %s dtype=fp32 steps=20 %s %s fault=%d %s", support_build(),
                                  hosts, settings, toy, (int)fault, seeds[i]);
        shows = fault_shows(code, output.out, output.err, want);
        if (!shows)
            fprintf(stderr, "%s %s fault=%d %s: exit code %d shows nothing of it: %s\n", settings, toy, (int)fault,
                    seeds[i], code, support_tail(output.err));
        support_output_free(&output);
    }
    free(want);
    ck_assert_msg(shows, "%s %s fault=%d shows with no seed", settings, toy, (int)fault);
}

static inline void expect_fault_shows(async_fault_t fault, const char *settings, const char *toy)
{
    expect_fault_shows_among("", 3, fault, settings, toy);
}

#endif
