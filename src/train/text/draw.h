/* draw.h - draws a token from logits: a pure function. */
#ifndef ZEROTRAIN_DRAW_H
#define ZEROTRAIN_DRAW_H

#include "train/model/model.h"

/* ---- sample ---- */
/* Generates text from the model, token by token: for zerotrain generate and [train] sample_every. */

typedef struct sample_spec {
    int n_tokens;      /* to generate, at most */
    float temperature; /* of the softmax; 0: always the likeliest token */
    int top_k;         /* draw among the k likeliest; 0: among all */
    double top_p;      /* and among the likeliest of these whose probabilities add up to it; 0 or 1: among all */
    uint64_t seed;
    int n_kept; /* of the prompt: a beginning that the last text has, too, whose cache is taken as it is */
    /* Called on every rank with each new token, which is the same on all. Returns whether to go on. NULL: always. */
    bool (*take)(void *user, int32_t token);
    void *user;
} sample_spec_t;

/* Continues the prompt, the first n_prompt (at least 1) of tokens, in place; sets *n_all to how many there are then.
 * tokens has room for n_prompt + spec->n_tokens. Beyond [model] seq_len the model sees the last seq_len tokens. Every
 * rank gets rank 0's tokens. [collective] */
zero_status_t sample_generate(model_t *model, zero_comm_t *comm, const sample_spec_t *spec, int32_t *tokens,
                              int n_prompt, int *n_all);

/* ---- draw ---- */

/* For logits of a vocabulary. */
typedef struct draw_scratch {
    int32_t *order;  /* [vocab_size] */
    double *weights; /* of each token, then the sums of DRAW_CHUNK of them */
} draw_scratch_t;

#define DRAW_CHUNK 2048 /* weights that are summed on their own, whatever the number of threads */

/* Returns whether there was memory; else nothing needs to be freed. */
bool draw_scratch_create(size_t vocab_size, draw_scratch_t *scratch);
void draw_scratch_free(draw_scratch_t *scratch);

/* Draws one of logits[n] by spec's temperature, top_k and top_p. random is in [0, 1). */
int32_t draw_token(const float *logits, int n, const sample_spec_t *spec, double random, draw_scratch_t *scratch);

#endif
