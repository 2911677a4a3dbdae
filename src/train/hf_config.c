/* hf_config.c - the sizes of a model that is loaded, from its config.json.
 *
 * The file says what the weights are, so it fills what the user left at its default; what the user set must agree. Keys
 * that change what the model computes must have the one value that ours computes with; other keys are of no interest.
 * Every rank reads the file for itself and finds the same.
 */
#include "train/hf_config.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "train/options_table.h"
#include "train/report.h"

typedef struct size_row {
    const char *key; /* of [model] */
    const char *hf_key;
} size_row_t;

static const size_row_t GPT2_SIZES[] = {
    {"layers", "n_layer"},        {"dim", "n_embd"},          {"heads", "n_head"}, {"ffn_dim", "n_inner"},
    {"vocab_size", "vocab_size"}, {"seq_len", "n_positions"},
};

/* Where the file is silent, transformers takes these very values. As JSON. */
static const struct {
    const char *hf_key, *value;
} GPT2_FIXED[] = {
    {"activation_function", "\"gelu_new\""},      {"layer_norm_epsilon", "1e-05"},  {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"}, {"add_cross_attention", "false"}, {"tie_word_embeddings", "true"},
};

typedef struct hf_config {
    char path[OPTIONS_MAX_PATH + 16];
    json_t *json;
    options_t *options;
    options_t defaults;
} hf_config_t;

static int64_t *field(options_t *options, const option_row_t *row)
{
    return (int64_t *)(void *)((char *)options + row->offset);
}

static zero_status_t take_size(hf_config_t *config, const size_row_t *size, int64_t value)
{
    const option_row_t *row = option_row_find("model", size->key);
    int64_t *setting = field(config->options, row), untouched = *field(&config->defaults, row);
    if (value < row->low || value > row->high)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %" PRId64 "; [model] %s can be %" PRId64 " to %" PRId64,
                            config->path, size->hf_key, value, size->key, row->low, row->high);
    if (*setting != untouched && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %" PRId64 ", but the model in init has %s = %" PRId64
                            " ('%s'): leave it out, or load another model",
                            size->key, *setting, size->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_gpt2_sizes(hf_config_t *config)
{
    for (size_t i = 0; i < sizeof GPT2_SIZES / sizeof GPT2_SIZES[0]; i++) {
        const size_row_t *size = &GPT2_SIZES[i];
        const json_t *value = json_object_get(config->json, size->hf_key);
        if (strcmp(size->hf_key, "n_inner") == 0 && (!value || json_is_null(value)))
            TRY(take_size(config, size, 4 * config->options->model.dim)); /* dim stands before it */
        else if (json_is_integer(value))
            TRY(take_size(config, size, json_integer_value(value)));
        else
            return report_error(ZERO_ERROR_FORMAT, "'%s': %s is missing or not a whole number", config->path,
                                size->hf_key);
    }
    return ZERO_OK;
}

static zero_status_t check_gpt2_fixed(const hf_config_t *config)
{
    for (size_t i = 0; i < sizeof GPT2_FIXED / sizeof GPT2_FIXED[0]; i++) {
        json_t *value = json_object_get(config->json, GPT2_FIXED[i].hf_key);
        json_t *wanted = json_loads(GPT2_FIXED[i].value, JSON_DECODE_ANY, NULL);
        bool good = !value || json_equal(value, wanted);
        json_decref(wanted);
        if (good)
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        report_error(ZERO_ERROR_USAGE, "'%s': %s is %.60s; only models with %s can be trained", config->path,
                     GPT2_FIXED[i].hf_key, text ? text : "?", GPT2_FIXED[i].value);
        free(text);
        return ZERO_ERROR_USAGE;
    }
    return ZERO_OK;
}

static zero_status_t take_arch(hf_config_t *config)
{
    static const char *const MODEL_TYPES[] = {[ARCH_GPT2] = "gpt2", [ARCH_LLAMA] = "llama"};
    const char *model_type = json_string_value(json_object_get(config->json, "model_type"));
    int *setting = &config->options->model.arch;
    for (int arch = 0; model_type && arch < (int)(sizeof MODEL_TYPES / sizeof MODEL_TYPES[0]); arch++) {
        if (strcmp(MODEL_TYPES[arch], model_type) != 0)
            continue;
        if (*setting != config->defaults.model.arch && *setting != arch)
            return report_error(ZERO_ERROR_USAGE, "[model] arch = %s, but the model in init is a %s ('%s')",
                                MODEL_TYPES[*setting], model_type, config->path);
        *setting = arch;
        return ZERO_OK;
    }
    return report_error(ZERO_ERROR_USAGE, "'%s': model_type is %.60s; gpt2 can be loaded", config->path,
                        model_type ? model_type : "missing");
}

static zero_status_t open_config(hf_config_t *config)
{
    json_error_t error;
    snprintf(config->path, sizeof config->path, "%s/config.json", config->options->model.init);
    config->json = json_load_file(config->path, JSON_REJECT_DUPLICATES, &error);
    if (!config->json && json_error_code(&error) == json_error_cannot_open_file)
        return report_error(ZERO_ERROR_USAGE, "[model] init: cannot open '%s': %s; name a model's directory, or random",
                            config->path, strerror(errno));
    if (!config->json)
        return report_error(ZERO_ERROR_FORMAT, "'%s' is not good JSON: %s, in line %d", config->path, error.text,
                            error.line);
    return ZERO_OK;
}

static zero_status_t apply(hf_config_t *config)
{
    TRY(open_config(config));
    TRY(take_arch(config));
    /* An architecture that came with the file has to be one that this version knows. */
    TRY(options_check_supported(config->options));
    TRY(check_gpt2_fixed(config));
    return take_gpt2_sizes(config);
}

zero_status_t hf_config_apply(options_t *options)
{
    if (strcmp(options->model.init, "random") == 0)
        return ZERO_OK;
    hf_config_t *config = calloc(1, sizeof *config);
    options_t *filled = malloc(sizeof *filled);
    zero_status_t status = ZERO_ERROR_MEMORY;
    if (config && filled) {
        *filled = *options; /* not touched unless all is well */
        config->options = filled;
        options_set_defaults(&config->defaults);
        status = apply(config);
        json_decref(config->json);
    } else {
        report_error(status, "no memory to read the configuration of '%s'", options->model.init);
    }
    if (status == ZERO_OK)
        *options = *filled;
    free(filled);
    free(config);
    return status;
}
