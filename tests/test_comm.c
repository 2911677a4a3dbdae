/* test_comm.c - every promise of a communicator, on every transport, at several numbers of ranks; and that a rank that
 * goes wrong is found, named, and ends the job soon. The promises themselves are the cases of mpi/comm_cases.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

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
    all_cases_hold(rank_counts[_i], rank_counts[_i] == 1 ? "self" : "node");
}
END_TEST

START_TEST(messages_keep_every_promise)
{
    all_cases_hold(rank_counts[_i], "mpi");
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

/* Runs a case in which rank 1 does wrong. The job must end in time, with an exit code that is not 0. */
static void one_goes_wrong(int n_ranks, const char *transport, const char *name, support_output_t *output)
{
    int exit_code = support_mpirun(output, 30.0, n_ranks, "-x ZERO_TIMEOUT_S=1.5 %s/tests/mpi/comm_cases %s %s",
                                   support_build(), transport, name);
    ck_assert_msg(exit_code != SUPPORT_TIMED_OUT && exit_code != 0, "%s, %s: exit code %d\n%s", transport, name,
                  exit_code, output->err);
    ck_assert_msg(output->seconds < 8.0, "%s, %s: took %.1f s\n%s", transport, name, output->seconds, output->err);
}

/* Counts that the others got the status within `limit_s`, and that the line which names rank 1 was written once. */
static void all_others_report(const support_output_t *output, int n_ranks, const char *status, double limit_s,
                              const char *line)
{
    size_t n_reports = 0;
    for (const char *at = output->err; (at = strstr(at, " got ")) != NULL; at++) {
        char got[64];
        double after_s = 1e9;
        if (sscanf(at, " got %63s after %lf s", got, &after_s) == 2 && strcmp(got, status) == 0 && after_s < limit_s)
            n_reports++;
    }
    ck_assert_msg(n_reports >= (size_t)n_ranks - 1, "%zu of %d ranks got %s within %.1f s\n%s", n_reports, n_ranks - 1,
                  status, limit_s, output->err);
    ck_assert_msg(support_count(output->err, line) == 1, "not once: \"%s\"\n%s", line, output->err);
}

static const int failure_rank_counts[] = {2, 8};
#define N_FAILURE_RANK_COUNTS ((int)(sizeof(failure_rank_counts) / sizeof(failure_rank_counts[0])))

START_TEST(rank_that_exits_is_named)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_exits", &output);
    all_others_report(&output, failure_rank_counts[_i], "ZERO_ERROR_PEER", 2.0, "has exited or was killed while");
    ck_assert_ptr_nonnull(strstr(output.err, ": rank 1 (process "));
    support_output_free(&output);
}
END_TEST

START_TEST(rank_that_is_killed_is_named)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_is_killed", &output);
    all_others_report(&output, failure_rank_counts[_i], "ZERO_ERROR_PEER", 2.0, "has exited or was killed while");
    ck_assert_ptr_nonnull(strstr(output.err, ": rank 1 (process "));
    support_output_free(&output);
}
END_TEST

START_TEST(rank_that_stops_is_named_at_the_deadline)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_stops", &output);
    all_others_report(&output, failure_rank_counts[_i], "ZERO_ERROR_TIMEOUT", 4.0, ", stopped) did not come to fence");
    ck_assert_ptr_nonnull(strstr(output.err, ": rank 1 (process "));
    support_output_free(&output);
}
END_TEST

START_TEST(rank_that_closes_before_the_others_is_named)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_leaves", &output);
    all_others_report(&output, failure_rank_counts[_i], "ZERO_ERROR_MISMATCH", 1.0, "ranks call different things");
    ck_assert_ptr_nonnull(strstr(output.err, "rank 1 close"));
    support_output_free(&output);
}
END_TEST

START_TEST(ranks_that_call_different_things_are_named)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_calls_something_else", &output);
    all_others_report(&output, failure_rank_counts[_i] + 1, "ZERO_ERROR_MISMATCH", 2.0, "ranks call different things");
    support_output_free(&output);
}
END_TEST

START_TEST(abort_wakes_ranks_that_share_memory)
{
    support_output_t output;
    one_goes_wrong(failure_rank_counts[_i], "node", "one_aborts", &output);
    all_others_report(&output, failure_rank_counts[_i], "ZERO_ERROR_PEER", 1.0, "MPI_ABORT was invoked");
    support_output_free(&output);
}
END_TEST

/* Without shared memory a rank's end is mpirun's to see: it names the rank and ends the others. */
START_TEST(job_of_messages_ends_with_a_rank)
{
    static const char *const names[] = {"one_exits", "one_is_killed", "one_aborts"};
    support_output_t output;
    one_goes_wrong(3, "mpi", names[_i], &output);
    ck_assert_msg(strstr(output.err, "rank 1"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(rank_that_sends_no_message_is_named_at_the_deadline)
{
    support_output_t output;
    one_goes_wrong(3, "mpi", "one_stops", &output);
    ck_assert_msg(support_count(output.err, "did not end within 2 s (ZERO_TIMEOUT_S): not heard of: rank 1\n") == 2,
                  "%s", output.err);
    support_output_free(&output);
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
    tcase_add_test(promises, ranks_that_cannot_share_memory_send_messages);
    suite_add_tcase(suite, promises);

    TCase *failures = tcase_create("failures");
    tcase_set_timeout(failures, 60);
    tcase_add_loop_test(failures, rank_that_exits_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, rank_that_is_killed_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, rank_that_stops_is_named_at_the_deadline, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, rank_that_closes_before_the_others_is_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, ranks_that_call_different_things_are_named, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, abort_wakes_ranks_that_share_memory, 0, N_FAILURE_RANK_COUNTS);
    tcase_add_loop_test(failures, job_of_messages_ends_with_a_rank, 0, 3);
    tcase_add_test(failures, rank_that_sends_no_message_is_named_at_the_deadline);
    tcase_add_test(failures, bad_deadline_is_refused);
    suite_add_tcase(suite, failures);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
