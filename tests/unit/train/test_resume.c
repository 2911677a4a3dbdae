/* test_resume.c - checkpoints and --resume as a user of zerotrain meets them: a run that stops and resumes equals the
 * run that never stopped, to the bit and to the row of its metrics, also at another stage; what cannot be resumed or
 * saved is one line and an exit code; nothing that was saved is lost.
 *
 * Text of loss and grad_norm is compared as it is in the metrics: %.9g gives every fp32 value a different text.
 */
#define SUPPORT_SANITIZE_SOME
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/data/resume_check.h"
#include "train/options/options_table.h"

#define RUN_LIMIT_S 60.0
#define N_STEPS 20
#define ALONE 0 /* ranks: one, without mpirun */

/* Sizes without common divisors, and two micro-steps, so that a step has several batches. */
static const char CONFIG[] = "[model]\nlayers = 2\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
                             "[data]\ntrain = text.txt\n"
                             "[train]\nsteps = 20\nglobal_batch = 24\nlr = 3e-3\nwarmup_steps = 3\n"
                             "[checkpoint]\ndir = ck\n"
                             "[log]\nevery = 0\nmetrics = m.jsonl\n";

static char root[400];

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void set_up(void)
{
    char *directory = support_scratch(), text[9000] = "a";
    uint64_t seed = 1;
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    for (size_t i = 1; i < sizeof text; i++) /* letters that follow their predecessors: something to learn */
        text[i] = (char)('a' + (text[i - 1] - 'a' + 1 + (int)(support_random(&seed) % 3)) % 26);
    support_write_file(path_of("text.txt"), text, sizeof text);
    support_write_file(path_of("short.txt"), text, sizeof text - 500);
    text[sizeof text / 2] = 'X'; /* as many bytes */
    support_write_file(path_of("other.txt"), text, sizeof text);
    support_write_file(path_of("cfg.ini"), CONFIG, sizeof CONFIG - 1);
}

/* ---- runs ---- */

static support_output_t output; /* of the last run */

__attribute__((format(printf, 2, 3))) static int run(int n_ranks, const char *format, ...)
{
    char arguments[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(arguments, sizeof arguments, format, args);
    va_end(args);
    support_output_free(&output);
    if (n_ranks == ALONE)
        return support_run(&output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s cfg.ini", root, support_build(),
                           arguments);
    return support_mpirun(&output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s cfg.ini", root, support_build(),
                          arguments);
}

#define EXPECT_RUN(...) ck_assert_msg(run(__VA_ARGS__) == 0, "%s", output.err)

static int shell(const char *command)
{
    return support_run(NULL, RUN_LIMIT_S, "cd %s && %s", root, command);
}

static void expect_same_rows(const char *what, const char *a, const char *b)
{
    char *rows_a = support_metric_rows(path_of(a)), *rows_b = support_metric_rows(path_of(b));
    ck_assert_uint_eq(support_count(rows_a, "\n"), N_STEPS);
    ck_assert_msg(strcmp(rows_a, rows_b) == 0, "%s:\n%s\nis not\n%s", what, rows_b, rows_a);
    free(rows_a);
    free(rows_b);
}

/* ---- the same run ---- */

/* Stages of the first half and of the second: bf16 with equal stages, fp32 and fp16 with different ones. */
static const int STAGES[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {3, 0}, {0, 2}, {2, 1}, {1, 3}};
#define N_STAGES ((int)(sizeof STAGES / sizeof STAGES[0]))

START_TEST(a_run_stopped_and_resumed_equals_one_never_stopped)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const char *precision = precisions[_i];
    if (_i == 0 && support_is_left_to_plain_build())
        return;
    EXPECT_RUN(2, "--set train.precision=%s --set checkpoint.dir= --set log.metrics=whole.jsonl", precision);
    for (int s = _i == 1 ? 0 : N_STAGES / 2; s < (_i == 1 ? N_STAGES / 2 + 1 : N_STAGES); s++) {
        EXPECT_RUN(2, "--set train.precision=%s --stage %d --steps 10", precision, STAGES[s][0]);
        EXPECT_RUN(2, "--set train.precision=%s --stage %d --resume", precision, STAGES[s][1]);
        expect_same_rows(precision, "whole.jsonl", "m.jsonl");
        ck_assert_int_eq(shell("rm -r ck"), 0);
    }
}
END_TEST

/* Optimizers with one state array. The weights of their checkpoints are a model for any optimizer. */
START_TEST(other_optimizers_resume_exactly_at_other_stages)
{
    static const char *const optimizers[] = {"sgd", "nesterov", "lion"};
    const char *optimizer = optimizers[_i];
    if (_i == 1 && support_is_left_to_plain_build())
        return;
    EXPECT_RUN(2, "--set train.optimizer=%s --set checkpoint.dir= --set log.metrics=whole.jsonl", optimizer);
    EXPECT_RUN(2, "--set train.optimizer=%s --stage %d --steps 10", optimizer, _i + 1);
    ck_assert_int_eq(
        shell("grep -q '\"optimizer\": \"' ck/latest/state.json && ! grep -q '[.]v\"' ck/latest/optimizer-*"), 0);
    EXPECT_RUN(2, "--set train.optimizer=%s --stage %d --resume", optimizer, _i);
    expect_same_rows(optimizer, "whole.jsonl", "m.jsonl");
    ck_assert_int_ne(run(2, "--resume"), 0);
    EXPECT_RUN(2, "--set model.init=ck/latest --set checkpoint.dir= --steps 1");
    ck_assert_int_eq(shell("rm -r ck"), 0);
}
END_TEST

