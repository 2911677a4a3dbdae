/* advice.h - which changes of the settings would make a plan fit, and what they cost.
 *
 * All that can change is tried: stage, recomputation, micro-batch, keep, offload of state, parameters and activations,
 * when and with which optimizer weights are updated, and how many ranks share a sequence. Of changes that leave the
 * results as they are, the fastest are named and the fewest; one that does not only where nothing else fits without
 * offload; and the least multiple of the ranks.
 */
#ifndef ZEROTRAIN_FIT_ADVICE_H
#define ZEROTRAIN_FIT_ADVICE_H

#include "train/planning/solve.h"

#define FIT_MOST_ADVICE 3

/* Settings that would change, a bit for each. micro_batch may change the last bits of results. */
enum {
    FIT_CHANGES_STAGE = 1,
    FIT_CHANGES_RECOMPUTE = 2,
    FIT_CHANGES_MICRO_BATCH = 4,
    FIT_CHANGES_KEEP = 8,
    FIT_CHANGES_OFFLOAD = 16,         /* zero.offload, to optimizer or all, with ratios that are auto */
    FIT_CHANGES_OFFLOAD_PARAMS = 32,  /* to all */
    FIT_CHANGES_UPDATE = 64,          /* zero.update, to backward */
    FIT_CHANGES_CLIP = 128,           /* train.grad_clip, to 0, which changes the results */
    FIT_CHANGES_OPTIMIZER = 256,      /* train.optimizer, to adamw8bit, which changes the results */
    FIT_CHANGES_ACTIVATIONS = 512,    /* model.offload_activations, to auto */
    FIT_CHANGES_SEQUENCES = 1024,     /* train.sequence_ranks, which changes the results' last bits */
    FIT_CHANGES_KEEP_ATTENTION = 2048 /* model.keep_attention */
};
#define FIT_N_CHANGES 12
#define FIT_CHANGES_RESULTS (FIT_CHANGES_CLIP | FIT_CHANGES_OPTIMIZER | FIT_CHANGES_SEQUENCES)

typedef struct fit_advised {
    fit_point_t point; /* what a run with the changes takes */
    unsigned changes;
    fit_choice_t named;     /* the values to change to, where they are not auto */
    int64_t sequence_ranks; /* of [train] */
} fit_advised_t;

typedef struct fit_advice {
    /* By time, each with other changes, none of which changes the results. The fewest changes that make the plan fit
     * are among them. */
    fit_advised_t points[FIT_MOST_ADVICE];
    int n_points;
    fit_advised_t other; /* that changes the results; no changes: none was looked for or found */
    /* The least multiple of the ranks with which something fits, and the fewest changes that it takes; each rank has as
     * much work as before. 0: none was found, or the same changes are enough without more ranks. */
    int n_ranks;
    fit_advised_t on_ranks;
} fit_advice_t;

/* given: what the options of fit ask for, which does not fit. */
zero_status_t fit_advise(const fit_t *fit, const fit_point_t *given, fit_advice_t *advice);

/* Reports what holds how much of a plan, a line each: as rank 0's, or as this rank's own, with its number. */
void fit_report_memory(const zero_memory_t *memory, bool is_own);

/* Reports what holds how much of a plan that does not fit, and, for training, the advice. Returns ZERO_ERROR_MEMORY, or
 * why there is no advice. */
zero_status_t fit_refuse(const fit_t *fit, const fit_point_t *given);

#endif
