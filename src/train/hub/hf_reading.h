/* hf_reading.h - a config.json that is being read: takes its values as settings, for the files that read it:
 * hf_config.c, hf_rope.c and hf_layers.c. */
#ifndef ZEROTRAIN_HF_READING_H
#define ZEROTRAIN_HF_READING_H

#include "train/hub/hf_keys.h"
#include "train/options/options_table.h"

typedef struct hf_config {
    char path[OPTIONS_MAX_PATH + 16];
    json_t *json;
    options_t *options; /* what is filled */
    options_t defaults;
} hf_config_t;

/* Returns whether the user has chosen the setting, of n_bytes: another than the default, or the default by name. */
bool hf_is_chosen(const hf_config_t *config, const option_row_t *row, size_t n_bytes);
/* Set a setting to what the file says, unless that is out of the row's range or the user has set another. */
zero_status_t hf_take_integer(const hf_config_t *config, const hf_key_t *key, const option_row_t *row, int64_t value);
zero_status_t hf_take_real(const hf_config_t *config, const hf_key_t *key, const option_row_t *row, double value);

/* Sets the setting that a key is of; if the file lacks the key, to what transformers would take. */
zero_status_t hf_take_key(const hf_config_t *config, const hf_key_t *key);

/* Returns a whole number of the file. */
int64_t hf_integer_or(const hf_config_t *config, const char *key, int64_t otherwise);

/* Finds rotary settings, wherever the file has them, and puts those of LLAMA_KEYS (hf_families.c) where these look. */
zero_status_t hf_read_rope(const hf_config_t *config);
/* Takes what layers have of their own, once LLAMA_KEYS are taken: windows, and whether they are rotated. */
zero_status_t hf_read_layers(const hf_config_t *config);

#endif
