/* trace.c - collects spans during a run, and writes those of all ranks at its end.
 *
 * While steps run, nothing is allocated and no rank waits for another. So the spans are in a ring of fixed size, where
 * new ones replace the oldest. A step of which any rank has lost a part is left out on all ranks.
 */
#include "train/report/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/report/process.h"
#include "train/report/report.h"

/* ---- trace file ---- */
/* Printed here and not by jansson, which would hold the whole file in memory. */

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

/* ---- trace ---- */

/* Per rank: 2 MiB of memory and about 10 MB of the file, or 500 steps of a model with 12 blocks, 130 with 48. */
#define MAX_SPANS 65536
#define CHUNK_SPANS 1024
#define N_CLOCK_ROUNDS 15

struct trace {
    char *path;
    bool has_steps;      /* a step has begun: a run that fails earlier leaves files as they are */
    zero_status_t begun; /* of begin_file, which has logged why */
    FILE *file;          /* rank 0's; other ranks open theirs only if they must write alone */
    zero_comm_t *comm;
    const zero_model_t *model;
    double origin_ms;  /* rank 0's clock when the trace was opened */
    int64_t open_step; /* whose work the host has been queueing since open_ms */
    double open_ms;
    uint64_t n_taken;    /* spans so far; the last MAX_SPANS of them are kept */
    uint64_t lost_step;  /* the last step of which a span was lost; 0: none */
    double *kept, *lost; /* [ranks] each: how many spans a rank has kept, and its lost_step */
    trace_span_t *ring;  /* [MAX_SPANS] */
};

/* ---- opening ---- */

static void destroy(trace_t *trace)
{
    if (trace->file)
        fclose(trace->file);
    free(trace->path);
    free(trace->kept);
    free(trace->lost);
    free(trace->ring);
    free(trace);
}

static zero_status_t create(const char *path, zero_comm_t *comm, const zero_model_t *model, trace_t **trace)
{
    size_t n_ranks = (size_t)zero_comm_size(comm);
    trace_t *made = calloc(1, sizeof *made);
    if (!made)
        return report_error(ZERO_ERROR_MEMORY, "[log] trace: out of memory");
    made->comm = comm;
    made->model = model;
    made->path = strdup(path);
    made->kept = calloc(n_ranks, sizeof *made->kept);
    made->lost = calloc(n_ranks, sizeof *made->lost);
    made->ring = calloc(MAX_SPANS, sizeof *made->ring);
    zero_status_t status = ZERO_OK;
    if (!made->path || !made->kept || !made->lost || !made->ring)
        status = report_error(ZERO_ERROR_MEMORY, "[log] trace: out of memory");
    if (status != ZERO_OK)
        destroy(made);
    else
        *trace = made;
    return status;
}

zero_status_t trace_open(const char *path, zero_comm_t *comm, const zero_model_t *model, trace_t **trace)
{
    trace_t *made = NULL;
    *trace = NULL;
    if (!path[0])
        return ZERO_OK;
    zero_status_t status = report_agree(comm, create(path, comm, model, &made));
    if (status == ZERO_OK) {
        made->origin_ms = clock_now_ms();
        status = zero_comm_broadcast(comm, &made->origin_ms, sizeof made->origin_ms, 0);
    }
    if (status == ZERO_OK)
        *trace = made;
    else if (made)
        destroy(made);
    return status;
}

zero_status_t trace_check(const char *path)
{
    return path[0] ? output_file_check(&trace_file_kind, path) : ZERO_OK;
}

zero_status_t trace_claim_file(trace_t *trace)
{
    zero_status_t status = ZERO_OK;
    if (!trace)
        return ZERO_OK;
    if (zero_comm_rank(trace->comm) == 0)
        status = output_file_open(&trace_file_kind, trace->path, &trace->file);
    return report_agree(trace->comm, status);
}

/* ---- collecting ---- */

static void add_span(trace_t *trace, trace_span_t span)
{
    trace_span_t *at = &trace->ring[trace->n_taken % MAX_SPANS];
    if (trace->n_taken >= MAX_SPANS && at->step > trace->lost_step)
        trace->lost_step = at->step;
    *at = span;
    trace->n_taken++;
}

