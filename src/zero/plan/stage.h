/* stage.h - the four stages as one table: what a rank holds whole and what it holds a shard of.
 *
 * Nothing else in the engine asks "which stage is this?": it reads these columns.
 */
#ifndef ZERO_STAGE_H
#define ZERO_STAGE_H

#include "zero.h"

typedef struct zero_stage {
    bool shard_state;  /* master, m, v: this rank's shard only */
    bool shard_grads;  /* full gradients live in slots, from acquire to grad_ready */
    bool shard_params; /* full parameters live in slots, from acquire to release */

    /* Derived from these, the configuration and the world size: */
    bool accumulate_locally;     /* micro-steps add up in the full gradient, in fp32, and are reduced once per step */
    zero_dtype_t grad_dtype;     /* of full gradients, and so of what travels */
    bool reduced_in_place;       /* reduced sums replace this rank's slice of the full gradient, which is fp32 then */
    bool reduced_grads_are_full; /* they have a place for every rank's slice: in place, or gathered because state is
                                    whole */
} zero_stage_t;

/* The row for a configuration, its derived columns filled. config->stage must be 0..3. */
zero_stage_t zero_stage_get(const zero_config_t *config, int world_size);

#endif
