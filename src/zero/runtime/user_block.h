/* user_block.h - memory that the caller took from the engine (zero_alloc, zero_alloc_activations). Offload borrows
 * activations while they are idle. */
#ifndef ZERO_USER_BLOCK_H
#define ZERO_USER_BLOCK_H

#include "zero.h"

typedef struct zero_user_block {
    void *data;
    size_t n_bytes;
    bool always_in_use;
    zero_unit_t first, last; /* else: in use from first's acquire in forward to last's grad_ready in backward */
    struct zero_user_block *next;
} zero_user_block_t;

#endif