static void on_device_span(void *user, const zero_trace_span_t *span)
{
    add_span(user, (trace_span_t){.row = (int16_t)span->work,
                                  .phase = (uint8_t)span->phase,
                                  .wait = (uint8_t)span->wait,
                                  .unit = span->unit,
                                  .first_rank = span->first_rank,
                                  .rank_stride = span->rank_stride,
                                  .n_ranks = span->n_ranks,
                                  .step = span->step,
                                  .begin_ms = span->begin_ms,
                                  .end_ms = span->end_ms});
}

zero_status_t trace_attach(trace_t *trace, zero_engine_t *engine)
{
    return trace ? zero_engine_trace(engine, ZERO_ALL_WORKS, on_device_span, trace) : ZERO_OK;
}

void trace_host(trace_t *trace, trace_row_t row, int64_t step, double begin_ms, double end_ms)
{
    if (trace)
        add_span(trace,
                 (trace_span_t){
                     .row = (int16_t)row, .unit = -1, .step = (uint64_t)step, .begin_ms = begin_ms, .end_ms = end_ms});
}

void trace_begin_step(trace_t *trace, int64_t step)
{
    if (!trace)
        return;
    trace->has_steps = true;
    trace->open_step = step;
    trace->open_ms = clock_now_ms();
}

void trace_end_step(trace_t *trace)
{
    if (!trace)
        return;
    trace_host(trace, TRACE_HOST, trace->open_step, trace->open_ms, clock_now_ms());
}

static uint64_t n_kept(const trace_t *trace)
{
    return trace->n_taken < MAX_SPANS ? trace->n_taken : MAX_SPANS;
}

/* ---- one clock ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures how far this rank's clock is ahead of rank 0's. On one host they are the same clock. Between hosts, ranks
 * leave a barrier at about the same time; the median of some rounds is accurate to about the time of a message. */
static zero_status_t clock_lead_ms(zero_comm_t *comm, double *lead_ms)
{
    double leads[N_CLOCK_ROUNDS];
    *lead_ms = 0.0;
    if (zero_comm_local_size(comm) == zero_comm_size(comm))
        return ZERO_OK;
    for (int i = 0; i < N_CLOCK_ROUNDS; i++) {
        ZERO_TRY(zero_comm_barrier(comm));
        double mine = clock_now_ms(), first = mine;
        ZERO_TRY(zero_comm_broadcast(comm, &first, sizeof first, 0));
        leads[i] = mine - first;
    }
    qsort(leads, N_CLOCK_ROUNDS, sizeof *leads, by_value);
    *lead_ms = leads[N_CLOCK_ROUNDS / 2];
    return ZERO_OK;
}

static void shift(trace_t *trace, double by_ms)
{
    for (uint64_t i = 0; i < n_kept(trace); i++) {
        trace->ring[i].begin_ms -= by_ms;
        trace->ring[i].end_ms -= by_ms;
    }
}

/* ---- writing ---- */

/* Removes an earlier run's trace and begins the new one. */
static void begin_file(trace_t *trace, const char *path)
{
    if (!trace->file)
        return;
    trace->begun = output_file_empty(&trace_file_kind, path, trace->file);
    if (trace->begun == ZERO_OK) {
        trace_file_begin(trace->file);
        return;
    }
    fclose(trace->file);
    trace->file = NULL;
}

static void write_spans(const trace_t *trace, int rank, uint64_t first_step, const trace_span_t *spans, size_t n_spans)
{
    for (size_t i = 0; i < n_spans; i++)
        if (spans[i].step >= first_step || spans[i].step == 0)
            trace_file_add(trace->file, rank, zero_model_unit_name(trace->model, spans[i].unit), &spans[i]);
}

/* Copies the spans [first, first + n_spans) of those kept, counted from the oldest. */
static void copy_out(const trace_t *trace, uint64_t first, size_t n_spans, trace_span_t *spans)
{
    for (size_t i = 0; i < n_spans; i++)
        spans[i] = trace->ring[(trace->n_taken - n_kept(trace) + first + i) % MAX_SPANS];
}

