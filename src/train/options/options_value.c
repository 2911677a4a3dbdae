/* options_value.c - converts one setting's value from text to its field of options_t and back, checked by its row. */
#include "train/options/options_table.h"
#include "train/report/report.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Longer values are shown to this length in messages. */
#define SHOWN "%.100s"

static void *field_of(const option_row_t *row, options_t *options)
{
    return (char *)options + row->offset;
}

/* ---- Text to value ---- */

bool option_parse_integer(const char *text, int64_t low, int64_t high, int64_t *value, char problem[OPTION_MAX_PROBLEM])
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end) {
        snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' is not a whole number", text);
        return false;
    }
    if (errno == ERANGE || parsed < low || parsed > high) {
        snprintf(problem, OPTION_MAX_PROBLEM, SHOWN " is out of range %" PRId64 "..%" PRId64, text, low, high);
        return false;
    }
    *value = parsed;
    return true;
}

/* Parses decimal numbers only: no hexadecimal, nan or inf, which strtod would accept. */
static bool parse_real(const char *text, double low, double high, double *value, char problem[OPTION_MAX_PROBLEM])
{
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end || (isfinite(parsed) && text[strspn(text, "+-.0123456789eE")])) {
        snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' is not a number", text);
        return false;
    }
    if (!isfinite(parsed)) {
        snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' is not a finite number", text);
        return false;
    }
    if (parsed < low || parsed > high) {
        snprintf(problem, OPTION_MAX_PROBLEM, SHOWN " is out of range %g..%g", text, low, high);
        return false;
    }
    *value = parsed;
    return true;
}

static bool parse_bool(const char *text, bool *value, char problem[OPTION_MAX_PROBLEM])
{
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int truth = 0; truth < 2; truth++)
            if (strcasecmp(text, words[i][truth]) == 0) {
                *value = truth;
                return true;
            }
    snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' is neither true nor false", text);
    return false;
}

/* Returns whether text is one of the row's choices, and its value. */
static bool find_choice(const option_row_t *row, const char *text, int *value)
{
    for (const option_choice_t *choice = row->choices; choice && choice->name; choice++)
        if (strcmp(choice->name, text) == 0) {
            *value = choice->value;
            return true;
        }
    return false;
}

/* Returns the name of a value; NULL: it has none. */
static const char *choice_name(const option_row_t *row, int64_t value)
{
    for (const option_choice_t *choice = row->choices; choice && choice->name; choice++)
        if (choice->value == value)
            return choice->name;
    return NULL;
}

/* Says what the row's values are, and which of them was probably meant, or replaces a removed one. */
static void explain_values(const option_row_t *row, const char *text, char problem[OPTION_MAX_PROBLEM])
{
    const char *instead = suggest_for_removed(row->section, row->key, text);
    near_miss_t near = near_miss_begin(text);
    char values[256];
    if (instead) {
        snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' was removed: use %s", text, instead);
        return;
    }
    for (const option_choice_t *choice = row->choices; choice && choice->name; choice++)
        near_miss_offer(&near, choice->name, choice->name);
    if (row->word)
        near_miss_offer(&near, row->word, row->word);
    for (const option_choice_t *choice = row->choices; choice && choice->name && suggest_value(text); choice++)
        if (strcmp(choice->name, suggest_value(text)) == 0)
            near.best = choice->name;
    option_describe_values(row, ", ", values, sizeof values);
    snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' is not one of %s%s%s%s", text, values,
             near.best ? "; did you mean " : "", near.best ? (const char *)near.best : "", near.best ? "?" : "");
}

static bool parse_choice(const option_row_t *row, const char *text, int *value, char problem[OPTION_MAX_PROBLEM])
{
    if (find_choice(row, text, value))
        return true;
    explain_values(row, text, problem);
    return false;
}

static bool parse_text(const char *text, char *value, char problem[OPTION_MAX_PROBLEM])
{
    if (strlen(text) >= OPTIONS_MAX_PATH) {
        snprintf(problem, OPTION_MAX_PROBLEM, "longer than %d bytes", OPTIONS_MAX_PATH - 1);
        return false;
    }
    for (const char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) {
            snprintf(problem, OPTION_MAX_PROBLEM, "'" SHOWN "' has a control character", text);
            return false;
        }
    memset(value, 0, OPTIONS_MAX_PATH); /* equal options are equal bytes */
    memcpy(value, text, strlen(text));
    return true;
}

