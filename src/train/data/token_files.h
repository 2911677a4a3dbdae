/* token_files.h - reads token files of every format.
 *
 * A format is a row in a table: how it is recognized, where its tokens start, how wide they are. text: any bytes, one
 * token each. llmc: a header of 256 int32 (magic 20240520 version 1: uint16 tokens; magic 20240801 version 7: uint32),
 * then as many tokens as the header says. zerotrain: token_format.h, the only format with documents
 * (token_format.h) and a mask (token_format.h). nanogpt: raw uint16. uint32: raw uint32. megatron: PREFIX.bin contains
 * only tokens, PREFIX.idx describes them (megatron.h). All are little-endian.
 */
#ifndef ZEROTRAIN_TOKEN_FILES_H
#define ZEROTRAIN_TOKEN_FILES_H

#include "train/options/options.h"

typedef struct token_file {
    const char *path; /* owned; of the file that has the tokens */
    int fd;           /* owned; -1: none */
    uint64_t n_bytes; /* of the file, when it was opened */
    unsigned char head[64];
    options_format_t format; /* as recognized: not auto */
    uint64_t tokens_at;      /* bytes before the first token */
    int token_bytes;         /* 1, 2, 4 or 8 */
    bool is_signed;          /* no negative token is in a vocabulary */
    int64_t n_tokens;

    /* Of format zerotrain; in others all are 0. */
    int64_t vocab_size;                          /* every token is below it */
    uint64_t tokenizer;                          /* XXH3 of the tokenizer.json that made the tokens; 0: not known */
    uint64_t tokenizer_rules;                    /* of the same, as tokenizer_rules_hash; 0: not known */
    uint64_t n_documents, documents_at, mask_at; /* mask_at 0: every token counts */
    bool has_pairs;                              /* documents are pairs of answers */
} token_file_t;

/* Why tokens could not be read. */
typedef struct token_fault {
    zero_status_t status; /* ZERO_ERROR_FORMAT: a token beyond the vocabulary; ZERO_ERROR_IO */
    int64_t position;     /* of that token, or of the first of those that could not be read */
    int64_t token;        /* ZERO_ERROR_FORMAT */
    int error;            /* ZERO_ERROR_IO: of file_bytes_read */
} token_fault_t;

/* Opens a file and checks its header. auto: a pair of .bin and .idx is megatron; else a file with llm.c's magic number
 * is llmc, one with our own zerotrain; else a name ending in .bin is nanogpt; else it is text. A pair is named by
 * either file, or by what both names have before the extension unless that is itself a file. */
zero_status_t token_file_open(const char *path, options_format_t format, token_file_t *file);
void token_file_close(token_file_t *file);
/* Returns whether the file is zerotrain's own with a loss mask, by its first bytes. Says nothing of one that cannot be
 * read. */
bool token_file_has_mask(const char *path);
/* Reads out[i] = token first + i, widened. Every one is in 0..vocab_size - 1, whatever happens to the file meanwhile.
 * If out is NULL, only checks. Logs nothing: sets *fault on failure. vocab_size: at most INT32_MAX. */
zero_status_t token_file_read(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size,
                              int32_t *out, token_fault_t *fault);
/* Describes a fault for a log line: file, position, token, vocabulary. in_use: the file has passed token_file_check
 * before. */
#define TOKEN_FAULT_TEXT (OPTIONS_MAX_PATH + 512)
void token_fault_describe(const token_fault_t *fault, const token_file_t *file, int64_t vocab_size, bool in_use,
                          char text[TOKEN_FAULT_TEXT]);
/* Checks a range of tokens. Returns ZERO_ERROR_FORMAT, with a log line, for the first one that is negative or >=
 * vocab_size; ZERO_ERROR_IO, with a log line, if they cannot be read. Reads nothing if every number of the file's width
 * is in the vocabulary. */
zero_status_t token_file_check(const token_file_t *file, int64_t first, int64_t n_tokens, int64_t vocab_size);

/* ---- token suspects ---- */
/* Files that format auto would take for what they hardly are. */

/* Refuses what can be trained on as text but hardly should be: packed and binary files, markup. */
zero_status_t token_suspects_check_text(const token_file_t *file);
/* Refuses a file without a header whose uint16 numbers are the halves of uint32 tokens. */
zero_status_t token_suspects_check_width(const token_file_t *file);

#endif
