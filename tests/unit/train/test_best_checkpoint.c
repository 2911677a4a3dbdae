/* test_best_checkpoint.c - [checkpoint] best as a user meets it: dir/best has the lowest loss of the run that saves
 * there, evaluations before a resume included, wherever that run came from; and never another run's checkpoint. A
 * directory has one run at a time.
 *
 * A run with lr = 0 keeps its loss, one with lr = 1 makes it worse.
 */
#include <inttypes.h>
#include <jansson.h>
#include <xxhash.h>

#include "tests/unit/finetune/tuning_runs.h"

static const char CONFIG[] = "[model]\nlayers = 1\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
                             "[data]\ntrain = text.txt\nval = val.txt\n"
                             "[train]\nsteps = 20\nmicro_batch = 6\nglobal_batch = 12\nlr = 1e-2\n"
                             "schedule = constant\neval_every = 2\n"
                             "precision = fp32\n[checkpoint]\ndir = ck\nbest = true\nasync = false\n"
                             "[log]\nevery = 0\n";

static void set_up(void)
{
    make_scratch(8999);
    write_file("cfg.ini", CONFIG);
    expect_shell("head -c 3000 text.txt >val.txt; tail -c 3000 text.txt >other.txt");
}

/* Expects a command to succeed and to say so many times what its messages are to contain. */
static void expect_said(const char *command, const char *what, size_t n)
{
    support_output_t output;
    const int code = shell(&output, "%s", command);
    ck_assert_msg(code == 0 && support_count(output.err, what) == n, "%s: exit code %d, not %zu \"%s\" in\n%s", command,
                  code, n, what, output.err);
    support_output_free(&output);
}

/* Expects dir/best to have this step alone; 0: nothing. */
static void expect_best(const char *dir, int step)
{
    if (step == 0)
        expect_shell("ls %s/step-* && test -z \"$(ls -A %s/best 2>/dev/null)\"", dir, dir);
    else
        expect_shell("test \"$(ls -A %s/best | tr '\\n' ' ')\" = 'latest step-%08d '", dir, step);
}

START_TEST(the_lowest_loss_stays_the_best_over_a_resume)
{
    expect_said("$Z --steps 4 cfg.ini", "is the lowest so far", 2);
    expect_said("$Z --resume --set train.lr=1 --steps 8 cfg.ini", "is the lowest so far", 0);
    expect_best("ck", 4);
    expect_said("$Z --resume --set train.lr=1 --steps 12 cfg.ini", "best", 0);
    expect_best("ck", 4);
    expect_said("$Z --resume --set data.val=other.txt --set train.lr=1 --steps 14 cfg.ini",
                "of step 4, is of other validation data", 1);
    expect_best("ck", 14);
}
END_TEST

/* It is killed before its first evaluation. */
START_TEST(a_run_that_begins_anew_leaves_no_best_of_the_one_before)
{
    expect_shell("$Z --steps 6 cfg.ini");
    expect_shell(
        "{ $Z --overwrite --set model.layers=2 --set train.steps=99999 --set train.eval_every=0 --set "
        "checkpoint.every=2 cfg.ini 2>log & } && job=$! && until test -e ck/step-00000004; do sleep 0.02; done && "
        "kill -9 $job && ! wait $job");
    expect_best("ck", 0);
    expect_shell("grep 'ck/best has step 6 of another run' log && grep \"removed what 'ck/best' had\" log");
    expect_shell("$Z --auto-resume --set model.layers=2 --set train.lr=0 --steps $(($(readlink ck/latest | sed "
                 "'s/step-0*//') + 2)) cfg.ini && grep '\"n_layer\": 2' ck/best/latest/config.json");
}
END_TEST

/* A run that was killed before its first save in dir has only a best one. */
START_TEST(a_best_alone_is_not_replaced_without_a_word)
{
    support_output_t output;
    expect_shell("$Z --steps 4 cfg.ini && rm -r ck/step-* ck/latest");
    ck_assert_int_eq(shell(&output, "$Z --steps 4 cfg.ini"), 2);
    ck_assert_msg(strstr(output.err, "'ck/best' has checkpoints of an earlier run, up to step-00000004"), "%s",
                  output.err);
    support_output_free(&output);
    expect_best("ck", 4);
    expect_said("$Z --overwrite --set train.lr=0 --steps 2 cfg.ini", "ck/best has step 4 of another run", 1);
}
END_TEST

