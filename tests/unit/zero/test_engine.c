/* test_engine.c - the engine keeps its promises: equal bits at every stage, skipped steps, errors on the spot.
 * Several ranks: runs tests/mpi/engine_cases, whose header says what it checks on every rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
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

/* ---- one rank, in this process ---- */

typedef struct fixture {
    zero_comm_t *comm;
    zero_device_t *device;
    zero_model_t *model;
    zero_engine_t *engine;
    zero_tensor_t tensors[2];
} fixture_t;

static fixture_t fixture_create(int micro_steps)
{
    fixture_t f = {0};
    zero_config_t config = zero_config_default();
    config.micro_steps = micro_steps;
    config.max_skipped_steps = 3;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &f.comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_AUTO, f.comm, &f.device), ZERO_OK);
    ck_assert_int_eq(zero_model_create(&f.model), ZERO_OK);
    for (int u = 0; u < 2; u++) {
        zero_unit_t unit;
        zero_tensor_desc_t desc = {.name = u ? "b" : "a", .n_dims = 1, .shape = {5}, .init = ZERO_INIT_ONES};
        ck_assert_int_eq(zero_model_add_unit(f.model, desc.name, &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(f.model, unit, &desc, &f.tensors[u]), ZERO_OK);
    }
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &config, &f.engine), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(f.engine), ZERO_OK);
    return f;
}

static void fixture_destroy(fixture_t *f)
{
    zero_engine_destroy(f->engine);
    zero_model_destroy(f->model);
    zero_device_destroy(f->device);
    zero_comm_destroy(f->comm);
}

static void write_grad(fixture_t *f, int u, uint16_t bits)
{
    uint16_t *grad = zero_grad(f->engine, f->tensors[u]).data;
    for (int i = 0; i < 5; i++)
        grad[i] = bits;
}

static void micro_step(fixture_t *f, uint16_t bits)
{
    ck_assert_int_eq(zero_begin(f->engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    for (int u = 0; u < 2; u++) {
        ck_assert_int_eq(zero_acquire(f->engine, u, NULL), ZERO_OK);
        ck_assert_int_eq(zero_release(f->engine, u, NULL), ZERO_OK);
    }
    for (int u = 1; u >= 0; u--) {
        ck_assert_int_eq(zero_acquire(f->engine, u, NULL), ZERO_OK);
        write_grad(f, u, bits);
        ck_assert_int_eq(zero_grad_ready(f->engine, u, NULL), ZERO_OK);
    }
}

START_TEST(calls_out_of_order_are_errors_on_the_spot)
{
    fixture_t f = fixture_create(2);
    zero_step_result_t result;
    void *data;
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* no pass */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_begin(f.engine, (zero_pass_t)3, NULL), ZERO_ERROR_ARGUMENT); /* there are three kinds */
    ck_assert_int_eq(zero_engine_trace(f.engine, ZERO_ALL_WORKS, NULL, NULL), ZERO_ERROR_ARGUMENT); /* no function */
    for (int i = 0; i < 2; i++) /* the second leaks nothing of the first */
        ck_assert_int_eq(zero_engine_trace(f.engine, 0, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_alloc(f.engine, ZERO_MEMORY_DATA, 10, &data), ZERO_OK);
    ck_assert_int_eq(zero_alloc_activations(f.engine, 1, 0, 10, &data), ZERO_OK);
    ck_assert_int_eq(zero_alloc_activations(f.engine, 0, 2, 10, &data), ZERO_ERROR_ARGUMENT); /* there are two units */
    ck_assert_int_eq(zero_alloc_activations(f.engine, -1, 0, 10, &data), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_OK);
    ck_assert_int_eq(zero_alloc(f.engine, ZERO_MEMORY_DATA, 10, &data), ZERO_ERROR_ORDER); /* too late */
    ck_assert_int_eq(zero_alloc_activations(f.engine, 0, 0, 10, &data), ZERO_ERROR_ORDER); /* too late */
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);       /* in a pass */
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_ERROR_ORDER);                   /* 0 is the first */
    ck_assert_int_eq(zero_acquire(f.engine, 2, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_acquire(f.engine, -1, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_release(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* not acquired */
    ck_assert_ptr_null(zero_param(f.engine, f.tensors[0]));
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_OK);
    ck_assert_ptr_nonnull(zero_param(f.engine, f.tensors[0]));
    ck_assert_ptr_null(zero_param(f.engine, f.tensors[1])); /* another unit's */
    ck_assert_ptr_null(zero_param(f.engine, 99));
    ck_assert_ptr_null(zero_grad(f.engine, f.tensors[0]).data);             /* forward */
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER);    /* twice */
    ck_assert_int_eq(zero_grad_ready(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* forward */
    ck_assert_int_eq(zero_release(f.engine, 0, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_release(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_ERROR_ORDER); /* backward begins with 1 */
    ck_assert_int_eq(zero_acquire(f.engine, 1, NULL), ZERO_OK);
    ck_assert_ptr_nonnull(zero_grad(f.engine, f.tensors[1]).data);
    ck_assert_int_eq(zero_release(f.engine, 1, NULL), ZERO_ERROR_ORDER); /* backward */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_get_state(f.engine, NULL, NULL), ZERO_ERROR_ORDER);
    write_grad(&f, 1, 0x3c00);
    ck_assert_int_eq(zero_grad_ready(f.engine, 1, NULL), ZERO_OK);
    ck_assert_int_eq(zero_acquire(f.engine, 0, NULL), ZERO_OK);
    write_grad(&f, 0, 0x3c00);
    ck_assert_int_eq(zero_grad_ready(f.engine, 0, NULL), ZERO_OK);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_EVAL, NULL), ZERO_ERROR_ORDER); /* in the middle of a step */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);      /* one micro-step is missing */
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER); /* zero_step is next */
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert(result.step == 1 && !result.skipped);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_ERROR_ORDER);
    fixture_destroy(&f);
}
END_TEST

