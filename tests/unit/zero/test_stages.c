/* test_stages.c - the first promise, as a user meets it: sharding, prefetching, recomputing and the transport change
 * where bytes are and when they move, never a bit of the result.
 *
 * zerotrain runs on sizes without common divisors (dim 36, 3 heads, vocab 259, seq 17), and the text of loss and
 * grad_norm is compared as it is in the metrics: %.9g gives every fp32 value a different text, so equal text means
 * equal bits. Runs of one case are started a few at a time: mpirun mostly waits.
 */
#define SUPPORT_SANITIZE_SOME
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define N_STEPS 20
#define N_AT_ONCE 4
#define RUN_LIMIT_S 120.0

/* One run of zerotrain. */
typedef struct training {
    int n_ranks;
    char arguments[512];
    char metrics_path[512];
    char *metrics; /* what it wrote there */
    int exit_code;
    support_output_t output;
} training_t;

static char scratch[400];

static const char CONFIG[] = "[model]\nlayers = 3\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
                             "[data]\ntrain = %s/train.txt\n"
                             "[train]\nsteps = %d\nglobal_batch = 24\nlr = 3e-3\nwarmup_steps = 3\nprecision = fp32\n"
                             "[log]\nevery = 0\n";

/* Random words: something to learn, so that weights change and differences would show. */
static void write_text(const char *name, size_t n_bytes, uint64_t seed)
{
    static const char *const words[] = {"static ", "int ", "const char *", "return ", "if (", ") {\n", "}\n", "0;\n"};
    char path[512], *text = malloc(n_bytes + 16);
    size_t n = 0;
    while (n < n_bytes) {
        uint64_t random = support_random(&seed);
        const char *word = words[random % 8];
        if (random >> 32 & 1)
            text[n++] = (char)('a' + (random >> 40) % 26);
        memcpy(text + n, word, strlen(word));
        n += strlen(word);
    }
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, n_bytes);
    free(text);
}

static void set_up(void)
{
    char *directory = support_scratch(), path[512], text[1024];
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    write_text("train.txt", 200000, 1);
    write_text("val.txt", 3000, 2);
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    int n_bytes = snprintf(text, sizeof text, CONFIG, scratch, N_STEPS);
    support_write_file(path, text, (size_t)n_bytes);
}

/* ---- Runs ---- */

__attribute__((format(printf, 2, 3))) static training_t with(int n_ranks, const char *format, ...)
{
    static int n_made;
    training_t run = {.n_ranks = n_ranks};
    va_list args;
    va_start(args, format);
    vsnprintf(run.arguments, sizeof run.arguments, format, args);
    va_end(args);
    snprintf(run.metrics_path, sizeof run.metrics_path, "%s/metrics.%d", scratch, n_made++);
    return run;
}

static void train(training_t *run)
{
    run->exit_code =
        support_mpirun(&run->output, RUN_LIMIT_S, run->n_ranks, "%s/zerotrain %s --set log.metrics=%s %s/cfg.ini",
                       support_build(), run->arguments, run->metrics_path, scratch);
}

/* Runs them all; each must succeed and write all its steps. */
static void train_all(training_t *runs, int n_runs)
{
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < n_runs; i++)
        train(&runs[i]);
    for (int i = 0; i < n_runs; i++) {
        ck_assert_msg(runs[i].exit_code == 0, "%d ranks, %s: exit code %d\n%s", runs[i].n_ranks, runs[i].arguments,
                      runs[i].exit_code, runs[i].output.err);
        runs[i].metrics = support_read_file(runs[i].metrics_path, NULL);
        ck_assert_msg(support_count(runs[i].metrics, "\n") == N_STEPS, "%d ranks, %s wrote\n%s", runs[i].n_ranks,
                      runs[i].arguments, runs[i].metrics);
    }
}

static void forget(training_t *runs, int n_runs)
{
    for (int i = 0; i < n_runs; i++) {
        support_output_free(&runs[i].output);
        free(runs[i].metrics);
    }
}

/* ---- What they wrote ---- */

typedef struct field {
    char text[40];
} field_t;

