/* test_foreign_files.c - files beside checkpoints that are not libzero's are neither removed nor overwritten nor taken
 * for a checkpoint, whatever their names. What is libzero's is removed through a descriptor, so that a link put in its
 * place cannot lead the removal elsewhere. A `latest` that cannot become a link is found before step 0.
 *
 * libzero calls this program's own unlinkat and remove: see swap.
 */
#include <fcntl.h>
#include <sys/syscall.h>

#include "tests/support/checkpoint_session.h"

/* Every test saves step 0 beside an earlier run's step 5, which is removed with a line that says so. */
static void on_other_line(void *user, zero_log_level_t level, int rank, const char *line)
{
    if (!strstr(line, "of an earlier run that went further than step 0"))
        on_line(user, level, rank, line);
}

/* ck/step-00000005 is an earlier checkpoint. */
static void set_up(void)
{
    scratch_open();
    listen_to_log();
    zero_log_set(ZERO_LOG_WARNING, on_other_line, NULL);
    session_t session = session_open_filled(3, ZERO_BF16);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &session_plain), ZERO_OK);
    session_close(&session);
    ck_assert_int_eq(shell("mv ck/step-00000000 ck/step-00000005 && ln -sfn step-00000005 ck/latest"), 0);
    ck_assert_int_eq(n_lines, 0);
}

/* Does what a run does: prepares, then saves step 0 and keeps only that. */
static zero_status_t prepare_and_save(void)
{
    zero_save_options_t options = session_plain;
    options.keep = 1;
    session_t session = session_open_filled(3, ZERO_BF16);
    zero_status_t status = zero_save_prepare(session.comm, path_of("ck"));
    if (status == ZERO_OK)
        status = session_save(&session, path_of("ck"), &options);
    session_close(&session);
    return status;
}

static void expect_it_loads(void)
{
    session_t session = session_open(2, ZERO_FP32);
    ck_assert_msg(session_load(&session, path_of("ck")) == ZERO_OK, "%s", last_line);
    ck_assert(session_holds_the_formula(&session, &small_model));
    session_close(&session);
}

/* ---- what stays ---- */

static const struct {
    const char *what, *make, *holds; /* after it: a shell's condition */
    int n_lines;                     /* warnings */
} FOREIGN[] = {
    {"a directory of notes", "mkdir ck/tmp.step-mine; echo x > ck/tmp.step-mine/diary",
     "[ $(cat ck/tmp.step-mine/diary) = x ]", 0},
    {"a directory named as a temporary one", "mkdir ck/tmp.step-00000003; echo x > ck/tmp.step-00000003/diary",
     "[ $(cat ck/tmp.step-00000003/diary) = x ]", 0},
    {"one that holds an empty directory", "mkdir -p ck/tmp.step-00000003/diary", "test -d ck/tmp.step-00000003/diary",
     0},
    {"files named as temporary directories", "echo x | tee ck/tmp.step-notes.txt > ck/tmp.step-00000004",
     "[ $(cat ck/tmp.step-notes.txt ck/tmp.step-00000004 | wc -l) = 2 ]", 0},
    {"links named as temporary directories", "cp -r ck/step-00000005 other; ln -s ../other ck/tmp.step-00000004",
     "diff -r other ck/tmp.step-00000004 && test -h ck/tmp.step-00000004 && test -s other/manifest.json", 0},
    {"a directory named as a step", "mkdir ck/step-00000800; echo x > ck/step-00000800/mine",
     "[ $(cat ck/step-00000800/mine) = x ]", 0},
    {"another program's manifest", "mkdir ck/step-00000800; echo '{\"format\": 3}' > ck/step-00000800/manifest.json",
     "test -s ck/step-00000800/manifest.json", 0},
    {"a link named as a step", "cp -r ck/step-00000005 other; ln -s ../other ck/step-00000004",
     "test -h ck/step-00000004 && test -s other/manifest.json && test -s other/state.json", 0},
    {"a step's directory without its manifest",
     "cp -r ck/step-00000005 ck/step-00000004; rm ck/step-00000004/manifest.json",
     "test -s ck/step-00000004/state.json", 0},
    {"a directory where the step is saved", "mkdir ck/step-00000000; echo x > ck/step-00000000/mine",
     "[ $(cat ck/step-00000000.moved/mine) = x ]", 1},
    {"a file where the step is saved", "echo x > ck/step-00000000", "[ $(cat ck/step-00000000.moved) = x ]", 1},
    {"a link where the step is saved", "mkdir other; echo x > other/mine; ln -s ../other ck/step-00000000",
     "test -h ck/step-00000000.moved && [ $(cat other/mine) = x ]", 1},
    {"and another moved before", "mkdir ck/step-00000000 ck/step-00000000.moved; echo x > ck/step-00000000/mine",
     "[ $(cat ck/step-00000000.moved.2/mine) = x ]", 1},
};

