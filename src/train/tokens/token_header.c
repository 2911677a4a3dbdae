/* token_header.c - see token_header.h. Pure arithmetic: the arrays are read elsewhere. */
#include "train/tokens/token_header.h"
#include "train/tokens/little_endian.h"
#include "train/report/report.h"

#include <inttypes.h>
#include <string.h>

#define VERSION 1
#define ALIGN 8

bool token_header_is_ours(const unsigned char *head, uint64_t n_bytes)
{
    return n_bytes >= sizeof TOKEN_HEADER_MAGIC && memcmp(head, TOKEN_HEADER_MAGIC, sizeof TOKEN_HEADER_MAGIC) == 0;
}

/* The header as it stands in the file. */
typedef struct fields {
    uint32_t version, token_bytes, mask;
    uint64_t n_tokens, vocab_size, tokenizer, n_documents;
} fields_t;

static fields_t take_fields(const unsigned char *head)
{
    return (fields_t){.version = load_uint(head + 8, 4, 0),
                      .token_bytes = load_uint(head + 12, 4, 0),
                      .n_tokens = load_uint64(head + 16, 0),
                      .vocab_size = load_uint64(head + 24, 0),
                      .tokenizer = load_uint64(head + 32, 0),
                      .n_documents = load_uint64(head + 40, 0),
                      .mask = load_uint(head + 48, 4, 0)};
}

/* Returns what is wrong with a field; NULL: nothing. */
static const char *field_fault(const unsigned char *head, const fields_t *f)
{
    static const unsigned char zeros[12];
    if (f->token_bytes != 1 && f->token_bytes != 2 && f->token_bytes != 4)
        return "tokens of 1, 2 or 4 bytes are read, and it names another width";
    if (f->vocab_size < 1 || f->vocab_size > INT32_MAX)
        return "the size of the vocabulary is not in 1..2^31 - 1";
    if (f->n_documents > f->n_tokens)
        return "it names more documents than tokens";
    if (f->n_documents == 0 && f->n_tokens > 0)
        return "it names tokens but no document";
    if (f->mask > 1 || memcmp(head + 52, zeros, sizeof zeros) != 0)
        return "it has flags of a later version";
    return NULL;
}

/* Computes where the arrays begin and the file ends. Returns false if a number is beyond 2^63. */
static bool find_arrays(const fields_t *f, token_header_t *header, uint64_t *end)
{
    uint64_t token_bytes, document_bytes, mask_bytes = f->mask ? f->n_tokens / 8 + (f->n_tokens % 8 != 0) : 0;
    if (__builtin_mul_overflow(f->n_tokens, (uint64_t)f->token_bytes, &token_bytes) || token_bytes > INT64_MAX - 128 ||
        __builtin_mul_overflow(f->n_documents, sizeof(uint64_t), &document_bytes))
        return false;
    header->documents_at = TOKEN_HEADER_BYTES + (token_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (__builtin_add_overflow(header->documents_at, document_bytes, end))
        return false;
    header->mask_at = f->mask ? *end : 0;
    return !__builtin_add_overflow(*end, mask_bytes, end) && *end <= INT64_MAX;
}

zero_status_t token_header_read(const char *path, const unsigned char *head, uint64_t n_bytes, token_header_t *header)
{
    if (!token_header_is_ours(head, n_bytes))
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s' is not a token file of launch/tokenize: it does not begin with " TOKEN_HEADER_MAGIC
                            "; set [data] format",
                            path);
    if (n_bytes < TOKEN_HEADER_BYTES)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the header is truncated: %" PRIu64 " bytes instead of %d; write the file anew", path,
                            n_bytes, TOKEN_HEADER_BYTES);
    const fields_t f = take_fields(head);
    if (f.version != VERSION)
        return report_error(ZERO_ERROR_FORMAT, "'%s' is a token file of version %u, only %d is read", path, f.version,
                            VERSION);
    const char *fault = field_fault(head, &f);
    if (fault)
        return report_error(ZERO_ERROR_FORMAT, "'%s': the header is damaged: %s; write the file anew", path, fault);
    uint64_t end;
    token_header_t read = {.token_bytes = (int)f.token_bytes,
                           .vocab_size = (int64_t)f.vocab_size,
                           .tokenizer = f.tokenizer,
                           .n_documents = f.n_documents};
    if (!find_arrays(&f, &read, &end) || end != n_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the header names %" PRIu64 " tokens of %u bytes in %" PRIu64
                            " documents%s, which do not fill the file's %" PRIu64 " bytes; write the file anew",
                            path, f.n_tokens, f.token_bytes, f.n_documents, f.mask ? " with a mask" : "", n_bytes);
    read.n_tokens = (int64_t)f.n_tokens;
    *header = read;
    return ZERO_OK;
}