/* Returns the text of a field of step 1..N_STEPS; "absent" if the step has no such field. */
static field_t field_of(const training_t *run, int step, const char *name)
{
    field_t field = {"absent"};
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\"%s\": ", name);
    const char *line = run->metrics;
    for (int i = 1; i < step; i++)
        line = strchr(line, '\n') + 1;
    const char *end = strchr(line, '\n'), *at = strstr(line, pattern);
    if (at && at < end) {
        at += strlen(pattern);
        snprintf(field.text, sizeof field.text, "%.*s", (int)strcspn(at, ",}\n"), at);
    }
    return field;
}

static double number_of(const training_t *run, int step, const char *name)
{
    field_t field = field_of(run, step, name);
    char *end;
    double number = strtod(field.text, &end);
    return end != field.text && *end == 0 ? number : (double)NAN;
}

static bool is_same(const training_t *a, const training_t *b, int step, const char *name)
{
    return strcmp(field_of(a, step, name).text, field_of(b, step, name).text) == 0;
}

static void expect_same(const training_t *a, const training_t *b)
{
    static const char *const names[] = {"loss", "grad_norm", "val_loss"};
    for (int step = 1; step <= N_STEPS; step++)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            ck_assert_msg(is_same(a, b, step, names[i]), "step %d: %s is %s with %d ranks, %s; %s with %d ranks, %s",
                          step, names[i], field_of(a, step, names[i]).text, a->n_ranks, a->arguments,
                          field_of(b, step, names[i]).text, b->n_ranks, b->arguments);
}

/* Some step differs: the comparison can find differences. */
static void expect_different(const training_t *a, const training_t *b)
{
    for (int step = 1; step <= N_STEPS; step++)
        if (!is_same(a, b, step, "loss") || !is_same(a, b, step, "grad_norm"))
            return;
    ck_abort_msg("the same results with %d ranks, %s and with %d ranks, %s", a->n_ranks, a->arguments, b->n_ranks,
                 b->arguments);
}

/* Largest relative difference over the steps. */
static double distance(const training_t *a, const training_t *b, const char *name)
{
    double largest = 0.0;
    for (int step = 1; step <= N_STEPS; step++)
        largest = fmax(largest, support_relative_error(number_of(a, step, name), number_of(b, step, name)));
    return largest;
}

static void expect_close(const training_t *a, const training_t *b, double loss_bound, double norm_bound)
{
    double loss = distance(a, b, "loss"), norm = distance(a, b, "grad_norm");
    ck_assert_msg(loss <= loss_bound && norm <= norm_bound,
                  "loss differs by %.2e (bound %.1e), grad_norm by %.2e (bound %.1e): %d ranks, %s; %d ranks, %s", loss,
                  loss_bound, norm, norm_bound, a->n_ranks, a->arguments, b->n_ranks, b->arguments);
}

/* It trained: finite numbers, and a loss that fell. fp16 may skip steps while it looks for its loss scale. */
static void expect_learning(const training_t *run, int n_skipped_allowed)
{
    int n_skipped = 0;
    for (int step = 1; step <= N_STEPS; step++)
        n_skipped += strcmp(field_of(run, step, "skipped").text, "false") != 0 ||
                     !isfinite(number_of(run, step, "grad_norm")) || !isfinite(number_of(run, step, "loss"));
    ck_assert_msg(n_skipped <= n_skipped_allowed, "%d ranks, %s: %d steps were skipped", run->n_ranks, run->arguments,
                  n_skipped);
    double first = number_of(run, 1, "loss"), last = number_of(run, N_STEPS, "loss");
    ck_assert_msg(last < 0.95 * first, "%d ranks, %s: the loss went from %g to %g", run->n_ranks, run->arguments, first,
                  last);
}

/* ---- Promises ---- */

static const struct {
    int n_ranks;
    const char *precision;
    bool has_others; /* the code of other cases on other numbers */
} CASES[] = {{1, "fp32", false}, {2, "fp32", false}, {3, "fp32", true},  {4, "fp32", true}, {8, "fp32", true},
             {1, "bf16", true},  {2, "bf16", true},  {3, "bf16", false}, {8, "bf16", true}, {3, "fp16", false}};
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

