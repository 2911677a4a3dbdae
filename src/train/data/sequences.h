/* sequences.h - the sequences of a data set: which tokens each has, which of them count, where documents begin.
 *
 * Cut out of the files ([data] packing = cut): windows of seq_len + 1 tokens that start every seq_len tokens within a
 * file. Packed: whole documents one after another, each with positions of its own, then padding. A padded position has
 * token 0, is a document by itself, so that attention has nothing to do there, and predicts nothing.
 */
#ifndef ZEROTRAIN_SEQUENCES_H
#define ZEROTRAIN_SEQUENCES_H

#include "train/data/packing.h"

typedef struct sequences {
    data_spec_t spec; /* without paths */
    data_files_t files;
    packing_t packing; /* of nothing if sequences are cut */
    int64_t n;
    int64_t part_begin, part_len; /* this rank's positions of a sequence: all, unless ranks share it */
    int32_t *begins;              /* owned, [seq_len + 1]: scratch of the calls below, so one thread at a time */
} sequences_t;

/* Why a sequence could not be read. */
typedef struct sequence_fault {
    token_fault_t why; /* status ZERO_OK: all tokens were read and are in the vocabulary */
    const token_file_t *at;
} sequence_fault_t;

/* Opens the files, checks this rank's share of their tokens, and packs their documents. Returns what data_open does.
 * The caller closes *sequences, which is zero before, whatever is returned. */
zero_status_t sequences_open(const data_spec_t *spec, const char *paths, sequences_t *sequences);
void sequences_close(sequences_t *sequences);

/* Returns whether some targets may not count: by a mask, padding, or because documents are separate. */
bool sequences_have_mask(const sequences_t *sequences);
/* Returns whether batches say where documents begin. */
bool sequences_have_starts(const data_spec_t *spec);

/* Reads this rank's part of sequence `number` into inputs and targets [part_len], and where the documents of the whole
 * sequence begin into starts [seq_len], which may be NULL. Logs nothing: sets *fault on failure. */
zero_status_t sequence_read(const sequences_t *sequences, int64_t number, int32_t *inputs, int32_t *targets,
                            int32_t *starts, sequence_fault_t *fault);
/* Counts the targets of sequence `number` that count. */
zero_status_t sequence_count(const sequences_t *sequences, int64_t number, int64_t *n_counted, sequence_fault_t *fault);
/* Returns how many pairs sequence `number` has. */
int64_t sequence_n_pairs(const sequences_t *sequences, int64_t number);
/* Sets documents[0 ..] to where those of sequence `number` begin, counted from row `first` on. Returns how many. */
int64_t sequence_documents(const sequences_t *sequences, int64_t number, int64_t first, int32_t *documents);
/* Says of each file of a list whether any of its targets counts, with a line if none does. */
zero_status_t sequences_report_files_without(const sequences_t *sequences);
/* Logs why a sequence could not be read. Returns its status. */
zero_status_t sequence_fault_report(const sequences_t *sequences, const sequence_fault_t *fault);

#endif
