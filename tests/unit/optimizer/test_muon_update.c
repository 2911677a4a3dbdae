/* test_muon_update.c - Muon over several ranks: the same bits at every stage and on any number of ranks (the cases are
 * those of mpi/muon_cases.c, which compares them with fp64), who orthogonalizes what, and what it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "zero.h"
#include "zero/plan/plan.h"

#define LIMIT_S 120.0
#define N_AT_ONCE 4 /* mpirun mostly waits */

/* ---- bits ---- */

typedef struct run {
    int n_ranks;
    char settings[80];
    int exit_code;
    support_output_t output;
} run_t;

static void run_all(run_t *runs, int n_runs)
{
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < n_runs; i++)
        runs[i].exit_code = support_mpirun(&runs[i].output, LIMIT_S, runs[i].n_ranks, "%s/tests/mpi/muon_cases %s",
                                           support_build(), runs[i].settings);
    for (int i = 0; i < n_runs; i++) {
        ck_assert_msg(runs[i].exit_code == 0, "%d ranks, %s: exit code %d\n%s", runs[i].n_ranks, runs[i].settings,
                      runs[i].exit_code, runs[i].output.err);
        ck_assert_msg(support_count(runs[i].output.out, "\n") == 3 &&
                          strcmp(runs[i].output.out, runs[0].output.out) == 0,
                      "%d ranks, %s:\n%s\n%d ranks, %s:\n%s", runs[i].n_ranks, runs[i].settings, runs[i].output.out,
                      runs[0].n_ranks, runs[0].settings, runs[0].output.out);
    }
    for (int i = 0; i < n_runs; i++)
        support_output_free(&runs[i].output);
}

/* 1 to 5 ranks, more and fewer than there are units with matrices, at stages 0 to 3. */
START_TEST(stages_and_ranks_give_equal_bits)
{
    static const char *const settings[] = {"dtype=fp32", "dtype=bf16 frozen=1", "dtype=fp16 muon_steps=2",
                                           "dtype=fp32 own=1", "dtype=bf16 frozen=1 own=1"};
    run_t runs[20] = {0};
    int n = 0;
    if (_i % 3 == 0 && support_is_left_to_plain_build())
        return;
    for (int n_ranks = 1; n_ranks <= 5; n_ranks++)
        for (int stage = 0; stage < 4 && !support_leaves_out(n_ranks); stage++) {
            runs[n].n_ranks = n_ranks;
            snprintf(runs[n++].settings, sizeof runs[0].settings, "stage=%d %s", stage, settings[_i]);
        }
    run_all(runs, n);
}
END_TEST

START_TEST(transports_and_groups_give_equal_bits)
{
    run_t runs[] = {{.n_ranks = 4, .settings = "stage=3"},
                    {.n_ranks = 4, .settings = "stage=3 group=2"},
                    {.n_ranks = 4, .settings = "stage=3 group=1"},
                    {.n_ranks = 3, .settings = "stage=0 comm=mpi"},
                    {.n_ranks = 3, .settings = "stage=2 comm=mpi"}};
    if (support_leaves_out(4))
        return;
    run_all(runs, (int)(sizeof runs / sizeof runs[0]));
}
END_TEST

START_TEST(transports_and_groups_give_a_callers_optimizer_equal_bits)
{
    run_t runs[] = {{.n_ranks = 4, .settings = "stage=3 own=1"},
                    {.n_ranks = 4, .settings = "stage=3 group=2 own=1"},
                    {.n_ranks = 3, .settings = "stage=0 comm=mpi own=1"},
                    {.n_ranks = 3, .settings = "stage=2 comm=mpi own=1"}};
    if (support_leaves_out(4))
        return;
    run_all(runs, (int)(sizeof runs / sizeof runs[0]));
}
END_TEST

