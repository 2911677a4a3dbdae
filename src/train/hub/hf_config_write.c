/* hf_config_write.c - see hf_config.h: config.json of a checkpoint, with which transformers loads its weights. */
#include <jansson.h>
#include <string.h>

#include "base/json_build.h"
#include "train/hub/hf_config.h"
#include "train/hub/hf_keys.h"
#include "train/options/options_table.h"

static const void *field_of(const model_options_t *model, const option_row_t *row)
{
    return (const char *)model + row->offset - offsetof(options_t, model);
}

static void write_missing(json_t **json, const hf_fixed_t *rows)
{
    for (const hf_fixed_t *row = rows; row->hf_key; row++)
        if (!json_object_get(*json, row->hf_key))
            zero_json_set(json, row->hf_key, json_loads(row->value, JSON_DECODE_ANY, NULL));
}

static void write_fixed(json_t **json, const hf_fixed_t *rows)
{
    for (const hf_fixed_t *row = rows; row->hf_key; row++)
        zero_json_set(json, row->hf_key, json_loads(row->value, JSON_DECODE_ANY, NULL));
}

static json_t *value_of(const model_options_t *model, const hf_key_t *key)
{
    const option_row_t *row = option_row_find_recorded("model", key->key);
    const void *value = field_of(model, row);
    return row->type == OPTION_INTEGER ? json_integer(*(const int64_t *)value)
           : row->type == OPTION_BOOL  ? json_boolean(*(const bool *)value)
                                       : json_real(*(const double *)value);
}

/* Writes those of the keys that stand in the object rope_scaling, or all others. */
static void write_keys(json_t **json, const model_options_t *model, const hf_key_t *keys, bool of_scaling)
{
    const size_t prefix = sizeof HF_SCALING - 1;
    for (const hf_key_t *key = keys; key->key; key++)
        if ((strncmp(key->hf_key, HF_SCALING, prefix) == 0) == of_scaling)
            zero_json_set(json, key->hf_key + (of_scaling ? prefix : 0), value_of(model, key));
}

/* Writes rotary settings, unless the source has them in the form of transformers 5. */
static void write_rope(json_t **json, const model_options_t *model, const json_t *source)
{
    if (json_is_object(json_object_get(source, "rope_parameters"))) {
        if (!json_object_get(source, "rope_theta"))
            json_object_del(*json, "rope_theta");
        return;
    }
    if (model->rope_factor <= 1.0)
        return;
    json_t *scaling = json_pack("{s:s}", "rope_type", "llama3");
    write_keys(&scaling, model, hf_families[ARCH_LLAMA].keys, true);
    zero_json_set(json, "rope_scaling", scaling);
}

/* Writes the number of positions, which training on longer sequences extends. */
static void write_positions(json_t **json, const model_options_t *model)
{
    const json_t *before = json_object_get(*json, "max_position_embeddings");
    if (!json_is_integer(before) || json_integer_value(before) < model->seq_len)
        zero_json_set(json, "max_position_embeddings", json_integer(model->seq_len));
}

char *hf_config_text(const model_options_t *model, zero_dtype_t dtype, const char *source)
{
    static const char *const DTYPES[] = {[ZERO_FP32] = "float32", [ZERO_BF16] = "bfloat16", [ZERO_FP16] = "float16"};
    int arch = model->arch;
    json_t *before = source ? json_loads(source, 0, NULL) : NULL;
    json_t *json = json_object();
    if ((source && !before) || json_object_update(json, json_is_object(before) ? before : json) != 0) {
        json_decref(json);
        json = NULL;
    }
    zero_json_set(&json, "model_type", json_string(hf_families[arch].model_type));
    zero_json_set(&json, json_object_get(before, "dtype") ? "dtype" : "torch_dtype", json_string(DTYPES[dtype]));
    write_keys(&json, model, hf_families[arch].keys, false);
    for (const hf_key_t *key = hf_families[arch].keys; key->key; key++)
        if (json_is_null(json_object_get(before, key->hf_key))) /* as it came: it is derived again */
            zero_json_set(&json, key->hf_key, json_null());
    write_fixed(&json, hf_families[arch].fixed);
    write_fixed(&json, (const hf_fixed_t[]){hf_families[arch].written[0], {0}});
    write_missing(&json, hf_families[arch].written);
    write_missing(&json, hf_all_written);
    if (arch == ARCH_GPT2) { /* older readers take the positions from this key */
        zero_json_set(&json, "n_ctx", json_integer(options_positions(model)));
    } else {
        write_rope(&json, model, before);
        if (arch == ARCH_MISTRAL)
            zero_json_set(&json, "sliding_window", model->window > 0 ? json_integer(model->window) : json_null());
        write_positions(&json, model);
    }
    char *text = !json ? NULL : json_dumps(json, JSON_SORT_KEYS | JSON_INDENT(2));
    json_decref(json);
    json_decref(before);
    return text;
}