START_TEST(two_steps_may_be_unwaited_and_results_come_in_order)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    for (int i = 0; i < 2; i++) {
        micro_step(&f, 0x3c00);
        ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    }
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_ERROR_ORDER);
    for (uint64_t i = 1; i <= 2; i++) {
        ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
        ck_assert_uint_eq(result.step, i);
    }
    ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t count_other_than_one(void *n_others, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++)
        *(size_t *)n_others += chunk->master[i] != 1.0f;
    return ZERO_OK;
}

START_TEST(a_learning_rate_that_is_not_finite_reaches_no_weight)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    size_t n_others = 0;
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, NAN, NULL, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_step(f.engine, INFINITY, NULL, NULL), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_ERROR_ORDER); /* still in it */
    ck_assert_int_eq(zero_step(f.engine, 0.0f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_OK);
    ck_assert_uint_eq(n_others, 0);
    fixture_destroy(&f);
}
END_TEST

/* What is refused has changed nothing, and is named as the caller knows it. */
START_TEST(weights_cannot_be_initialized_during_a_step)
{
    fixture_t f = fixture_create(2);
    zero_step_result_t result;
    size_t n_before = 0, n_after = 0;
    micro_step(&f, 0x3c00);
    micro_step(&f, 0x3c00);
    ck_assert_int_eq(zero_step(f.engine, 0.5f, NULL, NULL), ZERO_OK);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_before), ZERO_OK);
    ck_assert_uint_gt(n_before, 0);
    capture_begin();
    zero_status_t status = zero_init_parameters(f.engine);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_ORDER);
    ck_assert_msg(strstr(said, "zero_init_parameters with a step under way"), "%s", said);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_after), ZERO_OK);
    ck_assert_uint_eq(n_after, n_before);
    ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(f.engine), ZERO_OK);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t fill_with_ones(void *n_fails, const zero_chunk_t *chunk)
{
    for (size_t i = 0; i < chunk->n_elems; i++)
        chunk->master[i] = 1.0f;
    return --*(int *)n_fails == 0 ? ZERO_ERROR_IO : ZERO_OK;
}

static zero_status_t take_first(void *weight, const zero_chunk_t *chunk)
{
    if (chunk->tensor == 0 && chunk->first == 0)
        *(float *)weight = chunk->master[0];
    return ZERO_OK;
}

/* AdamW's t is reset with the moments: the first step after them is as large as the very first. */
START_TEST(state_without_moments_starts_adamw_anew)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    float stepped[2];
    for (int i = 0; i < 2; i++) {
        int never = 0;
        ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_OK);
        ck_assert_uint_eq(zero_get_adam_step(f.engine), 0);
        for (int step = 0; step < 5; step++) {
            micro_step(&f, 0x3c00);
            ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
            if (step == 4) { /* before its t is set */
                ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_ERROR_ORDER);
                ck_assert_int_eq(never, -2); /* not called but for the two tensors before */
            }
            ck_assert_int_eq(zero_step_wait(f.engine, &result), ZERO_OK);
            if (step == 0)
                ck_assert_int_eq(zero_get_state(f.engine, take_first, &stepped[i]), ZERO_OK);
        }
        ck_assert_uint_eq(zero_get_adam_step(f.engine), 5);
    }
    ck_assert(stepped[0] < 1.0f);
    ck_assert(memcmp(&stepped[0], &stepped[1], sizeof stepped[0]) == 0);
    fixture_destroy(&f);
}
END_TEST

