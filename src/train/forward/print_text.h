/* print_text.h - tokens as text on stdout. */
#ifndef ZEROTRAIN_PRINT_TEXT_H
#define ZEROTRAIN_PRINT_TEXT_H

#include "train/tokenizer/tokenizer.h"

/* Returns the tokenizer of a model's directory, or of bytes if vocab_size is 256. NULL if there is none, or none that
 * can be read: a line then says why. */
tokenizer_t *print_text_open(const char *directory, int64_t vocab_size);
/* Prints tokens; without a tokenizer as numbers. '?' stands for control characters (C0 and C1) but tabs and the ends of
 * lines, LF and CR LF, since what a model says must not control a terminal. ascii_only: also for all other bytes that
 * are not ASCII. */
void print_text(const tokenizer_t *tokenizer, const int32_t *tokens, int n_tokens, bool ascii_only);
/* Ends the text with a line feed. */
void print_text_end(void);

#endif
