/* token_mask.c - see token_mask.h. Like tokens, a mask is read by pread whenever it is needed, since the file may
 * change. */
#include "train/tokens/token_mask.h"
#include "train/tokens/file_bytes.h"
#include "train/report/report.h"

#include <inttypes.h>
#include <string.h>

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
        TRY(fault->status);
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
        TRY(fault->status);
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
