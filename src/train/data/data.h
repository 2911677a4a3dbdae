/* data.h - batches of tokens, in an order that depends only on seed and global batch.
 *
 * A data set is a list of token files, seen as one list of sequences (sequences.h), cut out of the files or packed with
 * whole documents. Each epoch visits every sequence once, in a permutation given by (seed, epoch); epochs
 * follow each other in one endless order. Step s takes positions s * global_batch and up of that order, micro_batch of
 * them for each micro-batch v in turn. Micro-step k of rank r reads micro-batch v = k * world_size + r: the world size
 * changes which rank reads a micro-batch, never which sequences it has. K ranks that share sequences (sequence_ranks)
 * count as one, r / K of world_size / K, and read a part of the tokens each. A background thread reads one batch ahead.
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
    int sequence_ranks; /* K; 0 is 1 */
    uint64_t seed;
    bool shuffle;     /* false: sequences in file order, for tests */
    int packing;      /* options_packing_t, not auto */
    bool pairs;       /* documents are pairs, which are packed as one, and count instead of targets */
    bool drop_long;   /* packed: drops documents longer than a sequence, which else are truncated */
    bool separate;    /* cut: documents are separate: data_starts, and no target is the first token of one */
    bool with_starts; /* data_starts has numbers, though documents may be joined: a sequence is one document then */
} data_spec_t;

/* Returns the specification of the data that are in `paths`, not shuffled, for this rank of `comm`. packing: of these
 * paths, as chosen by data_choose_packing. */
data_spec_t data_spec_of(const data_options_t *data, const model_options_t *model, const train_options_t *train,
                         zero_comm_t *comm, const char *paths, int packing);

/* Replaces [data] packing = auto: fit if a file has a loss mask, else cut; for train and each set of val. Then
 * documents = auto: separate if anything is packed. Files that cannot be read count as without: data_open says what is
 * wrong. */
zero_status_t data_choose_packing(data_options_t *data);

/* Sets train->steps to what train->epochs passes over n_sequences take, if that is set: n_done that have taken n_taken
 * sequences, whatever batch they had, and as many more as the rest needs. */
zero_status_t data_choose_steps(int64_t n_sequences, int64_t n_done, int64_t n_taken, train_options_t *train);

/* In place of a target that does not count: the loss leaves it out. */
#define DATA_NO_TARGET (-1)

/* Opens and checks every file: sizes against headers, in 64-bit arithmetic, and every token against the vocabulary. The
 * ranks share that work, so one may fail alone: agree afterwards. Returns ZERO_ERROR_USAGE if a path is wrong,
 * ZERO_ERROR_FORMAT if the content is, for the format that is set; one log line names the file, the position and what
 * to do. */
zero_status_t data_open(const data_spec_t *spec, data_t **data);
void data_close(data_t *data);

int64_t data_n_tokens(const data_t *data);
/* Some targets may not count: by a mask, padding, or because documents are separate. */
bool data_has_mask(const data_t *data);
/* Sets what is known of the tokenizer.json that made the tokens: its XXH3, what decides its tokens (tokenizer_rules.h),
 * 0 if that is not known, and a file that says so. Returns whether one does. */
bool data_tokenizer(const data_t *data, uint64_t *hash, uint64_t *rules, const char **path);
/* Returns a file that format auto took for text, whose bytes are tokens; NULL: there is none. */
const char *data_assumed_text(const data_t *data);
/* Returns whether all files are text, whose tokens are bytes. */
bool data_is_text(const data_t *data);
int64_t data_n_sequences(const data_t *data); /* at least 1 */
/* Returns how many tokens at the files' ends fill no sequence; 0 if documents are packed. */
int64_t data_n_left_out(const data_t *data);
/* Says how whole documents were packed, if they were, and which tokens are left out. key: of [data]. */
void data_report_left_out(const data_t *data, const char *key);

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
 * data_part_len()], targets one token ahead, all within the vocabulary but for targets that are DATA_NO_TARGET. Valid
 * until the next call. Returns ZERO_ERROR_FORMAT or
 * ZERO_ERROR_IO, with a log line, if a file has changed since data_open so that tokens are missing or beyond the
 * vocabulary. In the endless order, rank r's sequence i of micro-step k is at the step's position +
 * (k * world_size + r) * micro_batch + i. */
zero_status_t data_batch(data_t *data, int64_t step, int micro_step, const int32_t **inputs, const int32_t **targets);
/* Removes the targets and pairs from the batch that data_batch returned last, but for its first n_sequences. */
void data_leave_out(data_t *data, int64_t n_sequences);
/* Returns where the documents begin that the inputs of the batch are in that data_batch returned last: int32
 * [micro_batch, seq_len], positions in their sequence, also those beyond this rank's part; 0 for a document that began
 * before it. NULL unless packed, data_spec_t.separate or with_starts. */
const int32_t *data_starts(const data_t *data);
/* Returns the rows of the batch that data_batch returned last, counted over its sequences, where the documents of pairs
 * begin; behind the last, the number of rows: int32 [micro_batch * seq_len + 1]. NULL unless data_spec_t.pairs. */
const int32_t *data_documents(const data_t *data);
/* Returns how many targets, or pairs, count in the whole step of the batch that data_batch returned last: in the
 * batches of all ranks and micro-steps. Every rank reads the masks and documents of all of them, so this needs no
 * communication. */
int64_t data_n_counted(const data_t *data);
/* Returns how many tokens of each sequence this rank reads: all, or its part of them. */
int64_t data_part_len(const data_t *data);

#endif
