/* test_comm.c - every promise of a communicator, on every transport, at several numbers of ranks; and a rank that fails
 * is found, named, and ends the job soon. The promises themselves are the cases of mpi/comm_cases.c. */
#define SUPPORT_SANITIZE_SOME
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/clock.h"
#include "tests/support/support.h"

static const int rank_counts[] = {1, 2, 3, 5, 8};
#define N_RANK_COUNTS ((int)(sizeof(rank_counts) / sizeof(rank_counts[0])))

static void all_cases_hold(int n_ranks, const char *transport)
{
    support_output_t output;
    int exit_code =
        support_mpirun(&output, 60.0, n_ranks, "%s/tests/mpi/comm_cases %s all", support_build(), transport);
    ck_assert_msg(exit_code == 0 && strstr(output.out, "cases held"), "%d ranks, %s: exit code %d\n%s%s", n_ranks,
                  transport, exit_code, output.out, output.err);
    support_output_free(&output);
}

START_TEST(shared_memory_keeps_every_promise)
{
    if (support_leaves_out(rank_counts[_i]))
        return;
    all_cases_hold(rank_counts[_i], rank_counts[_i] == 1 ? "self" : "node");
}
END_TEST

START_TEST(messages_keep_every_promise)
{
    if (support_leaves_out(rank_counts[_i]))
        return;
    all_cases_hold(rank_counts[_i], "mpi");
}
END_TEST

static const struct {
    int n_ranks;
    const char *transport;
} several_hosts[] = {{3, "hierarchical-one"}, {4, "hierarchical-turns"}, {5, "hierarchical-pairs"}};

START_TEST(messages_between_hosts_and_shared_memory_inside_keep_every_promise)
{
    all_cases_hold(several_hosts[_i].n_ranks, several_hosts[_i].transport);
}
END_TEST

static const struct {
    int n_ranks;
    const char *transport;
} of_rails[] = {{3, "rails-one"}, {4, "rails-turns"}, {4, "rails-pairs"}, {6, "rails-pairs"}, {6, "rails-threes"}};

START_TEST(rails_between_devices_of_several_hosts_keep_every_promise)
{
    if (support_leaves_out(of_rails[_i].n_ranks))
        return;
    all_cases_hold(of_rails[_i].n_ranks, of_rails[_i].transport);
}
END_TEST

START_TEST(host_memory_between_devices_keeps_every_promise)
{
    if (support_leaves_out(rank_counts[_i]))
        return;
    all_cases_hold(rank_counts[_i], "through-mpi");
    if (rank_counts[_i] == 3)
        all_cases_hold(3, "through-node");
}
END_TEST

START_TEST(ranks_that_cannot_share_memory_send_messages)
{
    all_cases_hold(2, "mpi-fallback");
    all_cases_hold(3, "mpi-fallback");
}
END_TEST

START_TEST(one_rank_without_mpirun_leaves_mpi_alone)
{
    support_output_t output;
    /* not even its libraries' first steps: MPI would look for its helper program and fail without it */
    int exit_code = support_run(&output, 60.0,
                                "env -u OMPI_COMM_WORLD_RANK -u PMIX_RANK -u PMI_RANK "
                                "PATH=/nonexistent OPAL_PREFIX=/nonexistent "
                                "%s/tests/mpi/comm_cases self ranks_are_known",
                                support_build());
    ck_assert_msg(exit_code == 0, "exit code %d\n%s%s", exit_code, output.out, output.err);
    support_output_free(&output);
    exit_code =
        support_run(NULL, 60.0, "%s/tests/mpi/comm_cases self all 2>&1 | grep -q 'cases held'", support_build());
    ck_assert_int_eq(exit_code, 0);
}
END_TEST

/* Bounds on when a job must be over after a rank failed: the ranks' deadline, if nothing reveals the failure before,
 * plus the time for the others to report (0.5 s) and for mpirun to end the rest (it gives them a second); there are up
 * to 8 ranks on a core that others use too. Without the detection a job would hang for good; the ranks' default
 * deadline is minutes. */