/* Returns whether text is the number that means "derive it", however it is spelled. */
static bool is_derived(const option_row_t *row, const char *text)
{
    char *end;
    return row->derived && strtod(text, &end) == strtod(row->derived, NULL) && end != text && !*end;
}

/* A number, or one of the row's words if it has some. */
static bool set_integer(const option_row_t *row, const char *text, int64_t *field, char problem[OPTION_MAX_PROBLEM])
{
    int choice;
    if (find_choice(row, text, &choice)) {
        *field = choice;
        return true;
    }
    if (row->choices && isalpha((unsigned char)text[0])) {
        explain_values(row, text, problem);
        return false;
    }
    if (text == row->derived)
        return option_parse_integer(text, INT64_MIN, INT64_MAX, field, problem);
    return option_parse_integer(text, row->low, row->high, field, problem);
}

static bool set_real(const option_row_t *row, const char *text, double *field, char problem[OPTION_MAX_PROBLEM])
{
    if (row->word && strcmp(text, row->word) == 0) {
        *field = row->word_value;
        return true;
    }
    if (row->word && isalpha((unsigned char)text[0])) {
        explain_values(row, text, problem);
        return false;
    }
    if (text == row->derived)
        return parse_real(text, -HUGE_VAL, HUGE_VAL, field, problem);
    return parse_real(text, row->real_low, row->real_high, field, problem);
}

static bool set_stripped(const option_row_t *row, const char *text, options_t *options,
                         char problem[OPTION_MAX_PROBLEM])
{
    void *field = field_of(row, options);
    if (!text[0] && !row->may_be_empty) {
        snprintf(problem, OPTION_MAX_PROBLEM, "the value is empty");
        return false;
    }
    if (is_derived(row, text))
        text = row->derived;
    switch (row->type) {
    case OPTION_INTEGER:
        return set_integer(row, text, field, problem);
    case OPTION_REAL:
        return set_real(row, text, field, problem);
    case OPTION_BOOL:
        return parse_bool(text, field, problem);
    case OPTION_CHOICE:
        return parse_choice(row, text, field, problem);
    case OPTION_TEXT:
        return parse_text(text, field, problem);
    }
    return false;
}

/* Sets the row's field from text, ignoring spaces around it. If it is not one of the row's values, returns false with
 * the problem in words, and leaves the field as it was. */
static bool set_field(const option_row_t *row, const char *text, options_t *options, char problem[OPTION_MAX_PROBLEM])
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    char *stripped = strndup(text, length);
    if (!stripped) {
        snprintf(problem, OPTION_MAX_PROBLEM, "out of memory");
        return false;
    }
    bool is_set = set_stripped(row, stripped, options, problem);
    if (is_set && !is_derived(row, stripped))
        options->given[(row - option_rows) / 64] |= (uint64_t)1 << ((row - option_rows) % 64);
    free(stripped);
    return is_set;
}

void options_set_defaults(options_t *options)
{
    memset(options, 0, sizeof *options);
    char problem[OPTION_MAX_PROBLEM];
    for (int i = 0; i < n_recorded_rows; i++)
        if (option_rows[i].initial)
            (void)set_field(&option_rows[i], option_rows[i].initial, options, problem); /* a test sets every one */
    memset(options->given, 0, sizeof options->given);
    options->generate.max_tokens = 256;
    options->generate.temperature = 0.8;
    options->generate.top_p = 1.0;
    options->generate.seed = 1;
}

zero_status_t options_set(options_t *options, const char *where, const char *section, const char *key, const char *text)
{
    const option_row_t *row = option_row_find(section, key);
    char problem[OPTION_MAX_PROBLEM];
    if (row && set_field(row, text, options, problem))
        return ZERO_OK;
    if (row)
        return report_error(ZERO_ERROR_USAGE, "%s: [%s] %s: %s", where, section, key, problem);
    if (!option_section_exists(section)) {
        suggest_section(section, problem, sizeof problem);
        return report_error(ZERO_ERROR_USAGE, "%s: unknown section [" SHOWN "]%s", where, section, problem);
    }
    suggest_key(section, key, problem, sizeof problem);
    return report_error(ZERO_ERROR_USAGE, "%s: unknown key '" SHOWN "' in [%s]%s", where, key, section, problem);
}

