/* test_fit_program.c - zerotrain fit and the settings that are auto, as a user meets them. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "zero.h"

#define RUN_LIMIT_S 60.0

static char scratch[400];

#define CONFIG                                                                                                         \
    "[model]\nlayers = 4\ndim = 128\nheads = 4\nseq_len = 128\n[data]\ntrain = text.txt\n"                             \
    "[train]\nsteps = 2\nglobal_batch = 16\nprecision = fp32\n[log]\nmetrics = m.jsonl\n[device]\ntype = cpu\n"

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

static int run(support_output_t *output, const char *arguments)
{
    return support_run(output, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec %s/zerotrain %s cfg.ini", scratch,
                       support_build(), arguments);
}

static json_t *fit_json(const char *arguments)
{
    support_output_t output;
    json_error_t error;
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
    json_t *found = json_loads(output.out, 0, &error);
    ck_assert_msg(found != NULL, "%s: %s\n%s", arguments, error.text, output.out);
    support_output_free(&output);
    return found;
}

static long long chosen(const json_t *found, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(found, "chosen"), key));
}

/* Expects a run with these arguments to log the line, and to hold the bytes of the choice that fit found. */
static void expect_run_as_planned(const char *arguments, const char *line, const json_t *found)
{
    support_output_t output;
    char path[512];
    json_error_t error;
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    ck_assert_msg(strstr(output.err, line), "no '%s' in\n%s", line, output.err);
    support_output_free(&output);
    snprintf(path, sizeof path, "%s/m.jsonl", scratch);
    char *rows = support_read_file(path, NULL);
    json_t *row = json_loads(rows, JSON_DISABLE_EOF_CHECK, &error);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "device_bytes")), chosen(found, "bytes"));
    json_decref(row);
    free(rows);
}

/* What fit chooses within a limit is what a run with auto settings then takes, and holds to the byte. */
START_TEST(a_run_takes_what_fit_chooses)
{
    static const char *const limits[] = {"0.1", "0.06", "0.04"};
    char arguments[600], line[128];
    snprintf(arguments, sizeof arguments, "fit --json --set device.memory=%s", limits[_i]);
    json_t *found = fit_json(arguments);
    snprintf(arguments, sizeof arguments,
             "--set device.memory=%s --set train.micro_batch=auto --set zero.stage=auto --set model.recompute=auto",
             limits[_i]);
    snprintf(line, sizeof line, "auto: stage %lld, recompute %s, micro_batch %lld;", chosen(found, "stage"),
             json_string_value(json_object_get(json_object_get(found, "chosen"), "recompute")),
             chosen(found, "micro_batch"));
    expect_run_as_planned(arguments, line, found);
    json_decref(found);
}
END_TEST

/* Within a limit between none and full, blocks recompute differently, and a run holds what was planned. */
START_TEST(a_run_mixes_as_fit_does)
{
    char arguments[600], line[128];
    json_t *found = fit_json("fit --json --stage 3 --set train.micro_batch=8");
    const json_t *points = json_object_get(found, "points"),
                 *last = json_array_get(points, json_array_size(points) - 1);
    double least = (double)json_integer_value(json_object_get(json_array_get(points, 0), "bytes"));
    double limit = (least + (double)json_integer_value(json_object_get(last, "bytes"))) / 2.0 / 0x1p30;
    json_decref(found);
    snprintf(arguments, sizeof arguments, "fit --json --stage 3 --set train.micro_batch=8 --set device.memory=%.9g",
             limit);
    found = fit_json(arguments);
    ck_assert_int_gt(chosen(found, "recompute_none") + chosen(found, "recompute_light"), 0);
    snprintf(arguments, sizeof arguments,
             "--stage 3 --set train.micro_batch=8 --set model.recompute=auto --set device.memory=%.9g", limit);
    snprintf(line, sizeof line, "+%lld+%lld (full+light+none)", chosen(found, "recompute_light"),
             chosen(found, "recompute_none"));
    expect_run_as_planned(arguments, line, found);
    json_decref(found);
}
END_TEST

/* One rank and three, with other numbers of threads: each rank must take the same, although by itself it would plan
 * another workspace, and another way for its bytes. */
