/* test_zerotrain.c - zerotrain as a user meets it: what it prints where, its exit codes, its files. */
#include <dirent.h>
#include <math.h>
#include <time.h>

#include "tests/unit/report/event_file.h"
#include "tests/unit/train/zerotrain_runs.h"

/* ---- Help, version, plan ---- */

START_TEST(help_names_every_section_and_option_and_goes_to_stdout)
{
    static const char *const parts[] = {"[model]",
                                        "[data]",
                                        "[train]",
                                        "[zero]",
                                        "[device]",
                                        "[checkpoint]",
                                        "[log]",
                                        "--stage",
                                        "--steps",
                                        "--set",
                                        "--resume",
                                        "--plan",
                                        "--trace",
                                        "--version",
                                        "Exit code",
                                        "seq_len =",
                                        "reduce_every_micro_step ="};
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--help");
    expect_exit(&outcome, 0);
    ck_assert_uint_eq(support_count(outcome.output.out, "Usage: zerotrain"), 1);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        ck_assert_msg(strstr(outcome.output.out, parts[i]) != NULL, "'%s' is not in\n%s", parts[i], outcome.output.out);
    ck_assert_str_eq(outcome.output.err, "");
    forget(&outcome);
}
END_TEST

START_TEST(version_goes_to_stdout_once)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--version");
    expect_exit(&outcome, 0);
    ck_assert_str_eq(outcome.output.out, "zerotrain " ZERO_VERSION_STRING "\n");
    ck_assert_str_eq(outcome.output.err, "");
    forget(&outcome);
}
END_TEST

START_TEST(results_that_cannot_be_written_are_a_failure)
{
    static const char *const runs[] = {"--help", "--plan cfg.ini"};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        support_output_t output;
        int exit_code = support_run(&output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s > /dev/full", scratch,
                                    support_build(), runs[i]);
        ck_assert_msg(exit_code == 1 && strstr(output.err, "cannot write to stdout: No space left"), "%s: %d, %s",
                      runs[i], exit_code, output.err);
        support_output_free(&output);
    }
}
END_TEST

/* The four numbers of the plan's row of that name; the row must be there once. */
static void read_plan_row(const char *plan, const char *name, long long bytes[4])
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\n%s ", name);
    const char *row = strstr(plan, pattern);
    ck_assert_msg(row && support_count(plan, pattern) == 1, "%s: %s", name, plan);
    ck_assert_int_eq(sscanf(row + strlen(pattern), "%lld %lld %lld %lld", &bytes[0], &bytes[1], &bytes[2], &bytes[3]),
                     4);
}

START_TEST(the_plan_adds_up_and_training_uses_what_it_says)
{
    static const char *const categories[] = {"parameters",
                                             "unsharded parameters",
                                             "gradients",
                                             "unsharded gradients",
                                             "optimizer state",
                                             "communication",
                                             "activations",
                                             "workspace",
                                             "data"};
    const int n_ranks = _i == 0 ? ALONE : 8;
    if (support_leaves_out(n_ranks))
        return;
    outcome_t outcome = run(n_ranks, "--plan cfg.ini");
    expect_exit(&outcome, 0);
    ck_assert(!exists("metrics.jsonl")); /* it did not train */
    if (n_ranks == ALONE)
        ck_assert_str_eq(outcome.output.err, "");
    ck_assert(strstr(outcome.output.out, ", on the CPU; ") ||
              strstr(outcome.output.out, ", on GPUs; ")); /* whose it is */

    long long sum[4] = {0}, bytes[4], total[4], state[4];
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        read_plan_row(outcome.output.out, categories[i], bytes);
        for (int stage = 0; stage < 4; stage++)
            sum[stage] += bytes[stage];
        if (strcmp(categories[i], "optimizer state") == 0)
            memcpy(state, bytes, sizeof state);
    }
    read_plan_row(outcome.output.out, "total", total);
    for (int stage = 0; stage < 4; stage++)
        ck_assert_int_eq(sum[stage], total[stage]);
    if (n_ranks == 8) {
        ck_assert_int_gt(state[0], 7 * state[1]); /* 1/8 and padding */
        ck_assert_int_lt(state[0], 8 * state[1] + 1);
        ck_assert_int_eq(state[1], state[3]);
    } else {
        ck_assert_int_eq(state[0], state[3]);
    }
    forget(&outcome);

    for (int stage = 0; stage < 4; stage += n_ranks == 8 ? 3 : 1) {
        outcome = run(n_ranks, "--stage %d --steps 2 cfg.ini", stage);
        expect_exit(&outcome, 0);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert_int_eq(integer(rows, 2, "device_bytes"), total[stage]);
        json_decref(rows);
        forget(&outcome);
    }
}
END_TEST

