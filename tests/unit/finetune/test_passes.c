/* test_passes.c - passes that do without something: units that some ranks do not use, and passes for the gradient of
 * the input alone. The runs are tests/mpi/pass_cases, which checks gradients against additions in plain C and what is
 * refused; here their text is compared. */
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0

/* Every number of ranks, every stage, both transports. */
static const struct {
    int n_ranks;
    const char *settings;
} CASES[] = {{1, "stage=0"},           {1, "stage=3 check=1"},        {2, "stage=1 once=1"}, {2, "stage=3 dtype=bf16"},
             {3, "stage=2"},           {3, "stage=0 once=1 check=1"}, {4, "stage=3"},        {4, "stage=1 comm=mpi"},
             {2, "stage=2 dtype=fp16"}};
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

START_TEST(a_unit_that_is_not_used_adds_zero_and_an_input_grad_pass_nothing)
{
    support_output_t first = {0}, output;
    if (support_leaves_out(CASES[_i].n_ranks))
        return;
    ck_assert_int_eq(support_mpirun(&first, LIMIT_S, 1, "%s/tests/mpi/pass_cases", support_build()), 0);
    int exit_code = support_mpirun(&output, LIMIT_S, CASES[_i].n_ranks, "%s/tests/mpi/pass_cases %s", support_build(),
                                   CASES[_i].settings);
    ck_assert_int_eq(support_count(first.out, "\n"), 3);
    ck_assert_msg(exit_code == 0, "%d ranks, %s: %s", CASES[_i].n_ranks, CASES[_i].settings, output.err);
    ck_assert_str_eq(output.out, first.out); /* whole numbers: every dtype has the same sums */
    support_output_free(&first);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("passes");
    TCase *tests = tcase_create("passes");
    tcase_set_timeout(tests, 2 * LIMIT_S);
    tcase_add_loop_test(tests, a_unit_that_is_not_used_adds_zero_and_an_input_grad_pass_nothing, 0, N_CASES);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
