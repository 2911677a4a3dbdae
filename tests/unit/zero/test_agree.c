/* test_agree.c - ranks that do not do the same find out where they meet, before any of their data are used, and each is
 * named with the call that it is in, in zero.h's words. The mistakes are the cases of mpi/disagree_cases.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/shard.h"
#include "kernels/step_math.h"
#include "tests/support/support.h"
#include "zero.h"

#define LIMIT_S 40.0
#define ENDING_S 10.0 /* to start, to report and for mpirun to end it, beside other tests */
#define N_RANKS 3
#define N_AT_ONCE 4 /* mpirun mostly waits */

/* Which rank is in which call: one line has both, in either order. */
static const struct {
    const char *comm, *device, *name;
    const char *odd, *others; /* "rank 1 is in ODD", "rank 0 (or 2) is in OTHERS" */
    int n_lines;              /* at least: one for all ranks, or one from each if they share no memory */
} rows[] = {
    {"auto", "cpu", "other_lr", "zero_step(engine 0, step 2, lr 0.5)", "zero_step(engine 0, step 2, lr 0.25)", 1},
    {"mpi", "cpu", "other_lr", "zero_step(engine 0, step 2, lr 0.5)", "zero_step(engine 0, step 2, lr 0.25)", 2},
    {"auto", "async", "other_lr", "zero_step(engine 0, step 2, lr 0.5)", "zero_step(engine 0, step 2, lr 0.25)", 1},
    {"auto", "cpu", "other_engine", "zero_grad_ready(engine 1, unit head, step 1, micro-step 0)",
     "zero_grad_ready(engine 0, unit head, step 1, micro-step 0)", 1},
    {"mpi", "cpu", "other_engine", "zero_acquire(engine 1, unit embed, step 1, micro-step 0)",
     "zero_acquire(engine 0, unit embed, step 1, micro-step 0)", 2},
    {"mpi", "cpu", "other_engine_backward", "zero_grad_ready(engine 1, unit head, step 1, micro-step 0)",
     "zero_grad_ready(engine 0, unit head, step 1, micro-step 0)", 2},
    {"mpi", "cpu", "one_evaluates", "zero_acquire(engine 0, unit embed, eval pass, step 2)",
     "zero_acquire(engine 0, unit embed, step 2, micro-step 0)", 2},
    {"auto", "cpu", "other_call", "zero_comm_barrier", "zero_grad_ready(engine 0, unit head, step 1, micro-step 0)", 1},
    {"mpi", "cpu", "other_call", "zero_comm_barrier", "zero_grad_ready(engine 0, unit head, step 1, micro-step 0)", 2},
    {"auto", "cpu", "one_leaves", "zero_comm_destroy", "zero_grad_ready(engine 0, unit head, step 2, micro-step 0)", 1},
    {"mpi", "cpu", "one_leaves", "zero_comm_destroy", "zero_acquire(engine 0, unit embed, step 2, micro-step 0)", 2},
    {"mpi", "cpu", "one_broadcasts_twice", "zero_comm_broadcast", "zero_comm_barrier", 2},
    {"auto", "cpu", "one_cancels", "zero_cancel(engine 0, step 1)",
     "zero_grad_ready(engine 0, unit head, step 1, micro-step 0)", 1},
    {"mpi", "cpu", "one_cancels_elsewhere", "zero_cancel(engine 0, step 1)",
     "zero_acquire(engine 0, unit layer.0, step 1, micro-step 0)", 2},
    {"auto", "cpu", "other_kind", "zero_comm_create(ZERO_COMM_NCCL)", "zero_comm_create(ZERO_COMM_AUTO)", 1},
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static bool names_both(const char *line, const char *odd, const char *others)
{
    char odd_text[200], others_text[200];
    snprintf(odd_text, sizeof odd_text, "rank 1 is in %s", odd);
    snprintf(others_text, sizeof others_text, " is in %s", others);
    return strstr(line, odd_text) && strstr(line, others_text);
}

/* Counts the lines that begin like this and name both ranks' calls. */
static int count_lines(const char *log, const char *begin, const char *odd, const char *others)
{
    int n = 0;
    char line[1024];
    for (const char *at = log; *at != '\0';) {
        size_t length = strcspn(at, "\n") + 1;
        snprintf(line, sizeof line, "%.*s", (int)length, at);
        n += strncmp(line, begin, strlen(begin)) == 0 && strstr(line, "ranks call different things: ") &&
             names_both(line, odd, others);
        at += at[length - 1] == '\0' ? length - 1 : length;
    }
    return n;
}

typedef struct run {
    int exit_code;
    double seconds;
    char *log;
} run_t;

static run_t start(const char *directory, int deadline_s, const char *comm, const char *device, const char *name)
{
    char path[512];
    run_t run;
    snprintf(path, sizeof path, "%s/%s-%s-%s", directory, comm, device, name);
    support_write_file(path, "", 0);
    support_output_t output;
    run.exit_code =
        support_mpirun(&output, LIMIT_S, N_RANKS, "-x ZERO_TIMEOUT_S=%d %s/tests/mpi/disagree_cases %s %s %s %s",
                       deadline_s, support_build(), comm, device, name, path);
    run.seconds = output.seconds;
    support_output_free(&output);
    run.log = support_read_file(path, NULL);
    return run;
}

START_TEST(ranks_in_different_calls_are_named_with_them)
{
    run_t runs[N_ROWS];
    char *scratch = support_scratch();
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_ROWS; i++)
        runs[i] = start(scratch, 20, rows[i].comm, rows[i].device, rows[i].name);
    for (int i = 0; i < N_ROWS; i++) {
        char *log = runs[i].log;
        ck_assert_msg(runs[i].exit_code == 3, "%s, %s, %s: exit code %d\n%s", rows[i].comm, rows[i].device,
                      rows[i].name, runs[i].exit_code, log);
        ck_assert_msg(count_lines(log, "zero: ", rows[i].odd, rows[i].others) >= rows[i].n_lines,
                      "%s, %s, %s: not in %d lines: %s; %s\n%s", rows[i].comm, rows[i].device, rows[i].name,
                      rows[i].n_lines, rows[i].odd, rows[i].others, log);
        /* The ranks that are right get the mismatch, not a truncated message or a timeout. */
        ck_assert_msg(support_count(log, "rank 0 got ZERO_ERROR_MISMATCH\n") == 1 &&
                          support_count(log, "rank 2 got ZERO_ERROR_MISMATCH\n") == 1,
                      "%s", log);
        /* Whoever logged it, each rank has it as its last error. */
        ck_assert_msg(count_lines(log, "rank 0 heard: ", rows[i].odd, rows[i].others) == 1 &&
                          count_lines(log, "rank 2 heard: ", rows[i].odd, rows[i].others) == 1,
                      "%s, %s, %s: %s; %s\n%s", rows[i].comm, rows[i].device, rows[i].name, rows[i].odd, rows[i].others,
                      log);
        free(log);
    }
    free(scratch);
}
END_TEST

