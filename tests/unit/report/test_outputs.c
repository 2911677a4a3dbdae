/* test_outputs.c - files that a run writes, and those that it must not touch: a run that is refused before its first
 * step leaves everything as it was; a mistaken name costs no file; whatever is found instead of a file, no run waits
 * for it.
 *
 * Every case runs in a copy of one directory, in which a run of six steps left checkpoints, metrics and a trace.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/support.h"

#define RUN_LIMIT_S 20.0
#define N_AT_ONCE 4
#define ALONE 0 /* ranks: one, without mpirun */

static const char CONFIG[] = "[model]\nlayers = 2\ndim = 36\nheads = 3\nseq_len = 17\n"
                             "[data]\ntrain = text.txt\nval = val.txt\n"
                             "[train]\nsteps = 6\nglobal_batch = 4\n"
                             "[checkpoint]\ndir = ck\nevery = 2\nkeep = 9\n"
                             "[log]\nevery = 0\nmetrics = m.jsonl\ntrace = t.json\n";

static char root[400];

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static int shell(const char *command)
{
    return support_run(NULL, RUN_LIMIT_S, "cd %s && %s", root, command);
}

/* Once for all cases. */
static void set_up(void)
{
    static char text[6000];
    char *directory = support_scratch();
    uint64_t seed = 3;
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + support_random(&seed) % 26);
    ck_assert_int_eq(shell("mkdir before"), 0);
    support_write_file(path_of("before/text.txt"), text, sizeof text);
    support_write_file(path_of("before/val.txt"), text + 1000, 500);
    support_write_file(path_of("before/cfg.ini"), CONFIG, sizeof CONFIG - 1);
    support_output_t output;
    int code = support_run(&output, RUN_LIMIT_S, "cd %s/before && exec %s/zerotrain cfg.ini", root, support_build());
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    support_output_free(&output);
    ck_assert_int_eq(shell("cd before && test $(wc -l < m.jsonl) = 6 && test -s t.json && test -d ck/step-00000006 && "
                           "echo 'my notes' > notes.txt"),
                     0);
}

/* ---- Cases ---- */

typedef struct outputs_case {
    const char *what;
    const char *before;    /* commands, in the copy */
    const char *arguments; /* "cfg.ini" follows */
    int exit_code;
    const char *says[3]; /* each must be in stderr */
    const char *after;   /* a command that must succeed; NULL: nothing has changed */
    int n_ranks;
} outputs_case_t;

