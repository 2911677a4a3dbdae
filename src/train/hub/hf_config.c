/* hf_config.c - see hf_config.h.
 *
 * The file describes the weights, so it fills in the settings that the user has left at their defaults; those that the
 * user has set must agree with it. Keys that change what the model computes must have the one value that is supported
 * here (hf_keys.c). Keys that are not known are said in a line; a checkpoint's config.json keeps all
 * (hf_config_write.c).
 * Every rank reads the file itself and finds the same.
 */
#include "train/hub/hf_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/hub/hf_keys.h"
#include "train/options/input_file.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#define MAX_FILE_BYTES ((size_t)16 << 20)
/* Of transformers' configuration classes, if a file leaves them out. */
#define DEFAULT_WINDOW 4096
#define DEFAULT_FULL_LAYERS 28
#define DEFAULT_THETA 10000.0

typedef struct hf_config {
    char path[OPTIONS_MAX_PATH + 16];
    json_t *json;
    options_t *options;
    options_t defaults;
} hf_config_t;

static void *field(options_t *options, const option_row_t *row)
{
    return (char *)options + row->offset;
}

/* Returns whether the user has chosen the setting, of n_bytes: another than the default, or the default by name. */
static bool is_chosen(hf_config_t *config, const option_row_t *row, size_t n_bytes)
{
    return option_is_given(config->options, row) ||
           memcmp(field(config->options, row), field(&config->defaults, row), n_bytes) != 0;
}

static zero_status_t take_integer(hf_config_t *config, const hf_key_t *key, const option_row_t *row, int64_t value)
{
    int64_t *setting = field(config->options, row);
    if (value < row->low || value > row->high)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %" PRId64 "; it can be %" PRId64 " to %" PRId64,
                            config->path, key->hf_key, value, row->low, row->high);
    if (is_chosen(config, row, sizeof *setting) && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %" PRId64 ", but the model in init has %s = %" PRId64
                            " ('%s'): leave it out, or load another model",
                            key->key, *setting, key->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_real(hf_config_t *config, const hf_key_t *key, const option_row_t *row, double value)
{
    double *setting = field(config->options, row);
    if (!(value >= row->real_low && value <= row->real_high))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %g; it can be %g to %g", config->path, key->hf_key, value,
                            row->real_low, row->real_high);
    if (is_chosen(config, row, sizeof *setting) && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %g, but the model in init has %s = %g ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting, key->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_bool(hf_config_t *config, const hf_key_t *key, const option_row_t *row, const json_t *value)
{
    bool *setting = field(config->options, row);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is neither true nor false", config->path, key->hf_key);
    if (is_chosen(config, row, sizeof *setting) && *setting != json_is_true(value))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %s, but the model in init has %s = %s ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting ? "true" : "false", key->hf_key, *setting ? "false" : "true",
                            config->path);
    *setting = json_is_true(value);
    return ZERO_OK;
}

static zero_status_t take_key(hf_config_t *config, const hf_key_t *key)
{
    const option_row_t *row = option_row_find_recorded("model", key->key);
    const json_t *value = json_object_get(config->json, key->hf_key);
    if (row->type == OPTION_BOOL)
        return take_bool(config, key, row, value);
    bool is_silent = !value || json_is_null(value), is_integer = row->type == OPTION_INTEGER;
    double otherwise = is_silent && key->otherwise ? key->otherwise(&config->options->model) : 0.0;
    if (is_silent && key->otherwise && otherwise == 0.0)
        return ZERO_OK;
    bool is_good = is_silent ? key->otherwise != NULL : is_integer ? json_is_integer(value) : json_is_number(value);
    if (!is_good)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is missing or not a %s", config->path, key->hf_key,
                            is_integer ? "whole number" : "number");
    if (is_integer)
        return take_integer(config, key, row, is_silent ? (int64_t)otherwise : json_integer_value(value));
    return take_real(config, key, row, is_silent ? otherwise : json_number_value(value));
}

