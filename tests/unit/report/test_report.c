/* test_report.c - zerotrain's lines: whole, from the right rank, one for an error that all ranks found, none lost; and
 * exit codes.
 *
 * With an argument this is a program of its own, which the tests start: one rank that meets others, or a process that
 * ends while it holds a line back.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/report/report.h"

#define N_RANKS 3
#define RUN_LIMIT_S 60.0

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

/* What is no character, or one that a terminal acts upon, is not shown; other alphabets are. */
START_TEST(only_printable_characters_are_shown)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"tab\tbell\adel\x7f", "tab?bell?del?"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",
         "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"}, /* e acute, euro, a face */
        {"csi \xc2\x9b"
         "31m",
         "csi ??31m"}, /* C1 in UTF-8 */
        {"csi \x9b"
         "31m",
         "csi ?31m"},                         /* C1 alone */
        {"nbsp \xc2\xa0.", "nbsp \xc2\xa0."}, /* the first character behind C1 */
        {"latin \xe9.", "latin ?."},
        {"cut \xe2\x82", "cut ??"},
        {"long \xc0\xaf \xe0\x80\x9b \xf0\x80\x80\x9b", "long ?? ??? ????"}, /* more bytes than needed */
        {"surrogate \xed\xa0\x80", "surrogate ???"},
        {"beyond \xf4\x90\x80\x80", "beyond ????"},
        {"cut of four \xf0\x9f\x98", "cut of four ???"},
        {"replacement \xef\xbf\xbd.", "replacement \xef\xbf\xbd."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[100];
        snprintf(expected, sizeof expected, "zerotrain: %s\n", cases[i].shown);
        capture_begin();
        report("%s", cases[i].text);
        ck_assert_str_eq(capture_end(), expected);
    }
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

/* ---- meetings ---- */

typedef enum voice { NOBODY, ALIKE, OWN, LIBRARY } voice_t;

/* What each rank logs, and then all that is read. */
static const struct {
    const char *what;
    struct {
        voice_t voice;
        const char *text;
        int number;
        zero_status_t status;
    } ranks[N_RANKS];
    zero_status_t agreed;
    const char *lines[N_RANKS]; /* in any order */
} MEETINGS[] = {
    {"no rank has a line", {{0}}, ZERO_OK, {NULL}},
    {"all found the same",
     {{ALIKE, "a", 1, ZERO_ERROR_IO}, {ALIKE, "a", 1, ZERO_ERROR_IO}, {ALIKE, "a", 1, ZERO_ERROR_IO}},
     ZERO_ERROR_IO,
     {"zerotrain: a 1\n"}},
    {"all found the same themselves",
     {{OWN, "a", 1, ZERO_ERROR_USAGE}, {OWN, "a", 1, ZERO_ERROR_USAGE}, {OWN, "a", 1, ZERO_ERROR_USAGE}},
     ZERO_ERROR_USAGE,
     {"zerotrain: a 1\n"}},
    {"libzero says it on every rank",
     {{LIBRARY, NULL, 0, ZERO_ERROR_ARGUMENT},
      {LIBRARY, NULL, 0, ZERO_ERROR_ARGUMENT},
      {LIBRARY, NULL, 0, ZERO_ERROR_ARGUMENT}},
     ZERO_ERROR_ARGUMENT,
     {"zerotrain: zero_comm_barrier: "}},
    {"one rank alone",
     {{NOBODY, NULL, 0, ZERO_OK}, {NOBODY, NULL, 0, ZERO_OK}, {ALIKE, "a", 1, ZERO_ERROR_FORMAT}},
     ZERO_ERROR_FORMAT,
     {"zerotrain: rank 2: a 1\n"}},
    {"two of three",
     {{NOBODY, NULL, 0, ZERO_OK}, {OWN, "a", 1, ZERO_ERROR_IO}, {OWN, "a", 1, ZERO_ERROR_IO}},
     ZERO_ERROR_IO,
     {"zerotrain: ranks 1-2: a 1\n"}},
    {"two that are no neighbours, and another",
     {{OWN, "a", 1, ZERO_ERROR_IO}, {OWN, "b", 1, ZERO_ERROR_USAGE}, {OWN, "a", 1, ZERO_ERROR_IO}},
     ZERO_ERROR_IO,
     {"zerotrain: ranks 0, 2: a 1\n", "zerotrain: rank 1: b 1\n"}},
    {"the same with numbers of their own",
     {{OWN, "a", 5, ZERO_ERROR_IO}, {OWN, "a", 70, ZERO_ERROR_IO}, {OWN, "a", 900, ZERO_ERROR_IO}},
     ZERO_ERROR_IO,
     {"zerotrain: ranks 0-2 (here rank 0): a 5\n"}},
    {"one kind, with words of their own",
     {{NOBODY, NULL, 0, ZERO_OK}, {ALIKE, "x", 1, ZERO_ERROR_IO}, {ALIKE, "y", 2, ZERO_ERROR_IO}},
     ZERO_ERROR_IO,
     {"zerotrain: ranks 1-2 (here rank 1): x 1\n"}},
    {"each something else",
     {{OWN, "a", 1, ZERO_ERROR_IO}, {OWN, "b", 1, ZERO_ERROR_MEMORY}, {OWN, "c", 1, ZERO_ERROR_FORMAT}},
     ZERO_ERROR_IO,
     {"zerotrain: rank 0: a 1\n", "zerotrain: rank 1: b 1\n", "zerotrain: rank 2: c 1\n"}},
    {"a line though all went well",
     {{NOBODY, NULL, 0, ZERO_OK}, {OWN, "a", 1, ZERO_OK}, {NOBODY, NULL, 0, ZERO_OK}},
     ZERO_OK,
     {"zerotrain: rank 1: a 1\n"}},
    {"one was only told of another's failure by the library",
     {{NOBODY, NULL, 0, ZERO_ERROR_PEER}, {OWN, "a", 1, ZERO_ERROR_IO}, {NOBODY, NULL, 0, ZERO_ERROR_PEER}},
     ZERO_ERROR_IO,
     {"zerotrain: rank 1: a 1\n"}},
};
#define N_MEETINGS ((int)(sizeof MEETINGS / sizeof MEETINGS[0]))

