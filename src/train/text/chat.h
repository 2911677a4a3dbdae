/* chat.h - zerotrain generate --chat: a dialogue with a model, by its own chat template. */
#ifndef ZEROTRAIN_CHAT_H
#define ZEROTRAIN_CHAT_H

#include "train/text/generator.h"

/* Opens tokenizer and template, tries the template with --system's text, and sets [model] seq_len, unless it is set: to
 * max_position_embeddings, but at most 4096. [collective] */
zero_status_t chat_read(options_t *options, zero_comm_t *comm, prompt_t *prompt);

/* Takes turns until stdin ends: a line is the user's message; blank ones are left out. Prints the answers to stdout. A
 * message for which the positions do not suffice ends it with ZERO_ERROR_USAGE. [collective] */
zero_status_t chat_run(generator_t *generator, prompt_t *prompt);

#endif