/* Copies a number of the object to where LLAMA_KEYS of hf_keys.c looks for it. */
static zero_status_t copy_rope(const hf_config_t *config, const json_t *rope, const char *key, const char *copied_as)
{
    json_t *value = json_object_get(rope, key);
    if (value && json_object_set(config->json, copied_as, value) != 0)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for '%s'", config->path);
    return ZERO_OK;
}

/* Takes the scaling of Llama 3.1, whose keys are all required but the last. A factor of 1 scales nothing. */
static zero_status_t take_scaling(const hf_config_t *config, const char *object, const json_t *rope)
{
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *from = i == 3 && !json_object_get(rope, keys[i]) ? "max_position_embeddings" : keys[i];
        const json_t *source = from == keys[i] ? rope : config->json;
        char copied_as[64];
        snprintf(copied_as, sizeof copied_as, HF_SCALING "%s", keys[i]);
        const json_t *value = json_object_get(source, from);
        if (!value || json_is_null(value))
            return report_error(ZERO_ERROR_FORMAT, "'%s': %s has no %s, which \"llama3\" needs", config->path, object,
                                keys[i]);
        if (i == 0 && json_number_value(value) == 1.0)
            return ZERO_OK;
        ZERO_TRY(copy_rope(config, source, from, copied_as));
    }
    return ZERO_OK;
}

/* Returns the kind of scaling that an object of rotary settings asks for. */
static const char *rope_type(const json_t *rope)
{
    const json_t *type = json_object_get(rope, "rope_type");
    if (!type)
        type = json_object_get(rope, "type");
    return !type ? "default" : json_is_string(type) ? json_string_value(type) : "?";
}

/* Refuses what is not computed here: other kinds of scaling than Llama 3.1's, rotation of a part of each head, and
 * settings of some layers alone, which are objects in the object. */
static zero_status_t check_rope(const hf_config_t *config, const char *name, const json_t *rope)
{
    const char *type = rope_type(rope), *key;
    const json_t *said = json_object_get(rope, "rope_type"), *part = json_object_get(rope, "partial_rotary_factor");
    const json_t *inner;
    if (!said)
        said = json_object_get(rope, "type");
    if (!json_is_object(rope) || (strcmp(type, "llama3") != 0 && strcmp(type, "default") != 0))
        return hf_keys_refuse(config->path, name, said ? said : rope, "\"default\", \"llama3\" or null");
    if (part && json_number_value(part) != 1.0)
        return hf_keys_refuse(config->path, "partial_rotary_factor", part, "1");
    json_object_foreach((json_t *)rope, key, inner)
    {
        if (json_is_object(inner))
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': %s has settings of its own for %s; only models of which all layers rotate alike "
                                "can be trained",
                                config->path, name, key);
    }
    return ZERO_OK;
}

/* Returns a number of an object of rotary settings, or what stands for it if it has none. */
static double rope_number(const hf_config_t *config, const json_t *rope, const char *key)
{
    const bool is_theta = strcmp(key, "rope_theta") == 0, is_original = strncmp(key, "original", 8) == 0;
    const json_t *value = json_object_get(rope, key);
    if (!json_is_number(value) && (is_theta || is_original))
        value = json_object_get(config->json, is_theta ? key : "max_position_embeddings");
    return json_is_number(value) ? json_number_value(value) : is_theta ? DEFAULT_THETA : 0.0;
}

/* Refuses two sources of rotary settings that do not say the same: versions of transformers take one or the other. */
static zero_status_t compare_ropes(const hf_config_t *config, const json_t *scaling, const json_t *parameters)
{
    static const char *const keys[] = {"rope_theta", "factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    const size_t n_keys = strcmp(rope_type(scaling), "llama3") == 0 ? 5 : 1;
    if (strcmp(rope_type(scaling), rope_type(parameters)) != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': rope_scaling is \"%s\" and rope_parameters is \"%s\": remove the wrong one",
                            config->path, rope_type(scaling), rope_type(parameters));
    for (size_t i = 0; i < n_keys; i++) {
        const double first = rope_number(config, scaling, keys[i]), second = rope_number(config, parameters, keys[i]);
        if (first != second)
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': %s is %g by rope_scaling and %g by rope_parameters: remove the wrong one",
                                config->path, keys[i], first, second);
    }
    return ZERO_OK;
}