#define DEADLINE_S 1.5
#define ENDING_S 10.0
#define STOPPED_S 5.0 /* after which a rank that shares memory and stays stopped is given up, whatever the deadline */
#define ANY (-1)

/* Runs a case in which rank 1 does wrong: the job must end in time, with an exit code that is not 0, which it returns.
 * deadline_s: the ranks'. *log: what the ranks wrote. *output: what mpirun did. */
static int one_goes_wrong(int n_ranks, const char *transport, const char *name, double deadline_s, char **log,
                          support_output_t *output)
{
    char *scratch = support_scratch(), path[512];
    snprintf(path, sizeof(path), "%s/log", scratch);
    support_write_file(path, "", 0);
    int exit_code = support_mpirun(output, 50.0, n_ranks, "-x ZERO_TIMEOUT_S=%.1f %s/tests/mpi/comm_cases %s %s %s",
                                   deadline_s, support_build(), transport, name, path);
    const double ended_s = now_s();
    *log = support_read_file(path, NULL);
    free(scratch);
    ck_assert_msg(exit_code != SUPPORT_TIMED_OUT && exit_code != 0, "%s, %s: exit code %d\n%s%s", transport, name,
                  exit_code, *log, output->err);
    const char *wrong = strstr(*log, "rank 1 goes wrong at ");
    double wrong_s;
    ck_assert_msg(wrong && sscanf(wrong, "rank 1 goes wrong at %lf", &wrong_s) == 1, "%s, %s: no start in\n%s",
                  transport, name, *log);
    const double given_up_s = deadline_s < STOPPED_S ? deadline_s : STOPPED_S;
    ck_assert_msg(ended_s - wrong_s < given_up_s + ENDING_S, "%s, %s: took %.1f s to end\n%s", transport, name,
                  ended_s - wrong_s, *log);
    return exit_code;
}

/* n_reports ranks got the status within limit_s, and a line that holds `first` and `second` was written once. */
static void expect_reports(const char *log, int n_reports, const char *status, double limit_s, const char *first,
                           const char *second)
{
    int n_found = 0;
    for (const char *at = log; (at = strstr(at, " got ")) != NULL; at++) {
        char got[64];
        double after_s = 1e9;
        if (sscanf(at, " got %63s after %lf s", got, &after_s) == 2 && strcmp(got, status) == 0 && after_s < limit_s)
            n_found++;
    }
    ck_assert_msg(n_found == n_reports, "%d ranks, not %d, got %s within %.1f s\n%s", n_found, n_reports, status,
                  limit_s, log);
    ck_assert_msg(support_count(log, first) == 1 && support_count(log, second) == 1, "not once: \"%s\" and \"%s\"\n%s",
                  first, second, log);
}

/* For ranks that share memory: all of them but n_silent report. woken: how rank 1's own report would begin, which may
 * or may not appear: mpirun wakes a stopped rank when it ends the job, and the rank finds the failure. NULL: it is not
 * counted. */
static void expect_named_before(double deadline_s, int n_ranks, int n_silent, const char *name, const char *status,
                                double limit_s, const char *first, const char *second, const char *woken)
{
    char *log;
    support_output_t output;
    one_goes_wrong(n_ranks, "node", name, deadline_s, &log, &output);
    const int late = woken && strstr(log, woken) != NULL;
    expect_reports(log, n_ranks - n_silent + late, status, limit_s, first, second);
    support_output_free(&output);
    free(log);
}

static void expect_named_on_node(int n_ranks, int n_silent, const char *name, const char *status, double limit_s,
                                 const char *first, const char *second)
{
    expect_named_before(DEADLINE_S, n_ranks, n_silent, name, status, limit_s, first, second, NULL);
}

static const int failure_rank_counts[] = {2, 8};
#define N_FAILURE_RANK_COUNTS ((int)(sizeof(failure_rank_counts) / sizeof(failure_rank_counts[0])))

