/* hf_keys.h - which keys of config.json are known, and what they may be. First the tables of the families: their
 * settings. */
#ifndef ZEROTRAIN_HF_KEYS_H
#define ZEROTRAIN_HF_KEYS_H

#include <jansson.h>

#include "train/options/options.h"

/* ---- hf families ---- */
/* What config.json says of each family of models: which keys are settings of [model], which must have
 * one value, and which are written (hf_families.c). For hf_config.c, hf_rope.c and hf_layers.c, which read the file,
 * and hf_config_write.c. */

/* What of a key stands for a setting that is not set. */
typedef enum hf_unset {
    HF_NULL_IS_0 = 1, /* null is what 0 is of the setting, even where a missing key is another number */
    /* 0 derives the setting: zerotrain wrote it so for models that it made without init, and no model multiplies its
     * scores by 0, or divides them by 0. */
    HF_0_IS_UNSET = 2,
} hf_unset_t;

/* One setting of [model] and its key in the file. Rows are in an order in which `otherwise` can use earlier settings.
 */
typedef struct hf_key {
    const char *key, *hf_key;
    double (*otherwise)(
        const model_options_t *filled); /* the value if the key is missing or null; NULL: the key is required */
    unsigned unset;                     /* of hf_unset_t */
} hf_key_t;

/* A key and the one value that is supported, as JSON. If the key is missing, transformers uses this same value. */
typedef struct hf_fixed {
    const char *hf_key, *value;
} hf_fixed_t;

/* A key of the object rope_scaling stands here with that name before it (hf_rope.c, hf_read_rope). */
#define HF_SCALING "rope_scaling."

/* Which layers have a window where layer_types does not say it. */
typedef enum hf_windows {
    HF_NO_WINDOWS,        /* none, whatever the file says */
    HF_ALL_WINDOWS,       /* all, if there is a sliding_window */
    HF_UPPER_WINDOWS,     /* with use_sliding_window those from max_window_layers on */
    HF_UNROTATED_WINDOWS, /* with use_sliding_window those that no_rope_layers says are not rotated */
    HF_KIND_WINDOWS,      /* those of the family's kinds */
} hf_windows_t;

/* What a file of a family has. Tables end with a row of zeros. */
typedef struct hf_family {
    const hf_key_t *keys, *more_keys;
    const hf_fixed_t *fixed; /* required, and always written */
    const hf_fixed_t *written;
    hf_windows_t windows;
    /* Of transformers' configuration class, for what is missing. */
    int64_t window; /* 0: none */
    int64_t positions;
} hf_family_t;

extern const hf_family_t hf_families[];   /* by options_arch_t */
extern const hf_fixed_t hf_all_written[]; /* of every family */

/* Returns what a well-known family computes that is missing here; NULL: it is not known. */
const char *hf_family_missing(const char *model_type);

/* ---- hf keys ---- */

/* Refuses the first key that makes this architecture (options_arch_t) compute what is not implemented. path: the file,
 * for the line. */
zero_status_t hf_keys_check(const char *path, const json_t *json, int arch);
/* Says in a line which keys are not known, if there are such. */
void hf_keys_report_unknown(const char *path, const json_t *json, int arch);

/* Logs that a key has a value that is not supported. wanted: what is, or "null" for none. */
zero_status_t hf_keys_refuse(const char *path, const char *key, const json_t *value, const char *wanted);

#endif