/* A step of fp16 that is skipped leaves weights and state as they were, at every stage and on 1 to 4 ranks. */
START_TEST(a_skipped_step_changes_nothing)
{
    static const char *const settings[] = {"dtype=fp16 skip_at=2", "dtype=fp16 skip_at=2 own=1"};
    run_t runs[4] = {0};
    if (support_leaves_out(4))
        return;
    for (int i = 0; i < 4; i++) {
        runs[i].n_ranks = 4 - i;
        snprintf(runs[i].settings, sizeof runs[i].settings, "stage=%d %s", i, settings[_i]);
    }
    run_all(runs, 4);
    support_output_t output;
    ck_assert_int_eq(support_mpirun(&output, LIMIT_S, 2, "%s/tests/mpi/muon_cases %s", support_build(), settings[_i]),
                     0);
    const char *second = strstr(output.out, "\n2 "), *third = strstr(output.out, "\n3 ");
    ck_assert_msg(second && third && strncmp(output.out + 2, second + 3, 16) == 0 &&
                      strncmp(second + 3, third + 3, 16) != 0,
                  "%s", output.out);
    support_output_free(&output);
}
END_TEST

/* Training goes on from a checkpoint of three ranks, on one to five at any stage, with the bits of a run that was not
 * interrupted. */
START_TEST(a_run_resumes_on_another_number_of_ranks)
{
    static const char *const settings[] = {"dtype=bf16", "dtype=bf16 own=1", "dtype=fp32 frozen=1 own=1",
                                           "dtype=fp16 skip_at=1 own=1"};
    support_output_t whole, rest;
    if (support_leaves_out(5))
        return;
    char *directory = support_scratch();
    int code = support_mpirun(&whole, LIMIT_S, 3, "%s/tests/mpi/muon_cases steps=4 save_at=2 dir=%s %s",
                              support_build(), directory, settings[_i]);
    ck_assert_msg(code == 0 && support_count(whole.out, "\n") == 4, "%s%s", whole.out, whole.err);
    for (int n_ranks = 1; n_ranks <= 5; n_ranks++) {
        code = support_mpirun(&rest, LIMIT_S, n_ranks,
                              "%s/tests/mpi/muon_cases steps=4 save_at=2 resume=1 dir=%s %s stage=%d", support_build(),
                              directory, settings[_i], n_ranks % 4);
        ck_assert_msg(code == 0 && strcmp(rest.out, strstr(whole.out, "\n3 ") + 1) == 0, "%d ranks: %d\n%s%s%s",
                      n_ranks, code, rest.err, rest.out, whole.out);
        support_output_free(&rest);
    }
    support_output_free(&whole);
    free(directory);
}
END_TEST

/* One rank gets its function's status, and says of what; the others, whose step cannot be completed, get one too. */
START_TEST(a_function_that_fails_ends_the_step_on_all_ranks)
{
    static const char *const settings[] = {"stage=3 fails_in=prepare", "stage=0 fails_in=whole",
                                           "stage=1 fails_in=update", "stage=2 fails_in=whole comm=mpi",
                                           "stage=3 fails_in=update comm=mpi"};
    support_output_t output;
    if (support_leaves_out(3))
        return;
    int code = support_mpirun(&output, LIMIT_S, 3, "%s/tests/mpi/muon_cases own=1 fails_at=2 %s", support_build(),
                              settings[_i]);
    ck_assert_msg(code == 3 && support_count(output.out, "ZERO_ERROR_IO\n") == 1 &&
                      support_count(output.out, "ZERO_ERROR_") == 3 && support_count(output.out, "ZERO_OK") == 0,
                  "exit code %d\n%s%s", code, output.out, output.err);
    ck_assert_msg(support_count(output.err, "optimizer own muon: its update of tensor large failed\n") == 1, "%s",
                  output.err);
    support_output_free(&output);
}
END_TEST

/* ---- who orthogonalizes what ---- */

/* Declares n_blocks units with two matrices, rows x 16 and rows x 48, and a vector; before them one with a vector. */
static zero_model_t *declare(int n_blocks, int64_t rows)
{
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    for (int b = 0; b <= n_blocks; b++) {
        char name[32];
        snprintf(name, sizeof name, "unit %d", b);
        ck_assert_int_eq(zero_model_add_unit(model, name, &unit), ZERO_OK);
        for (int i = b == 0 ? 2 : 0; i < 3; i++) {
            snprintf(name, sizeof name, "tensor %d %d", b, i);
            const zero_tensor_desc_t desc = {.name = name,
                                             .n_dims = i < 2 ? 2 : 1,
                                             .shape = {i < 2 ? rows : 5, i == 0 ? 16 : 48},
                                             .hidden_matrix = i < 2};
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        }
    }
    return model;
}

