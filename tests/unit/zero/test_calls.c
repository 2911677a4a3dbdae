/* test_calls.c - what a step costs the host in driver calls, where most of its time goes: the same number for any
 * number of ranks, and the same number more for every further unit. Counted on the device of async_device.h, so the
 * counts are the same every time; GPUs measure how long a call takes (tests/scaling/run growth, tests/gpu/count-calls).
 *
 * The runs are tests/mpi/stream_cases, without config.check.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0

enum { FEW = 8, MORE = 16, MANY = 32 }; /* blocks, between the first unit and the last */

/* Reads a step's calls, all kinds together, with FEW, MORE and MANY blocks, and prints them. It is the fourth step: the
 * third follows an evaluation, which gathered parameters. */
static void count_calls(int n_ranks, const char *settings, int n_calls[3])
{
    static const int n_blocks[] = {FEW, MORE, MANY};
    support_output_t output;
    char runs[512] = "";
    for (int i = 0; i < 3; i++)
        snprintf(runs + strlen(runs), sizeof runs - strlen(runs), "%s calls=1 delay_us=0 steps=4 blocks=%d %s",
                 i ? " /" : "", n_blocks[i], settings);
    int code = support_mpirun(&output, LIMIT_S, n_ranks, "%s/tests/mpi/stream_cases %s", support_build(), runs);
    ck_assert_msg(code == 0, "%d ranks, %s: exit code %d\n%.600s", n_ranks, runs, code, output.err);
    const char *line = output.out;
    for (int i = 0; i < 3; i++, line++) {
        line = strstr(line, "calls of a step");
        ck_assert_msg(line && sscanf(line, "calls of a step, %*d units, %*d ranks: %d", &n_calls[i]) == 1, "%s",
                      output.out);
        printf("%s: %.*s\n", settings, (int)strcspn(line, "\n"), line);
    }
    support_output_free(&output);
}

static const char *const settings_of[] = {
    "stage=3", "stage=2", "stage=1", "stage=0", "stage=3 micro_steps=2", "stage=3 offload=100 buffer=0"};
#define N_SETTINGS (int)(sizeof settings_of / sizeof settings_of[0])

START_TEST(every_unit_costs_the_same_calls_on_any_number_of_ranks)
{
    int two[3], five[3];
    count_calls(2, settings_of[_i], two);
    ck_assert_int_gt(two[1], two[0]);
    ck_assert_int_eq((two[2] - two[1]) * (MORE - FEW), (two[1] - two[0]) * (MANY - MORE));
    count_calls(5, settings_of[_i], five);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(five[i], two[i]);
}
END_TEST

/* A gather into an unsharded buffer: a wait for the buffer, the peers' slices in one batch, the own slice with an event
 * each way, a record, and compute's wait. A reduction: a wait for the gradients, a fence with a record, the slices in
 * one batch, a record, compute's wait, and the sum. One record marks the unit as used and times compute's arrival at
 * its next wait; if compute has done something since, there is another. */
#define GATHER_TO_SLOT 9
#define GATHER_IN_PLACE 3 /* once a step, behind all others, so without a wait */
#define REDUCTION 7
#define USE 1
#define COME 1
START_TEST(a_unit_costs_so_many_calls)
{
    static const struct {
        const char *settings;
        int n_ranks, per_unit;
    } costs[] = {
        {"stage=3", 2, 2 * (GATHER_TO_SLOT + USE) + REDUCTION}, /* one call for all waits after a unit */
        {"stage=2", 2, COME + GATHER_IN_PLACE + USE + REDUCTION},
        {"stage=0", 2, USE + REDUCTION + 5}, /* its sum is gathered: a record, a wait, a fence with a record, a batch */
        {"stage=3", 1, 1}};                  /* the sum */
    int n_calls[3];
    count_calls(costs[_i].n_ranks, costs[_i].settings, n_calls);
    ck_assert_int_eq(n_calls[1] - n_calls[0], (MORE - FEW) * costs[_i].per_unit);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("calls");
    TCase *tcase = tcase_create("of a step");
    tcase_set_timeout(tcase, 200);
    tcase_add_loop_test(tcase, every_unit_costs_the_same_calls_on_any_number_of_ranks, 0, N_SETTINGS);
    tcase_add_loop_test(tcase, a_unit_costs_so_many_calls, 0, 4);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    setenv("ZERO_CHECK", "0", 1); /* it makes calls of its own, which no training run makes */
    return support_main(suite());
}
