/* fuzz_config_json.c - a model's config.json. Accepted values are within the ranges of [model]'s settings; if they can
 * be trained, the config.json that a checkpoint gets describes the same model. */
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "train/hub/hf_config.h"
#include "train/options/options_table.h"

static void check_ranges(const options_t *options)
{
    options_t defaults;
    options_set_defaults(&defaults);
    for (const option_row_t *row = option_rows; row < option_rows + n_recorded_rows; row++) {
        const void *field = (const char *)options + row->offset;
        if (strcmp(row->section, "model") != 0 || memcmp(field, (const char *)&defaults + row->offset, 8) == 0)
            continue;
        if (row->type == OPTION_INTEGER)
            FUZZ_REQUIRE(*(const int64_t *)field >= row->low && *(const int64_t *)field <= row->high,
                         "%s is out of range", row->key);
        if (row->type == OPTION_REAL)
            FUZZ_REQUIRE(*(const double *)field >= row->real_low && *(const double *)field <= row->real_high,
                         "%s is out of range", row->key);
    }
}

/* Of the Llama family the user sets the sequence length, wherever its weights come from. */
static bool is_of_the_file(const options_t *options, const option_row_t *row)
{
    return strcmp(row->section, "model") == 0 && (options->model.arch == ARCH_GPT2 || strcmp(row->key, "seq_len") != 0);
}

/* Returns whether a factor of scores is derived: what is written has the number. */
static bool is_derived(const model_options_t *model, const option_row_t *row)
{
    return (strcmp(row->key, "attention_multiplier") == 0 && model->attention_multiplier == 0.0) ||
           (strcmp(row->key, "query_scalar") == 0 && model->query_scalar == 0);
}

static void check_round_trip(const options_t *options, bool from_source)
{
    options_t again;
    options_set_defaults(&again);
    memcpy(again.model.init, options->model.init, sizeof again.model.init);
    char *source, *text;
    FUZZ_REQUIRE(hf_config_read(options->model.init, &source) == ZERO_OK && source, "what was accepted is not read");
    text = hf_config_text(&options->model, (zero_dtype_t)options->train.precision, from_source ? source : NULL);
    free(source);
    FUZZ_REQUIRE(text, "no text of a good model");
    fuzz_write_text("config.json", text);
    FUZZ_REQUIRE(hf_config_apply(&again) == ZERO_OK, "what was written is refused: %s", text);
    FUZZ_REQUIRE(options_resolve(&again, 1) == ZERO_OK, "what was written cannot be trained: %s", text);
    for (const option_row_t *row = option_rows; row < option_rows + n_recorded_rows; row++) {
        char before[OPTIONS_MAX_PATH + 2], after[OPTIONS_MAX_PATH + 2];
        option_format(row, options, before);
        option_format(row, &again, after);
        FUZZ_REQUIRE(!is_of_the_file(options, row) || is_derived(&options->model, row) || strcmp(before, after) == 0,
                     "%s was %s and is %s in %s", row->key, before, after, text);
    }
    FUZZ_REQUIRE(options_score_scale(&options->model) == options_score_scale(&again.model), "scores differ in %s",
                 text);
    free(text);
}

int fuzz_config_json(const uint8_t *data, size_t n_bytes)
{
    options_t options;
    fuzz_begin();
    fuzz_write("config.json", data, n_bytes);
    options_set_defaults(&options);
    strcpy(options.model.init, fuzz_path("."));
    zero_status_t status = hf_config_apply(&options);
    if (status == ZERO_OK) {
        check_ranges(&options);
        status = options_resolve(&options, 1);
    }
    if (status != ZERO_OK) {
        fuzz_refused(status);
        return 0;
    }
    fuzz_accepted = true;
    check_round_trip(&options, true); /* replaces the file */
    check_round_trip(&options, false);
    return 0;
}
