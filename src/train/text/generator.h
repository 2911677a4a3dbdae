/* generator.h - a model on its device continues prompts, one after another: what `generate` with one prompt, a dialogue
 * (chat.h) and a file of prompts (prompt_list.h) have in common.
 */
#ifndef ZEROTRAIN_GENERATOR_H
#define ZEROTRAIN_GENERATOR_H

#include <jansson.h>

#include "train/model/model.h"
#include "train/options/options.h"
#include "train/text/chat_template.h"
#include "train/text/tokenizer.h"

/* ---- the prompt ---- */

/* A prompt of a file's. */
typedef struct listed_prompt {
    int32_t n_tokens;
    int32_t end; /* of a dialogue: prompt_t.end; -1: it is none */
} listed_prompt_t;

/* What generate is given. With --chat and --prompts, only rank 0 has tokenizer, template and records. */
typedef struct prompt {
    tokenizer_t *tokenizer;
    tokens_t tokens; /* of all prompts; --chat: none yet */
    /* --chat, and --prompts with messages: */
    chat_template_t *chat;
    json_t *dialogue; /* --chat: {"messages": [...]} */
    int32_t end;      /* the special token that the template puts behind answers; -1: none. --chat: on all ranks */
    /* --prompts: */
    json_t *records; /* the file's objects */
    int64_t n_prompts;
    listed_prompt_t *list; /* [n_prompts], owned, on all ranks */
} prompt_t;

void prompt_close(prompt_t *prompt);

/* Appends a text's tokens, as `tokenizers` does by default, but without a second beginning of text if the text brings
 * its own. where: how an error's line begins. */
zero_status_t prompt_encode(const tokenizer_t *tokenizer, const char *where, const char *text, size_t n_bytes,
                            tokens_t *tokens);

/* Renders {"messages": [...]} up to the answer, and appends its tokens to the prompt's: the template writes special
 * tokens itself. */
zero_status_t prompt_encode_dialogue(prompt_t *prompt, const char *where, const json_t *dialogue);

/* Sets prompt->end: a model that was tuned on dialogues ends answers with this token, though eos_token_id may still be
 * the base model's. A template that refuses the dialogue that is tried, or ends answers with text, has none. */
zero_status_t prompt_find_end(prompt_t *prompt);

/* Returns config.json's max_position_embeddings; 0: it names none. */
int64_t prompt_named_positions(const model_options_t *model);

/* Returns why [model] seq_len can be no longer, to be put behind it in a line; empty if there is no reason. */
const char *prompt_limit_note(const model_options_t *model);

/* Makes [model] seq_len as long as n_prompt tokens and max_tokens more can get, unless it is set or the model has a
 * table of positions. Refuses a prompt that leaves no room. Lowers *max_tokens to what it leaves, and says so; and also
 * if there are more than config.json names. where: as above. */
zero_status_t prompt_fit(model_options_t *model, const char *where, int64_t n_prompt, int64_t *max_tokens);

/* Gives rank 0's tokens to all ranks. [collective] */
zero_status_t prompt_share(zero_comm_t *comm, tokens_t *tokens);

/* ---- the generator ---- */

#define GENERATOR_MAX_STOPS 64

typedef struct generator {
    session_t session;
    const tokenizer_t *tokenizer; /* the caller's; of the speaker */
    bool is_shown;                /* what is added goes to stdout, as it comes */
    int32_t *tokens;              /* [seq_len], owned: n_prompt of a prompt, and what was added, up to n_all */
    int n_prompt, n_all;
    bool has_stopped; /* at a token that ends a text, the last of tokens, which is not shown; else the room was full */
    int32_t stops[GENERATOR_MAX_STOPS];
    int n_stops;
    double began_s, first_s, warm_s, last_s; /* by the clock: before the prompt; at tokens 1, 16 and the last */
} generator_t;

/* Loads the model of options->model.init, and the tokens that end its texts: eos_token_id of generation_config.json,
 * else of config.json. The caller closes the generator, whatever is returned. [collective] */
zero_status_t generator_open(const options_t *options, zero_comm_t *comm, const tokenizer_t *tokenizer,
                             generator_t *generator);
void generator_close(generator_t *generator, bool failed);
/* Adds a token that ends texts; -1: none. */
void generator_add_stop(generator_t *generator, int32_t token);

/* Continues a prompt of less than seq_len tokens by options->generate.max_tokens at most, and as many as there are
 * positions for. Of what the last call left, the beginning that both texts have in common is not computed again, if
 * `continues`. [collective] */
zero_status_t generator_run(generator_t *generator, const int32_t *prompt, int n_prompt, uint64_t seed, bool continues);

/* Returns the text that was added, for free(), with its length; NULL: no memory. is_answer: without special tokens, and
 * without the space that some tokenizers begin a text with. */
char *generator_text(const generator_t *generator, bool is_answer, size_t *n_bytes);

/* Prints how fast it was. */
void generator_report(const generator_t *generator);

#endif
