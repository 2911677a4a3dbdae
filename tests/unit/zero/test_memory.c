/* test_memory.c - memory is a plan: what is planned is what --plan prints, what the engine counts and what the process
 * uses; it agrees with the table of stages; and a step in steady state allocates nothing.
 *
 * tests/mpi/memory_cases does the work on several ranks; the claims are here.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 120.0

/* Of what a bf16 state weighs a parameter: padding of tensors, shards and buffers to whole pages is the rest. */
#define TABLE_TOLERANCE 0.02
/* Of the plan's total. We measured 0.1% to 0.5%: 0.7 MB, the buffer through which initial weights pass, which malloc
 * keeps. */
#define MEASURED_TOLERANCE 0.02

/* ---- Held, planned, printed, measured ---- */

/* 29.4 million parameters; few positions, so that most of the held memory is the model's state. */
#define DIM 512.0
#define VOCAB 8192.0
#define SEQ_LEN 64.0
static const char big_model[] = "[model]\nlayers = 8\ndim = 512\nheads = 8\nvocab_size = 8192\nseq_len = 64\n"
                                "[data]\ntrain = not-read\n"
                                "[train]\nmicro_batch = 1\nprecision = bf16\n";

/* Returns the number after "NAME:" at the start of a line; -1 if there is none. */
static double value_of(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            return strtod(line + length + 1, NULL);
    return -1.0;
}

/* From the table that --plan prints: a row begins with the category's name and has a number a stage. */
static double planned_of(const char *table, const char *name, int stage)
{
    unsigned long long columns[4];
    const char *row = strstr(table, name);
    while (row && row != table && row[-1] != '\n')
        row = strstr(row + 1, name);
    /* The name begins a line, and no name begins another. */
    ck_assert_msg(row && sscanf(row + strlen(name), " %llu %llu %llu %llu", &columns[0], &columns[1], &columns[2],
                                &columns[3]) == 4,
                  "no row '%s' in\n%s", name, table);
    return (double)columns[stage];
}

static void expect_part(const char *what, double bytes, double expected, double tolerance)
{
    ck_assert_msg(fabs(bytes - expected) <= tolerance * expected, "%s: %.0f bytes, expected %.0f (%+.2f%%)", what,
                  bytes, expected, 100 * (bytes / expected - 1));
}

static const char *const categories[] = {"parameters",
                                         "unsharded parameters",
                                         "gradients",
                                         "unsharded gradients",
                                         "optimizer state",
                                         "communication",
                                         "activations",
                                         "workspace",
                                         "data",
                                         "total"};

static void check_against_plan(const char *held, const char *table, int stage)
{
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        double bytes = value_of(held, categories[i]), planned = planned_of(table, categories[i], stage);
        ck_assert_msg(bytes == planned, "stage %d, %s: %.0f bytes held, --plan says %.0f", stage, categories[i], bytes,
                      planned);
    }
}

/* The design's table for bf16: 2 bytes of weights, 2 of gradients on the wire, 4 of their fp32 sums, and 10 of state
 * (the master's low half, m and v), each whole or divided by the number of ranks. One rank adds nothing up above stage
 * 0: its reduced gradients stay in 2. */
static void check_against_table(const char *held, int stage, double n_ranks)
{
    double p = value_of(held, "n_params");
    double state = stage == 0 ? 10 * p : 10 * p / n_ranks, params = stage < 3 ? 2 * p : 2 * p / n_ranks;
    double reduced = n_ranks == 1 && stage > 0 ? 2 * p : 4 * p / n_ranks;
    double grads = stage == 0 ? 6 * p : stage == 1 ? 2 * p + reduced : reduced;
    expect_part("optimizer state", value_of(held, "optimizer state"), state, TABLE_TOLERANCE);
    expect_part("parameters", value_of(held, "parameters"), params, TABLE_TOLERANCE);
    expect_part("gradients", value_of(held, "gradients"), grads, TABLE_TOLERANCE);

    /* Unsharded buffers: one block in use and one ahead (or, of gradients, one on its way), and beside them the
     * embeddings and the final norm, for the head uses the token table. One rank has its parameters whole and needs
     * none for them. */
    double block = 12 * DIM * DIM + 13 * DIM, embeddings = (VOCAB + SEQ_LEN) * DIM;
    double buffers = 2 * (2 * block + embeddings + 2 * DIM);
    expect_part("unsharded parameters", value_of(held, "unsharded parameters"), stage == 3 && n_ranks > 1 ? buffers : 0,
                TABLE_TOLERANCE);
    expect_part("unsharded gradients", value_of(held, "unsharded gradients"), stage >= 2 ? buffers : 0,
                TABLE_TOLERANCE);
    if (stage == 3) {
        double sum = value_of(held, "parameters") + value_of(held, "gradients") + value_of(held, "optimizer state");
        expect_part("model state", sum, 12 * p / n_ranks + reduced, TABLE_TOLERANCE);
    }
}

static void check_against_process(const char *held)
{
    double measured = value_of(held, "measured"), total = value_of(held, "total");
#ifdef __SANITIZE_ADDRESS__
    measured = -1; /* shadow memory is no part of the plan */
#endif
    if (measured < 0) {
        printf("SKIP: this kernel or build does not tell what a process really takes\n");
        return;
    }
    printf("%.0f bytes measured of %.0f planned (%+.2f%%)\n", measured, total, 100 * (measured / total - 1));
    expect_part("the process", measured, total, MEASURED_TOLERANCE);
}

