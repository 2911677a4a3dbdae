/* test_report.c - zerotrain's voice: whole lines, who speaks, exit codes. */
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/report/report.h"

START_TEST(rank_0_speaks_for_all_and_others_for_themselves)
{
    capture_begin();
    report_init(0, 4);
    report("a %d", 1);
    ck_assert_int_eq(report_error(ZERO_ERROR_USAGE, "b"), ZERO_ERROR_USAGE);
    report_init(2, 4);
    report("not this");
    ck_assert_int_eq(report_error(ZERO_ERROR_IO, "nor this"), ZERO_ERROR_IO);
    ck_assert_int_eq(report_rank_error(ZERO_ERROR_IO, "c"), ZERO_ERROR_IO);
    ck_assert_str_eq(capture_end(), "zerotrain: a 1\nzerotrain: b\nzerotrain: rank 2: c\n");
    ck_assert(!report_is_speaker());
}
END_TEST

START_TEST(a_message_is_one_line_whatever_is_in_it)
{
    static char text[100000];
    memset(text, 'x', sizeof text - 1);
    capture_begin();
    report("%s", "a\nb\r\x1b[31mc");
    report_error(ZERO_ERROR_IO, "%s", text);
    const char *said = capture_end();
    const char *second = strchr(said, '\n') + 1;
    ck_assert_int_eq(strncmp(said, "zerotrain: a?b??[31mc\n", (size_t)(second - said)), 0);
    ck_assert_uint_eq(support_count(said, "\n"), 2);
    ck_assert_str_eq(second + strlen(second) - 4, "...\n");
}
END_TEST

START_TEST(libzero_speaks_in_the_same_voice)
{
    report_init(1, 2);
    zero_model_t *model;
    ck_assert_int_eq(zero_model_create(&model), ZERO_OK);
    zero_unit_t unit;
    capture_begin();
    zero_status_t status = zero_model_add_unit(model, "", &unit);
    expect_line(capture_end(), (const char *[]){"zerotrain: rank 1: ", NULL});
    ck_assert_int_ne(status, ZERO_OK);
    zero_model_destroy(model);
}
END_TEST

START_TEST(exit_codes_are_those_of_the_contract)
{
    ck_assert_int_eq(report_exit_code(ZERO_OK), 0);
    ck_assert_int_eq(report_exit_code(ZERO_ERROR_USAGE), 2);
#define CHECK_EXIT_CODE(name, number, text)                                                                            \
    if (ZERO_##name != ZERO_OK && ZERO_##name != ZERO_ERROR_USAGE)                                                     \
        ck_assert_int_eq(report_exit_code(ZERO_##name), 1);
    ZERO_STATUS_MAP(CHECK_EXIT_CODE)
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("report");
    TCase *c = tcase_create("lines");
    tcase_add_test(c, rank_0_speaks_for_all_and_others_for_themselves);
    tcase_add_test(c, a_message_is_one_line_whatever_is_in_it);
    tcase_add_test(c, libzero_speaks_in_the_same_voice);
    tcase_add_test(c, exit_codes_are_those_of_the_contract);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
