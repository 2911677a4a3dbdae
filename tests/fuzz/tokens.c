/* tokens.c - see tokens.h. */
#include "tokens.h"

#include <inttypes.h>
#include <stdlib.h>

#include "input.h"
#include "train/data/token_format.h"

#define LLMC_HEADER_BYTES 1024
#define OUR_HEADER_BYTES 64

static size_t header_bytes_of(const token_file_t *file)
{
    return file->format == FORMAT_LLMC ? LLMC_HEADER_BYTES : file->format == FORMAT_ZEROTRAIN ? OUR_HEADER_BYTES : 0;
}

/* The size of a file with what was read of it. */
static size_t size_of(const token_file_t *file)
{
    size_t token_bytes = (size_t)(file->n_tokens * file->token_bytes);
    if (file->format != FORMAT_ZEROTRAIN)
        return header_bytes_of(file) + token_bytes;
    return OUR_HEADER_BYTES + (token_bytes + 7) / 8 * 8 + 8 * (size_t)file->n_documents +
           (token_mask_is_there(file) ? (size_t)(file->n_tokens + 7) / 8 : 0);
}

/* Counting and applying a mask agree with each other, and with the bits at the end of the file. */
static void check_mask(const token_file_t *file, const uint8_t *end)
{
    token_fault_t fault;
    int64_t n_counted = -1, n_left = 0, n_set = 0, n = file->n_tokens;
    int32_t *targets = calloc((size_t)n + 1, sizeof *targets);
    FUZZ_REQUIRE(targets, "out of memory");
    FUZZ_REQUIRE(token_mask_count(file, 0, n, &n_counted, &fault) == ZERO_OK, "a mask cannot be counted");
    FUZZ_REQUIRE(token_mask_apply(file, 0, n, -1, targets, &fault) == ZERO_OK, "a mask cannot be applied");
    for (int64_t i = 0; i < n; i++) {
        n_left += targets[i] == 0;
        n_set += !token_mask_is_there(file) || (*(end - (n + 7) / 8 + i / 8) >> (i % 8) & 1);
    }
    FUZZ_REQUIRE(n_counted == n_left && n_left == n_set, "%" PRId64 " counted, %" PRId64 " left, %" PRId64 " set",
                 n_counted, n_left, n_set);
    free(targets);
}

/* Reads the table of documents as it stands in the file. */
static uint64_t start_of(const token_file_t *file, const uint8_t *content, uint64_t document)
{
    uint64_t start = 0;
    for (int b = 7; b >= 0; b--)
        start = start << 8 | content[file->documents_at + 8 * document + (uint64_t)b];
    return start;
}

/* What is found from a token on are the documents in the table. */
static void check_documents(const token_file_t *file, const uint8_t *content)
{
    token_fault_t fault;
    const int64_t n = file->n_tokens;
    int32_t *begins = calloc((size_t)n + 1, sizeof *begins);
    FUZZ_REQUIRE(begins, "out of memory");
    for (int64_t first = 0; token_documents_are_there(file) && first < n; first += n / 3 + 1) {
        int64_t n_found = -1;
        uint64_t next = 0;
        FUZZ_REQUIRE(token_documents_find(file, first, n - first, begins, &n_found, &fault) == ZERO_OK,
                     "documents cannot be found");
        while (next < file->n_documents && start_of(file, content, next) < (uint64_t)first)
            next++;
        FUZZ_REQUIRE((uint64_t)n_found == file->n_documents - next, "%" PRId64 " found from token %" PRId64 " on",
                     n_found, first);
        for (int64_t i = 0; i < n_found; i++, next++)
            FUZZ_REQUIRE((uint64_t)(first + begins[i]) == start_of(file, content, next), "document %" PRId64, i);
    }
    free(begins);
}

/* A token by the formats' own texts: little-endian, `token_bytes` wide, with a sign or without. */
static int64_t token_at(const token_file_t *file, const uint8_t *tokens, int64_t i)
{
    const uint8_t *bytes = tokens + i * file->token_bytes;
    uint64_t token = 0, sign = UINT64_C(1) << (8 * file->token_bytes - 1);
    for (int b = file->token_bytes - 1; b >= 0; b--)
        token = token << 8 | bytes[b];
    return file->is_signed ? (int64_t)((token ^ sign) - sign) : (int64_t)token;
}

static bool is_in_vocabulary(const token_file_t *file, const uint8_t *tokens, int64_t vocab_size)
{
    for (int64_t i = 0; i < file->n_tokens; i++)
        if (token_at(file, tokens, i) < 0 || token_at(file, tokens, i) >= vocab_size)
            return false;
    return true;
}

static void check_read(const token_file_t *file, const uint8_t *tokens, int64_t vocab_size)
{
    token_fault_t fault;
    int32_t *values = malloc((size_t)file->n_tokens * sizeof *values + 1);
    FUZZ_REQUIRE(values, "out of memory");
    zero_status_t status = token_file_read(file, 0, file->n_tokens, vocab_size, values, &fault);
    FUZZ_REQUIRE(status == ZERO_OK, "%s where all tokens are in the vocabulary", zero_status_name(status));
    for (int64_t i = 0; i < file->n_tokens; i++)
        FUZZ_REQUIRE(values[i] == token_at(file, tokens, i), "token %" PRId64 " is read as %" PRId32, i, values[i]);
    free(values);
}

void fuzz_token_file(const char *path, options_format_t format, const uint8_t *content, size_t n_bytes)
{
    static const int64_t VOCABULARIES[] = {1, 256, 50257, INT32_MAX};
    token_file_t file;
    bool accepted = false;
    fuzz_begin();
    zero_status_t status = token_file_open(path, format, &file);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return;
    }
    size_t header_bytes = header_bytes_of(&file);
    FUZZ_REQUIRE(file.n_tokens >= 0 && size_of(&file) == n_bytes,
                 "%" PRId64 " tokens of %d bytes do not fill %zu bytes", file.n_tokens, file.token_bytes, n_bytes);
    check_mask(&file, content + n_bytes);
    check_documents(&file, content);
    for (size_t i = 0; i < sizeof VOCABULARIES / sizeof VOCABULARIES[0]; i++) {
        int64_t in_header = file.format == FORMAT_ZEROTRAIN ? file.vocab_size : INT32_MAX;
        fuzz_begin();
        status = token_file_check(&file, 0, file.n_tokens, VOCABULARIES[i]);
        bool is_good =
            is_in_vocabulary(&file, content + header_bytes, in_header < VOCABULARIES[i] ? in_header : VOCABULARIES[i]);
        FUZZ_REQUIRE((status == ZERO_OK) == is_good, "%s with a vocabulary of %" PRId64, zero_status_name(status),
                     VOCABULARIES[i]);
        if (is_good)
            check_read(&file, content + header_bytes, VOCABULARIES[i]);
        else
            fuzz_refused(status);
        accepted = accepted || is_good;
    }
    fuzz_accepted = accepted;
    token_file_close(&file);
}