static const struct {
    int n_ranks, stage;
} held_cases[] = {{8, 3}, {2, 0}, {2, 1}, {2, 2}, {1, 3}};

START_TEST(memory_is_as_planned_printed_and_tabled)
{
    int n_ranks = held_cases[_i].n_ranks, stage = held_cases[_i].stage, code;
    if (support_leaves_out(n_ranks) || ((_i == 1 || _i == 2) && support_is_left_to_plain_build()))
        return;
    char *directory = support_scratch(), config[4096];
    support_output_t held, plan;
    snprintf(config, sizeof config, "%s/big.ini", directory);
    support_write_file(config, big_model, strlen(big_model));
    code = support_mpirun(&plan, LIMIT_S, n_ranks, "%s/zerotrain --plan %s", support_build(), config);
    ck_assert_msg(code == 0, "--plan: exit code %d\n%s", code, plan.err);
    code = support_mpirun(&held, LIMIT_S, n_ranks, "%s/tests/mpi/memory_cases held --stage %d %s", support_build(),
                          stage, config);
    ck_assert_msg(code == 0, "%d ranks, stage %d: exit code %d\n%s", n_ranks, stage, code, support_tail(held.err));
    check_against_plan(held.out, plan.out, stage);
    check_against_table(held.out, stage, n_ranks);
    check_against_process(held.out);
    support_output_free(&held);
    support_output_free(&plan);
    free(directory);
}
END_TEST

/* ---- Steady state allocates nothing ---- */

/* Two micro-steps, every step logged and written to the metrics. The odd widths are such as OpenBLAS's kernels for
 * small matrices would allocate for. */
#define SMALL_MODEL(model)                                                                                             \
    "[model]\nlayers = 2\n" model "[data]\ntrain = text\n[train]\nsteps = 20\nmicro_batch = 2\n"                       \
    "[log]\nevery = 1\nmetrics = metrics.jsonl\n"
static const char round_model[] = SMALL_MODEL("dim = 128\nheads = 4\nvocab_size = 1000\nseq_len = 64\n");
static const char odd_model[] = SMALL_MODEL("dim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n");

static const struct {
    const char *model;
    int n_ranks, n_threads;
    const char *options; /* and the case: mixed, if blocks recompute differently */
} allocation_cases[] = {
    {round_model, 1, 1, "allocations --set train.global_batch=4 --stage 3 --set train.precision=bf16"},
    {round_model, 1, 2, "allocations --set train.global_batch=4 --stage 3 --set train.precision=fp32"},
    {round_model, 2, 1, "allocations --set train.global_batch=8 --stage 3 --set train.precision=bf16"},
    {round_model, 2, 1, "allocations --set train.global_batch=8 --stage 0 --set train.precision=fp32"},
    {round_model, 2, 1,
     "allocations --set train.global_batch=4 --stage 3 --set train.precision=bf16 --set model.recompute=full"},
    {round_model, 2, 1,
     "allocations --set train.global_batch=8 --stage 3 --set train.precision=bf16 --set train.fp8=linear"},
    {round_model, 4, 1,
     "allocations --set train.global_batch=8 --stage 3 --set train.precision=bf16 --set train.fp8=linear --set "
     "zero.gather=fp8 "
     "--set train.micro_batch=1 --set zero.shard_group=2"},
    {odd_model, 1, 2, "allocations --set train.global_batch=4 --stage 3 --set train.precision=fp32"},
    {odd_model, 2, 1, "allocations --set train.global_batch=24 --stage 3 --set train.precision=bf16"},
    {odd_model, 2, 1,
     "allocations --set train.global_batch=8 --stage 3 --set train.precision=fp32 --set model.recompute=light"},
    {round_model, 1, 1, "mixed --set train.global_batch=4"},
};

START_TEST(steady_state_allocates_nothing)
{
    if (_i > 0 && support_is_left_to_plain_build()) /* where nothing is counted */
        return;
    char *directory = support_scratch(), path[4096], text[20000];
    support_output_t output;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    snprintf(path, sizeof path, "%s/text", directory);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/small.ini", directory);
    support_write_file(path, allocation_cases[_i].model, strlen(allocation_cases[_i].model));
    int code = support_mpirun(&output, LIMIT_S, allocation_cases[_i].n_ranks,
                              "-wdir %s -x OMP_NUM_THREADS=%d %s/tests/mpi/memory_cases %s small.ini", directory,
                              allocation_cases[_i].n_threads, support_build(), allocation_cases[_i].options);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", allocation_cases[_i].options, code, support_tail(output.err));
    if (support_count(output.out, "nothing counted") > 0)
        printf("SKIP: this build's allocator is not ours to count\n");
    else
        ck_assert_uint_eq(support_count(output.out, "counted"), (size_t)allocation_cases[_i].n_ranks);
    support_output_free(&output);
    free(directory);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("memory");
    TCase *memory = tcase_create("memory");
    tcase_set_timeout(memory, 2 * LIMIT_S + 10);
    TCase *lengthy = support_long_case(s, 2 * LIMIT_S + 10);
    SUPPORT_ADD_LOOP(memory, lengthy, memory_is_as_planned_printed_and_tabled, 2,
                     (int)(sizeof held_cases / sizeof held_cases[0]));
    SUPPORT_ADD_LOOP(memory, lengthy, steady_state_allocates_nothing, 6,
                     (int)(sizeof allocation_cases / sizeof allocation_cases[0]));
    suite_add_tcase(s, memory);
    return s;
}

int main(void)
{
    return support_main(suite());
}