START_TEST(rank_that_exits_is_named)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_on_node(failure_rank_counts[_i], 1, "one_exits", "ZERO_ERROR_PEER", 2.0, ": rank 1 (process ",
                         ") has exited or was killed while other ranks wait for it in fence\n");
}
END_TEST

START_TEST(rank_that_is_killed_is_named)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_on_node(failure_rank_counts[_i], 1, "one_is_killed", "ZERO_ERROR_PEER", 2.0, ": rank 1 (process ",
                         ") has exited or was killed while other ranks wait for it in fence\n");
}
END_TEST

START_TEST(rank_that_stops_is_named_at_the_deadline)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_before(DEADLINE_S, failure_rank_counts[_i], 1, "one_stops", "ZERO_ERROR_TIMEOUT", 4.0,
                        ": rank 1 (process ", ", stopped) did not come to fence within 1.5 s (ZERO_TIMEOUT_S)\n",
                        "rank 1 got ZERO_ERROR_TIMEOUT after 0.0");
}
END_TEST

/* The deadline is for ranks that may still come; a stopped rank is given up before it. */
START_TEST(rank_that_stays_stopped_is_named_long_before_the_deadline)
{
    expect_named_before(600.0, 3, 1, "one_stops", "ZERO_ERROR_TIMEOUT", STOPPED_S + 2.5, ": rank 1 (process ",
                        ") has been stopped (SIGSTOP, say) for 5 s while other ranks wait for it in fence\n",
                        "rank 1 got ZERO_ERROR_TIMEOUT after 0.0");
}
END_TEST

/* The same while ranks wait for their devices, which wait for each other: after a second the host checks its peers. */
START_TEST(ranks_that_wait_for_their_devices_find_a_lost_rank)
{
    expect_named_before(600.0, 3, 1, "one_stops_beside_devices", "ZERO_ERROR_TIMEOUT", STOPPED_S + 3.5,
                        ": rank 1 (process ",
                        ") has been stopped (SIGSTOP, say) for 5 s while other ranks wait for it in step 7\n",
                        "rank 1 got ZERO_ERROR_TIMEOUT after 1.0");
    expect_named_before(600.0, 3, 1, "one_is_killed_beside_devices", "ZERO_ERROR_PEER", 3.0, ": rank 1 (process ",
                        ") has exited or was killed while other ranks wait for it in step 7\n", NULL);
}
END_TEST

START_TEST(rank_that_closes_before_the_others_is_named)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_on_node(failure_rank_counts[_i], 1, "one_leaves", "ZERO_ERROR_MISMATCH", 1.0,
                         ": ranks call different things: ", "rank 1 is in zero_comm_destroy");
}
END_TEST

START_TEST(ranks_that_call_different_things_are_named)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_on_node(failure_rank_counts[_i], 0, "one_calls_something_else", "ZERO_ERROR_MISMATCH", 1.0,
                         ": ranks call different things: ", "zero_comm_barrier");
}
END_TEST

START_TEST(abort_wakes_ranks_that_share_memory)
{
    if (support_leaves_out(failure_rank_counts[_i]))
        return;
    expect_named_on_node(failure_rank_counts[_i], 1, "one_aborts", "ZERO_ERROR_PEER", 1.0, "rank 0 got ",
                         "rank 0 got ");
}
END_TEST

/* Without shared memory only mpirun sees a rank's end: it ends the others long before their own deadline, and its exit
 * code says what happened to the rank. Its text would name the rank, but Open MPI 4 sometimes loses that on the way to
 * the terminal. */
START_TEST(job_of_messages_ends_with_a_rank)
{
    static const struct {
        const char *name;
        int exit_code; /* ANY: one that is not 0 */
    } ends[] = {{"one_exits", ANY}, {"one_is_killed", 128 + SIGKILL}, {"one_aborts", 7}};
    char *log;
    support_output_t output;
    int exit_code = one_goes_wrong(3, "mpi", ends[_i].name, 4 * (DEADLINE_S + ENDING_S), &log, &output);
    ck_assert_msg(ends[_i].exit_code == ANY || exit_code == ends[_i].exit_code, "%s: exit code %d, not %d\n%s",
                  ends[_i].name, exit_code, ends[_i].exit_code, output.err);
    support_output_free(&output);
    free(log);
}
END_TEST