static zero_config_t muon_config(int stage)
{
    zero_config_t config = zero_config_default();
    config.optimizer = ZERO_OPTIMIZER_MUON;
    config.stage = stage;
    return config;
}

/* Every matrix has one owner, which gets the matrix's unit in the matrix's round. Rounds are as few as can be; only
 * where there are more ranks than matrices is one idle. */
START_TEST(every_matrix_has_one_owner_and_all_ranks_are_busy)
{
    for (int n_blocks = 1; n_blocks <= 9; n_blocks++)
        for (int n_ranks = 1; n_ranks <= 20; n_ranks++) {
            zero_model_t *model = declare(n_blocks, 32);
            const zero_config_t config = muon_config(3);
            zero_layout_t layout;
            zero_muon_schedule_t schedule;
            int matrices[9 * 20] = {0}; /* by round and owner */
            ck_assert_int_eq(zero_layout_create(model, n_ranks, &layout), ZERO_OK);
            ck_assert_int_eq(zero_muon_schedule_create(model, &layout, &config, false, &schedule), ZERO_OK);
            ck_assert_int_eq(schedule.n_rounds, (n_blocks + n_ranks - 1) / n_ranks);
            ck_assert_int_eq(schedule.n_matrices, 2 * n_blocks);
            for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
                const int round = schedule.round_of[t], owner = schedule.owner_of[t];
                ck_assert_int_eq(round >= 0, model->tensors[t].hidden_matrix);
                if (round < 0)
                    continue;
                ck_assert_int_eq(schedule.unit_of[round * n_ranks + owner], model->tensors[t].owner);
                ck_assert_uint_ge(schedule.slot_elems[round], layout.units[model->tensors[t].owner].shard_elems);
                matrices[round * 20 + owner]++;
            }
            int most = 0;
            for (int i = 0; i < 9 * 20; i++)
                most = matrices[i] > most ? matrices[i] : most;
            ck_assert_int_eq(schedule.most_at_once, most);
            for (int round = 0; round < schedule.n_rounds; round++) {
                const int n_left = n_blocks - round * n_ranks, n_units = n_left < n_ranks ? n_left : n_ranks;
                int n_busy = 0;
                for (int owner = 0; owner < n_ranks; owner++)
                    n_busy += matrices[round * 20 + owner] > 0;
                ck_assert_int_ge(n_busy, n_units);
                ck_assert_int_eq(n_busy == n_ranks || n_busy == 2 * n_units ||
                                     n_ranks < 2 * n_units /* some units have two owners, others one */,
                                 true);
            }
            zero_muon_schedule_destroy(&schedule);
            zero_layout_destroy(&layout);
            zero_model_destroy(model);
        }
}
END_TEST

/* Of units with many matrices that ranks share, none has much more to do than another. */
START_TEST(ranks_that_share_a_unit_have_alike_much_to_do)
{
    static const int64_t sizes[] = {96, 96, 64, 64, 64, 48, 48, 32, 32, 32};
    zero_model_t *model;
    zero_unit_t unit;
    zero_tensor_t tensor;
    zero_layout_t layout;
    zero_muon_schedule_t schedule;
    const zero_config_t config = muon_config(3);
    double load[3] = {0}, sum = 0.0;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
    for (int i = 0; i < 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor %d", i);
        const zero_tensor_desc_t desc = {
            .name = name, .n_dims = 2, .shape = {sizes[i], sizes[i]}, .hidden_matrix = true};
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
    }
    ck_assert_int_eq(zero_layout_create(model, 3, &layout), ZERO_OK);
    ck_assert_int_eq(zero_muon_schedule_create(model, &layout, &config, false, &schedule), ZERO_OK);
    for (int i = 0; i < 10; i++) {
        const double cubed = (double)(sizes[i] * sizes[i] * sizes[i]);
        load[schedule.owner_of[i]] += cubed;
        sum += cubed;
    }
    for (int owner = 0; owner < 3; owner++) /* the most expensive matrix first: at most 4/3 of the best (Graham 1969) */
        ck_assert_double_lt(load[owner], 4.0 / 3.0 * sum / 3.0);
    zero_muon_schedule_destroy(&schedule);
    zero_layout_destroy(&layout);
    zero_model_destroy(model);
}
END_TEST

