/* test_order.c - the order of sums belongs to the batch, not to the ranks. tests/mpi/order_cases compares every reduced
 * gradient with additions in plain C, micro-batch after micro-batch; here the text of loss and norm is compared over
 * numbers of ranks, stages and transports. The same of zerotrain: test_stages and test_resume.
 */
#include <string.h>

#include "tests/support/same_text.h"

static const same_text_case_t CASES[] = {{.n_ranks = 1, .settings = "stage=0"},
                                         {.n_ranks = 2, .settings = "stage=1"},
                                         {.n_ranks = 3, .settings = "stage=2 comm=mpi"},
                                         {.n_ranks = 4, .settings = "stage=3 prefetch=0"},
                                         {.n_ranks = 6, .settings = "stage=3 comm=mpi staging=70000"},
                                         {.n_ranks = 12, .settings = "stage=0"},
                                         {.n_ranks = 2, .settings = "stage=3 prefetch=3"},
                                         {.n_ranks = 3, .settings = "stage=0 comm=mpi overlap=0"},
                                         {.n_ranks = 6, .settings = "stage=1 comm=mpi"},
                                         {.n_ranks = 1, .settings = "stage=3"}};
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

START_TEST(reduced_gradients_are_sums_in_the_order_of_micro_batches)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    const int n_cases = _i == 0 ? N_CASES : N_CASES / 2;
    same_text_case_t cases[N_CASES];
    memcpy(cases, CASES, sizeof cases);
    same_text_run("order_cases", dtypes[_i], cases, n_cases);
    ck_assert_uint_eq(support_count(cases[0].output.out, "\n"), 3);
    ck_assert_msg(strstr(cases[0].output.out, " 1\n3 "), "step 2 was not skipped: %s", cases[0].output.out);
    same_text_check(dtypes[_i], cases, n_cases);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("order");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 5 * SAME_TEXT_LIMIT_S);
    tcase_add_loop_test(ranks, reduced_gradients_are_sums_in_the_order_of_micro_batches, 0, 3);
    suite_add_tcase(suite, ranks);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