/* All meetings, one after another. */
static int meet(void)
{
    zero_comm_t *comm;
    if (zero_comm_create(ZERO_COMM_AUTO, &comm) != ZERO_OK)
        return 1;
    int rank = zero_comm_rank(comm), exit_code = 0;
    report_init(rank, zero_comm_size(comm));
    report_hold_errors(true);
    for (int i = 0; i < N_MEETINGS; i++) {
        const char *text = MEETINGS[i].ranks[rank].text;
        int number = MEETINGS[i].ranks[rank].number;
        zero_status_t status = MEETINGS[i].ranks[rank].status;
        switch (MEETINGS[i].ranks[rank].voice) {
        case ALIKE:
            report_error(status, "%s %d", text, number);
            break;
        case OWN:
            report_rank_error(status, "%s %d", text, number);
            break;
        case LIBRARY:
            status = zero_comm_barrier(NULL);
            break;
        case NOBODY:
            break;
        }
        zero_status_t agreed = report_agree(comm, status);
        if (agreed != MEETINGS[i].agreed) {
            fprintf(stderr, "rank %d, %s: %s\n", rank, MEETINGS[i].what, zero_status_name(agreed));
            exit_code = 1;
        }
    }
    report_flush();
    zero_comm_destroy(comm);
    return exit_code;
}