/* ---- what it takes ---- */

static uint64_t pages(uint64_t n_bytes)
{
    return (n_bytes + 4095) / 4096 * 4096;
}

/* Beside AdamW's memory: two buffers of a unit for the exchange, a third that receives at stage 0 and with messages;
 * the largest matrix, another of its size and two squares of its shorter side. */
START_TEST(memory_is_adamws_and_the_buffers_of_one_unit)
{
    const int n_ranks = 4;
    const int64_t rows = 256; /* a unit: 16384 elements of matrices, and a vector of 5 padded to 64; a shard of it */
    const uint64_t shard = (16384 + 64 + 255) / 256 * 64, unit = 4 * shard * sizeof(float);
    zero_model_t *model = declare(3, rows);
    for (int stage = 0; stage < 4; stage++)
        for (int messages = 0; messages < 2; messages++) {
            zero_config_t config = muon_config(stage);
            zero_memory_t muon, adamw;
            const zero_comm_kind_t kind = messages ? ZERO_COMM_MPI : ZERO_COMM_AUTO;
            ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CPU, kind, n_ranks, &muon), ZERO_OK);
            config.optimizer = ZERO_OPTIMIZER_ADAMW;
            ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CPU, kind, n_ranks, &adamw), ZERO_OK);
            const uint64_t matrix = pages(256 * 48 * 4), scratch = pages((256 * 48 + 2 * 48 * 48) * 4);
            const uint64_t n_segments = 6 * (stage == 0 ? 4 : 1);
            /* v of the unit without matrices, 64 elements a shard, and behind the matrices of the others: to the end of
             * their last shard. */
            const uint64_t v = pages((stage == 0 ? 4 * 64 + 3 * 4 * shard : 64 + 3 * shard) * 4);
            const uint64_t v_left = pages((stage == 0 ? 4 * 64 : 64) * 4 + 3 * (4 * shard - 16384) * 4);
            ck_assert_uint_eq(muon.bytes[ZERO_MEMORY_OPTIMIZER],
                              adamw.bytes[ZERO_MEMORY_OPTIMIZER] + matrix + scratch - v + v_left);
            ck_assert_uint_eq(muon.bytes[ZERO_MEMORY_COMMUNICATION],
                              adamw.bytes[ZERO_MEMORY_COMMUNICATION] + (stage == 0 || messages ? 3 : 2) * pages(unit) +
                                  pages(n_segments * sizeof(zero_muon_segment_t)));
            ck_assert_uint_eq(muon.bytes[ZERO_MEMORY_PARAMETERS], adamw.bytes[ZERO_MEMORY_PARAMETERS]);
            ck_assert_uint_eq(muon.bytes[ZERO_MEMORY_GRADIENTS], adamw.bytes[ZERO_MEMORY_GRADIENTS]);
        }
    zero_model_destroy(model);
}
END_TEST

/* On a GPU matrices are orthogonalized side by side: as many as an owner has, up to two, within 288 MiB. Each takes
 * its elements twice in 16 bits, four squares of the shorter side (two if that is 2/3 of the longer or more), and a
 * workspace. Beside SGD, which has one state array, and Muon's matrices no other. */
