/* test_checkpoint_saves.c - saves of checkpoints that fail, are killed, or find the disk full or the host's memory
 * taken: they are noticed, on all ranks, and leave the checkpoint before them unchanged. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/formula_checkpoint.h"
#include "tests/support/log_lines.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "zero.h"

/* ---- one rank ---- */

/* Changes the last byte of every file of optimizer state after all ranks have written and before any reads: the rank
 * that checks a file is not the rank that wrote that byte. 0 if every rank got an error. */
static int run_spoil(const char *directory, zero_dtype_t dtype, int stage)
{
    zero_save_t *save = NULL;
    session_t session = session_open(stage, dtype, OUR_MODEL);
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    must(zero_save_begin(session.engine, directory, &PLAIN, &save));
    if (zero_comm_rank(session.comm) == 1) {
        char command[1024];
        snprintf(command, sizeof command,
                 "for f in %s/tmp.step-*/optimizer-*; do truncate -s -1 $f && printf 4 >> $f; done", directory);
        if (system(command) != 0)
            return 2;
    }
    must(zero_comm_barrier(session.comm));
    zero_status_t status = zero_save_end(save);
    session_close(&session);
    return status == ZERO_OK;
}

static const zero_save_file_t NOTE = {"note", "x", 1};
static const char *const DIFFERENCES[] = {"number of files", "files' names", "max_file_bytes", "keep", "background"};

/* Saves with other options on rank 1: those of DIFFERENCES[which]. 0 if every rank was told so. */
static int run_differ(const char *directory, int which)
{
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    zero_save_options_t options = PLAIN;
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    if (zero_comm_rank(session.comm) == 1) {
        options.config_json = which < 2 ? NULL : options.config_json;
        options.files = which == 1 ? &NOTE : NULL;
        options.n_files = which == 1;
        options.max_file_bytes += which == 2;
        options.keep = which == 3;
        options.background = which == 4;
    }
    zero_status_t status = session_save(&session, directory, &options);
    session_close(&session);
    return status != ZERO_ERROR_MISMATCH;
}

/* Runs one rank of a test:
 *     save DIRECTORY DTYPE STAGE BACKGROUND RANK     saves the formula while that rank may write little; exit code 0 if
 *                                                    every rank got an error
 *     spoil DIRECTORY DTYPE STAGE                    saves while a byte of each file is changed; likewise
 *     differ DIRECTORY WHICH                         saves with options that differ between ranks
 */
static int run_rank(char **argv)
{
    must(zero_comm_create(ZERO_COMM_AUTO, &ranks_comm));
    int exit_code = strcmp(argv[1], "differ") == 0 ? run_differ(argv[2], atoi(argv[3]))
                    : strcmp(argv[1], "spoil") == 0
                        ? run_spoil(argv[2], (zero_dtype_t)atoi(argv[3]), atoi(argv[4]))
                        : run_save(argv[2], (zero_dtype_t)atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    zero_comm_destroy(ranks_comm);
    return exit_code;
}

/* ---- saves that fail ---- */

static const struct {
    const char *text, *says; /* for config_json and for state_json */
} TEXTS[] = {
    {"", "is not a JSON object"},
    {"not JSON", "is not a JSON object"},
    {"[1]", "is not a JSON object: it is another value"},
    {"{\"a\": 1, \"a\": 2}", "is not a JSON object: duplicate"},
    {"{\"a\": 1} {}", "is not a JSON object: end of file expected"},
    {"{\"a\": NaN}", "is not a JSON object"},
    {"{\"a\": \"\xff\"}", "is not a JSON object"},
};
enum { N_TEXTS = sizeof TEXTS / sizeof TEXTS[0] };

START_TEST(a_text_of_the_callers_that_is_no_object_is_refused_before_anything_is_made)
{
    bool is_config = _i < N_TEXTS;
    zero_save_options_t options = PLAIN;
    *(is_config ? &options.config_json : &options.state_json) = TEXTS[_i % N_TEXTS].text;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, TEXTS[_i % N_TEXTS].says), "%s", last_line);
    ck_assert_msg(strstr(last_line, is_config ? "config_json" : "state_json"), "%s", last_line);
    ck_assert_int_ne(access(path_of("ck"), F_OK), 0);
    session_close(&session);
}
END_TEST

