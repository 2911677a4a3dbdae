/* metrics.h - writes one JSON object per step; rank 0 only. */
#ifndef ZEROTRAIN_METRICS_H
#define ZEROTRAIN_METRICS_H

#include "zero.h"

typedef struct metrics metrics_t;

#define METRICS_MOST_VAL_SETS 16
/* The mean loss of one of several named validation sets. */
typedef struct val_loss {
    const char *name;
    float loss;
} val_loss_t;

/* Means over pairs of answers (zero_pair_sum_t). */
typedef struct rewards {
    bool are_known; /* there are pairs */
    double chosen, rejected, margin, accuracy;
} rewards_t;

typedef struct metrics_row {
    int64_t step;
    double time_s;         /* seconds since 1970, by this host's clock, when the step's result was known */
    float loss, grad_norm; /* printed %.9g: equal text means equal bits; null if not finite */
    double lr;
    bool skipped;
    bool has_no_targets; /* no token of the step counts as a target: loss is NaN, and null in the file */
    int64_t tokens;      /* seen so far, all ranks */
    bool has_mask;       /* some may not count: the next is written */
    int64_t targets;     /* of this step that count, or pairs, all ranks */
    double step_ms, tokens_per_s,
        mfu; /* mfu: 0..1 of the device's peak; negative, printed as null, if that is unknown */
    uint64_t device_bytes, host_bytes;
    double exposed_comm_ms;
    bool has_offload; /* something is in host memory: the next two are written */
    double exposed_host_ms;
    uint64_t pcie_bytes;
    rewards_t rewards; /* known: targets are pairs */
    bool has_val_loss;
    float val_loss;
    int n_val_sets; /* 0: they have no names, or val_loss is not known */
    const val_loss_t *val_sets;
    rewards_t val_rewards;
    bool has_fp8_scales;
    float fp8_min_scale, fp8_max_scale;
} metrics_row_t;

/* Checks whether metrics_open would accept what is at `path`. Changes nothing. Here and below, a file that cannot be
 * written to, or does not begin like metrics, gives ZERO_ERROR_USAGE with a log line and is left as it is. "" is fine.
 */
zero_status_t metrics_check(const char *path);

/* Prepares the file for a run that resumes after `step`: removes the rows of later steps, which will be written again,
 * and an unfinished row. Says so if rows up to `step` are missing behind the last one, which a full disk may have kept
 * from being written. Does nothing if there is no such file or it is not a regular one. */
zero_status_t metrics_rewind(const char *path, int64_t step);

/* If path is "", *metrics is NULL, which metrics_write accepts and ignores. append: keep the rows that are there, for a
 * resumed run; otherwise they are removed. */
zero_status_t metrics_open(const char *path, bool append, metrics_t **metrics);
/* Adds `run`, a JSON object of one line, to the next row as its last key, "run". Takes it, for free(); NULL: none. */
void metrics_describe(metrics_t *metrics, char *run);
/* Writes a row. Returns ZERO_ERROR_IO, the first time with a log line, if the disk is full, say: the row is then kept
 * for the next call. */
zero_status_t metrics_write(metrics_t *metrics, const metrics_row_t *row);
void metrics_close(metrics_t *metrics);

#endif