START_TEST(matrices_side_by_side_take_memory_each)
{
    static const struct {
        int64_t shapes[5][2];
        int n_ranks;
        uint64_t n_lanes, n_elems, n_squares, r, v_bytes; /* of the largest; v of padding: a page, if any */
    } cases[] = {
        {{{1600, 4800}, {1600, 1600}, {1600, 6400}, {6400, 1600}}, 1, 2, 1600 * 6400, 4, 1600, 0}, /* GPT-2 1558M */
        {{{1600, 4800}, {1600, 1600}, {1600, 6400}, {6400, 1600}}, 2, 2, 1600 * 6400, 4, 1600, 0},
        {{{1600, 4800}, {1600, 1600}, {1600, 6400}, {6400, 1600}}, 7, 1, 1600 * 6400, 4, 1600, 4096},
        {{{300, 200}, {300, 200}, {30, 20}, {30, 20}, {30, 20}}, 1, 2, 300 * 200, 2, 200, 4096},
        {{{302, 201}, {16, 16}}, 1, 2, 302 * 201, 4, 201, 4096},
        {{{4096, 4096}, {4096, 14336}}, 1, 1, 4096 * 14336, 4, 4096, 0}, /* Llama-3-8B */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_model_t *model;
        zero_unit_t unit;
        zero_tensor_t tensor;
        zero_memory_t muon, sgd;
        zero_config_t config = muon_config(3);
        ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
        ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
        for (int t = 0; t < 5 && cases[i].shapes[t][0] > 0; t++) {
            char name[] = "tensor 0";
            name[sizeof name - 2] = (char)('0' + t);
            const zero_tensor_desc_t desc = {.name = name,
                                             .n_dims = 2,
                                             .shape = {cases[i].shapes[t][0], cases[i].shapes[t][1]},
                                             .hidden_matrix = true};
            ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        }
        ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, cases[i].n_ranks, &muon), ZERO_OK);
        config.optimizer = ZERO_OPTIMIZER_SGD;
        ck_assert_int_eq(zero_plan(model, &config, ZERO_DEVICE_CUDA, ZERO_COMM_AUTO, cases[i].n_ranks, &sgd), ZERO_OK);
        const uint64_t matrix = (cases[i].n_elems + 127) / 128 * 128 * 2; /* aligned */
        const uint64_t squares = cases[i].n_squares * ((cases[i].r * cases[i].r + 127) / 128 * 128) * 2;
        ck_assert_uint_eq(muon.bytes[ZERO_MEMORY_OPTIMIZER] - sgd.bytes[ZERO_MEMORY_OPTIMIZER],
                          cases[i].v_bytes + pages(cases[i].n_lanes * matrix) +
                              pages(cases[i].n_lanes * (matrix + squares)) + cases[i].n_lanes * ((uint64_t)8 << 20));
        zero_model_destroy(model);
    }
}
END_TEST

static zero_status_t change_nothing(void *user, const zero_own_update_t *update, zero_stream_t stream)
{
    (void)user, (void)update, (void)stream;
    return ZERO_OK;
}

static zero_status_t change_no_matrix(void *user, const zero_own_whole_t *whole, zero_stream_t stream)
{
    (void)user, (void)whole, (void)stream;
    return ZERO_OK;
}