/* What cannot be read is not taken for nothing: a run would begin anew, and evaluate would take the untrained model. */
START_TEST(a_best_that_cannot_be_found_is_said)
{
    static const char *const commands[] = {"$Z --steps 4 cfg.ini", "$Z --resume --steps 4 cfg.ini",
                                           "$Z evaluate cfg.ini"};
    support_output_t output;
    expect_shell("mkdir -p ck/best && echo kept >ck/best/latest");
    ck_assert_int_ne(shell(&output, "%s", commands[_i]), 0);
    ck_assert_msg(strstr(output.err, "ck/best") != NULL, "%s", output.err);
    support_output_free(&output);
    expect_shell("test \"$(ls ck ck/best)\" = \"$(printf 'ck:\\nbest\\n\\nck/best:\\nlatest')\"");
}
END_TEST

/* Two runs in one directory would replace each other's checkpoints. The directory is free as soon as the first is gone,
 * however it ends; a link to it is the same directory. */
START_TEST(two_runs_do_not_save_into_one_directory)
{
    static const char *const second[] = {"--resume --set checkpoint.dir=link", "--overwrite --set train.seed=2"};
    expect_shell(
        "ln -s ck link && { $Z --set train.steps=9999999 --set train.eval_every=0 --set checkpoint.best=false "
        "--set checkpoint.every=50 cfg.ini 2>log & } && job=$! && trap \"kill -9 $job 2>log\" EXIT && until test "
        "-e ck/latest; do sleep 0.02; done && ! $Z %s cfg.ini 2>said && kill -%d $job && "
        "grep \"dir: '[a-z]*': another run saves there: end that first\" said && "
        "$Z --resume --steps $(($(readlink ck/latest | sed 's/step-0*//') + 500)) cfg.ini",
        second[_i], _i == 0 ? 9 : 15);
}
END_TEST

/* What a start finds is decided when the run before it has ended, which may be saving its first checkpoint. */
START_TEST(a_start_that_waits_for_the_run_before_resumes_from_what_that_saves)
{
    expect_shell("{ $Z --set train.steps=9999999 --set train.eval_every=0 --set checkpoint.best=false "
                 "--set log.metrics=m cfg.ini 2>log & } && job=$! && trap \"kill -9 $job 2>log\" EXIT && until test -s "
                 "m; do sleep 0.02; done && { $Z --auto-resume --steps 1 cfg.ini 2>said & } && second=$! && sleep 1 && "
                 "kill -USR1 $job && wait $second && grep 'resuming after step [0-9]*, from ck/step-' said");
}
END_TEST

/* Neither finds a checkpoint, since there is no directory yet. */
START_TEST(of_two_runs_that_begin_together_one_is_refused)
{
    expect_shell("for i in 1 2 3 4 5 6; do rm -rf ck; $Z --set train.eval_every=0 --steps 30 cfg.ini 2>log & job=$!; "
                 "$Z --set train.eval_every=0 --steps 30 cfg.ini 2>said; codes=$?; wait $job; "
                 "codes=$codes$?; test $codes = 02 || test $codes = 20 || exit 1; "
                 "grep -h \"'ck' has checkpoints of an earlier run, up to\" log said || exit 1; done");
}
END_TEST

/* A run is killed when it has saved the best, and before its first save in dir. Then it is started as it was. The same
 * if the steps in dir have been removed, and `latest` links to none. */
START_TEST(a_run_goes_on_from_a_best_alone)
{
    const char *const option = _i % 2 == 0 ? "--resume" : "--auto-resume", *const link = _i < 2 ? "ck/latest" : "";
    char command[512];
    expect_shell("$Z --steps 8 --set checkpoint.dir=whole cfg.ini && $Z --steps 4 cfg.ini && rm -r ck/step-* %s", link);
    expect_shell("test \"$($Z evaluate cfg.ini)\" = \"$($Z evaluate --resume ck/best cfg.ini)\"");
    snprintf(command, sizeof command, "$Z %s --steps 8 cfg.ini", option);
    expect_said(command, "resuming after step 4, from ck/best/step-00000004", 1);
    expect_best("ck", 8);
    expect_shell("cd ck/latest && for f in *.safetensors; do cmp $f ../../whole/latest/$f || exit 1; done");
}
END_TEST

/* B goes on in A, where another run was better. */
START_TEST(a_run_that_continues_elsewhere_replaces_the_best_there)
{
    const char *const ranks = _i == 0 ? "" : "mpirun --oversubscribe --bind-to none -np 2";
    char command[512];
    expect_shell(
        "$Z --set checkpoint.dir=A --steps 8 cfg.ini && $Z --set checkpoint.dir=B --set train.lr=0 --steps 4 cfg.ini");
    expect_best("A", 8);
    expect_best("B", 2);
    snprintf(command, sizeof command, "%s $Z --resume B --set checkpoint.dir=A --set train.lr=0 --steps 6 cfg.ini",
             ranks);
    expect_said(command, "A/best has step 8 of another run", 1);
    expect_best("A", 0);
    snprintf(command, sizeof command, "%s $Z --resume --set checkpoint.dir=A --steps 8 cfg.ini", ranks);
    expect_said(command, "is the lowest so far", 1);
    expect_best("A", 8);
}
END_TEST

