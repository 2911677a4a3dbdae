/* token_format.c - see token_format.h. Pure arithmetic: the arrays are read elsewhere. */
#include "train/data/token_format.h"

#include <inttypes.h>
#include <string.h>

#include "train/data/file_bytes.h"
#include "train/report/report.h"

#define VERSION 1
#define ALIGN 8

bool token_header_is_ours(const unsigned char *head, uint64_t n_bytes)
{
    return n_bytes >= sizeof TOKEN_HEADER_MAGIC && memcmp(head, TOKEN_HEADER_MAGIC, sizeof TOKEN_HEADER_MAGIC) == 0;
}

/* The header as it stands in the file. */
typedef struct fields {
    uint32_t version, token_bytes, mask, pairs;
    uint64_t n_tokens, vocab_size, tokenizer, n_documents, rules;
} fields_t;

static fields_t take_fields(const unsigned char *head)
{
    return (fields_t){.version = load_uint(head + 8, 4, 0),
                      .token_bytes = load_uint(head + 12, 4, 0),
                      .n_tokens = load_uint64(head + 16, 0),
                      .vocab_size = load_uint64(head + 24, 0),
                      .tokenizer = load_uint64(head + 32, 0),
                      .n_documents = load_uint64(head + 40, 0),
                      .mask = load_uint(head + 48, 4, 0),
                      .pairs = load_uint(head + 52, 4, 0),
                      .rules = load_uint64(head + 56, 0)};
}

bool token_header_names_mask(const unsigned char *head)
{
    return take_fields(head).mask != 0;
}

/* Returns what is wrong with a field; NULL: nothing. */
static const char *field_fault(const fields_t *f)
{
    if (f->token_bytes != 1 && f->token_bytes != 2 && f->token_bytes != 4)
        return "tokens of 1, 2 or 4 bytes are read, and it names another width";
    if (f->vocab_size < 1 || f->vocab_size > INT32_MAX)
        return "the size of the vocabulary is not in 1..2^31 - 1";
    if (f->n_documents > f->n_tokens)
        return "it names more documents than tokens";
    if (f->n_documents == 0 && f->n_tokens > 0)
        return "it names tokens but no document";
    if (f->mask > 1 || f->pairs > 1)
        return "it has flags of a later version";
    if (f->pairs && (!f->mask || f->n_documents % 2 != 0))
        return "it names pairs, but an odd number of documents or no mask";
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
    const char *fault = field_fault(&f);
    if (fault)
        return report_error(ZERO_ERROR_FORMAT, "'%s': the header is damaged: %s; write the file anew", path, fault);
    uint64_t end;
    token_header_t read = {.token_bytes = (int)f.token_bytes,
                           .vocab_size = (int64_t)f.vocab_size,
                           .tokenizer = f.tokenizer,
                           .tokenizer_rules = f.rules,
                           .n_documents = f.n_documents,
                           .has_pairs = f.pairs != 0};
    if (!find_arrays(&f, &read, &end) || end != n_bytes)
        return report_error(ZERO_ERROR_FORMAT,
                            "'%s': the header names %" PRIu64 " tokens of %u bytes in %" PRIu64
                            " documents%s, which do not fill the file's %" PRIu64 " bytes; write the file anew",
                            path, f.n_tokens, f.token_bytes, f.n_documents, f.mask ? " with a mask" : "", n_bytes);
    read.n_tokens = (int64_t)f.n_tokens;
    *header = read;
    return ZERO_OK;
}

/* ---- token documents ---- */
/* Like tokens, the table is read by pread whenever it is needed: it may be
 * larger than memory, and the file may change. */

#define CHUNK 1024

/* A part of the table. */
typedef struct table {
    unsigned char bytes[8 * CHUNK];
} table_t;

bool token_documents_are_there(const token_file_t *file)
{
    return file->format == FORMAT_ZEROTRAIN;
}

static uint64_t start_at(const table_t *table, uint64_t i)
{
    return load_uint64(table->bytes, (int64_t)i);
}

/* Reads the starts of documents i .. i + n - 1, at most CHUNK. Returns 0 or an error, as file_bytes_read. */
static int read_table(const token_file_t *file, uint64_t i, uint64_t n, table_t *table)
{
    return file_bytes_read(file->fd, file->documents_at + 8 * i, table->bytes, 8 * (size_t)n);
}

/* Finds the first document that does not begin before token `first`; n_documents if there is none. */
static int find_first(const token_file_t *file, int64_t first, table_t *table, uint64_t *found)
{
    uint64_t low = 0, high = file->n_documents;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int error = read_table(file, middle, 1, table);
        if (error)
            return error;
        if (start_at(table, 0) < (uint64_t)first)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low;
    return 0;
}

/* Documents that are not in order, in a file that has changed since it was checked, are left out. */
zero_status_t token_documents_find(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *begins,
                                   int64_t *n_begins, token_fault_t *fault)
{
    table_t table;
    uint64_t next = 0, least = (uint64_t)first, end = (uint64_t)first + (uint64_t)n_tokens;
    int64_t n_found = 0;
    int error = find_first(file, first, &table, &next);
    for (uint64_t n; !error && next < file->n_documents && least < end; next += n) {
        n = file->n_documents - next < CHUNK ? file->n_documents - next : CHUNK;
        n = n < end - least ? n : end - least; /* no more can begin here */
        error = read_table(file, next, n, &table);
        for (uint64_t i = 0; !error && i < n && least < end; i++) {
            uint64_t start = start_at(&table, i);
            if (start >= least && start < end)
                begins[n_found++] = (int32_t)(start - (uint64_t)first);
            if (start >= least)
                least = start < end ? start + 1 : end;
        }
    }
    *fault = (token_fault_t){.status = error ? ZERO_ERROR_IO : ZERO_OK, .position = first, .error = error};
    *n_begins = error ? 0 : n_found;
    return fault->status;
}