START_TEST(a_key_of_libzeros_is_refused_in_the_callers_state)
{
    static const char *const texts[] = {"{\"step\": 1}", "{\"optimizer\": \"adamw\"}"};
    zero_save_options_t options = PLAIN;
    options.state_json = texts[_i];
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_ERROR_ARGUMENT);
    ck_assert_msg(strstr(last_line, _i == 0 ? "the key 'step', one of libzero's" : "the key 'optimizer', one of"), "%s",
                  last_line);
    ck_assert_int_ne(access(path_of("ck"), F_OK), 0);
    session_close(&session);
}
END_TEST

static const zero_save_file_t BAD_FILES[] = {
    {"config.json", "x", 1},
    {"manifest.json", "x", 1},
    {"state.json", "x", 1},
    {"model-00001-of-00001.safetensors", "x", 1},
    {"../escaped", "x", 1},
    {"a/b/c", "x", 1},
    {"manifest.json/x", "x", 1},
    {"config.json/x", "x", 1},
    {"state.json/x", "x", 1},
    {"twice/x", "x", 1},
    {"model.safetensors", "x", 1},
    {"adapter_model.safetensors/x", "x", 1},
    {"./a", "x", 1},
    {"a/..", "x", 1},
    {"a/.hidden", "x", 1},
    {"a/", "x", 1},
    {"/a", "x", 1},
    {".hidden", "x", 1},
    {"", "x", 1},
    {NULL, "x", 1},
    {"a\xff", "x", 1},
    {"a", NULL, 1},
    {"a", "x", 0},
    {"twice", "x", 1},
};

/* Expects a save that is refused with one line, and has made nothing. */
static void expect_refused(session_t *session, const zero_save_options_t *options)
{
    ck_assert_int_eq(session_save(session, path_of("ck"), options), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(n_lines, 1);
    ck_assert_msg(strstr(last_line, "cannot be saved") != NULL, "%s", last_line);
    ck_assert_int_ne(access(path_of("ck"), F_OK), 0);
}

START_TEST(a_file_of_the_callers_that_is_in_the_way_is_refused_before_anything_is_made)
{
    zero_save_file_t files[2] = {{"twice", "y", 1}, BAD_FILES[_i]};
    zero_save_options_t options = PLAIN;
    options.files = files;
    options.n_files = 2;
    options.max_file_bytes = 0;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    expect_refused(&session, &options);
    session_close(&session);
}
END_TEST

static const char *const BAD_NAMES[] = {"a/b", "a..b", "a.", "model.", "a\nb", "a\xff", "__metadata__"};

START_TEST(a_tensor_whose_name_cannot_be_read_back_is_refused_before_anything_is_made)
{
    const session_tensor_t tensor = {.name = BAD_NAMES[_i], .n_dims = 1, .shape = {3}};
    session_t session =
        session_create(NULL, 3, ZERO_BF16, &(session_model_t){.tensors = &tensor, .n_tensors = 1, .n_units = 1});
    ck_assert_int_eq(zero_init_parameters(session.engine), ZERO_OK);
    expect_refused(&session, &PLAIN);
    session_close(&session);
}
END_TEST

START_TEST(a_model_of_which_nothing_is_saved_is_refused)
{
    const session_tensor_t tensor = {.name = "a", .n_dims = 1, .shape = {3}};
    const session_model_t model = {.tensors = &tensor, .n_tensors = 1, .n_units = 1, .frozen = true, .not_saved = true};
    session_t session = session_create(NULL, 3, ZERO_BF16, &model);
    expect_refused(&session, &PLAIN);
    session_close(&session);
}
END_TEST

/* 1e6 is infinite in fp16. In place of a checkpoint that loads there would be one that does not. */
START_TEST(weights_that_are_not_finite_are_not_saved)
{
    const session_tensor_t tensor = {.name = "a", .n_dims = 1, .shape = {3}};
    const session_model_t model = {.tensors = &tensor, .n_tensors = 1, .n_units = 1, .frozen = _i / 2};
    const float weights[3] = {1.0f, 1e6f, 1.0f};
    zero_save_options_t options = PLAIN;
    options.keep = 1;
    options.background = _i % 2;
    session_t session = session_create(NULL, 3, ZERO_FP16, &model);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_OK);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    ck_assert_int_eq(zero_set_tensor(session.engine, 0, ZERO_ARRAY_WEIGHT, 0, weights), ZERO_OK);
    ck_assert_int_eq(session_save(&session, path_of("ck"), &options), ZERO_ERROR_NONFINITE);
    ck_assert_msg(strstr(last_line, _i < 2 ? "not saved: a is 1e+06 at element 1, which is not finite in fp16"
                                           : "not saved: a is inf at element 1, which is not finite in fp16"),
                  "%s", last_line);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
    session_close(&session);
}
END_TEST