START_TEST(every_stage_and_prefetch_gives_the_same_bits)
{
    const int n_ranks = CASES[_i].n_ranks;
    const char *precision = CASES[_i].precision;
    if (support_leaves_out(n_ranks) || (CASES[_i].has_others && support_is_left_to_plain_build()))
        return;
    enum { PREFETCH_0 = 4, PREFETCH_3, N };
    training_t runs[N];
    for (int stage = 0; stage < 4; stage++)
        runs[stage] = with(n_ranks, "--stage %d --set train.precision=%s", stage, precision);
    runs[PREFETCH_0] =
        with(n_ranks, "--stage 3 --set train.precision=%s --set zero.prefetch=0 --set zero.keep=1", precision);
    runs[PREFETCH_3] = with(n_ranks, "--stage 3 --set train.precision=%s --set zero.prefetch=3", precision);
    train_all(runs, N);
    expect_learning(&runs[0], strcmp(precision, "fp16") == 0 ? 5 : 0);
    for (int i = 1; i < N; i++)
        expect_same(&runs[0], &runs[i]);
    /* They did differ in what they held: the options were not ignored. */
    if (n_ranks > 1) {
        for (int stage = 1; stage < 4; stage++)
            ck_assert(number_of(&runs[0], 1, "device_bytes") > number_of(&runs[stage], 1, "device_bytes"));
        ck_assert(number_of(&runs[PREFETCH_0], 1, "device_bytes") < number_of(&runs[PREFETCH_3], 1, "device_bytes"));
    }
    forget(runs, N);
}
END_TEST

/* A Llama whose heads share keys and values: its gradients are written by matrix products over packed tensors. */
#define LLAMA "--set model.arch=llama --set model.kv_heads=1 --set model.ffn_dim=77 "

START_TEST(llama_has_the_same_bits_at_every_stage_and_recomputation)
{
    const int n_ranks = _i + 1;
    const char *precision = n_ranks == 2 ? "bf16" : "fp32";
    enum { LIGHT = 4, FULL, ACCUMULATED_2, ACCUMULATED_3, N };
    training_t runs[N];
    if (n_ranks == 1 && support_is_left_to_plain_build())
        return;
    for (int stage = 0; stage < 4; stage++)
        runs[stage] = with(n_ranks, LLAMA "--stage %d --set train.precision=%s", stage, precision);
    runs[LIGHT] = with(n_ranks, LLAMA "--stage 3 --set train.precision=%s --set model.recompute=light", precision);
    runs[FULL] = with(n_ranks, LLAMA "--stage 1 --set train.precision=%s --set model.recompute=full", precision);
    for (int stage = 2; stage < 4; stage++)
        runs[ACCUMULATED_2 + stage - 2] =
            with(n_ranks, LLAMA "--stage %d --set train.precision=%s --set train.micro_batch=2", stage, precision);
    train_all(runs, N);
    expect_learning(&runs[0], 0);
    for (int i = 1; i <= FULL; i++)
        expect_same(&runs[0], &runs[i]);
    expect_same(&runs[ACCUMULATED_2], &runs[ACCUMULATED_3]);
    ck_assert_msg(strstr(runs[0].output.err, "Llama of "), "%s", runs[0].output.err);
    forget(runs, N);
}
END_TEST

/* Extents that are multiples of 16, as fp8 needs. */
#define FP8 "--set train.precision=bf16 --set model.dim=48 --set model.seq_len=16 --set train.fp8="

START_TEST(fp8_has_the_same_bits_at_every_stage_prefetch_gather_and_recomputation)
{
    const int n_ranks = _i / 2 + 1;
    const char *arch = _i % 2 == 0 ? "" : "--set model.arch=llama --set model.kv_heads=1 --set model.ffn_dim=80 ";
    enum { PREFETCH_0 = 4, LIGHT, FULL, ACCUMULATED_1, ACCUMULATED_3, BF16, N };
    training_t runs[N];
    if (_i != 2 && _i != 5 && support_is_left_to_plain_build()) /* GPT-2 on two ranks, Llama on three */
        return;
    for (int stage = 0; stage < 4; stage++)
        runs[stage] = with(n_ranks, "%s" FP8 "linear --stage %d --set zero.gather=fp8", arch, stage);
    runs[PREFETCH_0] = with(n_ranks, "%s" FP8 "linear --set zero.prefetch=0", arch);
    runs[LIGHT] = with(n_ranks, "%s" FP8 "linear --stage 1 --set model.recompute=light", arch);
    runs[FULL] =
        with(n_ranks, "%s" FP8 "linear --set zero.prefetch=2 --set zero.gather=fp8 --set model.recompute=full", arch);
    runs[ACCUMULATED_1] = with(
        n_ranks, "%s" FP8 "linear --set train.micro_batch=4 --stage 1 --set zero.reduce_every_micro_step=true", arch);
    runs[ACCUMULATED_3] = with(n_ranks, "%s" FP8 "linear --set train.micro_batch=4", arch);
    runs[BF16] = with(n_ranks, "%s" FP8 "none", arch);
    train_all(runs, N);
    expect_learning(&runs[0], 0);
    for (int i = 1; i <= FULL; i++)
        expect_same(&runs[0], &runs[i]);
    expect_same(&runs[ACCUMULATED_1], &runs[ACCUMULATED_3]);
    expect_different(&runs[0], &runs[BF16]);
    /* fp8 keeps 3 bits and bf16 7: an element is off by up to 6%, a loss over 20 steps by what we measured, 0.6%. */
    expect_close(&runs[0], &runs[BF16], 0.02, 0.25);
    forget(runs, N);
}
END_TEST

