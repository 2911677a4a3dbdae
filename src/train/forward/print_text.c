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

/* A byte that is printed once the next one is known: a carriage return, which is one with the line feed behind it, or
 * the first byte of a C1 control character, U+0080 to U+009F. EOF: none. */
static int held = EOF;
#define BEFORE_C1 0xc2

static void print_byte(unsigned char c, bool ascii_only)
{
    const int before = held;
    const bool is_c1 = before == BEFORE_C1 && c >= 0x80 && c <= 0x9f;
    held = EOF;
    if (before != EOF)
        putchar(is_c1 || (before == '\r' && c != '\n') ? '?' : before);
    if (is_c1)
        return;
    if (c == '\r' || (c == BEFORE_C1 && !ascii_only))
        held = c;
    else
        putchar(is_printable(c, ascii_only) ? c : '?');
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
            print_byte((unsigned char)bytes[k], ascii_only);
    }
}

void print_text_end(void)
{
    print_byte('\n', false);
}
