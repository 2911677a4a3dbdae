/* test_api.c - any calls in any order: tests/mpi/api_random makes random calls and compares what they return with a
 * model of zero.h, on one rank and on ranks that all make the same calls. Each seed makes other calls;
 * ZERO_TEST_API_CALLS sets how many are made on one rank (a million, sanitized, takes minutes). */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/support.h"

#define LIMIT_S 1500.0

/* n_ranks 0: without mpirun. */
static void make_calls(int n_ranks, int n_calls, int seed)
{
    support_output_t output;
    char command[256];
    int n_made = 0;
    snprintf(command, sizeof command, "%.200s/tests/mpi/api_random calls=%d seed=%d", support_build(), n_calls, seed);
    int code = n_ranks > 0 ? support_mpirun(&output, LIMIT_S, n_ranks, "%s", command)
                           : support_run(&output, LIMIT_S, "%s", command);
    ck_assert_msg(code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, command, code, support_tail(output.err));
    ck_assert_msg(sscanf(output.out, "%d calls in", &n_made) == 1 && n_made >= n_calls, "%s", output.out);
    printf("%d ranks: %s", n_ranks, output.out);
    support_output_free(&output);
}

START_TEST(random_calls_return_the_status_that_zero_h_documents)
{
    const char *asked = getenv("ZERO_TEST_API_CALLS");
    make_calls(0, asked ? atoi(asked) : 10000, 1 + _i);
}
END_TEST

START_TEST(random_calls_of_several_ranks_return_the_documented_status)
{
    make_calls(1 + _i, 3000, 11 + _i);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("api");
    TCase *tcase = tcase_create("at random");
    tcase_set_timeout(tcase, LIMIT_S + 10.0);
    tcase_add_loop_test(tcase, random_calls_return_the_status_that_zero_h_documents, 0, 2);
    tcase_add_loop_test(tcase, random_calls_of_several_ranks_return_the_documented_status, 1, 3);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return support_main(suite());
}
