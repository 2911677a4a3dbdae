/* tokens.c - see tokens.h. */
#include "tokens.h"

#include <inttypes.h>
#include <stdlib.h>

#include "input.h"

#define LLMC_HEADER_BYTES 1024

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
    size_t header_bytes = file.format == FORMAT_LLMC ? LLMC_HEADER_BYTES : 0;
    FUZZ_REQUIRE(file.n_tokens >= 0 && header_bytes + (size_t)(file.n_tokens * file.token_bytes) == n_bytes,
                 "%" PRId64 " tokens of %d bytes do not fill %zu bytes", file.n_tokens, file.token_bytes, n_bytes);
    for (size_t i = 0; i < sizeof VOCABULARIES / sizeof VOCABULARIES[0]; i++) {
        fuzz_begin();
        status = token_file_check(&file, 0, file.n_tokens, VOCABULARIES[i]);
        bool is_good = is_in_vocabulary(&file, content + header_bytes, VOCABULARIES[i]);
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
