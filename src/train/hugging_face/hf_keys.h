/* hf_keys.h - which keys of config.json are known, and what they may be. hf_families.h has those that are settings. */
#ifndef ZEROTRAIN_HF_KEYS_H
#define ZEROTRAIN_HF_KEYS_H

#include <jansson.h>

#include "train/options/options.h"

/* Refuses the first key that makes this architecture (options_arch_t) compute what is not implemented. path: the file,
 * for the line. */
zero_status_t hf_keys_check(const char *path, const json_t *json, int arch);
/* Says in a line which keys are not known, if there are such. */
void hf_keys_report_unknown(const char *path, const json_t *json, int arch);

/* Logs that a key has a value that is not supported. wanted: what is, or "null" for none. */
zero_status_t hf_keys_refuse(const char *path, const char *key, const json_t *value, const char *wanted);

#endif
