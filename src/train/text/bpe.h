/* bpe.h - byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909): a word into tokens.
 *
 * A word begins as the tokens of its bytes or, with is_of_chars, of its characters: for one that has none stand the
 * tokens of its bytes, "<0x0A>", or the unknown token. The pair of neighbours that comes first in the list of merges
 * becomes one token, the leftmost if it occurs twice, until no pair is in the list.
 */
#ifndef ZEROTRAIN_BPE_H
#define ZEROTRAIN_BPE_H

#include "zero.h"

#define BPE_MARK "\u2581" /* stands for a space in SentencePiece's vocabularies, which begin words with it */

/* A list of tokens that grows. */

typedef struct tokens {
    int32_t *at;
    size_t n, capacity;
} tokens_t;

zero_status_t tokens_add(tokens_t *tokens, int32_t token);
void tokens_free(tokens_t *tokens); /* all zeros is allowed */

typedef struct bpe_token {
    char *bytes; /* NULL: the vocabulary has no such token */
    size_t n_bytes;
} bpe_token_t;

typedef struct bpe_merge {
    int32_t left, right, merged; /* left -1: the slot is free */
    uint32_t rank;
} bpe_merge_t;

typedef struct bpe {
    bpe_token_t *tokens; /* [n_tokens] by number */
    size_t n_tokens;
    int32_t of_byte[256]; /* -1: none. With is_of_chars, what stands for the bytes of unknown characters: all or none */
    int32_t *slots;       /* [n_slots] a hash table of tokens by their bytes; -1: free */
    size_t n_slots;
    bpe_merge_t *merges; /* [n_merge_slots] a hash table by left and right */
    size_t n_merge_slots, n_merges;
    bool takes_whole_words; /* a word that is a token is not merged: "ignore_merges" */
    bool is_of_chars;       /* a word is valid UTF-8, cut into characters */
    int32_t unknown;        /* with is_of_chars: the token of what has no other; -1: nothing stands for it */
    bool fuses_unknown;     /* one for a whole run of them */
    bool has_inner_mark;    /* a merge gives a token in which BPE_MARK comes behind another character */
} bpe_t;

/* Make room for tokens 0 .. n_tokens - 1 and for n_merges. */
zero_status_t bpe_create(size_t n_tokens, size_t n_merges, bpe_t *bpe);
void bpe_destroy(bpe_t *bpe);
/* Add a token, copying its bytes; and a merge, in order, of tokens that are there. Return false if it is there already,
 * or if there is no memory. */
bool bpe_add_token(bpe_t *bpe, int32_t token, const char *bytes, size_t n_bytes);
bool bpe_add_merge(bpe_t *bpe, int32_t left, int32_t right, int32_t merged);
/* Adds a token that bpe_find and bpe_encode never give: its bytes may be another's. */
bool bpe_add_unfindable(bpe_t *bpe, int32_t token, const char *bytes, size_t n_bytes);
/* Returns the token with these bytes; -1: none. */
int32_t bpe_find(const bpe_t *bpe, const char *bytes, size_t n_bytes);

/* Appends a word's tokens. */
zero_status_t bpe_encode(const bpe_t *bpe, const char *word, size_t n_bytes, tokens_t *tokens);

#endif
