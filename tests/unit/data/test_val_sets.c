/* test_val_sets.c - named validation sets in [data] val: which files each has, what is refused, and runs: each set has
 * the loss that it has as the only one, to the bit, on any number of ranks.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/options/val_sets.h"

#define LIMIT_S 60.0

/* ---- The list ---- */

/* Lists of random names and files, with random spaces, against sets that are filled beside them. */
START_TEST(each_set_has_its_files_in_their_order)
{
    static const char *const spaces[] = {"", " ", "\t", "  "};
    uint64_t random = 3;
    for (int round = 0; round < 2000; round++) {
        enum { MOST_FILES = 40 };
        const int n_names =
            round % 3 == 0 ? 0 : 1 + (int)(support_random(&random) % 15); /* of each third, three letters */
        const int n_files = 1 + (int)(support_random(&random) % MOST_FILES);
        char val[OPTIONS_MAX_PATH] = "", names[OPTIONS_MAX_VAL_SETS][40], want[OPTIONS_MAX_VAL_SETS][2000];
        int n_sets = 0;
        size_t n = 0;
        for (int f = 0; f < n_files; f++) {
            char name[40] = "", file[40];
            int s = 0;
            if (n_names > 0)
                snprintf(name, sizeof name, "%c-%d_Z", 'a' + (int)(support_random(&random) % 3),
                         (int)(support_random(&random) % (uint64_t)n_names) / 3);
            snprintf(file, sizeof file, "%sf%d.%s", support_random(&random) % 2 ? "./x:y/" : "", f,
                     support_random(&random) % 2 ? "tokens" : "a:b");
            for (s = 0; s < n_sets && strcmp(names[s], name) != 0;)
                s++;
            if (s == n_sets) {
                strcpy(names[n_sets], name);
                want[n_sets++][0] = 0;
            }
            snprintf(want[s] + strlen(want[s]), 60, "%s%s", want[s][0] ? "," : "", file);
            n += (size_t)snprintf(val + n, sizeof val - n, "%s%s%s%s%s%s%s", f > 0 ? "," : "",
                                  n_names > 0 ? spaces[support_random(&random) % 4] : "", name, name[0] ? ":" : "",
                                  n_names > 0 ? spaces[support_random(&random) % 4] : "", file,
                                  n_names > 0 ? spaces[support_random(&random) % 4] : "");
        }
        ck_assert_int_eq(val_sets_check(val), ZERO_OK);
        ck_assert_int_eq(val_sets_count(val), n_sets);
        for (int s = 0; s < n_sets; s++) {
            val_set_t set;
            val_sets_read(val, s, &set);
            ck_assert_str_eq(set.name, names[s]);
            ck_assert_str_eq(set.paths, want[s]);
        }
    }
    ck_assert_int_eq(val_sets_count(""), 0);
}
END_TEST

static const struct {
    const char *val, *says[3];
} refused[] = {
    {"code:a, b", {"'b' has no name", "NAME:b", NULL}},
    {"a, code:b", {"'a' has no name", NULL}},
    {"code:a, ./b:c", {"'./b:c' has no name", NULL}},
    {"code:a,,prose:b", {"empty path", NULL}},
    {"code:", {"'code:' names a set, but no file", NULL}},
    {"a234567890123456789012345678901234:b", {"more than 32 letters", NULL}},
    {"a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1,k:1,l:1,m:1,n:1,o:1,p:1,q:1", {"17 sets", "16", NULL}},
    {"there:is", {"there is a file 'there:is'", "./there:is", NULL}},
};

START_TEST(what_could_be_meant_otherwise_is_refused)
{
    char *directory = support_scratch();
    ck_assert_int_eq(chdir(directory), 0);
    free(directory);
    support_write_file("there:is", "x", 1);
    capture_begin();
    zero_status_t status = val_sets_check(refused[_i].val);
    expect_line(capture_end(), refused[_i].says);
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    ck_assert_int_eq(val_sets_check("./there:is"), ZERO_OK);
    ck_assert_int_eq(val_sets_count("./there:is, other"), 1);
}
END_TEST

/* ---- Runs ---- */

static char *scratch;