/* A load that is refused before it writes anything leaves the state as it was. */
START_TEST(weights_stay_if_nothing_was_written)
{
    fixture_t f = fixture_create(1);
    int second = 2, never = 0;
    size_t n_others = 0;
    ck_assert_int_eq(zero_load_weights(f.engine, "/nowhere"), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_get_state(f.engine, count_other_than_one, &n_others), ZERO_OK);
    ck_assert_uint_eq(n_others, 0);
    ck_assert_int_eq(zero_set_state(f.engine, true, fill_with_ones, &second), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_load_weights(f.engine, "/nowhere"), ZERO_ERROR_IO); /* it repairs nothing either */
    ck_assert_int_eq(zero_begin(f.engine, ZERO_PASS_TRAIN, NULL), ZERO_ERROR_ORDER);
    ck_assert_int_eq(zero_set_state(f.engine, false, fill_with_ones, &never), ZERO_OK);
    micro_step(&f, 0x3c00);
    fixture_destroy(&f);
}
END_TEST

START_TEST(a_save_during_a_step_is_refused)
{
    fixture_t f = fixture_create(2);
    zero_save_t *save = NULL;
    char *directory = support_scratch(), listing[512];
    micro_step(&f, 0x3c00);
    capture_begin();
    zero_status_t status = zero_save_begin(f.engine, directory, &(zero_save_options_t){0}, &save);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_ORDER);
    ck_assert_msg(strstr(said, "zero_save_begin inside a step"), "%s", said);
    ck_assert_int_eq(zero_set_adam_step(f.engine, 3), ZERO_ERROR_ORDER);
    snprintf(listing, sizeof listing, "test -z \"$(ls -A %s)\"", directory);
    ck_assert_int_eq(support_run(NULL, LIMIT_S, "%s", listing), 0);
    free(directory);
    fixture_destroy(&f);
}
END_TEST

START_TEST(many_steps_without_finite_gradients_end_the_run)
{
    fixture_t f = fixture_create(1);
    zero_step_result_t result;
    for (int i = 1; i <= 3; i++) {
        micro_step(&f, 0x7f80); /* infinity in bf16 */
        ck_assert_int_eq(zero_step(f.engine, 0.1f, NULL, NULL), ZERO_OK);
        ck_assert_int_eq(zero_step_wait(f.engine, &result), i < 3 ? ZERO_OK : ZERO_ERROR_NONFINITE);
        ck_assert(result.skipped);
    }
    ck_assert_uint_eq(zero_get_adam_step(f.engine), 0);
    fixture_destroy(&f);
}
END_TEST

