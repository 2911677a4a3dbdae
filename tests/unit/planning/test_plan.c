/* test_plan.c - --plan in its three forms: the exact table, GiB for people and JSON say the same; what it says of disk,
 * of what fits and of what auto settings become is what a run then finds.
 */
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/support.h"
#include "train/model/model.h"

#define RUN_LIMIT_S 60.0
#define N_STAGES 4

static char scratch[400];

#define CONFIG                                                                                                         \
    "[model]\nlayers = 3\ndim = 64\nheads = 2\nseq_len = 64\n[data]\ntrain = text.txt\n[train]\nsteps = 2\n"           \
    "global_batch = 4\n[checkpoint]\ndir = saved\n[device]\ntype = cpu\n"

static void set_up(void)
{
    char *directory = support_scratch(), path[512], text[8000];
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    memset(text, 'a', sizeof text);
    snprintf(path, sizeof path, "%s/text.txt", scratch);
    support_write_file(path, text, sizeof text);
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, CONFIG, strlen(CONFIG));
}

static int run(support_output_t *output, int n_ranks, const char *arguments)
{
    if (n_ranks > 1)
        return support_mpirun(output, RUN_LIMIT_S, n_ranks, "sh -c 'cd %s && exec %s/zerotrain %s cfg.ini'", scratch,
                              support_build(), arguments);
    return support_run(output, RUN_LIMIT_S, "cd %s && exec %s/zerotrain %s cfg.ini", scratch, support_build(),
                       arguments);
}

static json_t *plan_json(int n_ranks, const char *arguments)
{
    support_output_t output;
    json_error_t error;
    int code = run(&output, n_ranks, arguments);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
    json_t *plan = json_loads(output.out, 0, &error);
    ck_assert_msg(plan != NULL, "%s: %s\n%s", arguments, error.text, output.out);
    support_output_free(&output);
    return plan;
}

static const json_t *stage_of(const json_t *plan, int stage)
{
    return json_array_get(json_object_get(plan, "stages"), (size_t)stage);
}

static double number(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "no number '%s'", key);
    return (double)json_integer_value(json_object_get(object, key));
}

/* Reads the four numbers of the row that begins a line with `name`, which must be there once. */
static void read_row(const char *text, const char *name, double numbers[N_STAGES])
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\n%s ", name);
    const char *row = strstr(text, pattern);
    ck_assert_msg(row && support_count(text, pattern) == 1, "no row '%s', or two, in\n%s", name, text);
    ck_assert_msg(sscanf(row + strlen(pattern), "%lf %lf %lf %lf", &numbers[0], &numbers[1], &numbers[2],
                         &numbers[3]) == N_STAGES,
                  "'%s' has no four numbers in\n%s", name, text);
}

/* Checks one row: exact bytes, MiB to two places, JSON. */
static void check_row(const char *text, const char *exact, const char *people, const double expected[N_STAGES])
{
    double bytes[N_STAGES], mib[N_STAGES];
    char indented[64];
    snprintf(indented, sizeof indented, "  %s", people);
    read_row(text, exact, bytes);
    read_row(text, indented, mib);
    for (int stage = 0; stage < N_STAGES; stage++) {
        ck_assert_msg(bytes[stage] == expected[stage], "%s, stage %d: %.0f and %.0f bytes", exact, stage, bytes[stage],
                      expected[stage]);
        ck_assert_msg(mib[stage] - expected[stage] / 0x1p20 <= 0.0051 &&
                          expected[stage] / 0x1p20 - mib[stage] <= 0.0051,
                      "%s, stage %d: %.2f MiB of %.0f bytes", people, stage, mib[stage], expected[stage]);
    }
}

