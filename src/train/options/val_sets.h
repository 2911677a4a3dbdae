/* val_sets.h - the sets of files that [data] val names: one without a name, as data.train, or several with names,
 * "code:a.tokens, prose:b.tokens, prose:c.tokens", each of which has a loss of its own. */
#ifndef ZEROTRAIN_VAL_SETS_H
#define ZEROTRAIN_VAL_SETS_H

#include "train/options/options.h"

#define VAL_SET_MOST_NAME 32

typedef struct val_set {
    char name[VAL_SET_MOST_NAME + 1]; /* "": the set has none, and is the only one */
    char paths[OPTIONS_MAX_PATH];     /* of its files, separated by commas */
} val_set_t;

/* Refuses names for some of the files only, too many sets, and a name that could be the beginning of a file's. The
 * functions below are for what this has accepted. */
zero_status_t val_sets_check(const char *val);
/* Returns how many sets there are: 0 if val is "". */
int val_sets_count(const char *val);
/* Reads the i-th set, in the order in which their names come first. */
void val_sets_read(const char *val, int i, val_set_t *set);
/* Writes the files of all sets, separated by commas. */
void val_sets_paths(const char *val, char paths[OPTIONS_MAX_PATH]);

#endif
