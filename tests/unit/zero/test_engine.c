/* test_engine.c - the engine on several ranks: equal bits at every stage, skipped steps, errors that all ranks are
 * told. Runs tests/mpi/engine_cases, whose header says what it checks on every rank. One rank: test_engine_calls.c. */
#include <stdio.h>
#include <string.h>

#include "tests/support/support.h"
#include "zero.h"

#define LIMIT_S 60.0
#define N_AT_ONCE 4 /* runs: mpirun mostly waits */

/* A training run, and the lines of "step loss norm skipped hash" that it printed. */
typedef struct training {
    int n_ranks;
    char settings[96];
    int exit_code;
    support_output_t output;
} training_t;

static void train_all(training_t *runs, int n_runs)
{
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < n_runs; i++)
        runs[i].exit_code = support_mpirun(&runs[i].output, LIMIT_S, runs[i].n_ranks,
                                           "%s/tests/mpi/engine_cases train %s", support_build(), runs[i].settings);
    for (int i = 0; i < n_runs; i++)
        ck_assert_msg(runs[i].exit_code == 0, "%d ranks, %s: exit code %d\n%s", runs[i].n_ranks, runs[i].settings,
                      runs[i].exit_code, runs[i].output.err);
}

static void expect_same(const training_t *a, const training_t *b)
{
    ck_assert_msg(strlen(a->output.out) > 100 && strcmp(a->output.out, b->output.out) == 0,
                  "%d ranks: %s gives\n%s%s gives\n%s", a->n_ranks, a->settings, a->output.out, b->settings,
                  b->output.out);
}

static void forget(training_t *runs, int n_runs)
{
    for (int i = 0; i < n_runs; i++)
        support_output_free(&runs[i].output);
}

static void expect_equal(int n_ranks, const char *settings, const char *others)
{
    training_t runs[2] = {{.n_ranks = n_ranks}, {.n_ranks = n_ranks}};
    snprintf(runs[0].settings, sizeof runs[0].settings, "%s", settings);
    snprintf(runs[1].settings, sizeof runs[1].settings, "%s", others);
    train_all(runs, 2);
    expect_same(&runs[0], &runs[1]);
    forget(runs, 2);
}

static const int rank_counts[] = {1, 2, 3, 5, 8};

START_TEST(stages_give_equal_bits)
{
    if (support_leaves_out(rank_counts[_i]))
        return;
    training_t runs[2][4] = {0}; /* fp32 or not, stage */
    for (int fp32 = 0; fp32 < 2; fp32++)
        for (int stage = 0; stage < 4; stage++) {
            training_t *run = &runs[fp32][stage];
            run->n_ranks = rank_counts[_i];
            snprintf(run->settings, sizeof run->settings, "stage=%d dtype=%s poison=1", stage, fp32 ? "fp32" : "bf16");
        }
    train_all(runs[0], 8);
    for (int fp32 = 0; fp32 < 2; fp32++)
        for (int stage = 0; stage < 3; stage++)
            expect_same(&runs[fp32][3], &runs[fp32][stage]);
    forget(runs[0], 8);
}
END_TEST

/* Every optimizer agrees with its fp64 formula (engine_cases checks it) and has the same bits at every stage. */
START_TEST(optimizers_give_equal_bits_at_every_stage)
{
    static const char *const optimizers[] = {"sgd", "nesterov", "lion", "muon", "adamw8bit"};
    enum { N = sizeof optimizers / sizeof optimizers[0] };
    static const char *const dtypes[] = {"fp32", "bf16", "fp16 nan_at=3"};
    const int n_ranks = _i + 1;
    training_t runs[N][4] = {0}; /* optimizer, stage */
    if (support_leaves_out(n_ranks) || (n_ranks < 3 && support_is_left_to_plain_build()))
        return;
    for (int o = 0; o < N; o++)
        for (int stage = 0; stage < 4; stage++) {
            runs[o][stage].n_ranks = n_ranks;
            snprintf(runs[o][stage].settings, sizeof runs[o][stage].settings,
                     "optimizer=%s stage=%d fill=1 poison=1 dtype=%s", optimizers[o], stage, dtypes[(_i + o) % 3]);
        }
    train_all(runs[0], N * 4);
    for (int o = 0; o < N; o++)
        for (int stage = 0; stage < 3; stage++)
            expect_same(&runs[o][3], &runs[o][stage]);
    forget(runs[0], N * 4);
}
END_TEST