/* Sends a rank's spans to rank 0, a chunk at a time, and writes them. [collective] */
static zero_status_t send_spans(const trace_t *trace, int rank, uint64_t n_spans, uint64_t first_step)
{
    trace_span_t chunk[CHUNK_SPANS];
    for (uint64_t first = 0; first < n_spans; first += CHUNK_SPANS) {
        size_t n = n_spans - first < CHUNK_SPANS ? (size_t)(n_spans - first) : CHUNK_SPANS;
        if (zero_comm_rank(trace->comm) == rank)
            copy_out(trace, first, n, chunk);
        ZERO_TRY(zero_comm_broadcast(trace->comm, chunk, n * sizeof *chunk, rank));
        if (trace->file)
            write_spans(trace, rank, first_step, chunk, n);
    }
    return ZERO_OK;
}

static zero_status_t write_together(trace_t *trace)
{
    int n_ranks = zero_comm_size(trace->comm), me = zero_comm_rank(trace->comm);
    double lead_ms;
    ZERO_TRY(clock_lead_ms(trace->comm, &lead_ms));
    shift(trace, trace->origin_ms + lead_ms);
    trace->kept[me] = (double)n_kept(trace);
    trace->lost[me] = (double)trace->lost_step;
    ZERO_TRY(zero_comm_sum(trace->comm, trace->kept, (size_t)n_ranks));
    ZERO_TRY(zero_comm_sum(trace->comm, trace->lost, (size_t)n_ranks));
    uint64_t first_step = 1;
    for (int rank = 0; rank < n_ranks; rank++)
        if ((uint64_t)trace->lost[rank] >= first_step)
            first_step = (uint64_t)trace->lost[rank] + 1;
    if (first_step > 1)
        report("[log] trace: a rank keeps %d spans, so the trace begins with step %llu", MAX_SPANS,
               (unsigned long long)first_step);

    begin_file(trace, trace->path);
    for (int rank = 0; rank < n_ranks; rank++) {
        if (trace->file)
            trace_file_name_rank(trace->file, rank);
        ZERO_TRY(send_spans(trace, rank, (uint64_t)trace->kept[rank], first_step));
    }
    if (trace->file)
        trace_file_end(trace->file, n_ranks, first_step);
    return ZERO_OK;
}

/* Writes this rank's spans alone, without comparing clocks: peers may be lost. */
static void write_alone(trace_t *trace)
{
    int me = zero_comm_rank(trace->comm);
    char path[4200];
    snprintf(path, sizeof path, "%s.rank%d", trace->path, me);
    if (!trace->has_steps)
        return;
    if (me == 0)
        snprintf(path, sizeof path, "%s", trace->path);
    else if (trace->n_taken > 0)
        (void)output_file_open(&trace_file_kind, path, &trace->file); /* on failure it has logged why */
    begin_file(trace, path);
    if (!trace->file)
        return;
    shift(trace, trace->origin_ms);
    trace_file_name_rank(trace->file, me);
    for (uint64_t i = 0; i < n_kept(trace); i++) {
        trace_span_t span;
        copy_out(trace, i, 1, &span);
        write_spans(trace, me, trace->lost_step + 1, &span, 1);
    }
    trace_file_end(trace->file, zero_comm_size(trace->comm), trace->lost_step + 1);
}

/* Closes the file. What stdio has buffered may hit a full disk only now. */
static zero_status_t close_file(trace_t *trace)
{
    FILE *file = trace->file;
    trace->file = NULL;
    if (!file)
        return trace->begun;
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return report_error(ZERO_ERROR_IO, "[log] trace: writing '%s' failed: %s", trace->path, strerror(errno));
    return ZERO_OK;
}

zero_status_t trace_close(trace_t *trace, bool together)
{
    zero_status_t status = ZERO_OK;
    if (!trace)
        return ZERO_OK;
    if (together) {
        status = write_together(trace);
        if (status == ZERO_OK)
            status = report_agree(trace->comm, close_file(trace));
    } else {
        write_alone(trace); /* the run has failed for another reason, which has been logged */
    }
    destroy(trace);
    return status;
}
