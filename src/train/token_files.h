/* token_files.h - token files of every format behind one reader.
 *
 * A format is a row in a table: how it is recognised, where its tokens start, how wide they are. Files are mapped, not
 * read. text: any bytes, one token each. llmc: 256 int32 of header (magic 20240520 version 1: uint16 tokens; magic
 * 20240801 version 7: uint32), then the count the header names. nanogpt: raw uint16. megatron: PREFIX.bin has the
 * tokens alone, PREFIX.idx says what they are (megatron_index.h). Little-endian.
 */
#ifndef ZEROTRAIN_TOKEN_FILES_H
#define ZEROTRAIN_TOKEN_FILES_H

#include "train/options.h"

typedef struct token_file {
    const char *path;         /* owned; of the file that has the tokens */
    const unsigned char *map; /* whole file */
    size_t map_bytes;
    options_format_t format;     /* as recognised: not auto */
    const unsigned char *tokens; /* first token; may be unaligned */
    int token_bytes;             /* 1, 2, 4 or 8 */
    bool is_signed;              /* no negative token passes token_file_check */
    int64_t n_tokens;
} token_file_t;

/* auto: a pair of .bin and .idx is megatron, else llm.c's magic, else a name ending in .bin is nanogpt, else text. A
 * pair goes by either file or, where that is no file's name, by what both have before the ending. */
zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file);
void token_file_close(token_file_t *file);
/* out[i] = token first + i, which token_file_check has seen, widened. */
void token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *out);
/* ZERO_ERROR_FORMAT and a line (file, position, token, vocabulary) for the first token that is negative or
 * >= vocab_size in the range. */
zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size);

#endif
