/* tokenizer_state.h - what a tokenizer consists of. Private to src/train/tokenizer. */
#ifndef ZEROTRAIN_TOKENIZER_STATE_H
#define ZEROTRAIN_TOKENIZER_STATE_H

#include "train/tokenizer/bpe.h"
#include "train/tokenizer/metaspace.h"
#include "train/tokenizer/normalize.h"
#include "train/tokenizer/split.h"
#include "train/tokenizer/tokenizer.h"

/* A token that is found in the text itself, before all else. */
typedef struct added_token {
    char *content; /* normalized, if the text is when it is looked for */
    size_t n_bytes;
    int32_t id;
    bool is_special;    /* it stands for no text */
    bool is_normalized; /* it is looked for in normalized text; the others are cut out of the text as it is */
} added_token_t;

struct tokenizer {
    bool tokens_are_bytes; /* no file */
    normalizer_t normalizer;
    bpe_t bpe;
    bpe_token_t *texts; /* [bpe.n_tokens] what tokens stand for; NULL: their bytes */
    bool strips_first;  /* a space at the beginning of a text stands for nothing */
    splitter_t splitter;
    metaspace_t metaspace; /* instead of the splitter */
    added_token_t *added;  /* the longest first */
    size_t n_added;
    int32_t *before; /* special tokens that come before every text */
    size_t n_before;
};

/* Fills a tokenizer from a parsed file; the caller closes it whatever is returned. path: for log lines. */
zero_status_t tokenizer_read_file(const char *path, int64_t vocab_size, tokenizer_t *tokenizer);

#endif
