/* name_table.c - see name_table.h. */
#include "zero/plan/name_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/log.h"

#define LEAST_PLACES 64

static const char *name_of(zero_named_t records, int number)
{
    return (const char *)records.records + (size_t)number * records.record_bytes + records.name_offset;
}

/* Where the name stands, or the free place where it would. At least half of the places are free. */
static uint32_t place_of(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    uint32_t mask = names->n_buffers - 1, at = (uint32_t)XXH3_64bits(name, strlen(name)) & mask;
    while (names->places[at] != 0 && strcmp(name_of(records, names->places[at] - 1), name) != 0)
        at = (at + 1) & mask;
    return at;
}

int zero_name_table_find(const zero_name_table_t *names, zero_named_t records, const char *name)
{
    return names->n_buffers > 0 ? names->places[place_of(names, records, name)] - 1 : -1;
}

/* Twice as many places, into which all names move. */
static zero_status_t grow(zero_name_table_t *names, zero_named_t records)
{
    zero_name_table_t grown = {.n_buffers = names->n_buffers > 0 ? 2 * names->n_buffers : LEAST_PLACES,
                               .n_names = names->n_names};
    grown.places = calloc(grown.n_buffers, sizeof *grown.places);
    if (!grown.places)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for a table of %u names", grown.n_buffers);
    for (uint32_t i = 0; i < names->n_buffers; i++)
        if (names->places[i] != 0)
            grown.places[place_of(&grown, records, name_of(records, names->places[i] - 1))] = names->places[i];
    zero_name_table_destroy(names);
    *names = grown;
    return ZERO_OK;
}

zero_status_t zero_name_table_add(zero_name_table_t *names, zero_named_t records, int number)
{
    if (2 * (names->n_names + 1) > names->n_buffers)
        ZERO_TRY(grow(names, records));
    names->places[place_of(names, records, name_of(records, number))] = number + 1;
    names->n_names++;
    return ZERO_OK;
}

void zero_name_table_destroy(zero_name_table_t *names)
{
    free(names->places);
    *names = (zero_name_table_t){0};
}