/* Both others find the same rank missing; they share no memory in which they could agree that one reports it. */
static const struct {
    const char *transport, *name;
    double deadline_s;
} silent[] = {{"mpi", "one_stops", DEADLINE_S},
              {"mpi", "one_stops_before_much", 2 * DEADLINE_S},
              {"through-mpi", "one_stops_before_a_gather", 2 * DEADLINE_S}}; /* the two must hear each other by then */

START_TEST(rank_that_sends_no_message_is_named_at_the_deadline)
{
    char line[96], *log;
    support_output_t output;
    snprintf(line, sizeof line, "did not end within %g s (ZERO_TIMEOUT_S): not heard from: rank 1\n",
             silent[_i].deadline_s);
    one_goes_wrong(3, silent[_i].transport, silent[_i].name, silent[_i].deadline_s, &log, &output);
    ck_assert_msg(support_count(log, line) == 2, "%s", log);
    support_output_free(&output);
    free(log);
}
END_TEST

/* A rank that fails on its own and closes tells the ranks that wait for it. */
START_TEST(rank_that_closes_before_it_sends_is_named)
{
    char *log;
    support_output_t output;
    one_goes_wrong(3, "mpi", "one_leaves", DEADLINE_S, &log, &output);
    ck_assert_msg(support_count(log, "is in zero_comm_barrier, rank 1 is in zero_comm_destroy\n") == 2, "%s", log);
    support_output_free(&output);
    free(log);
}
END_TEST

START_TEST(bad_deadline_is_refused)
{
    support_output_t output;
    int exit_code =
        support_mpirun(&output, 30.0, 2, "-x ZERO_TIMEOUT_S=soon %s/tests/mpi/comm_cases node all", support_build());
    ck_assert_int_ne(exit_code, 0);
    ck_assert_msg(support_count(output.err, "ZERO_TIMEOUT_S=soon in the environment is not") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("comm");
    TCase *promises = tcase_create("promises");
    tcase_set_timeout(promises, 150);
    tcase_add_test(promises, one_rank_without_mpirun_leaves_mpi_alone);
    tcase_add_loop_test(promises, shared_memory_keeps_every_promise, 0, N_RANK_COUNTS);
    tcase_add_loop_test(promises, messages_keep_every_promise, 0, N_RANK_COUNTS);
    tcase_add_loop_test(promises, messages_between_hosts_and_shared_memory_inside_keep_every_promise, 0, 3);
    tcase_add_loop_test(promises, rails_between_devices_of_several_hosts_keep_every_promise, 0, 5);
    tcase_add_loop_test(promises, host_memory_between_devices_keeps_every_promise, 0, N_RANK_COUNTS);
    tcase_add_test(promises, ranks_that_cannot_share_memory_send_messages);
    suite_add_tcase(suite, promises);

    TCase *failures = tcase_create("failures");
    tcase_set_timeout(failures, 60);
    tcase_add_loop_test(failures, rank_that_exits_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, rank_that_is_killed_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, rank_that_stops_is_named_at_the_deadline, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_test(failures, rank_that_stays_stopped_is_named_long_before_the_deadline);
    tcase_add_test(failures, ranks_that_wait_for_their_devices_find_a_lost_rank);
    tcase_add_loop_test(failures, rank_that_closes_before_the_others_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, ranks_that_call_different_things_are_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, abort_wakes_ranks_that_share_memory, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, job_of_messages_ends_with_a_rank, 0, 3);
    tcase_add_loop_test(failures, rank_that_sends_no_message_is_named_at_the_deadline, 0, 3);
    tcase_add_test(failures, rank_that_closes_before_it_sends_is_named);
    tcase_add_test(failures, bad_deadline_is_refused);
    suite_add_tcase(suite, failures);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
