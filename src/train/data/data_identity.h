/* data_identity.h - how a resumed run recognizes its training data, wherever the files are now. */
#ifndef ZEROTRAIN_DATA_IDENTITY_H
#define ZEROTRAIN_DATA_IDENTITY_H

#include "train/data/data.h"

typedef struct data_identity {
    int64_t n_tokens;
    uint64_t sample; /* hash of the files' sizes, in order, and of samples of their bytes: all bytes of small files */
} data_identity_t;

static inline bool data_identity_is_same(const data_identity_t *a, const data_identity_t *b)
{
    return a->n_tokens == b->n_tokens && a->sample == b->sample;
}

/* Reads the identity of files that data_open has accepted, and that have n_tokens. paths: separated by commas, as in
 * [data] train. Reads little, however large the files are. Returns ZERO_ERROR_IO, with a log line, if one cannot be
 * read. */
zero_status_t data_identity_read(const char *paths, int64_t n_tokens, data_identity_t *identity);

/* Adds files to the identity of several, and numbers that say how they are read. */
void data_identity_add(data_identity_t *all, const data_identity_t *files, const int64_t *numbers, size_t n_numbers);

/* The model's tokenizer.json, and the name of a file that has its vocabulary. */
typedef struct model_tokenizer {
    uint64_t hash;    /* XXH3; 0: there is none */
    const void *text; /* its content, of n_bytes */
    uint64_t n_bytes;
    const char *vocabulary; /* also of another kind, such as tokenizer.model; NULL: there is none */
} model_tokenizer_t;

/* Refuses data that another tokenizer made than the model's, and text that format = auto found where the model has a
 * tokenizer, with a line and ZERO_ERROR_USAGE. A tokenizer.json that is only written in another way makes the same
 * tokens: that is said. Tokens that do not say what made them are accepted, and so is text with [data] format = text:
 * its bytes are then the tokens. */
zero_status_t data_check_tokenizer(const data_t *data, const model_tokenizer_t *tokenizer);

#endif
