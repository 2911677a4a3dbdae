/* pattern.h - which patterns of a tokenizer.json mean the same to PCRE2 as to Oniguruma, with whose Ruby syntax Hugging
 * Face's `tokenizers` reads them. */
#ifndef ZEROTRAIN_PATTERN_H
#define ZEROTRAIN_PATTERN_H

/* Returns NULL if every construct of the pattern is known to mean the same to both, and the pattern cannot match empty
 * text, at which the two go on differently. Else what is not known to, for a message. */
const char *pattern_differs(const char *pattern);

#endif
