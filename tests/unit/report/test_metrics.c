/* test_metrics.c - the metrics file, parsed back with jansson. */
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/report/metrics.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char path[4096];

static const char *new_path(void)
{
    char *directory = support_scratch();
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    free(directory);
    return path;
}

static metrics_row_t plain_row(int64_t step)
{
    return (metrics_row_t){.step = step,
                           .time_s = 1767225600.0625, /* 2026, and exact */
                           .loss = 3.25f,
                           .grad_norm = 0.1f,
                           .lr = 3e-4,
                           .tokens = INT64_C(9007199254740993), /* not a double */
                           .step_ms = 12.5,
                           .tokens_per_s = 81920,
                           .mfu = 0.25,
                           .device_bytes = UINT64_C(80000000000),
                           .host_bytes = 4096,
                           .exposed_comm_ms = 0.75,
                           .exposed_host_ms = 0.5,
                           .pcie_bytes = UINT64_C(9007199254740993)};
}

/* Returns the i-th line of the file as an object; NULL if there is none. */
static json_t *read_row(int i)
{
    char *text = support_read_file(path, NULL), *rest = text, *line = NULL;
    for (int at = 0; at <= i; at++)
        line = strsep(&rest, "\n");
    json_t *row = line && line[0] ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    return row;
}

static void write_one(const metrics_row_t *row)
{
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
    ck_assert_int_eq(metrics_write(metrics, row), ZERO_OK);
    metrics_close(metrics);
}

START_TEST(a_row_has_every_key_of_the_contract_and_its_value)
{
    metrics_row_t written = plain_row(7);
    write_one(&written);
    json_t *row = read_row(0);
    ck_assert_ptr_nonnull(row);
    ck_assert_uint_eq(json_object_size(row), 13);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "step")), 7);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "tokens")), INT64_C(9007199254740993));
    ck_assert_int_eq(json_integer_value(json_object_get(row, "device_bytes")), INT64_C(80000000000));
    ck_assert_int_eq(json_integer_value(json_object_get(row, "host_bytes")), 4096);
    ck_assert(json_is_false(json_object_get(row, "skipped")));
    ck_assert_double_eq_tol(json_number_value(json_object_get(row, "time")), 1767225600.0625, 0.00051);
    const struct {
        const char *key;
        double want;
    } numbers[] = {{"loss", 3.25}, {"lr", 3e-4},        {"step_ms", 12.5},        {"tokens_per_s", 81920},
                   {"mfu", 0.25},  {"grad_norm", 0.1f}, {"exposed_comm_ms", 0.75}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) { /* nine digits: half a unit of the last */
        const json_t *value = json_object_get(row, numbers[i].key);
        ck_assert_msg(json_is_number(value), "%s", numbers[i].key);
        ck_assert_double_eq_tol(json_number_value(value), numbers[i].want, 5.1e-9 * numbers[i].want);
    }
    json_decref(row);
}
END_TEST

/* What a run says of itself may be longer than the part of a file by which its kind is recognized. */
START_TEST(a_run_describes_itself_in_its_first_row)
{
    const size_t lengths[] = {1, 3000, 4000, 20000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        metrics_t *metrics;
        ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
        for (int64_t step = 1; step <= 4; step++) {
            metrics_row_t written = plain_row(step);
            char *run = NULL;
            if (step % 2 == 1) /* at its start, and when it is resumed */
                ck_assert_int_gt(asprintf(&run, "{\"name\": \"%0*d\"}", (int)lengths[i], (int)step), 0);
            metrics_describe(metrics, run);
            ck_assert_int_eq(metrics_write(metrics, &written), ZERO_OK);
            if (step != 2)
                continue;
            metrics_close(metrics);
            ck_assert_int_eq(metrics_rewind(path, 2), ZERO_OK);
            ck_assert_int_eq(metrics_open(path, true, &metrics), ZERO_OK);
        }
        metrics_close(metrics);
        for (int at = 0; at < 4; at++) {
            json_t *row = read_row(at);
            const char *name = json_string_value(json_object_get(json_object_get(row, "run"), "name"));
            ck_assert_int_eq(json_integer_value(json_object_get(row, "step")), at + 1);
            ck_assert_uint_eq(json_object_size(row), at % 2 == 0 ? 14 : 13);
            ck_assert(at % 2 == 0 ? strlen(name) == lengths[i] && atoi(name) == at + 1 : !name);
            json_decref(row);
        }
    }
    metrics_describe(NULL, strdup("{}"));
}
END_TEST

START_TEST(targets_are_in_a_row_of_data_with_a_mask)
{
    metrics_row_t written = plain_row(7);
    written.has_mask = true;
    written.targets = INT64_C(9007199254740993);
    write_one(&written);
    json_t *row = read_row(0);
    ck_assert_uint_eq(json_object_size(row), 14);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "targets")), INT64_C(9007199254740993));
    json_decref(row);
}
END_TEST

