/* settings.h - parses key=value arguments of these programs by a table with a row per key. An unknown key or value ends
 * the program: a case whose settings were misread would pass for another. */
#ifndef TEST_SETTINGS_H
#define TEST_SETTINGS_H

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/expect.h"

typedef struct setting_row {
    const char *key;
    size_t offset;     /* of an int, or of an enum as large, in the program's structure */
    const char *names; /* "cpu async": its values are 0, 1 ...; NULL: whole numbers; SETTING_TEXT: any text */
} setting_row_t;

#define SETTING_TEXT "*" /* of a const char * */

/* Which word of `names` the value is. */
static int setting_name(const char *argument, const char *value, const char *names)
{
    size_t length = strlen(value);
    for (int i = 0; *names; i++) {
        size_t n = strcspn(names, " ");
        if (n == length && strncmp(names, value, n) == 0)
            return i;
        names += n + (names[n] == ' ');
    }
    CHECK(false, "%s: no such value", argument);
}

static int setting_number(const char *argument, const char *value)
{
    char *end;
    long number = strtol(value, &end, 10);
    CHECK(end != value && *end == '\0' && number >= INT_MIN && number <= INT_MAX, "%s: not a number", argument);
    return (int)number;
}

static inline void setting_take(const char *argument, const setting_row_t *rows, size_t n_rows, void *settings)
{
    const char *value = strchr(argument, '=');
    CHECK(value, "%s is not key=value", argument);
    size_t length = (size_t)(value++ - argument);
    for (const setting_row_t *row = rows; row < rows + n_rows; row++)
        if (strlen(row->key) == length && strncmp(row->key, argument, length) == 0) {
            void *at = (char *)settings + row->offset;
            if (row->names && strcmp(row->names, SETTING_TEXT) == 0) {
                *(const char **)at = value;
                return;
            }
            int *number = at;
            *number = row->names ? setting_name(argument, value, row->names) : setting_number(argument, value);
            return;
        }
    CHECK(false, "%s: no such setting", argument);
}

#define SETTING_DTYPES "fp32 bf16 fp16"                                 /* as zero_dtype_t */
#define SETTING_OPTIMIZERS "adamw sgd nesterov lion own muon adamw8bit" /* as zero_optimizer_t */

#endif
