/* hf_layers.c - what config.json says of single layers: which are rotated, and which have a window. See hf_reading.h.
 */
#include <inttypes.h>
#include <string.h>

#include "train/hub/hf_reading.h"
#include "train/options/families.h"
#include "train/report/report.h"

/* Of transformers' configuration classes, if a file leaves them out. */
#define DEFAULT_FULL_LAYERS 28
#define DEFAULT_INTERVAL 4

/* What a file says of one layer. */
typedef struct layer_kind {
    bool has_window, is_unrotated;
} layer_kind_t;

static char letter_of(layer_kind_t kind)
{
    return kind.is_unrotated ? (kind.has_window ? LAYER_WINDOW_UNROTATED : LAYER_ALL_UNROTATED)
           : kind.has_window ? LAYER_WINDOW
                             : LAYER_ALL;
}

static bool uses_windows(const hf_config_t *config)
{
    return json_is_true(json_object_get(config->json, "use_sliding_window"));
}

/* Returns whether a layer's heads are not rotated: those of Granite 4 unless it says so; SmolLM3's list, or every
 * fourth. */
static bool is_unrotated(const hf_config_t *config, int64_t layer)
{
    const char *positions = json_string_value(json_object_get(config->json, "position_embedding_type"));
    const json_t *list = json_object_get(config->json, "no_rope_layers");
    const int64_t interval = hf_integer_or(config, "no_rope_layer_interval", DEFAULT_INTERVAL);
    if (config->options->model.arch == ARCH_GRANITE4)
        return !positions || strcmp(positions, "rope") != 0;
    if (config->options->model.arch != ARCH_SMOLLM3)
        return false;
    if (json_is_array(list))
        return json_integer_value(json_array_get(list, (size_t)layer)) == 0;
    return interval != 0 && (layer + 1) % interval == 0;
}

/* Returns whether the size of windows is null. */
static bool has_no_window(const hf_config_t *config)
{
    const json_t *window = json_object_get(config->json, "sliding_window");
    return window ? json_is_null(window) : hf_families[config->options->model.arch].window == 0;
}

/* Returns every how many layers one sees all, where the others have a window. */
static int64_t period(const hf_config_t *config)
{
    const int64_t usual = (int64_t)strlen(family_of(&config->options->model)->kinds);
    const int64_t said =
        config->options->model.arch == ARCH_GEMMA3 ? hf_integer_or(config, "sliding_window_pattern", usual) : usual;
    return said != 0 ? said : usual; /* whose sign does not matter */
}

/* Returns whether a layer has a window where layer_types does not say it. */
static bool has_window_by_rule(const hf_config_t *config, int64_t layer)
{
    switch (hf_families[config->options->model.arch].windows) {
    case HF_ALL_WINDOWS:
        return true;
    case HF_UPPER_WINDOWS:
        return uses_windows(config) && layer >= hf_integer_or(config, "max_window_layers", DEFAULT_FULL_LAYERS);
    case HF_UNROTATED_WINDOWS:
        return uses_windows(config) && is_unrotated(config, layer);
    case HF_KIND_WINDOWS:
        return (layer + 1) % period(config) != 0;
    default:
        return false;
    }
}

/* Returns whether a family's class in transformers reads layer_types. */
static bool heeds_types(const hf_config_t *config)
{
    const int arch = config->options->model.arch;
    return hf_families[arch].windows != HF_NO_WINDOWS && arch != ARCH_PHI3;
}

/* Finds a layer's kind. types: layer_types, or NULL. */
static zero_status_t find_kind(const hf_config_t *config, const json_t *types, int64_t layer, layer_kind_t *kind)
{
    const char *name = json_string_value(json_array_get(types, (size_t)layer));
    const bool is_sliding = name && strcmp(name, "sliding_attention") == 0;
    const bool is_known =
        is_sliding || (name && (strcmp(name, "full_attention") == 0 || strcmp(name, "attention") == 0));
    *kind = (layer_kind_t){.is_unrotated = is_unrotated(config, layer)};
    if (types && (!is_known || (is_sliding && !heeds_types(config))))
        return hf_keys_refuse(config->path, "layer_types", types,
                              heeds_types(config) ? "full_attention and sliding_attention" : "full_attention");
    if (types && heeds_types(config))
        kind->has_window = is_sliding;
    else
        kind->has_window = !has_no_window(config) && has_window_by_rule(config, layer);
    return ZERO_OK;
}

/* Refuses a Granite 4 with experts or with Mamba layers, which its class has where a file says nothing. */
static zero_status_t check_dense(const hf_config_t *config, const json_t *types)
{
    const json_t *experts = json_object_get(config->json, "num_local_experts");
    if (config->options->model.arch != ARCH_GRANITE4)
        return ZERO_OK;
    if (!experts)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': num_local_experts is missing, so the model is a mixture of 8 experts, which is not "
                            "supported; only Granite 4's dense models are, with num_local_experts = 0",
                            config->path);
    if (!types)
        return report_error(
            ZERO_ERROR_USAGE,
            "'%s': layer_types is missing, so all layers are Mamba layers, which are not supported; only "
            "models whose layers all have attention are",
            config->path);
    return ZERO_OK;
}

