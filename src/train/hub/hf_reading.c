/* hf_reading.c - see hf_reading.h. */
#include "train/hub/hf_reading.h"

#include <inttypes.h>
#include <string.h>

#include "train/report/report.h"

static void *field(const options_t *options, const option_row_t *row)
{
    return (char *)(uintptr_t)options + row->offset;
}

bool hf_is_chosen(const hf_config_t *config, const option_row_t *row, size_t n_bytes)
{
    return option_is_given(config->options, row) ||
           memcmp(field(config->options, row), field(&config->defaults, row), n_bytes) != 0;
}

zero_status_t hf_take_integer(const hf_config_t *config, const hf_key_t *key, const option_row_t *row, int64_t value)
{
    int64_t *setting = field(config->options, row);
    if (value < row->low || value > row->high)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %" PRId64 "; it can be %" PRId64 " to %" PRId64,
                            config->path, key->hf_key, value, row->low, row->high);
    if (hf_is_chosen(config, row, sizeof *setting) && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %" PRId64 ", but the model in init has %s = %" PRId64
                            " ('%s'): leave it out, or load another model%s",
                            key->key, *setting, key->hf_key, value, config->path,
                            strcmp(key->key, "vocab_size") == 0 && *setting > value
                                ? ": zerotrain export --vocab-size writes one with more rows"
                                : "");
    *setting = value;
    return ZERO_OK;
}

zero_status_t hf_take_real(const hf_config_t *config, const hf_key_t *key, const option_row_t *row, double value)
{
    double *setting = field(config->options, row);
    if (!(value >= row->real_low && value <= row->real_high))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is %g; it can be %g to %g", config->path, key->hf_key, value,
                            row->real_low, row->real_high);
    if (hf_is_chosen(config, row, sizeof *setting) && *setting != value)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %g, but the model in init has %s = %g ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting, key->hf_key, value, config->path);
    *setting = value;
    return ZERO_OK;
}

static zero_status_t take_bool(const hf_config_t *config, const hf_key_t *key, const option_row_t *row,
                               const json_t *value)
{
    bool *setting = field(config->options, row);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is neither true nor false", config->path, key->hf_key);
    const bool found = json_is_boolean(value) ? json_is_true(value) : key->otherwise(&config->options->model) != 0.0;
    if (hf_is_chosen(config, row, sizeof *setting) && *setting != found)
        return report_error(ZERO_ERROR_USAGE,
                            "[model] %s = %s, but the model in init has %s = %s ('%s'): leave it out, or load another "
                            "model",
                            key->key, *setting ? "true" : "false", key->hf_key, *setting ? "false" : "true",
                            config->path);
    *setting = found;
    return ZERO_OK;
}

zero_status_t hf_take_key(const hf_config_t *config, const hf_key_t *key)
{
    const option_row_t *row = option_row_find_recorded("model", key->key);
    const json_t *value = json_object_get(config->json, key->hf_key);
    if (row->type == OPTION_BOOL)
        return take_bool(config, key, row, value);
    bool is_silent = !value || json_is_null(value), is_integer = row->type == OPTION_INTEGER;
    double otherwise = is_silent && key->otherwise ? key->otherwise(&config->options->model) : 0.0;
    if (is_silent && key->otherwise && (otherwise == 0.0 || (value && key->unset & HF_NULL_IS_0)))
        return ZERO_OK;
    if (json_is_number(value) && json_number_value(value) == 0.0 && key->unset & HF_0_IS_UNSET)
        return ZERO_OK;
    bool is_good = is_silent ? key->otherwise != NULL : is_integer ? json_is_integer(value) : json_is_number(value);
    if (!is_good)
        return report_error(ZERO_ERROR_FORMAT, "'%s': %s is missing or not a %s", config->path, key->hf_key,
                            is_integer ? "whole number" : "number");
    if (is_integer)
        return hf_take_integer(config, key, row, is_silent ? (int64_t)otherwise : json_integer_value(value));
    return hf_take_real(config, key, row, is_silent ? otherwise : json_number_value(value));
}

int64_t hf_integer_or(const hf_config_t *config, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(config->json, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}
