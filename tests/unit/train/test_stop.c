/* test_stop.c - a signal ends zerotrain as its user expects: all ranks finish the current step, save, and log one line.
 * The run that resumes from there equals the run without a signal, to the text of its metrics. It does not matter who
 * gets the signal: one rank, two ranks with different ones, or mpirun. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"

#define RUN_LIMIT_S 60.0

/* More steps than any test waits for; evaluations, whose losses are in the metrics too. */
static const char CONFIG[] =
    "[model]\nlayers = 2\ndim = 36\nheads = 3\nvocab_size = 259\nseq_len = 17\n"
    "[data]\ntrain = text.txt\nval = text.txt\n"
    "[train]\nsteps = 1000000\nglobal_batch = 12\nlr = 3e-3\neval_every = 4\neval_batches = 1\n"
    "[checkpoint]\ndir = ck\n"
    "[log]\nevery = 0\nmetrics = m.jsonl\n";

/* meet.sh COMMAND... leaves the process's number in pid.RANK and becomes the command. */
static const char MEET_SCRIPT[] = "rank=" SUPPORT_RANK "\n"
                                  "echo $$ > pid.${rank:-0}\n"
                                  "exec \"$@\"\n";

/* stop.sh HOW RANKS ZEROTRAIN [OPTIONS]: starts a run, runs HOW after 3 steps, or when it reads long.bin, and waits for
 * the run's end. $job in HOW is the process id of mpirun (or of the rank itself without mpirun). */
static const char STOP_SCRIPT[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1\n"
    "how=$1; ranks=$2; shift 2\n"
    "case $ranks in\n"
    "launcher) start= ;;\n"
    "alone) start=\"sh meet.sh\" ;;\n"
    "*) start=\"mpirun --oversubscribe --bind-to none -n $ranks sh meet.sh\" ;;\n"
    "esac\n"
    "env --default-signal=INT $start \"$@\" cfg.ini & job=$!\n" /* which sh lets what is behind & ignore */
    "reads() { readlink /proc/$(cat pid.0)/fd/* | grep -q long.bin; } 2>/dev/null\n"
    "until [ -s m.jsonl ] && [ $(wc -l < m.jsonl) -ge 3 ] || reads; do sleep 0.05; done\n"
    "eval \"$how\"\n"
    "begin=$(date +%s)\n"
    "wait $job; code=$?\n"
    "echo took $(($(date +%s) - begin)) s\n"
    "exit $code\n";

/* same.sh ZEROTRAIN: with the ranks of the run before, 5 steps more, and as many at a stretch. What measures time or
 * memory is left out of the comparison. */
static const char SAME_SCRIPT[] =
    "step=$(readlink ck/latest | sed 's/step-0*//')\n"
    "text() { sed -E 's/, \"run\": .*/}/; "
    "s/\"(step_ms|tokens_per_s|mfu|device_bytes|host_bytes|exposed_comm_ms|time)\": [^,}]*//g' "
    "\"$1\"; }\n"
    "[ $(wc -l < m.jsonl) = $step ] || { echo \"step $step was saved, $(wc -l < m.jsonl) are in the metrics\"; exit 1; "
    "}\n"
    "\"$@\" --steps $((step + 5)) --resume cfg.ini && mv m.jsonl resumed.jsonl &&\n"
    "\"$@\" --steps $((step + 5)) --set checkpoint.dir= cfg.ini || exit\n"
    "text m.jsonl > whole; text resumed.jsonl > resumed\n"
    "[ $(wc -l < whole) = $((step + 5)) ] && cmp whole resumed\n";

static char root[400];

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    support_write_file(path, text, strlen(text));
}

static void set_up(void)
{
    char *directory = support_scratch(), text[9000] = "a";
    uint64_t seed = 1;
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    for (size_t i = 1; i < sizeof text - 1; i++) /* letters that follow their predecessors: something to learn */
        text[i] = (char)('a' + (text[i - 1] - 'a' + 1 + (int)(support_random(&seed) % 3)) % 26);
    write_file("text.txt", text);
    write_file("cfg.ini", CONFIG);
    write_file("meet.sh", MEET_SCRIPT);
    write_file("stop.sh", STOP_SCRIPT);
    write_file("same.sh", SAME_SCRIPT);
}

/* ---- runs ---- */

static support_output_t output; /* of the last run */

static int stop(const char *how, const char *ranks, const char *options)
{
    support_output_free(&output);
    return support_run(&output, RUN_LIMIT_S, "cd %s && exec sh stop.sh '%s' %s %s/zerotrain %s", root, how, ranks,
                       support_build(), options);
}