/* ---- A good run ---- */

/* Compares what a run says of itself with the plan, the configuration and this host. */
static void expect_description(const json_t *run, int n_ranks, uint64_t device_bytes)
{
    char host[256] = "";
    const json_t *config = json_object_get(run, "config"), *first = json_array_get(json_object_get(run, "hosts"), 0);
    const char *category;
    json_t *bytes, *memory = json_object_get(run, "memory");
    uint64_t total = 0;
    json_object_foreach(memory, category, bytes) total +=
        strcmp(category, "pinned host memory") != 0 ? (uint64_t)json_integer_value(bytes) : 0;
    ck_assert_uint_eq(json_object_size(memory), 10);
    ck_assert_uint_eq(total, device_bytes);
    ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
    ck_assert_str_eq(json_string_value(json_object_get(first, "name")), host);
    ck_assert_int_eq(json_integer_value(json_object_get(first, "ranks")), n_ranks);
    ck_assert_uint_eq(json_array_size(json_object_get(run, "hosts")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(run, "ranks")), n_ranks);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(config, "train"), "global_batch")), "24");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(config, "log"), "metrics")), "metrics.jsonl");
}

START_TEST(metrics_have_every_field_with_its_type)
{
    static const char *const numbers[] = {"loss",         "grad_norm",       "lr",  "step_ms",
                                          "tokens_per_s", "exposed_comm_ms", "time"};
    static const char *const integers[] = {"step", "tokens", "device_bytes", "host_bytes"};
    static const char earlier[] = "{\"step\": 99, \"loss\": 1.5}\n";
    write_file("metrics.jsonl", earlier, sizeof earlier - 1);
    double before_s = (double)time(NULL);
    expect_success(_i == 0 ? ALONE : 3, "--set data.val=val.txt --set train.eval_every=5 cfg.ini");
    json_t *rows = read_metrics("metrics.jsonl");
    ck_assert_uint_eq(json_array_size(rows), N_STEPS);
    for (size_t step = 1; step <= N_STEPS; step++) {
        const json_t *row = json_array_get(rows, step - 1);
        bool evaluates = step % 5 == 0 || step == N_STEPS;
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            ck_assert_msg(json_is_number(json_object_get(row, numbers[i])), "step %zu: %s", step, numbers[i]);
        for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
            ck_assert_msg(json_is_integer(json_object_get(row, integers[i])), "step %zu: %s", step, integers[i]);
        ck_assert(json_is_false(json_object_get(row, "skipped")));
        ck_assert(json_is_null(json_object_get(row, "mfu")) || json_is_number(json_object_get(row, "mfu")));
        ck_assert_int_eq(json_is_number(json_object_get(row, "val_loss")), evaluates);
        ck_assert_uint_eq(json_object_size(row), (evaluates ? 14u : 13u) + (step == 1));

        ck_assert_int_eq(integer(rows, step, "step"), (long long)step);
        ck_assert_int_eq(integer(rows, step, "tokens"), (long long)step * 24 * 17);
        ck_assert_double_gt(number(rows, step, "step_ms"), 0.0);
        ck_assert_double_ge(number(rows, step, "time"), step == 1 ? before_s : number(rows, step - 1, "time"));
        ck_assert_double_le(number(rows, step, "time"), (double)time(NULL) + 1.0);
        ck_assert_double_eq_tol(number(rows, step, "tokens_per_s") * number(rows, step, "step_ms") * 1e-3, 24 * 17,
                                0.01);
    }
    expect_description(json_object_get(json_array_get(rows, 0), "run"), _i == 0 ? 1 : 3,
                       (uint64_t)integer(rows, 1, "device_bytes"));
    /* From ln 259 at the start to something better. */
    ck_assert_double_eq_tol(number(rows, 1, "loss"), log(259.0), 0.3);
    ck_assert_double_lt(number(rows, N_STEPS, "loss"), number(rows, 1, "loss") - 0.5);
    ck_assert_double_lt(number(rows, N_STEPS, "val_loss"), number(rows, 5, "val_loss"));
    json_decref(rows);
}
END_TEST

