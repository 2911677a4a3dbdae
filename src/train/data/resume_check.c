/* resume_check.c - see resume_check.h. */
#include "train/data/resume_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "train/options/lora_targets.h"
#include "train/options/options_table.h"
#include "train/report/report.h"
#include "train/report/utf8.h"

typedef enum change {
    CHANGE_REFUSED,
    CHANGE_FORCED, /* refused unless --force */
    CHANGE_REPORTED,
    CHANGE_GIVEN, /* reported if the user has set it: else it follows from the number of ranks */
    CHANGE_FREE,  /* affects nothing that is computed, or only how often something is reported */
} change_t;

/* The first rule that matches counts. key NULL: any key of the section. */
static const struct {
    const char *section, *key;
    change_t change;
} rules[] = {
    {"model", "init", CHANGE_FREE},
    {"model", "tokenizer", CHANGE_FREE},
    {"model", "recompute", CHANGE_FREE},
    {"model", "recompute_none", CHANGE_FREE},
    {"model", "recompute_light", CHANGE_FREE},
    {"model", "keep_attention", CHANGE_FREE},
    {"model", "offload_activations", CHANGE_FREE},
    {"model", NULL, CHANGE_REFUSED},
    {"data", "format", CHANGE_FREE}, /* its effect is compared, as the number of tokens */
    {"data", "packing", CHANGE_FORCED},
    {"data", "long_documents", CHANGE_FORCED},
    {"data", NULL, CHANGE_REPORTED},
    {"train", "seed", CHANGE_FORCED},
    {"train", "objective", CHANGE_REFUSED},
    {"train", "optimizer", CHANGE_REFUSED}, /* its state is another */
    {"train", "micro_batch", CHANGE_GIVEN},
    {"train", "eval_every", CHANGE_FREE},
    {"train", "sample_every", CHANGE_FREE},
    {"train", NULL, CHANGE_REPORTED},
    {"lora", "init", CHANGE_FREE},
    {"lora", "base", CHANGE_REPORTED},
    {"lora", "seed", CHANGE_FREE}, /* of what the checkpoint has now */
    {"lora", NULL, CHANGE_REFUSED},
    {"zero", "reduction", CHANGE_REPORTED},
    {"zero", "reduce_every_micro_step", CHANGE_REPORTED},
    {"zero", "gradients", CHANGE_REPORTED},
};

static change_t change_of(const option_row_t *row)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(rules[i].section, row->section) == 0 && (!rules[i].key || strcmp(rules[i].key, row->key) == 0))
            return rules[i].change;
    return CHANGE_FREE;
}

/* What has changed, as one line: "train.lr was 0.003, is 0.001; ...". What does not fit is left out. */
typedef struct changes {
    size_t n_bytes;
    char text[OPTIONS_MAX_PATH];
} changes_t;

__attribute__((format(printf, 2, 3))) static void add_change(changes_t *changes, const char *format, ...)
{
    va_list args;
    size_t room = sizeof changes->text - changes->n_bytes;
    const char *separator = changes->n_bytes > 0 ? "; " : "";
    char text[OPTIONS_MAX_PATH];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int length = snprintf(changes->text + changes->n_bytes, room, "%s%s", separator, text);
    if (length >= 0 && (size_t)length < room)
        changes->n_bytes += (size_t)length;
    else
        changes->text[changes->n_bytes] = 0;
}

/* ---- settings ---- */

/* Adds a changed setting. Reals are shown with 6 digits if that is enough to see the difference. */
static void add_setting(changes_t *changes, const option_row_t *row, const char *saved, const char *mine)
{
    char before[32], now[32];
    snprintf(before, sizeof before, "%.6g", strtod(saved, NULL));
    snprintf(now, sizeof now, "%.6g", strtod(mine, NULL));
    bool shorter = row->type == OPTION_REAL && strcmp(before, now) != 0;
    add_change(changes, "%s.%s was %s, is %s", row->section, row->key, shorter ? before : saved, shorter ? now : mine);
}

/* Says what to resume with where another value is refused. */
static const char *way_out(const options_t *options, const option_row_t *row)
{
    if (strcmp(row->section, "lora") == 0)
        return "one";
    if (options->lora.rank > 0) /* the checkpoint is an adapter */
        return strcmp(row->section, "model") == 0 ? "model" : "one, or give it as [lora] init";
    if (row >= option_rows + n_option_rows) /* which a model in init has set */
        return "model, or give it as [model] init";
    return strcmp(row->section, "model") == 0 ? "model" : "one, or give it as [model] init";
}

/* Returns whether two texts mean the same targets, in any order and by any of their names. The saved one may be of a
 * family that this run's model is not of. */
static bool is_same_targets(const options_t *options, const char *saved)
{
    uint32_t targets = 0;
    return lora_targets_find(options->model.arch, saved, &targets) && targets == options->lora.target_set;
}

