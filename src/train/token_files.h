/* token_files.h - token files of every format behind one reader.
 *
 * A format is a row in a table: how it is recognised, where its tokens start, how wide they are. Files are mapped, not
 * read. text: any bytes, one token each. llmc: 256 int32 of header (magic 20240520 version 1: uint16 tokens; magic
 * 20240801 version 7: uint32), then the count the header names. nanogpt: raw uint16. Little-endian.
 */
#ifndef ZEROTRAIN_TOKEN_FILES_H
#define ZEROTRAIN_TOKEN_FILES_H

#include "train/options.h"

typedef struct token_file {
    const char *path;         /* owned */
    const unsigned char *map; /* whole file */
    size_t map_bytes;
    const unsigned char *tokens; /* first token; may be unaligned */
    int token_bytes;             /* 1, 2 or 4 */
    int64_t n_tokens;
} token_file_t;

/* auto: llm.c's magic, else a name ending in .bin is nanogpt, else text. */
zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file);
void token_file_close(token_file_t *file);
/* out[i] = token first + i, widened. */
void token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *out);
/* ZERO_ERROR_FORMAT and a line (file, position, token, vocabulary) for the first token >= vocab_size in the range. */
zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size);

#endif