/* Weights, configuration and nothing of the training's state; into a directory that was not there. */
START_TEST(export_writes_the_model_alone)
{
    static const char *const gone[] = {"state.json", "manifest.json", "optimizer-00001-of-00001.safetensors"};
    static const char *const same[] = {"config.json", "model-00001-of-00001.safetensors"};
    char path[100];
    expect_success(ALONE, "--steps 1 --set checkpoint.dir=exported_from cfg.ini");
    expect_success(ALONE, "export exported_from exported");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "exported_from/latest/%s", gone[i]);
        ck_assert_msg(access(path_of(path), F_OK) == 0, "%s", path);
        snprintf(path, sizeof path, "exported/%s", gone[i]);
        ck_assert_msg(access(path_of(path), F_OK) != 0, "%s", path);
    }
    for (int i = 0; i < 2; i++) {
        size_t n_want, n_got;
        snprintf(path, sizeof path, "exported_from/latest/%s", same[i]);
        char *want = support_read_file(path_of(path), &n_want);
        snprintf(path, sizeof path, "exported/%s", same[i]);
        char *got = support_read_file(path_of(path), &n_got);
        ck_assert_uint_eq(n_got, n_want);
        ck_assert_mem_eq(got, want, n_want);
        free(got), free(want);
    }
}
END_TEST

/* A disk that is full, or a limit of files: one line, nothing is left, and the command can be given again. */
START_TEST(an_export_that_fails_leaves_nothing)
{
    outcome_t outcome;
    expect_success(ALONE, "--steps 1 --set checkpoint.dir=capped_from cfg.ini");
    outcome.exit_code =
        support_run(&outcome.output, RUN_LIMIT_S,
                    "cd %s && ulimit -f 10 && exec %s/zerotrain export capped_from capped", scratch, support_build());
    expect_exit(&outcome, 1);
    ck_assert_msg(support_count(outcome.output.err, "\n") == 1 &&
                      strstr(outcome.output.err, "capped.partial/model-00001-of-00001.safetensors': File too large"),
                  "%s", outcome.output.err);
    forget(&outcome);
    ck_assert(!exists("capped.partial") && !exists("capped"));
    expect_success(ALONE, "export capped_from capped");
}
END_TEST

/* A model with more tokens trains on. tests/reference/grow.py compares its rows with transformers'. */
START_TEST(export_grows_the_vocabulary)
{
    expect_success(ALONE, "--steps 1 --set checkpoint.dir=small cfg.ini");
    expect_success(ALONE, "export --vocab-size 300 small grown");
    char *config = support_read_file(path_of("grown/config.json"), NULL);
    ck_assert_msg(strstr(config, "\"vocab_size\": 300"), "%s", config);
    free(config);
    expect_success(ALONE,
                   "--steps 1 --set model.vocab_size=300 --set model.init=grown --set checkpoint.dir=grown_on cfg.ini");
    outcome_t outcome = run(ALONE, "export --vocab-size 200 small smaller");
    expect_exit(&outcome, 2);
    ck_assert_msg(strstr(outcome.output.err, "--vocab-size 200: the model 'small/"), "%s", outcome.output.err);
    forget(&outcome);
    outcome = run(ALONE, "--set model.vocab_size=300 --set model.init=small --set checkpoint.dir=none cfg.ini");
    expect_exit(&outcome, 2);
    ck_assert_msg(strstr(outcome.output.err, "zerotrain export --vocab-size writes one"), "%s", outcome.output.err);
    forget(&outcome);
}
END_TEST

