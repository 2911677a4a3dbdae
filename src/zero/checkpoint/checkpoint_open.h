/* checkpoint_open.h - what loading needs of an open checkpoint: its manifest and its state. */
#ifndef ZERO_CHECKPOINT_OPEN_H
#define ZERO_CHECKPOINT_OPEN_H

#include <jansson.h>

#include "kernels/shard.h"
#include "zero/checkpoint/checkpoint_directory.h"
#include "zero/format/manifest.h"

/* ---- checkpoint state ---- */
/* State.json: everything except the arrays that the next step depends on, and what the caller
 * adds. Also the names of files in a checkpoint. */

#define ZERO_CONFIG_FILE "config.json"
#define ZERO_STATE_FILE "state.json"

/* Parses a JSON object that the caller of zero_save_begin passed as `what`. ZERO_ERROR_ARGUMENT if it is not an object
 * or repeats a key. The caller frees *object by json_decref. */
zero_status_t zero_checkpoint_parse_callers(const char *what, const char *text, json_t **object);
/* Makes the object of state.json. caller_json: an object whose keys are added, or NULL. The caller frees *object by
 * json_decref. */
zero_status_t zero_checkpoint_state_make(uint64_t step, const zero_config_t *config, const zero_step_state_t *state,
                                         const char *caller_json, json_t **object);
/* Checks that the optimizer that was saved is config's. path: for error lines. */
zero_status_t zero_checkpoint_state_check_optimizer(const json_t *object, const char *path,
                                                    const zero_config_t *config);
/* Reads step and *state from the object of state.json. path: for error lines. The loss scale is read only if `dtype`
 * and the saved dtype are both fp16; otherwise *state's own stays. */
zero_status_t zero_checkpoint_state_parse(const json_t *object, const char *path, zero_dtype_t dtype, uint64_t *step,
                                          zero_step_state_t *state);

/* ---- checkpoint open ---- */

struct zero_checkpoint {
    zero_comm_t *comm;
    bool per_host; /* each host has a directory of its own by that path */
    char path[ZERO_MAX_PATH];
    zero_manifest_t manifest;
    char *state_path;
    json_t *state;
    char *state_text;
    uint64_t step;
};

#endif