START_TEST(two_runs_give_equal_bits)
{
    if (_i == 0 && support_is_left_to_plain_build())
        return;
    setenv("OMP_NUM_THREADS", _i == 0 ? "1" : "2", 1);
    enum { N = 4 };
    training_t runs[N] = {with(3, "--set train.precision=fp32"), with(3, "--set train.precision=fp32"),
                          with(2, "--set train.precision=bf16"), with(2, "--set train.precision=bf16")};
    train_all(runs, N);
    expect_same(&runs[0], &runs[1]);
    expect_same(&runs[2], &runs[3]);
    forget(runs, N);
}
END_TEST

/* A comparison that cannot fail proves nothing. */
START_TEST(another_seed_rate_or_precision_gives_other_losses)
{
    enum { N = 5 };
    training_t runs[N] = {with(2, "--set train.seed=1"), with(2, "--set train.seed=2"),
                          with(2, "--set train.lr=3.001e-3"), with(2, "--set train.precision=bf16"),
                          with(2, "--set train.global_batch=26")};
    train_all(runs, N);
    for (int i = 1; i < N; i++)
        expect_different(&runs[0], &runs[i]);
    ck_assert(!is_same(&runs[0], &runs[1], 1, "loss")); /* other weights and other data from the start */
    ck_assert(is_same(&runs[0], &runs[2], 1, "loss"));  /* the rate shows only after an update */
    forget(runs, N);
}
END_TEST

START_TEST(recomputing_gives_the_same_bits)
{
    const char *precision = _i == 0 ? "fp32" : "bf16";
    if (_i == 0 && support_is_left_to_plain_build())
        return;
    enum { N = 5 };
    training_t runs[N] = {
        with(2, "--stage 3 --set train.precision=%s --set model.recompute=none", precision),
        with(2, "--stage 3 --set train.precision=%s --set model.recompute=light", precision),
        with(2, "--stage 3 --set train.precision=%s --set model.recompute=full", precision),
        with(2, "--stage 0 --set train.precision=%s --set model.recompute=full", precision),
        with(2, "--stage 3 --set train.precision=%s --set model.recompute=full --set zero.prefetch=0", precision)};
    train_all(runs, N);
    for (int i = 1; i < N; i++)
        expect_same(&runs[0], &runs[i]);
    for (int i = 1; i < 3; i++) /* it did save memory */
        ck_assert(number_of(&runs[i], 1, "device_bytes") < number_of(&runs[i - 1], 1, "device_bytes"));
    forget(runs, N);
}
END_TEST

/* host: all four ranks are on one. */
START_TEST(shard_groups_give_the_same_bits)
{
    static const char *const groups[] = {"world", "1", "2", "host", "2 --set zero.comm=mpi"};
    enum { N_RUNS = sizeof groups / sizeof groups[0] };
    training_t runs[N_RUNS];
    if (support_leaves_out(4))
        return;
    for (int i = 0; i < N_RUNS; i++)
        runs[i] = with(4,
                       "--set zero.shard_group=%s --set train.precision=bf16 --set train.micro_batch=3 "
                       "--set data.val=%s/val.txt --set train.eval_every=7",
                       groups[i], scratch);
    train_all(runs, N_RUNS);
    for (int i = 1; i < N_RUNS; i++)
        expect_same(&runs[0], &runs[i]);
    forget(runs, N_RUNS);
}
END_TEST