START_TEST(a_rank_that_cannot_write_fails_all_ranks_and_changes_nothing)
{
    char arguments[600];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    /* With three ranks: rank 0 creates the files in full size, ranks 1 and 2 write into them. */
    snprintf(arguments, sizeof arguments, "save %s %d 3 %d %d", path_of("ck"), ZERO_BF16, _i / 3, _i % 3);
    run_ranks(3, arguments);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

START_TEST(a_hashing_rank_finds_bytes_that_the_writer_did_not_write)
{
    char arguments[600];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    snprintf(arguments, sizeof arguments, "spoil %s %d %d", path_of("ck"), ZERO_BF16, _i);
    run_ranks_that_say(3, arguments, "what was written there: something else writes into it");
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

START_TEST(ranks_whose_options_differ_save_nothing_and_keep_what_they_have)
{
    char arguments[600];
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    snprintf(arguments, sizeof arguments, "differ %s %d", path_of("ck"), _i);
    run_ranks_that_say(3, arguments, DIFFERENCES[_i]);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

/* What else may happen to a file (T is the directory that is written) between its writing and its hashing. */
static const struct {
    const char *file, *spoil;
} SPOILT[] = {
    {"model-00001", "printf 'zero: a line' | dd conv=notrunc of=$(ls T/model-00001*)"},
    {"model-00001", "printf 'four' | dd bs=1 seek=1000 conv=notrunc of=$(ls T/model-00001*)"},
    {"optimizer-00001", "printf 'four' | dd bs=1 seek=150000 conv=notrunc of=$(ls T/optimizer-00001*)"},
    {"optimizer-00003",
     "f=$(ls T/optimizer-00003*); printf 4 | dd bs=1 seek=$(($(stat -c %s $f) - 1)) conv=notrunc of=$f"},
    {"optimizer-00002", "truncate -s -1 T/optimizer-00002*"},
    {"optimizer-00001", "truncate -s 0 T/optimizer-00001*"},
    {"model-00001", "printf x >> $(ls T/model-00001*)"},
    {"model.safetensors.index.json", "sed -i s/h.0.w/h.0.x/ T/model.safetensors.index.json"},
    {"config.json", "echo '[]' > T/config.json"},
    {"config.json", "printf '{ ' | dd conv=notrunc of=T/config.json"},
    {"state.json", "sed -i s/12/21/ T/state.json"},
    {"state.json", "rm T/state.json"},
    {"state.json", "rm T/state.json; mkfifo T/state.json"},
};

START_TEST(foreign_bytes_in_a_file_fail_the_save)
{
    zero_save_t *save = NULL;
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("cp -r ck before"), 0);
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &PLAIN, &save), ZERO_OK);
    ck_assert_int_eq(shell("ln -s ck/tmp.step-00000000 T; { %s; } 2>dd.log; rm T", SPOILT[_i].spoil), 0);
    n_lines = 0;
    zero_status_t status = zero_save_end(save);
    session_close(&session);
    ck_assert_msg(status == ZERO_ERROR_IO, "%s: %s", SPOILT[_i].spoil, zero_status_name(status));
    ck_assert_msg(n_lines == 1 && strstr(last_line, SPOILT[_i].file), "%s: %d lines: %s", SPOILT[_i].spoil, n_lines,
                  last_line);
    ck_assert_int_eq(shell("diff -r ck before"), 0);
}
END_TEST

