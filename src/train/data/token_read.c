/* token_read.c - reads tokens of any width, and checks each against the vocabulary. Nothing is used before its copy has
 * been checked. */
#include <inttypes.h>
#include <stdio.h>

#include "train/data/file_bytes.h"
#include "train/data/token_files.h"
#include "train/report/report.h"

/* Widens checked tokens. One loop per width, so that the compiler sees a constant and vectorizes. Tokens in a
 * vocabulary are not negative, so the sign does not matter. */
static void widen(const unsigned char *tokens, int token_bytes, size_t n_tokens, int32_t *out)
{
    const int64_t n = (int64_t)n_tokens;
    switch (token_bytes) {
    case 1:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load_uint(tokens, 1, i);
        break;
    case 2:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load_uint(tokens, 2, i);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load_uint(tokens, 4, i);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)load_uint64(tokens, i);
        break;
    }
}

static uint32_t largest(const unsigned char *tokens, int token_bytes, size_t n_tokens)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < (int64_t)n_tokens; i++) {
        uint32_t token = load_uint(tokens, token_bytes, i);
        most = token > most ? token : most;
    }
    return most;
}

static uint64_t largest_64(const unsigned char *tokens, size_t n_tokens)
{
    uint64_t most = 0;
    for (int64_t i = 0; i < (int64_t)n_tokens; i++) {
        uint64_t token = load_uint64(tokens, i);
        most = token > most ? token : most;
    }
    return most;
}

/* Returns the largest token as an unsigned number, so that negative ones are largest. The width is a constant in each
 * loop. */
static uint64_t largest_token(const unsigned char *tokens, int token_bytes, size_t n_tokens)
{
    switch (token_bytes) {
    case 1:
        return largest(tokens, 1, n_tokens);
    case 2:
        return largest(tokens, 2, n_tokens);
    case 4:
        return largest(tokens, 4, n_tokens);
    default:
        return largest_64(tokens, n_tokens);
    }
}

static uint64_t token_at(const unsigned char *tokens, int token_bytes, int64_t i)
{
    return token_bytes == 8 ? load_uint64(tokens, i) : load_uint(tokens, token_bytes, i);
}

/* Returns the size of the vocabulary, or that in the file's header if it is smaller. */
static int64_t smaller_vocabulary(const token_file_t *file, int64_t vocab_size)
{
    return file->vocab_size > 0 && file->vocab_size < vocab_size ? file->vocab_size : vocab_size;
}

/* Returns the bound below which unsigned numbers of the file's width are in the vocabulary; 0: all of them are. */
static uint64_t n_allowed(const token_file_t *file, int64_t vocab_size)
{
    uint64_t n = (uint64_t)smaller_vocabulary(file, vocab_size), n_positive = UINT64_C(1)
                                                                              << (8 * file->token_bytes - 1);
    if (file->is_signed)
        return n < n_positive ? n : n_positive;
    return n > 2 * n_positive - 1 ? 0 : n;
}

/* Returns the token that an unsigned number of the file's width stands for. Types of 8 bytes are signed. */
static int64_t token_value(const token_file_t *file, uint64_t token)
{
    uint64_t sign = UINT64_C(1) << (8 * file->token_bytes - 1);
    return file->is_signed ? (int64_t)((token ^ sign) - sign) : (int64_t)token;
}

/* Checks a chunk of tokens, the first of which is token `first` of the file. */
static zero_status_t check_chunk(const token_file_t *file, const unsigned char *chunk, int64_t first, size_t n_tokens,
                                 uint64_t allowed, token_fault_t *fault)
{
    if (allowed == 0 || largest_token(chunk, file->token_bytes, n_tokens) < allowed)
        return ZERO_OK;
    int64_t i = 0;
    while (token_at(chunk, file->token_bytes, i) < allowed)
        i++;
    *fault = (token_fault_t){.status = ZERO_ERROR_FORMAT,
                             .position = first + i,
                             .token = token_value(file, token_at(chunk, file->token_bytes, i))};
    return fault->status;
}

/* Read at a time, on the stack: usually a whole sequence. */
#define CHUNK_BYTES 65536

zero_status_t token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size,
                              int32_t *out, token_fault_t *fault)
{
    unsigned char chunk[CHUNK_BYTES];
    const size_t width = (size_t)file->token_bytes;
    const uint64_t allowed = n_allowed(file, vocab_size);
    for (int64_t done = 0; done < n_tokens;) {
        size_t n = CHUNK_BYTES / width;
        n = n_tokens - done < (int64_t)n ? (size_t)(n_tokens - done) : n;
        int error = file_bytes_read(file->fd, file->tokens_at + (uint64_t)(first + done) * width, chunk, n * width);
        if (error != 0) {
            *fault = (token_fault_t){.status = ZERO_ERROR_IO, .position = first + done, .error = error};
            return fault->status;
        }
        ZERO_TRY(check_chunk(file, chunk, first + done, n, allowed, fault));
        if (out)
            widen(chunk, file->token_bytes, n, out + done);
        done += (int64_t)n;
    }
    return ZERO_OK;
}

void token_fault_describe(const token_fault_t *fault, const token_file_t *file, int64_t vocab_size, bool in_use,
                          char text[TOKEN_FAULT_TEXT])
{
    const char *advice = in_use ? ", and it was not when the run began: the file was changed while in use"
                         : file->format == FORMAT_TEXT ? ", and text needs up to 256"
                                                       : "; it must be that of the tokenizer which made the file";
    if (fault->status == ZERO_ERROR_FORMAT && smaller_vocabulary(file, vocab_size) < vocab_size)
        snprintf(text, TOKEN_FAULT_TEXT,
                 "'%s': token %" PRId64 " at position %" PRId64 " is beyond the vocabulary of %" PRId64
                 " that its own header names: the file is damaged",
                 file->path, fault->token, fault->position, file->vocab_size);
    else if (fault->status == ZERO_ERROR_FORMAT)
        snprintf(text, TOKEN_FAULT_TEXT,
                 "'%s': token %" PRId64 " at position %" PRId64
                 " is beyond the vocabulary: [model] vocab_size is %" PRId64 "%s",
                 file->path, fault->token, fault->position, vocab_size, advice);
    else
        snprintf(text, TOKEN_FAULT_TEXT,
                 "cannot read data file '%s', of %" PRIu64 " bytes, from token %" PRId64 " on: %s", file->path,
                 file->n_bytes, fault->position, file_bytes_error_text(fault->error));
}

zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size)
{
    token_fault_t fault;
    char text[TOKEN_FAULT_TEXT];
    if (n_allowed(file, vocab_size) == 0 || token_file_read(file, first, n_tokens, vocab_size, NULL, &fault) == ZERO_OK)
        return ZERO_OK;
    token_fault_describe(&fault, file, vocab_size, false, text);
    return report_error(fault.status, "%s", text);
}
