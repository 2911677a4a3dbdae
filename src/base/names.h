/* names.h - finding a name among many: n log n to prepare and log n to ask, whatever the names are. A sorted array, not
 * a hash table, because names come from files: no choice of them makes it slow. Used by the readers of safetensors
 * files, models and checkpoints. */
#ifndef ZERO_NAMES_H
#define ZERO_NAMES_H

#include "zero.h"

typedef struct zero_name {
    const char *name; /* the caller's */
    size_t index;     /* its number among those that were given */
} zero_name_t;

typedef struct zero_names {
    size_t n_names;
    zero_name_t *names; /* by name; equal ones by index */
} zero_names_t;

/* Sorts n_names names: name_of(user, i) for every i. The same name may be there more than once. */
zero_status_t zero_names_create(size_t n_names, const char *(*name_of)(const void *user, size_t i), const void *user,
                                zero_names_t *names);
/* Returns where in names->names the first one is that equals the n_bytes at `name`; names->n_names where none does. */
size_t zero_names_find(const zero_names_t *names, const char *name, size_t n_bytes);
void zero_names_destroy(zero_names_t *names); /* names that are all zeros are allowed */

#endif