/* mpirun may bring the lines of several ranks in any order, so only how often each is there is looked at. */
START_TEST(an_error_of_several_ranks_is_logged_once_with_the_ranks)
{
    support_output_t output;
    size_t n_lines = 0;
    int code = support_mpirun(&output, RUN_LIMIT_S, N_RANKS, "%s/tests/unit/report/test_report meet", support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    for (int i = 0; i < N_MEETINGS; i++)
        for (int l = 0; l < N_RANKS && MEETINGS[i].lines[l]; l++) {
            size_t expected = 0;
            for (int k = 0; k < N_MEETINGS; k++)
                for (int m = 0; m < N_RANKS && MEETINGS[k].lines[m]; m++)
                    expected += strcmp(MEETINGS[k].lines[m], MEETINGS[i].lines[l]) == 0;
            ck_assert_msg(support_count(output.err, MEETINGS[i].lines[l]) == expected, "%s: not %zu times %s in\n%s",
                          MEETINGS[i].what, expected, MEETINGS[i].lines[l], output.err);
            n_lines++;
        }
    ck_assert_uint_eq(support_count(output.err, "zerotrain: "), n_lines);
    support_output_free(&output);
}
END_TEST

/* ---- ends without a meeting ---- */

/* A rank that holds a line, and then: */
static int end_alone(const char *how)
{
    report_init(1, 2);
    report_hold_errors(true);
    report_error(ZERO_ERROR_IO, "mine");
    report_error(ZERO_ERROR_IO, "mine, too");
    if (strcmp(how, "term") == 0)
        raise(SIGTERM);
    else if (strcmp(how, "int") == 0)
        raise(SIGINT);
    else if (strcmp(how, "flush") == 0)
        report_flush();
    else /* waits for a peer that does not come; a signal ends the sleep, not the wait */
        for (time_t begin = time(NULL); time(NULL) < begin + 8;)
            sleep(1);
    _exit(0);
}

START_TEST(a_delayed_line_is_logged_however_the_run_ends)
{
    static const struct {
        const char *how;
        int exit_code;
    } cases[] = {{"term", 128 + SIGTERM}, {"int", 128 + SIGINT}, {"flush", 0}, {"wait", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        support_output_t output;
        int code = support_run(&output, RUN_LIMIT_S, "exec %s/tests/unit/report/test_report %s", support_build(),
                               cases[i].how);
        ck_assert_msg(code == cases[i].exit_code, "%s: exit code %d", cases[i].how, code);
        ck_assert_msg(strcmp(output.err, "zerotrain: rank 1: mine\nzerotrain: rank 1: mine, too\n") == 0, "%s: %s",
                      cases[i].how, output.err);
        support_output_free(&output);
    }
}
END_TEST

/* Rank 0 holds a line back when rank 1 dies, and can meet no other rank. */
static int meet_the_dead(void)
{
    zero_comm_t *comm;
    if (zero_comm_create(ZERO_COMM_AUTO, &comm) != ZERO_OK)
        return 1;
    int rank = zero_comm_rank(comm);
    report_init(rank, zero_comm_size(comm));
    report_hold_errors(true);
    if (rank == 1)
        raise(SIGKILL);
    zero_status_t status = report_agree(comm, report_rank_error(ZERO_ERROR_FORMAT, "mine"));
    report_flush();
    zero_comm_abort(comm, report_exit_code(status));
    return 1;
}

START_TEST(a_line_outlives_the_death_of_a_peer)
{
    support_output_t output;
    int code = support_mpirun(&output, RUN_LIMIT_S, 2, "%s/tests/unit/report/test_report dead", support_build());
    ck_assert_int_ne(code, 0);
    ck_assert_msg(support_count(output.err, "zerotrain: rank 0: mine\n") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("report");
    TCase *c = tcase_create("lines");
    tcase_add_test(c, rank_0_speaks_for_all_and_others_for_themselves);
    tcase_add_test(c, a_message_is_one_line_whatever_is_in_it);
    tcase_add_test(c, only_printable_characters_are_shown);
    tcase_add_test(c, libzero_speaks_in_the_same_voice);
    tcase_add_test(c, exit_codes_are_those_of_the_contract);
    TCase *m = tcase_create("meetings");
    tcase_set_timeout(m, 4 * RUN_LIMIT_S);
    tcase_add_test(m, an_error_of_several_ranks_is_logged_once_with_the_ranks);
    tcase_add_test(m, a_delayed_line_is_logged_however_the_run_ends);
    tcase_add_test(m, a_line_outlives_the_death_of_a_peer);
    suite_add_tcase(s, c);
    suite_add_tcase(s, m);
    return s;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "meet") == 0)
        return meet();
    if (argc > 1 && strcmp(argv[1], "dead") == 0)
        return meet_the_dead();
    return argc > 1 ? end_alone(argv[1]) : support_main(suite());
}
