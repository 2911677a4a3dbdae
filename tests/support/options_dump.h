/* options_dump.h - writes options as an ini file, so that tests can read them back. */
#ifndef ZERO_TEST_OPTIONS_DUMP_H
#define ZERO_TEST_OPTIONS_DUMP_H

#include <string.h>

#include "train/options/options_table.h"

/* Returns whether a setting has a value to write. A required one that is not set has none: it is 0, which its range
 * does not contain, or an empty text. */
static inline bool options_dump_has_value(const option_row_t *row, const char *text)
{
    return row->initial || (row->type == OPTION_TEXT ? text[0] != 0 : strcmp(text, "0") != 0);
}

static inline void options_dump(const options_t *options, FILE *file)
{
    for (const option_row_t *row = option_rows; row < option_rows + n_option_rows; row++) {
        char text[OPTIONS_MAX_PATH + 2];
        option_format(row, options, text);
        if (option_begins_section(row))
            fprintf(file, "%s[%s]\n", row == option_rows ? "" : "\n", row->section);
        fprintf(file, "%s%s =%s%s\n", options_dump_has_value(row, text) ? "" : "# ", row->key, text[0] ? " " : "",
                text);
    }
}

#endif
