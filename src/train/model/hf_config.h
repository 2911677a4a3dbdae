/* hf_config.h - reads and writes config.json, which describes the architecture and sizes of a model's weights. */
#ifndef ZEROTRAIN_HF_CONFIG_H
#define ZEROTRAIN_HF_CONFIG_H

#include "train/options/options.h"

/* Fills options->model from <options->model.init>/config.json (Hugging Face's GPT-2 or Llama keys). Does nothing for
 * "random". Returns ZERO_ERROR_USAGE, with a log line that names both, if the user has set a value that disagrees with
 * the file. */
zero_status_t hf_config_apply(options_t *options);

/* Returns the text of such a file for options->model, for free(), with which transformers loads a checkpoint's weights.
 * NULL: no memory. */
char *hf_config_text(const options_t *options);

#endif