/* Tensors with settings of their own, which change from step to step: engine_cases compares each tensor with fp64. */
START_TEST(settings_of_single_tensors_give_equal_bits_at_every_stage)
{
    static const char *const settings[] = {
        "optimizer=adamw",           "optimizer=sgd dtype=fp16 nan_at=3",   "optimizer=nesterov dtype=fp32",
        "optimizer=lion fill=1",     "optimizer=own micro_steps=2 every=1", "optimizer=muon fill=1",
        "optimizer=adamw8bit fill=1"};
    enum { N = sizeof settings / sizeof settings[0] };
    const int n_ranks = _i + 1;
    training_t runs[N][4] = {0}; /* settings, stage */
    if (support_leaves_out(n_ranks) || (n_ranks < 3 && support_is_left_to_plain_build()))
        return;
    for (int i = 0; i < N; i++)
        for (int stage = 0; stage < 4; stage++) {
            runs[i][stage].n_ranks = n_ranks;
            snprintf(runs[i][stage].settings, sizeof runs[i][stage].settings, "schedule=1 steps=8 stage=%d %s", stage,
                     settings[(_i + i) % N]);
        }
    train_all(runs[0], N * 4);
    for (int i = 0; i < N; i++)
        for (int stage = 0; stage < 3; stage++)
            expect_same(&runs[i][3], &runs[i][stage]);
    forget(runs[0], N * 4);
}
END_TEST

/* engine_cases compares noise that is added before the norm, and weights that are clamped behind the update, with fp64,
 * and counts what each function sees. Functions that change nothing change no bit. */
START_TEST(hooks_give_equal_bits_at_every_stage)
{
    static const char *const kinds[] = {"dtype=bf16", "dtype=fp16 nan_at=3 optimizer=lion", "dtype=fp32 micro_steps=2"};
    static const char *const hooks[] = {"both stage=0 poison=1", "both stage=1", "both stage=2 poison=1",
                                        "both stage=3",          "none stage=3", "idle stage=3"};
    enum { N = sizeof hooks / sizeof hooks[0] };
    training_t runs[N] = {0};
    if (support_leaves_out(2 * _i + 1))
        return;
    for (int i = 0; i < N; i++) {
        runs[i].n_ranks = 2 * _i + 1;
        snprintf(runs[i].settings, sizeof runs[i].settings, "hooks=%s %s", hooks[i], kinds[_i]);
    }
    train_all(runs, N);
    for (int i = 0; i < 3; i++)
        expect_same(&runs[3], &runs[i]);
    expect_same(&runs[4], &runs[5]);
    ck_assert_str_ne(runs[3].output.out, runs[4].output.out);
    forget(runs, N);
}
END_TEST

/* A caller's function has the bits of libzero's kernel with the same expression. */
START_TEST(an_optimizer_of_the_callers_gives_the_bits_of_ours)
{
    static const char *const dtypes[] = {"fp32", "bf16 micro_steps=2", "fp16 nan_at=3"};
    training_t runs[5] = {0}; /* ours; stage */
    const int n_ranks = (_i + 1) * 2 - 1;
    if (support_leaves_out(n_ranks))
        return;
    for (int i = 0; i < 5; i++) {
        runs[i].n_ranks = n_ranks;
        snprintf(runs[i].settings, sizeof runs[i].settings, "optimizer=%s stage=%d dtype=%s",
                 i == 4 ? "nesterov" : "own", i % 4, dtypes[_i]);
    }
    train_all(runs, 5);
    for (int i = 0; i < 4; i++)
        expect_same(&runs[4], &runs[i]);
    forget(runs, 5);
}
END_TEST

START_TEST(prefetch_and_transport_give_equal_bits)
{
    expect_equal(3, "stage=3 prefetch=1", "stage=3 prefetch=0 poison=1");
    expect_equal(3, "stage=3 prefetch=1", "stage=3 prefetch=1000");
    expect_equal(3, "stage=3 comm=auto", "stage=3 comm=mpi poison=1");
    expect_equal(2, "stage=0 comm=auto dtype=fp32", "stage=0 comm=mpi dtype=fp32 poison=1");
    expect_equal(2, "stage=1 comm=auto dtype=fp16", "stage=2 comm=mpi dtype=fp16 poison=1");
}
END_TEST

