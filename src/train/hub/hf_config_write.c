/* hf_config_write.c - see hf_config.h: config.json of a checkpoint, with which transformers loads its weights. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_build.h"
#include "train/hub/hf_config.h"
#include "train/hub/hf_keys.h"
#include "train/options/families.h"
#include "train/options/options_table.h"

static const void *field_of(const model_options_t *model, const option_row_t *row)
{
    return (const char *)model + row->offset - offsetof(options_t, model);
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

/* Returns the model with its factors of scores where they are 0, which derives them here: to transformers 0 is a factor
 * like any other. */
static model_options_t with_derived(const model_options_t *model)
{
    model_options_t filled = *model;
    if (filled.attention_multiplier == 0.0)
        filled.attention_multiplier = options_score_scale(model);
    if (filled.query_scalar == 0)
        filled.query_scalar = options_head_dim(model);
    return filled;
}

/* Writes the keys but those that stand in the object rope_scaling. */
static void write_keys(json_t **json, const model_options_t *model, const hf_key_t *keys)
{
    for (const hf_key_t *key = keys; key->key; key++)
        if (strncmp(key->hf_key, HF_SCALING, sizeof HF_SCALING - 1) != 0)
            zero_json_set(json, key->hf_key, value_of(model, key));
}

/* Returns longrope's divisors as a list. */
static json_t *divisors_of(const model_options_t *model)
{
    json_t *list = json_array();
    const char *text = model->rope_divisors;
    for (char *end; list && *text; text = *end ? end + 1 : end)
        if (json_array_append_new(list, json_real(strtod(text, &end))) != 0 || end == text)
            break;
    return list;
}

/* Returns the object rope_scaling. */
static json_t *scaling_of(const model_options_t *model)
{
    const json_int_t original = model->rope_original;
    switch (model->rope) {
    case ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", model->rope_factor,
                         "low_freq_factor", model->rope_low_freq, "high_freq_factor", model->rope_high_freq,
                         "original_max_position_embeddings", original);
    case ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", model->rope_factor);
    case ROPE_YARN:
        return json_pack("{s:s, s:f, s:f, s:f, s:f, s:b, s:I}", "rope_type", "yarn", "factor", model->rope_factor,
                         "beta_fast", model->rope_beta_fast, "beta_slow", model->rope_beta_slow, "attention_factor",
                         model->rope_scale, "truncate", (int)model->rope_truncate, "original_max_position_embeddings",
                         original);
    case ROPE_LONGROPE:
        return json_pack("{s:s, s:f, s:o, s:o, s:I}", "rope_type", "longrope", "attention_factor", model->rope_scale,
                         "short_factor", divisors_of(model), "long_factor", divisors_of(model),
                         "original_max_position_embeddings", original);
    default:
        return json_null();
    }
}

/* Writes rotary settings of a family whose layers with a window have their own, as transformers 5 does. */
static void write_ropes_by_layer(json_t **json, const model_options_t *model)
{
    json_t *full = model->rope == ROPE_DEFAULT ? json_pack("{s:s}", "rope_type", "default") : scaling_of(model);
    json_t *local = json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", model->rope_local_theta);
    zero_json_set(&full, "rope_theta", json_real(model->rope_theta));
    zero_json_set(json, "rope_parameters", json_pack("{s:o, s:o}", "full_attention", full, "sliding_attention", local));
    json_object_del(*json, "rope_theta");
}

/* Keeps the positions that scaling is relative to, where it is those that write_positions may extend. */
static void keep_original(json_t **json, const model_options_t *model)
{
    static const char original[] = "original_max_position_embeddings";
    const bool is_relative = model->rope == ROPE_LLAMA3 || model->rope == ROPE_YARN;
    for (int i = 0; i < 2; i++) { /* a file may have both objects */
        json_t *rope = json_object_get(*json, i == 0 ? "rope_parameters" : "rope_scaling");
        if (json_is_object(json_object_get(rope, "full_attention")))
            rope = json_object_get(rope, "full_attention");
        if (is_relative && json_is_object(rope) && !json_is_number(json_object_get(rope, original)) &&
            json_object_set_new(rope, original, json_integer(model->rope_original)) != 0)
            zero_json_set(json, original, NULL); /* no memory */
    }
}

/* Writes rotary settings, unless they came with the model. */
static void write_rope(json_t **json, const model_options_t *model, const json_t *source)
{
    if (json_is_object(json_object_get(source, "rope_parameters"))) {
        if (!json_object_get(source, "rope_theta"))
            json_object_del(*json, "rope_theta");
        return;
    }
    if (model->rope_local_theta > 0.0 && !source) {
        write_ropes_by_layer(json, model);
        return;
    }
    if (model->rope != ROPE_DEFAULT && !json_is_object(json_object_get(source, "rope_scaling")))
        zero_json_set(json, "rope_scaling", scaling_of(model));
    if (model->arch == ARCH_PHI3 && !source) {
        zero_json_set(json, "partial_rotary_factor", json_real(model->rope_share));
        if (model->rope == ROPE_LONGROPE)
            zero_json_set(json, "original_max_position_embeddings", json_integer(model->rope_original));
    }
}

