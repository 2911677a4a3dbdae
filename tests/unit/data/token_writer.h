/* token_writer.h - writes zerotrain's own token files for tests, by the format's text alone (token_format.h). */
#ifndef ZERO_TEST_TOKEN_WRITER_H
#define ZERO_TEST_TOKEN_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { WRITER_HEADER_BYTES = 64, WRITER_VOCAB = 256 };

typedef struct content {
    int width, n_tokens, vocab_size;
    uint64_t tokenizer;
    int document_every;        /* tokens of a document */
    bool (*begins)(int token); /* whether a document begins; NULL: by document_every */
    bool (*counts)(int token); /* NULL: no mask */
} writer_content_t;

static inline int writer_token(int i)
{
    return (i * 37 + i / 11) % WRITER_VOCAB;
}

static inline void writer_put(unsigned char *at, uint64_t number, int width)
{
    for (int i = 0; i < width; i++)
        at[i] = (unsigned char)(number >> 8 * i);
}

/* Returns whether a document begins with a token; the first of a file always does. */
static inline bool writer_begins(const writer_content_t *c, int token)
{
    return token == 0 || (c->begins ? c->begins(token) : token % c->document_every == 0);
}

/* Returns the size of what it writes to `out`. */
static inline size_t writer_make(const writer_content_t *c, unsigned char *out)
{
    int n_documents = 0;
    for (int i = 0; i < c->n_tokens; i++)
        n_documents += writer_begins(c, i);
    size_t at = WRITER_HEADER_BYTES + (size_t)(c->n_tokens * c->width + 7) / 8 * 8;
    memset(out, 0, at + (size_t)n_documents * 8 + (size_t)c->n_tokens / 8 + 1);
    memcpy(out, "ZEROTOK", 8);
    writer_put(out + 8, 1, 4);
    writer_put(out + 12, (uint64_t)c->width, 4);
    writer_put(out + 16, (uint64_t)c->n_tokens, 8);
    writer_put(out + 24, (uint64_t)c->vocab_size, 8);
    writer_put(out + 32, c->tokenizer, 8);
    writer_put(out + 40, (uint64_t)n_documents, 8);
    writer_put(out + 48, c->counts != NULL, 4);
    for (int i = 0; i < c->n_tokens; i++)
        writer_put(out + WRITER_HEADER_BYTES + i * c->width, (uint64_t)writer_token(i), c->width);
    for (int i = 0; i < c->n_tokens; i++)
        if (writer_begins(c, i)) {
            writer_put(out + at, (uint64_t)i, 8);
            at += 8;
        }
    if (!c->counts)
        return at;
    for (int i = 0; i < c->n_tokens; i++)
        out[at + (size_t)i / 8] |= (unsigned char)(c->counts(i) << i % 8);
    return at + (size_t)(c->n_tokens + 7) / 8;
}

#endif