START_TEST(scales_of_fp8_are_in_a_row_that_has_them)
{
    metrics_row_t written = plain_row(7);
    written.has_fp8_scales = true;
    written.fp8_min_scale = 0.25f;
    written.fp8_max_scale = 0x1p40f;
    write_one(&written);
    json_t *row = read_row(0);
    ck_assert_uint_eq(json_object_size(row), 15);
    ck_assert_double_eq(json_number_value(json_object_get(row, "fp8_min_scale")), 0.25);
    ck_assert_double_eq_tol(json_number_value(json_object_get(row, "fp8_max_scale")), 0x1p40, 5.1e-9 * 0x1p40);
    json_decref(row);
}
END_TEST

START_TEST(loss_text_gives_back_the_same_bits)
{
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
    enum { N = 2000 };
    static float losses[N], norms[N];
    uint64_t state = 5;
    for (int i = 0; i < N; i++) {
        do {
            uint32_t bits[2] = {(uint32_t)support_random(&state), (uint32_t)support_random(&state)};
            memcpy(&losses[i], &bits[0], 4);
            memcpy(&norms[i], &bits[1], 4);
        } while (!isfinite(losses[i]) || !isfinite(norms[i]));
        metrics_row_t row = plain_row(i + 1);
        row.loss = losses[i];
        row.grad_norm = norms[i];
        ck_assert_int_eq(metrics_write(metrics, &row), ZERO_OK);
    }
    metrics_close(metrics);
    char *text = support_read_file(path, NULL), *rest = text;
    for (int i = 0; i < N; i++) {
        const char *line = strsep(&rest, "\n");
        float loss = strtof(strstr(line, "\"loss\": ") + 8, NULL);
        float norm = strtof(strstr(line, "\"grad_norm\": ") + 13, NULL);
        ck_assert_mem_eq(&loss, &losses[i], 4);
        ck_assert_mem_eq(&norm, &norms[i], 4);
    }
    free(text);
}
END_TEST

START_TEST(values_that_are_not_finite_or_unknown_are_null)
{
    metrics_row_t written = plain_row(1);
    written.loss = NAN;
    written.grad_norm = INFINITY;
    written.mfu = -1;
    written.skipped = true;
    written.has_val_loss = true;
    written.val_loss = -NAN;
    written.n_val_sets = 2;
    written.val_sets = (const val_loss_t[]){{"code", NAN}, {"prose", 1.25f}};
    write_one(&written);
    json_t *row = read_row(0);
    ck_assert_ptr_nonnull(row);
    ck_assert_uint_eq(json_object_size(row), 16);
    ck_assert_double_eq_tol(json_number_value(json_object_get(row, "val_loss.prose")), 1.25, 1e-12);
    const char *const nulls[] = {"loss", "grad_norm", "mfu", "val_loss", "val_loss.code"};
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        ck_assert_msg(json_is_null(json_object_get(row, nulls[i])), "%s", nulls[i]);
    ck_assert(json_is_true(json_object_get(row, "skipped")));
    json_decref(row);
}
END_TEST

START_TEST(each_row_is_in_the_file_when_write_returns)
{
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
    for (int i = 0; i < 3; i++) {
        metrics_row_t row = plain_row(i + 1);
        ck_assert_int_eq(metrics_write(metrics, &row), ZERO_OK);
        json_t *read = read_row(i);
        ck_assert_int_eq(json_integer_value(json_object_get(read, "step")), i + 1);
        json_decref(read);
    }
    metrics_close(metrics);
}
END_TEST

START_TEST(rewinding_leaves_the_rows_up_to_a_step)
{
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
    for (int step = 1; step <= 5; step++) {
        metrics_row_t row = plain_row(step);
        ck_assert_int_eq(metrics_write(metrics, &row), ZERO_OK);
    }
    metrics_close(metrics);
    FILE *file = fopen(path, "a");
    fputs("{\"step\": 4, \"lo", file); /* its run was killed */
    fclose(file);
    for (int step = 9; step >= 0; step -= 3) { /* 9, 6: the whole rows; 3; 0: none */
        capture_begin();
        const zero_status_t status = metrics_rewind(path, step);
        const bool lacks_rows = strstr(capture_end(), "has no row after step 5") != NULL;
        ck_assert_int_eq(status, ZERO_OK);
        ck_assert_int_eq(lacks_rows, step > 5);
        char *text = support_read_file(path, NULL);
        size_t n_rows = support_count(text, "\n");
        ck_assert_uint_eq(n_rows, step > 5 ? 5 : (size_t)step);
        ck_assert(n_rows == 0 ? text[0] == 0 : text[strlen(text) - 1] == '\n');
        free(text);
    }
    ck_assert_int_eq(metrics_rewind("/nonexistent/m.jsonl", 3), ZERO_OK); /* a new file, which metrics_open makes */
    ck_assert_int_eq(metrics_rewind("/dev/full", 3), ZERO_OK);
    ck_assert_int_eq(metrics_rewind("", 3), ZERO_OK);
}
END_TEST

