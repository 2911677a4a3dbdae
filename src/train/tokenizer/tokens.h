/* tokens.h - a list of tokens that grows. */
#ifndef ZEROTRAIN_TOKENS_H
#define ZEROTRAIN_TOKENS_H

#include "zero.h"

typedef struct tokens {
    int32_t *at;
    size_t n, capacity;
} tokens_t;

zero_status_t tokens_add(tokens_t *tokens, int32_t token);
void tokens_free(tokens_t *tokens); /* all zeros is allowed */

#endif
