/* test_page.c - zerotrain report: the rows of every run are in the page as they were, with the configuration of those
 * that have a checkpoint or say it in their metrics, and a step of their trace; nothing is loaded from elsewhere; and
 * no other file is overwritten.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
                 step % 100   ? ""
                 : step < 250 ? ", \"val_loss\": 0.5"
                              : ", \"val_loss\": 0.5, \"val_loss.code\": 0.25");
        strcat(text, row);
    }
    write_file("m.jsonl", text);
    write_file("<!--<script>.jsonl", "{\"step\": 1, \"loss\": null}\n{\"step\": 2, \"lo");
    write_file("no.jsonl", "hello\n");
    write_file("mine.html", "<!DOCTYPE html>\nmine");
    write_file("older.html", "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                             "content=\"width=device-width, initial-scale=1\">\n<title>zerotrain report</title>\n<p>");
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
    const json_t *named = json_object_get(rows, "val_loss.code"); /* its first row is one of the last */
    ck_assert_uint_eq(json_array_size(named), 300);
    for (size_t i = 0; i < 300; i++)
        ck_assert(i + 1 == 300 ? json_number_value(json_array_get(named, i)) - 0.25 == 0.0
                               : json_is_null(json_array_get(named, i)));
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
    ck_assert_int_eq(report(&output, "--output older.html m.jsonl"), 0);
    support_output_free(&output);
}
END_TEST

#define TRACE_HEAD "{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n{\"name\": \"x\", \"ph\": \"M\"}"

/* Writes metrics of steps 1 to 9 whose step_ms are 10 but for step 6, whose are 11, and steps 1 to 4, whose are 90: the
 * run says of itself that it had n_ranks and this trace. */
static void write_described(int n_ranks)
{
    char text[4000] = "", row[600], run[400];
    for (int step = 1; step <= 9; step++) {
        snprintf(
            run, sizeof run,
            ", \"run\": {\"ranks\": %d, \"started\": %d, \"memory\": {\"parameters\": 5}, \"directory\": \"%s/sub\", "
            "\"config\": {\"train\": {\"lr\": \"0.%d\"}, \"log\": {\"trace\": \"t.json\"}}}",
            n_ranks, step, scratch, step);
        snprintf(row, sizeof row, "{\"step\": %d, \"loss\": 1, \"step_ms\": %d, \"exposed_comm_ms\": 1%s}\n", step,
                 step <= 4   ? 90
                 : step == 6 ? 11
                             : 10,
                 step == 1 || step == 5 ? run : ""); /* resumed at 5 */
        strcat(text, row);
    }
    write_file("described.jsonl", text);
}

/* Writes a trace of steps 5, 6, 7: a span of each of two ranks a step, the step of median time being the second. */
static void write_trace(int n_ranks)
{
    char text[4000] = TRACE_HEAD, line[300], path[512];
    for (int step = 5; step <= 7; step++)
        for (int rank = 0; rank < 2; rank++) {
            snprintf(
                line, sizeof line,
                ",\n{\"name\": \"</script> %d\", \"cat\": \"compute\", \"ph\": \"X\", \"ts\": %d.5, \"dur\": 1.000, "
                "\"pid\": %d, \"tid\": 1, \"args\": {\"step\": %d, \"phase\": \"forward\"}}",
                step, step, rank, step);
            strcat(text, line);
        }
    snprintf(line, sizeof line,
             "\n],\n\"otherData\": {\"program\": \"zerotrain\", \"ranks\": %d, \"first_step\": 5}}\n", n_ranks);
    strcat(text, line);
    snprintf(path, sizeof path, "%s/sub", scratch);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    write_file("sub/t.json", text);
}

/* Returns the only run of a report of described.jsonl; NULL if there is none. *runs: for json_decref. */
static json_t *report_described(json_t **runs, const char *says)
{
    support_output_t output;
    char path[512];
    int code = report(&output, "--output d.html described.jsonl");
    ck_assert_msg(code == 0 && strstr(output.err, says), "%s", output.err);
    support_output_free(&output);
    snprintf(path, sizeof path, "%s/d.html", scratch);
    char *page = support_read_file(path, NULL);
    *runs = data_of(page);
    free(page);
    return json_array_get(*runs, 0);
}

/* The trace is found from where the run was started, and its steps 6 and 7 are later than its first; the slower of two
 * counts as the median. */
START_TEST(a_run_that_describes_itself_is_shown_with_a_step_of_its_trace)
{
    json_t *runs;
    write_described(2);
    write_trace(2);
    const json_t *run = report_described(&runs, "1 run in d.html"), *timeline = json_object_get(run, "timeline");
    ck_assert_int_eq(json_integer_value(json_object_get(timeline, "step")), 6);
    const json_t *spans = json_object_get(timeline, "spans");
    ck_assert_uint_eq(json_array_size(spans), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *span = json_array_get(spans, i);
        ck_assert_str_eq(json_string_value(json_object_get(span, "name")), "</script> 6");
        ck_assert_int_eq(json_integer_value(json_object_get(span, "pid")), (json_int_t)i);
        ck_assert_double_eq_tol(json_number_value(json_object_get(span, "ts")), 6.5, 1e-9);
    }
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(run, "run"), "started")), 5); /* the last */
    ck_assert_uint_eq(json_array_size(json_object_get(run, "starts")), 2);
    const json_t *train = json_object_get(json_object_get(run, "config"), "train");
    ck_assert_str_eq(json_string_value(json_object_get(train, "lr")), "0.5");
    json_decref(runs);
}
END_TEST

START_TEST(a_trace_of_another_run_is_left_out)
{
    json_t *runs;
    write_described(3);
    write_trace(2);
    ck_assert_ptr_null(json_object_get(report_described(&runs, "is no trace of the last start"), "timeline"));
    json_decref(runs);
    write_file("sub/t.json", TRACE_HEAD); /* cut short */
    ck_assert_ptr_null(json_object_get(report_described(&runs, "is no trace of the last start"), "timeline"));
    json_decref(runs);
    write_file("sub/t.json", "my notes\n");
    ck_assert_ptr_null(json_object_get(report_described(&runs, "is no trace of the last start"), "timeline"));
    json_decref(runs);
}
END_TEST

static const struct {
    const char *arguments, *says;
    int code;
} refusals[] = {
    {"m.jsonl", "the output file is missing: give --output FILE", 2},
    {"--output r2.html", "runs are missing: zerotrain report [options] RUN...", 2},
    {"--output r2.html --set log.every=1 m.jsonl", "--set: this is an option of training, zerotrain fit", 2},
    {"--output r2.html --stage 1 m.jsonl", "--stage: this is an option of training, zerotrain fit", 2},
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
    tcase_add_test(c, a_run_that_describes_itself_is_shown_with_a_step_of_its_trace);
    tcase_add_test(c, a_trace_of_another_run_is_left_out);
    tcase_add_loop_test(c, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
