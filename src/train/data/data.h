/* data.h - batches of tokens, in an order that depends only on seed and global batch.
 *
 * A data set is a list of token files, seen as one list of sequences: windows of seq_len + 1 tokens that start every
 * seq_len tokens within a file. Each epoch visits every sequence once, in a permutation given by (seed, epoch); epochs
 * follow each other in one endless order. Step s takes positions s * global_batch and up of that order, micro_batch of
 * them for each micro-batch v in turn. Micro-step k of rank r reads micro-batch v = k * world_size + r: the world size
 * changes which rank reads a micro-batch, never which sequences it has. A background thread reads one batch ahead.
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
    bool shuffle;  /* false: sequences in file order, for tests */
    bool separate; /* documents are separate: data_starts, and no target is the first token of one */
} data_spec_t;

/* Returns the specification of the data that are in `paths`, not shuffled, for this rank of `comm`. */
data_spec_t data_spec_of(const data_options_t *data, const model_options_t *model, const train_options_t *train,
                         zero_comm_t *comm, const char *paths);

/* In place of a target that does not count: the loss leaves it out. */
#define DATA_NO_TARGET (-1)

/* Opens and checks every file: sizes against headers, in 64-bit arithmetic, and every token against the vocabulary. The
 * ranks share that work, so one may fail alone: agree afterwards. Returns ZERO_ERROR_USAGE if a path is wrong,
 * ZERO_ERROR_FORMAT if the content is, for the format that is set; one log line names the file, the position and what
 * to do. */
zero_status_t data_open(const data_spec_t *spec, data_t **data);
void data_close(data_t *data);

int64_t data_n_tokens(const data_t *data);
bool data_has_mask(const data_t *data); /* some targets may not count: by a mask, or because documents are separate */
/* Returns the XXH3 of the tokenizer.json that made the tokens; 0: not known. *path: a file that names it. */
uint64_t data_tokenizer(const data_t *data, const char **path);
int64_t data_n_sequences(const data_t *data); /* at least 1 */

/* Takes the sequences in a random order from the next batch on, though spec.shuffle was false. */
void data_shuffle(data_t *data);
/* Refuses data of which no target counts in the first n_sequences of the endless order: there is nothing to learn or to
 * measure. A file that counts none, though others of the list do, is a line. Ranks may fail alone, since they read
 * files; agree afterwards. */
zero_status_t data_check_targets(data_t *data, int64_t n_sequences);

/* Makes `step`, counted from 0, begin at `position` of the endless order, and each later one a global batch further on.
 * So a resumed run continues where the previous one ended, even if that had another batch size. By default step 0
 * begins at position 0. */
void data_start_at(data_t *data, int64_t step, int64_t position);

/* Returns this rank's batch of (step, micro_step), both counted from 0: inputs and targets, int32 [micro_batch,
 * seq_len], targets one token ahead, all within the vocabulary but for targets that are DATA_NO_TARGET. Valid until
 * the next call. Returns ZERO_ERROR_FORMAT or
 * ZERO_ERROR_IO, with a log line, if a file has changed since data_open so that tokens are missing or beyond the
 * vocabulary. In the endless order, rank r's sequence i of micro-step k is at the step's position +
 * (k * world_size + r) * micro_batch + i. */
zero_status_t data_batch(data_t *data, int64_t step, int micro_step, const int32_t **inputs, const int32_t **targets);
/* Removes the targets from the batch that data_batch returned last, but for its first n_sequences. */
void data_leave_out(data_t *data, int64_t n_sequences);
/* Returns where the documents begin that the inputs of the batch are in that data_batch returned last: int32
 * [micro_batch, seq_len], positions in their sequence; 0 for a document that began before it. NULL unless
 * data_spec_t.separate. */
const int32_t *data_starts(const data_t *data);
/* Returns how many targets count in the whole step of the batch that data_batch returned last: in the batches of all
 * ranks and micro-steps. Every rank reads the masks and documents of all of them, so this needs no communication. */
int64_t data_n_counted(const data_t *data);

#endif