/* One file, whatever the ranks. Both round: the metrics to nine digits, the events to fp32. */
START_TEST(tensorboard_events_equal_the_metrics)
{
    static const char *const tags[] = {"loss",         "grad_norm",       "lr",       "tokens_per_s",
                                       "step_ms",      "exposed_comm_ms", "val_loss", "tokens",
                                       "device_bytes", "host_bytes"};
    expect_success(_i == 0 ? ALONE : 3,
                   "--set data.val=val.txt --set train.eval_every=5 --set log.tensorboard=runs/one cfg.ini");
    char name[512] = "";
    int n_files = 0;
    DIR *listing = opendir(path_of("runs/one"));
    ck_assert_ptr_nonnull(listing);
    for (const struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_name[0] != '.' && ++n_files)
            snprintf(name, sizeof name, "runs/one/%s", entry->d_name);
    closedir(listing);
    ck_assert_int_eq(n_files, 1);
    static event_t events[N_STEPS + 1];
    ck_assert_int_eq(event_file_read(path_of(name), events, N_STEPS + 1), N_STEPS + 1);
    json_t *rows = read_metrics("metrics.jsonl");
    for (size_t step = 1; step <= N_STEPS; step++) {
        const json_t *row = json_array_get(rows, step - 1);
        ck_assert_int_eq(events[step].step, (long long)step);
        ck_assert(*event_scalar(&events[step], "skipped") == 0);
        for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
            const float *value = event_scalar(&events[step], tags[i]);
            const json_t *want = json_object_get(row, tags[i]);
            ck_assert_msg((value != NULL) == (want != NULL), "step %zu: %s", step, tags[i]);
            if (value)
                ck_assert_double_le(fabs(*value - json_number_value(want)), 1e-7 * fabs(json_number_value(want)));
        }
    }
    json_decref(rows);
}
END_TEST

START_TEST(results_go_to_stdout_and_the_log_to_stderr)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "cfg.ini");
    expect_exit(&outcome, 0);
    ck_assert_str_eq(outcome.output.out, "");
    ck_assert_msg(strstr(outcome.output.err, "metrics.jsonl\n") != NULL, "%s", outcome.output.err);
    ck_assert_msg(support_count(outcome.output.err, "step 12/12") == 1, "%s", outcome.output.err); /* only rank 0 */
    double loss, norm, lr, ms, tokens_per_s, memory;
    char unit[4], left[8];
    const char *line = strstr(outcome.output.err, "step 12/12");
    ck_assert_msg(sscanf(line, "step 12/12 loss %lf grad_norm %lf lr %lf %lf ms %lf tokens/s %lf %3s %7s left", &loss,
                         &norm, &lr, &ms, &tokens_per_s, &memory, unit, left) == 8 &&
                      ms > 0.0 && memory > 0.0 && !strcmp(unit, "MiB") && !strcmp(left, "0:00"),
                  "%s", line);
    ck_assert_msg(strstr(outcome.output.err, _i == 0 ? "on 1 rank " : "on 3 ranks ") != NULL, "%s", outcome.output.err);
    if (_i == 0) /* every line of it is zerotrain's */
        ck_assert_uint_eq(support_count(outcome.output.err, "\n"), support_count(outcome.output.err, "zerotrain: "));
    forget(&outcome);
}
END_TEST

START_TEST(a_sample_is_printed_once_as_text)
{
    outcome_t outcome = run(_i == 0 ? ALONE : 3, "--set model.vocab_size=256 --set train.sample_every=12 cfg.ini");
    expect_exit(&outcome, 0);
    const char *out = outcome.output.out, *begin = "--- sample: given this text\n", *end = "\n--- end of sample\n";
    ck_assert_msg(strncmp(out, begin, strlen(begin)) == 0, "%s", out);
    const char *closed = strstr(out, end);
    ck_assert_msg(closed && strlen(closed) == strlen(end), "%s", out); /* once, and nothing else */
    ck_assert_int_ge((int)(closed - out), 100);
    for (const char *at = out; *at; at++)
        ck_assert_msg(*at == '\n' || *at == '\t' || (*at >= 32 && *at < 127), "byte %d", *at);
    forget(&outcome);
}
END_TEST

/* Rows of both, up to the shorter: the same in these fields. */
static void expect_equal_rows(const json_t *a, const json_t *b)
{
    size_t n_a = json_array_size(a), n_b = json_array_size(b), n = n_a < n_b ? n_a : n_b;
    ck_assert_uint_gt(n, 0);
    for (size_t step = 1; step <= n; step++) {
        ck_assert(number(a, step, "loss") == number(b, step, "loss"));
        ck_assert(number(a, step, "grad_norm") == number(b, step, "grad_norm"));
        ck_assert(number(a, step, "lr") == number(b, step, "lr"));
    }
}

