/* checkpoint_listing.h - the names in a directory of checkpoints (checkpoint_directory.h), and which checkpoints are
 * there. Reads only. */
#ifndef ZERO_CHECKPOINT_LISTING_H
#define ZERO_CHECKPOINT_LISTING_H

#include "zero.h"

#define ZERO_TEMPORARY_PREFIX "tmp."
#define ZERO_REPLACED_SUFFIX ".old" /* a step's earlier directory, until the new one has its name */
#define ZERO_STEP_NAME_BYTES 64

/* Writes the name of a step's directory, behind a prefix: "" or ZERO_TEMPORARY_PREFIX. */
void zero_step_name(char name[ZERO_STEP_NAME_BYTES], const char *prefix, uint64_t step);
/* Returns whether zero_step_name makes this name without a prefix, and for which step. */
bool zero_step_name_parse(const char *name, uint64_t *step);
/* Returns whether a save gives this name to a directory that it will remove. */
bool zero_step_name_is_temporary(const char *name);

typedef zero_status_t (*zero_visit_fn)(void *user, const char *parent, int fd, const char *name);
/* Calls `visit` for every name in a directory, whose descriptor is fd, until it fails. */
zero_status_t zero_directory_visit(const char *parent, zero_visit_fn visit, void *user);

typedef struct zero_listing_entry {
    char name[ZERO_STEP_NAME_BYTES];
    uint64_t step;
} zero_listing_entry_t;

typedef struct zero_listing {
    size_t n_entries, capacity;
    zero_listing_entry_t *entries; /* libzero's checkpoints in the order of their steps; for free */
} zero_listing_t;

/* Lists the checkpoints in a directory. *listing is empty before. */
zero_status_t zero_listing_read(const char *parent, zero_listing_t *listing);

#endif
