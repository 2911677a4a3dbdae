/* generate.h - zerotrain generate: a checkpoint continues a text. */
#ifndef ZEROTRAIN_GENERATE_H
#define ZEROTRAIN_GENERATE_H

#include "train/options/options.h"
#include "train/tokenizer/tokenizer.h"

/* The text to continue. */
typedef struct prompt {
    tokenizer_t *tokenizer;
    tokens_t tokens;
} prompt_t;

/* Reads the prompt, once config.json has been read, and makes [model] seq_len as long as the whole text can get, unless
 * the model has a table of positions. prompt_close, whatever is returned. */
zero_status_t generate_read_prompt(options_t *options, prompt_t *prompt);
void prompt_close(prompt_t *prompt);
/* Settles what depends on the device, once that is resolved. */
void generate_settle(options_t *options);

/* Prints to stdout what the model adds, as it comes: the same text on any number of ranks and at every stage.
 * [collective] */
zero_status_t generate(const options_t *options, zero_comm_t *comm, const prompt_t *prompt);

#endif
