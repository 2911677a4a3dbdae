/* megatron.h - reads the index of a Megatron-LM indexed dataset, which describes the tokens in the file next to it.
 *
 * PREFIX.bin contains only tokens; PREFIX.idx has their type and where each sequence begins, little-endian and without
 * padding: "MMIDIDX\0\0", uint64 version 1, uint8 type of token, uint64 number of sequences, uint64 number of document
 * bounds, then int32 tokens of each sequence, int64 byte in PREFIX.bin of each sequence's first token, int64 bounds of
 * documents as numbers of sequences. See megatron/core/datasets/indexed_dataset.py in
 * https://github.com/NVIDIA/Megatron-LM.
 */
#ifndef ZEROTRAIN_MEGATRON_H
#define ZEROTRAIN_MEGATRON_H

#include "train/data/token_files.h"
#include "zero.h"

typedef struct megatron_tokens {
    int token_bytes; /* 1, 2, 4 or 8 */
    bool is_signed;
    int64_t n_tokens; /* in all sequences, which follow each other without gaps and fill PREFIX.bin */
} megatron_tokens_t;

/* Checks the whole index against itself and against the size of PREFIX.bin, and trusts nothing in it before that. The
 * paths are for messages. Returns ZERO_ERROR_FORMAT, with a log line, if anything is wrong. */
zero_status_t megatron_index_read(const char *path, const unsigned char *index, size_t index_bytes,
                                  const char *bin_path, size_t bin_bytes, megatron_tokens_t *tokens);

/* ---- megatron pair ---- */
/* Megatron-LM's pairs of files: PREFIX.bin has the tokens, PREFIX.idx describes them. */

/* Returns the path of the file that has the tokens, for free(): of a pair the .bin, whichever path the user gave. NULL:
 * no memory. */
char *megatron_pair_tokens_path(const char *path, options_format_t format);
/* Returns whether there is an index next to an open file. */
bool megatron_pair_has_index(const token_file_t *file);
/* Takes width, sign and number of the tokens from the index, which is checked. */
zero_status_t megatron_pair_read(token_file_t *file);

#endif
