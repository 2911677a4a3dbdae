/* split.h - a tokenizer's pre-tokenizers: text into the words that are encoded one by one. */
#ifndef ZEROTRAIN_SPLIT_H
#define ZEROTRAIN_SPLIT_H

#include "zero.h"

/* ---- pattern ---- */
/* Which patterns of a tokenizer.json mean the same to PCRE2 as to Oniguruma, with whose Ruby syntax Hugging
 * Face's `tokenizers` reads them. */

/* Returns NULL if every construct of the pattern is known to mean the same to both, and the pattern cannot match empty
 * text, at which the two go on differently. Else what is not known to, for a message. */
const char *pattern_differs(const char *pattern);

/* ---- split ---- */

#define SPLIT_MAX_STEPS 8

/* Cuts each word that the steps before it have left at its pattern's matches. Matches and what is between them become
 * words. */
typedef struct split_step {
    void *pattern; /* pcre2_code * */
} split_step_t;

typedef struct splitter {
    split_step_t steps[SPLIT_MAX_STEPS];
    int n_steps;
    void *unknown;   /* pcre2_code *: characters that PCRE2's tables do not know */
    bool adds_space; /* before text that does not begin with one: "add_prefix_space" */
} splitter_t;

/* GPT-2's pattern, which is "ByteLevel" with "use_regex". */
#define SPLIT_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* Adds a step. path: of the file that asks for it, for log lines. Returns ZERO_ERROR_USAGE if the pattern cannot be
 * used, or if this build has no PCRE2. */
zero_status_t splitter_add(splitter_t *splitter, const char *path, const char *pattern);
void splitter_destroy(splitter_t *splitter);

typedef zero_status_t (*split_fn)(void *user, const char *word, size_t n_bytes);

/* Calls fn on each word of valid UTF-8, in order, through steps `first` and later. */
zero_status_t splitter_run(const splitter_t *splitter, int first, const char *text, size_t n_bytes, split_fn fn,
                           void *user);

#endif