/* Single ranks, thirds and halves of the world. check_held compares the memory with the plan. */
START_TEST(shard_groups_give_equal_bits)
{
    static const char *const settings[] = {"group=1", "group=2 poison=1", "group=3 comm=mpi prefetch=2"};
    enum { N_SETTINGS = sizeof settings / sizeof settings[0] };
    static const char *const kinds[] = {"dtype=fp32", "dtype=bf16 micro_steps=2", "dtype=fp16 nan_at=2"};
    training_t runs[N_SETTINGS + 1] = {0};
    if (support_leaves_out(6))
        return;
    for (int i = 0; i <= N_SETTINGS; i++) {
        runs[i].n_ranks = 6;
        snprintf(runs[i].settings, sizeof runs[i].settings, "%s %s", kinds[_i], i < N_SETTINGS ? settings[i] : "");
    }
    train_all(runs, N_SETTINGS + 1);
    for (int i = 0; i < N_SETTINGS; i++)
        expect_same(&runs[N_SETTINGS], &runs[i]);
    forget(runs, N_SETTINGS + 1);
}
END_TEST

/* Each element is the value of the rank that owns it, on all ranks and at every stage: weights, moments and what bf16
 * and fp16 keep beside their weights, which shows in the steps that follow. */
START_TEST(state_that_each_rank_makes_up_is_published_at_every_stage)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    training_t runs[8] = {0}; /* stage; then the same by messages */
    if (_i == 0 && support_is_left_to_plain_build())
        return;
    for (int i = 0; i < 8; i++) {
        runs[i].n_ranks = 3;
        snprintf(runs[i].settings, sizeof runs[i].settings, "fill=1 stage=%d dtype=%s poison=1%s", i % 4, dtypes[_i],
                 i < 4 ? "" : " comm=mpi");
    }
    train_all(runs, 8);
    for (int i = 1; i < 8; i++)
        expect_same(&runs[0], &runs[i]);
    forget(runs, 8);
}
END_TEST

START_TEST(state_that_each_rank_makes_up_is_published_to_runs_that_accumulate)
{
    expect_equal(2, "fill=1 stage=0 micro_steps=3 every=1", "fill=1 stage=3 micro_steps=3");
    expect_equal(2, "fill=1 stage=0 micro_steps=2", "fill=1 stage=1 micro_steps=2");
}
END_TEST

START_TEST(accumulation_gives_equal_bits_when_every_micro_step_is_reduced)
{
    for (int stage = 0; stage < 3; stage++) {
        char settings[64];
        snprintf(settings, sizeof settings, "stage=%d micro_steps=3 every=1 poison=1", stage);
        expect_equal(3, "stage=3 micro_steps=3", settings);
    }
    expect_equal(2, "stage=0 micro_steps=3 every=0 poison=1", "stage=1 micro_steps=3 every=0 poison=1");
    expect_equal(2, "stage=0 micro_steps=2 every=0 dtype=fp32", "stage=1 micro_steps=2 every=0 dtype=fp32 poison=1");
}
END_TEST

START_TEST(a_step_with_nan_is_skipped_and_weights_stay)
{
    training_t runs[4] = {0};
    for (int stage = 0; stage < 4; stage++) {
        runs[stage].n_ranks = 2;
        snprintf(runs[stage].settings, sizeof runs[stage].settings, "stage=%d nan_at=3", stage);
    }
    train_all(runs, 4);
    for (int stage = 0; stage < 4; stage++)
        ck_assert_msg(support_count(runs[stage].output.out, " 1 ") == 1, "one skipped step expected:\n%s",
                      runs[stage].output.out);
    forget(runs, 4);
}
END_TEST

START_TEST(fp16_halves_its_loss_scale_after_an_overflow_and_goes_on)
{
    expect_equal(2, "stage=3 dtype=fp16 nan_at=2", "stage=0 dtype=fp16 nan_at=2");
}
END_TEST

static void expect_case(int n_ranks, const char *name, const char *line)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/engine_cases %s", support_build(), name);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", name, code, output.err);
    ck_assert_msg(support_count(output.err, line) == 1, "%s: '%s' not once in\n%s", name, line, output.err);
    support_output_free(&output);
}

START_TEST(a_schedule_that_differs_between_ranks_is_an_error_on_all)
{
    expect_case(3, "mismatch", "rank 1 has another declaration of units and tensors than rank 0");
}
END_TEST

/* Whichever rank is wrong, one line names the reason. */
START_TEST(a_setting_that_one_rank_has_wrong_is_named)
{
    expect_case(3, "odd_setting", "rank 1 has another configuration than rank 0");
    expect_case(3, "odd_threads", "rank 1: offload_threads -1: it must be in 0..");
}
END_TEST

