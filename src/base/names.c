/* names.c - see names.h. */
#include "base/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static int by_name(const void *a, const void *b)
{
    const zero_name_t *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

zero_status_t zero_names_create(size_t n_names, const char *(*name_of)(const void *user, size_t i), const void *user,
                                zero_names_t *names)
{
    zero_name_t *sorted = malloc((n_names + 1) * sizeof *sorted);
    if (!sorted)
        return zero_fail(ZERO_ERROR_MEMORY, "no memory to sort %zu names", n_names);
    for (size_t i = 0; i < n_names; i++)
        sorted[i] = (zero_name_t){.name = name_of(user, i), .index = i};
    qsort(sorted, n_names, sizeof *sorted, by_name);
    *names = (zero_names_t){.n_names = n_names, .names = sorted};
    return ZERO_OK;
}

/* Compares a name of the list with the n_bytes at `name`, as strcmp does. */
static int compare(const char *listed, const char *name, size_t n_bytes)
{
    int order = strncmp(listed, name, n_bytes);
    return order != 0 ? order : listed[n_bytes] != 0;
}

size_t zero_names_find(const zero_names_t *names, const char *name, size_t n_bytes)
{
    size_t first = 0, end = names->n_names;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (compare(names->names[middle].name, name, n_bytes) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    bool found = first < names->n_names && compare(names->names[first].name, name, n_bytes) == 0;
    return found ? first : names->n_names;
}

void zero_names_destroy(zero_names_t *names)
{
    free(names->names);
    *names = (zero_names_t){0};
}
