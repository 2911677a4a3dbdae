/* test_zerotrain_failures.c - a failure during a run ends it soon, on all ranks, and is named. */
#include "tests/unit/train/zerotrain_runs.h"

#define DIVERGING                                                                                                      \
    "--set train.lr=1000 --set train.grad_clip=0 --set train.steps=100 --set train.schedule=constant --set "           \
    "log.every=0 "

START_TEST(diverging_steps_are_skipped_and_logged_and_many_end_the_run)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, DIVERGING "cfg.ini");
    expect_exit(&outcome, 1);
    ck_assert_msg(support_count(outcome.output.err, "steps in a row") == 1, "%s", outcome.output.err);
    ck_assert_msg(strstr(outcome.output.err, "lower the learning rate") != NULL, "%s", outcome.output.err);
    json_t *rows = read_metrics("metrics.jsonl");
    size_t n_skipped = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool skipped = json_is_true(json_object_get(row, "skipped"));
        ck_assert_int_eq(skipped, !json_is_number(json_object_get(row, "grad_norm")));
        n_skipped += skipped;
    }
    ck_assert_uint_gt(n_skipped, 5);
    ck_assert_uint_lt(n_skipped, 99);
    ck_assert_uint_eq(support_count(outcome.output.err, "SKIPPED"), n_skipped);
    json_decref(rows);
    forget(&outcome);
}
END_TEST

/* So that what starts runs again does not repeat one that would end the same way. */
START_TEST(diverging_has_an_exit_code_of_its_own_with_auto_resume)
{
    outcome_t outcome = run(ALONE, DIVERGING "--auto-resume cfg.ini");
    expect_exit(&outcome, 4);
    forget(&outcome);
}
END_TEST

/* fp16's first loss scale is too large for sequences of one token, with a batch of one per rank; three steps later it
 * has settled. */
START_TEST(a_run_of_which_every_step_was_skipped_is_no_success)
{
    static const struct {
        const char *arguments;
        int exit_code;
        bool says;
    } cases[] = {{"--steps 1", 1, true}, {"--set train.steps=1", 1, true}, {"--steps 3", 0, false}};
    const int n_ranks = _i == 0 ? ALONE : 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run(n_ranks,
                                "--set train.precision=fp16 --set model.seq_len=1 --set train.global_batch=0 "
                                "--set train.micro_batch=1 %s cfg.ini",
                                cases[i].arguments);
        expect_exit(&outcome, cases[i].exit_code);
        ck_assert_msg(support_count(outcome.output.err, "all steps of this run (1) were skipped") == cases[i].says,
                      "%s", outcome.output.err);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert(json_is_true(json_object_get(json_array_get(rows, 0), "skipped")));
        json_decref(rows);
        forget(&outcome);
    }
}
END_TEST

START_TEST(a_full_disk_ends_the_run_and_is_named)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--set log.metrics=/dev/full cfg.ini");
    expect_exit(&outcome, 1);
    ck_assert_msg(support_count(outcome.output.err, "[log] metrics: writing '/dev/full' failed: No space left") == 1,
                  "%s", outcome.output.err);
    ck_assert_msg(support_count(outcome.output.err, "a log cannot be written: stopping after step 2 of") == 1, "%s",
                  outcome.output.err);
    forget(&outcome);
}
END_TEST

/* Trains on 3 ranks until 3 steps are in the metrics, sends rank 1 the signal, and waits for the end of the job. */
static const char SIGNAL_SCRIPT[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1\n"
    "mpirun --oversubscribe --bind-to none -n 3 sh tell_pid.sh \"$1\" --set train.steps=1000000 "
    "--set log.every=0 cfg.ini &\n"
    "job=$!\n"
    "until [ -s metrics.jsonl ] && [ $(wc -l < metrics.jsonl) -ge 3 ]; do sleep 0.1; done\n"
    "begin=$(date +%s)\n"
    "kill -$2 $(cat pid.1)\n"
    "wait $job\n"
    "code=$?\n"
    "echo took $(($(date +%s) - begin)) s\n"
    "sleep 1\n"
    "for rank in 0 1 2; do\n"
    "    state=$(cut -d ' ' -f 3 /proc/$(cat pid.$rank)/stat 2>/dev/null)\n"
    "    [ \"${state:-Z}\" = Z ] || echo rank $rank lives on\n" /* Z: ended, but not yet waited for */
    "done\n"
    "exit $code\n";
static const char PID_SCRIPT[] = "rank=" SUPPORT_RANK "\n"
                                 "echo $$ > pid.$rank\n"
                                 "exec \"$@\"\n";

/* All ranks are gone within limit_s of the signal, and the exit code shows the failure. */
static outcome_t signal_rank_1(const char *signal_name, int limit_s)
{
    write_file("signal.sh", SIGNAL_SCRIPT, sizeof SIGNAL_SCRIPT - 1);
    write_file("tell_pid.sh", PID_SCRIPT, sizeof PID_SCRIPT - 1);
    outcome_t outcome;
    int took_s = -1;
    outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && sh signal.sh %s/zerotrain %s", scratch,
                                    support_build(), signal_name);
    const support_output_t *output = &outcome.output;
    ck_assert_msg(outcome.exit_code != 0 && outcome.exit_code != SUPPORT_TIMED_OUT, "exit code %d\n%s%s",
                  outcome.exit_code, output->out, output->err);
    ck_assert_msg(sscanf(output->out, "took %d s", &took_s) == 1 && took_s <= limit_s, "%s%s", output->out,
                  output->err);
    ck_assert_msg(!strstr(output->out, "lives on"), "%s%s", output->out, output->err);
    return outcome;
}

