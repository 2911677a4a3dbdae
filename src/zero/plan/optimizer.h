/* optimizer.h - the optimizers: one row each of what differs between them.
 *
 * All update a shard by its own elements alone, master weights in place, with the arguments of zero_adam_t. Muon does
 * so with what is no hidden matrix; step/muon_update.c updates those. What they keep of earlier steps is n_arrays
 * arrays, each with one number for every element: m, then v. The numbers are fp32, or in blocks (zero_block8_t).
 */
#ifndef ZERO_OPTIMIZER_H
#define ZERO_OPTIMIZER_H

#include "kernels/shard.h"

typedef struct zero_optimizer_ops {
    const char *name;
    int n_arrays;           /* 1: m; 2: m and v; 0: as the caller says */
    bool v_is_not_negative; /* the update takes its square root */
    zero_status_t (*update)(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream);
    /* Returns what the update finds as beta1 and beta2 (zero_adam_scalars_t). */
    float (*beta1)(const zero_config_t *config);
    float (*beta2)(const zero_config_t *config);
    bool in_blocks; /* the arrays are of zero_block8_t */
} zero_optimizer_ops_t;

/* How a state array has its numbers: fp32, as blocks of one, or zero_block8_t. */
typedef struct zero_array_format {
    uint64_t block_elems;
    size_t block_bytes;
} zero_array_format_t;

/* Returns the bytes of n_elems numbers of a state array; where element n_elems is, if a block begins there. */
static inline size_t zero_array_bytes(zero_array_format_t format, uint64_t n_elems)
{
    return (n_elems + format.block_elems - 1) / format.block_elems * format.block_bytes;
}

/* Returns the row of config's optimizer, which zero_config_check has found good. A caller's own has no update: the
 * engine calls it (own_update.h). */
const zero_optimizer_ops_t *zero_optimizer_of(const zero_config_t *config);
/* Return the state arrays, their format and the name of config's optimizer, also of a caller's own. */
int zero_optimizer_n_arrays(const zero_config_t *config);
zero_array_format_t zero_optimizer_array_format(const zero_config_t *config);
const char *zero_optimizer_name_of(const zero_config_t *config);

#endif