bool option_is_given(const options_t *options, const option_row_t *row)
{
    return options->given[(row - option_rows) / 64] >> ((row - option_rows) % 64) & 1;
}

void option_reset(options_t *options, const option_row_t *row)
{
    char problem[OPTION_MAX_PROBLEM];
    (void)set_field(row, row->initial, options, problem);
    options->given[(row - option_rows) / 64] &= ~((uint64_t)1 << ((row - option_rows) % 64));
}

/* ---- Value to text ---- */

/* Writes the fewest digits that strtod turns into the same bits: 17 are always enough. */
static void format_real(double value, char *text, size_t n_bytes)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, n_bytes, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

/* Returns whether an ini file needs quotes around the value. They keep iniparser from taking ; or # for the start of a
 * comment, and a backslash at the end for a continued line. Only a quote at the beginning counts as one, so a path may
 * contain quotes of both kinds. */
static bool needs_quotes(const char *value)
{
    size_t length = strlen(value);
    return strpbrk(value, ";#") || value[0] == '"' || value[0] == '\'' || (length > 0 && value[length - 1] == '\\');
}

void option_format(const option_row_t *row, const options_t *options, char text[OPTIONS_MAX_PATH + 2])
{
    const size_t n_bytes = OPTIONS_MAX_PATH + 2;
    const void *field = (const char *)options + row->offset;
    const char *name;
    switch (row->type) {
    case OPTION_INTEGER:
        name = choice_name(row, *(const int64_t *)field);
        if (name)
            snprintf(text, n_bytes, "%s", name);
        else
            snprintf(text, n_bytes, "%" PRId64, *(const int64_t *)field);
        break;
    case OPTION_REAL:
        if (row->word && *(const double *)field == row->word_value)
            snprintf(text, n_bytes, "%s", row->word);
        else
            format_real(*(const double *)field, text, n_bytes);
        break;
    case OPTION_BOOL:
        snprintf(text, n_bytes, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_CHOICE:
        name = choice_name(row, *(const int *)field);
        snprintf(text, n_bytes, "%s", name ? name : "");
        break;
    case OPTION_TEXT: {
        const char *value = field, *quote = "";
        if (needs_quotes(value))
            quote = strchr(value, '"') ? "'" : "\"";
        snprintf(text, n_bytes, "%s%s%s", quote, value, quote);
        break;
    }
    }
}

void option_describe_values(const option_row_t *row, const char *separator, char *text, size_t n_bytes)
{
    text[0] = 0;
    switch (row->type) {
    case OPTION_INTEGER:
        if (row->high == INT64_MAX)
            snprintf(text, n_bytes, "%" PRId64 "..2^63-1", row->low);
        else
            snprintf(text, n_bytes, "%" PRId64 "..%" PRId64, row->low, row->high);
        for (const option_choice_t *choice = row->choices; choice && choice->name; choice++)
            snprintf(text + strlen(text), n_bytes - strlen(text), " or %s", choice->name);
        break;
    case OPTION_REAL:
        snprintf(text, n_bytes, "%.6g..%.6g%s%s", row->real_low, row->real_high, row->word ? " or " : "",
                 row->word ? row->word : "");
        break;
    case OPTION_BOOL:
        snprintf(text, n_bytes, "true%sfalse", separator);
        break;
    case OPTION_CHOICE:
        for (const option_choice_t *choice = row->choices; choice->name; choice++)
            snprintf(text + strlen(text), n_bytes - strlen(text), "%s%s", choice == row->choices ? "" : separator,
                     choice->name);
        break;
    case OPTION_TEXT:
        snprintf(text, n_bytes, "text");
        break;
    }
    if (row->derived)
        snprintf(text + strlen(text), n_bytes - strlen(text), " or %s", row->derived);
}