START_TEST(steps_stops_early_and_the_schedule_follows_train_steps)
{
    expect_success(ALONE, "--set log.metrics=all.jsonl cfg.ini");
    expect_success(ALONE, "--steps 5 --set log.metrics=five.jsonl cfg.ini");
    expect_success(ALONE, "--set train.steps=5 --set log.metrics=short.jsonl cfg.ini");
    json_t *all = read_metrics("all.jsonl"), *five = read_metrics("five.jsonl"), *shorter = read_metrics("short.jsonl");
    ck_assert_uint_eq(json_array_size(all), N_STEPS);
    ck_assert_uint_eq(json_array_size(five), 5);
    expect_equal_rows(all, five);
    ck_assert_double_gt(number(five, 5, "lr"), 2.0 * number(shorter, 5, "lr")); /* lr / 10 is for the last step */
    ck_assert_double_eq_tol(number(shorter, 5, "lr"), 3e-4, 1e-9);
    json_decref(all);
    json_decref(five);
    json_decref(shorter);
}
END_TEST

START_TEST(the_command_line_goes_before_the_file_and_the_file_before_defaults)
{
    static const char text[] = CONFIG "[zero]\nstage = 1\n";
    static const struct {
        const char *arguments, *says;
    } cases[] = {{"cfg.ini", "stage 3"}, /* the default */
                 {"one.ini", "stage 1"},
                 {"--set zero.stage=2 one.ini", "stage 2"},
                 {"one.ini --stage 0", "stage 0"}};
    write_file("one.ini", text, sizeof text - 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome_t outcome = run(ALONE, "--steps 1 %s", cases[i].arguments);
        expect_exit(&outcome, 0);
        ck_assert_msg(strstr(outcome.output.err, cases[i].says) != NULL, "%s: %s", cases[i].arguments,
                      outcome.output.err);
        forget(&outcome);
    }
}
END_TEST

START_TEST(every_token_format_gives_the_losses_of_the_text)
{
    static const char *const names[] = {"llmc2.bin", "llmc4.bin", "nanogpt.bin", "megatron"};
    expect_success(ALONE, "--set log.metrics=text.jsonl cfg.ini");
    json_t *text = read_metrics("text.jsonl");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        outcome_t outcome = run(ALONE, "--set data.train=%s cfg.ini", names[i]);
        expect_exit(&outcome, 0);
        json_t *rows = read_metrics("metrics.jsonl");
        ck_assert_uint_eq(json_array_size(rows), N_STEPS);
        expect_equal_rows(text, rows);
        json_decref(rows);
        forget(&outcome);
    }
    json_decref(text);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("zerotrain");
    TCase *good = tcase_create("good runs");
    tcase_add_checked_fixture(good, set_up, NULL);
    tcase_set_timeout(good, 10 * RUN_LIMIT_S);
    tcase_add_loop_test(good, help_names_every_section_and_option_and_goes_to_stdout, 0, 2);
    tcase_add_loop_test(good, version_goes_to_stdout_once, 0, 2);
    tcase_add_test(good, results_that_cannot_be_written_are_a_failure);
    tcase_add_loop_test(good, the_plan_adds_up_and_training_uses_what_it_says, 0, 2);
    tcase_add_loop_test(good, metrics_have_every_field_with_its_type, 0, 2);
    tcase_add_test(good, export_writes_the_model_alone);
    tcase_add_test(good, export_grows_the_vocabulary);
    tcase_add_test(good, an_export_that_fails_leaves_nothing);
    tcase_add_loop_test(good, tensorboard_events_equal_the_metrics, 0, 2);
    tcase_add_loop_test(good, results_go_to_stdout_and_the_log_to_stderr, 0, 2);
    tcase_add_loop_test(good, a_sample_is_printed_once_as_text, 0, 2);
    tcase_add_test(good, steps_stops_early_and_the_schedule_follows_train_steps);
    tcase_add_test(good, the_command_line_goes_before_the_file_and_the_file_before_defaults);
    tcase_add_test(good, every_token_format_gives_the_losses_of_the_text);
    suite_add_tcase(s, good);
    return s;
}

int main(void)
{
    return support_main(suite());
}
