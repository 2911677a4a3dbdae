/* draw.h - draws a token from logits: a pure function. */
#ifndef ZEROTRAIN_DRAW_H
#define ZEROTRAIN_DRAW_H

#include "train/forward/sample.h"

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