/* A whole row of ours, or the beginning of one; nothing else is cut or written over. */
START_TEST(only_files_that_begin_as_metrics_are_replaced)
{
    static char padded[3 * 4096], described[3 * 4096], others[3 * 4096];
    static const char ours[] = "{\"step\": 1, \"loss\": 2, \"run\": {\"a\": \"",
                      theirs[] = "{\"step\": 1, \"name\": 2, \"run\": {\"a\": \"";
    memset(described, 'x', sizeof described - 1);
    memcpy(described, ours, sizeof ours - 1);
    memset(others, 'x', sizeof others - 1);
    memcpy(others, theirs, sizeof theirs - 1);
    memset(padded, ' ', sizeof padded - 1);
    memcpy(padded, "{\"step\": 1, \"loss\": 2", 21);
    const struct {
        const char *text;
        bool is_ours;
    } cases[] = {
        {"", true},
        {"{\"step\": 1, \"loss\": 2.5, \"lr\": 1}\n", true},
        {"{\"step\": 12, \"loss\": null}\nwhatever", true},
        {"{\"step\": 1, \"lo", true}, /* its run was killed */
        {"{\"st", true},
        {"my notes\n", false},
        {"\n", false},
        {"{}\n", false},
        {"{\"step\": \"one\", \"loss\": 1}\n", false},
        {"{\"step\": -1, \"loss\": 1}\n", false},
        {"{\"step\": 1}\n", false},              /* another program's */
        {"{\"loss\": 1, \"step\": 1}\n", false}, /* likewise */
        {"{\"step\": 1, \"loss\": 2} and more\n", false},
        {"{\"step\": 1, \"loss\": 2\n", false},
        {"[model]\nlayers = 2\n", false},
        {padded, false},   /* no row is that long */
        {described, true}, /* unless a run describes itself there */
        {others, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        metrics_t *metrics = NULL;
        new_path();
        support_write_file(path, cases[i].text, strlen(cases[i].text));
        capture_begin();
        zero_status_t checked = metrics_check(path), rewound = metrics_rewind(path, 1000),
                      opened = metrics_open(path, true, &metrics);
        const char *said = capture_end();
        zero_status_t expected = cases[i].is_ours ? ZERO_OK : ZERO_ERROR_USAGE;
        ck_assert_msg(checked == expected && rewound == expected && opened == expected, "%s: %d %d %d", cases[i].text,
                      checked, rewound, opened);
        ck_assert_uint_eq(support_count(said, "does not begin like a file of metrics"), cases[i].is_ours ? 0 : 3);
        metrics_close(metrics);
        if (cases[i].is_ours)
            continue;
        capture_begin();
        ck_assert_int_eq(metrics_open(path, false, &metrics), ZERO_ERROR_USAGE);
        capture_end();
        char *text = support_read_file(path, NULL);
        ck_assert_str_eq(text, cases[i].text);
        free(text);
    }
}
END_TEST

START_TEST(append_keeps_old_rows_and_a_new_run_does_not)
{
    metrics_row_t first = plain_row(1), second = plain_row(2), third = plain_row(3);
    write_one(&first);
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open(path, true, &metrics), ZERO_OK);
    ck_assert_int_eq(metrics_write(metrics, &second), ZERO_OK);
    metrics_close(metrics);
    json_t *row = read_row(1);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "step")), 2);
    json_decref(row);
    ck_assert_int_eq(metrics_open(path, false, &metrics), ZERO_OK);
    ck_assert_int_eq(metrics_write(metrics, &third), ZERO_OK);
    metrics_close(metrics);
    row = read_row(0);
    ck_assert_int_eq(json_integer_value(json_object_get(row, "step")), 3);
    json_decref(row);
    ck_assert_ptr_null(read_row(1));
}
END_TEST

START_TEST(a_file_that_another_run_writes_is_refused)
{
    metrics_t *first, *second;
    ck_assert_int_eq(metrics_open(new_path(), false, &first), ZERO_OK);
    const metrics_row_t row = plain_row(1);
    ck_assert_int_eq(metrics_write(first, &row), ZERO_OK);
    capture_begin();
    ck_assert_int_eq(metrics_check(path), ZERO_ERROR_IO);
    ck_assert_int_eq(metrics_rewind(path, 0), ZERO_ERROR_IO);
    ck_assert_int_eq(metrics_open(path, false, &second), ZERO_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(capture_end(), "another run is writing it"));
    metrics_close(first);
    json_t *kept = read_row(0);
    ck_assert_ptr_nonnull(kept);
    json_decref(kept);
    ck_assert_int_eq(metrics_open(path, true, &second), ZERO_OK); /* the first run has ended */
    metrics_close(second);
}
END_TEST

