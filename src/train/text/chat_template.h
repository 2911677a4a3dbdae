/* chat_template.h - a model's chat template, which turns messages into text: by launch/chat-template, a Python process
 * that lives as long as the template. Jinja2, which transformers uses, renders it there.
 */
#ifndef ZEROTRAIN_CHAT_TEMPLATE_H
#define ZEROTRAIN_CHAT_TEMPLATE_H

#include <jansson.h>

#include "zero.h"

typedef struct chat_template chat_template_t;

/* Starts the process for a model's directory. Whether the directory has a template is found when the first dialogue is
 * rendered. */
zero_status_t chat_template_open(const char *directory, chat_template_t **chat);
void chat_template_close(chat_template_t *chat);

/* Renders {"messages": [{"role", "content"}, ...]}, with "tools" and "chat_template_kwargs" if there are any, and what
 * asks for the assistant's answer. Sets *text, for free(), and its length. where: how an error's line begins; NULL: a
 * refusal has none. Returns ZERO_ERROR_USAGE if the template refuses the dialogue, ZERO_ERROR_IO if the process has
 * ended. */
zero_status_t chat_template_render(chat_template_t *chat, const char *where, const json_t *dialogue, char **text,
                                   size_t *n_bytes);

/* Appends a message to those of a dialogue. content: any bytes; what is not UTF-8 becomes U+FFFD. */
zero_status_t chat_add_message(json_t *dialogue, const char *role, const char *content, size_t n_bytes);

#endif
