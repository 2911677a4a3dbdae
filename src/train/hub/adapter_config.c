/* adapter_config.c - see adapter_config.h. What PEFT can and adapters here cannot is refused by its key or by the name
 * of a tensor, and so is a key that is not known; what affects only PEFT's own training is not read.
 */
#include "train/hub/adapter_config.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_build.h"
#include "train/hub/adapter_base.h"
#include "train/hub/hf_config.h"
#include "train/hub/tensor_file.h"
#include "train/options/input_file.h"
#include "train/options/lora_targets.h"
#include "train/options/options_table.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

#define MAX_FILE_BYTES ((size_t)16 << 20)
#define PEFT_PREFIX "base_model.model."

static void path_in(const char *directory, const char *name, char path[OPTIONS_MAX_PATH + 64])
{
    snprintf(path, OPTIONS_MAX_PATH + 64, "%s/%s", directory, name);
}

static bool has_file(const char *directory, const char *name)
{
    char path[OPTIONS_MAX_PATH + 64];
    path_in(directory, name, path);
    return access(path, F_OK) == 0;
}

static bool has_model(const char *directory)
{
    return has_file(directory, "model.safetensors") || has_file(directory, "model.safetensors.index.json");
}

/* Some programs write the model's config.json beside their adapters. */
static bool is_adapter(const char *directory)
{
    return has_file(directory, ADAPTER_CONFIG_FILE) && !has_model(directory);
}

static zero_status_t read_json(const char *path, json_t **json)
{
    static const input_words_t words = {"an adapter's configuration: ", "; name a directory as PEFT saves it"};
    json_error_t error;
    char *text;
    size_t n_bytes;
    ZERO_TRY(input_file_read(path, MAX_FILE_BYTES, words, &text, &n_bytes));
    *json = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    return json_is_object(*json) ? ZERO_OK
                                 : report_error(ZERO_ERROR_FORMAT, "'%s' is not a JSON object: %s", path,
                                                *json ? "it is another value" : error.text);
}

/* ---- model and adapter ---- */

/* Refuses a model and an adapter in one directory: transformers would apply the one to the other. */
static zero_status_t refuse_both(const char *directory)
{
    if (!has_file(directory, ADAPTER_CONFIG_FILE) || !has_model(directory))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "'%s' has a whole model and an adapter (" ADAPTER_CONFIG_FILE
                        "), and does not say whether both "
                        "belong together: move the adapter to a directory of its own, and name it as well to use it",
                        directory);
}

/* Takes an adapter in model.init for what it is. */
static zero_status_t split(options_t *o)
{
    char path[OPTIONS_MAX_PATH + 64];
    json_t *json = NULL;
    path_in(o->model.init, ADAPTER_CONFIG_FILE, path);
    ZERO_TRY(read_json(path, &json));
    const char *base = json_string_value(json_object_get(json, "base_model_name_or_path"));
    zero_status_t status = ZERO_OK;
    if (!options_are_forward_only(o))
        status =
            report_error(ZERO_ERROR_USAGE,
                         "[model] init: '%s' is an adapter of '%s': name that model here and the adapter in [lora] "
                         "init, or make one model of both by zerotrain merge",
                         o->model.init, base ? base : "(no name)");
    else if (!options_init_is_random(o->lora.init))
        status = report_error(ZERO_ERROR_USAGE, "'%s' is an adapter: name %s", o->model.init,
                              o->command == COMMAND_MERGE ? "its model first: zerotrain merge BASE ADAPTER OUT"
                                                          : "the model that --adapter belongs to");
    else if (base && options_init_is_random(base))
        status =
            report_error(ZERO_ERROR_USAGE,
                         "'%s': this is an adapter of a random model ([model] init), which only training makes", path);
    else if (!base || !base[0] || strlen(base) >= sizeof o->model.init)
        status = report_error(ZERO_ERROR_USAGE,
                              "'%s' does not say which model it is an adapter of: name the model, and --adapter %s",
                              path, o->model.init);
    else if (access(base, F_OK) != 0)
        status = report_error(ZERO_ERROR_USAGE,
                              "'%s': the model that this is an adapter of, '%s', is not here: name its directory, and "
                              "--adapter %s",
                              path, base, o->model.init);
    if (status == ZERO_OK) {
        memcpy(o->lora.init, o->model.init, sizeof o->lora.init);
        snprintf(o->model.init, sizeof o->model.init, "%s", base);
        status = hf_config_find_latest(o->model.init);
        if (status == ZERO_OK)
            status = refuse_both(o->model.init);
    }
    json_decref(json);
    return status;
}

