/* tokens.h - what fuzz_tokens and fuzz_megatron require of a token file. */
#ifndef ZERO_FUZZ_TOKENS_H
#define ZERO_FUZZ_TOKENS_H

#include "train/data/token_files.h"

/* Opens the file, whose tokens stand in `content`, and checks and reads it with several vocabularies. What is taken is
 * full of tokens; what passes token_file_check is read as it stands in the file, every token of the vocabulary; what
 * does not pass has one beyond it. */
void fuzz_token_file(const char *path, options_format_t format, const uint8_t *content, size_t n_bytes);

#endif