/* Refuses a rope_theta that an object of rotary settings contradicts. */
static zero_status_t compare_theta(const hf_config_t *config, const char *name, const json_t *rope)
{
    const json_t *outer = json_object_get(config->json, "rope_theta"), *inner = json_object_get(rope, "rope_theta");
    if (!json_is_number(outer) || !json_is_number(inner) || json_number_value(outer) == json_number_value(inner))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE, "'%s': rope_theta is %g, and %g in %s: remove the wrong one", config->path,
                        json_number_value(outer), json_number_value(inner), name);
}

/* Finds rotary settings. Older files have rope_theta and rope_scaling; those of transformers 5 have both in
 * rope_parameters. Copies all to where LLAMA_KEYS of hf_keys.c looks. */
static zero_status_t take_rope(const hf_config_t *config)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const json_t *ropes[2];
    for (const hf_key_t *key = hf_families[ARCH_LLAMA].keys; key->key; key++)
        if (strncmp(key->hf_key, HF_SCALING, sizeof HF_SCALING - 1) == 0)
            json_object_del(config->json, key->hf_key);
    for (int i = 0; i < 2; i++) {
        ropes[i] = json_object_get(config->json, names[i]);
        ropes[i] = json_is_null(ropes[i]) ? NULL : ropes[i];
        if (!ropes[i])
            continue;
        ZERO_TRY(check_rope(config, names[i], ropes[i]));
        ZERO_TRY(compare_theta(config, names[i], ropes[i]));
    }
    if (ropes[0] && ropes[1])
        ZERO_TRY(compare_ropes(config, ropes[0], ropes[1]));
    for (int i = 0; i < 2; i++) {
        if (!ropes[i])
            continue;
        ZERO_TRY(copy_rope(config, ropes[i], "rope_theta", "rope_theta"));
        if (strcmp(rope_type(ropes[i]), "llama3") == 0)
            ZERO_TRY(take_scaling(config, names[i], ropes[i]));
    }
    return ZERO_OK;
}

/* Sets how RoPE is scaled, once its numbers are taken. */
static zero_status_t resolve_rope(hf_config_t *config)
{
    int *setting = &config->options->model.rope;
    const bool is_scaled = config->options->model.rope_factor > 1.0;
    const int found = is_scaled ? ROPE_LLAMA3 : ROPE_DEFAULT;
    if (is_chosen(config, option_row_find("model", "rope"), sizeof *setting) && *setting != found)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] rope = %s, but the model in init has %s ('%s'): leave it out, or load another "
                            "model",
                            is_scaled ? "default" : "llama3", is_scaled ? "Llama 3.1's scaling" : "no scaling",
                            config->path);
    *setting = found;
    return ZERO_OK;
}

/* ---- attention within a window ---- */

/* Takes the window of Mistral, which all layers have unless layer_types says otherwise. */
static zero_status_t take_window(hf_config_t *config)
{
    static const hf_key_t key = {"window", "sliding_window", NULL};
    const json_t *window = json_object_get(config->json, key.hf_key);
    const int64_t *setting = &config->options->model.window;
    if (window && !json_is_null(window) && !json_is_integer(window))
        return report_error(ZERO_ERROR_FORMAT, "'%s': sliding_window is neither a whole number nor null", config->path);
    if (!window || json_is_integer(window))
        return take_integer(config, &key, option_row_find("model", key.key),
                            window ? json_integer_value(window) : DEFAULT_WINDOW);
    if (*setting != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] window = %" PRId64
                            ", but the model in init has none ('%s'): leave it out, or load another model",
                            *setting, config->path);
    return ZERO_OK;
}