START_TEST(a_full_disk_leaves_the_previous_checkpoint)
{
    if (shell("mkdir disk && mount -t tmpfs -o size=1800k none disk 2>/dev/null") != 0) {
        printf("SKIP: a full disk: no tmpfs can be mounted here\n");
        return;
    }
    save_formula("disk/ck", ZERO_BF16);
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    n_lines = 0;
    zero_status_t status = session_save(&session, path_of("disk/ck"), &PLAIN);
    int n_said = n_lines;
    session_close(&session);
    bool names_it = strstr(last_line, "No space left") && strstr(last_line, "disk/ck/tmp.");
    int n_left = support_run(NULL, SCRATCH_LIMIT_S, "test $(ls -A %s | wc -l) = 2", path_of("disk/ck"));
    session_t again = session_open(2, ZERO_BF16, OUR_MODEL);
    zero_status_t loaded = session_load(&again, path_of("disk/ck"));
    bool is_formula = loaded == ZERO_OK && holds_the_formula(&again);
    session_close(&again);
    ck_assert_int_eq(shell("umount disk"), 0); /* before anything is asserted */
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_msg(n_said == 1 && names_it, "%d lines: %s", n_said, last_line);
    ck_assert_int_eq(n_left, 0); /* the step and latest */
    ck_assert(is_formula);
}
END_TEST

START_TEST(a_directory_that_cannot_be_written_is_found_out_before_it_matters)
{
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    ck_assert_int_eq(zero_save_prepare(session.comm, "/proc/checkpoints"), ZERO_ERROR_IO);
    ck_assert_msg(n_lines == 1 && strstr(last_line, "/proc/checkpoints"), "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, ""), ZERO_ERROR_IO);
    support_write_file(path_of("file"), "", 0);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("file")), ZERO_ERROR_IO);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("a/b/c")), ZERO_OK);
    ck_assert_int_eq(shell("test -d a/b/c && test -z \"$(ls -A a/b/c)\""), 0);
    session_close(&session);
}
END_TEST

/* Of this step or, as after another step, of another name; and what a run does before its first step. */
START_TEST(a_running_save_is_not_mistaken_for_a_killed_one)
{
    zero_save_t *first = NULL, *second = NULL;
    zero_save_options_t options = PLAIN;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    options.background = true;
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_int_eq(shell("mkdir -p ck/tmp.step-00000008"), 0); /* killed */
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &options, &first), ZERO_OK);
    ck_assert_int_eq(shell("test ! -e ck/tmp.step-00000008"), 0);
    n_lines = 0;
    ck_assert_int_eq(zero_save_begin(session.engine, path_of("ck"), &options, &second), ZERO_ERROR_IO);
    ck_assert_msg(n_lines == 1 && strstr(last_line, "ck/tmp.step-00000000' is being written"), "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("ck")), ZERO_ERROR_IO);
    ck_assert_msg(zero_save_end(first) == ZERO_OK, "%s", last_line);
    ck_assert_int_eq(zero_save_prepare(session.comm, path_of("ck")), ZERO_OK);
    session_close(&session);
    expect_formula("ck", ZERO_BF16);
}
END_TEST

/* On a host with 64 KiB: the copy of half a megabyte would not fail there, but end in a kill. */
START_TEST(a_save_whose_copy_does_not_fit_the_host_waits_and_says_so)
{
    zero_save_options_t options = PLAIN;
    session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
    options.background = true;
    ck_assert_int_eq(zero_set_state(session.engine, true, session_fill_chunk, NULL), ZERO_OK);
    ck_assert_int_eq(zero_set_adam_step(session.engine, SESSION_ADAM_STEP), ZERO_OK);
    ck_assert_int_eq(shell("mkdir -p host/proc && echo 'MemAvailable: 64 kB' > host/proc/meminfo"), 0);
    for (int has_room = 0; has_room <= 1; has_room++) {
        n_lines = 0;
        zero_memory_set_root(has_room ? "" : path_of("host"));
        zero_status_t status = session_save(&session, path_of("ck"), &options);
        zero_memory_set_root("");
        ck_assert_int_eq(status, ZERO_OK);
        ck_assert_int_eq(n_lines, !has_room);
        ck_assert_msg(has_room || strstr(last_line, "not saved in the background"), "%s", last_line);
        expect_formula("ck", ZERO_BF16);
    }
    session_close(&session);
}
END_TEST

