/* hf_config.c - see hf_config.h.
 *
 * The file describes the weights, so it fills in the settings that the user has left at their defaults; those that the
 * user has set must agree with it. Keys that change what the model computes must have the one value that is supported
 * here. Other keys are not interpreted; a checkpoint's config.json keeps them. Every rank reads the file itself and
 * finds the same.
 */
#include "train/model/hf_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/options/options_table.h"
#include "train/report/report.h"
#include "train/options/input_file.h"

#define MAX_FILE_BYTES ((size_t)16 << 20)
#define MISTRAL_WINDOW 4096 /* of transformers' MistralConfig */

/* One setting of [model] and its key in the file. Rows are in an order in which `otherwise` can use earlier settings.
 */
typedef struct key_row {
    const char *key, *hf_key;
    double (*otherwise)(
        const options_t *filled); /* the value if the key is missing or null; NULL: the key is required */
} key_row_t;

/* A key and the one value that is supported, as JSON. If the key is missing, transformers uses this same value. */
typedef struct fixed_row {
    const char *hf_key, *value;
} fixed_row_t;

static double four_dims(const options_t *filled)
{
    return 4.0 * (double)filled->model.dim;
}

/* The defaults of transformers' configuration classes, if a file leaves these out. */
static double default_kv_heads(const options_t *filled)
{
    static const double KV_HEADS[] = {[ARCH_MISTRAL] = 8.0, [ARCH_QWEN2] = 32.0, [ARCH_QWEN3] = 32.0};
    return filled->model.arch == ARCH_LLAMA ? (double)filled->model.heads : KV_HEADS[filled->model.arch];
}

/* 0 leaves a setting as it is, to be derived from others. */
static double derived(const options_t *filled)
{
    (void)filled;
    return 0.0;
}

static double default_head_dim(const options_t *filled)
{
    return filled->model.arch == ARCH_QWEN3 ? 128.0 : derived(filled);
}

static double one(const options_t *filled)
{
    (void)filled;
    return 1.0;
}

static double gpt2_eps(const options_t *filled)
{
    (void)filled;
    return 1e-5;
}

static double llama_eps(const options_t *filled)
{
    (void)filled;
    return 1e-6;
}

static double llama_theta(const options_t *filled)
{
    (void)filled;
    return 10000.0;
}

static double default_high_freq(const options_t *filled)
{
    (void)filled;
    return 4.0;
}

static double default_original(const options_t *filled)
{
    (void)filled;
    return 8192.0;
}

static const key_row_t GPT2_KEYS[] = {
    {"layers", "n_layer", NULL},
    {"dim", "n_embd", NULL},
    {"heads", "n_head", NULL},
    {"ffn_dim", "n_inner", four_dims},
    {"vocab_size", "vocab_size", NULL},
    {"positions", "n_positions", NULL},
    {"norm_eps", "layer_norm_epsilon", gpt2_eps},
    {0},
};
static const fixed_row_t GPT2_FIXED[] = {
    {"activation_function", "\"gelu_new\""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"tie_word_embeddings", "true"},
    {0},
};

/* A key of the object rope_scaling stands here with that name before it (take_rope). */
#define SCALING "rope_scaling."

/* The Llama family has no table of positions: the length of sequences is the user's choice. */
static const key_row_t LLAMA_KEYS[] = {
    {"layers", "num_hidden_layers", NULL},
    {"dim", "hidden_size", NULL},
    {"heads", "num_attention_heads", NULL},
    {"kv_heads", "num_key_value_heads", default_kv_heads},
    {"head_dim", "head_dim", default_head_dim},
    {"ffn_dim", "intermediate_size", NULL},
    {"vocab_size", "vocab_size", NULL},
    {"norm_eps", "rms_norm_eps", llama_eps},
    {"tied", "tie_word_embeddings", derived},
    {"rope_theta", "rope_theta", llama_theta},
    {"rope_factor", SCALING "factor", one},
    {"rope_low_freq", SCALING "low_freq_factor", one},
    {"rope_high_freq", SCALING "high_freq_factor", default_high_freq},
    {"rope_original", SCALING "original_max_position_embeddings", default_original},
    {0},
};
static const fixed_row_t LLAMA_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {0},
};
static const fixed_row_t QWEN3_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {0},
};
static const fixed_row_t SILU_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {0},
};

/* What is written beside these and not read, unless it came with the model: no dropout, as in training, and no special
 * tokens, which a trainer does not know. The first is the class, which is always written. */