static void write_text(const char *name, size_t n_bytes, int period)
{
    char path[512], *text = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = (char)('a' + (i * i / (size_t)period + i) % 26);
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, n_bytes);
    free(text);
}

static void set_up(void)
{
    static const char config[] = "[model]\nlayers = 1\ndim = 32\nheads = 2\nseq_len = 16\n"
                                 "[data]\ntrain = train.txt\n"
                                 "[train]\nsteps = 4\nmicro_batch = 2\nglobal_batch = 12\nlr = 1e-2\nprecision = fp32\n"
                                 "eval_every = 2\neval_batches = 2\n"
                                 "[checkpoint]\ndir = ck\n[log]\nmetrics = metrics.jsonl\n";
    char path[512];
    scratch = support_scratch();
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, config, sizeof config - 1);
    write_text("train.txt", 5000, 7);
    write_text("code.txt", 7 * 16 + 1 + 3, 5); /* fewer sequences than an evaluation takes */
    write_text("prose1.txt", 31 * 16 + 1, 11); /* with the next, more */
    write_text("prose2.txt", 13 * 16 + 1 + 1, 3);
}

static json_t *rows_of(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    char *text = support_read_file(path, NULL), *rest = text;
    json_t *rows = json_array();
    for (char *line; (line = strsep(&rest, "\n")) && line[0];)
        json_array_append_new(rows, json_loads(line, 0, NULL));
    free(text);
    return rows;
}

/* Trains with these validation sets. Returns the rows of metrics; *said: its lines, NULL: not asked for. */
static json_t *train(int n_ranks, const char *val, char **said)
{
    support_output_t output;
    int code = support_mpirun(&output, LIMIT_S, n_ranks,
                              "--wdir %s %s/zerotrain --overwrite --stage %d --set 'data.val=%s' cfg.ini", scratch,
                              support_build(), n_ranks == 1 ? 0 : 3, val);
    ck_assert_msg(code == 0, "%s", output.err);
    if (said)
        *said = strdup(output.err);
    support_output_free(&output);
    return rows_of("metrics.jsonl");
}

static double value(const json_t *rows, size_t step, const char *key)
{
    const json_t *number = json_object_get(json_array_get(rows, step - 1), key);
    ck_assert_msg(json_is_number(number), "step %zu has no %s", step, key);
    return json_number_value(number);
}

#define NAMED "code:code.txt, prose:prose1.txt, prose:prose2.txt"
#define ALL "code.txt, prose1.txt, prose2.txt"

/* Alone, a set has the same sequences: all of code's 7, and 24 of prose's 44, the same sample. Losses are printed with
 * nine digits, which are equal if and only if their bits are. */
START_TEST(a_set_has_the_loss_that_it_has_alone)
{
    json_t *code = train(1, "code.txt", NULL), *prose = train(1, "prose1.txt, prose2.txt", NULL);
    const int ranks[] = {1, 2, 3};
    for (int i = 0; i < 3; i++) {
        if (support_leaves_out(ranks[i]))
            continue;
        char *said;
        json_t *rows = train(ranks[i], NAMED, &said);
        for (size_t step = 2; step <= 4; step += 2) {
            double want[] = {value(code, step, "val_loss"), value(prose, step, "val_loss")};
            double mean = (7 * want[0] + 24 * want[1]) / 31;
            ck_assert(value(rows, step, "val_loss.code") == want[0]);
            ck_assert(value(rows, step, "val_loss.prose") == want[1]);
            ck_assert_double_lt(support_relative_error(value(rows, step, "val_loss"), mean), 1e-6);
        }
        ck_assert_ptr_null(json_object_get(json_array_get(rows, 0), "val_loss.code"));
        ck_assert_uint_eq(json_object_size(json_array_get(rows, 3)), 16);
        char line[200];
        snprintf(line, sizeof line, "step 4/4  validation loss %.4f nats per byte: code %.4f, prose %.4f",
                 value(rows, 4, "val_loss"), value(rows, 4, "val_loss.code"), value(rows, 4, "val_loss.prose"));
        ck_assert_msg(strstr(said, line), "%s\n%s", line, said);
        ck_assert_msg(strstr(said, "[data] val, code: the last 3 of 116 bytes fill no sequence"), "%s", said);
        ck_assert_msg(strstr(said, "[data] val, prose: the last 1 of 707 bytes, at the ends of files, fill"), "%s",
                      said);
        ck_assert_msg(strstr(said, "[data] val, prose: an evaluation takes 24 of 44 sequences"), "%s", said);
        free(said);
        json_decref(rows);
    }
    json_decref(code);
    json_decref(prose);
}
END_TEST