/* Which calls compare before anything moves, so that all three ranks get it. */
START_TEST(numbers_that_differ_are_named)
{
    static const struct {
        const char *device, *name, *line;
    } cases[] = {
        {"cpu", "other_micro_steps", "zero_set_micro_steps: micro_steps is 3 on rank 1 and 4 on rank 0"},
        {"cpu", "one_cancels_elsewhere",
         "zero_cancel: the number of calls in this step so far is 3 on rank 1 and 5 on rank 0"},
        {"async", "one_cancels_before_an_exchange",
         "zero_cancel: the number of zero_all_to_all so far is 0 on rank 1 and 1 on rank 0"},
        {"cpu", "other_group", "zero_step(engine 0, step 2): rank 1 has other settings of tensors than rank 0"},
        {"cpu", "other_adam_step", "rank 1 came to zero_step(engine 0, step 2) by other calls than rank 0"},
        {"cpu", "other_moments", "zero_set_state: with_moments is 1 on rank 1 and 0 on rank 0"},
    };
    char *scratch = support_scratch();
    run_t run = start(scratch, 20, "auto", cases[_i].device, cases[_i].name);
    ck_assert_msg(support_count(run.log, cases[_i].line) == 1 + 3 && support_count(run.log, "heard: ") == 3 &&
                      support_count(run.log, "got ZERO_ERROR_MISMATCH\n") == 3,
                  "%s", run.log);
    free(run.log);
    free(scratch);
}
END_TEST

