/* test_checkpoint_removal.c - removing a directory of libzero's: all that is in it goes, however much, and nothing
 * outside it; what is not libzero's stays.
 */
#include <string.h>

#include "tests/support/scratch.h"
#include "zero/checkpoint/checkpoint_removal.h"

#define LIMIT_S 30.0

START_TEST(more_names_than_are_read_at_once_go)
{
    ck_assert_int_eq(shell("mkdir -p step/deep/deeper && touch step/" ZERO_MARKER_NAME " && seq 1 300 | "
                           "xargs -I{} touch step/file-{} step/deep/deeper/file-{}"),
                     0);
    ck_assert_int_eq(zero_checkpoint_remove(root, "step"), ZERO_OK);
    ck_assert_int_eq(shell("test ! -e step"), 0);
}
END_TEST

/* Files of so many bytes are removed by several threads. They have holes, so they take no room. */
START_TEST(large_files_go)
{
    ck_assert_int_eq(shell("mkdir -p step/more outside && touch step/" ZERO_MARKER_NAME
                           " outside/kept && for i in $(seq 1 20); "
                           "do truncate -s 300M step/large-$i step/more/large-$i; done && ln -s ../outside step/link"),
                     0);
    ck_assert_int_eq(zero_checkpoint_remove(root, "step"), ZERO_OK);
    ck_assert_int_eq(shell("test ! -e step && test -e outside/kept"), 0);
}
END_TEST

START_TEST(what_is_not_ours_stays)
{
    ck_assert_int_eq(shell("mkdir step && truncate -s 300M step/large && touch step/other"), 0);
    ck_assert_int_eq(zero_checkpoint_remove(root, "step"), ZERO_ERROR_IO);
    ck_assert_int_eq(shell("test -e step/large && test -e step/other"), 0);
    ck_assert_int_eq(zero_checkpoint_remove(root, "missing"), ZERO_OK);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("checkpoint removal");
    TCase *c = tcase_create("directories");
    tcase_add_checked_fixture(c, scratch_open, scratch_close);
    tcase_set_timeout(c, LIMIT_S);
    tcase_add_test(c, more_names_than_are_read_at_once_go);
    tcase_add_test(c, large_files_go);
    tcase_add_test(c, what_is_not_ours_stays);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
