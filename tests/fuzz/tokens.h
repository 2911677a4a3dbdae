/* tokens.h - what fuzz_tokens and fuzz_megatron require of a token file. */
#ifndef ZERO_FUZZ_TOKENS_H
#define ZERO_FUZZ_TOKENS_H

#include "train/data/token_files.h"

/* Opens the file, whose tokens are in `content`, and checks and reads it with several vocabularies. An accepted file is
 * full of tokens; if token_file_check accepts it, it is read as it is in the file, and every token is in the
 * vocabulary; if not, one is beyond it. */
void fuzz_token_file(const char *path, options_format_t format, const uint8_t *content, size_t n_bytes);

#endif
