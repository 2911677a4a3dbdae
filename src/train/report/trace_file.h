/* trace_file.h - writes Chrome's trace event format: an object whose traceEvents are complete events (phase "X"). A
 * rank is shown as a process, and each kind of work as one of its threads. Times are in microseconds. */
#ifndef ZEROTRAIN_TRACE_FILE_H
#define ZEROTRAIN_TRACE_FILE_H

#include <stdio.h>

#include "train/report/trace.h"
#include "train/report/output_file.h"

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

#endif
