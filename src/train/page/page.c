/* page.c - see page.h. Writes what was read of the runs into the page as JSON; the page draws itself. */
#include "train/page/page.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/options/input_file.h"
#include "train/options/options.h"
#include "train/report/output_file.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

/* ---- page run ---- */
/* Metrics are read row by row, so that those of a long run need little memory. */

#define MOST_ROWS 4000 /* of a run, that are drawn: more than a screen has columns */

/* What is drawn of a row. */
static const char *const KEYS[] = {"step",   "loss",         "val_loss",   "grad_norm", "lr",  "tokens_per_s",
                                   "tokens", "device_bytes", "host_bytes", "step_ms",   "mfu", "exposed_comm_ms"};
#define N_KEYS (sizeof KEYS / sizeof KEYS[0])
#define VAL_SET_KEY "val_loss." /* and the name of a set */

/* Adds a column for each named validation set that the row is the first to have. */
static void add_val_sets(json_t *columns, json_t *row)
{
    const size_t n_rows = json_array_size(json_object_get(columns, KEYS[0]));
    const char *key;
    json_t *value;
    json_object_foreach(row, key, value)
    {
        if (strncmp(key, VAL_SET_KEY, strlen(VAL_SET_KEY)) != 0 || json_object_get(columns, key))
            continue;
        json_t *column = json_array();
        for (size_t i = 0; i < n_rows; i++)
            json_array_append_new(column, json_null());
        json_object_set_new(columns, key, column);
    }
}

/* Appends a row to the columns; what the row lacks is null. */
static void take_row(json_t *columns, json_t *row)
{
    const char *key;
    json_t *column;
    add_val_sets(columns, row);
    json_object_foreach(columns, key, column)
    {
        json_t *value = json_object_get(row, key);
        json_array_append_new(column, json_is_number(value) ? json_incref(value) : json_null());
    }
}

/* Counts lines, so that rows can be left out evenly. */
static int64_t count_lines(FILE *file)
{
    int64_t n = 0;
    for (int c = getc(file); c != EOF; c = getc(file))
        n += c == '\n';
    rewind(file);
    return n;
}

/* Keeps what the run says of itself; of several times, since it was resumed, the last. */
static void take_description(json_t *run, const json_t *row)
{
    json_t *description = json_object_get(row, "run");
    if (!json_is_object(description))
        return;
    json_object_set(run, "run", description);
    if (!json_object_get(run, "starts"))
        json_object_set_new(run, "starts", json_array());
    json_array_append(json_object_get(run, "starts"), json_object_get(row, "step"));
}

static zero_status_t read_rows(FILE *file, const char *path, json_t *run, json_t *columns)
{
    char *line = NULL;
    size_t capacity = 0;
    double total_ms = 0.0;
    const int64_t every = count_lines(file) / MOST_ROWS + 1;
    zero_status_t status = ZERO_OK;
    for (int64_t n = 0; status == ZERO_OK && getline(&line, &capacity, file) > 0; n++) {
        json_t *row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_integer(json_object_get(row, "step")) && strchr(line, '\n'))
            status = report_error(ZERO_ERROR_FORMAT, "'%s': line %lld is no row of metrics", path, (long long)n + 1);
        total_ms += json_number_value(json_object_get(row, "step_ms"));
        if (row && status == ZERO_OK)
            take_description(run, row);
        if (row && status == ZERO_OK && (n % every == 0 || json_object_get(row, "val_loss")))
            take_row(columns, row);
        json_decref(row);
    }
    free(line);
    json_object_set_new(columns, "hours", json_real(total_ms / 3.6e6));
    return status;
}

static zero_status_t read_metrics(const char *path, json_t *run)
{
    json_t *columns = json_object();
    FILE *file = fopen(path, "re");
    json_object_set_new(run, "rows", columns);
    if (!file)
        return report_error(ZERO_ERROR_USAGE, "report: cannot open '%s': %s", path, strerror(errno));
    for (size_t k = 0; k < N_KEYS; k++)
        json_object_set_new(columns, KEYS[k], json_array());
    zero_status_t status = read_rows(file, path, run, columns);
    fclose(file);
    if (status == ZERO_OK && json_array_size(json_object_get(columns, "step")) == 0)
        status = report_error(ZERO_ERROR_USAGE, "report: '%s' has no rows: is it a file of metrics?", path);
    return status;
}