static zero_status_t own_update(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

START_TEST(bad_configurations_are_refused)
{
    fixture_t f = fixture_create(1);
    zero_engine_t *engine;
    zero_model_t *empty;
    zero_memory_t plan;
    zero_config_t bad[19], good = zero_config_default();
    for (int i = 0; i < 19; i++)
        bad[i] = zero_config_default();
    bad[0].stage = 4;
    bad[1].stage = -1;
    bad[2].micro_steps = 0;
    bad[3].beta1 = 1.0f;
    bad[4].eps = -1.0f;
    bad[5].dtype = (zero_dtype_t)7;
    bad[6].grad_clip = NAN;
    bad[7].eps = 0.0f; /* 0 / 0 for a weight that has had no gradient */
    bad[8].eps = NAN;
    bad[9].eps = INFINITY;
    bad[10].user_bytes = SIZE_MAX - 4096; /* added to the plan it would overflow to a small number */
    bad[11].optimizer = ZERO_N_OPTIMIZERS;
    bad[12].momentum = 1.0f;
    bad[13].momentum = NAN;
    zero_own_optimizer_t own = {.name = "own", .n_arrays = 1};
    for (int i = 14; i < 17; i++)
        bad[i].optimizer = ZERO_OPTIMIZER_OWN; /* 14: and no own_optimizer; 15: one without a function */
    bad[15].own_optimizer = &own;
    zero_own_optimizer_t many = {.name = "many", .n_arrays = 3, .update = own_update};
    bad[16].own_optimizer = &many;
    const zero_hooks_t no_hooks = {0}, behind = {.updated = own_update};
    bad[17].hooks = &no_hooks;
    bad[18].hooks = &behind;
    bad[18].offload = true;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(zero_engine_create(f.comm, f.device, f.model, &bad[i], &engine), ZERO_ERROR_USAGE);
        ck_assert_int_eq(zero_plan(f.model, &bad[i], ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_ERROR_USAGE);
    }
    ck_assert_int_eq(zero_model_create(&empty), ZERO_OK); /* it declares nothing */
    ck_assert_int_eq(zero_engine_create(f.comm, f.device, empty, &good, &engine), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(zero_plan(empty, &good, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_ERROR_ARGUMENT);
    zero_model_destroy(empty);
    fixture_destroy(&f);
}
END_TEST

START_TEST(nccl_is_refused_on_the_cpu)
{
    fixture_t f = fixture_create(1);
    zero_comm_t *comm;
    zero_device_t *cpu;
    zero_engine_t *engine;
    zero_config_t config = zero_config_default();
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_NCCL, &comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &cpu), ZERO_OK);
    ck_assert_int_eq(zero_engine_create(comm, cpu, f.model, &config, &engine), ZERO_ERROR_USAGE);
    zero_device_destroy(cpu);
    zero_comm_destroy(comm);
    fixture_destroy(&f);
}
END_TEST

START_TEST(every_status_has_a_name_and_a_text)
{
#define HAS_NAME(name, number, text)                                                                                   \
    ck_assert_str_eq(zero_status_name((zero_status_t)(number)), "ZERO_" #name);                                        \
    ck_assert_str_eq(zero_status_text(ZERO_##name), text);
    ZERO_STATUS_MAP(HAS_NAME)
    ck_assert_str_eq(zero_status_name((zero_status_t)12345), "ZERO_UNKNOWN");
    ck_assert_str_eq(zero_version(), "0.1.0");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("engine");
    TCase *several = tcase_create("several ranks");
    tcase_set_timeout(several, 300);
    tcase_add_loop_test(several, stages_give_equal_bits, 0, (int)(sizeof rank_counts / sizeof rank_counts[0]));
    tcase_add_loop_test(several, optimizers_give_equal_bits_at_every_stage, 0, 5);
    tcase_add_loop_test(several, settings_of_single_tensors_give_equal_bits_at_every_stage, 0, 5);
    tcase_add_loop_test(several, hooks_give_equal_bits_at_every_stage, 0, 3);
    tcase_add_loop_test(several, an_optimizer_of_the_callers_gives_the_bits_of_ours, 0, 3);
    tcase_add_test(several, prefetch_and_transport_give_equal_bits);
    tcase_add_loop_test(several, shard_groups_give_equal_bits, 0, 3);
    tcase_add_loop_test(several, state_that_each_rank_makes_up_is_published_at_every_stage, 0, 3);
    tcase_add_test(several, state_that_each_rank_makes_up_is_published_to_runs_that_accumulate);
    tcase_add_test(several, weights_that_were_written_by_half_are_not_computed_with);
    tcase_add_test(several, accumulation_gives_equal_bits_when_every_micro_step_is_reduced);
    tcase_add_test(several, a_step_with_nan_is_skipped_and_weights_stay);
    tcase_add_test(several, fp16_halves_its_loss_scale_after_an_overflow_and_goes_on);
    tcase_add_test(several, a_schedule_that_differs_between_ranks_is_an_error_on_all);
    tcase_add_test(several, a_plan_that_does_not_fit_is_refused_with_the_numbers);
    tcase_add_test(several, a_setting_that_one_rank_has_wrong_is_named);
    tcase_add_test(several, misspelled_settings_of_test_programs_are_refused);
    tcase_add_test(several, a_rank_that_leaves_ends_the_others_soon);
    suite_add_tcase(s, several);
    TCase *one = tcase_create("one rank");
    tcase_set_timeout(one, 60);
    tcase_add_test(one, calls_out_of_order_are_errors_on_the_spot);
    tcase_add_test(one, two_steps_may_be_unwaited_and_results_come_in_order);
    tcase_add_test(one, a_learning_rate_that_is_not_finite_reaches_no_weight);
    tcase_add_test(one, weights_cannot_be_initialized_during_a_step);
    tcase_add_test(one, state_without_moments_starts_adamw_anew);
    tcase_add_test(one, weights_stay_if_nothing_was_written);
    tcase_add_test(one, a_save_during_a_step_is_refused);
    tcase_add_test(one, many_steps_without_finite_gradients_end_the_run);
    tcase_add_test(one, bad_configurations_are_refused);
    tcase_add_test(one, nccl_is_refused_on_the_cpu);
    tcase_add_test(one, every_status_has_a_name_and_a_text);
    suite_add_tcase(s, one);
    return s;
}

int main(void)
{
    return support_main(suite());
}
