/* generate.h - zerotrain generate: a checkpoint continues a text. */
#ifndef ZEROTRAIN_GENERATE_H
#define ZEROTRAIN_GENERATE_H

#include "train/options/options.h"
#include "train/text/generator.h"

/* ---- print text ---- */
/* Tokens as text on stdout. */

/* Returns the tokenizer of a model's directory, or of bytes if vocab_size is 256. NULL if there is none, or none that
 * can be read: a line then says why. */
tokenizer_t *print_text_open(const char *directory, int64_t vocab_size);
/* Prints tokens; without a tokenizer as numbers. '?' stands for control characters (C0 and C1) but tabs and the ends of
 * lines, LF and CR LF, since what a model says must not control a terminal. ascii_only: also for all other bytes that
 * are not ASCII. */
void print_text(const tokenizer_t *tokenizer, const int32_t *tokens, int n_tokens, bool ascii_only);
/* Ends the text with a line feed. */
void print_text_end(void);

/* ---- generate ---- */

/* Reads what is to be continued, once config.json has been read, and makes [model] seq_len as long as the longest text
 * can get, unless it is set or the model has a table of positions. prompt_close, whatever is returned. [collective] */
zero_status_t generate_read(options_t *options, zero_comm_t *comm, prompt_t *prompt);
/* Chooses the precision, once the device is resolved. */
void generate_choose(train_options_t *train, zero_device_type_t device);

/* Prints to stdout what the model adds: to one prompt as it comes, to turns of a dialogue, to a file of prompts. It is
 * the same text on any number of ranks and at every stage. [collective] */
zero_status_t generate(const options_t *options, zero_comm_t *comm, prompt_t *prompt);

#endif
