/* page_timeline.c - see page.h. A trace has a span in each line (trace.c) and may be large, so it is read
 * by lines, twice: for the steps that it has, then for the spans of one of them. */
#include "train/page/page.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "train/options/input_file.h"
#include "train/options/options.h"
#include "train/report/report.h"
#include "train/report/trace.h"
#include "train/report/utf8.h"

#define MOST_SPANS 20000

typedef struct steps {
    int64_t first, last; /* 0: none */
    int64_t n_ranks;
} steps_t;

/* Opens the trace: as the configuration names it, from the directory in which the run was started, else from here. */
static FILE *open_trace(const json_t *run, char path[2 * OPTIONS_MAX_PATH])
{
    const json_t *description = json_object_get(run, "run");
    const json_t *config = json_object_get(description, "config");
    const char *name = json_string_value(json_object_get(json_object_get(config, "log"), "trace"));
    const char *directory = json_string_value(json_object_get(description, "directory"));
    FILE *file = NULL;
    if (!name || !name[0])
        return NULL;
    if (name[0] != '/' && directory) {
        snprintf(path, 2 * OPTIONS_MAX_PATH, "%s/%s", directory, name);
        file = input_file_is_there(path) ? fopen(path, "re") : NULL;
    }
    if (!file) {
        snprintf(path, 2 * OPTIONS_MAX_PATH, "%s", name);
        file = input_file_is_there(path) ? fopen(path, "re") : NULL;
    }
    return file;
}

static bool begins_as_trace(FILE *file)
{
    char head[OUTPUT_FILE_HEAD];
    size_t n_bytes = fread(head, 1, sizeof head, file);
    rewind(file);
    return n_bytes > 0 && trace_file_kind.begins_so(head, n_bytes);
}

/* Returns the number behind a key in a line; -1: there is none. */
static int64_t number_in(const char *line, const char *key)
{
    int64_t value;
    const char *at = strstr(line, key);
    return at && sscanf(at + strlen(key), "%" SCNd64, &value) == 1 ? value : -1;
}

static steps_t find_steps(FILE *file)
{
    steps_t steps = {0};
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) {
        int64_t step = number_in(line, "\"args\": {\"step\": ");
        if (step > 0 && (steps.first == 0 || step < steps.first))
            steps.first = step;
        steps.last = step > steps.last ? step : steps.last;
        if (strncmp(line, "\"otherData\"", 11) == 0)
            steps.n_ranks = number_in(line, "\"ranks\": ");
    }
    free(line);
    rewind(file);
    return steps;
}

typedef struct timed_step {
    double ms;
    int64_t step;
} timed_step_t;

static int by_time(const void *a, const void *b)
{
    const timed_step_t *x = a, *y = b;
    return (x->ms > y->ms) - (x->ms < y->ms);
}

/* Returns the step of median time among those that are also in the metrics; 0: there is none. The first step of the
 * trace is left out if there are others: it is slower. */
static int64_t typical_step(const json_t *run, const steps_t *steps)
{
    const json_t *rows = json_object_get(run, "rows"), *list = json_object_get(rows, "step");
    const size_t n_rows = json_array_size(list);
    timed_step_t *timed = calloc(n_rows + 1, sizeof *timed);
    size_t n = 0;
    for (size_t i = 0; timed && i < n_rows; i++) {
        int64_t step = json_integer_value(json_array_get(list, i));
        double ms = json_number_value(json_array_get(json_object_get(rows, "step_ms"), i));
        if (step <= steps->last && (step > steps->first || (step == steps->first && step == steps->last)))
            timed[n++] = (timed_step_t){ms, step};
    }
    if (n > 0)
        qsort(timed, n, sizeof *timed, by_time);
    int64_t step = n > 0 ? timed[n / 2].step : 0;
    free(timed);
    return step;
}

static json_t *read_spans(FILE *file, int64_t step)
{
    json_t *spans = json_array();
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0 && json_array_size(spans) < MOST_SPANS) {
        if (number_in(line, "\"args\": {\"step\": ") != step)
            continue;
        json_t *span = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL); /* a comma follows it */
        if (span)
            json_array_append_new(spans, span);
    }
    free(line);
    return spans;
}

/* Returns whether the file was written by this run, as far as can be seen. */
static bool is_of_run(const json_t *run, const steps_t *steps, FILE *file)
{
    const json_t *description = json_object_get(run, "run");
    struct stat info;
    return fstat(fileno(file), &info) == 0 &&
           info.st_mtime >= json_integer_value(json_object_get(description, "started")) &&
           steps->n_ranks == json_integer_value(json_object_get(description, "ranks"));
}

void page_read_timeline(struct json_t *run)
{
    char path[2 * OPTIONS_MAX_PATH];
    FILE *file = open_trace(run, path);
    if (!file)
        return;
    steps_t steps = {0};
    int64_t step = 0;
    if (begins_as_trace(file))
        steps = find_steps(file);
    if (steps.last > 0 && is_of_run(run, &steps, file))
        step = typical_step(run, &steps);
    if (step > 0)
        json_object_set_new(run, "timeline",
                            json_pack("{s:o, s:I, s:o}", "file", utf8_json(path), "step", (json_int_t)step, "spans",
                                      read_spans(file, step)));
    else
        report("report: '%s' is no trace of the last start of '%s', so it is left out", path,
               json_string_value(json_object_get(run, "name")));
    fclose(file);
}
