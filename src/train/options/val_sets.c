/* val_sets.c - see val_sets.h. The text is read anew for each question: it is short, and asked before step 0. */
#include "train/options/val_sets.h"

#include <string.h>
#include <unistd.h>

#include "train/report/report.h"

/* An entry of the list, without the spaces around it, and the length of its name: 0 if it has none. */
typedef struct item {
    const char *text, *path;
    int n_bytes, n_name, n_path;
} item_t;

/* Takes the entry at *rest, and moves *rest behind its comma; NULL: it was the last. */
static item_t next_item(const char **rest)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *text = *rest + strspn(*rest, " \t"), *end = text + strcspn(text, ",");
    *rest = *end ? end + 1 : NULL;
    while (end > text && strchr(" \t", end[-1]))
        end--;
    item_t item = {.text = text, .path = text, .n_bytes = (int)(end - text)};
    const size_t n_name = strspn(text, letters);
    if (n_name > 0 && text[n_name] == ':') {
        item.n_name = (int)n_name;
        item.path += n_name + 1;
        item.path += strspn(item.path, " \t");
        item.path = item.path > end ? end : item.path;
    }
    item.n_path = (int)(end - item.path);
    return item;
}

static bool is_of(const item_t *item, const char *name)
{
    return item->n_name == (int)strlen(name) && strncmp(item->text, name, (size_t)item->n_name) == 0;
}

/* Returns whether an entry before this one has its name. */
static bool is_known(const char *val, const item_t *item)
{
    for (const char *rest = val; rest;) {
        const item_t earlier = next_item(&rest);
        if (earlier.text == item->text)
            return false;
        if (earlier.n_name == item->n_name && strncmp(earlier.text, item->text, (size_t)item->n_name) == 0)
            return true;
    }
    return false;
}

static zero_status_t check_item(const item_t *item, bool has_names)
{
    char text[OPTIONS_MAX_PATH];
    snprintf(text, sizeof text, "%.*s", item->n_bytes, item->text);
    if (!text[0] && has_names)
        return report_error(ZERO_ERROR_USAGE, "[data] val: an empty path in the list: a comma too many");
    if (item->n_name == 0 && has_names)
        return report_error(ZERO_ERROR_USAGE,
                            "[data] val: '%s' has no name, but other files have: give each file one, NAME:%s (letters, "
                            "digits, _ and -), or none of them",
                            text, text);
    if (item->n_name > VAL_SET_MOST_NAME)
        return report_error(ZERO_ERROR_USAGE, "[data] val: the name of '%s' has more than %d letters", text,
                            VAL_SET_MOST_NAME);
    if (item->n_name > 0 && item->n_path == 0)
        return report_error(ZERO_ERROR_USAGE, "[data] val: '%s' names a set, but no file", text);
    if (item->n_name > 0 && access(text, F_OK) == 0)
        return report_error(ZERO_ERROR_USAGE,
                            "[data] val: there is a file '%s', but '%.*s:' names a set of files: write ./%s for it",
                            text, item->n_name, item->text, text);
    return ZERO_OK;
}

zero_status_t val_sets_check(const char *val)
{
    bool has_names = false;
    for (const char *rest = val; rest;)
        has_names = next_item(&rest).n_name > 0 || has_names;
    for (const char *rest = val; rest;) {
        const item_t item = next_item(&rest);
        ZERO_TRY(check_item(&item, has_names));
    }
    const int n = val_sets_count(val);
    if (n > OPTIONS_MAX_VAL_SETS)
        return report_error(ZERO_ERROR_USAGE, "[data] val: these are %d sets, and there may be %d", n,
                            OPTIONS_MAX_VAL_SETS);
    return ZERO_OK;
}

int val_sets_count(const char *val)
{
    int n = 0;
    for (const char *rest = val[0] ? val : NULL; rest;) {
        const item_t item = next_item(&rest);
        n += !is_known(val, &item);
    }
    return n;
}

static void append_path(char paths[OPTIONS_MAX_PATH], const item_t *item)
{
    const size_t n = strlen(paths);
    snprintf(paths + n, OPTIONS_MAX_PATH - n, "%s%.*s", n > 0 ? "," : "", item->n_path, item->path);
}

void val_sets_read(const char *val, int i, val_set_t *set)
{
    *set = (val_set_t){0};
    for (const char *rest = val; rest && i >= 0;) {
        const item_t item = next_item(&rest);
        if (!is_known(val, &item) && i-- == 0)
            snprintf(set->name, sizeof set->name, "%.*s", item.n_name, item.text);
    }
    if (!set->name[0]) { /* as it is, so that an empty path or a comma in a name is found */
        snprintf(set->paths, sizeof set->paths, "%s", val);
        return;
    }
    for (const char *rest = val; rest;) {
        const item_t item = next_item(&rest);
        if (is_of(&item, set->name))
            append_path(set->paths, &item);
    }
}

void val_sets_paths(const char *val, char paths[OPTIONS_MAX_PATH])
{
    val_set_t set;
    paths[0] = 0;
    for (int i = 0; i < val_sets_count(val); i++) {
        val_sets_read(val, i, &set);
        const size_t n = strlen(paths);
        snprintf(paths + n, OPTIONS_MAX_PATH - n, "%s%s", n > 0 ? "," : "", set.paths);
    }
}