zero_status_t adapter_find(options_t *options)
{
    model_options_t *model = &options->model;
    if (!options_init_is_random(options->lora.init)) {
        ZERO_TRY(hf_config_find_latest(options->lora.init));
        ZERO_TRY(refuse_both(options->lora.init));
    }
    if (options_init_is_random(model->init))
        return ZERO_OK;
    ZERO_TRY(hf_config_find_latest(model->init));
    return is_adapter(model->init) ? split(options) : refuse_both(model->init);
}

const char *adapter_texts_directory(const options_t *options)
{
    const char *adapter = options->lora.init;
    return !options_init_is_random(adapter) && has_file(adapter, "tokenizer.json") ? adapter : options->model.init;
}

/* ---- adapter_config.json ---- */

typedef struct adapter {
    char path[OPTIONS_MAX_PATH + 64];
    json_t *json;
    options_t *options;
} adapter_t;

/* Keys that are known: their values are empty or one of these, as JSON. NULL: any, since the key is read elsewhere, or
 * changes nothing of a finished adapter. */
static const struct {
    const char *key, *values;
} KEYS[] = {
    {"peft_type", "[\"LORA\"]"},
    {"bias", "[\"none\"]"},
    {"use_rslora", "[true]"},
    /* Others change the model's own weights, when training begins and again when PEFT loads the adapter. */
    {"init_lora_weights", "[true, \"gaussian\", \"orthogonal\", \"eva\", \"mica\"]"},
    {"auto_mapping", NULL},
    {"base_model_name_or_path", NULL},
    {"corda_config", NULL},
    {"eva_config", NULL},
    {"exclude_modules", NULL},
    {"fan_in_fan_out", NULL},
    {"inference_mode", NULL},
    {"layers_pattern", NULL},
    {"layers_to_transform", NULL},
    {"loftq_config", NULL},
    {"lora_alpha", NULL},
    {"lora_dropout", NULL},
    {"lora_ga_config", NULL},
    {"megatron_core", NULL},
    {"peft_version", NULL},
    {"qalora_group_size", NULL},
    {"r", NULL},
    {"revision", NULL},
    {"runtime_config", NULL},
    {"target_modules", NULL},
    {"task_type", NULL},
};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

/* Whether a value is none: false, null, or without elements. */
static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static bool is_in(const json_t *value, const char *values)
{
    json_t *array = json_loads(values, 0, NULL);
    bool found = false;
    for (size_t i = 0; i < json_array_size(array); i++)
        found |= json_equal(value, json_array_get(array, i)) != 0;
    json_decref(array);
    return found;
}

/* A key that is not known belongs to a kind of adapter that is not computed here. */
static zero_status_t check_key(const adapter_t *a, const char *key, const json_t *value)
{
    size_t i = 0;
    while (i < N_KEYS && strcmp(key, KEYS[i].key) != 0)
        i++;
    if (is_empty(value) || (i < N_KEYS && (!KEYS[i].values || is_in(value, KEYS[i].values))))
        return ZERO_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    zero_status_t status = report_error(
        ZERO_ERROR_USAGE, "'%s': %.100s is %.100s, and adapters here need %s%s: take another adapter", a->path, key,
        text ? text : "?", i < N_KEYS ? "one of " : "null or false", i < N_KEYS ? KEYS[i].values : "");
    free(text);
    return status;
}

static zero_status_t check_keys(const adapter_t *a)
{
    const char *key;
    json_t *value;
    json_object_foreach(a->json, key, value)
    {
        ZERO_TRY(check_key(a, key, value));
    }
    return ZERO_OK;
}

static zero_status_t disagree(const adapter_t *a, const char *key, const char *mine, const char *theirs)
{
    return report_error(ZERO_ERROR_USAGE,
                        "[lora] %s = %s, but the adapter in [lora] init has %s ('%s'): leave it out, or take another "
                        "adapter",
                        key, mine, theirs, a->path);
}

static bool is_given(const adapter_t *a, const char *key)
{
    return !options_are_forward_only(a->options) && option_is_given(a->options, option_row_find("lora", key));
}

