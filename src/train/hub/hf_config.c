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

#include "train/hub/hf_reading.h"
#include "train/options/families.h"
#include "train/options/input_file.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#define MAX_FILE_BYTES ((size_t)16 << 20)

/* ---- the family ---- */

/* Writes the families that can be loaded: "gpt2, llama and qwen3". */
static void list_families(char *text, size_t n_bytes)
{
    size_t length = 0;
    for (int arch = 0; arch < n_families; arch++) {
        const char *separator = arch == 0 ? "" : arch == n_families - 1 ? " and " : ", ";
        const int n = snprintf(text + length, n_bytes - length, "%s%s", separator, families[arch].model_type);
        length += n > 0 && (size_t)n < n_bytes - length ? (size_t)n : 0;
    }
}

static zero_status_t refuse_family(const hf_config_t *config, const char *model_type)
{
    const char *missing = model_type ? hf_family_missing(model_type) : NULL;
    char known[512];
    list_families(known, sizeof known);
    if (missing)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s': model_type is %s, which needs what is not implemented: %s; %s can be loaded, and "
                            "libzero.torch trains any model of PyTorch (docs/using-libzero.md)",
                            config->path, model_type, missing, known);
    return report_error(ZERO_ERROR_USAGE,
                        "'%s': model_type is %.60s; %s can be loaded, and libzero.torch trains any model of PyTorch "
                        "(docs/using-libzero.md)",
                        config->path, model_type ? model_type : "missing", known);
}

/* Quantized weights cannot be trained, of whatever family: their gradients would be lost in rounding. */
static zero_status_t refuse_quantized(const hf_config_t *config)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(config->json, keys[i]);
        const char *method = json_string_value(json_object_get(value, "quant_method"));
        if (value && !json_is_null(value))
            return report_error(
                ZERO_ERROR_USAGE,
                "'%s': its weights are quantized, by %s (%s): only weights in fp32, bf16 or fp16 can be "
                "trained; take the model that they were made from, or what transformers' dequantize() "
                "makes of it",
                config->path, method ? method : "a method that is not named", keys[i]);
    }
    return ZERO_OK;
}

static zero_status_t take_arch(hf_config_t *config)
{
    const char *model_type = json_string_value(json_object_get(config->json, "model_type"));
    int *setting = &config->options->model.arch;
    for (int arch = 0; model_type && arch < n_families; arch++) {
        if (strcmp(families[arch].model_type, model_type) != 0)
            continue;
        if (hf_is_chosen(config, option_row_find("model", "arch"), sizeof *setting) && *setting != arch)
            return report_error(ZERO_ERROR_USAGE, "[model] arch = %s, but the model in init is a %s ('%s')",
                                families[*setting].model_type, model_type, config->path);
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

bool hf_config_is_there(const char *directory, char path[OPTIONS_MAX_PATH + 32])
{
    snprintf(path, OPTIONS_MAX_PATH + 32, "%s/config.json", directory);
    if (access(path, F_OK) == 0)
        return true;
    snprintf(path, OPTIONS_MAX_PATH + 32, "%s/adapter_config.json", directory);
    return access(path, F_OK) == 0;
}

zero_status_t hf_config_find_latest(char init[OPTIONS_MAX_PATH])
{
    char path[OPTIONS_MAX_PATH + 32], name[NEWEST_STEP_BYTES] = "latest";
    const size_t length = strlen(init);
    const int64_t step = newest_step(init);
    snprintf(path, sizeof path, "%s/latest", init);
    if (step < INT64_MAX && access(path, F_OK) != 0)
        newest_step_name(step, name);
    const bool is_model = hf_config_is_there(init, path);
    if (step == 0 || (is_model && step == INT64_MAX)) /* other programs have files named latest, too */
        return ZERO_OK;
    if (is_model)
        return report_error(ZERO_ERROR_USAGE,
                            "'%s' is a model ('%s') and has checkpoints of a run, such as '%s/%s': name that one, or "
                            "move either elsewhere",
                            init, path, init, name);
    if (length + 1 + strlen(name) < OPTIONS_MAX_PATH) {
        init[length] = '/';
        strcpy(init + length + 1, name);
    }
    return ZERO_OK;
}

static zero_status_t open_config(hf_config_t *config)
{
    static const input_words_t init = {"[model] init: ", "; name a model's directory, or random"};
    static const input_words_t checkpoint = {"generate: CHECKPOINT: ",
                                             "; name the directory of a checkpoint, of checkpoints or of a model"};
    static const input_words_t model = {"", "; name the directory of a model, or of checkpoints"};
    const input_words_t words = options_generate(config->options)      ? checkpoint
                                : options_write_model(config->options) ? model
                                                                       : init;
    ZERO_TRY(hf_config_find_latest(config->options->model.init));
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

static zero_status_t take_keys(hf_config_t *config, const hf_key_t *keys)
{
    for (const hf_key_t *key = keys; key->key; key++)
        ZERO_TRY(hf_take_key(config, key));
    return ZERO_OK;
}

static zero_status_t apply(hf_config_t *config)
{
    ZERO_TRY(open_config(config));
    ZERO_TRY(refuse_quantized(config));
    ZERO_TRY(take_arch(config));
    const int arch = config->options->model.arch;
    ZERO_TRY(hf_keys_check(config->path, config->json, arch));
    if (arch != ARCH_GPT2)
        ZERO_TRY(hf_read_rope(config));
    ZERO_TRY(take_keys(config, hf_families[arch].keys));
    ZERO_TRY(take_keys(config, hf_families[arch].more_keys));
    if (arch == ARCH_GPT2)
        ZERO_TRY(take_seq_len(config));
    else
        ZERO_TRY(hf_read_layers(config));
    hf_keys_report_unknown(config->path, config->json, arch);
    return ZERO_OK;
}

zero_status_t hf_config_apply(options_t *options)
{
    if (options_init_is_random(options->model.init))
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
