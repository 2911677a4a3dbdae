/* sample.h - generates text from the model, token by token. */
#ifndef ZEROTRAIN_SAMPLE_H
#define ZEROTRAIN_SAMPLE_H

#include "train/model/model.h"

typedef struct sample_spec {
    int n_tokens;      /* to generate */
    float temperature; /* of the softmax; 0: always the likeliest token */
    int top_k;         /* draw among the k likeliest; 0: among all */
    uint64_t seed;
} sample_spec_t;

/* Continues the prompt, the first n_prompt (at least 1) of tokens, in place. tokens has room for n_prompt +
 * spec->n_tokens. Every rank generates the same, since a forward pass is collective. */
zero_status_t sample_generate(model_t *model, const sample_spec_t *spec, int32_t *tokens, int n_prompt);

/* Draws one token: a pure function. `random` is in [0, 1); logits has n entries; order is scratch of n entries. */
int32_t sample_draw(const float *logits, int n, float temperature, int top_k, double random, int32_t *order);

#endif
