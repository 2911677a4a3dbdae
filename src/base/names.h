/* names.h - finds a name among many. Preparing n names takes n log n time and each lookup log n, whatever the names
 * are. A sorted array and not a hash table: the names come from files, and no choice of names can make it slow. Used by
 * the readers of safetensors files, models and checkpoints. */
#ifndef ZERO_NAMES_H
#define ZERO_NAMES_H

#include "zero.h"

typedef struct zero_name {
    const char *name; /* the caller's */
    size_t index;     /* its number in the list that was sorted */
} zero_name_t;

typedef struct zero_names {
    size_t n_names;
    zero_name_t *names; /* sorted by name; equal names by index */
} zero_names_t;

/* Sorts the names name_of(user, i) for i < n_names. A name may occur more than once. */
zero_status_t zero_names_create(size_t n_names, const char *(*name_of)(const void *user, size_t i), const void *user,
                                zero_names_t *names);
/* Returns the position in names->names of the first name that equals the n_bytes at `name`; names->n_names if there is
 * none. */
size_t zero_names_find(const zero_names_t *names, const char *name, size_t n_bytes);
void zero_names_destroy(zero_names_t *names); /* *names may be all zero */

#endif