START_TEST(table_people_and_json_say_the_same)
{
    static const char *const names[] = {"parameters",
                                        "unsharded parameters",
                                        "gradients",
                                        "unsharded gradients",
                                        "optimizer state",
                                        "communication",
                                        "activations",
                                        "workspace",
                                        "data"};
    const int n_ranks = _i == 0 ? 1 : 4;
    const char *hosts = _i == 0 ? "--plan" : "--plan --hosts=2";
    char arguments[64];
    support_output_t output;
    double expected[N_STAGES], totals[N_STAGES] = {0};
    if (support_leaves_out(n_ranks))
        return;
    snprintf(arguments, sizeof arguments, "%s --json", hosts);
    json_t *plan = plan_json(n_ranks, arguments);
    int code = run(&output, n_ranks, hosts);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int stage = 0; stage < N_STAGES; stage++) {
            expected[stage] = number(json_object_get(stage_of(plan, stage), "memory"), names[i]);
            totals[stage] += expected[stage];
        }
        check_row(output.out, names[i], names[i], expected);
    }
    for (int stage = 0; stage < N_STAGES; stage++)
        ck_assert_double_eq(totals[stage], number(stage_of(plan, stage), "total"));
    check_row(output.out, "total", "total", totals);
    static const char *const ways[][3] = {{"rank_from_its_host", "rank, from its host", "over shared memory, in"},
                                          {"rank_from_others", "rank, from others", "over the network, in"}};
    for (int way = 0; way < 2 && n_ranks > 1; way++) {
        for (int stage = 0; stage < N_STAGES; stage++)
            expected[stage] = number(json_object_get(stage_of(plan, stage), "step"), ways[way][0]);
        ck_assert_double_gt(expected[3], 0.0);
        check_row(output.out, ways[way][1], ways[way][2], expected);
    }
    ck_assert(strstr(output.out, " *stage 3"));
    json_decref(plan);
    support_output_free(&output);
}
END_TEST

/* A limit between the totals of two stages: both forms say which fit, and by how much the others do not; a run agrees.
 */
START_TEST(what_the_plan_says_fits_runs)
{
    support_output_t output;
    char arguments[128], line[64];
    json_t *plan = plan_json(1, "--plan --json");
    double small = number(stage_of(plan, 3), "total"), large = number(stage_of(plan, 0), "total");
    ck_assert_double_lt(small, large);
    double limit = (small + large) / 2.0;
    json_decref(plan);
    snprintf(arguments, sizeof arguments, "--plan --json --set device.memory=%.17g", limit / 0x1p30);
    plan = plan_json(1, arguments);
    ck_assert_double_eq(number(stage_of(plan, 3), "over"), 0.0);
    ck_assert_double_eq_tol(number(stage_of(plan, 0), "over"), large - limit, 2.0);
    json_decref(plan);
    snprintf(arguments, sizeof arguments, "--plan --set device.memory=%.17g", limit / 0x1p30);
    ck_assert_int_eq(run(&output, 1, arguments), 0);
    snprintf(line, sizeof line, " %.2f over ", (large - limit) / 0x1p20);
    ck_assert_msg(strstr(output.out, line) && strstr(output.out, " fits\n"), "no '%s' in\n%s", line, output.out);
    support_output_free(&output);
    for (int stage = 0; stage <= 3; stage += 3)
        for (int way = 0; way < 3; way++) {
            static const char *const ways[] = {"", "--plan ", "--plan --json "};
            snprintf(arguments, sizeof arguments, "%s--stage %d --set device.memory=%.17g", ways[way], stage,
                     limit / 0x1p30);
            ck_assert_msg(run(&output, 1, arguments) == (stage == 0 ? 1 : 0), "%s\n%s", arguments, output.err);
            snprintf(line, sizeof line, "stage 0, which is set, does not fit: %.2f ", (large - limit) / 0x1p20);
            ck_assert_msg((strstr(output.err, line) != NULL) == (way > 0 && stage == 0), "%s", output.err);
            ck_assert((way > 0) == (output.out[0] != 0)); /* the plan is printed in any case */
            support_output_free(&output);
        }
}
END_TEST

/* The arrays of a checkpoint that a run saved have as many bytes as planned. */
START_TEST(checkpoints_take_the_disk_that_is_planned)
{
    support_output_t output;
    char pattern[512];
    glob_t files;
    double bytes = 0.0;
    json_t *plan = plan_json(1, "--plan --json");
    const json_t *checkpoint = json_object_get(plan, "checkpoint");
    ck_assert_int_eq(run(&output, 1, ""), 0);
    support_output_free(&output);
    snprintf(pattern, sizeof pattern, "%s/saved/step-*/*.safetensors", scratch);
    ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        struct stat info;
        ck_assert_int_eq(stat(files.gl_pathv[i], &info), 0);
        bytes += (double)info.st_size;
    }
    globfree(&files);
    ck_assert_double_eq(bytes, number(checkpoint, "bytes"));
    ck_assert_double_eq(12.0 * number(plan, "parameters"), number(checkpoint, "copy_of_each_rank"));
    json_decref(plan);
}
END_TEST

/* As many checkpoints are there in the end as are kept, with the best one or without; while another is written there
 * is one more. */
