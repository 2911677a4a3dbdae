/* tokenizer_json.h - what the readers of tokenizer.json share: tokenizer_file.c reads the vocabulary,
 * tokenizer_parts.c what is done to text around it. Private to src/train/tokenizer. */
#ifndef ZEROTRAIN_TOKENIZER_JSON_H
#define ZEROTRAIN_TOKENIZER_JSON_H

#include <jansson.h>

#include "train/tokenizer/tokenizer_state.h"

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

#endif