/* Refuses a document that does not begin where one can. */
static zero_status_t check_start(const token_file_t *file, uint64_t document, uint64_t start, uint64_t least)
{
    if (start >= least && start < (uint64_t)file->n_tokens && (document > 0 || start == 0))
        return ZERO_OK;
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s': document %" PRIu64 " begins at token %" PRIu64 ", which cannot be: there are %" PRId64
                        " tokens; write the file anew",
                        file->path, document, start, file->n_tokens);
}

zero_status_t token_documents_list(const token_file_t *file, uint64_t first, int64_t n_most, int64_t *begins,
                                   int64_t *n)
{
    table_t table;
    unsigned char last[8] = {0};
    const uint64_t left = file->n_documents - first, n_read = left < (uint64_t)n_most ? left : (uint64_t)n_most;
    const bool is_end = n_read == left;
    int error = read_table(file, first, n_read, &table);
    if (!error && !is_end)
        error = file_bytes_read(file->fd, file->documents_at + 8 * (first + n_read), last, sizeof last);
    if (error)
        return file_bytes_fail(file->path, error);
    for (uint64_t i = 0, least = 0; i <= n_read; i++) {
        const uint64_t end = is_end ? (uint64_t)file->n_tokens : load_uint64(last, 0);
        const uint64_t start = i < n_read ? start_at(&table, i) : end;
        if (i < n_read || !is_end)
            ZERO_TRY(check_start(file, first + i, start, least));
        begins[i] = (int64_t)start;
        least = start + 1;
    }
    *n = (int64_t)n_read;
    return ZERO_OK;
}

zero_status_t token_documents_check(const token_file_t *file)
{
    table_t table;
    uint64_t least = 0;
    for (uint64_t done = 0, n; done < file->n_documents; done += n) {
        n = file->n_documents - done < CHUNK ? file->n_documents - done : CHUNK;
        int error = read_table(file, done, n, &table);
        if (error)
            return file_bytes_fail(file->path, error);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t start = start_at(&table, i);
            ZERO_TRY(check_start(file, done + i, start, least));
            least = start + 1;
        }
    }
    return ZERO_OK;
}

/* ---- token mask ---- */
/* Like tokens, a mask is read by pread whenever it is needed, since the file may
 * change. */

#define CHUNK_BYTES 8192

bool token_mask_is_there(const token_file_t *file)
{
    return file->mask_at != 0;
}

/* A part of a mask. */
typedef struct bits {
    int64_t first; /* token of the first bit: a multiple of 8 */
    unsigned char bytes[CHUNK_BYTES];
} bits_t;

static bool bit_of(const bits_t *bits, int64_t token)
{
    int64_t i = token - bits->first;
    return bits->bytes[i / 8] >> (i % 8) & 1;
}

/* Reads the bits of token `first` and of those that follow it, up to `end`. Returns the token after the last one. */
static int64_t read_bits(const token_file_t *file, int64_t first, int64_t end, bits_t *bits, token_fault_t *fault)
{
    bits->first = first / 8 * 8;
    int64_t last = end - bits->first > 8 * CHUNK_BYTES ? bits->first + 8 * CHUNK_BYTES : end;
    size_t n_bytes = (size_t)((last - bits->first + 7) / 8);
    int error = file_bytes_read(file->fd, file->mask_at + (uint64_t)(first / 8), bits->bytes, n_bytes);
    *fault = (token_fault_t){.status = error ? ZERO_ERROR_IO : ZERO_OK, .position = first, .error = error};
    return last;
}

zero_status_t token_mask_count(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t *n_counted,
                               token_fault_t *fault)
{
    bits_t bits;
    int64_t end = first + n_tokens, n = 0;
    if (!token_mask_is_there(file)) {
        *n_counted = n_tokens;
        return ZERO_OK;
    }
    for (int64_t token = first; token < end;) {
        int64_t last = read_bits(file, token, end, &bits, fault);
        ZERO_TRY(fault->status);
        for (; token < last; token++)
            n += bit_of(&bits, token);
    }
    *n_counted = n;
    return ZERO_OK;
}

zero_status_t token_mask_apply(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t none,
                               int32_t *targets, token_fault_t *fault)
{
    bits_t bits;
    int64_t end = token_mask_is_there(file) ? first + n_tokens : first;
    for (int64_t token = first; token < end;) {
        int64_t last = read_bits(file, token, end, &bits, fault);
        ZERO_TRY(fault->status);
        for (; token < last; token++)
            if (!bit_of(&bits, token))
                targets[token - first] = none;
    }
    return ZERO_OK;
}

/* ---- checks ---- */

zero_status_t token_mask_check(const token_file_t *file)
{
    unsigned char last;
    if (!token_mask_is_there(file) || file->n_tokens % 8 == 0)
        return ZERO_OK;
    int error = file_bytes_read(file->fd, file->mask_at + (uint64_t)(file->n_tokens / 8), &last, 1);
    if (error)
        return file_bytes_fail(file->path, error);
    if (last >> (file->n_tokens % 8))
        return report_error(ZERO_ERROR_FORMAT, "'%s': the mask goes on after the last token; write the file anew",
                            file->path);
    return ZERO_OK;
}
