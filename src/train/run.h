/* run.h - a training run: what it holds, and the pieces that run.c joins. */
#ifndef ZEROTRAIN_RUN_H
#define ZEROTRAIN_RUN_H

#include "train/checkpoints.h"
#include "train/data/data.h"
#include "train/model/model.h"
#include "train/model/preference.h"
#include "train/options/options.h"
#include "train/report/metrics.h"
#include "train/report/tensorboard.h"
#include "train/report/trace.h"
#include "train/text/evaluate.h"
#include "train/text/tokenizer.h"

typedef struct run {
    session_t session;
    int micro_steps;
    int64_t last_step;     /* that the run should make */
    int64_t end_step;      /* that it ends with: last_step unless a signal came */
    zero_memory_t planned; /* of each rank */
    data_t *train;
    validation_t val;
    tokenizer_t *tokenizer; /* of what sample_every prints; NULL: tokens are printed as numbers */
    trace_t *trace;
    metrics_t *metrics; /* rank 0's, as tensorboard */
    tensorboard_t *tensorboard;
    zero_status_t logged; /* rank 0: whether both have every row */
    checkpoints_t checkpoints;
    int n_late; /* steps that stay queued while the next is queued, so that the host need not wait for a GPU */
    int n_queued;
    int64_t n_counted[2];                 /* targets that count in a queued step, or pairs, by the step's parity */
    int64_t n_done, n_skipped, n_without; /* steps of this run; of those: skipped, and without a target that counts */
    double started_ms;
    int *lock; /* the caller's, of checkpoint.dir */
} run_t;

/* ---- run.c: before the first step and after the last ---- */

/* Opens all that the run needs, and what it writes last of all. Sets [train] steps if epochs is given. The caller
 * closes the run, whatever is returned. lock: as for checkpoints_open. [collective] */
zero_status_t run_open(options_t *options, zero_comm_t *comm, int *lock, run_t *run);
/* Closes files and frees memory. status: how the run went; after a failure peers may be gone. Returns it, or why the
 * trace could not be written. */
zero_status_t run_close(run_t *run, zero_status_t status);
/* Returns whether there are steps to make. A checkpoint may be of the last step or of a later one. */
bool run_has_steps(const run_t *run);

/* ---- run_report.c: what a run says on stderr ---- */

void run_report_start(const run_t *run);
/* Makes the row of metrics of a step that has been waited for. [collective] */
zero_status_t run_make_row(run_t *run, const zero_step_result_t *result, metrics_row_t *row);
/* Prints the line of progress, and the validation loss if the row has one. */
void run_report_step(const run_t *run, const metrics_row_t *row);

/* ---- run.c: what a run measures between steps ---- */

/* Reads this rank's batch of a micro-step of step `step`, counted from 0. */
zero_status_t run_read_batch(data_t *data, int64_t step, int micro_step, model_batch_t *batch);
/* Opens the validation data: eval_batches global batches, a random sample that is the same in every run, or all of it
 * if it has fewer. [collective] */
zero_status_t run_open_val(run_t *run);
/* Computes the mean loss over its sequences, each once, in nats per token that counts, and that of each set. If all
 * data are taken, that is what zerotrain evaluate computes, to the bit. Of pairs it is the mean over them. Notes it in
 * the row, and for checkpoint.best. [collective] */
zero_status_t run_evaluate(run_t *run, metrics_row_t *row);
/* Prints to stdout how the model continues a sequence of the validation data, or of the training data if there are
 * none. [collective] */
zero_status_t run_show_sample(run_t *run);

/* ---- loop ---- */
/* A training run: from a resolved configuration to the last step. */

typedef enum loop_end {
    LOOP_COMPLETE,
    LOOP_STOPPED_SAVED, /* by a signal to any rank, after the same step on all; --resume continues from there */
    LOOP_STOPPED_UNSAVED,
    LOOP_ALL_SKIPPED, /* it reached its last step, but no step learned anything; this has been logged */
    LOOP_NOT_LOGGED,  /* a log could not be written, which has been logged; the run was stopped and saved for that */
} loop_end_t;

/* Trains, evaluates, samples and logs. Sets [train] steps if epochs is given. lock: as for checkpoints_open. On
 * ZERO_OK, *end says how the run ended. [collective] */
zero_status_t loop_run(options_t *options, zero_comm_t *comm, int *lock, loop_end_t *end);

/* ---- run info ---- */
/* What a run says of itself in the first row of metrics that it writes, for those who read them later. */

/* Returns in *text, for free(), a JSON object of one line: program, ranks, hosts and their machines, memory by
 * category, parameters and configuration. Only rank 0 gets it, the others NULL. If metrics are not written it is NULL
 * everywhere. [collective] */
zero_status_t run_info_text(const options_t *options, zero_comm_t *comm, const zero_device_t *device,
                            const zero_engine_t *engine, uint64_t n_params, char **text);

#endif
