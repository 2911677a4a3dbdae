/* generate.h - zerotrain generate: a checkpoint continues a text. */
#ifndef ZEROTRAIN_GENERATE_H
#define ZEROTRAIN_GENERATE_H

#include "train/options/options.h"
#include "train/text/tokenizer.h"

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

/* The text to continue. */
typedef struct prompt {
    tokenizer_t *tokenizer;
    tokens_t tokens;
} prompt_t;

/* Reads the prompt, once config.json has been read, and makes [model] seq_len as long as the whole text can get, unless
 * the model has a table of positions. Lowers max_tokens to what that leaves. prompt_close, whatever is returned. */
zero_status_t generate_read_prompt(generate_options_t *options, model_options_t *model, prompt_t *prompt);
void prompt_close(prompt_t *prompt);
/* Chooses the precision, once the device is resolved. */
void generate_choose(train_options_t *train, zero_device_type_t device);

/* Prints to stdout what the model adds, as it comes: the same text on any number of ranks and at every stage.
 * [collective] */
zero_status_t generate(const options_t *options, zero_comm_t *comm, const prompt_t *prompt);

#endif