/* A caller's optimizer that sees matrices whole has Muon's exchange and one matrix, in fp32 on GPUs, too. */
START_TEST(a_callers_matrices_take_the_buffers_of_one_unit)
{
    const int n_ranks = 4, hosts[4] = {0};
    const uint64_t slot = (16384 + 64 + 255) / 256 * 64 * sizeof(float);
    zero_own_optimizer_t own = {.name = "own", .n_arrays = 2, .update = change_nothing};
    zero_model_t *model = declare(3, 256);
    for (int stage = 0; stage < 4; stage++)
        for (int gpus = 0; gpus < 2; gpus++) {
            const zero_device_type_t device = gpus ? ZERO_DEVICE_CUDA : ZERO_DEVICE_CPU;
            zero_config_t config = muon_config(stage);
            zero_memory_t plain, whole;
            zero_traffic_t of_plain[4], of_whole[4];
            config.optimizer = ZERO_OPTIMIZER_OWN;
            config.own_optimizer = &own;
            own.prepare = NULL;
            own.whole = NULL;
            ck_assert_int_eq(zero_plan(model, &config, device, ZERO_COMM_AUTO, n_ranks, &plain), ZERO_OK);
            ck_assert_int_eq(zero_plan_traffic(model, &config, device, ZERO_COMM_AUTO, n_ranks, hosts, of_plain),
                             ZERO_OK);
            own.prepare = change_nothing;
            own.whole = change_no_matrix;
            ck_assert_int_eq(zero_plan(model, &config, device, ZERO_COMM_AUTO, n_ranks, &whole), ZERO_OK);
            ck_assert_int_eq(zero_plan_traffic(model, &config, device, ZERO_COMM_AUTO, n_ranks, hosts, of_whole),
                             ZERO_OK);
            const uint64_t matrix = pages(256 * 48 * 4), n_buffers = stage == 0 || gpus ? 3 : 2;
            if (!gpus) {
                ck_assert_uint_eq(whole.bytes[ZERO_MEMORY_OPTIMIZER], plain.bytes[ZERO_MEMORY_OPTIMIZER] + matrix);
                ck_assert_uint_eq(whole.bytes[ZERO_MEMORY_COMMUNICATION],
                                  plain.bytes[ZERO_MEMORY_COMMUNICATION] + n_buffers * pages(4 * slot));
            }
            ck_assert_uint_gt(zero_memory_total(&whole), zero_memory_total(&plain) + matrix);
            for (int rank = 0; rank < n_ranks; rank++)
                ck_assert_uint_eq(of_whole[rank].local_bytes - of_plain[rank].local_bytes,
                                  (uint64_t)(stage == 0 ? n_ranks : 2) * 3 * slot);
        }
    zero_model_destroy(model);
}
END_TEST

/* Each round every rank sends its shard of each owner's unit, and receives its shard of each result: 2 (N - 1) slots.
 * Stage 0 gathers all results whole: N (N - 1). */
START_TEST(traffic_is_adamws_and_two_units_a_round)
{
    enum { N_RANKS = 4 };
    const int hosts[N_RANKS] = {0};
    zero_model_t *model = declare(6, 256); /* two rounds */
    const uint64_t slot = (16384 + 64 + 255) / 256 * 64 * sizeof(float);
    for (int stage = 0; stage < 4; stage++) {
        zero_config_t config = muon_config(stage);
        zero_traffic_t muon[N_RANKS], adamw[N_RANKS];
        ck_assert_int_eq(zero_plan_traffic(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, N_RANKS, hosts, muon),
                         ZERO_OK);
        config.optimizer = ZERO_OPTIMIZER_ADAMW;
        ck_assert_int_eq(zero_plan_traffic(model, &config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, N_RANKS, hosts, adamw),
                         ZERO_OK);
        for (int rank = 0; rank < N_RANKS; rank++)
            ck_assert_uint_eq(muon[rank].local_bytes - adamw[rank].local_bytes,
                              2 * (stage == 0 ? N_RANKS : 2) * (N_RANKS - 1) * slot);
    }
    zero_model_destroy(model);
}
END_TEST

/* ---- misuse ---- */

static void expect_refused(const zero_config_t *config, const char *line)
{
    zero_model_t *model = declare(1, 8);
    zero_memory_t plan;
    capture_begin();
    ck_assert_int_eq(zero_plan(model, config, ZERO_DEVICE_CPU, ZERO_COMM_AUTO, 2, &plan), ZERO_ERROR_USAGE);
    const char *text = capture_end();
    ck_assert_msg(strstr(text, line) != NULL, "%s", text);
    zero_model_destroy(model);
}