/* clang-format off */
static const outputs_case_t CASES[] = {
    /* What is refused before its first step. */
    {"a plan that fits nowhere", "true", "--set model.vocab_size=2147483647", 1, {"the plan needs"}, NULL, ALONE},
    {"a plan that fits nowhere, two ranks", "true", "--set model.vocab_size=2147483647", 1, {"the plan needs"}, NULL, 2},
    {"a model that is not there", "true", "--set model.init=nohf", 2, {"'nohf/config.json'", "No such file"}, NULL, ALONE},
    {"a model without weights", "mkdir hf && cp ck/latest/config.json hf", "--set model.init=hf", 1,
        {"cannot find weights", "'hf'"}, NULL, ALONE},
    {"a model without weights, two ranks", "mkdir hf && cp ck/latest/config.json hf", "--set model.init=hf", 1,
        {"cannot find weights", "'hf'"}, NULL, 2},
    {"data that are not there", "true", "--set data.train=nosuch.txt", 2, {"'nosuch.txt'"}, NULL, ALONE},
    {"data that are bad", "true", "--set model.vocab_size=50 --set data.val=", 1, {"vocab_size is 50"}, NULL, ALONE},
    {"validation data that are not there", "true", "--set data.val=nosuch.txt", 2, {"'nosuch.txt'"}, NULL, ALONE},
    {"a damaged checkpoint", "truncate -s -9 ck/latest/optimizer-*", "--resume", 1, {"optimizer-00001"}, NULL, ALONE},
    {"a checkpoint of another model", "true", "--resume --set model.layers=3", 2, {"[model] layers = 3"}, NULL, ALONE},
    {"what a killed save left",
        "mkdir hf ck/tmp.step-00000099 && cp ck/latest/config.json hf && echo x > ck/tmp.step-00000099/f",
        "--set model.init=hf", 1, {"cannot find weights"}, NULL, ALONE},
    {"a trace that cannot be written", "true", "--trace nosuch/t.json", 1, {"[log] trace", "'nosuch/t.json'"}, NULL, ALONE},
    {"metrics that cannot be written", "true", "--set log.metrics=nosuch/m.jsonl", 1,
        {"[log] metrics", "'nosuch/m.jsonl'"}, NULL, ALONE},
    {"events in a file", "true", "--set log.tensorboard=notes.txt", 1, {"[log] tensorboard", "'notes.txt'"}, NULL, ALONE},
    {"checkpoints in a file", "true", "--set checkpoint.dir=notes.txt", 1, {"'notes.txt'", "not a directory"}, NULL, ALONE},
    {"a resumed run with nothing to do", "true", "--resume=ck/step-00000004 --steps 3", 0, {"nothing to do"}, NULL, ALONE},
    {"a resumed run with nothing to do, two ranks", "true", "--resume=ck/step-00000004 --steps 3", 0,
        {"nothing to do"}, NULL, 2},

    /* Names of files that are something else. */
    {"notes as metrics", "true", "--set log.metrics=notes.txt", 2, {"[log] metrics", "'notes.txt'", "does not begin"}, NULL, ALONE},
    {"notes as metrics, two ranks", "true", "--set log.metrics=notes.txt", 2,
        {"[log] metrics", "'notes.txt'", "does not begin"}, NULL, 2},
    {"notes as metrics of a resumed run", "true", "--resume=ck/step-00000004 --set log.metrics=notes.txt", 2,
        {"[log] metrics", "'notes.txt'", "does not begin"}, NULL, ALONE},
    {"notes as trace", "true", "--trace notes.txt", 2, {"[log] trace", "'notes.txt'", "does not begin"}, NULL, ALONE},
    {"an earlier trace as metrics", "true", "--set log.metrics=t.json --set log.trace=", 2,
        {"[log] metrics", "'t.json'", "does not begin"}, NULL, ALONE},
    {"earlier metrics as trace", "true", "--set log.trace=m.jsonl --set log.metrics=", 2,
        {"[log] trace", "'m.jsonl'", "does not begin"}, NULL, ALONE},
    {"JSON of others as metrics", "echo '{\"step\": 1, \"name\": \"x\"}' > o.jsonl", "--set log.metrics=o.jsonl", 2,
        {"[log] metrics", "'o.jsonl'"}, NULL, ALONE},
    {"data as metrics", "true", "--set log.metrics=text.txt", 2, {"[log] metrics = 'text.txt'", "[data] train = 'text.txt'"}, NULL, ALONE},
    {"data as trace, by a link", "ln -s text.txt l", "--trace l", 2, {"[log] trace = 'l'", "[data] train = 'text.txt'"}, NULL, ALONE},
    {"data as metrics, by a hard link", "ln val.txt l", "--set log.metrics=l", 2,
        {"[log] metrics = 'l'", "[data] val = 'val.txt'"}, NULL, ALONE},
    {"data of a list as metrics", "cp text.txt b.txt", "--set \"data.train=text.txt, b.txt\" --set log.metrics=./b.txt", 2,
        {"[log] metrics = './b.txt'", "[data] train = 'b.txt'"}, NULL, ALONE},
    {"a Megatron index as metrics", "cp text.txt p.bin && cp m.jsonl p.idx", "--set data.train=p --set log.metrics=p.idx", 2,
        {"[log] metrics = 'p.idx'", "[data] train = 'p.idx'"}, NULL, ALONE},
    {"the configuration as metrics", "true", "--set log.metrics=../$(basename $PWD)/cfg.ini", 2,
        {"[log] metrics = '../", "the configuration file = 'cfg.ini'"}, NULL, ALONE},
    {"the configuration as trace", "ln cfg.ini l", "--trace l", 2, {"[log] trace = 'l'", "the configuration file"}, NULL, ALONE},
    {"metrics as trace", "true", "--set log.metrics=t.json", 2, {"[log] metrics = 't.json'", "[log] trace = 't.json'"}, NULL, ALONE},
    {"metrics as trace, not there yet", "true", "--set log.metrics=a --trace ./a", 2,
        {"[log] metrics = 'a'", "[log] trace = './a'"}, NULL, ALONE},
    {"metrics as trace, by a link to nothing", "ln -s a b && mkdir d && ln -s ../b d/c", "--set log.metrics=a --trace d/c", 2,
        {"[log] metrics = 'a'", "[log] trace = 'd/c'"}, NULL, ALONE},
    {"a model's file as metrics", "true", "--set model.init=ck/step-00000004 --set log.metrics=ck/step-00000004/state.json", 2,
        {"[log] metrics = 'ck/", "[model] init = 'ck/"}, NULL, ALONE},
    {"a checkpoint's file as trace", "true", "--resume --trace ck/latest/manifest.json", 2,
        {"[log] trace = 'ck/", "[checkpoint] dir"}, NULL, ALONE},
    {"a checkpoint's name as metrics", "true", "--set checkpoint.dir=new --set log.metrics=new/latest", 2,
        {"[log] metrics = 'new/latest'", "[checkpoint] dir = 'new'"}, NULL, ALONE},
    {"a place in a checkpoint for metrics", "true", "--set log.metrics=ck/step-00000002/m.jsonl", 2,
        {"[log] metrics = 'ck/", "[checkpoint] dir = 'ck'"}, NULL, ALONE},
    {"a directory as metrics", "mkdir d", "--set log.metrics=d", 2, {"[log] metrics", "'d' is a directory"}, NULL, ALONE},
    {"a socket as trace", "true", "--trace ../socket", 2, {"[log] trace", "'../socket' is a socket"}, NULL, ALONE},

    /* Pipes without a reader or writer. */
    {"a pipe as configuration", "mkfifo p", "p", 2, {"'p'", "not a regular file"}, NULL, ALONE},
    {"a pipe as data", "mkfifo p", "--set data.train=p", 2, {"'p'", "not a regular file"}, NULL, ALONE},
    {"a pipe as validation data", "mkfifo p", "--set data.val=p", 2, {"'p'", "not a regular file"}, NULL, ALONE},
    {"a pipe as a model's configuration", "mkdir hf && mkfifo hf/config.json", "--set model.init=hf", 2,
        {"'hf/config.json'", "not a regular file"}, NULL, ALONE},
    {"a directory as a model's configuration", "mkdir -p hf/config.json", "--set model.init=hf", 2,
        {"'hf/config.json'", "a directory"}, NULL, ALONE},
    {"a pipe as metrics", "mkfifo p", "--set log.metrics=p", 1, {"[log] metrics", "'p'", "has no reader"}, NULL, ALONE},
    {"a pipe as metrics, two ranks", "mkfifo p", "--set log.metrics=p", 1,
        {"[log] metrics", "'p'", "has no reader"}, NULL, 2},
    {"a pipe as trace", "mkfifo p", "--trace p", 1, {"[log] trace", "'p'", "has no reader"}, NULL, ALONE},
    {"a socket as data", "true", "--set data.train=../socket", 2, {"'../socket'"}, NULL, ALONE},

    {"a run that forgets --resume", "true", "--set train.steps=9 cfg.ini # resume", 2,
        {"[checkpoint] dir: 'ck' has checkpoints of an earlier run, up to step-00000006", "--overwrite"}, NULL, ALONE},
    {"the same, two ranks", "echo resume", "--set train.steps=9 --set log.metrics=resume.jsonl", 2,
        {"[checkpoint] dir: 'ck' has checkpoints of an earlier run"}, NULL, 2},
    {"the same, killed before the checkpoint was linked", "rm ck/latest", "--set train.steps=9 cfg.ini # resume", 2,
        {"[checkpoint] dir: 'ck' has checkpoints of an earlier run, up to step-00000006"}, NULL, ALONE},
    {"the same, with a link to something else", "ln -sfn elsewhere ck/latest", "--set train.steps=9 cfg.ini # resume", 2,
        {"[checkpoint] dir: 'ck/latest'", "links to no checkpoint"}, NULL, ALONE},
    {"both", "true", "--overwrite --resume", 2, {"--overwrite: this begins at step 1"}, NULL, ALONE},

    /* What is fine. */
    {"an earlier run's files", "true", "--steps 2", 0, {NULL}, "test $(wc -l < m.jsonl) = 2 && test -s t.json", ALONE},
    {"empty files", ": > m.jsonl && : > t.json", "", 0, {NULL}, "test $(wc -l < m.jsonl) = 6 && test -s t.json", ALONE},
    {"an unfinished row", "printf '{\"step\": 1, \"lo' > m.jsonl", "", 0, {NULL}, "test $(wc -l < m.jsonl) = 6", ALONE},
    {"links to files of ours", "mv m.jsonl a && ln -s a m.jsonl", "", 0, {NULL}, "test $(wc -l < a) = 6 && test -L m.jsonl", ALONE},
    {"/dev/null twice", "true", "--trace /dev/null --set log.metrics=/dev/null", 0, {NULL}, "diff m.jsonl ../before/m.jsonl", ALONE},
    {"metrics among checkpoints", "true", "--set checkpoint.dir=new --set log.metrics=new/m.jsonl", 0, {NULL},
        "test $(wc -l < new/m.jsonl) = 6 && test -d new/latest", ALONE},
    {"a resumed run's rows", "true", "--resume=ck/step-00000004", 0, {NULL}, "test $(wc -l < m.jsonl) = 6", ALONE},
    {"--auto-resume after a kill before the checkpoint was linked", "rm ck/latest", "--auto-resume --set train.steps=7", 0,
        {"resuming after step 6, from ck/step-00000006"}, "test $(wc -l < m.jsonl) = 7 && test -d ck/step-00000006", ALONE},
    {"evaluate, after the same", "rm ck/latest", "evaluate --set data.val=text.txt cfg.ini # resume", 0, {NULL},
        "diff m.jsonl ../before/m.jsonl", ALONE},
    {"init, after the same", "rm ck/latest", "--set model.init=ck --set checkpoint.dir=new", 0, {NULL},
        "test -d new/latest", ALONE},
    {"stdout, a pipe", "true", "--set log.metrics=/dev/stdout cfg.ini | cat > out", 0, {NULL},
        "test $(wc -l < out) = 6 && grep -q '\"step\": 6' out", ALONE},
    {"stdout, a file with something in it", "echo mine > out", "--set log.metrics=/dev/stdout cfg.ini >> out", 0, {NULL},
        "test $(wc -l < out) = 7 && head -n 1 out | grep -q mine", ALONE},
    {"a pipe that is read", "true", "--set log.metrics=>(cat > out) cfg.ini ; code=$?; wait $!; exit $code", 0, {NULL},
        "test $(wc -l < out) = 6", ALONE},
    {"a named pipe that somebody reads", "mkfifo p", "--set log.metrics=p cfg.ini 9<>p", 0, {NULL}, "test -p p", ALONE},
    {"a log whose reader goes", "true", "--set log.every=1 cfg.ini 2> >(:)", 0, {NULL},
        "test $(wc -l < m.jsonl) = 6 && test -d ck/step-00000006", ALONE},
    {"a pipe whose reader goes", "true", "--set log.metrics=/dev/stdout cfg.ini | head -n 2 > out; exit ${PIPESTATUS[0]}", 1,
        {"writing '/dev/stdout' failed", "Broken pipe"}, "test $(wc -l < out) = 2", ALONE},
};
/* clang-format on */
#define N_CASES ((int)(sizeof CASES / sizeof CASES[0]))