/* B's best so far is in B alone, and C gets a better one only. */
START_TEST(the_lowest_loss_goes_with_the_checkpoint_into_another_directory)
{
    expect_shell("$Z --set checkpoint.dir=B --steps 4 cfg.ini");
    expect_best("B", 4);
    expect_said("$Z --resume B --set checkpoint.dir=C --set train.lr=1 --steps 8 cfg.ini",
                "of step 4, is not that of a checkpoint in C/best", 1);
    expect_best("C", 0);
    expect_said("$Z --resume B --set checkpoint.dir=D --steps 6 cfg.ini", "is the lowest so far", 1);
    expect_best("D", 6);
    expect_best("B", 4);
}
END_TEST

/* A run without best does not forget the one that there is. */
START_TEST(the_best_stays_known_while_none_is_saved)
{
    expect_shell("$Z --steps 4 cfg.ini && $Z --resume --set checkpoint.best=false --set train.lr=1 --steps 6 cfg.ini");
    expect_best("ck", 4);
    expect_said("$Z --resume --set train.lr=1 --steps 8 cfg.ini", "is the lowest so far", 0);
    expect_best("ck", 4);
    expect_shell("$Z --overwrite --set checkpoint.best=false --steps 2 cfg.ini");
    expect_best("ck", 0);
}
END_TEST

/* Removes what an older version did not write from a checkpoint's state.json, and gives the manifest what it then is.
 */
static void make_old(const char *checkpoint)
{
    char state_path[512], manifest_path[512], hash[20];
    snprintf(state_path, sizeof state_path, "%s/%s/state.json", scratch, checkpoint);
    snprintf(manifest_path, sizeof manifest_path, "%s/%s/manifest.json", scratch, checkpoint);
    json_t *state = json_load_file(state_path, 0, NULL), *manifest = json_load_file(manifest_path, 0, NULL);
    ck_assert_int_eq(json_object_del(state, "best"), 0);
    char *text = json_dumps(state, JSON_INDENT(2));
    snprintf(hash, sizeof hash, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    json_t *file = json_object_get(json_object_get(manifest, "files"), "state.json");
    json_object_set_new(file, "bytes", json_integer((json_int_t)strlen(text)));
    json_object_set_new(file, "xxh3", json_string(hash));
    support_write_file(state_path, text, strlen(text));
    ck_assert_int_eq(json_dump_file(manifest, manifest_path, JSON_INDENT(2)), 0);
    free(text);
    json_decref(manifest);
    json_decref(state);
}

START_TEST(of_an_older_checkpoint_the_best_is_what_the_directory_has)
{
    expect_shell("$Z --steps 4 cfg.ini");
    make_old("ck/latest");
    make_old("ck/best/latest");
    expect_said("$Z --resume --set train.lr=1 --steps 6 cfg.ini", "best", 0);
    expect_best("ck", 4);
    expect_said("$Z --resume --set train.lr=1 --steps 8 cfg.ini", "best", 0);
    expect_best("ck", 4);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("best checkpoint");
    TCase *c = tcase_create("program");
    tcase_set_timeout(c, 2 * LIMIT_S);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, the_lowest_loss_stays_the_best_over_a_resume);
    tcase_add_test(c, a_run_that_begins_anew_leaves_no_best_of_the_one_before);
    tcase_add_test(c, a_best_alone_is_not_replaced_without_a_word);
    tcase_add_loop_test(c, a_best_that_cannot_be_found_is_said, 0, 3);
    tcase_add_loop_test(c, two_runs_do_not_save_into_one_directory, 0, 2);
    tcase_add_test(c, a_start_that_waits_for_the_run_before_resumes_from_what_that_saves);
    tcase_add_test(c, of_two_runs_that_begin_together_one_is_refused);
    tcase_add_loop_test(c, a_run_goes_on_from_a_best_alone, 0, 4);
    tcase_add_loop_test(c, a_run_that_continues_elsewhere_replaces_the_best_there, 0, 2);
    tcase_add_test(c, the_lowest_loss_goes_with_the_checkpoint_into_another_directory);
    tcase_add_test(c, the_best_stays_known_while_none_is_saved);
    tcase_add_test(c, of_an_older_checkpoint_the_best_is_what_the_directory_has);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