START_TEST(messages_give_the_bits_of_shared_memory)
{
    const int n_ranks = _i == 0 ? 3 : 8;
    if (support_leaves_out(n_ranks))
        return;
    enum { N = 6 };
    training_t runs[N] = {with(n_ranks, "--stage 3 --set train.precision=bf16"),
                          with(n_ranks, "--stage 3 --set train.precision=bf16 --set zero.overlap=false")};
    for (int stage = 0; stage < 4; stage++)
        runs[2 + stage] = with(n_ranks, "--stage %d --set train.precision=bf16 --set zero.comm=mpi", stage);
    train_all(runs, N);
    for (int i = 1; i < N; i++)
        expect_same(&runs[0], &runs[i]);
    ck_assert_msg(strstr(runs[0].output.err, "(node)") && strstr(runs[2].output.err, "(mpi)"), "%s%s",
                  runs[0].output.err, runs[2].output.err);
    forget(runs, N);
}
END_TEST

/* The same file runs on GPUs and here; here a line says that the setting has no effect. */
START_TEST(nccl_reduction_changes_nothing_on_the_cpu)
{
    enum { N = 2 };
    training_t runs[N] = {with(2, "--set train.precision=bf16"),
                          with(2, "--set train.precision=bf16 --set zero.reduction=nccl")};
    train_all(runs, N);
    expect_same(&runs[0], &runs[1]);
    ck_assert(!strstr(runs[0].output.err, "reduction"));
    ck_assert_msg(strstr(runs[1].output.err, "[zero] reduction = nccl changes nothing here"), "%s", runs[1].output.err);
    forget(runs, N);
}
END_TEST

/* Stages 0-1 may add up the micro-steps' gradients locally and reduce once; 2-3 always reduce every micro-step. */
START_TEST(accumulating_gives_the_same_bits_where_it_is_promised)
{
    const int n_ranks = _i < 2 ? 2 : 3;
    const int micro_batch = n_ranks == 2 ? 4 : 2; /* 3 and 4 micro-steps */
    const char *precision = _i % 2 == 0 ? "fp32" : "bf16";
    enum { ONCE = 4, PREFETCH_0 = 6, FULL, N };
    training_t runs[N];
    if ((_i == 1 || _i == 2) && support_is_left_to_plain_build())
        return;
    for (int stage = 0; stage < 4; stage++)
        runs[stage] = with(n_ranks, "--stage %d --set train.precision=%s --set train.micro_batch=%d", stage, precision,
                           micro_batch);
    for (int stage = 0; stage < 2; stage++)
        runs[ONCE + stage] = with(n_ranks,
                                  "--stage %d --set train.precision=%s --set train.micro_batch=%d "
                                  "--set zero.reduce_every_micro_step=false",
                                  stage, precision, micro_batch);
    runs[PREFETCH_0] =
        with(n_ranks, "--stage 3 --set train.precision=%s --set train.micro_batch=%d --set zero.prefetch=0", precision,
             micro_batch);
    runs[FULL] =
        with(n_ranks, "--stage 3 --set train.precision=%s --set train.micro_batch=%d --set model.recompute=full",
             precision, micro_batch);
    train_all(runs, N);
    expect_learning(&runs[0], 0);
    for (int i = 1; i < N; i++)
        if (i != ONCE && i != ONCE + 1)
            expect_same(&runs[0], &runs[i]);
    expect_same(&runs[ONCE], &runs[ONCE + 1]);
    expect_different(&runs[0], &runs[ONCE]); /* or the setting would have nothing to do */
    ck_assert(strstr(runs[ONCE].output.err, "reduce_every_micro_step = false: the last bits of results depend on"));
    ck_assert(!strstr(runs[0].output.err, "reduce_every_micro_step"));
    forget(runs, N);
}
END_TEST

/* At other stages, and on one rank, they have no effect, and a line says so. */
START_TEST(settings_of_stage_3_are_named_where_they_are_idle)
{
    enum { N = 3 };
    training_t runs[N];
    for (int i = 0; i < N - 1; i++)
        runs[i] = with(2, "--stage %d --set zero.shard_group=1 --set zero.keep=1", 2 + i);
    runs[2] = with(1, "--stage 3 --set zero.keep=1 --set zero.prefetch=2");
    train_all(runs, N);
    expect_same(&runs[0], &runs[1]);
    ck_assert(strstr(runs[0].output.err, "[zero] shard_group changes nothing at stage 2"));
    ck_assert(strstr(runs[0].output.err, "[zero] keep changes nothing at stage 2"));
    ck_assert(!strstr(runs[1].output.err, "changes nothing"));
    ck_assert(strstr(runs[2].output.err, "[zero] keep changes nothing on one rank"));
    ck_assert(strstr(runs[2].output.err, "[zero] prefetch changes nothing on one rank"));
    forget(runs, N);
}
END_TEST