/* A refused run changes nothing: neither what is in files nor which there are. diff cannot compare pipes. */
static const char COMPARE[] = "find . ../as_it_was.%d -type p -delete; diff -rq --no-dereference . ../as_it_was.%d";

typedef struct outcome {
    int prepared, exit_code, after;
    support_output_t output;
} outcome_t;

static outcome_t run_case(int i)
{
    const outputs_case_t *c = &CASES[i];
    outcome_t outcome;
    char compare[200];
    snprintf(compare, sizeof compare, COMPARE, i, i);
    outcome.prepared = support_run(NULL, RUN_LIMIT_S,
                                   "cd %s && cp -a before case.%d && cd case.%d && { %s; } && cp -a . ../as_it_was.%d",
                                   root, i, i, c->before, i);
    /* With a configuration of its own a case has its redirections, too. */
    const char *config = strstr(c->arguments, "cfg.ini ") || strcmp(c->arguments, "p") == 0 ? "" : "cfg.ini";
    /* The run before it has left checkpoints. */
    const char *anew = strstr(c->arguments, "resume") ? "" : "--overwrite";
    if (c->n_ranks == ALONE)
        outcome.exit_code =
            support_run(&outcome.output, RUN_LIMIT_S, "cd %s/case.%d && bash -c '%s/zerotrain %s %s %s'", root, i,
                        support_build(), anew, c->arguments, config);
    else
        outcome.exit_code =
            support_mpirun(&outcome.output, RUN_LIMIT_S, c->n_ranks, "--wdir %s/case.%d %s/zerotrain %s %s %s", root, i,
                           support_build(), anew, c->arguments, config);
    outcome.after = support_run(NULL, RUN_LIMIT_S, "cd %s/case.%d && { %s; }", root, i, c->after ? c->after : compare);
    return outcome;
}