static zero_status_t take_numbers(adapter_t *a)
{
    lora_options_t *lora = &a->options->lora;
    const json_t *r = json_object_get(a->json, "r"), *alpha = json_object_get(a->json, "lora_alpha");
    const option_row_t *rank_row = option_row_find("lora", "rank"), *alpha_row = option_row_find("lora", "alpha");
    const bool rslora = json_is_true(json_object_get(a->json, "use_rslora"));
    char mine[32], theirs[32];
    if (!json_is_integer(r) || json_integer_value(r) < rank_row->low || json_integer_value(r) > rank_row->high)
        return report_error(ZERO_ERROR_FORMAT, "'%s': r is missing, or is no rank from %" PRId64 " to %" PRId64,
                            a->path, rank_row->low, rank_row->high);
    if (!json_is_number(alpha) ||
        !(json_number_value(alpha) >= alpha_row->real_low && json_number_value(alpha) <= alpha_row->real_high))
        return report_error(ZERO_ERROR_FORMAT, "'%s': lora_alpha is missing, or is no number from %g to %g", a->path,
                            alpha_row->real_low, alpha_row->real_high);
    snprintf(mine, sizeof mine, "%" PRId64, lora->rank);
    snprintf(theirs, sizeof theirs, "%" PRId64, (int64_t)json_integer_value(r));
    if (is_given(a, "rank") && lora->rank != json_integer_value(r))
        return disagree(a, "rank", mine, theirs);
    snprintf(mine, sizeof mine, "%g", lora->alpha);
    snprintf(theirs, sizeof theirs, "%g", json_number_value(alpha));
    if (is_given(a, "alpha") && lora->alpha != json_number_value(alpha))
        return disagree(a, "alpha", mine, theirs);
    if (is_given(a, "rslora") && lora->rslora != rslora)
        return disagree(a, "rslora", lora->rslora ? "true" : "false", rslora ? "true" : "false");
    lora->rank = json_integer_value(r);
    lora->alpha = json_number_value(alpha);
    lora->rslora = rslora;
    return ZERO_OK;
}

/* Adds the target that a tensor belongs to, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". */
static zero_status_t take_name(const adapter_t *a, const tensor_file_t *file, const char *name, uint32_t *targets)
{
    const model_options_t *model = &a->options->model;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        char prefix[128] = PEFT_PREFIX;
        lora_block_prefix(model->arch, layer, prefix + strlen(prefix), sizeof prefix - strlen(prefix));
        if (strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        const char *module = name + strlen(prefix), *end = strstr(module, ".lora_");
        if (end && (strcmp(end, ".lora_A.weight") == 0 || strcmp(end, ".lora_B.weight") == 0) &&
            lora_targets_add(model->arch, module, (size_t)(end - module), targets))
            return ZERO_OK;
    }
    return report_error(ZERO_ERROR_FORMAT,
                        "'%s' and the model '%s' do not belong together: the model has no linear layer for the "
                        "adapter's tensor %.200s",
                        file->path, model->init, name);
}

/* Refuses A without its B, or B without its A. name: as take_name has accepted it. */
static zero_status_t check_partner(const tensor_file_t *file, const char *name)
{
    char partner[256];
    snprintf(partner, sizeof partner, "%s", name);
    char *which = strstr(partner, ".lora_") + strlen(".lora_");
    *which = *which == 'A' ? 'B' : 'A';
    if (tensor_file_find(file, partner))
        return ZERO_OK;
    return report_error(ZERO_ERROR_FORMAT, "'%s' is damaged: it has the adapter's tensor %s, but no %s", file->path,
                        name, partner);
}

/* Writes targets as the setting has them. */
static void targets_text(int arch, uint32_t targets, char *text, size_t n_bytes)
{
    int n;
    const lora_target_t *rows = lora_targets(arch, &n);
    snprintf(text, n_bytes, "%s", targets == (UINT32_C(1) << n) - 1 ? LORA_ALL_LINEAR : "");
    for (int i = 0; i < n && strcmp(text, LORA_ALL_LINEAR) != 0; i++)
        if (targets >> i & 1)
            snprintf(text + strlen(text), n_bytes - strlen(text), "%s%s", text[0] ? "," : "",
                     rows[i].word ? rows[i].word : rows[i].module);
}