/* One line of it; the step that it names is the last one. */
static void expect_line(const char *signal_name, const char *rest)
{
    char begin[64];
    snprintf(begin, sizeof begin, "zerotrain: %s: stopping after step ", signal_name);
    ck_assert_msg(support_count(output.err, ": stopping after step ") == 1 && strstr(output.err, begin) &&
                      strstr(output.err, rest),
                  "%s%s", output.out, support_tail(output.err));
}

static void expect_same(const char *ranks)
{
    support_output_t same;
    int exit_code, n_ranks = atoi(ranks);
    if (n_ranks == 0)
        exit_code = support_run(&same, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec sh same.sh %s/zerotrain", root,
                                support_build());
    else
        exit_code = support_run(&same, RUN_LIMIT_S,
                                "cd %s && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 && "
                                "OMP_NUM_THREADS=1 exec sh same.sh mpirun --oversubscribe --bind-to none -n %d "
                                "%s/zerotrain",
                                root, n_ranks, support_build());
    ck_assert_msg(exit_code == 0, "exit code %d\n%s%s", exit_code, same.out, support_tail(same.err));
    support_output_free(&same);
}

/* ---- saved ---- */

static const struct {
    const char *how, *ranks, *options, *signal_name;
} STOPS[] = {
    {"kill -TERM $job", "alone", "", "SIGTERM"},
    {"kill -HUP $job", "alone", "", "SIGHUP"},
    {"kill -USR1 $(cat pid.0)", "1", "--set checkpoint.every=2", "SIGUSR1"},
    {"kill -TERM $(cat pid.1)", "2", "--stage 2", "SIGTERM"},
    {"kill -USR1 $job", "2", "--set checkpoint.async=false", "SIGUSR1"}, /* mpirun hands it on */
    {"kill -INT $(cat pid.2)", "3", "--stage 0", "SIGINT"},
    {"kill -TERM $(cat pid.1); kill -TERM $(cat pid.1) $(cat pid.0)", "3", "--set zero.comm=mpi", "SIGTERM"},
};
#define N_STOPS ((int)(sizeof STOPS / sizeof STOPS[0]))

START_TEST(a_signal_to_any_rank_stops_all_after_one_step_and_they_resume_exactly)
{
    int exit_code = stop(STOPS[_i].how, STOPS[_i].ranks, STOPS[_i].options);
    ck_assert_msg(exit_code == 3, "exit code %d\n%s%s", exit_code, output.out, support_tail(output.err));
    expect_line(STOPS[_i].signal_name, " of 1000000, which is saved in ck\n");
    expect_same(STOPS[_i].ranks);
}
END_TEST

/* Different ones to different ranks: one of the two is named. */
START_TEST(two_signals_to_two_ranks_are_one_stop)
{
    int exit_code = stop("kill -USR1 $(cat pid.0); kill -TERM $(cat pid.1)", "2", "");
    ck_assert_msg(exit_code == 3, "exit code %d\n%s%s", exit_code, output.out, support_tail(output.err));
    ck_assert_msg(support_count(output.err, ": stopping after step ") == 1, "%s", output.err);
    expect_same("2");
}
END_TEST

/* The launcher stops mpirun in a way that leaves the ranks the time that they need. */
START_TEST(the_launcher_turns_sigterm_and_ctrl_c_into_a_stop)
{
    char *repository = realpath(".", NULL), path[600];
    snprintf(path, sizeof path, "%s/build/zerotrain", repository);
    if (access(path, X_OK) == 0) {
        support_output_free(&output);
        int exit_code =
            support_run(&output, RUN_LIMIT_S, "cd %s && exec sh stop.sh 'kill -%s $job' launcher %s/launch/%s", root,
                        _i ? "INT" : "TERM", repository, "zerotrain -np 2");
        ck_assert_msg(exit_code == 3, "exit code %d\n%s%s", exit_code, output.out, support_tail(output.err));
        expect_line("SIGUSR1", "saved in ck\n");
        ck_assert_msg(!strstr(output.err, "failed"), "%s", output.err); /* it did what it was asked */
    } else {
        printf("SKIP: the launcher wants build/zerotrain\n");
    }
    free(repository);
}
END_TEST

/* If it is set to give its ranks 3 s, Open MPI 4 pauses that long before it sends SIGTERM, and again before SIGKILL.
 * Meanwhile it reads no pipe, so the ranks write to a file. Its exit code is its own. */