/* Writes the kinds of layers, unless they came with the model. Ministral's class in transformers wants the size of a
 * window even if no layer has one. */
static void write_layers(json_t **json, const model_options_t *model)
{
    json_t *types = json_array(), *rotated = json_array();
    int64_t n_windows = 0, n_rotated = 0;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        const bool has_window = options_window(model, layer) > 0, is_rotated = options_is_rotated(model, layer);
        json_array_append_new(types, json_string(has_window ? "sliding_attention" : "full_attention"));
        json_array_append_new(rotated, json_integer(is_rotated));
        n_windows += has_window;
        n_rotated += is_rotated;
    }
    const hf_family_t *family = &hf_families[model->arch];
    const bool has_idle_window = model->arch == ARCH_MINISTRAL && n_windows == 0;
    const int64_t window = has_idle_window ? family->window : model->window;
    if (family->windows != HF_NO_WINDOWS)
        zero_json_set(json, "sliding_window", n_windows > 0 || has_idle_window ? json_integer(window) : json_null());
    if (family->windows != HF_ALL_WINDOWS || has_idle_window || (n_windows > 0 && n_windows < model->layers))
        zero_json_set(json, "layer_types", json_incref(types));
    if (family->windows == HF_UPPER_WINDOWS || model->arch == ARCH_SMOLLM3)
        zero_json_set(json, "use_sliding_window", json_boolean(n_windows > 0));
    if (model->arch == ARCH_SMOLLM3)
        zero_json_set(json, "no_rope_layers", json_incref(rotated));
    if (model->arch == ARCH_GRANITE4)
        zero_json_set(json, "position_embedding_type", n_rotated > 0 ? json_string("rope") : json_null());
    json_decref(types);
    json_decref(rotated);
}

/* Writes the number of positions, which training on longer sequences extends. */
static void write_positions(json_t **json, const model_options_t *model, bool is_new)
{
    const json_t *said = json_object_get(*json, "max_position_embeddings");
    const int64_t before = json_is_integer(said) ? json_integer_value(said) : hf_families[model->arch].positions;
    if (is_new || before < model->seq_len)
        zero_json_set(json, "max_position_embeddings", json_integer(model->seq_len));
}

char *hf_config_text(const model_options_t *model, zero_dtype_t dtype, const char *source)
{
    static const char *const DTYPES[] = {[ZERO_FP32] = "float32", [ZERO_BF16] = "bfloat16", [ZERO_FP16] = "float16"};
    const model_options_t filled = with_derived(model);
    int arch = model->arch;
    json_t *before = source ? json_loads(source, 0, NULL) : NULL;
    json_t *json = json_object();
    if ((source && !before) || json_object_update(json, json_is_object(before) ? before : json) != 0) {
        json_decref(json);
        json = NULL;
    }
    zero_json_set(&json, "model_type", json_string(families[arch].model_type));
    zero_json_set(&json, json_object_get(before, "dtype") ? "dtype" : "torch_dtype", json_string(DTYPES[dtype]));
    write_keys(&json, &filled, hf_families[arch].keys);
    write_keys(&json, &filled, hf_families[arch].more_keys);
    for (const hf_key_t *key = hf_families[arch].keys; key->key; key++)
        if (json_is_null(json_object_get(before, key->hf_key))) /* as it came: it is derived again */
            zero_json_set(&json, key->hf_key, json_null());
    write_fixed(&json, hf_families[arch].fixed);
    if (before) {
        write_fixed(&json, (const hf_fixed_t[]){hf_families[arch].written[0], {0}});
    } else {
        write_fixed(&json, hf_families[arch].written);
        write_fixed(&json, hf_all_written);
    }
    if (arch == ARCH_GPT2 && !before) { /* older readers take the positions from this key */
        zero_json_set(&json, "n_ctx", json_integer(options_positions(model)));
    } else if (arch != ARCH_GPT2) {
        write_rope(&json, model, before);
        keep_original(&json, model);
        if ((families[arch].may_window || arch == ARCH_GRANITE4) && !before)
            write_layers(&json, model);
        write_positions(&json, model, !before);
    }
    char *text = !json ? NULL : json_dumps(json, JSON_SORT_KEYS | JSON_INDENT(2));
    json_decref(json);
    json_decref(before);
    return text;
}