START_TEST(foreign_files_are_kept)
{
    ck_assert_int_eq(shell("%s", FOREIGN[_i].make), 0);
    ck_assert_msg(prepare_and_save() == ZERO_OK, "%s: %s", FOREIGN[_i].what, last_line);
    ck_assert_msg(shell("%s", FOREIGN[_i].holds) == 0, "%s: it is not as it was", FOREIGN[_i].what);
    ck_assert_msg(n_lines == FOREIGN[_i].n_lines, "%s: %d lines: %s", FOREIGN[_i].what, n_lines, last_line);
    ck_assert_msg(FOREIGN[_i].n_lines == 0 || strstr(last_line, "ck/step-00000000' was not libzero's"), "%s",
                  last_line);
    expect_it_loads();
    /* It does not count among those that are kept either. */
    ck_assert_int_eq(shell("test ! -e ck/step-00000005 && test -e ck/step-00000000/manifest.json"), 0);
}
END_TEST

/* ---- what is removed ---- */

static const struct {
    const char *what, *make, *gone;
} OURS[] = {
    {"a save that was killed",
     "mkdir ck/tmp.step-00000007; cd ck/tmp.step-00000007; touch .libzero-temporary; echo x > a",
     "ck/tmp.step-00000007"},
    {"one that was killed at once", "mkdir ck/tmp.step-00000007", "ck/tmp.step-00000007"},
    {"one that was killed when it was written", "cp -r ck/step-00000005 ck/tmp.step-00000007", "ck/tmp.step-00000007"},
    {"one that gave way", "cp -r ck/step-00000005 ck/tmp.step-00000007.old", "ck/tmp.step-00000007.old"},
    {"an old checkpoint", "cp -r ck/step-00000005 ck/step-00000006", "ck/step-00000006"},
    {"one with directories in it",
     "cp -r ck/step-00000005 ck/step-00000006; mkdir -p ck/step-00000006/a/b other; echo x > ck/step-00000006/a/b/c;"
     "echo x > other/mine; ln -s ../../../other ck/step-00000006/a/l",
     "ck/step-00000006"},
};

START_TEST(old_checkpoints_and_leftovers_are_removed)
{
    ck_assert_int_eq(shell("mkdir -p other && echo x > other/mine && %s", OURS[_i].make), 0);
    ck_assert_msg(prepare_and_save() == ZERO_OK, "%s: %s", OURS[_i].what, last_line);
    ck_assert_msg(access(path_of(OURS[_i].gone), F_OK) != 0, "%s: it is still there", OURS[_i].what);
    ck_assert_int_eq(shell("test \"$(ls -A ck | tr '\\n' ' ')\" = 'latest step-00000000 '"), 0);
    ck_assert_int_eq(shell("test \"$(cat other/mine)\" = x"), 0);
    ck_assert_int_eq(n_lines, 0);
    ck_assert_msg(shell("test ! -e ck/step-00000000/.libzero-temporary") == 0, "a complete checkpoint is not marked");
    expect_it_loads();
}
END_TEST

/* ---- a link that replaces what is being removed ---- */

static bool swap_is_due;

/* What another user with write access can do between any two calls: replace the directory by a link. */
static void swap(void)
{
    if (!swap_is_due)
        return;
    swap_is_due = false;
    if (rename(path_of("ck/tmp.step-00000003"), path_of("ck/moved")) != 0 ||
        symlink("../victim", path_of("ck/tmp.step-00000003")) != 0)
        abort();
}

