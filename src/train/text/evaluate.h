/* evaluate.h - zerotrain evaluate: loss, perplexity and bits over all of the validation data. */
#ifndef ZEROTRAIN_EVALUATE_H
#define ZEROTRAIN_EVALUATE_H

#include "train/data/data_identity.h"
#include "train/model/model.h"
#include "train/options/options.h"
#include "train/options/val_sets.h"
#include "train/report/metrics.h"

/* ---- held out ---- */
/* The loss on held-out sequences, each counted once: val_loss of training, and zerotrain evaluate. */

typedef struct held_out {
    data_t *data; /* owned; NULL: there are none */
    int64_t n_sequences;
    size_t n_sums; /* of a pass: its loss, and those of pairs behind it (model.h) */
    double *sums;  /* [ranks, n_sums], owned: those of a round */
} held_out_t;

/* The sets of [data] val. */
typedef struct validation {
    int n; /* 0: there are none */
    val_set_t sets[OPTIONS_MAX_VAL_SETS];
    held_out_t held_out[OPTIONS_MAX_VAL_SETS];
    val_loss_t losses[OPTIONS_MAX_VAL_SETS]; /* of the last validation_compute, as the next */
    rewards_t rewards;                       /* over the pairs of all sets */
} validation_t;

/* Opens all sets, of each of which the first `n_most` sequences are held out. If it has more, these are a random
 * sample, always the same; else they are taken in the files' order. Refuses data of which no target counts. The
 * caller closes it, whatever is returned. [collective] */
zero_status_t validation_open(const options_t *options, zero_comm_t *comm, int64_t n_most, validation_t *validation);
void validation_close(validation_t *validation);
/* Says how the sets' sequences were made, what is left out of them, and which have more than an evaluation takes. */
void validation_report(const validation_t *validation);
/* Returns whether some targets may not count in a pass: model_t.may_skip_targets is to be set for them. */
bool validation_may_skip(const validation_t *validation, const model_options_t *model, const train_options_t *train);
/* Returns whether all sets are text, whose tokens are bytes. */
bool validation_is_text(const validation_t *validation);
/* Refuses data that another tokenizer made (data_identity.h). [collective] */
zero_status_t validation_check_tokenizer(const validation_t *validation, zero_comm_t *comm,
                                         const model_tokenizer_t *tokenizer);

/* Computes the mean loss of each set, and in *loss that over all their targets that count, in nats, or over all pairs.
 * [collective] */
zero_status_t validation_compute(validation_t *validation, session_t *session, double *loss);

/* ---- evaluate ---- */

/* Prints the numbers to stdout, as text or, with --json, as one object. They have the same bits on any number of ranks
 * and at every stage. [collective] */
zero_status_t evaluate(const options_t *options, zero_comm_t *comm);

#endif
