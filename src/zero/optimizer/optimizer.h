/* optimizer.h - the optimizers: one row each of what differs between them.
 *
 * All update a shard by its own elements alone, master weights in place, with the arguments of zero_adam_t. Muon does
 * so with what is no hidden matrix; src/zero/muon/ updates those. What they keep of earlier steps is n_arrays fp32
 * arrays, each with one number for every element: m, then v.
 */
#ifndef ZERO_OPTIMIZER_H
#define ZERO_OPTIMIZER_H

#include "kernels/shard/shard.h"

typedef struct zero_optimizer_ops {
    const char *name;
    int n_arrays;           /* 1: m; 2: m and v; 0: as the caller says */
    bool v_is_not_negative; /* the update takes its square root */
    zero_status_t (*update)(const zero_shard_kernels_t *kernels, const zero_adam_t *args, zero_stream_t stream);
    /* Returns what the update finds as beta1 and beta2 (zero_adam_scalars_t). */
    float (*beta1)(const zero_config_t *config);
    float (*beta2)(const zero_config_t *config);
} zero_optimizer_ops_t;

/* Returns the row of config's optimizer, which zero_config_check has found good. A caller's own has no update: the
 * engine calls it (own_update.h). */
const zero_optimizer_ops_t *zero_optimizer_of(const zero_config_t *config);
/* Return the state arrays and the name of config's optimizer, also of a caller's own. */
int zero_optimizer_n_arrays(const zero_config_t *config);
const char *zero_optimizer_name_of(const zero_config_t *config);

#endif