static json_t *evaluate(int n_ranks, const char *val)
{
    support_output_t output;
    int code =
        support_mpirun(&output, LIMIT_S, n_ranks, "--wdir %s %s/zerotrain evaluate --json --set 'data.val=%s' cfg.ini",
                       scratch, support_build(), val);
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_msg(got != NULL, "%s", output.out);
    support_output_free(&output);
    return got;
}

/* All but the path of the data. */
static void expect_equal_numbers(const json_t *got, const json_t *want)
{
    static const char *const keys[] = {"sequences", "tokens",         "left_out",  "loss",
                                       "bytes",     "bits_per_token", "perplexity"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        ck_assert_msg(json_equal(json_object_get(got, keys[i]), json_object_get(want, keys[i])), "%s", keys[i]);
}

START_TEST(evaluate_has_the_numbers_of_each_set_and_of_all)
{
    support_output_t output;
    json_decref(train(1, NAMED, NULL));
    json_t *got = evaluate(1, NAMED), *code = evaluate(1, "code.txt"), *prose = evaluate(1, "prose1.txt, prose2.txt");
    json_t *all = evaluate(1, ALL), *sets = json_object_get(got, "sets");
    ck_assert_uint_eq(json_object_size(sets), 2);
    expect_equal_numbers(json_object_get(sets, "code"), code);
    expect_equal_numbers(json_object_get(sets, "prose"), prose);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "sequences")), 51);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "left_out")), 4);
    ck_assert_double_lt(support_relative_error(json_number_value(json_object_get(got, "loss")),
                                               json_number_value(json_object_get(all, "loss"))),
                        1e-7);
    ck_assert_ptr_null(json_object_get(all, "sets"));
    if (!support_leaves_out(3)) {
        json_t *other = evaluate(3, NAMED);
        ck_assert(json_equal(got, other));
        json_decref(other);
    }
    json_decref(got), json_decref(code), json_decref(prose), json_decref(all);
    ck_assert_int_eq(support_run(&output, LIMIT_S, "cd %s && %s/zerotrain evaluate --set 'data.val=" NAMED "' cfg.ini",
                                 scratch, support_build()),
                     0);
    ck_assert_msg(strstr(output.out, "data         code, code.txt: 7 sequences of 16 bytes\n"), "%s", output.out);
    ck_assert_int_eq(support_count(output.out, "perplexity "), 3);
    support_output_free(&output);
}
END_TEST

/* It may be one of several files that the run would overwrite. */
START_TEST(a_named_file_is_not_overwritten_by_metrics)
{
    support_output_t output;
    int code =
        support_run(&output, LIMIT_S, "cd %s && %s/zerotrain --set 'data.val=code:code.txt, m:metrics.jsonl' cfg.ini",
                    scratch, support_build());
    ck_assert_int_eq(code, 2);
    ck_assert_msg(strstr(output.err, "metrics.jsonl"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("validation sets");
    TCase *c = tcase_create("list");
    tcase_add_test(c, each_set_has_its_files_in_their_order);
    tcase_add_loop_test(c, what_could_be_meant_otherwise_is_refused, 0, sizeof refused / sizeof refused[0]);
    suite_add_tcase(s, c);
    TCase *runs = tcase_create("runs");
    tcase_set_timeout(runs, 5 * LIMIT_S);
    tcase_add_checked_fixture(runs, set_up, NULL);
    tcase_add_test(runs, a_set_has_the_loss_that_it_has_alone);
    tcase_add_test(runs, evaluate_has_the_numbers_of_each_set_and_of_all);
    tcase_add_test(runs, a_named_file_is_not_overwritten_by_metrics);
    suite_add_tcase(s, runs);
    return s;
}

int main(void)
{
    return support_main(suite());
}