START_TEST(the_best_checkpoint_is_planned_on_the_disk)
{
    support_output_t output;
    char arguments[200], pattern[512], line[128];
    for (int best = 0; best <= 1; best++) {
        snprintf(arguments, sizeof arguments,
                 "--overwrite --set checkpoint.dir=best%d --set checkpoint.best=%s --set data.val=text.txt "
                 "--set checkpoint.every=1 --set train.steps=4",
                 best, best ? "true" : "false");
        glob_t found;
        ck_assert_int_eq(run(&output, 1, arguments), 0);
        support_output_free(&output);
        snprintf(pattern, sizeof pattern, "%s/best%d/{,best/}step-*", scratch, best);
        ck_assert_int_eq(glob(pattern, GLOB_BRACE, NULL, &found), 0);
        ck_assert_uint_eq(found.gl_pathc, best ? 3 : 2);
        snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), " --plan --json");
        json_t *plan = plan_json(1, arguments), *checkpoint = json_object_get(plan, "checkpoint");
        ck_assert(json_boolean_value(json_object_get(checkpoint, "best")) == best);
        arguments[strlen(arguments) - strlen(" --json")] = 0;
        ck_assert_int_eq(run(&output, 1, arguments), 0);
        snprintf(line, sizeof line, "; 2 kept%s, and one while it is written: %.2f MiB\n", best ? " and the best" : "",
                 number(checkpoint, "bytes") * (double)(found.gl_pathc + 1) / 0x1p20);
        ck_assert_msg(strstr(output.out, line) != NULL, "no '%s' in\n%s", line, output.out);
        support_output_free(&output);
        json_decref(plan);
        globfree(&found);
    }
}
END_TEST

