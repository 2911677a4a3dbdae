/* options_file.c - reads CFG.ini: scanned line by line here, values parsed by iniparser.
 *
 * iniparser handles comments, quotes and continued lines, but it has no line numbers, silently lets a later key replace
 * an earlier one, and loses which line a key outside any section was on. So the file is first scanned here, by
 * iniparser's own rules for what a line is. The scan finds the line of every section and key, and refuses what
 * iniparser would read differently from how it looks. Then each key's value comes from iniparser.
 */
#include "train/options/input_file.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

#include <ctype.h>
#include <iniparser.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* iniparser's buffer holds a line and those that continue it: 1023 characters with the newline. */
#define MAX_LINE 1022
#define MAX_FILE_BYTES (1 << 20)

typedef struct entry {
    int line;
    const char *section, *key; /* in the scanned text; in lower case, as in iniparser */
} entry_t;

typedef struct scan {
    const char *path;
    char *text; /* the whole file; the scan splits it in place */
    entry_t *entries;
    int n_entries;
    const char *section; /* current; "" before the first */
} scan_t;

static zero_status_t fail_at(const scan_t *scan, int line, const char *what)
{
    return report_error(ZERO_ERROR_USAGE, "%s:%d: %s", scan->path, line, what);
}

static zero_status_t read_text(const char *path, char **text)
{
    size_t n_bytes;
    ZERO_TRY(input_file_read(path, MAX_FILE_BYTES, (input_words_t){"", ""}, text, &n_bytes));
    if (strlen(*text) == n_bytes)
        return ZERO_OK;
    free(*text);
    *text = NULL;
    return report_error(ZERO_ERROR_USAGE, "'%s' is not a text file: it has a zero byte", path);
}

/* ---- Scanning ---- */

static char *strip(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    return text;
}

static void lower(char *text)
{
    for (; *text; text++)
        *text = (char)tolower((unsigned char)*text);
}

/* Scans [section], which must be alone on its line. */
static zero_status_t scan_section(scan_t *scan, int line, char *text)
{
    char *end = strchr(text, ']');
    if (!end || end[1])
        return fail_at(scan, line, "a section must be alone on its line, like [train]");
    *end = 0;
    char *section = strip(text + 1);
    lower(section);
    char suggestion[OPTION_MAX_PROBLEM];
    if (!section[0])
        return fail_at(scan, line, "a section without a name");
    if (!option_section_exists(section)) {
        suggest_section(section, suggestion, sizeof suggestion);
        return report_error(ZERO_ERROR_USAGE, "%s:%d: unknown section [%.100s]%s", scan->path, line, section,
                            suggestion);
    }
    scan->section = section;
    return ZERO_OK;
}

/* Refuses what iniparser would silently drop: a quote that is not closed, and what follows a closing quote. */
static zero_status_t check_quotes(const scan_t *scan, int line, const char *key, char *value)
{
    char quote = value[0], *end;
    if (quote != '"' && quote != '\'')
        return ZERO_OK;
    if (!(end = strchr(value + 1, quote)))
        return report_error(ZERO_ERROR_USAGE, "%s:%d: [%s] %s: a quote %c that is not closed", scan->path, line,
                            scan->section, key, quote);
    const char *behind = strip(end + 1);
    if (behind[0] && behind[0] != '#' && behind[0] != ';')
        return report_error(ZERO_ERROR_USAGE,
                            "%s:%d: [%s] %s: '%.100s' follows the closing quote: one pair of quotes must enclose the "
                            "whole value",
                            scan->path, line, scan->section, key, behind);
    return ZERO_OK;
}

/* Refuses a comment that begins within a word, "a.txt;b.txt" say: iniparser would silently drop the rest of the value.
 * A ';' at the end is allowed, since some close a line so. */
static zero_status_t check_comment(const scan_t *scan, int line, const char *key, const char *value)
{
    const size_t n_bytes = strcspn(value, "#;");
    if (value[0] == '"' || value[0] == '\'' || n_bytes == 0 || !value[n_bytes] ||
        (value[n_bytes] == ';' && !value[n_bytes + 1]) || isspace((unsigned char)value[n_bytes - 1]))
        return ZERO_OK;
    return report_error(ZERO_ERROR_USAGE,
                        "%s:%d: [%s] %s: '%.100s' would be taken for a comment: quote the whole value if it belongs to "
                        "it, or else put a space before it",
                        scan->path, line, scan->section, key, value + n_bytes);
}

