/* metaspace.h - the pre-tokenizer "Metaspace": a mark, U+2581 in SentencePiece's vocabularies, stands for a space. */
#ifndef ZEROTRAIN_METASPACE_H
#define ZEROTRAIN_METASPACE_H

#include "train/tokenizer/split.h"

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