/* With units that are updated in backward it comes too late: no rank goes on with its weights. */
START_TEST(weights_that_were_updated_with_two_rates_are_refused)
{
    char *scratch = support_scratch();
    run_t run = start(scratch, 20, "auto", "async", "other_lr_backward");
    for (int i = 0; i < N_RANKS; i++) {
        char heard[128];
        snprintf(heard, sizeof heard, "rank %d heard first: ranks call different things: rank 1 is in zero_step(engine",
                 i);
        ck_assert_msg(support_count(run.log, heard) == 1, "%s", run.log);
    }
    ck_assert_msg(support_count(run.log, "update backward had updated weights by then") == 1 + N_RANKS &&
                      support_count(run.log, "nothing was updated") == 0 &&
                      support_count(run.log, "got ZERO_ERROR_ORDER\n") == N_RANKS,
                  "%s", run.log);
    free(run.log);
    free(scratch);
}
END_TEST

/* One rank of those that share memory finds it and logs it; all others must hear of it. */
START_TEST(every_rank_hears_what_another_did)
{
    static const struct {
        const char *name, *status, *says;
        size_t n_logged;
    } cases[] = {
        {"one_stays_away", "ZERO_ERROR_TIMEOUT", ") did not come to zero_grad_ready(engine 0, unit head, step 2", 1},
        {"one_aborts", "ZERO_ERROR_PEER", "rank 1 has ended the job (zero_comm_abort)", 0},
    };
    char *scratch = support_scratch(), heard[2][256];
    run_t run = start(scratch, 3, "auto", "cpu", cases[_i].name);
    for (int i = 0; i < 2; i++) {
        snprintf(heard[i], sizeof heard[i], "rank %d heard: rank 1 ", 2 * i);
        ck_assert_msg(support_count(run.log, heard[i]) == 1, "%s", run.log);
        snprintf(heard[i], sizeof heard[i], "rank %d got %s\n", 2 * i, cases[_i].status);
        ck_assert_msg(support_count(run.log, heard[i]) == 1, "%s", run.log);
    }
    ck_assert_msg(support_count(run.log, cases[_i].says) == cases[_i].n_logged + 2, "%s", run.log);
    free(run.log);
    free(scratch);
}
END_TEST

START_TEST(ranks_that_do_the_same_are_left_alone)
{
    static const char *const transports[][2] = {{"auto", "cpu"}, {"mpi", "cpu"}, {"auto", "async"}};
    char *scratch = support_scratch();
    run_t run = start(scratch, 20, transports[_i][0], transports[_i][1], "nothing");
    ck_assert_msg(run.exit_code == 0 && run.log[0] == '\0', "exit code %d\n%s", run.exit_code, run.log);
    free(run.log);
    free(scratch);
}
END_TEST

/* In a program that runs MPI itself: else MPI's own beginning waits. */
START_TEST(a_rank_that_does_not_come_is_named_at_the_deadline)
{
    char *scratch = support_scratch();
    run_t run = start(scratch, 3, "auto", "cpu", "absent");
    ck_assert_int_eq(run.exit_code, 3);
    ck_assert_msg(
        support_count(run.log, "got ZERO_ERROR_TIMEOUT\n") == 2 &&
            support_count(run.log, ": rank 1 did not come to zero_comm_create within 3 s (ZERO_TIMEOUT_S)\n") == 2 + 2,
        "%s", run.log);
    ck_assert_msg(run.seconds > 3.0 && run.seconds < 3.0 + ENDING_S, "it took %.1f s", run.seconds);
    free(run.log);
    free(scratch);
}
END_TEST

/* MPI's own start waits for all ranks and cannot be left: the missing rank is named all the same, and the job goes on
 * when it arrives. */