/* Moments are saved as the fp32 numbers that their codes stand for: other shards have the same codes again. AdamW has
 * other numbers. */
START_TEST(adamw8bit_resumes_exactly_at_other_stages_and_ranks)
{
    static const int stages[][2] = {{0, 3}, {1, 2}, {3, 0}};
    const char *adamw8bit = "--set train.optimizer=adamw8bit --set train.micro_batch=2";
    if (support_leaves_out(3))
        return;
    EXPECT_RUN(3, "--set train.micro_batch=2 --set checkpoint.dir= --set log.metrics=adamw.jsonl");
    EXPECT_RUN(3, "%s --stage 2 --set checkpoint.dir= --set log.metrics=whole.jsonl", adamw8bit);
    ck_assert_int_ne(shell("cmp -s adamw.jsonl whole.jsonl"), 0);
    for (int i = 0; i < 3; i++) {
        if (i > 0 && support_is_left_to_plain_build())
            return;
        EXPECT_RUN(3, "%s --stage %d --steps 10", adamw8bit, stages[i][0]);
        EXPECT_RUN(i == 1 ? ALONE : 3, "%s --stage %d --resume", adamw8bit, stages[i][1]);
        expect_same_rows("adamw8bit", "whole.jsonl", "m.jsonl");
        ck_assert_int_ne(run(2, "--resume"), 0); /* as AdamW */
        ck_assert_int_eq(shell("rm -r ck"), 0);
    }
}
END_TEST

/* Muon's matrices are whole on one rank during an update alone: any number of ranks goes on with their momentum. */
START_TEST(muon_resumes_exactly_at_other_stages_and_ranks)
{
    static const int stages[][2] = {{0, 3}, {1, 2}, {3, 0}};
    const char *muon = "--set train.optimizer=muon --set train.micro_batch=2";
    if (support_leaves_out(3))
        return;
    EXPECT_RUN(3, "%s --stage 2 --set checkpoint.dir= --set log.metrics=whole.jsonl", muon);
    for (int i = 0; i < 3; i++) {
        if (i > 0 && support_is_left_to_plain_build())
            return;
        EXPECT_RUN(3, "%s --stage %d --steps 10", muon, stages[i][0]);
        EXPECT_RUN(i == 1 ? ALONE : 3, "%s --stage %d --resume", muon, stages[i][1]);
        expect_same_rows("muon", "whole.jsonl", "m.jsonl");
        ck_assert_int_ne(run(2, "--resume"), 0); /* as AdamW */
        ck_assert_int_eq(shell("rm -r ck"), 0);
    }
}
END_TEST

/* Where a number is in a checkpoint does not depend on who held it. */
START_TEST(a_run_resumes_with_other_shard_groups)
{
    if (support_leaves_out(4))
        return;
    EXPECT_RUN(4, "--set train.micro_batch=3 --set checkpoint.dir= --set log.metrics=whole.jsonl");
    EXPECT_RUN(4, "--set train.micro_batch=3 --set zero.shard_group=2 --steps 5");
    EXPECT_RUN(4, "--set train.micro_batch=3 --set zero.shard_group=1 --steps 10 --resume");
    EXPECT_RUN(4, "--set train.micro_batch=3 --resume");
    expect_same_rows("groups", "whole.jsonl", "m.jsonl");
}
END_TEST

#define FP8 "--set model.dim=48 --set model.seq_len=16 --set train.precision=bf16 --set train.fp8=linear "

START_TEST(a_run_in_fp8_resumes_exactly_and_says_if_that_has_changed)
{
    EXPECT_RUN(2, FP8 "--set checkpoint.dir= --set log.metrics=whole.jsonl");
    EXPECT_RUN(2, FP8 "--stage 3 --steps 10");
    ck_assert_int_eq(shell("cp -r ck ck.10"), 0);
    EXPECT_RUN(2, FP8 "--stage 3 --resume --set model.recompute=light");
    expect_same_rows("fp8", "whole.jsonl", "m.jsonl");
    EXPECT_RUN(2, FP8 "--steps 12 --resume ck.10 --set checkpoint.dir= --set train.fp8=none");
    ck_assert_msg(support_count(output.err, "resume: train.fp8 was linear, is none\n") == 1, "%s", output.err);
}
END_TEST

START_TEST(one_rank_with_micro_steps_and_synchronous_saves_resumes_exactly)
{
    EXPECT_RUN(ALONE, "--set train.micro_batch=6 --set checkpoint.dir= --set log.metrics=whole.jsonl");
    EXPECT_RUN(ALONE, "--set train.micro_batch=6 --set checkpoint.async=false --set checkpoint.every=3 --steps 7");
    EXPECT_RUN(ALONE, "--set train.micro_batch=6 --set checkpoint.async=false --resume ck");
    expect_same_rows("one rank", "whole.jsonl", "m.jsonl");
}
END_TEST

/* Twelve micro-batches of two sequences, on numbers of ranks that divide them; one thread each, as mpirun is told. */
#define TWELVE "--set train.micro_batch=2 --set train.precision=%s "

START_TEST(another_number_of_ranks_resumes_with_the_same_bits)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const char *precision = precisions[_i];
    if (_i < 2 && support_is_left_to_plain_build())
        return;
    EXPECT_RUN(1, TWELVE "--set checkpoint.dir= --set log.metrics=whole.jsonl", precision);
    EXPECT_RUN(6, TWELVE "--stage 3 --steps 7", precision);
    EXPECT_RUN(2, TWELVE "--stage 1 --steps 13 --resume", precision);
    EXPECT_RUN(3, TWELVE "--stage %d --resume", precision, _i);
    expect_same_rows(precision, "whole.jsonl", "m.jsonl");
}
END_TEST