static const fixed_row_t GPT2_WRITTEN[] = {
    {"architectures", "[\"GPT2LMHeadModel\"]"},
    {"embd_pdrop", "0.0"},
    {"attn_pdrop", "0.0"},
    {"resid_pdrop", "0.0"},
    {0},
};
static const fixed_row_t LLAMA_WRITTEN[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {0},
};
static const fixed_row_t MISTRAL_WRITTEN[] = {
    {"architectures", "[\"MistralForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {0},
};
static const fixed_row_t QWEN2_WRITTEN[] = {
    {"architectures", "[\"Qwen2ForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {"use_sliding_window", "false"},
    {0},
};
static const fixed_row_t QWEN3_WRITTEN[] = {
    {"architectures", "[\"Qwen3ForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {"use_sliding_window", "false"},
    {0},
};
static const fixed_row_t ALL_WRITTEN[] = {
    {"bos_token_id", "null"},
    {"eos_token_id", "null"},
    {0},
};

static const struct {
    const char *model_type;
    const key_row_t *keys;
    const fixed_row_t *fixed, *written;
} ARCHS[] = {
    [ARCH_GPT2] = {"gpt2", GPT2_KEYS, GPT2_FIXED, GPT2_WRITTEN},
    [ARCH_LLAMA] = {"llama", LLAMA_KEYS, LLAMA_FIXED, LLAMA_WRITTEN},
    [ARCH_MISTRAL] = {"mistral", LLAMA_KEYS, SILU_FIXED, MISTRAL_WRITTEN},
    [ARCH_QWEN2] = {"qwen2", LLAMA_KEYS, SILU_FIXED, QWEN2_WRITTEN},
    [ARCH_QWEN3] = {"qwen3", LLAMA_KEYS, QWEN3_FIXED, QWEN3_WRITTEN},
};

/* Well-known families that are not supported, each with what it computes that is missing here. */
static const struct {
    const char *model_type, *missing;
} REFUSED[] = {
    {"gemma", "GELU in a gated MLP, scaled embeddings and norms with 1 + weight"},
    {"gemma2", "norms after attention and MLP, soft caps of scores and logits, and attention within a window"},
    {"gemma3", "images, norms after attention and MLP, and attention within a window"},
    {"gemma3_text", "norms after attention and MLP, and attention within a window"},
    {"mixtral", "a mixture of experts"},
    {"qwen2_moe", "a mixture of experts"},
    {"qwen3_moe", "a mixture of experts"},
    {"phi3", "its fused tensors' names and rotation of a part of each head"},
    {"gpt_neox", "attention and MLP side by side, and rotation of a part of each head"},
};

typedef struct hf_config {
    char path[OPTIONS_MAX_PATH + 16];
    json_t *json;
    options_t *options;
    options_t defaults;
} hf_config_t;

static const void *field_of(const options_t *options, const option_row_t *row)
{
    return (const char *)options + row->offset;
}

static void *field(options_t *options, const option_row_t *row)
{
    return (char *)options + row->offset;
}

static zero_status_t take_integer(hf_config_t *config, const key_row_t *key, const option_row_t *row, int64_t value)
{
    int64_t *setting = field(config->options, row), *untouched = field(&config->defaults, row);
    if (value < row->low || value > row->high)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %" PRId64 "; [model] %s can be %" PRId64 " to %" PRId64,
                            config->path, key->hf_key, value, key->key, row->low, row->high);
    if (*setting != *untouched && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %" PRId64 ", but the model in init has %s = %" PRId64
                            " ('%s'): leave it out, or load another model",
                            key->key, *setting, key->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_real(hf_config_t *config, const key_row_t *key, const option_row_t *row, double value)
{
    double *setting = field(config->options, row), *untouched = field(&config->defaults, row);
    if (!(value >= row->real_low && value <= row->real_high))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %g; [model] %s can be %g to %g", config->path, key->hf_key,
                            value, key->key, row->real_low, row->real_high);
    if (*setting != *untouched && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %g, but the model in init has %s = %g ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting, key->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_bool(hf_config_t *config, const key_row_t *key, const option_row_t *row, const json_t *value)
{
    bool *setting = field(config->options, row), *untouched = field(&config->defaults, row);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is neither true nor false", config->path, key->hf_key);
    if (*setting != *untouched && *setting != json_is_true(value))
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %s, but the model in init has %s = %s ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting ? "true" : "false", key->hf_key, *setting ? "false" : "true",
                            config->path);
    *setting = json_is_true(value);
    return ZERO_OK;
}

static zero_status_t take_key(hf_config_t *config, const key_row_t *key)
{
    const option_row_t *row = option_row_find("model", key->key);
    const json_t *value = json_object_get(config->json, key->hf_key);
    if (row->type == OPTION_BOOL)
        return take_bool(config, key, row, value);
    bool is_silent = !value || json_is_null(value), is_integer = row->type == OPTION_INTEGER;
    double otherwise = is_silent && key->otherwise ? key->otherwise(config->options) : 0.0;
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

static zero_status_t refuse(const hf_config_t *config, const char *hf_key, const json_t *value, const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    report_error(ZERO_ERROR_USAGE, "'%s': %s is %.60s; only models with %s can be trained", config->path, hf_key,
                 text ? text : "?", wanted);
    free(text);
    return ZERO_ERROR_USAGE;
}

static zero_status_t check_fixed(const hf_config_t *config, const fixed_row_t *fixed)
{
    json_t *value = json_object_get(config->json, fixed->hf_key);
    json_t *wanted = json_loads(fixed->value, JSON_DECODE_ANY, NULL);
    bool good = !value || json_equal(value, wanted);
    json_decref(wanted);
    return good ? ZERO_OK : refuse(config, fixed->hf_key, value, fixed->value);
}

/* Copies a number of the object to where LLAMA_KEYS looks for it. */
static void copy_rope(const hf_config_t *config, const json_t *rope, const char *key, const char *copied_as)
{
    json_t *value = json_object_get(rope, key);
    if (value)
        json_object_set(config->json, copied_as, value);
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
        snprintf(copied_as, sizeof copied_as, SCALING "%s", keys[i]);
        const json_t *value = json_object_get(source, from);
        if (!value || json_is_null(value))
            return report_error(ZERO_ERROR_FORMAT, "'%s': %s has no %s, which \"llama3\" needs", config->path, object,
                                keys[i]);
        if (i == 0 && json_number_value(value) == 1.0)
            return ZERO_OK;
        copy_rope(config, source, from, copied_as);
    }
    return ZERO_OK;
}

/* Finds rotary settings. Older files have rope_theta and rope_scaling; those of transformers 5 have both in
 * rope_parameters. Refuses other kinds of scaling than Llama 3.1's, and copies all to where LLAMA_KEYS looks. */
static zero_status_t take_rope(const hf_config_t *config)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    for (const key_row_t *key = LLAMA_KEYS; key->key; key++)
        if (strncmp(key->hf_key, SCALING, sizeof SCALING - 1) == 0)
            json_object_del(config->json, key->hf_key);
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        json_t *rope = json_object_get(config->json, objects[i]);
        if (!rope || json_is_null(rope))
            continue;
        json_t *type = json_object_get(rope, "rope_type"), *part = json_object_get(rope, "partial_rotary_factor");
        if (!type)
            type = json_object_get(rope, "type");
        const char *name = !type ? "default" : json_is_string(type) ? json_string_value(type) : "?";
        bool is_scaled = strcmp(name, "llama3") == 0;
        if (!json_is_object(rope) || (!is_scaled && strcmp(name, "default") != 0))
            return refuse(config, objects[i], type ? type : rope, "\"default\", \"llama3\" or null");
        if (part && json_number_value(part) != 1.0)
            return refuse(config, "partial_rotary_factor", part, "1");
        copy_rope(config, rope, "rope_theta", "rope_theta");
        if (is_scaled)
            TRY(take_scaling(config, objects[i], rope));
    }
    return ZERO_OK;
}

/* Takes the window of Mistral, which all layers have. Without a word of it there are transformers' 4096 positions. */
static zero_status_t take_window(hf_config_t *config)
{
    static const key_row_t key = {"window", "sliding_window", NULL};
    const json_t *window = json_object_get(config->json, key.hf_key);
    const int64_t *setting = &config->options->model.window;
    if (window && !json_is_null(window) && !json_is_integer(window))
        return report_error(ZERO_ERROR_FORMAT, "'%s': sliding_window is neither a whole number nor null", config->path);
    if (!window || json_is_integer(window))
        return take_integer(config, &key, option_row_find("model", key.key),
                            window ? json_integer_value(window) : MISTRAL_WINDOW);
    if (*setting != 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] window = %" PRId64
                            ", but the model in init has none ('%s'): leave it out, or load another model",
                            *setting, config->path);
    return ZERO_OK;
}

/* Returns whether some layer of a Qwen has attention that ends at sliding_window positions. */
static bool has_window(const hf_config_t *config)
{
    const json_t *types = json_object_get(config->json, "layer_types"), *type;
    size_t layer;
    json_array_foreach((json_t *)types, layer,
                       type) if (json_is_string(type) &&
                                 strcmp(json_string_value(type), "sliding_attention") == 0) return true;
    return config->options->model.arch != ARCH_LLAMA && !types &&
           json_is_true(json_object_get(config->json, "use_sliding_window"));
}

/* Checks that no sequence is longer than a Qwen's window, within which windowed attention is the same as any. */
static zero_status_t check_window(const hf_config_t *config)
{
    const json_t *window = json_object_get(config->json, "sliding_window");
    const int64_t seq_len = config->options->model.seq_len > 0 ? config->options->model.seq_len : OPTIONS_SEQ_LEN;
    const int64_t size = json_is_integer(window) ? json_integer_value(window) : seq_len;
    if (!has_window(config) || size >= seq_len)
        return ZERO_OK;
    return report_error(
        ZERO_ERROR_USAGE,
        "[model] seq_len = %" PRId64 ", but the model in init has sliding_window = %" PRId64
        " ('%s'): of this family attention within a window is not implemented, so seq_len can be %" PRId64 " at most",
        seq_len, size, config->path, size);
}

static zero_status_t refuse_family(const hf_config_t *config, const char *model_type)
{
    for (size_t i = 0; model_type && i < sizeof REFUSED / sizeof REFUSED[0]; i++)
        if (strcmp(REFUSED[i].model_type, model_type) == 0)
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': model_type is %s, which needs what is not implemented: %s; gpt2, llama, "
                                "mistral, qwen2 and qwen3 can be loaded",
                                config->path, model_type, REFUSED[i].missing);
    return report_error(ZERO_ERROR_USAGE,
                        "'%s': model_type is %.60s; gpt2, llama, mistral, qwen2 and qwen3 can be loaded", config->path,
                        model_type ? model_type : "missing");
}

