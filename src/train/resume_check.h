/* resume_check.h - whether a run may go on from a checkpoint, and what is no longer as it was. */
#ifndef ZEROTRAIN_RESUME_CHECK_H
#define ZEROTRAIN_RESUME_CHECK_H

#include <jansson.h>

#include "train/data/data_identity.h"
#include "train/options/options.h"

/* Compares with the configuration and the data that state.json of the checkpoint at `path` tells of. Another model is
 * refused; so are other training data and another seed, with which the checkpoint's place in the data would mean other
 * sequences, unless --force. ZERO_ERROR_USAGE then, with a line that names what differs. Other settings that change
 * what is computed are told of in one line. What an older version did not write is not compared. */
zero_status_t resume_check(const options_t *options, const char *path, const json_t *state,
                           const data_identity_t *data);

/* Writes into state.json's object "data" what resume_check reads there. */
void resume_check_add(const data_identity_t *data, json_t *object);

#endif
