/* trace.h - a timeline of what every rank did when, in one file for ui.perfetto.dev or chrome://tracing.
 *
 * Each rank keeps its spans in memory that is allocated when the trace is opened; if they become too many, the latest
 * stay. When the run ends, rank 0 writes those of all ranks. libzero reports the spans of device work
 * (zero_engine_trace); the host adds its own.
 */
#ifndef ZEROTRAIN_TRACE_H
#define ZEROTRAIN_TRACE_H

#include <stdio.h>

#include "train/report/output_file.h"
#include "zero.h"

/* ---- trace file ---- */
/* Writes Chrome's trace event format: an object whose traceEvents are complete events (phase "X"). A
 * rank is shown as a process, and each kind of work as one of its threads. Times are in microseconds. */

typedef struct trace_span {
    int16_t row;                          /* zero_work_t or trace_row_t */
    uint8_t phase, wait;                  /* of the device's work: zero_phase_t, zero_wait_t */
    zero_unit_t unit;                     /* -1: of no unit */
    int first_rank, rank_stride, n_ranks; /* as of zero_trace_span_t */
    uint64_t step;                        /* counts from 1; 0: between steps */
    double begin_ms, end_ms;              /* since the trace's origin when it is written */
} trace_span_t;

/* A trace may overwrite another trace. */
extern const output_kind_t trace_file_kind;

/* Called in this order: begin; name_rank and the spans of each rank in turn; end. ferror(file) tells of failures. */
void trace_file_begin(FILE *file);
void trace_file_name_rank(FILE *file, int rank);
/* unit: the name of the span's; NULL: it is of none. The span gets the name "h.0 forward", with compute, "gather h.0",
 * with a wait, or "h.0"; without a unit, "ranks" or that of the row. */
void trace_file_add(FILE *file, int rank, const char *unit, const trace_span_t *span);
/* first_step: the first step in the trace. */
void trace_file_end(FILE *file, int n_ranks, uint64_t first_step);

/* ---- trace ---- */

typedef struct trace trace_t;

/* A rank's rows in the timeline: libzero's kinds of work, then the host's. */
typedef enum trace_row {
    TRACE_HOST = ZERO_N_WORKS, /* the host queues a step's work; on the CPU it also does it */
    TRACE_DATA,                /* ... and, within that, waits for a batch */
    TRACE_N_ROWS
} trace_row_t;

/* Checks whether trace_claim_file would accept what is at `path`. Changes nothing. A file that cannot be written to, or
 * does not begin like a trace, gives ZERO_ERROR_USAGE with a log line. "" is fine. */
zero_status_t trace_check(const char *path);
/* Allocates the trace; writes nothing yet. If path is "", *trace is NULL, which the other functions accept and ignore.
 * comm and model, whose unit names are used, must outlive the trace. [collective] */
zero_status_t trace_open(const char *path, zero_comm_t *comm, const zero_model_t *model, trace_t **trace);
/* Opens the file on rank 0, so that a bad path is found before training. An earlier run's trace stays until trace_close
 * writes. That happens only after this call, and if the run has failed, only if it had begun a step. [collective] */
zero_status_t trace_claim_file(trace_t *trace);
/* Makes libzero report the device's work from here on. Before the first zero_begin. */
zero_status_t trace_attach(trace_t *trace, zero_engine_t *engine);

/* Adds a span of the host's own. Times are CLOCK_MONOTONIC in ms. */
void trace_host(trace_t *trace, trace_row_t row, int64_t step, double begin_ms, double end_ms);

/* Mark the time in which the host queues a step's work: one TRACE_HOST span from begin to end. A GPU's queue holds
 * about a thousand launches; when it is full, a launch waits, and the span shows the GPU's time rather than the host's.
 * (tests/support/zerotrain_paced.c measures the host alone.) */
void trace_begin_step(trace_t *trace, int64_t step);
void trace_end_step(trace_t *trace);

/* Writes the file and frees the trace. If together, every rank calls this and rank 0 writes the spans of all
 * [collective]. Otherwise peers may be lost, and each rank writes its own: rank 0 to FILE, rank R to FILE.rankR. */
zero_status_t trace_close(trace_t *trace, bool together);

#endif