/* Rank 0 logs the reason once. */
START_TEST(weights_that_were_written_by_half_are_not_computed_with)
{
    const char *reason = "zero_begin: the weights are incomplete, because the last call that wrote them failed";
    for (int stage = 0; stage < 4; stage += 3) {
        char name[64];
        snprintf(name, sizeof name, "failed_fill stage=%d", stage);
        expect_case(3, name, reason);
    }
}
END_TEST

/* Not only when the others have waited for ZERO_TIMEOUT_S. */
START_TEST(an_own_update_that_fails_on_one_rank_is_known_to_all)
{
    static const char *const places[] = {"hooks=clamp", "poison=0", "poison=1", "poison=2"};
    for (int i = 0; i < 16; i++) {
        char name[64];
        snprintf(name, sizeof name, "failed_update stage=%d %s", i % 4, places[i / 4]);
        expect_case(3, name, "zero: rank 1: ");
    }
}
END_TEST

START_TEST(a_plan_that_does_not_fit_is_refused_with_the_numbers)
{
    expect_case(2, "too_large", "are free: take more ranks, a smaller micro-batch or recompute");
}
END_TEST

/* Tests the case programs themselves: one whose settings were misread would pass for another. */
START_TEST(misspelled_settings_of_test_programs_are_refused)
{
    static const struct {
        const char *program, *says;
    } refused[] = {
        {"engine_cases train stge=0", "stge=0: no such setting"},
        {"engine_cases train stage", "stage is not key=value"},
        {"engine_cases train stage=0x", "stage=0x: not a number"},
        {"engine_cases train steps=4294967297", "not a number"},
        {"engine_cases train dtype=bf1", "dtype=bf1: no such value"},
        {"stream_cases device=", "device=: no such value"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        support_output_t output;
        int code = support_run(&output, LIMIT_S, "%s/tests/mpi/%s", support_build(), refused[i].program);
        ck_assert_msg(code == 1 && strstr(output.err, refused[i].says), "%s: exit code %d\n%s", refused[i].program,
                      code, output.err);
        support_output_free(&output);
    }
}
END_TEST

START_TEST(a_rank_that_leaves_ends_the_others_soon)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, 3, "%s/tests/mpi/engine_cases lost_rank", support_build());
    ck_assert_msg(code != 0 && code != SUPPORT_TIMED_OUT, "exit code %d\n%s", code, output.err);
    ck_assert_msg(output.seconds < 10.0, "it took %.1f s", output.seconds);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("engine");
    TCase *several = tcase_create("several ranks");
    tcase_set_timeout(several, 300);
    TCase *lengthy = support_long_case(s, 300);
    tcase_add_loop_test(several, stages_give_equal_bits, 0, (int)(sizeof rank_counts / sizeof rank_counts[0]));
    SUPPORT_ADD_LOOP(several, lengthy, optimizers_give_equal_bits_at_every_stage, 2, 5);
    SUPPORT_ADD_LOOP(several, lengthy, settings_of_single_tensors_give_equal_bits_at_every_stage, 2, 5);
    tcase_add_loop_test(several, hooks_give_equal_bits_at_every_stage, 0, 3);
    SUPPORT_ADD_LOOP(several, lengthy, an_optimizer_of_the_callers_gives_the_bits_of_ours, 1, 3);
    tcase_add_test(several, prefetch_and_transport_give_equal_bits);
    tcase_add_loop_test(several, shard_groups_give_equal_bits, 0, 3);
    SUPPORT_ADD_LOOP(several, lengthy, state_that_each_rank_makes_up_is_published_at_every_stage, 1, 3);
    tcase_add_test(several, state_that_each_rank_makes_up_is_published_to_runs_that_accumulate);
    tcase_add_test(several, weights_that_were_written_by_half_are_not_computed_with);
    tcase_add_test(several, an_own_update_that_fails_on_one_rank_is_known_to_all);
    tcase_add_test(several, accumulation_gives_equal_bits_when_every_micro_step_is_reduced);
    tcase_add_test(several, a_step_with_nan_is_skipped_and_weights_stay);
    tcase_add_test(several, fp16_halves_its_loss_scale_after_an_overflow_and_goes_on);
    tcase_add_test(several, a_schedule_that_differs_between_ranks_is_an_error_on_all);
    tcase_add_test(several, a_plan_that_does_not_fit_is_refused_with_the_numbers);
    tcase_add_test(several, a_setting_that_one_rank_has_wrong_is_named);
    tcase_add_test(several, misspelled_settings_of_test_programs_are_refused);
    tcase_add_test(several, a_rank_that_leaves_ends_the_others_soon);
    suite_add_tcase(s, several);
    return s;
}

int main(void)
{
    return support_main(suite());
}
