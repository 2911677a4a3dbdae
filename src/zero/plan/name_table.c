/* name_table.c - see name_table.h. */
#include "zero/plan/name_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/log.h"

#define LEAST_ENTRIES 64

static const char *name_of(zero_named_t records, int number)
{
    return (const char *)records.records + (size_t)number * records.record_bytes + records.name_offset;
}

/* Returns the entry with this name, or the free one that it would take. At least half of the entries are free. */
static uint32_t entry_of(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    uint32_t mask = names->n_entries - 1, at = (uint32_t)XXH3_64bits(name, strlen(name)) & mask;
    while (names->entries[at] != 0 && strcmp(name_of(records, names->entries[at] - 1), name) != 0)
        at = (at + 1) & mask;
    return at;
}

int zero_name_table_find(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    return names->n_entries > 0 ? names->entries[entry_of(names, records, name)] - 1 : -1;
}

/* Doubles the entries, and moves all names. */
static zero_status_t grow(zero_name_table_t *names, zero_named_t records)
{
    zero_name_table_t grown = {.n_entries = names->n_entries > 0 ? 2 * names->n_entries : LEAST_ENTRIES,
                               .n_names = names->n_names};
    grown.entries = calloc(grown.n_entries, sizeof *grown.entries);
    if (!grown.entries)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a table of %u names", grown.n_entries);
    for (uint32_t i = 0; i < names->n_entries; i++)
        if (names->entries[i] != 0)
            grown.entries[entry_of(&grown, records, name_of(records, names->entries[i] - 1))] = names->entries[i];
    zero_name_table_destroy(names);
    *names = grown;
    return ZERO_OK;
}

zero_status_t zero_name_table_add(zero_name_table_t *names, zero_named_t records, int number)
{
    if (2 * (names->n_names + 1) > names->n_entries)
        ZERO_TRY(grow(names, records));
    names->entries[entry_of(names, records, name_of(records, number))] = number + 1;
    names->n_names++;
    return ZERO_OK;
}

void zero_name_table_destroy(zero_name_table_t *names)
{
    free(names->entries);
    *names = (zero_name_table_t){0};
}
