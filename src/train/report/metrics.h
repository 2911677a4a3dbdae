/* metrics.h - one JSON object per step, flushed; written by rank 0. */
#ifndef ZEROTRAIN_METRICS_H
#define ZEROTRAIN_METRICS_H

#include "zero.h"

typedef struct metrics metrics_t;

typedef struct metrics_row {
    int64_t step;
    float loss, grad_norm; /* printed %.9g: equal text means equal bits; null where not finite */
    double lr;
    bool skipped;
    int64_t tokens;                    /* seen so far, all ranks */
    double step_ms, tokens_per_s, mfu; /* mfu: 0..1 of the device's peak, null (negative here) where that is unknown */
    uint64_t device_bytes, host_bytes;
    double exposed_comm_ms;
    bool has_val_loss;
    float val_loss;
} metrics_row_t;

/* Whether metrics_open would take what is at `path`; changes nothing. A file that does not begin as metrics do, or is
 * none to write to, is ZERO_ERROR_USAGE with a line, here and below: nothing of it is lost. "" is fine. */
zero_status_t metrics_check(const char *path);

/* Before a run that resumes after `step` appends: takes away the rows of later steps, which it will write again, and a
 * row that was not finished. Does nothing where there is no such file, or it is not a regular one. */
zero_status_t metrics_rewind(const char *path, int64_t step);

/* path "" gives *metrics = NULL, which metrics_write accepts and ignores. append keeps what is there: a resumed run.
 * Without it rows of an earlier run go. */
zero_status_t metrics_open(const char *path, bool append, metrics_t **metrics);
/* ZERO_ERROR_IO, with a line, when the disk is full or the like. */
zero_status_t metrics_write(metrics_t *metrics, const metrics_row_t *row);
void metrics_close(metrics_t *metrics);

#endif
