/* tuning_runs.h - small models that zerotrain makes and then tunes, as a user would: in a scratch directory, in several
 * ways at a time, which are to write the same text. */
#ifndef ZERO_TEST_TUNING_RUNS_H
#define ZERO_TEST_TUNING_RUNS_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0
#define N_AT_ONCE 4

static char scratch[400];

static inline const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static inline void write_file(const char *name, const char *text)
{
    support_write_file(path_of(name), text, strlen(text));
}

/* Runs a command in the scratch directory, in which $Z is zerotrain, of one thread. */
__attribute__((format(printf, 2, 3))) static inline int shell(support_output_t *output, const char *format, ...)
{
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return support_run(output, LIMIT_S, "cd %s && Z=%s/zerotrain && export OMP_NUM_THREADS=1 && %s", scratch,
                       support_build(), command);
}

__attribute__((format(printf, 1, 2))) static inline void expect_shell(const char *format, ...)
{
    char command[2048];
    support_output_t output;
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    const int code = shell(&output, "%s", command);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s%s", command, code, output.out, output.err);
    support_output_free(&output);
}

/* A command that fails with one line, which says all of this. */
typedef struct refusal {
    const char *command;
    const char *says[3];
} refusal_t;

static inline void expect_refusals(const refusal_t *refusals, size_t n)
{
    for (const refusal_t *r = refusals; r < refusals + n; r++) {
        support_output_t output;
        const int code = shell(&output, "%s", r->command);
        ck_assert_msg(code == 1 || code == 2, "%s: exit code %d\n%s", r->command, code, output.err);
        ck_assert_msg(support_count(output.err, "zerotrain: ") == 1, "%s:\n%s", r->command, output.err);
        for (int s = 0; s < 3 && r->says[s]; s++)
            ck_assert_msg(strstr(output.err, r->says[s]) != NULL, "%s: no \"%s\" in\n%s", r->command, r->says[s],
                          output.err);
        support_output_free(&output);
    }
}

/* Makes the scratch directory, with text.txt of n_bytes from which something can be learned. */
static inline void make_scratch(size_t n_bytes)
{
    char *directory = support_scratch(), *text = calloc(1, n_bytes + 1);
    uint64_t seed = 1;
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    text[0] = 'a';
    for (size_t i = 1; i < n_bytes; i++)
        text[i] = (char)('a' + (text[i - 1] - 'a' + 1 + (int)(support_random(&seed) % 3)) % 26);
    write_file("text.txt", text);
    free(text);
}

/* Makes a model of two steps of training, and NAME.ini, which begins from it. model: lines of [model]; tuning: what
 * follows that section. */
static inline void make_model(const char *name, const char *model, int seq_len, const char *tuning)
{
    char config[1024], file[64];
    snprintf(config, sizeof config,
             "[model]\n%sseq_len = %d\n[data]\ntrain = text.txt\n[train]\nsteps = 2\nglobal_batch = 12\nlr = 1e-2\n"
             "[checkpoint]\ndir = %s\n",
             model, seq_len, name);
    write_file("base.ini", config);
    expect_shell("$Z base.ini");
    snprintf(config, sizeof config, "[model]\ninit = %s\nseq_len = %d\n%s", name, seq_len, tuning);
    snprintf(file, sizeof file, "%s.ini", name);
    write_file(file, config);
}

/* ---- the same text ---- */

typedef struct variant {
    int n_ranks;
    const char *settings;
    int exit_code;
    support_output_t output;
} variant_t;

/* Trains in every way, several at a time: variant i writes vI.jsonl. Expects of each what `compare` does of the name of
 * its rows beside "v0". */
static inline void expect_same(const char *model, const char *common, variant_t *variants, int n_variants,
                               void (*compare)(const char *what, const char *name))
{
    char name[64];
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < n_variants; i++)
        if (!support_leaves_out(variants[i].n_ranks))
            variants[i].exit_code = support_mpirun(&variants[i].output, LIMIT_S, variants[i].n_ranks,
                                                   "--wdir %s %s/zerotrain %s %s --set log.metrics=v%d.jsonl %s.ini",
                                                   scratch, support_build(), common, variants[i].settings, i, model);
    for (int i = 0; i < n_variants; i++) {
        if (support_leaves_out(variants[i].n_ranks))
            continue;
        ck_assert_msg(variants[i].exit_code == 0, "%s, %d ranks, %s: %s", model, variants[i].n_ranks,
                      variants[i].settings, variants[i].output.err);
        snprintf(name, sizeof name, "v%d", i);
        compare(variants[i].settings, name);
        support_output_free(&variants[i].output);
    }
}

#endif
