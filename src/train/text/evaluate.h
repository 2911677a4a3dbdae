/* evaluate.h - zerotrain evaluate: loss, perplexity and bits over all of the validation data. */
#ifndef ZEROTRAIN_EVALUATE_H
#define ZEROTRAIN_EVALUATE_H

#include "train/data/data.h"
#include "train/model/model.h"
#include "train/options/options.h"

/* ---- held out ---- */
/* The loss on held-out sequences, each counted once: val_loss of training, and zerotrain evaluate. */

typedef struct held_out {
    data_t *data; /* owned; NULL: there are none */
    int64_t n_sequences;
    double *losses; /* [ranks], owned: those of a round */
} held_out_t;

/* Opens the data in `paths`, of which the first `n_most` sequences are held out. If they have more, these are a random
 * sample, always the same; else they are taken in the files' order. Refuses data of which no target counts. The caller
 * closes it, whatever is returned. [collective] */
zero_status_t held_out_open(const options_t *options, zero_comm_t *comm, const char *paths, int64_t n_most,
                            held_out_t *held_out);
void held_out_close(held_out_t *held_out);
/* Returns whether some targets may not count in a pass: model_t.may_skip_targets is to be set for them. */
bool held_out_may_skip(const held_out_t *held_out, const model_options_t *model, const train_options_t *train);

/* Computes the sum of the targets' losses, in nats, and how many count. The sum's bits depend on micro_batch and not on
 * the number of ranks. visit: called for every batch of this rank, with the targets that its sequences have; NULL:
 * nothing is called. [collective] */
zero_status_t held_out_sum(held_out_t *held_out, session_t *session,
                           void (*visit)(void *user, const model_batch_t *batch, int64_t n_targets), void *user,
                           double *loss, int64_t *n_counted);

/* ---- evaluate ---- */

/* Prints the numbers to stdout, as text or, with --json, as one object. They have the same bits on any number of ranks
 * and at every stage. [collective] */
zero_status_t evaluate(const options_t *options, zero_comm_t *comm);

#endif