#define SIXTY TWELVE "--set train.steps=60 --set checkpoint.every=2 --set checkpoint.keep=1 "

/* Returns the step that was saved last; 0 if there is none. */
static int saved_step(void)
{
    char name[64] = "";
    return readlink(path_of("ck/latest"), name, sizeof name - 1) > 0 ? atoi(name + strlen("step-")) : 0;
}

/* Resumes, and kills mpirun, and its ranks with it, when so many steps more have been made: as many as it takes to
 * save, and a moment of the next ones. */
static void run_until_killed(int n_ranks, int stage, int n_steps)
{
    char row[32];
    support_write_file(path_of("m.jsonl"), "", 0); /* it may have rows of steps that a kill has lost */
    pid_t job = fork();
    ck_assert_int_ge(job, 0);
    if (job == 0) {
        char command[2048];
        snprintf(command, sizeof command,
                 "cd %s && export OMP_NUM_THREADS=1 OMPI_MCA_btl_vader_backing_directory=$PWD && exec mpirun "
                 "--oversubscribe --bind-to none -np %d %s/zerotrain " SIXTY "--stage %d --resume cfg.ini >log 2>&1",
                 root, n_ranks, support_build(), "bf16", stage);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    snprintf(row, sizeof row, "{\"step\": %d,", saved_step() + n_steps);
    for (int ms = 0; ms < (int)(RUN_LIMIT_S * 1e3) && waitpid(job, NULL, WNOHANG) == 0; ms++) {
        char *rows = support_read_file(path_of("m.jsonl"), NULL);
        bool is_made = strstr(rows, row) != NULL;
        free(rows);
        if (is_made)
            break;
        usleep(1000);
    }
    kill(job, SIGKILL);
    waitpid(job, NULL, 0);
}

/* Sixty steps, begun again on other numbers of ranks and at other stages whenever they were killed: weights and moments
 * at the end are those of a run on one rank that nobody disturbed. */
START_TEST(a_run_killed_and_resumed_on_other_numbers_of_ranks_has_the_same_weights)
{
    static const int rank_counts[] = {1, 2, 3, 4, 6, 12};
    const int n_kills = getenv("ZERO_TEST_SLOW") ? 10 : 2;
    uint64_t seed = (uint64_t)n_kills;
    int n_useful = 0;
    if (support_leaves_out(12))
        return;
    EXPECT_RUN(1, TWELVE "--set train.steps=60 --set checkpoint.dir=whole --set log.metrics=whole.jsonl", "bf16");
    EXPECT_RUN(2, SIXTY "--steps 2", "bf16");
    for (int i = 0; i < n_kills; i++) {
        int before = saved_step();
        run_until_killed(rank_counts[support_random(&seed) % 6], (int)(support_random(&seed) % 4),
                         5 + (int)(support_random(&seed) % 3));
        n_useful += saved_step() > before;
    }
    ck_assert_int_ge(n_useful, n_kills / 2); /* or the kills would all have come before the first step */
    ck_assert_int_lt(saved_step(), 60);
    EXPECT_RUN(3, SIXTY "--stage 3 --resume", "bf16");
    ck_assert_msg(shell("for f in whole/latest/*.safetensors; do cmp $f ck/latest/$(basename $f) || exit 1; done") == 0,
                  "weights or moments differ");
}
END_TEST

START_TEST(metrics_read_as_one_run_though_later_rows_were_there)
{
    EXPECT_RUN(ALONE, "--set checkpoint.every=5 --set checkpoint.keep=9 --set log.metrics=whole.jsonl");
    ck_assert_int_eq(shell("cp whole.jsonl m.jsonl; printf '{\"step\": 21, \"lo' >> m.jsonl"), 0);
    EXPECT_RUN(ALONE, "--set checkpoint.keep=9 --resume=ck/step-00000005");
    expect_same_rows("from step 5", "whole.jsonl", "m.jsonl");
    char *text = support_read_file(path_of("m.jsonl"), NULL);
    ck_assert_uint_eq(support_count(text, "\n"), N_STEPS);
    ck_assert_ptr_nonnull(strstr(text, "\"tokens\": 8160,")); /* 20 steps of 24 sequences of 17 */
    free(text);
}
END_TEST

START_TEST(a_run_that_is_over_has_nothing_to_resume)
{
    EXPECT_RUN(2, "--steps 4");
    ck_assert_int_eq(shell("cp -r ck before; cp m.jsonl before.jsonl"), 0);
    EXPECT_RUN(2, "--steps 4 --resume");
    ck_assert_msg(strstr(output.err, "nothing to do"), "%s", output.err);
    ck_assert_int_eq(shell("diff -r ck before && diff m.jsonl before.jsonl"), 0);
}
END_TEST

/* A directory that Latin-1 names. Metrics and checkpoints, which are JSON, record it with U+FFFD. */
START_TEST(paths_that_are_not_utf8_are_saved_and_resumed)
{
    ck_assert_int_eq(shell("mkdir \"$(printf 'caf\\351')\" && mv text.txt caf*/"), 0);
    EXPECT_RUN(ALONE, "--set data.train=\"$(echo caf*)/text.txt\" --set data.val=\"$(echo caf*)/text.txt\" "
                      "--set checkpoint.dir=\"$(echo caf*)/ck\" --steps 4");
    ck_assert_int_eq(shell("for f in m.jsonl caf*/ck/latest/state.json; do "
                           "grep -q 'caf\xef\xbf\xbd/text.txt' $f || exit 1; done"),
                     0);
    EXPECT_RUN(ALONE, "--resume --set data.train=\"$(echo caf*)/text.txt\" --set data.val=\"$(echo caf*)/text.txt\" "
                      "--set checkpoint.dir=\"$(echo caf*)/ck\" --steps 6");
    ck_assert_msg(!strstr(output.err, "resume: data"), "%s", output.err);
    EXPECT_RUN(ALONE, "evaluate --json --set data.val=\"$(echo caf*)/text.txt\" --resume=\"$(echo caf*)/ck\"");
    ck_assert_msg(strstr(output.out, "\"data\": \"caf"), "%s", output.out);
    ck_assert_int_eq(run(ALONE, "--set model.init=\"$(echo caf*)/ck\" --set lora.rank=2 --set checkpoint.dir=adapters "
                                "--set data.train=\"$(echo caf*)/text.txt\""),
                     2);
    ck_assert_msg(strstr(output.err, "is not UTF-8, and adapter_config.json"), "%s", output.err);
}
END_TEST

/* --steps names one that is behind the copy in memory, which is the only checkpoint of step 8. */
START_TEST(a_run_with_nothing_to_do_keeps_newer_checkpoints_in_memory)
{
    static const char *const how[] = {"--resume", "--resume=ck/step-00000004"};
    static const char memory[] = "--set checkpoint.memory_every=2 --set checkpoint.memory_dir=memory";
    EXPECT_RUN(ALONE, "--steps 4");
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    EXPECT_RUN(ALONE, "--steps 8 --resume");
    ck_assert_int_eq(shell("cp -r ck memory && mv ck newer && cp -r before ck"), 0);
    EXPECT_RUN(ALONE, "%s --steps 4 %s", memory, how[_i]);
    ck_assert_msg(strstr(output.err, "nothing to do"), "%s", output.err);
    ck_assert_int_eq(shell("diff -r memory newer && diff -r ck before"), 0);
    ck_assert_int_eq(shell("rm -r memory && cp -r before memory"), 0); /* as old as that on the disk */
    EXPECT_RUN(ALONE, "%s --steps 4 --resume", memory);
    ck_assert_int_eq(shell("test ! -e memory && diff -r ck before"), 0);
}
END_TEST

/* 9000 bytes are 529 sequences of 17. What is left of a pass is taken in steps of the batch that there is now, whether
 * it is given or follows from the ranks. */
START_TEST(epochs_are_passes_though_the_batch_changes)
{
    static const struct {
        int n_ranks;
        const char *batch;
        int64_t global;
    } cases[] = {{2, "train.global_batch=24", 24},
                 {2, "train.global_batch=12", 12},
                 {2, "train.global_batch=48", 48},
                 {ALONE, "train.micro_batch=12", 12},
                 {4, "train.micro_batch=12", 48}};
    static const char config[] = "[model]\nlayers = 1\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
                                 "[data]\ntrain = text.txt\n[train]\nepochs = 1\nwarmup_steps = 3\n"
                                 "[checkpoint]\ndir = ck\n[log]\nevery = 0\nmetrics = m.jsonl\n";
    support_write_file(path_of("cfg.ini"), config, sizeof config - 1);
    EXPECT_RUN(2, "--set train.micro_batch=12 --steps 5");
    ck_assert_int_eq(shell("mv ck ck.0"), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char last[64];
        if (support_leaves_out(cases[i].n_ranks))
            continue;
        ck_assert_int_eq(shell("rm -rf ck && cp -r ck.0 ck"), 0);
        EXPECT_RUN(cases[i].n_ranks, "--resume --set %s", cases[i].batch);
        const int64_t n = 5 + (529 - 5 * 24 + cases[i].global - 1) / cases[i].global;
        snprintf(last, sizeof last, "step %" PRId64 "/%" PRId64, n, n);
        ck_assert_msg(strstr(output.err, last) != NULL, "%s: no '%s' in\n%s", cases[i].batch, last, output.err);
        ck_assert_msg(strstr(output.err, "train.steps was") == NULL, "%s", output.err);
    }
    EXPECT_RUN(2, "--resume --set train.micro_batch=12");
    ck_assert_msg(strstr(output.err, "nothing to do"), "%s", output.err);
}
END_TEST

/* ---- what is there ---- */

START_TEST(the_newest_checkpoints_are_kept_and_the_latest_linked)
{
    EXPECT_RUN(2, "--set checkpoint.every=3 --set checkpoint.keep=2");
    ck_assert_int_eq(shell("test \"$(ls -A ck | tr '\\n' ' ')\" = 'latest step-00000018 step-00000020 '"), 0);
    ck_assert_int_eq(shell("test $(readlink ck/latest) = step-00000020"), 0);
    /* What a run that went further once left there goes first, and is named. */
    EXPECT_RUN(2, "--set checkpoint.every=1 --set checkpoint.keep=1 --steps 19 --resume ck/step-00000018");
    ck_assert_int_eq(shell("test \"$(ls -A ck | tr '\\n' ' ')\" = 'latest step-00000019 '"), 0);
    ck_assert_msg(strstr(output.err, "after step 18, up to step-00000020; this run makes those steps again") &&
                      strstr(output.err, "removed 'ck/step-00000020'"),
                  "%s", output.err);
}
END_TEST

/* As after a copy, or a clock that was wrong for a while. */
START_TEST(times_of_files_do_not_decide_which_checkpoints_are_kept)
{
    EXPECT_RUN(ALONE, "--set checkpoint.every=5 --steps 10");
    ck_assert_int_eq(shell("touch -d 2035-01-01 ck/step-00000005 && touch -d 2001-01-01 ck/step-00000010"), 0);
    EXPECT_RUN(ALONE, "--set checkpoint.every=5 --set checkpoint.keep=2 --steps 15 --resume");
    ck_assert_int_eq(shell("test \"$(ls -A ck | tr '\\n' ' ')\" = 'latest step-00000010 step-00000015 '"), 0);
}
END_TEST

START_TEST(a_latest_that_dangles_does_not_hide_the_steps_beside_it)
{
    static const char *const how[] = {"--resume", "--auto-resume", "--resume ck"};
    EXPECT_RUN(ALONE, "--set checkpoint.every=5 --set checkpoint.keep=9 --steps 15");
    ck_assert_int_eq(shell("touch -d 2035-01-01 ck/step-00000005 && cp -a ck saved && cp m.jsonl saved.jsonl"), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(shell("rm -rf ck/step-00000015"), 0);
        EXPECT_RUN(ALONE, "--set checkpoint.every=5 --set checkpoint.keep=9 --steps 15 %s", how[i]);
        ck_assert_msg(strstr(output.err, "resuming after step 10, from ck/step-00000010"), "%s", output.err);
        ck_assert_msg(strstr(output.err, "links to step-00000015, which is gone"), "%s", output.err);
        ck_assert_int_eq(shell("cmp ck/step-00000015/model-00001-of-00001.safetensors "
                               "saved/step-00000015/model-00001-of-00001.safetensors"),
                         0);
    }
}
END_TEST

START_TEST(saving_in_the_background_saves_the_same_bytes)
{
    EXPECT_RUN(2, "--set checkpoint.every=1 --set checkpoint.keep=99");
    EXPECT_RUN(2, "--set checkpoint.every=1 --set checkpoint.keep=99 --set checkpoint.async=false --set "
                  "checkpoint.dir=sync");
    for (int step = 1; step <= N_STEPS; step++) {
        char command[300];
        snprintf(command, sizeof command,
                 "for f in ck/step-%08d/*.safetensors; do cmp $f sync/${f#ck/} || exit 1; done", step);
        ck_assert_int_eq(shell(command), 0);
    }
}
END_TEST

START_TEST(a_checkpoint_is_a_model_to_start_from)
{
    EXPECT_RUN(2, "--set model.arch=%s --set model.heads=6 --steps 3", _i ? "llama" : "gpt2");
    char *text = support_read_file(path_of("ck/latest/config.json"), NULL);
    ck_assert_ptr_nonnull(strstr(text, _i ? "\"LlamaForCausalLM\"" : "\"GPT2LMHeadModel\""));
    free(text);
    ck_assert_int_eq(shell("sed -i 's/\"eos_token_id\": null/\"eos_token_id\": 77/' ck/latest/config.json"), 0);
    EXPECT_RUN(ALONE,
               "--set model.arch=%s --set model.heads=6 --set model.init=ck --set checkpoint.dir=tuned --steps 1",
               _i ? "llama" : "gpt2");
    ck_assert_msg(!strstr(output.err, "left alone"), "%s", output.err); /* no tensor that is not of the model */
    EXPECT_RUN(ALONE, "--set model.arch=%s --set model.heads=6 --set checkpoint.dir=tuned --steps 2 --resume",
               _i ? "llama" : "gpt2");
    for (int step = 1; step <= 2; step++) {
        text = support_read_file(path_of(step == 1 ? "tuned/step-00000001/config.json" : "tuned/latest/config.json"),
                                 NULL);
        ck_assert_ptr_nonnull(strstr(text, "\"eos_token_id\": 77")); /* also after it was resumed */
        free(text);
    }
}
END_TEST

/* ---- refusals ---- */

static const struct {
    const char *what, *before, *arguments; /* a command first */
    int exit_code;
    const char *says[2];
} REFUSALS[] = {
    {"no directory", "rm -r ck", "--resume", 2, {"no checkpoint", "'ck'"}},
    {"an empty directory", "mkdir e", "--resume=e", 2, {"no checkpoint", "'e'"}},
    {"no [checkpoint] dir", "true", "--set checkpoint.dir= --resume", 2, {"--resume", "[checkpoint] dir"}},
    {"every without dir", "true", "--set checkpoint.dir= --set checkpoint.every=2", 2, {"every", "[checkpoint] dir"}},
    {"memory_every without memory_dir", "true", "--set checkpoint.memory_every=2", 2, {"memory_every", "memory_dir"}},
    {"one directory for memory and disk",
     "true",
     "--set checkpoint.memory_every=2 --set checkpoint.memory_dir=ck",
     2,
     {"memory_dir: 'ck'", "[checkpoint] dir"}},
    {"the same by another path",
     "true",
     "--resume --set checkpoint.memory_every=2 --set checkpoint.memory_dir=./ck/../ck/",
     2,
     {"memory_dir: './ck/../ck/'", "[checkpoint] dir"}},
    {"the same by a link",
     "ln -s ck link",
     "--overwrite --set checkpoint.memory_every=2 --set checkpoint.memory_dir=link",
     2,
     {"memory_dir: 'link'", "[checkpoint] dir"}},
    {"the best checkpoint's directory for memory, too",
     "true",
     "--overwrite --set data.val=short.txt --set checkpoint.best=true --set checkpoint.memory_every=2 --set "
     "checkpoint.memory_dir=ck/best",
     2,
     {"memory_dir: 'ck/best'", "whose checkpoints stay"}},
    {"another depth", "true", "--set model.layers=3 --resume", 2, {"[model] layers = 3", "made with 2"}},
    {"another architecture",
     "true",
     "--set model.arch=llama --set model.heads=6 --resume",
     2,
     {"[model] arch", "gpt2"}},
    {"another seed", "true", "--set train.seed=7 --resume", 2, {"[train] seed = 7", "made with 1"}},
    {"other data",
     "true",
     "--set data.train=other.txt --resume",
     2,
     {"'other.txt'", "9000 tokens then, 9000 now, but"}},
    {"less data", "true", "--set data.train=short.txt --resume", 2, {"'short.txt'", "9000 tokens then, 8500 now"}},
    {"more data",
     "true",
     "--set data.train=text.txt,other.txt --resume",
     2,
     {"'text.txt,other.txt'", "9000 tokens then, 18000 now"}},
    {"another optimizer",
     "true",
     "--set train.optimizer=lion --resume",
     2,
     {"[train] optimizer = lion", "made with adamw"}},
    {"--force alone", "true", "--force", 2, {"--force", "without --resume"}},
    {"a truncated file", "truncate -s -9 ck/latest/optimizer-*", "--resume", 1, {"optimizer-00001", "take another"}},
    {"a flipped byte",
     "printf X | dd of=$(echo ck/latest/model-*rs) bs=1 seek=9000 conv=notrunc",
     "--resume",
     1,
     {"model-00001", "take another"}},
    {"no manifest", "rm ck/latest/manifest.json", "--resume", 1, {"manifest.json", "take another"}},
    {"a place that cannot be written", "touch f", "--set checkpoint.dir=f", 1, {"'f'", "not a directory"}},
};
#define N_REFUSALS ((int)(sizeof REFUSALS / sizeof REFUSALS[0]))

START_TEST(a_run_that_cannot_be_resumed_is_refused_in_one_line)
{
    EXPECT_RUN(2, "--steps 2");
    ck_assert_int_eq(shell("mv ck ck.0"), 0);
    for (int i = 0; i < N_REFUSALS; i++) {
        char command[400];
        snprintf(command, sizeof command, "rm -rf ck && cp -r ck.0 ck && { %s; } 2>/dev/null", REFUSALS[i].before);
        ck_assert_int_eq(shell(command), 0);
        int exit_code = run(_i, "%s", REFUSALS[i].arguments);
        ck_assert_msg(exit_code == REFUSALS[i].exit_code, "%s: exit code %d\n%s", REFUSALS[i].what, exit_code,
                      output.err);
        /* "resuming after" is no complaint. */
        size_t n_lines = support_count(output.err, "zerotrain: ") - support_count(output.err, "zerotrain: resuming");
        ck_assert_msg(n_lines == 1, "%s:\n%s", REFUSALS[i].what, output.err);
        for (int s = 0; s < 2; s++)
            ck_assert_msg(strstr(output.err, REFUSALS[i].says[s]) != NULL, "%s: no '%s' in\n%s", REFUSALS[i].what,
                          REFUSALS[i].says[s], output.err);
    }
}
END_TEST

/* Gives ck/latest/state.json another data.sequences, and the manifest what it then is: a checkpoint that is whole. */
static void forge_sequences(int64_t sequences)
{
    json_t *state = json_load_file(path_of("ck/latest/state.json"), 0, NULL);
    json_t *manifest = json_load_file(path_of("ck/latest/manifest.json"), 0, NULL);
    ck_assert(state && manifest);
    json_object_set_new(json_object_get(state, "data"), "sequences", json_integer(sequences));
    char *text = json_dumps(state, JSON_INDENT(2)), hash[20];
    snprintf(hash, sizeof hash, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    json_t *file = json_object_get(json_object_get(manifest, "files"), "state.json");
    json_object_set_new(file, "bytes", json_integer((json_int_t)strlen(text)));
    json_object_set_new(file, "xxh3", json_string(hash));
    support_write_file(path_of("ck/latest/state.json"), text, strlen(text));
    ck_assert_int_eq(json_dump_file(manifest, path_of("ck/latest/manifest.json"), JSON_INDENT(2)), 0);
    free(text);
    json_decref(manifest);
    json_decref(state);
}

/* Their tokens are counted in 63 bits, those of the rest of the run among them. */
START_TEST(a_cursor_beyond_int64_is_refused)
{
    EXPECT_RUN(ALONE, "--steps 2");
    const int64_t most = (INT64_C(1) << 61) / 17, bad[] = {INT64_C(1) << 60, most + 1, INT64_MAX / 4, INT64_MAX, -1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        forge_sequences(bad[i]);
        int exit_code = run(ALONE, "--resume");
        ck_assert_msg(exit_code == 1 && strstr(output.err, "state.json': data.sequences"), "%" PRId64 ": %d\n%s",
                      bad[i], exit_code, output.err);
    }
    forge_sequences(most);
    EXPECT_RUN(ALONE, "--steps 3 --resume");
    char *rows = support_read_file(path_of("m.jsonl"), NULL), tokens[64];
    snprintf(tokens, sizeof tokens, "\"tokens\": %" PRId64 ",", (most + 24) * 17);
    ck_assert_msg(strstr(rows, tokens) != NULL, "no %s in\n%s", tokens, rows);
    free(rows);
}
END_TEST

/* Resumes after step 2 with these arguments; settings that may change are logged in one line, once. */
static const struct {
    const char *arguments, *line; /* NULL: none */
} CHANGES[] = {
    {"--resume", NULL},
    {"--resume --stage 1 --set zero.prefetch=0 --set model.recompute=full --set checkpoint.every=3 --set "
     "train.eval_every=0 --set log.every=1",
     NULL}, /* none of it changes what is computed */
    {"--resume --set train.lr=1e-3", "resume: train.lr was 0.003, is 0.001; train.min_lr was 0.0003, is 0.0001\n"},
    {"--resume --set train.steps=30 --set train.weight_decay=0 --set data.val=short.txt",
     "resume: data.val was , is short.txt; train.steps was 20, is 30; train.weight_decay was 0.1, is 0\n"},
    {"--resume --set train.global_batch=12", "resume: train.global_batch was 24, is 12\n"},
    {"--resume --set train.micro_batch=6", "resume: train.micro_batch was 12, is 6\n"},
    {"--resume --set zero.gradients=bf16", "resume: zero.gradients was fp32, is bf16\n"},
    {"--resume --set data.train=copy.txt", "resume: data.train was text.txt, is copy.txt\n"},
    {"--resume --force --set train.seed=7", "resume: train.seed was 1, is 7\n"},
    {"--resume --force --set data.train=text.txt,other.txt",
     "resume: data.train was text.txt, is text.txt,other.txt; the training data were 9000 tokens, are 18000\n"},
    {"--resume --force --set data.train=other.txt",
     "resume: data.train was text.txt, is other.txt; the training data were 9000 tokens, are 9000, but other ones\n"},
};

START_TEST(changed_settings_are_logged_in_one_line_on_resume)
{
    EXPECT_RUN(2, "--steps 2");
    ck_assert_int_eq(shell("mv ck ck.0 && cp text.txt copy.txt"), 0);
    for (size_t i = 0; i < sizeof CHANGES / sizeof CHANGES[0]; i++) {
        ck_assert_int_eq(shell("rm -rf ck && cp -r ck.0 ck"), 0);
        EXPECT_RUN(ALONE, "--steps 4 %s", CHANGES[i].arguments);
        ck_assert_msg(support_count(output.err, "resume: ") == (CHANGES[i].line ? 1 : 0), "%s:\n%s",
                      CHANGES[i].arguments, output.err);
        ck_assert_msg(!CHANGES[i].line || strstr(output.err, CHANGES[i].line), "%s: no '%s' in\n%s",
                      CHANGES[i].arguments, CHANGES[i].line, output.err);
        ck_assert_msg(strstr(output.err, "step 4/4"), "%s:\n%s", CHANGES[i].arguments, output.err);
    }
}
END_TEST

/* What this version adds to state.json is compared if it is there, and not required. */
START_TEST(checkpoints_of_older_versions_are_resumed)
{
    static const struct {
        const char *state;
        zero_status_t status;
    } cases[] = {
        {"{\"data\": {\"sequences\": 5}, \"seed\": 1}", ZERO_OK},
        {"{\"data\": {\"sequences\": 5}, \"config\": {\"train\": {\"seed\": \"1\"}}}", ZERO_OK},
        {"{\"data\": {\"sequences\": 5, \"tokens\": 9000}}", ZERO_OK},
        {"{\"data\": {\"sequences\": 5, \"tokens\": 9000, \"sample\": \"00000000000000ff\"}}", ZERO_OK},
        {"{\"data\": {\"sequences\": 5, \"tokens\": 9001, \"sample\": \"00000000000000ff\"}}", ZERO_ERROR_USAGE},
        {"{\"data\": {\"sequences\": 5, \"tokens\": 9000, \"sample\": \"0000000000000000\"}}", ZERO_ERROR_USAGE},
        {"{\"config\": {\"train\": {\"seed\": \"2\"}}}", ZERO_ERROR_USAGE},
        {"{\"config\": {\"model\": {\"layers\": \"77\"}}}", ZERO_ERROR_USAGE},
        {"{\"config\": {\"model\": {\"rope_factor\": \"1\", \"rope_low_freq\": \"1\", \"rope_original\": \"8192\", "
         "\"recompute_none\": \"1\"}}}",
         ZERO_OK}, /* which were settings */
        {"{\"config\": {\"model\": {\"rope_factor\": \"32\"}}}", ZERO_ERROR_USAGE},
        {"{\"config\": [], \"data\": 3}", ZERO_OK}, /* such a checkpoint has no settings to compare */
    };
    static options_t options;
    const data_identity_t data = {.n_tokens = 9000, .sample = 255};
    options_set_defaults(&options);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *state = json_loads(cases[i].state, 0, NULL);
        capture_begin();
        zero_status_t status = resume_check(&options, "ck", state, &data);
        const char *said = capture_end();
        json_decref(state);
        ck_assert_msg(status == cases[i].status, "%s: %s", cases[i].state, said);
        ck_assert_msg((said[0] == 0) == (status == ZERO_OK), "%s: %s", cases[i].state, said);
    }
}
END_TEST

/* A file may have at most so many blocks: enough for metrics, not for the moments. (One rank only: several share memory
 * through files. test_checkpoint.c has them.) */
START_TEST(a_save_that_fails_ends_the_run_and_leaves_the_one_before)
{
    EXPECT_RUN(2, "--steps 5");
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    support_output_free(&output);
    int exit_code = support_run(&output, RUN_LIMIT_S,
                                "cd %s && ulimit -f 100 && exec %s/zerotrain --set checkpoint.async=%s "
                                "--set checkpoint.every=2 --resume cfg.ini",
                                root, support_build(), _i ? "true" : "false");
    ck_assert_msg(exit_code == 1, "exit code %d\n%s", exit_code, output.err);
    ck_assert_msg(support_count(output.err, "File too large") == 1 && strstr(output.err, "ck/tmp.step-00000006"), "%s",
                  output.err);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
    EXPECT_RUN(2, "--steps 6 --resume");
}
END_TEST

/* Kills the whole job while it trains and saves at every step; it resumes from what is there, and ends as a run that
 * was never killed. The last run has a step left, and removes what the kills left behind. */
static const char KILL_SCRIPT[] =
    "n=0\n"
    "while [ $n -lt 4 ]; do\n"
    "    \"$1\" --set checkpoint.every=1 --steps 19 --auto-resume cfg.ini 2>>log & job=$!\n"
    "    sleep 0.$((n * 13 % 7 + 1)); kill -9 $job 2>/dev/null; wait $job 2>/dev/null\n"
    "    n=$((n + 1))\n"
    "done\n"
    "exec \"$1\" --set checkpoint.every=1 --auto-resume cfg.ini 2>>log\n";

START_TEST(a_run_killed_again_and_again_ends_as_one_never_killed)
{
    support_write_file(path_of("kill.sh"), KILL_SCRIPT, sizeof KILL_SCRIPT - 1);
    EXPECT_RUN(ALONE, "--set checkpoint.dir= --set log.metrics=whole.jsonl");
    support_output_free(&output);
    int exit_code = support_run(&output, RUN_LIMIT_S, "cd %s && sh kill.sh %s/zerotrain; code=$?; cat log; exit $code",
                                root, support_build());
    ck_assert_msg(exit_code == 0, "exit code %d\n%s%s", exit_code, output.out, output.err);
    expect_same_rows("killed", "whole.jsonl", "m.jsonl");
    ck_assert_int_eq(shell("test $(ls -A ck | wc -l) = 3"), 0); /* two and latest: nothing is left behind */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("resume");
    TCase *tc = tcase_create("resume");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 280);
    TCase *lengthy = support_long_case(s, 280);
    tcase_add_checked_fixture(lengthy, set_up, NULL);
    tcase_add_loop_test(tc, a_run_stopped_and_resumed_equals_one_never_stopped, 0, 3);
    SUPPORT_ADD_LOOP(tc, lengthy, other_optimizers_resume_exactly_at_other_stages, 1, 3);
    tcase_add_test(tc, muon_resumes_exactly_at_other_stages_and_ranks);
    tcase_add_test(lengthy, adamw8bit_resumes_exactly_at_other_stages_and_ranks);
    tcase_add_test(tc, a_run_in_fp8_resumes_exactly_and_says_if_that_has_changed);
    tcase_add_test(tc, one_rank_with_micro_steps_and_synchronous_saves_resumes_exactly);
    tcase_add_test(lengthy, a_run_resumes_with_other_shard_groups);
    SUPPORT_ADD_LOOP(tc, lengthy, another_number_of_ranks_resumes_with_the_same_bits, 2, 3);
    tcase_add_test(tc, metrics_read_as_one_run_though_later_rows_were_there);
    tcase_add_test(tc, a_run_that_is_over_has_nothing_to_resume);
    tcase_add_test(tc, paths_that_are_not_utf8_are_saved_and_resumed);
    tcase_add_loop_test(tc, a_run_with_nothing_to_do_keeps_newer_checkpoints_in_memory, 0, 2);
    tcase_add_test(tc, epochs_are_passes_though_the_batch_changes);
    tcase_add_test(tc, saving_in_the_background_saves_the_same_bytes);
    tcase_add_loop_test(tc, a_checkpoint_is_a_model_to_start_from, 0, 2);
    tcase_add_loop_test(tc, a_run_that_cannot_be_resumed_is_refused_in_one_line, ALONE, ALONE + 1);
    tcase_add_loop_test(tc, a_run_that_cannot_be_resumed_is_refused_in_one_line, 2, 3);
    tcase_add_test(tc, a_cursor_beyond_int64_is_refused);
    tcase_add_test(tc, changed_settings_are_logged_in_one_line_on_resume);
    tcase_add_test(tc, checkpoints_of_older_versions_are_resumed);
    tcase_add_loop_test(tc, a_save_that_fails_ends_the_run_and_leaves_the_one_before, 0, 2);
    tcase_add_test(tc, a_run_killed_again_and_again_ends_as_one_never_killed);
    suite_add_tcase(s, tc);
    TCase *kept = tcase_create("kept");
    tcase_add_checked_fixture(kept, set_up, NULL);
    tcase_set_timeout(kept, 120);
    tcase_add_test(kept, the_newest_checkpoints_are_kept_and_the_latest_linked);
    tcase_add_test(kept, times_of_files_do_not_decide_which_checkpoints_are_kept);
    tcase_add_test(kept, a_latest_that_dangles_does_not_hide_the_steps_beside_it);
    suite_add_tcase(s, kept);
    TCase *elastic = tcase_create(getenv("ZERO_TEST_SLOW") ? "long" : "elastic");
    tcase_add_checked_fixture(elastic, set_up, NULL);
    tcase_set_timeout(elastic, 280);
    tcase_add_test(elastic, a_run_killed_and_resumed_on_other_numbers_of_ranks_has_the_same_weights);
    suite_add_tcase(s, elastic);
    return s;
}

int main(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    return support_main(suite());
}
