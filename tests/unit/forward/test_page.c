/* test_page.c - zerotrain report: the rows of every run are in the page as they were, with the configuration of those
 * that have a checkpoint; nothing is loaded from elsewhere; and no other file is overwritten.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

#define LIMIT_S 30.0

static char *scratch;

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, strlen(text));
}

/* Rows of known numbers, and a checkpoint that names them. */
static void set_up(void)
{
    char text[60000] = "", row[200];
    scratch = support_scratch();
    for (int step = 1; step <= 300; step++) {
        snprintf(row, sizeof row, "{\"step\": %d, \"loss\": %g, \"step_ms\": 12000%s}\n", step, 1.0 / step,
                 step % 100 ? "" : ", \"val_loss\": 0.5");
        strcat(text, row);
    }
    write_file("m.jsonl", text);
    write_file("<!--<script>.jsonl", "{\"step\": 1, \"loss\": null}\n{\"step\": 2, \"lo");
    write_file("no.jsonl", "hello\n");
    write_file("mine.html", "<!DOCTYPE html>\nmine");
    write_file("state.json", "{\"config\": {\"train\": {\"lr\": \"0.1\"}, \"log\": {\"metrics\": \"m.jsonl\"}}}");
}

static int report(support_output_t *output, const char *arguments)
{
    return support_run(output, LIMIT_S, "cd %s && %s/zerotrain report %s", scratch, support_build(), arguments);
}

/* The data are between the only element of their type and its end. */
static json_t *data_of(const char *page)
{
    static const char begin[] = "<script id=\"runs\" type=\"application/json\">\n", end[] = "</script>";
    const char *data = strstr(page, begin);
    ck_assert(data != NULL);
    data += sizeof begin - 1;
    json_t *runs = json_loadb(data, (size_t)(strstr(data, end) - data), 0, NULL);
    ck_assert_msg(runs != NULL, "%.200s", data);
    return runs;
}

START_TEST(a_page_has_the_rows_of_every_run)
{
    support_output_t output;
    char path[512];
    int code = report(&output, "--output r.html . '<!--<script>.jsonl'");
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    snprintf(path, sizeof path, "%s/r.html", scratch);
    char *page = support_read_file(path, NULL);
    ck_assert(!strstr(page, "src=") && !strstr(page, "@import") && !strstr(page, "<link"));
    ck_assert_uint_eq(support_count(page, "http"), 1); /* SVG's namespace, which names no place to load from */
    json_t *runs = data_of(page), *first = json_array_get(runs, 0), *rows = json_object_get(first, "rows");
    ck_assert_uint_eq(json_array_size(runs), 2);
    ck_assert_uint_eq(json_array_size(json_object_get(rows, "step")), 300);
    for (size_t i = 0; i < 300; i++) {
        double loss = json_number_value(json_array_get(json_object_get(rows, "loss"), i));
        ck_assert_double_lt(support_relative_error(loss, 1.0 / (double)(i + 1)), 1e-5); /* %g */
        const json_t *val = json_array_get(json_object_get(rows, "val_loss"), i);
        ck_assert((i + 1) % 100 ? json_is_null(val) : json_number_value(val) - 0.5 == 0.0);
    }
    ck_assert_double_lt(support_relative_error(json_number_value(json_object_get(rows, "hours")), 1.0), 1e-9);
    ck_assert_str_eq(
        json_string_value(json_object_get(json_object_get(json_object_get(first, "config"), "train"), "lr")), "0.1");
    const json_t *second = json_array_get(runs, 1); /* its last row is unfinished */
    ck_assert_uint_eq(json_array_size(json_object_get(json_object_get(second, "rows"), "step")), 1);
    ck_assert_ptr_null(json_object_get(second, "config"));
    json_decref(runs);
    free(page);
    ck_assert_int_eq(report(&output, "--output r.html m.jsonl"), 0); /* over its own */
    support_output_free(&output);
}
END_TEST

static const struct {
    const char *arguments, *says;
    int code;
} refusals[] = {
    {"m.jsonl", "where to? Give --output FILE", 2},
    {"--output r.html none.jsonl", "cannot open 'none.jsonl'", 2},
    {"--output r.html no.jsonl", "'no.jsonl': line 1 is no row of metrics", 1},
    {"--output r.html /", "is no checkpoint of zerotrain", 2},
    {"--output mine.html m.jsonl", "'mine.html'", 2},
    {"--output m.jsonl m.jsonl", "'m.jsonl'", 2},
    {"--output r.html --json m.jsonl", "--json: this is an option of", 2},
};

START_TEST(mistakes_are_refused_with_a_line)
{
    support_output_t output;
    int code = report(&output, refusals[_i].arguments);
    ck_assert_msg(code == refusals[_i].code, "%s: exit code %d\n%s", refusals[_i].arguments, code, output.err);
    ck_assert_msg(strstr(output.err, refusals[_i].says) && support_count(output.err, "\n") == 1, "%s: %s",
                  refusals[_i].arguments, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("report");
    TCase *c = tcase_create("page");
    tcase_set_timeout(c, 3 * LIMIT_S);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, a_page_has_the_rows_of_every_run);
    tcase_add_loop_test(c, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
