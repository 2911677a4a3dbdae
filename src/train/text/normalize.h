/* normalize.h - a tokenizer's normalizers: what is done to text before it is split. */
#ifndef ZEROTRAIN_NORMALIZE_H
#define ZEROTRAIN_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "train/text/split.h"
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

/* ---- normal form ---- */
/* Unicode's normal form C (UAX 15), by utf8proc: characters and their marks composed, marks in order. */

/* Returns whether this build has utf8proc. */
bool normal_form_is_there(void);
/* Composes valid UTF-8. Returns it for free(), with a zero behind it, and its length; NULL: no memory, or not there. */
char *normal_form_c(const char *text, size_t n_bytes, size_t *n_out);

/* ---- metaspace ---- */
/* The pre-tokenizer "Metaspace": a mark, U+2581 in SentencePiece's vocabularies, stands for a space. */

typedef enum metaspace_prefix { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS } metaspace_prefix_t;

typedef struct metaspace {
    char *mark;                /* NULL: there is none, and text stays as it is */
    metaspace_prefix_t prefix; /* puts a mark before text that does not begin with one: never, of the first part of a
                                * text, or of each part */
    bool splits;               /* each mark begins a word */
} metaspace_t;

/* Calls fn on each word of a part of a text. is_first: it is where the text begins. */
zero_status_t metaspace_run(const metaspace_t *metaspace, bool is_first, const char *text, size_t n_bytes, split_fn fn,
                            void *user);

#endif
