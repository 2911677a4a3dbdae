/* token_files.h - token files of every format behind one reader.
 *
 * A format is a row in a table: how it is recognised, where its tokens start, how wide they are. text: any bytes, one
 * token each. llmc: 256 int32 of header (magic 20240520 version 1: uint16 tokens; magic 20240801 version 7: uint32),
 * then the count the header names. nanogpt: raw uint16. megatron: PREFIX.bin has the tokens alone, PREFIX.idx says what
 * they are (megatron_index.h). Little-endian.
 */
#ifndef ZEROTRAIN_TOKEN_FILES_H
#define ZEROTRAIN_TOKEN_FILES_H

#include "train/options/options.h"

typedef struct token_file {
    const char *path; /* owned; of the file that has the tokens */
    int fd;           /* owned; -1: none */
    uint64_t n_bytes; /* of the file, when it was opened */
    unsigned char head[16];
    options_format_t format; /* as recognised: not auto */
    uint64_t tokens_at;      /* bytes before the first token */
    int token_bytes;         /* 1, 2, 4 or 8 */
    bool is_signed;          /* no negative token is in a vocabulary */
    int64_t n_tokens;
} token_file_t;

/* Why tokens could not be read. */
typedef struct token_fault {
    zero_status_t status; /* ZERO_ERROR_FORMAT: a token beyond the vocabulary; ZERO_ERROR_IO */
    int64_t position;     /* of that token, or of the first of those that could not be read */
    int64_t token;        /* ZERO_ERROR_FORMAT */
    int error;            /* ZERO_ERROR_IO: errno, or -1 where the file ends */
} token_fault_t;

/* auto: a pair of .bin and .idx is megatron, else llm.c's magic, else a name ending in .bin is nanogpt, else text. A
 * pair goes by either file or, where that is no file's name, by what both have before the ending. */
zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file);
void token_file_close(token_file_t *file);
/* out[i] = token first + i, widened, every one of them in 0..vocab_size - 1 whatever happens to the file meanwhile;
 * out NULL only checks. Says nothing: sets *fault where it fails. vocab_size: at most INT32_MAX. */
zero_status_t token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size,
                              int32_t *out, token_fault_t *fault);
/* Puts into text what a line about it should say: file, position, token, vocabulary. in_use: token_file_check has seen
 * the file before. */
#define TOKEN_FAULT_TEXT (OPTIONS_MAX_PATH + 512)
void token_fault_describe(const token_fault_t *fault, const token_file_t *file, int64_t vocab_size, bool in_use,
                          char text[TOKEN_FAULT_TEXT]);
/* ZERO_ERROR_FORMAT and a line for the first token that is negative or >= vocab_size in the range, ZERO_ERROR_IO and a
 * line where it cannot be read. Does not read a file whose every number is in the vocabulary. */
zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size);

#endif
