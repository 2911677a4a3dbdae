/* test_tensors.c - tensors that are read and set whole, changing micro-steps and cancelled steps: the same bits at
 * every stage and on any number of ranks. The runs are tests/mpi/tensor_cases, which checks gradients against additions
 * in plain C; here their text is compared. */
#include <string.h>

#include "tests/support/same_text.h"

#define N_CASES 10

/* Every number of ranks, every stage, both transports. */
static const same_text_case_t CASES[N_CASES] = {
    {.n_ranks = 1, .settings = "stage=0"}, {.n_ranks = 1, .settings = "stage=3"},
    {.n_ranks = 2, .settings = "stage=1"}, {.n_ranks = 2, .settings = "stage=3 comm=mpi"},
    {.n_ranks = 3, .settings = "stage=2"}, {.n_ranks = 3, .settings = "stage=0 comm=mpi"},
    {.n_ranks = 4, .settings = "stage=3"}, {.n_ranks = 4, .settings = "stage=1 comm=mpi"},
    {.n_ranks = 5, .settings = "stage=0"}, {.n_ranks = 5, .settings = "stage=3"}};

START_TEST(whole_tensors_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks)
{
    static const char *const settings[] = {"fp32", "bf16", "fp16", "bf16 optimizer=adamw8bit"};
    same_text_case_t cases[N_CASES];
    if ((_i == 1 || _i == 2) && support_is_left_to_plain_build())
        return;
    memcpy(cases, CASES, sizeof cases);
    /* Gradients, updates and setting depend on the dtype, what passes between ranks does not: half the cases will do.
     */
    for (int i = 2; i < N_CASES; i += 2)
        cases[i].is_left_out = _i > 0;
    same_text_run("tensor_cases", settings[_i], cases, N_CASES);
    ck_assert_msg(support_count(cases[0].output.out, "\n") == 4 + 3 * 15, "%s%s", cases[0].output.out,
                  cases[0].output.err);
    same_text_check(settings[_i], cases, N_CASES);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("tensors");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 5 * SAME_TEXT_LIMIT_S);
    TCase *lengthy = support_long_case(suite, 5 * SAME_TEXT_LIMIT_S);
    SUPPORT_ADD_LOOP(ranks, lengthy, whole_tensors_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks, 2, 4);
    suite_add_tcase(suite, ranks);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
