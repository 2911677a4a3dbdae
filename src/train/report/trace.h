/* trace.h - what every rank did when, in one file that ui.perfetto.dev and chrome://tracing show.
 *
 * Each rank keeps its spans in memory, taken when the trace is opened, and the last ones where they grow too many. When
 * the run ends, rank 0 writes everybody's. Device work is told by libzero (zero_engine_trace); the host adds its own.
 */
#ifndef ZEROTRAIN_TRACE_H
#define ZEROTRAIN_TRACE_H

#include "zero.h"

typedef struct trace trace_t;

/* Rows of a rank in the picture: libzero's kinds of work, then the host's. */
typedef enum trace_row {
    TRACE_HOST = ZERO_N_WORKS, /* the host queues a step's work; on the CPU it also does it */
    TRACE_DATA,                /* ... and, within that, waits for a batch */
    TRACE_N_ROWS
} trace_row_t;

/* Whether trace_claim_file would take what is at `path`; changes nothing. A file that does not begin as a trace does,
 * or is none to write to, is ZERO_ERROR_USAGE with a line. "" is fine. */
zero_status_t trace_check(const char *path);
/* path "" gives *trace = NULL, which the others accept and ignore. model, whose units' names are used, and comm must
 * outlive the trace. Nothing is written yet. [collective] */
zero_status_t trace_open(const char *path, zero_comm_t *comm, const zero_model_t *model, trace_t **trace);
/* Opens the file on rank 0, so that a bad path is known before training; an earlier run's trace stays until trace_close
 * writes, which it does only after this call, and where a run has failed only after its first step began. [collective]
 */
zero_status_t trace_claim_file(trace_t *trace);
/* From here on libzero tells what the device does. Before the first zero_begin. */
zero_status_t trace_attach(trace_t *trace, const zero_device_t *device, zero_engine_t *engine);

/* A span of the host's own; CLOCK_MONOTONIC in ms. */
void trace_host(trace_t *trace, trace_row_t row, int64_t step, double begin_ms, double end_ms);

/* The host queues a step's work: TRACE_HOST from begin to end. A GPU's queue takes about a thousand launches; after
 * that a launch waits for a place, so that the row shows the GPU's time rather than the host's. With ZERO_TRACE_PACED=1
 * in the environment a pause, which comes before each unit and before the update, ends the span, waits for the device
 * and begins the next span: then no launch waits, and the spans of a step add up to the host's own work. Of a GPU's
 * work only the update is then traced, since each span costs the host two events. The step takes longer, since nothing
 * is queued ahead. Without it a pause does nothing; nor does it outside a step. */
void trace_begin_step(trace_t *trace, int64_t step);
zero_status_t trace_pause(trace_t *trace, zero_device_t *device);
void trace_end_step(trace_t *trace);

/* Writes the file and frees the trace. together: every rank calls this, and rank 0 writes the spans of all
 * [collective]. Otherwise peers may be lost, and each rank writes what it has: rank 0 to the file, rank R to
 * FILE.rankR. */
zero_status_t trace_close(trace_t *trace, bool together);

#endif
