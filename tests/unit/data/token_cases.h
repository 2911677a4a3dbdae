/* token_cases.h - what tests of zerotrain's own token files share: files, batches on any number of ranks, and runs. */
#ifndef ZERO_TEST_TOKEN_CASES_H
#define ZERO_TEST_TOKEN_CASES_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "tests/unit/data/token_writer.h"
#include "train/data/data.h"

#define RUN_LIMIT_S 60.0
enum { SEQ_LEN = 16, N_SEQUENCES = 48, N_TOKENS = SEQ_LEN * N_SEQUENCES + 1, GLOBAL_BATCH = 12 };

/* ---- files ---- */

static char directory[1000];

static inline void set_up(void)
{
    char *scratch = support_scratch();
    snprintf(directory, sizeof directory, "%s", scratch);
    free(scratch);
}

/* Returns a path that stays valid for three more calls. */
static inline const char *in_directory(const char *name)
{
    static char path[4][1100];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
    return path[turn];
}

static inline const char *write_tokens(const char *name, writer_content_t content)
{
    static unsigned char bytes[1 << 20];
    const char *path = in_directory(name);
    support_write_file(path, bytes, writer_make(&content, bytes));
    return path;
}

/* ---- batches ---- */

static inline data_spec_t spec_of(const char *paths, int rank, int world_size, int64_t micro_batch)
{
    return (data_spec_t){.paths = paths,
                         .vocab_size = WRITER_VOCAB,
                         .seq_len = SEQ_LEN,
                         .global_batch = GLOBAL_BATCH,
                         .micro_batch = micro_batch,
                         .rank = rank,
                         .world_size = world_size};
}

/* Expects a batch to be that of sequences `first` and up, in file order. */
typedef void (*expect_batch_fn)(data_t *data, const int32_t *inputs, const int32_t *targets, int64_t first, int64_t n);

/* Reads the batches of nine steps on every rank of several jobs. counted_in_step: what each rank must know of them all.
 */
static inline void expect_batches(const char *paths, bool separate, expect_batch_fn expect,
                                  int64_t (*counted_in_step)(int step))
{
    static const int jobs[][2] = {{1, 12}, {1, 3}, {2, 6}, {3, 2}, {4, 1}}; /* ranks, sequences of a micro-batch */
    for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++)
        for (int rank = 0; rank < jobs[j][0]; rank++) {
            const int n_ranks = jobs[j][0], n = jobs[j][1];
            data_t *data;
            data_spec_t spec = spec_of(paths, rank, n_ranks, n);
            spec.separate = separate;
            ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
            ck_assert(data_has_mask(data));
            for (int step = 0; step < 9; step++)
                for (int k = 0; k < GLOBAL_BATCH / n_ranks / n; k++) {
                    const int32_t *inputs, *targets;
                    ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
                    expect(data, inputs, targets, step * GLOBAL_BATCH + (k * n_ranks + rank) * n, n);
                    ck_assert_int_eq(data_n_counted(data), counted_in_step(step));
                }
            data_close(data);
        }
}

/* ---- runs ---- */

#define RUN_CONFIG(layers)                                                                                             \
    "[model]\nlayers = " layers "\ndim = 24\nheads = 2\nseq_len = 16\n[train]\nsteps = 4\nglobal_batch = 12\n"         \
    "micro_batch = 2\nlr = 1e-2\nprecision = fp32\n[data]\npacking = cut\n[zero]\nreduce_every_micro_step = "          \
    "true\n[device]\ntype = cpu\n"

/* Runs zerotrain in the directory, by cfg.ini, which it writes. Returns the metrics: free them. */
static inline char *run_metrics(const char *config, int n_ranks, const char *arguments)
{
    support_output_t output;
    support_write_file(in_directory("cfg.ini"), config, strlen(config));
    int code = support_mpirun(&output, RUN_LIMIT_S, n_ranks,
                              "-x OMP_NUM_THREADS=1 --wdir %s %s/zerotrain --set log.metrics=m.jsonl %s cfg.ini",
                              directory, support_build(), arguments);
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    return support_read_file(in_directory("m.jsonl"), NULL);
}

/* Returns loss and grad_norm of every step, as text: free it. */
static inline char *losses_in(const char *metrics)
{
    char *losses = calloc(1, strlen(metrics) + 1);
    for (const char *line = metrics, *next; *line; line = next) {
        const char *begin = strstr(line, "\"loss\""), *end = strstr(line, "\"lr\"");
        strncat(losses, begin, (size_t)(end - begin));
        next = strchr(line, '\n');
        next = next ? next + 1 : line + strlen(line);
    }
    return losses;
}

/* Returns the last row: json_decref it. */
static inline json_t *last_row(const char *metrics)
{
    const char *row = metrics;
    for (const char *end; (end = strchr(row, '\n')) && end[1]; row = end + 1)
        ;
    json_t *json = json_loads(row, JSON_DISABLE_EOF_CHECK, NULL);
    ck_assert_msg(json != NULL, "no row in %s", metrics);
    return json;
}

#endif