START_TEST(what_muon_cannot_do_is_refused_with_a_line)
{
    zero_config_t config = muon_config(3);
    config.offload = true;
    expect_refused(&config, "optimizer muon with offload");
    config = muon_config(3);
    config.muon_steps = 0;
    expect_refused(&config, "muon_steps 0: it must be in 1..99");
    config.muon_steps = 5;
    config.muon_momentum = 1.0f;
    expect_refused(&config, "muon_momentum 1: it must be in [0, 1)");
    zero_own_optimizer_t own = {.name = "mine", .n_arrays = 2, .update = change_nothing, .whole = change_no_matrix};
    config.optimizer = ZERO_OPTIMIZER_OWN;
    config.own_optimizer = &own;
    config.muon_momentum = 0.95f;
    expect_refused(&config, "optimizer mine: it has whole alone; whole matrices need prepare and whole, or neither");
    own = (zero_own_optimizer_t){.name = "mine", .n_arrays = 2, .update = change_nothing, .prepare = change_nothing};
    expect_refused(&config, "optimizer mine: it has prepare alone");
    zero_model_t *model = declare(1, 8);
    zero_tensor_t tensor;
    const zero_tensor_desc_t flat = {.name = "flat", .n_dims = 1, .shape = {8}, .hidden_matrix = true};
    capture_begin();
    ck_assert_int_eq(zero_model_add_tensor(model, 1, &flat, &tensor), ZERO_ERROR_ARGUMENT);
    const char *text = capture_end();
    ck_assert_msg(strstr(text, "tensor flat is declared as hidden_matrix with 1 dimensions: it must have 2"), "%s",
                  text);
    zero_model_destroy(model);
}
END_TEST

/* One line for a declaration that leaves Muon nothing to do, and none for one that does not. */
START_TEST(muon_without_a_matrix_is_a_warning)
{
    zero_comm_t *comm;
    zero_device_t *device;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(zero_device_create(ZERO_DEVICE_CPU, comm, &device), ZERO_OK);
    for (int is_hidden = 0; is_hidden < 2; is_hidden++) {
        const zero_tensor_desc_t desc = {.name = "w", .n_dims = 2, .shape = {4, 4}, .hidden_matrix = is_hidden};
        const zero_config_t config = muon_config(3);
        zero_model_t *model;
        zero_unit_t unit;
        zero_tensor_t tensor;
        zero_engine_t *engine;
        ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
        ck_assert_int_eq(zero_model_add_unit(model, "unit", &unit), ZERO_OK);
        ck_assert_int_eq(zero_model_add_tensor(model, unit, &desc, &tensor), ZERO_OK);
        capture_begin();
        ck_assert_int_eq(zero_engine_create(comm, device, model, &config, &engine), ZERO_OK);
        const char *text = capture_end();
        ck_assert_msg(is_hidden ? !*text : strstr(text, "no trained tensor is declared with hidden_matrix") != NULL,
                      "%d: '%s'", is_hidden, text);
        zero_engine_destroy(engine);
        zero_model_destroy(model);
    }
    zero_device_destroy(device);
    zero_comm_destroy(comm);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("muon update");
    TCase *several = tcase_create("several ranks");
    tcase_set_timeout(several, 300);
    TCase *lengthy = support_long_case(s, 300);
    SUPPORT_ADD_LOOP(several, lengthy, stages_and_ranks_give_equal_bits, 2, 5);
    tcase_add_test(several, transports_and_groups_give_equal_bits);
    tcase_add_test(lengthy, transports_and_groups_give_a_callers_optimizer_equal_bits);
    tcase_add_loop_test(several, a_skipped_step_changes_nothing, 0, 2);
    SUPPORT_ADD_LOOP(several, lengthy, a_run_resumes_on_another_number_of_ranks, 2, 4);
    SUPPORT_ADD_LOOP(several, lengthy, a_function_that_fails_ends_the_step_on_all_ranks, 2, 5);
    suite_add_tcase(s, several);
    TCase *plan = tcase_create("plan");
    tcase_add_test(plan, every_matrix_has_one_owner_and_all_ranks_are_busy);
    tcase_add_test(plan, ranks_that_share_a_unit_have_alike_much_to_do);
    tcase_add_test(plan, memory_is_adamws_and_the_buffers_of_one_unit);
    tcase_add_test(plan, matrices_side_by_side_take_memory_each);
    tcase_add_test(plan, a_callers_matrices_take_the_buffers_of_one_unit);
    tcase_add_test(plan, traffic_is_adamws_and_two_units_a_round);
    tcase_add_test(plan, what_muon_cannot_do_is_refused_with_a_line);
    tcase_add_test(plan, muon_without_a_matrix_is_a_warning);
    suite_add_tcase(s, plan);
    return s;
}

int main(void)
{
    return support_main(suite());
}
