/* tokenizer_parts.h - reads what tokenizer.json does to text around the vocabulary. For tokenizer_file.c. */
#ifndef ZEROTRAIN_TOKENIZER_PARTS_H
#define ZEROTRAIN_TOKENIZER_PARTS_H

#include <jansson.h>

#include "train/text/bpe.h"
#include "train/text/normalize.h"
#include "train/text/split.h"
#include "train/text/tokenizer.h"

/* ---- tokenizer state ---- */
/* What a tokenizer consists of. Private to src/train/tokenizer. */

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

/* ---- tokenizer json ---- */
/* What the readers of tokenizer.json share: tokenizer_file.c reads the vocabulary,
 * tokenizer_parts.c what is done to text around it. Private to src/train/tokenizer. */

/* The steps of a decoder, in the only order in which they may come. */
typedef enum decoder_step {
    DECODER_NONE,
    DECODER_REPLACE,
    DECODER_BYTE_FALLBACK,
    DECODER_FUSE,
    DECODER_STRIP
} decoder_step_t;

typedef struct file {
    const char *path;
    int64_t vocab_size;
    const json_t *root, *model;
    tokenizer_t *tokenizer;
    bool is_of_bytes; /* the vocabulary writes bytes as characters; otherwise tokens are text, as in SentencePiece */
    bool splits_into_bytes;      /* a ByteLevel has been read among the pre-tokenizers */
    int32_t byte_of[512];        /* of the characters that stand for bytes; -1: none */
    decoder_step_t decoder_step; /* the last that was read */
    const char *mark, *space;    /* what the decoder replaces, and by what; NULL: nothing */
    bool joins_bytes;            /* the decoder takes "<0x0A>" for a byte */
} file_t;

zero_status_t tokenizer_malformed(const file_t *file, const char *what);
/* Refuses what is not implemented, by its name. */
zero_status_t tokenizer_refuse(const file_t *file, const char *what, const char *name, const char *wanted);

const char *tokenizer_text_of(const json_t *object, const char *key);
/* Returns whether a value is neither missing nor null nor false nor "". */
bool tokenizer_is_set(const json_t *object, const char *key);

/* ---- tokenizer parts ---- */

/* Read normalizer and decoder; and, when the vocabulary is there, what splits the text and what stands before it. */
zero_status_t tokenizer_read_forms(file_t *file);
zero_status_t tokenizer_read_splits(file_t *file);

#endif
