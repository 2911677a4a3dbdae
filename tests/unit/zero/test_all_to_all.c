/* test_all_to_all.c - zero_all_to_all: every byte comes from the rank that sent it, over every transport without a GPU,
 * also on a device whose streams are threads of random speed, where a missing fence would be found. The runs are
 * mpi/exchange_cases.c. */
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0

static const struct {
    int n_ranks;
    const char *kind, *device, *hosts; /* hosts: as in host_ids.h; "": one */
} rows[] = {
    {1, "auto", "cpu", ""},       {2, "auto", "cpu", ""},      {3, "auto", "cpu", ""},   {6, "auto", "cpu", ""},
    {4, "mpi", "cpu", ""},        {6, "mpi", "cpu", ""},       {4, "auto", "async", ""}, {6, "auto", "async", ""},
    {6, "auto", "cpu", "threes"}, {4, "auto", "cpu", "turns"},
};
#define N_ROWS (int)(sizeof rows / sizeof rows[0])

START_TEST(every_byte_comes_from_the_rank_that_sent_it)
{
    support_output_t output;
    if (support_leaves_out(rows[_i].n_ranks))
        return;
    int code = support_mpirun(&output, LIMIT_S, rows[_i].n_ranks, "%s/tests/mpi/exchange_cases random %s %s %d %s",
                              support_build(), rows[_i].kind, rows[_i].device, _i + 1, rows[_i].hosts);
    ck_assert_msg(code == 0 && strcmp(output.out, "ok\n") == 0, "exit code %d\n%s%s", code, output.out, output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(a_missing_fence_is_found)
{
    support_output_t output;
    if (support_is_left_to_plain_build())
        return;
    int code = support_mpirun(&output, LIMIT_S, 4, "%s/tests/mpi/exchange_cases random auto async-no-fence 1",
                              support_build());
    ck_assert_msg(code != 0 && strstr(output.err, "not so"), "exit code %d\n%s", code, output.err);
    support_output_free(&output);
}
END_TEST

static const char *const kinds[] = {"auto", "mpi"};

START_TEST(ranks_that_differ_find_out)
{
    support_output_t output;
    support_mpirun(&output, LIMIT_S, 4, "%s/tests/mpi/exchange_cases mismatch %s cpu 1", support_build(), kinds[_i]);
    ck_assert_msg(strstr(output.err, "the number of bytes in a slice is 1000 on rank 3 and 2000 on rank 0"), "%s",
                  output.err);
    ck_assert_msg(strstr(output.err, "rank 2 is in zero_all_to_all of 1700 bytes") &&
                      strstr(output.err, "rank 3 is in zero_all_to_all of 700 bytes"),
                  "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(what_cannot_be_done_is_refused)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, 2, "%s/tests/mpi/exchange_cases misuse auto cpu 1", support_build());
    ck_assert_msg(code == 0 && strcmp(output.out, "ok\n") == 0, "exit code %d\n%s", code, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("all_to_all");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 2 * LIMIT_S);
    tcase_add_loop_test(tc, every_byte_comes_from_the_rank_that_sent_it, 0, N_ROWS);
    tcase_add_test(tc, a_missing_fence_is_found);
    tcase_add_loop_test(tc, ranks_that_differ_find_out, 0, 2);
    tcase_add_test(tc, what_cannot_be_done_is_refused);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
