/* prompt_list.h - zerotrain generate --prompts: continues each prompt of a file. */
#ifndef ZEROTRAIN_PROMPT_LIST_H
#define ZEROTRAIN_PROMPT_LIST_H

#include "train/text/generator.h"

/* Reads a file of lines {"prompt": TEXT} or {"messages": [...]}, and encodes them all. Makes [model] seq_len as long as
 * the longest text can get (prompt_fit). A line that cannot be used is refused by its number. [collective] */
zero_status_t prompt_list_read(options_t *options, zero_comm_t *comm, prompt_t *prompt);

/* Prints a line for each, in order: its object with "text", what the model adds, and "finish_reason": "stop" at a token
 * that ends a text, or with messages where the template ends an answer, else "length". Each has the seed, and so the
 * text, that it would have alone. [collective] */
zero_status_t prompt_list_run(generator_t *generator, prompt_t *prompt);

#endif
