/* zerotrain_runs.h - runs of zerotrain in a scratch directory with a configuration and data of every format, and what
 * they leave: output, exit code, metrics.
 *
 * Lines of zerotrain begin "zerotrain: "; what mpirun adds about a job that failed is not counted. Without mpirun there
 * is one rank and no other output, so all of stderr is checked.
 */
#ifndef ZERO_TEST_ZEROTRAIN_RUNS_H
#define ZERO_TEST_ZEROTRAIN_RUNS_H

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"

#define RUN_LIMIT_S 60.0
#define ALONE 0 /* ranks: one, without mpirun */

/* 14 lines: what a case adds begins in line 15. */
#define CONFIG                                                                                                         \
    "[model]\nlayers = 2\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"                                       \
    "[data]\ntrain = text.txt\n"                                                                                       \
    "[train]\nsteps = 12\nglobal_batch = 24\nlr = 3e-3\n"                                                              \
    "[log]\nmetrics = metrics.jsonl\n"
#define N_STEPS 12

#define N_TOKENS 6000

static char scratch[400];

/* ---- Files ---- */

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    return path;
}

static inline void write_file(const char *name, const void *data, size_t n_bytes)
{
    support_write_file(path_of(name), data, n_bytes);
}

static inline bool exists(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

/* The bytes of text.txt: also the tokens of the binary files. */
static inline unsigned char text_byte(int i)
{
    static const char words[] = "static int n_bytes = 0;\nif (n_bytes) { return; }\n";
    return (unsigned char)words[(i * 7 + i / 50) % (int)(sizeof words - 1)];
}

/* Writes an llm.c file whose header claims n_named tokens and that has n_tokens of `width` bytes; the one at `bad` is
 * `token`. */
static inline void write_llmc(const char *name, int width, int n_named, int n_tokens, int bad, int token)
{
    static unsigned char bytes[1024 + 4 * N_TOKENS];
    memset(bytes, 0, sizeof bytes);
    int32_t header[3] = {width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7, n_named};
    memcpy(bytes, header, sizeof header);
    for (int i = 0; i < n_tokens; i++) {
        int value = i == bad ? token : text_byte(i);
        bytes[1024 + i * width] = (unsigned char)value;
        bytes[1024 + i * width + 1] = (unsigned char)(value >> 8);
    }
    write_file(name, bytes, (size_t)(1024 + n_tokens * width));
}

/* Megatron-LM's NAME.bin, of uint16 tokens, and NAME.idx, of one sequence of N_TOKENS that is one document. */
static inline void write_megatron(const char *name, const unsigned char *tokens, size_t n_bytes)
{
    unsigned char index[34 + 4 + 8 + 2 * 8] = "MMIDIDX";
    const int32_t size = N_TOKENS;
    char file[64];
    index[9] = 1;  /* version */
    index[17] = 8; /* uint16 */
    index[18] = 1; /* sequence */
    index[26] = 2; /* bounds of documents, */
    memcpy(index + 34, &size, sizeof size);
    index[54] = 1; /* whose first pointer, the only one, is 0 */
    snprintf(file, sizeof file, "%s.idx", name);
    write_file(file, index, sizeof index);
    snprintf(file, sizeof file, "%s.bin", name);
    write_file(file, tokens, n_bytes);
}

static inline void write_data(void)
{
    static unsigned char text[N_TOKENS], nanogpt[2 * N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        nanogpt[2 * i] = text[i] = text_byte(i);
    write_file("text.txt", text, sizeof text);
    write_file("val.txt", text + 1000, 2000);
    write_file("packed.gz", "\x1f\x8b\x08 and what follows", 20);
    write_file("empty.txt", "", 0);
    write_file("short.txt", text, 10);
    write_file("nanogpt.bin", nanogpt, sizeof nanogpt);
    write_file("half.bin", nanogpt, 4001);
    write_llmc("llmc2.bin", 2, N_TOKENS, N_TOKENS, -1, 0);
    write_llmc("llmc4.bin", 4, N_TOKENS, N_TOKENS, -1, 0);
    write_megatron("megatron", nanogpt, sizeof nanogpt);
    write_megatron("cut", nanogpt, sizeof nanogpt / 2);
    write_llmc("count.bin", 2, 1000, 999, -1, 0);
    write_llmc("beyond.bin", 2, 1000, 1000, 900, 300);
    write_llmc("header.bin", 2, 1000, 0, -1, 0);
    ck_assert_int_eq(truncate(path_of("header.bin"), 500), 0);
    write_file("short.bin", text, 3);
    write_file("empty.bin", "", 0);
    write_file("alien.bin", nanogpt, sizeof nanogpt);
    write_file("alien.idx", text, sizeof text);
}

static inline void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    write_data();
    write_file("cfg.ini", CONFIG, sizeof CONFIG - 1);
    write_file("a,b.txt", CONFIG, sizeof CONFIG - 1);
}

/* ---- Runs ---- */

typedef struct outcome {
    int exit_code;
    support_output_t output;
} outcome_t;

/* Runs zerotrain in the scratch directory. */
static inline outcome_t run_arguments(int n_ranks, const char *arguments)
{
    outcome_t outcome;
    if (n_ranks == ALONE)
        outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s", scratch,
                                        support_build(), arguments);
    else
        outcome.exit_code = support_mpirun(&outcome.output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s", scratch,
                                           support_build(), arguments);
    return outcome;
}

__attribute__((format(printf, 2, 3))) static inline outcome_t run(int n_ranks, const char *format, ...)
{
    char arguments[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    return run_arguments(n_ranks, arguments);
}

static inline void forget(outcome_t *outcome)
{
    support_output_free(&outcome->output);
}

static inline void expect_exit(const outcome_t *outcome, int exit_code)
{
    ck_assert_msg(outcome->exit_code == exit_code, "exit code %d instead of %d\n%s%s", outcome->exit_code, exit_code,
                  outcome->output.out, outcome->output.err);
}

static inline void expect_success(int n_ranks, const char *arguments)
{
    outcome_t outcome = run_arguments(n_ranks, arguments);
    expect_exit(&outcome, 0);
    forget(&outcome);
}

/* ---- Metrics ---- */

/* The lines of a metrics file as an array of objects. */
static inline json_t *read_metrics(const char *name)
{
    char *text = support_read_file(path_of(name), NULL), *rest = text;
    json_t *rows = json_array();
    for (char *line; (line = strsep(&rest, "\n")) && line[0];) {
        json_error_t error;
        json_t *row = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        ck_assert_msg(row != NULL, "%s: %s", error.text, line);
        json_array_append_new(rows, row);
    }
    free(text);
    return rows;
}

static inline double number(const json_t *rows, size_t step, const char *name)
{
    return json_number_value(json_object_get(json_array_get(rows, step - 1), name));
}

static inline long long integer(const json_t *rows, size_t step, const char *name)
{
    return json_integer_value(json_object_get(json_array_get(rows, step - 1), name));
}

#endif
