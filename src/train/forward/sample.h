/* sample.h - generates text from the model, token by token: for zerotrain generate and [train] sample_every. */
#ifndef ZEROTRAIN_SAMPLE_H
#define ZEROTRAIN_SAMPLE_H

#include "train/model/model.h"

typedef struct sample_spec {
    int n_tokens;      /* to generate, at most */
    float temperature; /* of the softmax; 0: always the likeliest token */
    int top_k;         /* draw among the k likeliest; 0: among all */
    double top_p;      /* and among the likeliest of these whose probabilities add up to it; 0 or 1: among all */
    uint64_t seed;
    /* Called on every rank with each new token, which is the same on all. Returns whether to go on. NULL: always. */
    bool (*take)(void *user, int32_t token);
    void *user;
} sample_spec_t;

/* Continues the prompt, the first n_prompt (at least 1) of tokens, in place; sets *n_all to how many there are then.
 * tokens has room for n_prompt + spec->n_tokens. Beyond [model] seq_len the model sees the last seq_len tokens. Every
 * rank gets rank 0's tokens. [collective] */
zero_status_t sample_generate(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens,
                              int n_prompt, int *n_all);

#endif