/* Scans key = value. The value comes from iniparser later. */
static zero_status_t scan_key(scan_t *scan, int line, char *text)
{
    char *equals = strchr(text, '=');
    if (!equals)
        return report_error(ZERO_ERROR_USAGE, "%s:%d: '%.100s' is neither [section] nor key = value", scan->path, line,
                            text);
    *equals = 0;
    char *key = strip(text);
    lower(key);
    char suggestion[OPTION_MAX_PROBLEM];
    if (!key[0])
        return fail_at(scan, line, "a value without a key");
    if (!option_row_find(scan->section, key)) {
        suggest_key(scan->section, key, suggestion, sizeof suggestion);
        if (!scan->section[0])
            return report_error(ZERO_ERROR_USAGE, "%s:%d: key '%.100s' comes before any section%s", scan->path, line,
                                key, suggestion);
        return report_error(ZERO_ERROR_USAGE, "%s:%d: unknown key '%.100s' in [%s]%s", scan->path, line, key,
                            scan->section, suggestion);
    }
    for (int i = 0; i < scan->n_entries; i++)
        if (strcmp(scan->entries[i].section, scan->section) == 0 && strcmp(scan->entries[i].key, key) == 0)
            return report_error(ZERO_ERROR_USAGE, "%s:%d: [%s] %s is already set in line %d", scan->path, line,
                                scan->section, key, scan->entries[i].line);
    scan->entries[scan->n_entries++] = (entry_t){.line = line, .section = scan->section, .key = key};
    char *value = strip(equals + 1);
    ZERO_TRY(check_comment(scan, line, key, value));
    return check_quotes(scan, line, key, value);
}

static zero_status_t scan_line(scan_t *scan, int line, char *text)
{
    if (strlen(text) > MAX_LINE)
        return report_error(ZERO_ERROR_USAGE, "%s:%d: the line is longer than %d characters", scan->path, line,
                            MAX_LINE);
    char *stripped = strip(text);
    if (!stripped[0] || stripped[0] == '#' || stripped[0] == ';')
        return ZERO_OK;
    return stripped[0] == '[' ? scan_section(scan, line, stripped) : scan_key(scan, line, stripped);
}

/* Returns whether the next line continues this one, and cuts off the backslash that says so and the spaces after it. */
static bool is_continued(char *line)
{
    size_t length = strlen(line);
    while (length > 0 && isspace((unsigned char)line[length - 1]))
        length--;
    if (length == 0 || line[length - 1] != '\\')
        return false;
    line[length - 1] = 0;
    return true;
}

/* Scans all lines. Joins continued ones in place, which only makes them shorter. */
static zero_status_t scan_text(scan_t *scan)
{
    int n_lines = 0;
    if (strncmp(scan->text, "\xef\xbb\xbf", 3) == 0)
        return fail_at(scan, 1, "the file begins with a byte order mark: save it as UTF-8 without one");
    for (char *rest = scan->text, *text; (text = strsep(&rest, "\n"));) {
        int first_line = ++n_lines;
        while (strlen(text) <= MAX_LINE && is_continued(text)) {
            char *next = strsep(&rest, "\n");
            if (!next || (!rest && !next[0]))
                return fail_at(scan, n_lines, "the file ends after a backslash, which continues a line");
            n_lines++;
            memmove(text + strlen(text), next, strlen(next) + 1);
        }
        ZERO_TRY(scan_line(scan, first_line, text));
    }
    return ZERO_OK;
}

/* ---- iniparser ---- */

/* The first error that iniparser reported. Its callback has no argument for user data. */
static char complaint[512];

static int on_complaint(const char *format, ...)
{
    if (complaint[0])
        return 0;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(complaint, sizeof complaint, format, args);
    va_end(args);
    return length;
}

static zero_status_t load(const char *path, dictionary **dict)
{
    complaint[0] = 0;
    iniparser_set_error_callback(on_complaint);
    dictionary *loaded = iniparser_load(path);
    iniparser_set_error_callback(NULL);
    if (loaded && !complaint[0]) {
        *dict = loaded;
        return ZERO_OK;
    }
    if (loaded)
        iniparser_freedict(loaded);
    return report_error(ZERO_ERROR_USAGE, "'%s': %s", path, complaint[0] ? strip(complaint) : "cannot be parsed");
}

static zero_status_t take_values(const scan_t *scan, const dictionary *dict, options_t *options)
{
    for (int i = 0; i < scan->n_entries; i++) {
        const entry_t *entry = &scan->entries[i];
        char name[2 * MAX_LINE], where[OPTIONS_MAX_PATH + 16];
        snprintf(name, sizeof name, "%s:%s", entry->section, entry->key);
        snprintf(where, sizeof where, "%s:%d", scan->path, entry->line);
        const char *value = iniparser_getstring(dict, name, NULL);
        if (!value)
            return report_error(ZERO_ERROR_USAGE, "%s: the line cannot be parsed", where);
        ZERO_TRY(options_set(options, where, entry->section, entry->key, value));
    }
    return ZERO_OK;
}

zero_status_t options_read_file(const char *path, options_t *options)
{
    scan_t scan = {.path = path, .section = ""};
    dictionary *dict = NULL;
    zero_status_t status = read_text(path, &scan.text);
    if (status != ZERO_OK)
        return status;
    scan.entries = calloc((size_t)n_option_rows, sizeof *scan.entries); /* no key is there twice */
    status = scan.entries ? scan_text(&scan) : report_error(ZERO_ERROR_MEMORY, "'%s': out of memory", path);
    if (status == ZERO_OK)
        status = load(path, &dict);
    if (status == ZERO_OK)
        status = take_values(&scan, dict, options);
    if (dict)
        iniparser_freedict(dict);
    free(scan.entries);
    free(scan.text);
    return status;
}
