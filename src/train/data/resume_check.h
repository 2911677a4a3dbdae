/* resume_check.h - decides whether a run may continue from a checkpoint, and reports what has changed. */
#ifndef ZEROTRAIN_RESUME_CHECK_H
#define ZEROTRAIN_RESUME_CHECK_H

#include <jansson.h>

#include "train/data/data_identity.h"
#include "train/options/options.h"

/* Compares configuration and data with those in state.json of the checkpoint at `path`. Refuses another model; also
 * other training data or another seed, which would give the checkpoint's position in the data other sequences, unless
 * --force is given. Then it returns ZERO_ERROR_USAGE, with a log line that names what differs. Changes of other
 * settings that affect what is computed are reported in one line. What an older version did not save is not compared.
 */
zero_status_t resume_check(const options_t *options, const char *path, const json_t *state,
                           const data_identity_t *data);

/* Adds to an object of state.json which data it is about: to "data" what resume_check reads there. */
bool resume_check_add(const data_identity_t *data, json_t *object);
/* Reads what that has added. Returns false if an older version has not. */
bool resume_check_read(const json_t *object, data_identity_t *data);

#endif
