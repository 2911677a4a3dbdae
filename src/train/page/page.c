/* page.c - see page.h. Writes what was read of the runs into the page as JSON; the page draws itself. */
#include "train/page/page.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/page/page_run.h"
#include "train/report/output_file.h"
#include "train/report/report.h"

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
    const size_t n_head = (size_t)(strstr(page_head, "</title>") - page_head);
    return memcmp(text, page_head, n_bytes < n_head ? n_bytes : n_head) == 0;
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
        fputs(page_head, file);
        put_json(text, file);
        fputs(page_charts, file);
        fputs(page_sections, file);
    }
    free(text);
    bool failed = file && ferror(file) != 0;
    failed = (file && fclose(file) != 0) || failed;
    return failed ? report_error(ZERO_ERROR_IO, "report: writing '%s' failed: %s", path, strerror(errno)) : status;
}

zero_status_t page_write(const options_t *options)
{
    json_t *runs = json_array();
    zero_status_t status = runs ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "report: no memory");
    for (int i = 0; i < options->report.n_runs && status == ZERO_OK; i++)
        status = page_read_run(options->report.runs[i], runs);
    if (status == ZERO_OK)
        status = write_file(options->report.output, runs);
    json_decref(runs);
    if (status == ZERO_OK)
        report("%d run%s in %s", options->report.n_runs, options->report.n_runs == 1 ? "" : "s",
               options->report.output);
    return status;
}