static void expect_case(const outputs_case_t *c, const outcome_t *outcome)
{
    const char *err = outcome->output.err;
    ck_assert_msg(outcome->prepared == 0, "%s: cannot be prepared", c->what);
    ck_assert_msg(outcome->exit_code != SUPPORT_TIMED_OUT, "%s: it hangs\n%s", c->what, support_tail(err));
    ck_assert_msg(outcome->exit_code == c->exit_code, "%s: exit code %d instead of %d\n%s", c->what, outcome->exit_code,
                  c->exit_code, support_tail(err));
    for (int s = 0; s < 3 && c->says[s]; s++)
        ck_assert_msg(strstr(err, c->says[s]) != NULL, "%s: no '%s' in\n%s", c->what, c->says[s], support_tail(err));
    ck_assert_msg(outcome->after == 0, "%s: %s", c->what, c->after ? c->after : "something has changed");
    if (c->exit_code != 0 && !c->after)
        ck_assert_msg(support_count(err, "zerotrain: ") - support_count(err, "zerotrain: resum") -
                              support_count(err, "zerotrain: this does not fit") -
                              support_count(err, "zerotrain:   ") ==
                          1, /* a plan that does not fit is a table */
                      "%s:\n%s", c->what, support_tail(err));
}

static int make_socket(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char here[4096];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here)); /* the path may be longer than an address */
    ck_assert_int_eq(chdir(root), 0);
    strcpy(address.sun_path, "socket");
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(chdir(here), 0);
    return fd;
}

