/* checkpoint_open.h - what loading needs of an open checkpoint: its manifest and its state. */
#ifndef ZERO_CHECKPOINT_OPEN_H
#define ZERO_CHECKPOINT_OPEN_H

#include <jansson.h>

#include "zero/disk/checkpoint_directory.h"
#include "zero/disk/manifest.h"

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