/* The tensors say which matrices have adapters: target_modules may be a pattern. */
static zero_status_t take_targets(adapter_t *a)
{
    lora_options_t *lora = &a->options->lora;
    const int arch = a->options->model.arch;
    char path[OPTIONS_MAX_PATH + 64], text[128], mine[128];
    tensor_file_t file = {0};
    uint32_t targets = 0, asked = 0;
    path_in(lora->init, ADAPTER_WEIGHTS_FILE, path);
    ZERO_TRY(tensor_file_open(path, &file));
    zero_status_t status = ZERO_OK;
    for (size_t i = 0; i < file.n_tensors && status == ZERO_OK; i++)
        status = take_name(a, &file, file.tensors[i].name, &targets);
    for (size_t i = 0; i < file.n_tensors && status == ZERO_OK; i++)
        status = check_partner(&file, file.tensors[i].name);
    if (status == ZERO_OK && targets == 0)
        status = report_error(ZERO_ERROR_FORMAT, "'%s' has no tensors", path);
    tensor_file_close(&file);
    ZERO_TRY(status);
    targets_text(arch, targets, text, sizeof text);
    if (is_given(a, "targets")) {
        ZERO_TRY(lora_targets_parse(arch, lora->targets, &asked));
        targets_text(arch, asked, mine, sizeof mine);
        if (asked != targets)
            return disagree(a, "targets", mine, text);
    }
    snprintf(lora->targets, sizeof lora->targets, "%s", text);
    return ZERO_OK;
}

/* Says so if PEFT has trained the adapter with dropout, which ends here. */
static void report_dropout(const adapter_t *a)
{
    const double rate = json_number_value(json_object_get(a->json, "lora_dropout"));
    if (rate != 0.0 && !options_are_forward_only(a->options))
        report("the adapter's configuration has lora_dropout = %g: no dropout is applied here", rate);
}

static zero_status_t apply(adapter_t *a)
{
    path_in(a->options->lora.init, ADAPTER_CONFIG_FILE, a->path);
    ZERO_TRY(read_json(a->path, &a->json));
    ZERO_TRY(check_keys(a));
    ZERO_TRY(take_numbers(a));
    ZERO_TRY(take_targets(a));
    report_dropout(a);
    return adapter_check_base(a->options->lora.init, a->options);
}

zero_status_t adapter_config_apply(options_t *options)
{
    adapter_t adapter = {.options = options};
    if (options_init_is_random(options->lora.init))
        return ZERO_OK;
    zero_status_t status = apply(&adapter);
    json_decref(adapter.json);
    return status;
}

/* ---- writing ---- */

/* Returns the names of modules as PEFT wants them: the part behind the dot, unless that is also another's. */
static json_t *target_modules(int arch, uint32_t targets)
{
    int n;
    const lora_target_t *rows = lora_targets(arch, &n);
    json_t *modules = json_array();
    for (int i = 0; i < n; i++) {
        const char *leaf = strrchr(rows[i].module, '.') + 1;
        uint32_t alike = 0;
        lora_targets_add(arch, leaf, strlen(leaf), &alike);
        if (targets >> i & 1)
            zero_json_append(&modules, json_string(alike == UINT32_C(1) << i ? leaf : rows[i].module));
    }
    return modules;
}

/* Finds how an adapter names its model: by its path without links, wherever the adapter is. */
static void find_base_name(const options_t *options, char base[PATH_MAX])
{
    if (options_init_is_random(options->model.init) || !realpath(options->model.init, base))
        snprintf(base, PATH_MAX, "%s", options->model.init);
}

zero_status_t adapter_config_check_path(const options_t *options)
{
    char base[PATH_MAX];
    size_t n_bytes;
    find_base_name(options, base);
    char *repaired = utf8_repaired(base, strlen(base), &n_bytes);
    if (!repaired)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for a path");
    const bool is_text = strcmp(repaired, base) == 0;
    free(repaired);
    if (is_text)
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "[model] init: the path '%s' is not UTF-8, and " ADAPTER_CONFIG_FILE " of the adapters has to "
                        "name it: rename that directory, or train from a copy with another path",
                        base);
}

char *adapter_config_text(const options_t *options)
{
    const lora_options_t *lora = &options->lora;
    char base[PATH_MAX];
    find_base_name(options, base);
    const bool is_whole = lora->alpha == (double)(json_int_t)lora->alpha;
    json_t *alpha = is_whole ? json_integer((json_int_t)lora->alpha) : json_real(lora->alpha);
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:s, s:b, s:I, s:o, s:f, s:o, s:b, s:b, s:b, s:b, s:n, s:{}, s:{}}", "peft_type",
                  "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "bias", "none", "inference_mode",
                  1, "r", (json_int_t)lora->rank, "lora_alpha", alpha, "lora_dropout", 0.0, "target_modules",
                  target_modules(options->model.arch, lora->target_set), "use_rslora", (int)lora->rslora,
                  "fan_in_fan_out", (int)(options->model.arch == ARCH_GPT2), "init_lora_weights", 1, "use_dora", 0,
                  "modules_to_save", "rank_pattern", "alpha_pattern");
    char *text = json ? json_dumps(json, JSON_SORT_KEYS | JSON_INDENT(2)) : NULL;
    json_decref(json);
    return text;
}
