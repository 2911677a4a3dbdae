/* adapter_config.h - adapters as PEFT has them: a directory with adapter_config.json and adapter_model.safetensors. */
#ifndef ZEROTRAIN_ADAPTER_CONFIG_H
#define ZEROTRAIN_ADAPTER_CONFIG_H

#include "train/options/options.h"

#define ADAPTER_CONFIG_FILE "adapter_config.json"
#define ADAPTER_WEIGHTS_FILE "adapter_model.safetensors"

/* Finds what is a model and what an adapter of it. For evaluate and generate model.init may be an adapter: then it
 * becomes lora.init, and the model that it names model.init. For training it may not: ZERO_ERROR_USAGE. Directories of
 * checkpoints become that of the newest. Comes before hf_config_apply. */
zero_status_t adapter_find(options_t *options);
/* Fills options->lora from the files of lora.init, unless it is random; what the user has set must agree. Comes behind
 * hf_config_apply. */
zero_status_t adapter_config_apply(options_t *options);

/* Returns the directory whose tokenizer and chat template go with texts: the adapter's if it has a tokenizer.json, with
 * which it was trained, else the model's. */
const char *adapter_texts_directory(const options_t *options);

/* Refuses a model whose path adapter_config.json cannot name, before anything is trained on it. */
zero_status_t adapter_config_check_path(const options_t *options);
/* Returns the text of adapter_config.json for this run's adapters, for free(); NULL: there is no memory. */
char *adapter_config_text(const options_t *options);

#endif
