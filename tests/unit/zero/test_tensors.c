/* test_tensors.c - tensors that are read and set whole, changing micro-steps and cancelled steps: the same bits at
 * every stage and on any number of ranks. The runs are tests/mpi/tensor_cases, which checks gradients against additions
 * in plain C; here their text is compared. */
#include <stdio.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0
#define N_AT_ONCE 4 /* runs: mpirun mostly waits */
#define N_CASES 10

typedef struct run {
    int exit_code;
    support_output_t output;
} run_t;

/* Every number of ranks, every stage, both transports. */
static const struct {
    int n_ranks;
    const char *settings;
} CASES[N_CASES] = {{1, "stage=0"}, {1, "stage=3"},          {2, "stage=1"}, {2, "stage=3 comm=mpi"},
                    {3, "stage=2"}, {3, "stage=0 comm=mpi"}, {4, "stage=3"}, {4, "stage=1 comm=mpi"},
                    {5, "stage=0"}, {5, "stage=3"}};

/* Gradients, updates and setting depend on the dtype, what passes between ranks does not: half the cases will do. */
static bool is_left_out(int i, int dtype)
{
    return (dtype > 0 && i > 0 && i % 2 == 0) || support_leaves_out(CASES[i].n_ranks);
}

START_TEST(whole_tensors_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks)
{
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    run_t runs[N_CASES] = {0};
    (void)support_build(); /* found once, before the threads */
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_CASES; i++)
        if (!is_left_out(i, _i))
            runs[i].exit_code =
                support_mpirun(&runs[i].output, LIMIT_S, CASES[i].n_ranks, "%s/tests/mpi/tensor_cases dtype=%s %s",
                               support_build(), dtypes[_i], CASES[i].settings);
    ck_assert_msg(support_count(runs[0].output.out, "\n") == 4 + 3 * 15, "%s%s", runs[0].output.out,
                  runs[0].output.err);
    for (int i = 0; i < N_CASES; i++) {
        if (is_left_out(i, _i))
            continue;
        ck_assert_msg(runs[i].exit_code == 0 && strcmp(runs[i].output.out, runs[0].output.out) == 0,
                      "%s, %d ranks, %s: exit code %d\n%s%s instead of\n%s", dtypes[_i], CASES[i].n_ranks,
                      CASES[i].settings, runs[i].exit_code, runs[i].output.err, runs[i].output.out, runs[0].output.out);
    }
    for (int i = 0; i < N_CASES; i++)
        support_output_free(&runs[i].output);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("tensors");
    TCase *ranks = tcase_create("ranks");
    tcase_set_timeout(ranks, 5 * LIMIT_S);
    tcase_add_loop_test(ranks, whole_tensors_have_the_same_bits_at_every_stage_and_on_any_number_of_ranks, 0, 3);
    suite_add_tcase(suite, ranks);
    return suite;
}

int main(void)
{
    return support_main(suite());
}
