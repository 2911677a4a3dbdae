/* data.h - batches of tokens, in an order that depends on seed and global batch alone.
 *
 * A data set is a list of token files seen as one list of sequences (windows of seq_len + 1 tokens that start every
 * seq_len tokens within a file). Each epoch visits every sequence once, in a permutation given by (seed, epoch); step s
 * takes places s * global_batch ... of that endless order. A rank reads its share of a global batch, so the world size
 * changes who reads a sequence and never which sequences a step has. A background thread reads one batch ahead.
 */
#ifndef ZEROTRAIN_DATA_H
#define ZEROTRAIN_DATA_H

#include "train/options/options.h"

typedef struct data data_t;

typedef struct data_spec {
    const char *paths; /* comma-separated */
    options_format_t format;
    int64_t vocab_size, seq_len;
    int64_t global_batch, micro_batch; /* sequences */
    int rank, world_size;
    uint64_t seed;
    bool shuffle; /* false: sequences in file order, for tests that count on it */
} data_spec_t;

/* Opens and checks every file: sizes against headers in 64-bit arithmetic, every token against the vocabulary (the
 * ranks share that work, so a rank may fail alone: agree afterwards). ZERO_ERROR_USAGE where a path is wrong,
 * ZERO_ERROR_FORMAT where the content is, also for the format that was set; one line names file, place and what to do.
 */
zero_status_t data_open(const data_spec_t *spec, data_t **data);
void data_close(data_t *data);

int64_t data_n_tokens(const data_t *data);
int64_t data_n_sequences(const data_t *data); /* at least 1 */

/* Makes `step`, from 0, begin at `place` in the endless order, and those after it a global batch apart: a resumed run
 * goes on where the one before ended, with whatever batch. Without it step 0 begins at place 0. */
void data_start_at(data_t *data, int64_t step, int64_t place);

/* The batch of (step, micro_step), both from 0, for this rank: inputs and targets int32 [micro_batch, seq_len], targets
 * one position ahead, every one of them of the vocabulary. Valid until the next call. ZERO_ERROR_FORMAT or
 * ZERO_ERROR_IO, with a line, where a file has changed since data_open: tokens beyond the vocabulary, or cut off. Rank
 * r's sequence i in micro-step k has place (step's own) + r * (global_batch / world_size) + k * micro_batch + i in the
 * endless order. */
zero_status_t data_batch(data_t *data, int64_t step, int micro_step, const int32_t **inputs, const int32_t **targets);

#endif