/* Batches that follow the number of ranks: a line says so. */
START_TEST(bits_that_depend_on_ranks_are_named)
{
    static const struct {
        const char *settings, *says; /* NULL: nothing */
    } cases[] = {{"--set train.micro_batch=4", NULL},
                 {"", "[train] micro_batch is not set: the last bits of results depend on the number of ranks"},
                 {"--set train.micro_batch=auto", "[train] micro_batch is auto: the last bits"},
                 {"--set train.global_batch=0 --set train.micro_batch=4",
                  "[train] global_batch is not set: results depend on the number of ranks"}};
    enum { N = sizeof cases / sizeof cases[0] };
    training_t runs[N];
    for (int i = 0; i < N; i++)
        runs[i] = with(2, "%s", cases[i].settings);
    train_all(runs, N);
    for (int i = 0; i < N; i++) {
        const char *err = runs[i].output.err;
        ck_assert_uint_eq(support_count(err, "depend on the number of ranks"), cases[i].says ? 1 : 0);
        ck_assert_msg(!cases[i].says || strstr(err, cases[i].says), "%s: %s", cases[i].settings, err);
    }
    forget(runs, N);
}
END_TEST

/* Micro-batches of two sequences: 12 in a step, in whose order all sums are taken. Every number of ranks occurs with
 * stages, transports and prefetch that others do not have. With ZERO_TEST_SLOW every number of ranks runs at every
 * stage and over both transports (part `long` of launch/check), and the last row, too. */
#define TWELVE                                                                                                         \
    "--set train.micro_batch=2 --set train.eval_every=9 --set data.val=%s/val.txt --set train.precision=%s %s "

static const struct {
    const char *precision, *settings;
    bool skips; /* a step: at this rate numbers grow until they overflow */
} RUNS_OF_TWELVE[] = {{"fp32", "", false},
                      {"bf16", "", false},
                      {"bf16", LLAMA, false},
                      {"fp16", "--set train.lr=20", true},
                      {"fp32", LLAMA, false}};
enum { N_RUNS_OF_TWELVE = sizeof RUNS_OF_TWELVE / sizeof RUNS_OF_TWELVE[0] };

static int few_ways(training_t *runs, const char *precision, const char *settings, bool is_first)
{
    static const struct {
        int n_ranks;
        const char *way;
    } ways[] = {{1, "--stage 0"},
                {2, "--stage 3 --set zero.comm=mpi"},
                {3, "--stage 1"},
                {4, "--stage 2 --set zero.comm=mpi"},
                {6, "--stage 3 --set zero.prefetch=0 --set model.recompute=full"},
                {12, "--stage 1"},
                {2, "--stage 0 --set zero.overlap=false"},
                {4, "--stage 3 --set zero.prefetch=3"}};
    const int n_ways = is_first ? 8 : 5;
    for (int i = 0; i < n_ways; i++)
        runs[i] = with(ways[i].n_ranks, TWELVE "%s", scratch, precision, settings, ways[i].way);
    return n_ways;
}

static int all_ways(training_t *runs, const char *precision, const char *settings)
{
    static const int rank_counts[] = {1, 2, 3, 4, 6, 12};
    int n = 0;
    for (int i = 0; i < 6; i++)
        for (int stage = 0; stage < 4; stage++)
            for (int mpi = 0; mpi < 2; mpi++)
                runs[n++] = with(rank_counts[i], TWELVE "--stage %d --set zero.comm=%s", scratch, precision, settings,
                                 stage, mpi ? "mpi" : "auto");
    return n;
}

