/* tokenizer_rules.h - whether two files of a tokenizer.json make the same tokens: a hash of what decides them, however
 * it is written. launch/tokenizing/rules.py computes the same.
 *
 * Counted are vocabulary, merges and further settings of "model", "added_tokens", "normalizer" and "pre_tokenizer". Not
 * counted: spaces, the order of keys, merges as text or as pairs, a setting of "model" that is null, false, zero or
 * empty as one that is absent, and all other keys (truncation, padding, what is put around a text, decoding).
 *
 * The hash is XXH3 of these four, one after another, each as bytes: n, t or f for null, true or false; i and an
 * integer's digits; r and the 8 bytes of a real; s, the number of bytes, a colon and the bytes of a string; [ ... ] of
 * a list's and { ... } of an object's members, by key, each a string and its value.
 */
#ifndef ZEROTRAIN_TOKENIZER_RULES_H
#define ZEROTRAIN_TOKENIZER_RULES_H

#include <stddef.h>
#include <stdint.h>

/* Returns the hash; 0: the text is no JSON object. */
uint64_t tokenizer_rules_hash(const void *text, size_t n_bytes);

#endif
