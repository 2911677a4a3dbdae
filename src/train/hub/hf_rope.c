/* hf_rope.c - what config.json says of rotary positions. See hf_reading.h.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/hub/hf_reading.h"
#include "train/options/families.h"
#include "train/report/report.h"

#define PHI3_ORIGINAL 4096 /* of its class in transformers, if a file leaves it out */

/* Returns a number of an object. As in transformers, 0 counts as none. */
static double number_or(const json_t *object, const char *key, double otherwise)
{
    const double value = json_number_value(json_object_get(object, key));
    return value != 0.0 ? value : otherwise;
}

/* ---- rotary positions ---- */

/* The kinds of scaling, with the keys that each needs. */
static const struct {
    const char *name, *title, *keys[4];
} KINDS[] = {
    [ROPE_DEFAULT] = {"default", "no scaling", {NULL}},
    [ROPE_LLAMA3] = {"llama3", "Llama 3.1's scaling", {"factor", "low_freq_factor", "high_freq_factor"}},
    [ROPE_LINEAR] = {"linear", "linear scaling", {"factor"}},
    [ROPE_YARN] = {"yarn", "yarn's scaling", {"factor"}},
    [ROPE_LONGROPE] = {"longrope", "longrope's scaling", {"short_factor", "long_factor"}},
};
#define N_KINDS ((int)(sizeof KINDS / sizeof KINDS[0]))
#define WANTED_KINDS "\"default\", \"linear\", \"llama3\", \"longrope\", \"yarn\" or null"
#define WANTED_BY_PHI3 "\"default\", \"longrope\" or null"

/* Returns the name of the kind of scaling that an object of rotary settings asks for. */
static const char *rope_type(const json_t *rope)
{
    const json_t *type = json_object_get(rope, "rope_type");
    if (!type)
        type = json_object_get(rope, "type");
    return !type ? "default" : json_is_string(type) ? json_string_value(type) : "?";
}

/* Returns the kind; -1: it is not known. Phi-3's first files had other names of longrope. */
static int rope_kind(const hf_config_t *config, const json_t *rope)
{
    const bool is_phi3 = config->options->model.arch == ARCH_PHI3;
    if (is_phi3 && (strcmp(rope_type(rope), "su") == 0 || strcmp(rope_type(rope), "yarn") == 0))
        return ROPE_LONGROPE;
    if (is_phi3 && strcmp(rope_type(rope), "default") != 0 && strcmp(rope_type(rope), "longrope") != 0)
        return -1; /* its class in transformers knows no others */
    for (int kind = 0; kind < N_KINDS; kind++)
        if (strcmp(KINDS[kind].name, rope_type(rope)) == 0)
            return kind;
    return -1;
}

/* Refuses what is not computed here: other kinds of scaling, rotation of a part of each head but for Phi-3, and
 * settings of some layers alone, which are objects in the object. */
static zero_status_t check_rope(const hf_config_t *config, const char *name, const json_t *rope)
{
    const char *key;
    const json_t *said = json_object_get(rope, "rope_type"), *part = json_object_get(rope, "partial_rotary_factor");
    const json_t *inner;
    if (!said)
        said = json_object_get(rope, "type");
    if (!json_is_object(rope) || rope_kind(config, rope) < 0)
        return hf_keys_refuse(config->path, name, said ? said : rope,
                              config->options->model.arch == ARCH_PHI3 ? WANTED_BY_PHI3 : WANTED_KINDS);
    if (part && json_number_value(part) != 1.0 && config->options->model.arch != ARCH_PHI3)
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
    return json_is_number(value) ? json_number_value(value) : is_theta ? 10000.0 : 0.0;
}

