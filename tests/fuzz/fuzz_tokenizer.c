/* fuzz_tokenizer.c - a model's tokenizer.json. What an accepted file makes of a text are tokens that it has, each of at
 * least one byte. */
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "train/text/tokenizer.h"

#define VOCAB_SIZE 300

static void check_round_trip(const tokenizer_t *tokenizer)
{
    static const char text[] = "ab 11  <|end|>abab \n";
    char back[4 * sizeof text] = "";
    size_t n_back = 0, n_bytes;
    tokens_t tokens = {0};
    zero_status_t status = tokenizer_encode(tokenizer, text, sizeof text - 1, false, &tokens);
    for (size_t i = 0; i < tokens.n; i++) {
        const char *bytes = tokenizer_bytes(tokenizer, tokens.at[i], &n_bytes);
        FUZZ_REQUIRE(n_bytes > 0 && tokens.at[i] < VOCAB_SIZE, "token %d is none of the file's", (int)tokens.at[i]);
        if (n_back + n_bytes < sizeof back)
            memcpy(back + n_back, bytes, n_bytes);
        n_back += n_bytes;
    }
    /* A space may be put before each part. An added token may be written like bytes that it does not stand for. */
    FUZZ_REQUIRE(status != ZERO_OK || n_back >= tokens.n, "%zu tokens give %zu bytes", tokens.n, n_back);
    tokens_free(&tokens);
}

int fuzz_tokenizer(const uint8_t *data, size_t n_bytes)
{
    tokenizer_t *tokenizer;
    fuzz_begin();
    fuzz_write("tokenizer.json", data, n_bytes);
    zero_status_t status = tokenizer_open(fuzz_path("."), VOCAB_SIZE, &tokenizer);
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    check_round_trip(tokenizer);
    tokenizer_close(tokenizer);
    return 0;
}