START_TEST(a_killed_rank_ends_the_job_and_is_named)
{
    outcome_t outcome = signal_rank_1("KILL", 10);
    ck_assert_msg(strstr(outcome.output.err, "rank 1") != NULL, "%s", outcome.output.err);
    forget(&outcome);
}
END_TEST

/* It is given up long before ZERO_TIMEOUT_S, which is minutes. */
START_TEST(a_stuck_rank_ends_the_job_and_is_named)
{
    outcome_t outcome = signal_rank_1("STOP", 5 + 10);
    const char *line = strstr(outcome.output.err, "zerotrain: rank ");
    ck_assert_msg(line && support_count(line, "zerotrain: ") == 1, "%s", outcome.output.err);
    ck_assert_msg(strstr(line, "rank 1 ") && strstr(line, "has been stopped"), "%s", outcome.output.err);
    forget(&outcome);
}
END_TEST

/* Trains on used.bin until 3 steps are in the metrics, changes it as `sh change.sh TRUNCATE|OVERWRITE zerotrain ...`
 * says, and waits for the end. */
static const char CHANGE_SCRIPT[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1\n"
    "change=$1\n"
    "shift\n"
    "cp nanogpt.bin used.bin\n"
    "rm -f metrics.jsonl\n"
    "\"$@\" --set data.train=used.bin --set train.steps=1000000 --set log.every=0 cfg.ini &\n"
    "job=$!\n"
    "until [ -s metrics.jsonl ] && [ $(wc -l < metrics.jsonl) -ge 3 ]; do sleep 0.1; done\n"
    "begin=$(date +%s)\n"
    "[ $change = OVERWRITE ] || : > used.bin\n"
    "[ $change = TRUNCATE ] || dd if=beyond.raw of=used.bin conv=notrunc 2>/dev/null\n"
    "wait $job\n"
    "code=$?\n"
    "echo took $(($(date +%s) - begin)) s\n"
    "exit $code\n";

/* One rank may meet it and end the job, or several at once: each has one line. */
START_TEST(a_token_file_that_changes_in_use_ends_the_run_and_is_named)
{
    static const struct {
        const char *change, *says[3];
    } cases[] = {{"TRUNCATE", {"cannot read data file 'used.bin'", "12000 bytes", "truncated while in use"}},
                 {"OVERWRITE", {"'used.bin': token 65535 at position ", "vocab_size is 259", "changed while in use"}}};
    static unsigned char beyond[2 * N_TOKENS];
    const char *launcher = _i == 0 ? "" : "mpirun --oversubscribe --bind-to none -n 3";
    memset(beyond, 0xff, sizeof beyond);
    write_file("beyond.raw", beyond, sizeof beyond);
    write_file("change.sh", CHANGE_SCRIPT, sizeof CHANGE_SCRIPT - 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome;
        int took_s = -1;
        outcome.exit_code = support_run(&outcome.output, RUN_LIMIT_S, "cd %s && sh change.sh %s %s %s/zerotrain",
                                        scratch, cases[i].change, launcher, support_build());
        expect_exit(&outcome, 1);
        const char *err = outcome.output.err;
        size_t n_lines = support_count(err, "data file 'used.bin'") + support_count(err, "'used.bin': token");
        ck_assert_msg(n_lines >= 1 && n_lines <= (_i == 0 ? 1 : 3), "%s: %s", cases[i].change, err);
        for (size_t part = 0; part < 3; part++)
            ck_assert_msg(support_count(err, cases[i].says[part]) == n_lines, "%s: '%s': %s", cases[i].change,
                          cases[i].says[part], err);
        ck_assert_msg(sscanf(outcome.output.out, "took %d s", &took_s) == 1 && took_s <= 10, "%s%s", outcome.output.out,
                      err);
        forget(&outcome);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("zerotrain_failures");
    TCase *failures = tcase_create("failures");
    tcase_add_checked_fixture(failures, set_up, NULL);
    tcase_set_timeout(failures, 10 * RUN_LIMIT_S);
    /* Loop tests: one rank, then several under mpirun. */
    tcase_add_loop_test(failures, diverging_steps_are_skipped_and_logged_and_many_end_the_run, 0, 2);
    tcase_add_test(failures, diverging_has_an_exit_code_of_its_own_with_auto_resume);
    tcase_add_loop_test(failures, a_run_of_which_every_step_was_skipped_is_no_success, 0, 2);
    tcase_add_loop_test(failures, a_full_disk_ends_the_run_and_is_named, 0, 2);
    tcase_add_test(failures, a_killed_rank_ends_the_job_and_is_named);
    tcase_add_test(failures, a_stuck_rank_ends_the_job_and_is_named);
    tcase_add_loop_test(failures, a_token_file_that_changes_in_use_ends_the_run_and_is_named, 0, 2);
    suite_add_tcase(s, failures);
    return s;
}

int main(void)
{
    return support_main(suite());
}