/* Refuses two sources of rotary settings that do not say the same: versions of transformers take one or the other. */
static zero_status_t compare_ropes(const hf_config_t *config, const json_t *scaling, const json_t *parameters)
{
    static const char *const keys[] = {
        "rope_theta", "factor",    "low_freq_factor",  "high_freq_factor", "original_max_position_embeddings",
        "beta_fast",  "beta_slow", "attention_factor", "mscale",           "mscale_all_dim"};
    const size_t n_keys = rope_kind(config, scaling) == ROPE_DEFAULT ? 1 : sizeof keys / sizeof keys[0];
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
    static const char *const others[] = {"short_factor", "truncate", "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const json_t *outer = json_object_get(config->json, others[i]), *first = json_object_get(scaling, others[i]),
                     *second = json_object_get(parameters, others[i]);
        first = first ? first : outer;
        second = second ? second : outer;
        if ((first || second) && !json_equal(first, second))
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': %s differs in rope_scaling and rope_parameters: remove the wrong one",
                                config->path, others[i]);
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

/* Copies a number of an object to where LLAMA_KEYS of hf_families.c looks for it. */
static zero_status_t copy_rope(const hf_config_t *config, const json_t *rope, const char *key, const char *copied_as)
{
    json_t *value = json_object_get(rope, key);
    if (value && json_object_set(config->json, copied_as, value) != 0)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for '%s'", config->path);
    return ZERO_OK;
}

static zero_status_t set_integer(const hf_config_t *config, const char *key, int64_t value)
{
    return json_object_set_new(config->json, key, json_integer(value)) == 0
               ? ZERO_OK
               : report_rank_error(ZERO_ERROR_MEMORY, "no memory for '%s'", config->path);
}

/* Copies the keys that a kind needs, and the positions that the model was made for, which may be said elsewhere. */
static zero_status_t copy_scaling(const hf_config_t *config, const char *object, const json_t *rope, int kind)
{
    static const char original[] = "original_max_position_embeddings";
    char copied_as[64];
    for (const char *const *key = KINDS[kind].keys; *key; key++) {
        const json_t *value = json_object_get(rope, *key);
        if (!value || json_is_null(value))
            return report_error(ZERO_ERROR_FORMAT, "'%s': %s has no %s, which \"%s\" needs", config->path, object, *key,
                                KINDS[kind].name);
        snprintf(copied_as, sizeof copied_as, HF_SCALING "%s", *key);
        if (kind != ROPE_LONGROPE) /* whose are lists */
            ZERO_TRY(copy_rope(config, rope, *key, copied_as));
    }
    if (kind == ROPE_LINEAR)
        return ZERO_OK;
    if (config->options->model.arch == ARCH_PHI3) /* has it beside the object, and heeds only that */
        return set_integer(config, HF_SCALING "original_max_position_embeddings",
                           hf_integer_or(config, original, PHI3_ORIGINAL));
    const bool has_own = json_is_number(json_object_get(rope, original));
    return copy_rope(config, has_own ? rope : config->json, has_own ? original : "max_position_embeddings",
                     HF_SCALING "original_max_position_embeddings");
}

static zero_status_t take_real(const hf_config_t *config, const char *key, const char *hf_key, double value)
{
    return hf_take_real(config, &(hf_key_t){key, hf_key, NULL, 0}, option_row_find_recorded("model", key), value);
}

/* Returns transformers' factor of what is rotated. */
static double yarn_scale(const json_t *rope)
{
    const double factor = number_or(rope, "factor", 1.0), mscale = number_or(rope, "mscale", 0.0),
                 all_dim = number_or(rope, "mscale_all_dim", 0.0), log_factor = factor > 1.0 ? 0.1 * log(factor) : 0.0;
    const double inferred =
        mscale != 0.0 && all_dim != 0.0 ? (mscale * log_factor + 1.0) / (all_dim * log_factor + 1.0) : log_factor + 1.0;
    return json_is_number(json_object_get(rope, "attention_factor")) ? number_or(rope, "attention_factor", 0.0)
                                                                     : inferred;
}

static zero_status_t take_yarn(const hf_config_t *config, const json_t *rope)
{
    const json_t *truncate = json_object_get(rope, "truncate");
    config->options->model.rope_truncate = !truncate || json_is_true(truncate);
    ZERO_TRY(take_real(config, "rope_beta_fast", "beta_fast", number_or(rope, "beta_fast", 32.0)));
    ZERO_TRY(take_real(config, "rope_beta_slow", "beta_slow", number_or(rope, "beta_slow", 1.0)));
    return take_real(config, "rope_scale", "attention_factor", yarn_scale(rope));
}

/* Takes the divisors of sequences within the original length: longer ones, which have others, are refused
 * (check_longest).
 */
static zero_status_t take_longrope(const hf_config_t *config, const json_t *rope)
{
    const json_t *divisors = json_object_get(rope, "short_factor"), *divisor;
    const double most = (double)hf_integer_or(config, "max_position_embeddings", 1);
    const double original =
        json_number_value(json_object_get(config->json, HF_SCALING "original_max_position_embeddings"));
    const double factor = number_or(rope, "factor", most / original);
    const double inferred = factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log(original));
    char *text = config->options->model.rope_divisors;
    size_t i, length = 0;
    json_array_foreach((json_t *)divisors, i, divisor)
    {
        const size_t room = sizeof config->options->model.rope_divisors - length;
        const float value = (float)json_number_value(divisor);
        const int n = snprintf(text + length, room, "%s%.9g", i > 0 ? "," : "", (double)value);
        if (!(value > 0.0f) || n < 0 || (size_t)n >= room)
            return report_error(ZERO_ERROR_FORMAT,
                                "'%s': short_factor has an entry that is no positive number, or has "
                                "too many of them",
                                config->path);
        length += (size_t)n;
    }
    if (length == 0)
        return report_error(ZERO_ERROR_FORMAT, "'%s': short_factor is no list of numbers", config->path);
    return take_real(config, "rope_scale", "attention_factor", number_or(rope, "attention_factor", inferred));
}

