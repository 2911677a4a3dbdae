/* ends_of_text.h - the tokens that begin and end a text, for the config.json of a model that came from nowhere. */
#ifndef ZEROTRAIN_ENDS_OF_TEXT_H
#define ZEROTRAIN_ENDS_OF_TEXT_H

#include "train/hub/model_files.h"

/* Sets bos_token_id and eos_token_id of a configuration as the tokenizer's generation_config.json names them, else as
 * its tokenizer_config.json or special_tokens_map.json does, by the token's number in tokenizer.json: so that programs
 * which read config.json alone know them, too. What none names is left as it is. *config: JSON, for free(). */
void ends_of_text_name(const model_files_t *files, char **config);

#endif