START_TEST(no_run_empties_files_of_others_or_waits_for_a_pipe)
{
    outcome_t outcomes[N_CASES] = {0};
    int listening = make_socket();
#pragma omp parallel for schedule(dynamic) num_threads(N_AT_ONCE)
    for (int i = 0; i < N_CASES; i++)
        outcomes[i] = run_case(i);
    for (int i = 0; i < N_CASES; i++)
        expect_case(&CASES[i], &outcomes[i]);
    for (int i = 0; i < N_CASES; i++)
        support_output_free(&outcomes[i].output);
    close(listening);
}
END_TEST

/* A run of two ranks, of which rank 0 fails in a save. The preloaded library would come before the sanitizers'. */
static void fail_in_a_save(const char *directory)
{
    support_output_t output;
    int code =
        support_mpirun(&output, RUN_LIMIT_S, 2,
                       "--wdir %s/%s -x LD_PRELOAD=%s/failing.so -x FAIL_CALL=fsync -x FAIL_NTH=9 -x FAIL_RANK=0 "
                       "%s/zerotrain --overwrite cfg.ini",
                       root, directory, root, support_build());
    ck_assert_msg(code != 0, "%s", output.err);
    support_output_free(&output);
}

/* Rank 1's part of the trace of a run that fails goes to a file of its own; a file that already has that name is kept.
 */