START_TEST(mpirun_that_is_terminated_leaves_a_checkpoint)
{
    write_file("meet.sh", "exec \"$@\" 2>> said\n");
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "3", 1);
    setenv("PRTE_MCA_odls_base_sigkill_timeout", "3", 1);
    int exit_code = stop("kill -TERM $job", "2", "");
    ck_assert_msg(exit_code != 0 && exit_code != SUPPORT_TIMED_OUT, "exit code %d\n%s", exit_code,
                  support_tail(output.err));
    support_output_free(&output);
    ck_assert_int_eq(support_run(&output, RUN_LIMIT_S, "cat %s/said >&2", root), 0);
    expect_line("SIGTERM", "saved in ck\n");
    expect_same("2");
}
END_TEST

/* ---- not saved, not at all, at once ---- */

/* The tokens are checked for a minute or more before the first step. */
START_TEST(a_signal_before_the_first_step_ends_all_at_once_with_one_line)
{
    static const struct {
        const char *how, *ranks, *signal_name;
    } stops[] = {{"kill -TERM $job", "alone", "SIGTERM"},
                 {"kill -USR1 $job", "2", "SIGUSR1"},
                 {"kill -HUP $(cat pid.1)", "2", "SIGHUP"}};
    char path[512], line[128];
    write_file("long.bin", "");
    snprintf(path, sizeof path, "%s/long.bin", root);
    ck_assert_int_eq(truncate(path, INT64_C(400) << 30), 0);
    int exit_code = stop(stops[_i].how, stops[_i].ranks, "--set data.train=long.bin --set data.format=uint32");
    ck_assert_msg(exit_code == 3, "exit code %d\n%s%s", exit_code, output.out, support_tail(output.err));
    snprintf(line, sizeof line, "zerotrain: %s: stopped before the first step of this run", stops[_i].signal_name);
    ck_assert_msg(strstr(output.err, line) && support_count(output.err, "zerotrain: ") == 1, "%s", output.err);
    ck_assert_int_eq(support_run(NULL, RUN_LIMIT_S, "cd %s && test ! -e ck", root), 0);
}
END_TEST

START_TEST(a_stop_without_a_directory_says_that_nothing_is_saved)
{
    int exit_code = stop("kill -TERM $(cat pid.0)", _i ? "2" : "alone", "--set checkpoint.dir=");
    ck_assert_msg(exit_code == 1, "exit code %d\n%s%s", exit_code, output.out, support_tail(output.err));
    expect_line("SIGTERM", "; nothing is saved: [checkpoint] dir is not set\n");
    ck_assert_int_eq(support_run(NULL, RUN_LIMIT_S, "cd %s && test ! -e ck", root), 0);
}
END_TEST

/* As nohup has it, and a shell for what it starts in the background. */
START_TEST(a_signal_that_was_ignored_before_is_ignored)
{
    char how[] = "kill -USR1 $job; sleep 0.3; kill -TERM $job";
    write_file("meet.sh", "trap \"\" USR1\nexec \"$@\"\n");
    ck_assert_int_eq(stop(how, "alone", ""), 3);
    expect_line("SIGTERM", "saved in ck\n");
}
END_TEST

/* Rank 1 is stopped, so the current step never ends: rank 0 does not wait for it after the second signal. */
START_TEST(a_second_signal_ends_the_run_at_once)
{
    int took_s = -1;
    int exit_code =
        stop("kill -STOP $(cat pid.1); kill -TERM $(cat pid.0); sleep 1.2; kill -TERM $(cat pid.0)", "2", "");
    ck_assert_msg(exit_code > 0 && exit_code != 3, "exit code %d\n%s", exit_code, support_tail(output.err));
    ck_assert_msg(sscanf(output.out, "took %d s", &took_s) == 1 && took_s <= 10, "%s%s", output.out,
                  support_tail(output.err));
    ck_assert_msg(!strstr(output.err, "stopping after"), "%s", output.err);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stop");
    TCase *tc = tcase_create("stop");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 200);
    tcase_add_loop_test(tc, a_signal_to_any_rank_stops_all_after_one_step_and_they_resume_exactly, 0, N_STOPS);
    tcase_add_test(tc, two_signals_to_two_ranks_are_one_stop);
    tcase_add_loop_test(tc, the_launcher_turns_sigterm_and_ctrl_c_into_a_stop, 0, 2);
    tcase_add_test(tc, mpirun_that_is_terminated_leaves_a_checkpoint);
    tcase_add_loop_test(tc, a_signal_before_the_first_step_ends_all_at_once_with_one_line, 0, 3);
    tcase_add_loop_test(tc, a_stop_without_a_directory_says_that_nothing_is_saved, 0, 2);
    tcase_add_test(tc, a_signal_that_was_ignored_before_is_ignored);
    tcase_add_test(tc, a_second_signal_ends_the_run_at_once);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    return support_main(suite());
}
