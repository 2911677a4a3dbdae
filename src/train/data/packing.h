/* packing.h - which whole documents share a sequence ([data] packing = fit, pad).
 *
 * A document of L tokens takes L - 1 positions: its last token is a target only. Best fit (Johnson 1973): documents
 * from the longest to the shortest, those of equal length in an order of the seed, each into the sequence with the
 * least room that is enough. What goes where depends on files, seq_len and seed alone. Where documents are pairs, a
 * pair is packed as one: its two documents are side by side.
 */
#ifndef ZEROTRAIN_PACKING_H
#define ZEROTRAIN_PACKING_H

#include "train/data/data_files.h"

/* The part of a sequence that comes from one file: n inputs from token `first` on, and as many targets from the next.
 */
typedef struct packing_piece {
    int64_t first;
    int32_t file, n;
} packing_piece_t;

typedef struct packing {
    int64_t n_sequences;
    int64_t *starts; /* owned, [n_sequences + 1]: sequence s has pieces[starts[s]] .. pieces[starts[s + 1] - 1] */
    packing_piece_t *pieces; /* owned; whole documents, but for those that were truncated */
    int64_t n_pieces, n_positions;
    /* Documents or pairs: longer than a sequence, and how many tokens of theirs are left out; with a document of one
     * token, which predicts nothing, and left out. */
    int64_t n_long, n_lost, n_short;
    int64_t n_cut_off; /* pairs of n_long that are left out: truncated, an answer of theirs has no token left */
} packing_t;

/* Packs the documents of all files. spec: seq_len, packing (not cut), drop_long, seed. Returns ZERO_ERROR_FORMAT, _IO
 * or _MEMORY with a log line. The caller frees *packing, whatever is returned. */
zero_status_t packing_make(const data_spec_t *spec, const data_files_t *files, packing_t *packing);
void packing_free(packing_t *packing);

#define PACKING_MAX_ROOM (INT32_C(1) << 30)

/* Sets bins[i], 0 .. *n_bins - 1, for things of sizes[i], 1..room each, by best fit. Returns false if memory runs out.
 */
bool packing_best_fit(int64_t n, const int32_t *sizes, int32_t room, uint64_t seed, int64_t *bins, int64_t *n_bins);

#endif
