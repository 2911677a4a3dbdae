/* normalize.h - a tokenizer's normalizers: what is done to text before it is split. */
#ifndef ZEROTRAIN_NORMALIZE_H
#define ZEROTRAIN_NORMALIZE_H

#include "zero.h"

#define NORMALIZE_MAX_STEPS 8

/* Puts `to` before text that is not empty, or, if there is a `from`, in place of each `from`; without either, brings
 * text into normal form C. */
typedef struct normalize_step {
    char *from, *to;
} normalize_step_t;

typedef struct normalizer {
    normalize_step_t steps[NORMALIZE_MAX_STEPS];
    int n_steps;
} normalizer_t;

/* Adds a step, copying the strings. path: of the file that asks for it, for log lines. from: NULL, or not empty. to:
 * NULL only where normal_form_is_there(). */
zero_status_t normalizer_add(normalizer_t *normalizer, const char *path, const char *from, const char *to);
void normalizer_destroy(normalizer_t *normalizer);

/* Applies all steps to valid UTF-8. Sets *out, for free(), and its length. */
zero_status_t normalizer_run(const normalizer_t *normalizer, const char *text, size_t n_bytes, char **out,
                             size_t *n_out);

/* Returns text with `to` in place of each `from`, or as it is if `from` is NULL, for free(); NULL: no memory. */
char *normalize_replaced(const char *text, size_t n_bytes, const char *from, const char *to, size_t *n_out);

#endif
