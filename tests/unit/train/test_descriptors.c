/* test_descriptors.c - programs that are started without stdin, stdout or stderr, as by daemons and some schedulers:
 * the files of a checkpoint never get descriptors 0 to 2, so no log line is written into them. */
#include <fcntl.h>
#include <sys/wait.h>

#include "tests/support/checkpoint_session.h"

/* ---- the library ---- */

/* Which are closed, by their bits. */
static const int CLOSED[] = {1, 2, 4, 3, 5, 6, 7};

static bool is_file(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

/* Saves in the background and logs all the while, as a program that does not know of closed descriptors. Returns the
 * child's exit code: 0 if every save went well and no file was seen at a standard descriptor. */
static int save_and_log(int closed)
{
    static const char line[] = "zero: a line that is logged\n";
    zero_save_options_t options = session_plain;
    session_t session = session_open_filled(3, ZERO_BF16);
    options.background = true;
    for (int fd = 0; fd < 3; fd++)
        if (closed >> fd & 1)
            close(fd);
    for (int n = 0; n < 5; n++) {
        zero_save_t *save = NULL;
        bool done = false;
        if (zero_save_begin(session.engine, path_of("ck"), &options, &save) != ZERO_OK)
            return 10;
        while (!done) {
            for (int i = 0; i < 20; i++)
                for (int fd = 0; fd < 3; fd++)
                    if (closed >> fd & 1) {
                        if (is_file(fd))
                            return 11;
                        if (write(fd, line, sizeof line - 1) >= 0)
                            return 12;
                    }
            if (zero_save_poll(save, &done) != ZERO_OK)
                return 13;
        }
        if (zero_save_end(save) != ZERO_OK)
            return 14;
    }
    session_close(&session);
    return 0;
}

START_TEST(the_library_opens_no_file_as_a_standard_descriptor)
{
    int result;
    pid_t child = fork();
    if (child == 0)
        _exit(save_and_log(CLOSED[_i]));
    ck_assert_int_eq(waitpid(child, &result, 0), child);
    ck_assert_msg(WIFEXITED(result) && WEXITSTATUS(result) == 0, "closed %d: exit code %d", CLOSED[_i],
                  WEXITSTATUS(result));
    session_t session = session_open(3, ZERO_FP32);
    ck_assert_int_eq(session_load(&session, path_of("ck")), ZERO_OK);
    ck_assert(session_holds_the_formula(&session, &small_model));
    session_close(&session);
}
END_TEST

/* ---- zerotrain ---- */

static const char CONFIG[] = "[model]\nlayers = 1\ndim = 16\nheads = 2\nseq_len = 16\n[data]\ntrain = text.txt\n"
                             "[train]\nsteps = 30\nmicro_batch = 2\nprecision = fp32\n"
                             "[checkpoint]\nevery = 1\nkeep = 99\n[log]\nevery = 1\n";

START_TEST(zerotrain_without_standard_descriptors_saves_the_same)
{
    static const char *const CLOSINGS[] = {"0<&- 2>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"};
    char text[4000];
    uint64_t random = 7;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + support_random(&random) % 26);
    support_write_file(path_of("text.txt"), text, sizeof text);
    support_write_file(path_of("c.ini"), CONFIG, sizeof CONFIG - 1);
    ck_assert_int_eq(shell("$Z --set checkpoint.dir=with --set log.metrics=with.jsonl c.ini 2>err"), 0);
    for (size_t c = 0; c < sizeof CLOSINGS / sizeof CLOSINGS[0]; c++) {
        int exit_code = shell("rm -rf out && mkdir out && $Z --set checkpoint.dir=out/ck --set log.metrics=out/m.jsonl "
                              "--set log.trace=out/trace --set log.tensorboard=out/tb c.ini %s",
                              CLOSINGS[c]);
        ck_assert_msg(exit_code == 0, "%s: exit code %d", CLOSINGS[c], exit_code);
        ck_assert_msg(shell("grep -rl '^zerotrain:' out") == 1, "%s: a log line is in a file", CLOSINGS[c]);
        /* state.json has the settings, which differ, and the manifest has the hash of state.json. */
        ck_assert_msg(shell("diff -r -x state.json -x manifest.json with out/ck") == 0, "%s: other bytes", CLOSINGS[c]);
        ck_assert_int_eq(shell("$Z --set checkpoint.dir=out/ck --set train.steps=31 --resume c.ini 2>err"), 0);
    }
}
END_TEST

/* Taken by what fails to be written, not by what takes everything. */
START_TEST(output_that_has_nowhere_to_go_is_still_a_failure)
{
    ck_assert_int_eq(shell("$Z --help >&- 2>err"), 1);
    ck_assert_int_eq(shell("grep -q 'cannot write to stdout' err"), 0);
    ck_assert_int_eq(shell("$Z --help >out && test -s out"), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("descriptors");
    TCase *tc = tcase_create("closed");
    tcase_add_checked_fixture(tc, scratch_open, scratch_close);
    tcase_set_timeout(tc, 250);
    tcase_add_loop_test(tc, the_library_opens_no_file_as_a_standard_descriptor, 0, sizeof CLOSED / sizeof CLOSED[0]);
    tcase_add_test(tc, zerotrain_without_standard_descriptors_saves_the_same);
    tcase_add_test(tc, output_that_has_nowhere_to_go_is_still_a_failure);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