/* Returns an integer of the file. */
static int64_t integer_or(const hf_config_t *config, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(config->json, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

/* Counts the layers whose attention ends at sliding_window positions. They are named, or the family's rule tells. */
static zero_status_t count_windows(const hf_config_t *config, int64_t *n_windows, int64_t *n_layers)
{
    const json_t *types = json_object_get(config->json, "layer_types"), *type;
    const int arch = config->options->model.arch;
    size_t layer;
    *n_layers = integer_or(config, "num_hidden_layers", 0);
    *n_windows = 0;
    if (types && !json_is_null(types)) {
        if (json_array_size(types) != (size_t)*n_layers)
            return report_error(ZERO_ERROR_FORMAT, "'%s': layer_types has %zu entries for the %" PRId64 " layers",
                                config->path, json_array_size(types), *n_layers);
        json_array_foreach((json_t *)types, layer, type)
        {
            const char *name = json_is_string(type) ? json_string_value(type) : "?";
            if (strcmp(name, "sliding_attention") != 0 && strcmp(name, "full_attention") != 0)
                return hf_keys_refuse(config->path, "layer_types", types, "full_attention and sliding_attention");
            *n_windows += strcmp(name, "sliding_attention") == 0;
        }
    } else if (arch == ARCH_MISTRAL) {
        *n_windows = *n_layers;
    } else if (arch != ARCH_LLAMA && json_is_true(json_object_get(config->json, "use_sliding_window"))) {
        int64_t n_full = integer_or(config, "max_window_layers", DEFAULT_FULL_LAYERS);
        *n_windows = *n_layers > n_full ? *n_layers - n_full : 0;
    }
    return ZERO_OK;
}

/* Checks that no sequence is longer than a window that is not computed here: some layers' alone, or a Qwen's. Within it
 * all attention is the same. */
static zero_status_t check_window(hf_config_t *config)
{
    const json_t *window = json_object_get(config->json, "sliding_window");
    const bool is_mistral = config->options->model.arch == ARCH_MISTRAL;
    const int64_t size = window ? json_integer_value(window) : DEFAULT_WINDOW;
    int64_t seq_len = config->options->model.seq_len, n_windows, n_layers;
    ZERO_TRY(count_windows(config, &n_windows, &n_layers));
    if (n_windows > 0 && json_is_null(window) && json_object_get(config->json, "layer_types"))
        return hf_keys_refuse(config->path, "sliding_window", window, "its size, if layers have sliding_attention,");
    if (json_is_null(window) || n_windows == (is_mistral ? n_layers : 0))
        return ZERO_OK;
    if (seq_len == 0 && !options_generate(config->options)) /* which takes what is left */
        seq_len = OPTIONS_SEQ_LEN;
    config->options->model.longest = size;
    if (size >= seq_len)
        return ZERO_OK;
    return report_error(
        ZERO_ERROR_USAGE,
        "[model] seq_len = %" PRId64 ", but the model in init has sliding_window = %" PRId64
        " ('%s'): attention within a window in some layers alone is not implemented, so seq_len can be %" PRId64
        " at most",
        seq_len, size, config->path, size);
}

static zero_status_t refuse_family(const hf_config_t *config, const char *model_type)
{
    const char *missing = model_type ? hf_family_missing(model_type) : NULL;
    if (missing)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': model_type is %s, which needs what is not implemented: %s; gpt2, llama, "
                            "mistral, qwen2 and qwen3 can be loaded",
                            config->path, model_type, missing);
    return report_error(ZERO_ERROR_USAGE,
                        "'%s': model_type is %.60s; gpt2, llama, mistral, qwen2 and qwen3 can be loaded", config->path,
                        model_type ? model_type : "missing");
}

static zero_status_t take_arch(hf_config_t *config)
{
    const char *model_type = json_string_value(json_object_get(config->json, "model_type"));
    int *setting = &config->options->model.arch;
    for (int arch = 0; model_type && arch < n_hf_families; arch++) {
        if (strcmp(hf_families[arch].model_type, model_type) != 0)
            continue;
        if (is_chosen(config, option_row_find("model", "arch"), sizeof *setting) && *setting != arch)
            return report_error(ZERO_ERROR_USAGE, "[model] arch = %s, but the model in init is a %s ('%s')",
                                hf_families[*setting].model_type, model_type, config->path);
        *setting = arch;
        return ZERO_OK;
    }
    return refuse_family(config, model_type);
}

static zero_status_t parse(const char *path, input_words_t words, json_t **json)
{
    json_error_t error;
    char *text;
    size_t n_bytes;
    ZERO_TRY(input_file_read(path, MAX_FILE_BYTES, words, &text, &n_bytes));
    *json = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    return *json ? ZERO_OK
                 : report_error(ZERO_ERROR_FORMAT, "'%s' is not valid JSON: %s, in line %d", path, error.text,
                                error.line);
}

/* Takes a directory of checkpoints for the newest in it. */
static void find_latest(model_options_t *model)
{
    char *init = model->init, path[OPTIONS_MAX_PATH + 32], name[NEWEST_STEP_BYTES] = "latest";
    size_t length = strlen(init);
    snprintf(path, sizeof path, "%s/config.json", init);
    int64_t step = access(path, F_OK) == 0 ? 0 : newest_step(init);
    snprintf(path, sizeof path, "%s/latest", init);
    if (step > 0 && step < INT64_MAX && access(path, F_OK) != 0)
        newest_step_name(step, name);
    if (step > 0 && length + 1 + strlen(name) < sizeof model->init) {
        init[length] = '/';
        strcpy(init + length + 1, name);
    }
}

static zero_status_t open_config(hf_config_t *config)
{
    static const input_words_t init = {"[model] init: ", "; name a model's directory, or random"};
    static const input_words_t checkpoint = {"generate: CHECKPOINT: ",
                                             "; name the directory of a checkpoint, of checkpoints or of a model"};
    const input_words_t words = options_generate(config->options) ? checkpoint : init;
    find_latest(&config->options->model);
    snprintf(config->path, sizeof config->path, "%s/config.json", config->options->model.init);
    return parse(config->path, words, &config->json);
}

/* Sequences are as long as a GPT-2 has positions, unless the user wants shorter ones. */
static zero_status_t take_seq_len(hf_config_t *config)
{
    int64_t *seq_len = &config->options->model.seq_len, positions = config->options->model.positions;
    if (*seq_len > positions)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] seq_len = %" PRId64 ", but the model in init has n_positions = %" PRId64
                            " ('%s'): set seq_len to %" PRId64 " or less, or load another model",
                            *seq_len, positions, config->path, positions);
    if (*seq_len == 0)
        *seq_len = positions;
    return ZERO_OK;
}