/* Returns whether a text is recorded as `saved`: a path may not be UTF-8. */
static bool is_recorded_as(const char *text, const char *saved)
{
    size_t n_bytes;
    char *repaired = utf8_repaired(text, strlen(text), &n_bytes);
    const bool is_it = repaired && strcmp(saved, repaired) == 0;
    free(repaired);
    return is_it;
}

static bool is_same(const options_t *options, const option_row_t *row, const char *saved, const char *mine)
{
    if (is_recorded_as(mine, saved))
        return true;
    return strcmp(row->section, "lora") == 0 && strcmp(row->key, "targets") == 0 && is_same_targets(options, saved);
}

static zero_status_t check_setting(const options_t *options, const char *path, const option_row_t *row,
                                   const char *saved, changes_t *changes)
{
    char mine[OPTIONS_MAX_PATH + 2];
    change_t change = change_of(row);
    if (change == CHANGE_GIVEN)
        change = option_is_given(options, row) ? CHANGE_REPORTED : CHANGE_FREE;
    if (options->train.epochs > 0.0 && strcmp(row->key, "steps") == 0)
        change = CHANGE_FREE; /* derived later, with a line of its own */
    option_format(row, options, mine);
    const bool is_packed = options->data.packing == PACKING_FIT || options->data.packing == PACKING_PAD;
    if (!saved && is_packed && strcmp(row->section, "data") == 0 && strcmp(row->key, "packing") == 0)
        saved = "cut"; /* by a version that had no other */
    if (!saved || change == CHANGE_FREE || is_same(options, row, saved, mine))
        return ZERO_OK;
    if (change == CHANGE_REFUSED)
        return report_error(ZERO_ERROR_USAGE,
                            "[%s] %s = %s, but the checkpoint '%s' was made with %s: resume with the same %s",
                            row->section, row->key, mine, path, saved, way_out(options, row));
    if (change == CHANGE_FORCED && !options->force)
        return report_error(
            ZERO_ERROR_USAGE,
            "[%s] %s = %s, but the checkpoint '%s' was made with %s: its position in the data would mean "
            "other sequences; resume with the same, or with --force from that position of the new order",
            row->section, row->key, mine, path, saved);
    add_setting(changes, row, saved, mine);
    return ZERO_OK;
}

static zero_status_t check_settings(const options_t *options, const char *path, const json_t *config,
                                    changes_t *changes)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_recorded_rows; row++) {
        const json_t *section = json_object_get(config, row->section);
        const char *saved = json_string_value(json_object_get(section, row->key));
        ZERO_TRY(check_setting(options, path, row, saved, changes));
    }
    return ZERO_OK;
}

/* ---- data ---- */

/* Writes the hash as text, since many JSON readers do not keep 64 bits of a number. */
bool resume_check_add(const data_identity_t *data, json_t *object)
{
    char sample[20];
    snprintf(sample, sizeof sample, "%016" PRIx64, data->sample);
    return json_object_set_new(object, "tokens", json_integer(data->n_tokens)) == 0 &&
           json_object_set_new(object, "sample", json_string(sample)) == 0;
}

bool resume_check_read(const json_t *object, data_identity_t *data)
{
    const json_t *n_tokens = json_object_get(object, "tokens");
    const char *sample = json_string_value(json_object_get(object, "sample"));
    if (!json_is_integer(n_tokens) || !sample)
        return false;
    *data = (data_identity_t){.n_tokens = json_integer_value(n_tokens), .sample = strtoull(sample, NULL, 16)};
    return true;
}

static zero_status_t check_data(const options_t *options, const char *path, const json_t *saved,
                                const data_identity_t *data, changes_t *changes)
{
    data_identity_t then;
    if (!resume_check_read(saved, &then) || data_identity_is_same(&then, data))
        return ZERO_OK;
    const int64_t before = then.n_tokens;
    const char *likeness = before == data->n_tokens ? ", but other ones" : "";
    if (!options->force)
        return report_error(ZERO_ERROR_USAGE,
                            "[data] train = '%s' is not what the checkpoint '%s' was made with: %" PRId64
                            " tokens then, %" PRId64
                            " now%s; its position in the data would mean other sequences: resume with the same files, "
                            "or with --force from that position of the new order",
                            options->data.train, path, before, data->n_tokens, likeness);
    add_change(changes, "the training data were %" PRId64 " tokens, are %" PRId64 "%s", before, data->n_tokens,
               likeness);
    return ZERO_OK;
}

zero_status_t resume_check(const options_t *options, const char *path, const json_t *state, const data_identity_t *data)
{
    changes_t changes = {0};
    ZERO_TRY(check_settings(options, path, json_object_get(state, "config"), &changes));
    ZERO_TRY(check_data(options, path, json_object_get(state, "data"), data, &changes));
    if (changes.n_bytes > 0)
        report("resume: %s", changes.text);
    return ZERO_OK;
}
