/* tokens.c - see tokens.h. */
#include "train/tokenizer/tokens.h"

#include <stdlib.h>

#include "train/report/report.h"

zero_status_t tokens_add(tokens_t *tokens, int32_t token)
{
    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity > 0 ? 2 * tokens->capacity : 64;
        int32_t *at = realloc(tokens->at, capacity * sizeof *at);
        if (!at)
            return report_rank_error(ZERO_ERROR_MEMORY, "tokenizer: no memory for %zu tokens", capacity);
        tokens->at = at;
        tokens->capacity = capacity;
    }
    tokens->at[tokens->n++] = token;
    return ZERO_OK;
}

void tokens_free(tokens_t *tokens)
{
    free(tokens->at);
    *tokens = (tokens_t){0};
}