/* Takes the scaling. A factor of 1 scales nothing. */
static zero_status_t take_scaling(const hf_config_t *config, const char *name, const json_t *rope, int *kind)
{
    *kind = rope_kind(config, rope);
    if (*kind == ROPE_DEFAULT)
        return ZERO_OK;
    if (*kind != ROPE_LONGROPE && json_number_value(json_object_get(rope, "factor")) == 1.0 &&
        !(*kind == ROPE_YARN && yarn_scale(rope) != 1.0)) {
        *kind = ROPE_DEFAULT;
        return ZERO_OK;
    }
    ZERO_TRY(copy_scaling(config, name, rope, *kind));
    return *kind == ROPE_YARN       ? take_yarn(config, rope)
           : *kind == ROPE_LONGROPE ? take_longrope(config, rope)
                                    : ZERO_OK;
}

/* Sets how RoPE is scaled. */
static zero_status_t set_kind(const hf_config_t *config, int found)
{
    int *setting = &config->options->model.rope;
    if (hf_is_chosen(config, option_row_find("model", "rope"), sizeof *setting) && *setting != found)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] rope = %s, but the model in init has %s ('%s'): leave it out, or load another "
                            "model",
                            KINDS[*setting].name, KINDS[found].title, config->path);
    *setting = found;
    return ZERO_OK;
}

/* Takes the share of a head that is rotated. */
static zero_status_t take_share(const hf_config_t *config, const json_t *rope)
{
    static const char key[] = "partial_rotary_factor";
    const double share = number_or(rope, key, number_or(config->json, key, 1.0));
    return config->options->model.arch == ARCH_PHI3 ? take_real(config, "rope_share", key, share) : ZERO_OK;
}

/* ---- rotary positions of layers with and without a window ---- */

static const char FULL[] = "full_attention", LOCAL[] = "sliding_attention";

/* Takes theta of layers with a window: theirs alone has no scaling. */
static zero_status_t take_local(const hf_config_t *config, const json_t *parameters)
{
    const json_t *local = json_object_get(parameters, LOCAL);
    const family_t *family = family_of(&config->options->model);
    const bool is_gemma = config->options->model.arch == ARCH_GEMMA3;
    const double otherwise =
        is_gemma ? number_or(config->json, "rope_local_base_freq", family->local_theta) : family->local_theta;
    if (local && !json_is_null(local)) {
        ZERO_TRY(check_rope(config, LOCAL, local));
        if (rope_kind(config, local) != ROPE_DEFAULT)
            return hf_keys_refuse(config->path, "rope_parameters", local, "\"default\" for sliding_attention");
    }
    return take_real(config, "rope_local_theta", "rope_local_base_freq", number_or(local, "rope_theta", otherwise));
}

/* Takes the settings of a family whose layers with a window have their own: rope_parameters has an object for each kind
 * of layer, or rope_scaling and rope_theta are those of layers without one. */
static zero_status_t read_ropes_by_layer(const hf_config_t *config)
{
    const json_t *scaling = json_object_get(config->json, "rope_scaling"),
                 *parameters = json_object_get(config->json, "rope_parameters");
    const json_t *full = json_is_object(parameters) ? json_object_get(parameters, FULL) : scaling;
    int kind = ROPE_DEFAULT;
    if (json_is_object(parameters) &&
        (!json_is_object(json_object_get(parameters, FULL)) || (scaling && !json_is_null(scaling))))
        return hf_keys_refuse(config->path, "rope_parameters", parameters,
                              "an object full_attention in it, and no rope_scaling beside it,");
    ZERO_TRY(take_local(config, json_is_object(parameters) ? parameters : NULL));
    if (full && !json_is_null(full)) {
        ZERO_TRY(check_rope(config, json_is_object(parameters) ? FULL : "rope_scaling", full));
        if (full == scaling && !json_object_get(full, "rope_type"))
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': rope_scaling has no rope_type, and transformers does not heed its type here: "
                                "name it rope_type, or remove rope_scaling",
                                config->path);
        ZERO_TRY(copy_rope(config, full, "rope_theta", "rope_theta"));
        ZERO_TRY(take_scaling(config, FULL, full, &kind));
        if (kind == ROPE_YARN && !config->options->model.rope_truncate)
            return report_error(ZERO_ERROR_USAGE,
                                "'%s': truncate = false of yarn is not heeded by transformers here: remove it",
                                config->path);
    }
    return set_kind(config, kind);
}

/* Older files have rope_theta and rope_scaling; those of transformers 5 have both in rope_parameters. */
zero_status_t hf_read_rope(const hf_config_t *config)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const json_t *ropes[2];
    int kind = ROPE_DEFAULT;
    for (const hf_key_t *key = hf_families[ARCH_LLAMA].keys; key->key; key++)
        if (strncmp(key->hf_key, HF_SCALING, sizeof HF_SCALING - 1) == 0)
            json_object_del(config->json, key->hf_key);
    if (!json_is_integer(json_object_get(config->json, "max_position_embeddings")))
        ZERO_TRY(set_integer(config, "max_position_embeddings", hf_families[config->options->model.arch].positions));
    if (family_of(&config->options->model)->local_theta > 0.0)
        return read_ropes_by_layer(config);
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
        ZERO_TRY(take_scaling(config, names[i], ropes[i], &kind));
    }
    ZERO_TRY(take_share(config, ropes[ropes[1] ? 1 : 0]));
    return set_kind(config, kind);
}
