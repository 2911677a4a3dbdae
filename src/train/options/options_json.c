/* options_json.c - the effective configuration as JSON, with values as in an ini file. */
#include <jansson.h>

#include "train/options/options_table.h"
#include "base/json_build.h"

json_t *options_json(const options_t *options)
{
    json_t *config = json_object();
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char text[OPTIONS_MAX_PATH + 2];
        option_format(row, options, text);
        if (!json_object_get(config, row->section))
            zero_json_set(&config, row->section, json_object());
        if (json_object_set_new(json_object_get(config, row->section), row->key, json_string(text)) != 0) {
            json_decref(config);
            return NULL;
        }
    }
    return config;
}
