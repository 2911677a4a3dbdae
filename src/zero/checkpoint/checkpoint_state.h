/* checkpoint_state.h - state.json: what a step hands to the next beside the arrays, and what the caller adds. Also the
 * names of the files that every checkpoint has. */
#ifndef ZERO_CHECKPOINT_STATE_H
#define ZERO_CHECKPOINT_STATE_H

#include <jansson.h>

#include "kernels/shard/shard.h"

#define ZERO_INDEX_FILE "model.safetensors.index.json"
#define ZERO_CONFIG_FILE "config.json"
#define ZERO_STATE_FILE "state.json"

/* Reads what the caller of zero_save_begin gives as `what`: ZERO_ERROR_ARGUMENT where it is not a JSON object's text,
 * or has a key twice. For json_decref. */
zero_status_t zero_checkpoint_parse_callers(const char *what, const char *text, json_t **object);
/* caller_json: an object whose keys are added, or NULL; for json_decref. */
zero_status_t zero_checkpoint_state_make(uint64_t step, zero_dtype_t dtype, const zero_step_state_t *state,
                                         const char *caller_json, json_t **object);
/* path: for the error lines. The loss scale is taken where `dtype` and the saved one are both fp16; else *state's own
 * stays. */
zero_status_t zero_checkpoint_state_parse(const json_t *object, const char *path, zero_dtype_t dtype, uint64_t *step,
                                          zero_step_state_t *state);

#endif