START_TEST(hosts_that_differ_choose_alike)
{
    static const char *const limits[] = {"0.014", "0.02"};
    support_output_t output;
    int code = support_mpirun(&output, RUN_LIMIT_S, 4,
                              "--wdir %s sh -c 'export ZERO_HOST_ID=$((" SUPPORT_RANK " > 0)); "
                              "export OMP_NUM_THREADS=$((1 + ZERO_HOST_ID)); exec %s/zerotrain --set zero.stage=auto "
                              "--set model.recompute=auto --set train.micro_batch=auto --set train.global_batch=24 "
                              "--set device.memory=%s --steps 1 cfg.ini'",
                              scratch, support_build(), limits[_i]);
    ck_assert_msg(code == 0, "exit code %d\n%s", code, output.err);
    ck_assert_msg(support_count(output.err, "auto: stage ") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(what_does_not_fit_is_refused_with_what_would)
{
    support_output_t output;
    char arguments[600];
    int code = run(&output, "--set device.memory=0.03");
    ck_assert_int_eq(code, 1);
    ck_assert(strstr(output.err, "zerotrain:   activations"));
    ck_assert(strstr(output.err, "the plan needs"));
    const char *advice = strstr(output.err, "what would fit: --set ");
    ck_assert_msg(advice != NULL, "no advice in\n%s", output.err);
    advice += strlen("what would fit: ");
    snprintf(arguments, sizeof arguments, "--set device.memory=0.03 %.*s", (int)strcspn(advice, ":"), advice);
    support_output_free(&output);
    code = run(&output, arguments); /* the advice, as it stands there */
    ck_assert_msg(code == 0, "%s: exit code %d\n%s", arguments, code, output.err);
    support_output_free(&output);
    code = run(&output, "--set device.memory=0.001 --set zero.stage=auto");
    ck_assert_int_eq(code, 1);
    ck_assert(strstr(output.err, "the plan needs"));
    support_output_free(&output);
}
END_TEST

/* Where the settings fit on no number of ranks, more ranks are advised with those that take the least memory. What is
 * said runs as it stands there. */
START_TEST(more_ranks_are_advised_with_what_they_need)
{
    static const char *const batches[] = {"--set train.micro_batch=8", /* then the file's global_batch is set, too */
                                          "--set train.micro_batch=8 --set train.global_batch=0"};
    support_output_t output;
    char options[300], arguments[400];
    int n_ranks = 0, n_read = 0;
    snprintf(options, sizeof options, "--set device.memory=0.01 %s", batches[_i]);
    int code = run(&output, options);
    ck_assert_int_eq(code, 1);
    const char *advice = strstr(output.err, "what would fit: ");
    ck_assert_msg(advice && sscanf(advice, "what would fit: %d ranks with %n", &n_ranks, &n_read) == 1 && n_read > 0,
                  "%s", output.err);
    snprintf(arguments, sizeof arguments, "%s %.*s", options, (int)strcspn(advice + n_read, ":"), advice + n_read);
    ck_assert(strstr(advice, " MiB each, predicted ") && strstr(advice, " sequences\n"));
    support_output_free(&output);
    if (support_leaves_out(n_ranks))
        return;
    code = support_mpirun(&output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s --steps 1 cfg.ini", scratch,
                          support_build(), arguments);
    ck_assert_msg(code == 0, "%d ranks, %s: exit code %d\n%s", n_ranks, arguments, code, output.err);
    support_output_free(&output);
}
END_TEST

/* A limit of the process, which the plan does not know of, stands for a process that has taken a GPU's memory. The rank
 * that fails says what it would have held, and what is free; two ranks: only rank 1 has the limit. */
#define LIMIT_KIB 1500000 /* the plan takes more */
START_TEST(memory_that_is_gone_is_explained)
{
    static const char *const lines[] = {"cannot allocate ",       "memory ran out although the plan fitted",
                                        "  activations ",         "  total ",
                                        " GiB are free now",      "who holds the rest is not known: this is not a GPU",
                                        "set [device] memory to "};
    support_output_t output;
    char program[700], first[800] = "";
#ifdef __SANITIZE_ADDRESS__
    printf("SKIP: a sanitizer needs more addresses than the limit leaves\n");
    return;
#endif
    snprintf(program, sizeof program,
             "%s/zerotrain --set train.micro_batch=64 --set train.global_batch=0 --set model.dim=512 --set "
             "model.layers=16 cfg.ini",
             support_build());
    if (_i == 1)
        snprintf(first, sizeof first, "mpirun --oversubscribe --bind-to none -n 1 %s : -n 1 ", program);
    int code = support_run(&output, RUN_LIMIT_S, "cd %s && OMP_NUM_THREADS=1 exec %sbash -c 'ulimit -v %d; exec %s'",
                           scratch, first, LIMIT_KIB, program);
    ck_assert_msg(code == 1, "exit code %d\n%s", code, output.err);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(support_count(output.err, lines[i]) == 1, "'%s' is not once in\n%s", lines[i], output.err);
    ck_assert_msg((strstr(output.err, "zerotrain: rank 1: memory ran out") != NULL) == (_i == 1), "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(fit_prints_a_table_for_people)
{
    static const char *const lines[] = {"a step: 16 sequences of 128 tokens",
                                        "\n* ",
                                        "* chosen",
                                        "\nactivations ",
                                        "\nmatrix products ",
                                        "micro_batch ",
                                        "To take it: --set zero.stage="};
    support_output_t output;
    int code = run(&output, "fit");
    ck_assert_int_eq(code, 0);
    ck_assert_str_eq(output.err, "");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        ck_assert_msg(strstr(output.out, lines[i]), "no '%s' in\n%s", lines[i], output.out);
    support_output_free(&output);
}
END_TEST

/* What it says to take can be copied behind the settings that it was given: with plenty of memory blocks recompute
 * nothing, and keep_attention is not for these. */
START_TEST(what_is_to_be_taken_is_accepted)
{
    static const char given[] = "--set model.recompute=auto --set model.keep_attention=true";
    support_output_t output;
    char arguments[600];
    snprintf(arguments, sizeof arguments, "fit %s", given);
    ck_assert_int_eq(run(&output, arguments), 0);
    const char *line = strstr(output.out, "To take it: ");
    ck_assert_msg(line && strstr(line, "recompute=none"), "%s", output.out);
    line += strlen("To take it: ");
    snprintf(arguments, sizeof arguments, "--plan %s %.*s", given, (int)strcspn(line, "\n"), line);
    support_output_free(&output);
    int code = run(&output, arguments);
    ck_assert_msg(code == 0, "%s: %d\n%s", arguments, code, output.err);
    support_output_free(&output);
}
END_TEST

/* The picture has a dot for each choice at least on the frontier, one ring, and a part for each category; it is written
 * over an older one, but over no other file. */
START_TEST(fit_draws_a_picture)
{
    support_output_t output;
    char path[512];
    snprintf(path, sizeof path, "%s/p.svg", scratch);
    for (int time = 0; time < 2; time++) {
        ck_assert_int_eq(run(&output, "fit --svg p.svg --set device.memory=0.06"), 0);
        support_output_free(&output);
        char *svg = support_read_file(path, NULL);
        ck_assert(strncmp(svg, "<svg ", 5) == 0 && support_count(svg, "</svg>\n") == 1);
        ck_assert_int_eq(support_count(svg, "id=\"chosen\""), 1);
        ck_assert_int_eq(support_count(svg, "id=\"room\""), 1);
        ck_assert_int_eq(support_count(svg, "<rect "), 1 + ZERO_MEMORY_N_CATEGORIES);
        ck_assert_int_gt(support_count(svg, "<title>"), 3);
        ck_assert(!strstr(svg, "nan") && !strstr(svg, "inf"));
        free(svg);
    }
    ck_assert_int_eq(run(&output, "fit --svg cfg.ini"), 2);
    ck_assert_msg(support_count(output.err, "\n") == 1, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    const char *arguments, *says;
} refusals[] = {
    {"--svg p.svg", "option of zerotrain fit"},
    {"--gpus 4", "option of zerotrain fit"},
    {"--json", "option of zerotrain fit, zerotrain evaluate, --plan"},
    {"--gpu H200", "option of zerotrain fit, --plan"},
    {"--plan --gpus 4", "option of zerotrain fit"},
    {"--plan --gpu H200", "this plan is for the CPU"},
    {"fit --plan", "give one of them"},
    {"fit --gpus 0", "--gpus: 0 is out of range"},
    {"fit --gpus 300", "need [zero] reduction = nccl"},
    {"fit --gpu-memory 80", "is no size"},
    {"fit --gpu-memory 80XiB", "is no size"},
    {"fit --gpu-memory 1GB", "say more than 1."},
    {"fit --host-memory 1GiB", "to limit what a run may take, set [device] memory"},
    {"--plan --host-memory 1GiB", "to limit what a run may take, set [device] memory"},
    {"fit --gpu K80", "'K80' is unknown"},
    {"fit --gpu A100 --set train.precision=bf16 --set train.fp8=linear", "an A100 has none"},
    {"--plan --set device.type=cuda --set model.recompute=auto",
     "say what it has with --gpu-memory SIZE or --gpu NAME"},
    {"--set train.micro_batch=auto --set train.global_batch=0", "set global_batch"},
};

START_TEST(mistakes_are_refused_with_a_line)
{
    support_output_t output;
    int code = run(&output, refusals[_i].arguments);
    ck_assert_msg(code == 2, "%s: exit code %d\n%s", refusals[_i].arguments, code, output.err);
    ck_assert_msg(strstr(output.err, refusals[_i].says) && support_count(output.err, "\n") == 1, "%s: %s",
                  refusals[_i].arguments, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fit_program");
    TCase *c = tcase_create("program");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, a_run_takes_what_fit_chooses, 0, 3);
    tcase_add_test(c, a_run_mixes_as_fit_does);
    tcase_add_loop_test(c, hosts_that_differ_choose_alike, 0, 2);
    tcase_add_test(c, what_does_not_fit_is_refused_with_what_would);
    tcase_add_loop_test(c, more_ranks_are_advised_with_what_they_need, 0, 2);
    tcase_add_loop_test(c, memory_that_is_gone_is_explained, 0, 2);
    tcase_add_test(c, fit_prints_a_table_for_people);
    tcase_add_test(c, what_is_to_be_taken_is_accepted);
    tcase_add_test(c, fit_draws_a_picture);
    tcase_add_loop_test(c, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
