/* hf_config.h - reads and writes config.json, which describes the architecture and sizes of a model's weights. */
#ifndef ZEROTRAIN_HF_CONFIG_H
#define ZEROTRAIN_HF_CONFIG_H

#include "train/options/options.h"

/* Fills options->model from <options->model.init>/config.json (Hugging Face's keys). If init is a directory of
 * checkpoints, it becomes that of the newest. Does nothing for "random". Returns ZERO_ERROR_USAGE, with a log line that
 * names both, if the user has set a value that disagrees with the file. */
zero_status_t hf_config_apply(options_t *options);

/* Returns whether a directory is that of a model or an adapter itself, and writes the path of the file that says so. */
bool hf_config_is_there(const char *directory, char path[OPTIONS_MAX_PATH + 32]);

/* Turns the name of a directory of checkpoints into that of the newest. Refuses one that is a model itself as well. */
zero_status_t hf_config_find_latest(char init[OPTIONS_MAX_PATH]);

/* Reads what a model's config.json says, for hf_config_text and then free(). *text is NULL if the directory has none.
 */
zero_status_t hf_config_read(const char *directory, char **text);

/* Returns the text of such a file for a model, for free(), with which transformers loads a checkpoint's weights of this
 * dtype. source: what the file said that the model was made from, whose other keys are kept (special tokens, positions,
 * dropout); NULL: none. Returns NULL if there is no memory. */
char *hf_config_text(const model_options_t *model, zero_dtype_t dtype, const char *source);

#endif