START_TEST(a_rank_that_mpi_waits_for_is_named_at_the_deadline)
{
    char *scratch = support_scratch();
    run_t run = start(scratch, 2, "auto", "cpu", "late");
    ck_assert_int_eq(run.exit_code, 0);
    ck_assert_msg(support_count(run.log,
                                "MPI_Init has waited for other ranks of this job for 2 s (ZERO_TIMEOUT_S), and "
                                "waits on: not every rank has come to zero_comm_create: rank 1\n") == 2,
                  "%s", run.log);
    free(run.log);
    free(scratch);
}
END_TEST

/* ---- what a device decides ---- */

static zero_step_outcome_t decide(const zero_contribution_t *contributions, int n_ranks, zero_step_state_t *state,
                                  zero_adam_scalars_t *scalars)
{
    const zero_step_rules_t rules = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_clip = 1.0f};
    zero_step_outcome_t outcome;
    memset(&outcome, 0xff, sizeof outcome);
    memset(scalars, 0xff, sizeof *scalars);
    zero_shard_kernels_cpu()->decide_step(&rules, contributions[0].lr, contributions, n_ranks, state, scalars, &outcome,
                                          NULL);
    return outcome;
}

START_TEST(a_step_upon_which_ranks_do_not_agree_changes_nothing)
{
    enum { N = 5 };
    static const struct {
        int rank;
        float lr;
        uint64_t calls, groups;
        bool odd_lr;
    } odds[] = {{1, 0.5f, 7, 9, true},
                {4, -0.25f, 7, 9, true},
                {3, 0.25f, 8, 9, false},
                {2, 0.5f, 8, 9, true},
                {4, 0.25f, 7, 0, false}};
    for (size_t i = 0; i < sizeof odds / sizeof odds[0]; i++) {
        zero_contribution_t contributions[N];
        zero_step_state_t state = {.adam_step = 4, .loss_scale = 1.0f}, before = state;
        zero_adam_scalars_t scalars;
        for (int r = 0; r < N; r++)
            contributions[r] = (zero_contribution_t){
                .norm = {{0, 0, 0, 0, 0, 0, 5 + (uint64_t)r}}, .loss = 2.0, .calls = 7, .groups = 9, .lr = 0.25f};
        zero_step_outcome_t outcome = decide(contributions, N, &state, &scalars);
        ck_assert(outcome.odd_rank == 0 && scalars.skip == 0 && state.adam_step == 5);
        state = before;
        contributions[odds[i].rank].lr = odds[i].lr;
        contributions[odds[i].rank].calls = odds[i].calls;
        contributions[odds[i].rank].groups = odds[i].groups;
        outcome = decide(contributions, N, &state, &scalars);
        ck_assert_uint_eq(outcome.odd_rank, (unsigned)odds[i].rank);
        ck_assert_uint_eq(outcome.odd_groups, odds[i].groups != 9);
        ck_assert(outcome.odd_lr == odds[i].odd_lr && outcome.lr == 0.25f && outcome.lr_of_odd == odds[i].lr);
        ck_assert(scalars.skip != 0 && memcmp(&state, &before, sizeof state) == 0);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("agree");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 150);
    tcase_add_test(ranks, ranks_in_different_calls_are_named_with_them);
    tcase_add_test(ranks, a_rank_that_does_not_come_is_named_at_the_deadline);
    tcase_add_test(ranks, a_rank_that_mpi_waits_for_is_named_at_the_deadline);
    tcase_add_loop_test(ranks, numbers_that_differ_are_named, 0, 6);
    tcase_add_test(ranks, weights_that_were_updated_with_two_rates_are_refused);
    tcase_add_loop_test(ranks, every_rank_hears_what_another_did, 0, 2);
    tcase_add_loop_test(ranks, ranks_that_do_the_same_are_left_alone, 0, 3);
    suite_add_tcase(suite, ranks);
    TCase *device = tcase_create("device");
    tcase_add_test(device, a_step_upon_which_ranks_do_not_agree_changes_nothing);
    suite_add_tcase(suite, device);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