int unlinkat(int fd, const char *name, int flags)
{
    swap();
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

int remove(const char *path)
{
    swap();
    return syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0 || syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) == 0
               ? 0
               : -1;
}

START_TEST(a_link_swapped_in_during_removal_is_not_followed)
{
    ck_assert_int_eq(shell("cp -r ck/step-00000005 victim && cp -r victim before && cp -r victim ck/tmp.step-00000003"),
                     0);
    session_t session = session_open(3, ZERO_BF16);
    swap_is_due = true;
    zero_status_t status = zero_save_prepare(session.comm, path_of("ck"));
    session_close(&session);
    ck_assert_msg(!swap_is_due, "nothing was removed");
    ck_assert_msg(shell("diff -r victim before") == 0, "what the link leads to was removed");
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_msg(n_lines == 1 && strstr(last_line, "ck/tmp.step-00000003"), "%s", last_line);
    ck_assert_int_eq(shell("test -h ck/tmp.step-00000003"), 0);
}
END_TEST

/* ---- before step 0 ---- */

static const struct {
    const char *make, *path, *says;
} IN_THE_WAY[] = {
    {"rm ck/latest; mkdir ck/latest", "ck/latest", "is a directory, and has to be a link"},
    {"rm ck/latest; mkdir ck/latest; echo x > ck/latest/mine", "ck/latest", "is a directory, and has to be a link"},
    {"rm ck/latest; echo x > ck/latest", "ck/latest", "is a file, and has to be a link"},
    {"mkdir ck/tmp.latest", "ck/tmp.latest", "is a directory, and has to be a link"},
    {"echo x > ck/tmp.latest", "ck/tmp.latest", "is a file, and has to be a link"},
    {"mkdir ck/tmp.step-00000000; echo x > ck/tmp.step-00000000/a", "ck/tmp.step-00000000",
     "not libzero's: move it away"},
    {"echo x > ck/tmp.step-00000000", "ck/tmp.step-00000000", "not libzero's: move it away"},
};

/* Found when preparing or, if a program does not prepare, at the save, of which nothing is left. */
START_TEST(obstacles_to_a_save_are_found_before_step_0)
{
    bool prepares = _i % 2 == 0;
    zero_save_t *save = NULL;
    ck_assert_int_eq(shell("%s; cp -r ck before", IN_THE_WAY[_i / 2].make), 0);
    session_t session = session_open_filled(3, ZERO_BF16);
    zero_status_t status = prepares ? zero_save_prepare(session.comm, path_of("ck"))
                                    : zero_save_begin(session.engine, path_of("ck"), &session_plain, &save);
    session_close(&session);
    ck_assert_msg(status == ZERO_ERROR_IO, "%s: %s", IN_THE_WAY[_i / 2].make, zero_status_name(status));
    ck_assert_msg(n_lines == 1 && strstr(last_line, IN_THE_WAY[_i / 2].says), "%d lines: %s", n_lines, last_line);
    ck_assert_msg(strstr(last_line, path_of(IN_THE_WAY[_i / 2].path)) != NULL, "%s", last_line);
    ck_assert_int_eq(shell("diff -r --no-dereference ck before"), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("foreign files");
    TCase *tc = tcase_create("directories");
    tcase_add_checked_fixture(tc, set_up, scratch_close);
    tcase_set_timeout(tc, 90);
    tcase_add_loop_test(tc, foreign_files_are_kept, 0, sizeof FOREIGN / sizeof FOREIGN[0]);
    tcase_add_loop_test(tc, old_checkpoints_and_leftovers_are_removed, 0, sizeof OURS / sizeof OURS[0]);
    tcase_add_test(tc, a_link_swapped_in_during_removal_is_not_followed);
    tcase_add_loop_test(tc, obstacles_to_a_save_are_found_before_step_0, 0,
                        2 * sizeof IN_THE_WAY / sizeof IN_THE_WAY[0]);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