START_TEST(any_number_of_ranks_gives_the_same_bits)
{
    static training_t runs[48];
    const char *precision = RUNS_OF_TWELVE[_i].precision, *settings = RUNS_OF_TWELVE[_i].settings;
    if (support_leaves_out(12))
        return;
    int n =
        getenv("ZERO_TEST_SLOW") ? all_ways(runs, precision, settings) : few_ways(runs, precision, settings, _i == 0);
    train_all(runs, n);
    if (RUNS_OF_TWELVE[_i].skips)
        ck_assert(support_count(runs[0].metrics, "\"skipped\": true") > 0);
    else
        expect_learning(&runs[0], 0);
    ck_assert(strcmp(field_of(&runs[0], N_STEPS, "val_loss").text, "absent") != 0);
    for (int i = 1; i < n; i++)
        expect_same(&runs[0], &runs[i]);
    forget(runs, n);
}
END_TEST

/* Evaluation and sampling use the same unsharded buffers between steps; they must not affect training. */
START_TEST(evaluating_and_sampling_change_nothing_and_agree_over_stages)
{
    enum { N = 5 };
    training_t runs[N];
    for (int stage = 0; stage < 4; stage++)
        runs[stage] = with(3, "--stage %d --set train.eval_every=7 --set data.val=%s/val.txt%s", stage, scratch,
                           stage == 3 ? " --set train.sample_every=10" : "");
    runs[4] = with(3, "--stage 3");
    train_all(runs, N);
    for (int stage = 1; stage < 4; stage++)
        expect_same(&runs[0], &runs[stage]);
    ck_assert(isfinite(number_of(&runs[3], 7, "val_loss")));
    ck_assert_str_eq(field_of(&runs[3], 8, "val_loss").text, "absent");
    for (int step = 1; step <= N_STEPS; step++)
        ck_assert_msg(is_same(&runs[3], &runs[4], step, "loss") && is_same(&runs[3], &runs[4], step, "grad_norm"),
                      "step %d: evaluating or sampling changed the training", step);
    forget(runs, N);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("stages");
    TCase *promises = tcase_create("bits");
    tcase_add_checked_fixture(promises, set_up, NULL);
    tcase_set_timeout(promises, 10 * RUN_LIMIT_S);
    TCase *lengthy = support_long_case(suite, 12 * RUN_LIMIT_S);
    tcase_add_checked_fixture(lengthy, set_up, NULL);
    tcase_add_loop_test(promises, every_stage_and_prefetch_gives_the_same_bits, 0, N_CASES);
    SUPPORT_ADD_LOOP(promises, lengthy, llama_has_the_same_bits_at_every_stage_and_recomputation, 1, 3);
    SUPPORT_ADD_LOOP(promises, lengthy, two_runs_give_equal_bits, 1, 2);
    tcase_add_test(promises, another_seed_rate_or_precision_gives_other_losses);
    tcase_add_loop_test(promises, recomputing_gives_the_same_bits, 0, 2);
    tcase_add_test(promises, nccl_reduction_changes_nothing_on_the_cpu);
    tcase_add_test(promises, shard_groups_give_the_same_bits);
    tcase_add_loop_test(promises, messages_give_the_bits_of_shared_memory, 0, 2);
    SUPPORT_ADD_LOOP(promises, lengthy, accumulating_gives_the_same_bits_where_it_is_promised, 2, 4);
    tcase_add_test(promises, settings_of_stage_3_are_named_where_they_are_idle);
    tcase_add_test(promises, bits_that_depend_on_ranks_are_named);
    tcase_add_test(promises, evaluating_and_sampling_change_nothing_and_agree_over_stages);
    suite_add_tcase(suite, promises);
    TCase *elastic = tcase_create(getenv("ZERO_TEST_SLOW") ? "long" : "elastic");
    tcase_add_checked_fixture(elastic, set_up, NULL);
    tcase_set_timeout(elastic, 10 * RUN_LIMIT_S);
    tcase_add_loop_test(elastic, any_number_of_ranks_gives_the_same_bits, 0,
                        getenv("ZERO_TEST_SLOW") ? N_RUNS_OF_TWELVE : N_RUNS_OF_TWELVE - 1);
    suite_add_tcase(suite, elastic);
    TCase *fp8 = tcase_create("fp8");
    tcase_add_checked_fixture(fp8, set_up, NULL);
    tcase_set_timeout(fp8, 12 * RUN_LIMIT_S);
    SUPPORT_ADD_LOOP(fp8, lengthy, fp8_has_the_same_bits_at_every_stage_prefetch_gather_and_recomputation, 2, 3 * 2);
    suite_add_tcase(suite, fp8);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