START_TEST(no_path_means_no_metrics)
{
    metrics_row_t row = plain_row(1);
    metrics_t *metrics = (metrics_t *)&row;
    ck_assert_int_eq(metrics_open("", false, &metrics), ZERO_OK);
    ck_assert_ptr_null(metrics);
    ck_assert_int_eq(metrics_write(metrics, &row), ZERO_OK);
    metrics_close(metrics);
}
END_TEST

START_TEST(a_path_that_cannot_be_written_is_named)
{
    metrics_t *metrics = NULL;
    capture_begin();
    zero_status_t status = metrics_open("/nonexistent/m.jsonl", false, &metrics);
    expect_line(capture_end(), (const char *[]){"/nonexistent/m.jsonl", "No such file", "metrics", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    ck_assert_ptr_null(metrics);
}
END_TEST

START_TEST(a_full_disk_is_an_error_of_the_row_that_meets_it)
{
    metrics_t *metrics;
    ck_assert_int_eq(metrics_open("/dev/full", false, &metrics), ZERO_OK);
    metrics_row_t row = plain_row(1);
    capture_begin();
    zero_status_t status = metrics_write(metrics, &row);
    expect_line(capture_end(), (const char *[]){"/dev/full", "No space left", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_IO);
    metrics_close(metrics);
}
END_TEST

/* The disk takes a part of row 2 and nothing of row 3, and then has room again. A limit on file sizes replaces it. */
START_TEST(a_disk_that_was_full_for_a_while_leaves_no_row_lost_or_torn)
{
    metrics_t *metrics;
    struct rlimit before, small;
    zero_status_t status[4];
    char *contents[4];
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(metrics_open(new_path(), false, &metrics), ZERO_OK);
    capture_begin();
    for (int step = 1; step <= 4; step++) {
        metrics_row_t row = plain_row(step);
        struct stat written;
        ck_assert_int_eq(stat(path, &written), 0);
        small = (struct rlimit){.rlim_cur = (rlim_t)written.st_size + 20, .rlim_max = before.rlim_max};
        if (step == 2)
            setrlimit(RLIMIT_FSIZE, &small);
        status[step - 1] = metrics_write(metrics, &row);
        contents[step - 1] = support_read_file(path, NULL);
        if (step == 3)
            setrlimit(RLIMIT_FSIZE, &before);
    }
    expect_line(capture_end(), (const char *[]){path, "File too large", NULL}); /* one line for both */
    metrics_close(metrics);
    for (int step = 1; step <= 4; step++) {
        const bool is_full = step == 2 || step == 3;
        ck_assert_int_eq(status[step - 1], is_full ? ZERO_ERROR_IO : ZERO_OK);
        ck_assert_uint_eq(support_count(contents[step - 1], "\n"), is_full ? 1 : (size_t)step);
        ck_assert_uint_eq(support_count(contents[step - 1], "{\"step\": "), is_full ? 1 : (size_t)step);
        ck_assert_int_eq(contents[step - 1][strlen(contents[step - 1]) - 1], '\n');
        free(contents[step - 1]);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("metrics");
    TCase *c = tcase_create("file");
    tcase_add_test(c, a_row_has_every_key_of_the_contract_and_its_value);
    tcase_add_test(c, a_run_describes_itself_in_its_first_row);
    tcase_add_test(c, targets_are_in_a_row_of_data_with_a_mask);
    tcase_add_test(c, scales_of_fp8_are_in_a_row_that_has_them);
    tcase_add_test(c, loss_text_gives_back_the_same_bits);
    tcase_add_test(c, values_that_are_not_finite_or_unknown_are_null);
    tcase_add_test(c, each_row_is_in_the_file_when_write_returns);
    tcase_add_test(c, append_keeps_old_rows_and_a_new_run_does_not);
    tcase_add_test(c, rewinding_leaves_the_rows_up_to_a_step);
    tcase_add_test(c, only_files_that_begin_as_metrics_are_replaced);
    tcase_add_test(c, a_file_that_another_run_writes_is_refused);
    tcase_add_test(c, no_path_means_no_metrics);
    tcase_add_test(c, a_path_that_cannot_be_written_is_named);
    tcase_add_test(c, a_full_disk_is_an_error_of_the_row_that_meets_it);
    tcase_add_test(c, a_disk_that_was_full_for_a_while_leaves_no_row_lost_or_torn);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
