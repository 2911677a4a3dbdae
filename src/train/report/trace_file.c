/* trace_file.c - see trace_file.h. Printed here and not by jansson, which would hold the whole file in memory. */
#include "train/report/trace_file.h"

#include <inttypes.h>
#include <string.h>

#define TRACE_BEGINS "{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": ["

/* Also recognizes a trace that a full disk cut short. */
static bool begins_as_trace(const char *text, size_t n_bytes)
{
    const size_t n_begins = strlen(TRACE_BEGINS);
    return memcmp(text, TRACE_BEGINS, n_bytes < n_begins ? n_bytes : n_begins) == 0;
}

const output_kind_t trace_file_kind = {"[log] trace", "a trace", begins_as_trace};

static const char *row_name(int row)
{
    switch (row) {
    case TRACE_HOST:
        return "host";
    case TRACE_DATA:
        return "data";
    default:
        return zero_work_name((zero_work_t)row);
    }
}

/* Returns the row's thread number. Some viewers take thread 0 for the idle thread. */
static int thread_of(int row)
{
    return row + 1;
}

/* Writes the inside of a JSON string. */
static void write_text(FILE *file, const char *text)
{
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c < 0x20)
            fprintf(file, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            fprintf(file, "\\%c", c);
        else
            putc(c, file);
    }
}

/* Whatever follows begins with a comma. */
void trace_file_begin(FILE *file)
{
    fprintf(file, TRACE_BEGINS
            "\n"
            "{\"name\": \"process_labels\", \"ph\": \"M\", \"pid\": 0, \"args\": {\"labels\": \"zerotrain\"}}");
}

void trace_file_name_rank(FILE *file, int rank)
{
    static const char format[] = ",\n{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {";
    fprintf(file, format, "process_name", rank, 0);
    fprintf(file, "\"name\": \"rank %d\"}}", rank);
    fprintf(file, format, "process_sort_index", rank, 0);
    fprintf(file, "\"sort_index\": %d}}", rank);
    for (int row = 0; row < TRACE_N_ROWS; row++) {
        fprintf(file, format, "thread_name", rank, thread_of(row));
        fprintf(file, "\"name\": \"%s\"}}", row_name(row));
        fprintf(file, format, "thread_sort_index", rank, thread_of(row));
        fprintf(file, "\"sort_index\": %d}}", row);
    }
}

static void write_name(FILE *file, const char *unit, const trace_span_t *span)
{
    const bool is_wait = span->row == ZERO_WORK_WAIT;
    const char *before = is_wait ? zero_wait_name((zero_wait_t)span->wait) : unit ? "" : row_name(span->row);
    fputs(before, file);
    if (unit && is_wait)
        putc(' ', file);
    if (unit)
        write_text(file, unit);
    if (unit && span->row == ZERO_WORK_COMPUTE)
        fprintf(file, " %s", zero_phase_name((zero_phase_t)span->phase));
}

/* Writes "0-3", or "1-7 by 2". */
static void write_ranks(FILE *file, const trace_span_t *span)
{
    const int stride = span->n_ranks > 1 ? span->rank_stride : 1;
    fprintf(file, ", \"ranks\": \"%d-%d", span->first_rank, span->first_rank + (span->n_ranks - 1) * stride);
    if (stride > 1)
        fprintf(file, " by %d", stride);
    fputc('"', file);
}

/* Times have three decimals, since clocks count nanoseconds. */
void trace_file_add(FILE *file, int rank, const char *unit, const trace_span_t *span)
{
    fputs(",\n{\"name\": \"", file);
    write_name(file, unit, span);
    fprintf(file,
            "\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": %d, \"tid\": %d, "
            "\"args\": {\"step\": %" PRIu64,
            row_name(span->row), span->begin_ms * 1e3, (span->end_ms - span->begin_ms) * 1e3, rank,
            thread_of(span->row), span->step);
    if (span->row < ZERO_N_WORKS)
        fprintf(file, ", \"phase\": \"%s\"", zero_phase_name((zero_phase_t)span->phase));
    if (span->row == ZERO_WORK_WAIT)
        fprintf(file, ", \"waits_for\": \"%s\"", zero_wait_name((zero_wait_t)span->wait));
    if (span->n_ranks > 0)
        write_ranks(file, span);
    fputs("}}", file);
}

void trace_file_end(FILE *file, int n_ranks, uint64_t first_step)
{
    fprintf(file, "\n],\n\"otherData\": {\"program\": \"zerotrain %s\", \"ranks\": %d, \"first_step\": %" PRIu64 "}}\n",
            zero_version(), n_ranks, first_step);
}
