/* print_text.c - see print_text.h. */
#include "train/forward/print_text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_BYTES 256

tokenizer_t *print_text_open(const char *directory, int64_t vocab_size)
{
    char path[4096 + 32];
    tokenizer_t *tokenizer = NULL;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    if (vocab_size == N_BYTES || access(path, F_OK) == 0)
        (void)tokenizer_open(directory, vocab_size, &tokenizer); /* leaves it NULL if it fails */
    return tokenizer;
}

static bool is_printable(unsigned char c, bool ascii_only)
{
    return c == '\n' || c == '\t' || (c >= 32 && c < 127) || (c >= 128 && !ascii_only);
}

void print_text(const tokenizer_t *tokenizer, const int32_t *tokens, int n_tokens, bool ascii_only)
{
    for (int i = 0; i < n_tokens; i++) {
        size_t n_bytes;
        if (!tokenizer) {
            printf("%d ", (int)tokens[i]);
            continue;
        }
        const char *bytes = tokenizer_bytes(tokenizer, tokens[i], &n_bytes);
        for (size_t k = 0; k < n_bytes; k++)
            putchar(is_printable((unsigned char)bytes[k], ascii_only) ? (unsigned char)bytes[k] : '?');
    }
}
