/* hf_config.h - a model directory's config.json: which architecture and sizes its weights are of. */
#ifndef ZEROTRAIN_HF_CONFIG_H
#define ZEROTRAIN_HF_CONFIG_H

#include "train/options/options.h"

/* Fills options->model from <options->model.init>/config.json (Hugging Face's GPT-2 or Llama keys). A setting the user
 * gave that disagrees with the file (0 means not given) is ZERO_ERROR_USAGE naming both. Does nothing for "random". */
zero_status_t hf_config_apply(options_t *options);

/* The same file's text for options->model, for free(): what transformers loads a checkpoint's weights with. NULL
 * without memory. */
char *hf_config_text(const options_t *options);

#endif