static zero_status_t apply(hf_config_t *config)
{
    ZERO_TRY(open_config(config));
    ZERO_TRY(take_arch(config));
    int arch = config->options->model.arch;
    ZERO_TRY(hf_keys_check(config->path, config->json, arch));
    if (arch != ARCH_GPT2)
        ZERO_TRY(take_rope(config));
    if (arch == ARCH_MISTRAL)
        ZERO_TRY(take_window(config));
    for (const hf_key_t *key = hf_families[arch].keys; key->key; key++)
        ZERO_TRY(take_key(config, key));
    if (arch != ARCH_GPT2)
        ZERO_TRY(resolve_rope(config));
    ZERO_TRY(arch == ARCH_GPT2 ? take_seq_len(config) : check_window(config));
    hf_keys_report_unknown(config->path, config->json, arch);
    return ZERO_OK;
}

zero_status_t hf_config_apply(options_t *options)
{
    if (strcmp(options->model.init, "random") == 0)
        return ZERO_OK;
    hf_config_t *config = calloc(1, sizeof *config);
    options_t *filled = malloc(sizeof *filled);
    zero_status_t status = ZERO_ERROR_MEMORY;
    if (config && filled) {
        *filled = *options; /* which does not change on failure */
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

zero_status_t hf_config_read(const char *directory, char **text)
{
    static const input_words_t words = {"the model's configuration: ", ""};
    char path[OPTIONS_MAX_PATH + 64];
    json_t *json;
    *text = NULL;
    snprintf(path, sizeof path, "%s/config.json", directory);
    if (access(path, F_OK) != 0)
        return ZERO_OK;
    ZERO_TRY(parse(path, words, &json));
    *text = json_dumps(json, JSON_REAL_PRECISION(17));
    json_decref(json);
    return *text ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "no memory to keep '%s'", path);
}