/* Reads state.json of a checkpoint, or of the newest in a directory. Returns NULL if there is none. */
static json_t *read_state(const char *directory)
{
    static const char *const places[] = {"", "/latest"};
    json_t *state = NULL;
    char path[OPTIONS_MAX_PATH + 32];
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !state; i++) {
        snprintf(path, sizeof path, "%s%s/state.json", directory, places[i]);
        state = input_file_is_there(path) ? json_load_file(path, 0, NULL) : NULL;
    }
    return state;
}

static zero_status_t read_directory(const char *directory, json_t *run)
{
    json_t *state = read_state(directory), *config = json_object_get(state, "config");
    const char *path = json_string_value(json_object_get(json_object_get(config, "log"), "metrics"));
    const char *metrics = path ? path : "";
    zero_status_t status = ZERO_OK;
    if (!json_is_object(config))
        status = report_error(ZERO_ERROR_USAGE,
                              "report: '%s' is no checkpoint of zerotrain and has none: name its file of metrics",
                              directory);
    else if (!metrics[0])
        status = report_error(ZERO_ERROR_USAGE, "report: the run of '%s' wrote no metrics ([log] metrics)", directory);
    if (status == ZERO_OK) {
        json_object_set(run, "config", config);
        status = read_metrics(metrics, run);
    }
    json_decref(state);
    return status;
}

zero_status_t page_read_run(const char *path, json_t *runs)
{
    struct stat info;
    json_t *run = json_object();
    json_array_append_new(runs, run);
    json_object_set_new(run, "name", utf8_json(path));
    ZERO_TRY(stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? read_directory(path, run) : read_metrics(path, run));
    json_t *config = json_object_get(json_object_get(run, "run"), "config");
    if (json_is_object(config) && !json_object_get(run, "config"))
        json_object_set(run, "config", config);
    page_read_timeline(run);
    return ZERO_OK;
}

/* ---- page ---- */

/* Writes JSON in a script element, which "</script" would end. */
static void put_json(const char *text, FILE *file)
{
    for (const char *c = text; *c; c++)
        if (*c == '<')
            fputs("\\u003c", file);
        else
            putc(*c, file);
}

/* Recognizes a report, also one of another version, by its first lines, up to its title. */
static bool begins_as_page(const char *text, size_t n_bytes)
{
    const size_t n_head = (size_t)(strstr(page_html, "</title>") - page_html);
    return memcmp(text, page_html, n_bytes < n_head ? n_bytes : n_head) == 0;
}

static const output_kind_t PAGE = {"report: --output", "a report", begins_as_page};

static zero_status_t write_file(const char *path, const json_t *runs)
{
    FILE *file = NULL;
    char *text = json_dumps(runs, JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    zero_status_t status = text ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "report: no memory for its rows");
    if (status == ZERO_OK)
        status = output_file_open(&PAGE, path, &file);
    if (status == ZERO_OK)
        status = output_file_empty(&PAGE, path, file);
    if (status == ZERO_OK) {
        static const char before_runs[] = "type=\"application/json\">\n";
        const char *rest = strstr(page_html, before_runs) + strlen(before_runs);
        fwrite(page_html, 1, (size_t)(rest - page_html), file);
        put_json(text, file);
        fputs(rest, file);
    }
    free(text);
    bool failed = file && ferror(file) != 0;
    failed = (file && fclose(file) != 0) || failed;
    return failed ? report_error(ZERO_ERROR_IO, "report: writing '%s' failed: %s", path, strerror(errno)) : status;
}

zero_status_t page_write(const report_options_t *options)
{
    json_t *runs = json_array();
    zero_status_t status = runs ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "report: no memory");
    for (int i = 0; i < options->n_runs && status == ZERO_OK; i++)
        status = page_read_run(options->runs[i], runs);
    if (status == ZERO_OK)
        status = write_file(options->output, runs);
    json_decref(runs);
    if (status == ZERO_OK)
        report("%d run%s in %s", options->n_runs, options->n_runs == 1 ? "" : "s", options->output);
    return status;
}
