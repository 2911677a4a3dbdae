/* test_log.c - libzero's lines are one line of text each, whatever is quoted in them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"

static const struct {
    const char *what, *text, *line;
} QUOTED[] = {
    {"text", "h.0.attn.weight", "h.0.attn.weight"},
    {"a newline, which would begin a line of its own", "a\nzero: b", "a\\x0azero: b"},
    {"a carriage return, which would overwrite", "a\rb", "a\\x0db"},
    {"an escape sequence", "\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"},
    {"delete", "a\x7f", "a\\x7f"},
    {"tab and bell", "\t\a", "\\x09\\x07"},
    {"UTF-8 of two, three and four bytes", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d",
     "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d"},
    {"C1's control sequence introducer",
     "\xc2\x9b"
     "31m",
     "\\xc2\\x9b31m"},
    {"the first that is no control character of C1", "\xc2\xa0", "\xc2\xa0"},
    {"bytes that are never UTF-8", "\xff\xfe", "\\xff\\xfe"},
    {"a character that is cut off", "a\xe2\x82", "a\\xe2\\x82"},
    {"a continuation alone", "\x80", "\\x80"},
    {"an overlong '/'", "\xc0\xaf", "\\xc0\\xaf"},
    {"an overlong escape of three bytes", "\xe0\x80\x9b", "\\xe0\\x80\\x9b"},
    {"a surrogate", "\xed\xa0\x80", "\\xed\\xa0\\x80"},
    {"beyond Unicode", "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
};
enum { N_QUOTED = sizeof QUOTED / sizeof QUOTED[0] };

static char last_line[1 << 15];

static void on_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    (void)user, (void)level, (void)rank;
    snprintf(last_line, sizeof last_line, "%s", line);
}

START_TEST(quoted_text_is_escaped_for_a_log_function)
{
    char want[128];
    snprintf(want, sizeof want, "'%s' is there", QUOTED[_i].line);
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    ck_assert_int_eq(zero_fail(ZERO_ERROR_IO, "'%s' is there", QUOTED[_i].text), ZERO_ERROR_IO);
    ck_assert_msg(strcmp(last_line, want) == 0, "%s: %s instead of %s", QUOTED[_i].what, last_line, want);
}
END_TEST

START_TEST(quoted_text_is_escaped_on_stderr)
{
    char want[128];
    snprintf(want, sizeof want, "zero: '%s' is there\n", QUOTED[_i].line);
    capture_begin();
    zero_log(ZERO_LOG_WARNING, "'%s' is there", QUOTED[_i].text);
    const char *said = capture_end();
    ck_assert_msg(strcmp(said, want) == 0, "%s: %s instead of %s", QUOTED[_i].what, said, want);
}
END_TEST

/* Two paths of the longest kind fit; what does not fit shows that it was cut. */
START_TEST(a_long_line_is_whole_or_marked_as_cut)
{
    static char name[20000];
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    memset(name, 'x', 4095);
    zero_log(ZERO_LOG_WARNING, "'%s' and '%s' are both there", name, name);
    ck_assert_str_eq(last_line + strlen(last_line) - strlen("x' are both there"), "x' are both there");
    for (int c = 'x'; c > 0; c -= 'x' - 1) { /* 1: each is four when it is escaped */
        memset(name, c, sizeof name - 1);
        zero_log(ZERO_LOG_WARNING, "%s", name);
        ck_assert_uint_gt(strlen(last_line), 9000);
        ck_assert_str_eq(last_line + strlen(last_line) - 3, "...");
    }
}
END_TEST

static zero_status_t half_of(int n, int *half)
{
    ZERO_ASSERT(n % 2 == 0);
    *half = n / 2;
    return ZERO_OK;
}

/* What must hold inside the library: an error with file, line and condition where it does not, nothing where it does.
 */
START_TEST(a_failed_assertion_is_a_status_and_a_line)
{
    int half = -1;
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    last_line[0] = '\0';
    ck_assert_int_eq(half_of(6, &half), ZERO_OK);
    ck_assert_int_eq(half, 3);
    ck_assert_str_eq(last_line, "");
    ck_assert_int_eq(half_of(7, &half), ZERO_ERROR_INTERNAL);
    ck_assert_int_eq(half, 3);
    ck_assert_ptr_nonnull(strstr(last_line, "test_log.c:"));
    ck_assert_ptr_nonnull(strstr(last_line, ": n % 2 == 0 does not hold"));
    ck_assert_str_eq(zero_status_text(ZERO_ERROR_INTERNAL), "internal error: please report it");
}
END_TEST

/* The other thread's error does not reach this one, nor this one's the other. */
static void *fail_elsewhere(void *before)
{
    snprintf(before, 64, "%s", zero_last_error());
    zero_fail(ZERO_ERROR_IO, "elsewhere");
    return NULL;
}

START_TEST(a_thread_keeps_its_last_error_until_the_next)
{
    char before[64] = "not run";
    pthread_t thread;
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    ck_assert_str_eq(zero_last_error(), "");
    zero_fail(ZERO_ERROR_IO, "first\n%d", 1);
    zero_log(ZERO_LOG_WARNING, "a warning");
    ck_assert_str_eq(zero_last_error(), "first\\x0a1");
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_elsewhere, before), 0);
    pthread_join(thread, NULL);
    ck_assert_str_eq(before, "");
    ck_assert_str_eq(zero_last_error(), "first\\x0a1");
    zero_fail(ZERO_ERROR_IO, "second");
    ck_assert_str_eq(zero_last_error(), "second");
}
END_TEST

/* What rank 0 alone logs, the others know, too. */
START_TEST(a_muted_thread_says_nothing_and_keeps_its_last_error)
{
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    zero_fail(ZERO_ERROR_IO, "before");
    zero_log_mute(true);
    ck_assert_int_eq(zero_fail(ZERO_ERROR_IO, "muted"), ZERO_ERROR_IO);
    zero_log_mute(false);
    ck_assert_str_eq(last_line, "before");
    ck_assert_str_eq(zero_last_error(), "before");
    zero_fail(ZERO_ERROR_IO, "after");
    ck_assert_str_eq(last_line, "after");
}
END_TEST

START_TEST(a_failure_that_every_rank_finds_is_each_ranks_last_error)
{
    zero_log_set(ZERO_LOG_WARNING, on_line, NULL);
    last_line[0] = '\0';
    zero_log_set_rank(2);
    zero_fail_collective(ZERO_ERROR_MISMATCH, "on all ranks");
    zero_log_set_rank(-1);
    ck_assert_str_eq(last_line, "");
    ck_assert_str_eq(zero_last_error(), "on all ranks");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("log");
    TCase *tc = tcase_create("lines");
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, quoted_text_is_escaped_for_a_log_function, 0, N_QUOTED);
    tcase_add_loop_test(tc, quoted_text_is_escaped_on_stderr, 0, N_QUOTED);
    tcase_add_test(tc, a_long_line_is_whole_or_marked_as_cut);
    tcase_add_test(tc, a_failed_assertion_is_a_status_and_a_line);
    tcase_add_test(tc, a_thread_keeps_its_last_error_until_the_next);
    tcase_add_test(tc, a_muted_thread_says_nothing_and_keeps_its_last_error);
    tcase_add_test(tc, a_failure_that_every_rank_finds_is_each_ranks_last_error);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
