/* stage.h - the four stages as one table: what a rank holds completely and what it holds a shard of.
 *
 * The engine reads these columns and never asks for the stage's number.
 */
#ifndef ZERO_STAGE_H
#define ZERO_STAGE_H

#include "zero.h"

typedef struct zero_stage {
    bool shard_state;  /* master weights, m, v: this rank's shard only */
    bool shard_grads;  /* full gradients are in unsharded buffers, from acquire to grad_ready */
    bool shard_params; /* full parameters are in unsharded buffers, from acquire to release */

    /* Derived from these, the configuration and the world size. */
    bool accumulate_locally;     /* micro-steps add up in the full gradient, in fp32, and are reduced once per step */
    zero_dtype_t grad_dtype;     /* of full gradients: the wire dtype */
    bool reduced_in_place;       /* reduced gradients replace this rank's slice of the full ones, which are fp32 */
    bool reduced_grads_are_full; /* there is room for every rank's slice: in place, or gathered because state is not
                                    sharded */
} zero_stage_t;

/* Returns the row for a configuration, with its derived columns. config->stage must be 0..3. */
zero_stage_t zero_stage_get(const zero_config_t *config, int world_size);

#endif