/* The parent kills a child that does nothing but save, at moments of a random choice; what is there then loads. */
START_TEST(killed_at_any_moment_a_checkpoint_is_complete_or_absent)
{
    uint64_t seed = 1;
    save_formula("ck", ZERO_BF16);
    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        if (child == 0) {
            session_t session = session_open(3, ZERO_BF16, OUR_MODEL);
            zero_save_options_t options = PLAIN;
            options.background = round % 2;
            must(zero_set_state(session.engine, true, session_fill_chunk, NULL));
            must(zero_set_adam_step(session.engine, SESSION_ADAM_STEP));
            for (;;)
                must(session_save(&session, path_of("ck"), &options));
        }
        long pause_us = 5000 + (long)(support_random(&seed) % 60000);
        nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        expect_formula("ck", ZERO_BF16);
    }
    save_formula("ck", ZERO_BF16);
    ck_assert_int_eq(shell("test $(ls -A ck | wc -l) = 2"), 0); /* what was left behind is gone */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("saves of checkpoints");
    TCase *tc = tcase_create("files");
    tcase_add_checked_fixture(tc, set_up, scratch_close);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, a_text_of_the_callers_that_is_no_object_is_refused_before_anything_is_made, 0, 2 * N_TEXTS);
    tcase_add_loop_test(tc, a_key_of_libzeros_is_refused_in_the_callers_state, 0, 2);
    tcase_add_test(tc, a_model_of_which_nothing_is_saved_is_refused);
    tcase_add_loop_test(tc, weights_that_are_not_finite_are_not_saved, 0, 4);
    tcase_add_loop_test(tc, a_file_of_the_callers_that_is_in_the_way_is_refused_before_anything_is_made, 0,
                        sizeof BAD_FILES / sizeof BAD_FILES[0]);
    tcase_add_loop_test(tc, a_tensor_whose_name_cannot_be_read_back_is_refused_before_anything_is_made, 0,
                        sizeof BAD_NAMES / sizeof BAD_NAMES[0]);
    tcase_add_loop_test(tc, foreign_bytes_in_a_file_fail_the_save, 0, sizeof SPOILT / sizeof SPOILT[0]);
    tcase_add_test(tc, a_full_disk_leaves_the_previous_checkpoint);
    tcase_add_test(tc, a_directory_that_cannot_be_written_is_found_out_before_it_matters);
    tcase_add_test(tc, a_running_save_is_not_mistaken_for_a_killed_one);
    tcase_add_test(tc, a_save_whose_copy_does_not_fit_the_host_waits_and_says_so);
    tcase_add_test(tc, killed_at_any_moment_a_checkpoint_is_complete_or_absent);
    suite_add_tcase(s, tc);

    TCase *ranks = tcase_create("several ranks");
    tcase_add_checked_fixture(ranks, set_up, scratch_close);
    tcase_set_timeout(ranks, 250);
    tcase_add_loop_test(ranks, a_hashing_rank_finds_bytes_that_the_writer_did_not_write, 2, 4);
    tcase_add_loop_test(ranks, ranks_whose_options_differ_save_nothing_and_keep_what_they_have, 0,
                        sizeof DIFFERENCES / sizeof DIFFERENCES[0]);
    tcase_add_loop_test(ranks, a_rank_that_cannot_write_fails_all_ranks_and_changes_nothing, 0, 6);
    suite_add_tcase(s, ranks);
    return s;
}

int main(int argc, char **argv)
{
    if (argc > 3)
        return run_rank(argv);
    return support_main(suite());
}