static zero_status_t take_arch(hf_config_t *config)
{
    const char *model_type = json_string_value(json_object_get(config->json, "model_type"));
    int *setting = &config->options->model.arch;
    for (int arch = 0; model_type && arch < (int)(sizeof ARCHS / sizeof ARCHS[0]); arch++) {
        if (strcmp(ARCHS[arch].model_type, model_type) != 0)
            continue;
        if (*setting != config->defaults.model.arch && *setting != arch)
            return report_error(ZERO_ERROR_USAGE, "[model] arch = %s, but the model in init is a %s ('%s')",
                                ARCHS[*setting].model_type, model_type, config->path);
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
    TRY(input_file_read(path, MAX_FILE_BYTES, words, &text, &n_bytes));
    *json = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    return *json ? ZERO_OK
                 : report_error(ZERO_ERROR_FORMAT, "'%s' is not valid JSON: %s, in line %d", path, error.text,
                                error.line);
}

/* Takes a directory of checkpoints for the newest in it. */
static void find_latest(options_t *options)
{
    char latest[OPTIONS_MAX_PATH + 32], model[sizeof latest];
    snprintf(model, sizeof model, "%s/config.json", options->model.init);
    snprintf(latest, sizeof latest, "%s/latest/config.json", options->model.init);
    if (access(model, F_OK) == 0 || access(latest, F_OK) != 0)
        return;
    size_t length = strlen(latest) - strlen("/config.json");
    if (length >= sizeof options->model.init)
        return;
    memcpy(options->model.init, latest, length);
    options->model.init[length] = 0;
}

static zero_status_t open_config(hf_config_t *config)
{
    static const input_words_t init = {"[model] init: ", "; name a model's directory, or random"};
    static const input_words_t checkpoint = {"generate: CHECKPOINT: ",
                                             "; name the directory of a checkpoint, of checkpoints or of a model"};
    const input_words_t words = options_generate(config->options) ? checkpoint : init;
    find_latest(config->options);
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
    TRY(open_config(config));
    TRY(take_arch(config));
    int arch = config->options->model.arch;
    for (const fixed_row_t *fixed = ARCHS[arch].fixed; fixed->hf_key; fixed++)
        TRY(check_fixed(config, fixed));
    if (arch != ARCH_GPT2) {
        TRY(take_rope(config));
        TRY(arch == ARCH_MISTRAL ? take_window(config) : check_window(config));
    }
    for (const key_row_t *key = ARCHS[arch].keys; key->key; key++)
        TRY(take_key(config, key));
    return arch == ARCH_GPT2 ? take_seq_len(config) : ZERO_OK;
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
    TRY(parse(path, words, &json));
    *text = json_dumps(json, JSON_REAL_PRECISION(17));
    json_decref(json);
    return *text ? ZERO_OK : report_error(ZERO_ERROR_MEMORY, "no memory to keep '%s'", path);
}

/* ---- writing ---- */

static void write_missing(json_t *json, const fixed_row_t *rows)
{
    for (const fixed_row_t *row = rows; row->hf_key; row++)
        if (!json_object_get(json, row->hf_key))
            json_object_set_new(json, row->hf_key, json_loads(row->value, JSON_DECODE_ANY, NULL));
}

static void write_fixed(json_t *json, const fixed_row_t *rows)
{
    for (const fixed_row_t *row = rows; row->hf_key; row++)
        json_object_set_new(json, row->hf_key, json_loads(row->value, JSON_DECODE_ANY, NULL));
}

static json_t *value_of(const options_t *options, const key_row_t *key)
{
    const option_row_t *row = option_row_find("model", key->key);
    const void *value = field_of(options, row);
    return row->type == OPTION_INTEGER ? json_integer(*(const int64_t *)value)
           : row->type == OPTION_BOOL  ? json_boolean(*(const bool *)value)
                                       : json_real(*(const double *)value);
}

/* Writes those of the keys that stand in the object rope_scaling, or all others. */
static void write_keys(json_t *json, const options_t *options, const key_row_t *keys, bool of_scaling)
{
    const size_t prefix = sizeof SCALING - 1;
    for (const key_row_t *key = keys; key->key; key++)
        if ((strncmp(key->hf_key, SCALING, prefix) == 0) == of_scaling)
            json_object_set_new(json, key->hf_key + (of_scaling ? prefix : 0), value_of(options, key));
}

/* Writes rotary settings, unless the source has them in the form of transformers 5. */
static void write_rope(json_t *json, const options_t *options, const json_t *source)
{
    if (json_is_object(json_object_get(source, "rope_parameters"))) {
        if (!json_object_get(source, "rope_theta"))
            json_object_del(json, "rope_theta");
        return;
    }
    if (options->model.rope_factor <= 1.0)
        return;
    json_t *scaling = json_pack("{s:s}", "rope_type", "llama3");
    write_keys(scaling, options, LLAMA_KEYS, true);
    json_object_set_new(json, "rope_scaling", scaling);
}

/* Writes the number of positions, which training on longer sequences extends. */
static void write_positions(json_t *json, const options_t *options)
{
    const json_t *before = json_object_get(json, "max_position_embeddings");
    if (!json_is_integer(before) || json_integer_value(before) < options->model.seq_len)
        json_object_set_new(json, "max_position_embeddings", json_integer(options->model.seq_len));
}

char *hf_config_text(const options_t *options, const char *source)
{
    static const char *const DTYPES[] = {[ZERO_FP32] = "float32", [ZERO_BF16] = "bfloat16", [ZERO_FP16] = "float16"};
    int arch = options->model.arch;
    json_t *before = source ? json_loads(source, 0, NULL) : NULL;
    json_t *json = json_is_object(before) ? json_copy(before) : json_object();
    json_object_set_new(json, "model_type", json_string(ARCHS[arch].model_type));
    json_object_set_new(json, json_object_get(before, "dtype") ? "dtype" : "torch_dtype",
                        json_string(DTYPES[options->train.precision]));
    write_keys(json, options, ARCHS[arch].keys, false);
    for (const key_row_t *key = ARCHS[arch].keys; key->key; key++)
        if (json_is_null(json_object_get(before, key->hf_key))) /* as it came: it is derived again */
            json_object_set_new(json, key->hf_key, json_null());
    write_fixed(json, ARCHS[arch].fixed);
    write_fixed(json, (const fixed_row_t[]){ARCHS[arch].written[0], {0}});
    write_missing(json, ARCHS[arch].written);
    write_missing(json, ALL_WRITTEN);
    if (arch == ARCH_GPT2) { /* older readers take the positions from this key */
        json_object_set_new(json, "n_ctx", json_integer(options_positions(options)));
    } else {
        write_rope(json, options, before);
        if (arch == ARCH_MISTRAL)
            json_object_set_new(json, "sliding_window",
                                options->model.window > 0 ? json_integer(options->model.window) : json_null());
        write_positions(json, options);
    }
    char *text = json_dumps(json, JSON_SORT_KEYS | JSON_INDENT(2));
    json_decref(json);
    json_decref(before);
    return text;
}