static zero_status_t check_lists(const hf_config_t *config, const json_t *types, int64_t n_layers)
{
    const json_t *unrotated = json_object_get(config->json, "no_rope_layers");
    if (types && json_array_size(types) != (size_t)n_layers)
        return report_error(ZERO_ERROR_FORMAT, "'%s': layer_types has %zu entries for the %" PRId64 " layers",
                            config->path, json_array_size(types), n_layers);
    if (config->options->model.arch == ARCH_SMOLLM3 && json_is_array(unrotated) &&
        json_array_size(unrotated) < (size_t)n_layers)
        return report_error(ZERO_ERROR_FORMAT, "'%s': no_rope_layers has %zu entries for the %" PRId64 " layers",
                            config->path, json_array_size(unrotated), n_layers);
    return ZERO_OK;
}

/* Finds every layer's kind: a letter each, or "" if all have the first one and it is of those that need no list.
 * Returns in n_windows how many have a window. */
static zero_status_t find_kinds(const hf_config_t *config, int64_t *n_windows)
{
    const json_t *types = json_object_get(config->json, "layer_types");
    model_options_t *model = &config->options->model;
    int64_t n_unrotated = 0;
    types = json_is_null(types) ? NULL : types;
    *n_windows = 0;
    ZERO_TRY(check_dense(config, types));
    ZERO_TRY(check_lists(config, types, model->layers));
    for (int64_t layer = 0; layer < model->layers; layer++) {
        layer_kind_t kind;
        ZERO_TRY(find_kind(config, types, layer, &kind));
        *n_windows += kind.has_window;
        n_unrotated += kind.is_unrotated;
        if (layer < (int64_t)sizeof model->layer_kinds - 1)
            model->layer_kinds[layer] = letter_of(kind);
    }
    const bool is_alike = n_unrotated == 0 && (*n_windows == 0 || *n_windows == model->layers);
    if (is_alike)
        memset(model->layer_kinds, 0, sizeof model->layer_kinds);
    else if (model->layers >= (int64_t)sizeof model->layer_kinds)
        return report_error(ZERO_ERROR_USAGE, "'%s': %" PRId64 " layers of several kinds are more than %zu",
                            config->path, model->layers, sizeof model->layer_kinds - 1);
    return ZERO_OK;
}

/* Takes the size of the windows, if any layer has one. */
static zero_status_t take_window(const hf_config_t *config, int64_t n_windows)
{
    static const hf_key_t key = {"window", "sliding_window", NULL, 0};
    const json_t *window = json_object_get(config->json, key.hf_key);
    const int64_t *setting = &config->options->model.window;
    if (window && !json_is_null(window) && !json_is_integer(window))
        return report_error(ZERO_ERROR_FORMAT, "'%s': sliding_window is neither a whole number nor null", config->path);
    if (n_windows > 0 && has_no_window(config))
        return hf_keys_refuse(config->path, "sliding_window", json_null(),
                              "its size, if layers have sliding_attention,");
    if (n_windows > 0 && hf_families[config->options->model.arch].windows == HF_UPPER_WINDOWS && !uses_windows(config))
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': layer_types has sliding_attention, but use_sliding_window is not true: correct the "
                            "wrong one",
                            config->path);
    if (n_windows > 0)
        return hf_take_integer(config, &key, option_row_find("model", key.key),
                               window ? json_integer_value(window) : hf_families[config->options->model.arch].window);
    if (*setting != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] window = %" PRId64
                            ", but the model in init has none ('%s'): leave it out, or load another model",
                            *setting, config->path);
    return ZERO_OK;
}

/* Checks that no sequence is longer than longrope's original length, behind which all positions are rotated otherwise.
 * generate takes what is left, and merge and export compute with no sequence. */
static zero_status_t check_longest(const hf_config_t *config)
{
    model_options_t *model = &config->options->model;
    int64_t seq_len = model->seq_len;
    if (model->rope != ROPE_LONGROPE)
        return ZERO_OK;
    if (seq_len == 0 && !options_generate(config->options) && !options_write_model(config->options))
        seq_len = OPTIONS_SEQ_LEN;
    model->longest = model->rope_original;
    if (seq_len <= model->longest)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[model] seq_len = %" PRId64 ", but the model in init has longrope with "
                        "original_max_position_embeddings = %" PRId64
                        " ('%s'): its long_factor, for sequences longer than that, is not implemented, so seq_len can "
                        "be %" PRId64 " at most",
                        seq_len, model->longest, config->path, model->longest);
}

zero_status_t hf_read_layers(const hf_config_t *config)
{
    int64_t n_windows;
    ZERO_TRY(find_kinds(config, &n_windows));
    ZERO_TRY(take_window(config, n_windows));
    return check_longest(config);
}