/* What stage 0 does not have is planned for the others, as runs hold it, and refused of stage 0 itself. */
START_TEST(settings_that_stage_0_lacks_are_planned_for_the_others)
{
    static const char *const settings[] = {"--set zero.gradients=bf16",
                                           "--set zero.update=backward --set train.grad_clip=0"};
    const char *setting = settings[_i];
    support_output_t output;
    char arguments[200], path[512];
    snprintf(arguments, sizeof arguments, "--plan --json %s", setting);
    json_t *plan = plan_json(2, arguments);
    for (int stage = 1; stage <= 3; stage++) {
        snprintf(arguments, sizeof arguments, "--stage %d --set checkpoint.dir= --set log.metrics=m.jsonl %s", stage,
                 setting);
        ck_assert_int_eq(run(&output, 2, arguments), 0);
        support_output_free(&output);
        snprintf(path, sizeof path, "%s/m.jsonl", scratch);
        json_t *row = json_load_file(path, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *held = json_object_get(json_object_get(row, "run"), "memory");
        ck_assert_double_eq(number(held, "gradients"),
                            number(json_object_get(stage_of(plan, stage), "memory"), "gradients"));
        json_decref(row);
    }
    json_decref(plan);
    snprintf(arguments, sizeof arguments, "--plan --stage 0 %s", setting);
    ck_assert_int_eq(run(&output, 1, arguments), 2);
    ck_assert_msg(strstr(output.err, "take stage 1, 2 or 3"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* ---- settings that are auto ---- */

#define AUTO "--set train.micro_batch=auto --set model.recompute=auto --set zero.stage=auto --set train.global_batch=24"

/* Returns what follows `word` until the end of its line; the caller frees it. */
static char *line_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    ck_assert_msg(at != NULL, "no '%s' in\n%s", word, text);
    return strndup(at + strlen(word), strcspn(at + strlen(word), "\n"));
}

/* Within a limit, --plan chooses what fit chooses and what a run then takes, says so in both forms, and its column of
 * the chosen stage is what that takes. */
START_TEST(auto_is_chosen_as_by_a_run)
{
    static const char *const limits[] = {"0.012", "0.006", "0.0045"};
    static const char *const same[] = {"stage",       "recompute", "recompute_none", "recompute_light",
                                       "micro_batch", "bytes",     "budget_bytes"};
    const int n_ranks = _i / 3 + 1;
    char arguments[300];
    support_output_t planned, run_output;
    if (support_leaves_out(n_ranks))
        return;
    snprintf(arguments, sizeof arguments, "--plan --json --set device.memory=%s " AUTO, limits[_i % 3]);
    json_t *plan = plan_json(n_ranks, arguments);
    const json_t *chosen = json_object_get(plan, "chosen");
    snprintf(arguments, sizeof arguments, "fit --json --set device.memory=%s --set train.global_batch=24",
             limits[_i % 3]);
    json_t *fit = plan_json(n_ranks, arguments);
    json_object_set(json_object_get(fit, "chosen"), "budget_bytes", json_object_get(fit, "budget_bytes"));
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        ck_assert_msg(
            json_object_get(chosen, same[i]) &&
                json_equal(json_object_get(chosen, same[i]), json_object_get(json_object_get(fit, "chosen"), same[i])),
            "%s differs", same[i]);
    int stage = (int)number(chosen, "stage");
    ck_assert_double_eq(number(plan, "stage"), stage);
    ck_assert_double_eq(number(stage_of(plan, stage), "total"), number(chosen, "bytes"));
    ck_assert_double_eq(number(stage_of(plan, stage), "over"), 0.0);
    json_decref(fit);
    json_decref(plan);
    snprintf(arguments, sizeof arguments, "--plan --set device.memory=%s " AUTO, limits[_i % 3]);
    ck_assert_int_eq(run(&planned, n_ranks, arguments), 0);
    ck_assert_int_eq(run(&run_output, n_ranks, arguments + strlen("--plan ")), 0);
    char *said = line_after(planned.out, "\nauto: "), *taken = line_after(run_output.err, "zerotrain: auto: ");
    ck_assert_str_eq(said, taken);
    free(said);
    free(taken);
    support_output_free(&planned);
    support_output_free(&run_output);
}
END_TEST

/* Offload does nothing on the CPU, beside settings that are auto, too. */
START_TEST(offload_is_planned_beside_settings_that_are_auto)
{
    static const char *const open[] = {"model.recompute=auto", "train.micro_batch=auto", "train.sequence_ranks=auto"};
    char arguments[200];
    snprintf(arguments, sizeof arguments, "--plan --json --set zero.offload=all --set %s", open[_i]);
    json_decref(plan_json(1, arguments));
}
END_TEST

START_TEST(what_no_choice_fits_is_refused)
{
    support_output_t output;
    ck_assert_int_eq(run(&output, 1, "--plan --set device.memory=0.001 " AUTO), 1);
    ck_assert_msg(strstr(output.err, "the plan needs") && strstr(output.err, "zerotrain:   activations"), "%s",
                  output.err);
    ck_assert_str_eq(output.out, "");
    support_output_free(&output);
}
END_TEST

/* For GPUs, which --plan never opens, a choice needs to be told of their memory. */
START_TEST(a_gpu_that_is_not_described_is_asked_for)
{
    support_output_t output;
    ck_assert_int_eq(run(&output, 1, "--plan --set device.type=cuda " AUTO), 2);
    ck_assert_msg(strstr(output.err, "--gpu-memory SIZE") && strstr(output.err, "[device] memory") &&
                      support_count(output.err, "\n") == 1,
                  "%s", output.err);
    support_output_free(&output);
    if (!zero_model_kernels(ZERO_DEVICE_CUDA))
        return; /* a GPU's workspace is not known to this build */
    json_t *plan = plan_json(1, "--plan --json --set device.type=cuda --gpu-memory 4GiB --set zero.keep=auto " AUTO);
    ck_assert_double_gt(number(json_object_get(plan, "chosen"), "bytes"), 0.0);
    json_decref(plan);
    plan = plan_json(1, "--plan --json --set device.type=cuda --set zero.stage=auto");
    ck_assert(json_is_null(json_object_get(plan, "chosen")));
    ck_assert(json_is_null(json_object_get(plan, "stage")));
    json_decref(plan);
    ck_assert_int_eq(run(&output, 1, "--plan --set device.type=cuda --set zero.stage=auto"), 0);
    ck_assert_msg(strstr(output.out, "\nauto: what is chosen depends on the memory of a GPU: "), "%s", output.out);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("plan");
    TCase *c = tcase_create("forms");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, table_people_and_json_say_the_same, 0, 2);
    tcase_add_test(c, what_the_plan_says_fits_runs);
    tcase_add_test(c, checkpoints_take_the_disk_that_is_planned);
    tcase_add_test(c, the_best_checkpoint_is_planned_on_the_disk);
    tcase_add_loop_test(c, settings_that_stage_0_lacks_are_planned_for_the_others, 0, 2);
    suite_add_tcase(s, c);
    c = tcase_create("auto");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_loop_test(c, auto_is_chosen_as_by_a_run, 0, 6);
    tcase_add_loop_test(c, offload_is_planned_beside_settings_that_are_auto, 0, 3);
    tcase_add_test(c, what_no_choice_fits_is_refused);
    tcase_add_test(c, a_gpu_that_is_not_described_is_asked_for);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
