/* token_format.h - the header of zerotrain's own token files, which launch/tokenize writes.
 *
 * All numbers are little-endian. 64 bytes of header, then three arrays without gaps, then the end of the file:
 *
 *      0  8 bytes   "ZEROTOK" and a zero
 *      8  uint32    version, 1
 *     12  uint32    bytes of a token: 1, 2 or 4
 *     16  uint64    number of tokens
 *     24  uint64    size of the vocabulary: every token is below it
 *     32  uint64    XXH3 (64 bits) of the tokenizer.json that made the tokens; 0: not known
 *     40  uint64    number of documents
 *     48  uint32    1: there is a mask; 0: every token counts
 *     52  uint32    1: documents 2 p and 2 p + 1 are pair p: the answer that is preferred, and the other; 0: they are
 *                   not in pairs
 *     56  uint64    a hash of what of it decides tokens (tokenizer_rules.h); 0: not known, as in older files
 *     64  tokens, then zeros up to a multiple of 8 bytes
 *         uint64    of each document the number of its first token: 0 for the first, each above the one before
 *         bytes     the mask: bit i % 8 of byte i / 8 says whether token i counts as a target; further bits are zero
 */
#ifndef ZEROTRAIN_TOKEN_FORMAT_H
#define ZEROTRAIN_TOKEN_FORMAT_H

#include "train/data/token_files.h"
#include "zero.h"

#define TOKEN_HEADER_BYTES 64
#define TOKEN_HEADER_MAGIC "ZEROTOK" /* with its zero */

typedef struct token_header {
    int token_bytes;
    int64_t n_tokens;
    int64_t vocab_size;                          /* at most INT32_MAX */
    uint64_t tokenizer, tokenizer_rules;         /* 0: not known */
    uint64_t n_documents, documents_at, mask_at; /* bytes from the beginning of the file; mask_at 0: no mask */
    bool has_pairs;
} token_header_t;

/* Returns whether a file of n_bytes begins as ours do. */
bool token_header_is_ours(const unsigned char *head, uint64_t n_bytes);
/* Returns whether a header of ours says that there is a mask. head: TOKEN_HEADER_BYTES. */
bool token_header_names_mask(const unsigned char *head);
/* Checks the header against itself and the file's true size, and trusts nothing in it before that. head: the first
 * TOKEN_HEADER_BYTES, or all if there are fewer. The path is for messages. Returns ZERO_ERROR_FORMAT, with a log line.
 */
zero_status_t token_header_read(const char *path, const unsigned char *head, uint64_t n_bytes, token_header_t *header);

/* ---- token documents ---- */
/* Which documents begin within a part of a file. Only zerotrain's own token files say. */

bool token_documents_are_there(const token_file_t *file);
/* Sets begins[0 .. *n_begins - 1] to those of 0 .. n_tokens - 1, ascending, for which a document begins with token
 * first + begins[i]. begins has room for n_tokens. Logs nothing: sets *fault on failure. */
zero_status_t token_documents_find(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *begins,
                                   int64_t *n_begins, token_fault_t *fault);

/* Sets begins[0 .. *n] to where documents `first` and up begin, at most n_most, and where the last of them ends.
 * Returns ZERO_ERROR_FORMAT or ZERO_ERROR_IO, with a log line. n_most: at most 1024. */
zero_status_t token_documents_list(const token_file_t *file, uint64_t first, int64_t n_most, int64_t *begins,
                                   int64_t *n);

/* Checks that documents begin one after another within the tokens. Returns ZERO_ERROR_FORMAT or ZERO_ERROR_IO, with a
 * log line. */
zero_status_t token_documents_check(const token_file_t *file);

/* ---- token mask ---- */
/* Which tokens of a file count as targets, as zerotrain's own token files can say. In files without a mask every token
 * counts. */

bool token_mask_is_there(const token_file_t *file);
/* Counts those of n_tokens from `first` on that count as targets. Logs nothing: sets *fault on failure. */
zero_status_t token_mask_count(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t *n_counted,
                               token_fault_t *fault);
/* Sets targets[i] to `none` where token first + i does not count. */
zero_status_t token_mask_apply(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t none,
                               int32_t *targets, token_fault_t *fault);

/* Checks that the mask ends with the tokens: the bits of its last byte that stand for no token. Returns
 * ZERO_ERROR_FORMAT or ZERO_ERROR_IO, with a log line. */
zero_status_t token_mask_check(const token_file_t *file);

#endif
