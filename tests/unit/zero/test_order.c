/* test_order.c - the order of sums belongs to the batch, not to the ranks. tests/mpi/order_cases compares every reduced
 * gradient with additions in plain C, micro-batch after micro-batch; here the text of loss and norm is compared over
 * numbers of ranks, stages and transports. The same of zerotrain: test_stages and test_resume.
 */
#include <stdio.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0
#define N_AT_ONCE 4 /* runs: mpirun mostly waits */

typedef struct run {
    int exit_code;
    support_output_t output;
} run_t;

static const struct {
    int n_ranks;
    const char *settings;
} CASES[] = {{1, "stage=0"},
             {2, "stage=1"},
             {3, "stage=2 comm=mpi"},
             {4, "stage=3 prefetch=0"},
             {6, "stage=3 comm=mpi staging=70000"},
             {12, "stage=0"},
             {2, "stage=3 prefetch=3"},
             {3, "stage=0 comm=mpi overlap=0"},
             {6, "stage=1 comm=mpi"},
             {1, "stage=3"}};
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

START_TEST(reduced_gradients_are_sums_in_the_order_of_micro_batches)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    const int n_cases = _i == 0 ? N_CASES : N_CASES / 2;
    run_t runs[N_CASES] = {0};
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < n_cases; i++)
        if (!support_leaves_out(CASES[i].n_ranks))
            runs[i].exit_code =
                support_mpirun(&runs[i].output, LIMIT_S, CASES[i].n_ranks, "%s/tests/mpi/order_cases dtype=%s %s",
                               support_build(), dtypes[_i], CASES[i].settings);
    ck_assert_uint_eq(support_count(runs[0].output.out, "\n"), 3);
    ck_assert_msg(strstr(runs[0].output.out, " 1\n3 "), "step 2 was not skipped: %s", runs[0].output.out);
    for (int i = 0; i < n_cases; i++) {
        if (support_leaves_out(CASES[i].n_ranks))
            continue;
        ck_assert_msg(runs[i].exit_code == 0 && strcmp(runs[i].output.out, runs[0].output.out) == 0,
                      "%s, %d ranks, %s: exit code %d\n%s%s instead of\n%s", dtypes[_i], CASES[i].n_ranks,
                      CASES[i].settings, runs[i].exit_code, runs[i].output.err, runs[i].output.out, runs[0].output.out);
    }
    for (int i = 0; i < n_cases; i++)
        support_output_free(&runs[i].output);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("order");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 5 * LIMIT_S);
    tcase_add_loop_test(ranks, reduced_gradients_are_sums_in_the_order_of_micro_batches, 0, 3);
    suite_add_tcase(suite, ranks);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