START_TEST(a_rank_that_writes_alone_empties_no_file_of_others)
{
    if (support_is_left_to_plain_build())
        return;
    ck_assert_int_eq(
        support_run(NULL, RUN_LIMIT_S, "cc -D_GNU_SOURCE -shared -fPIC -o %s/failing.so tests/random/failing.c", root),
        0);
    ck_assert_int_eq(shell("cp -a before alone && cp -a before kept && echo mine > kept/t.json.rank1"), 0);
    fail_in_a_save("alone");
    ck_assert_int_eq(shell("grep -q '\"rank 1\"' alone/t.json.rank1"), 0);
    fail_in_a_save("kept");
    ck_assert_int_eq(shell("test \"$(cat kept/t.json.rank1)\" = mine"), 0);
}
END_TEST

/* What is lost is the log, not the training: the step that was reached is saved, on all ranks' agreement. */
START_TEST(a_log_that_cannot_be_written_stops_the_run_and_its_step_is_saved)
{
    support_output_t output;
    ck_assert_int_eq(shell("cp -a before full && rm -rf full/ck full/t.json full/m.jsonl"), 0);
    int code = support_mpirun(&output, RUN_LIMIT_S, 2,
                              "--wdir %s/full %s/zerotrain --overwrite --set log.metrics=/dev/full --set log.trace= "
                              "--set train.steps=1000 --set checkpoint.every=0 cfg.ini",
                              root, support_build());
    ck_assert_msg(code == 1, "exit code %d\n%s", code, output.err);
    ck_assert_msg(strstr(output.err, "a log cannot be written: stopping after step ") &&
                      strstr(output.err, "saved step "),
                  "%s", output.err);
    ck_assert_int_eq(shell("test -f full/ck/latest/manifest.json && ! test -d full/ck/step-00001000"), 0);
    support_output_free(&output);
}
END_TEST

/* No path there can be found out, which is no reason to look for it for ever. */
START_TEST(a_working_directory_that_was_removed_ends_or_trains)
{
    static const struct {
        const char *metrics, *says;
        int exit_code;
    } cases[] = {{"metrics", "[log] metrics: cannot write 'metrics': No such file", 1}, {"", "step 6/6", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        support_output_t output;
        int code = support_run(&output, RUN_LIMIT_S,
                               "mkdir %s/gone && cd %s/gone && rmdir ../gone && exec %s/zerotrain "
                               "--set data.train=%s/before/text.txt --set data.val= --set checkpoint.dir= "
                               "--set checkpoint.every=0 --set log.trace= --set log.every=1 --set log.metrics=%s "
                               "%s/before/cfg.ini",
                               root, root, support_build(), root, cases[i].metrics, root);
        ck_assert_msg(code == cases[i].exit_code, "exit code %d\n%s", code, output.err);
        ck_assert_msg(strstr(output.err, cases[i].says) != NULL, "%s", output.err);
        support_output_free(&output);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("outputs");
    TCase *tc = tcase_create("outputs");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 280);
    tcase_add_test(tc, no_run_empties_files_of_others_or_waits_for_a_pipe);
    tcase_add_test(tc, a_rank_that_writes_alone_empties_no_file_of_others);
    tcase_add_test(tc, a_log_that_cannot_be_written_stops_the_run_and_its_step_is_saved);
    tcase_add_test(tc, a_working_directory_that_was_removed_ends_or_trains);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    setenv("OMP_NUM_THREADS", "1", 1); /* several run at once */
    return support_main(suite());
}
