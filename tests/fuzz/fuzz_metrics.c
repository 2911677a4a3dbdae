/* fuzz_metrics.c - a metrics file that a resumed run rewinds to a step. The input is the step, as decimal digits in a
 * line, and the file. What is left is the beginning of the file, row by row: every whole row up to the step from the
 * first on, and no later one. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "train/report/metrics.h"

#define MOST_DIGITS 18
#define ROW_BEGINS "{\"step\": "

/* Whether the line is a whole row, by its JSON. */
static bool is_row(const char *line, size_t n_bytes, int64_t *step)
{
    bool is_one = false;
    json_t *row = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES, NULL);
    const json_t *value = json_object_get(row, "step");
    if (json_is_integer(value) && strncmp(line, ROW_BEGINS, strlen(ROW_BEGINS)) == 0) {
        *step = json_integer_value(value);
        is_one = true;
    }
    json_decref(row);
    return is_one;
}

/* The bytes of what must stay: rows up to the step, one after another from the first on. */
static size_t bytes_to_keep(const char *data, size_t n_bytes, int64_t step)
{
    size_t kept = 0;
    for (const char *end; (end = memchr(data + kept, '\n', n_bytes - kept)); kept = (size_t)(end - data) + 1) {
        int64_t row_step;
        if (!is_row(data + kept, (size_t)(end - data) - kept, &row_step) || row_step > step)
            break;
    }
    return kept;
}

static void check_left(const char *left, size_t n_left, int64_t step)
{
    FUZZ_REQUIRE(n_left == 0 || left[n_left - 1] == '\n', "a row is left that is not whole");
    for (const char *line = left, *end; (end = memchr(line, '\n', (size_t)(left + n_left - line))); line = end + 1) {
        int64_t row_step;
        FUZZ_REQUIRE(!is_row(line, (size_t)(end - line), &row_step) || row_step <= step,
                     "the row of step %" PRId64 " is left behind step %" PRId64, row_step, step);
    }
}

int fuzz_metrics(const uint8_t *data, size_t n_bytes)
{
    size_t n_left;
    fuzz_begin();
    const char *newline = n_bytes > 0 ? memchr(data, '\n', n_bytes < MOST_DIGITS ? n_bytes : MOST_DIGITS) : NULL;
    if (!newline)
        return 0;
    int64_t step = 0;
    for (const char *digit = (const char *)data; digit < newline; digit++)
        step = step * 10 + (unsigned char)*digit % 10;
    const char *file = newline + 1;
    size_t n_file = (size_t)((const char *)data + n_bytes - file);
    fuzz_write("metrics", file, n_file);
    zero_status_t status = metrics_rewind(fuzz_path("metrics"), step);
    char *left = fuzz_read("metrics", &n_left);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        FUZZ_REQUIRE(n_left == n_file && memcmp(left, file, n_file) == 0, "a file that was refused has changed");
    } else {
        fuzz_accepted = true;
        FUZZ_REQUIRE(n_left <= n_file && memcmp(left, file, n_left) == 0, "what is left is not how the file began");
        FUZZ_REQUIRE(n_left >= bytes_to_keep(file, n_file, step), "a row up to step %" PRId64 " is lost", step);
        check_left(left, n_left, step);
    }
    free(left);
    return 0;
}
