/* muon_update.h - updates of the hidden layers' matrices: Muon's, or those of a caller's optimizer. */
#ifndef ZERO_MUON_UPDATE_H
#define ZERO_MUON_UPDATE_H

#include "zero/plan/layout.h"
#include "zero/runtime/context.h"

typedef struct zero_muon_update zero_muon_update_t;

/* What is computed in place of Muon. part: elements of the matrix in one shard of its unit, which this rank holds. */
typedef struct zero_matrix_fns {
    /* Advances the state of a part, and writes its direction. */
    zero_status_t (*advance)(void *user, zero_tensor_t tensor, const zero_span_t *part, float *direction,
                             zero_stream_t stream);
    /* Changes the direction of the whole matrix. */
    zero_status_t (*transform)(void *user, zero_tensor_t tensor, float *direction, zero_stream_t stream);
    /* Steps the weights of a part along its direction, which is read only. */
    zero_status_t (*apply)(void *user, zero_tensor_t tensor, const zero_span_t *part, float *direction,
                           zero_stream_t stream);
} zero_matrix_fns_t;

/* Writes to the device what is updated. *update is NULL if no matrix is. The context must outlive it. fns: NULL for
 * Muon; they get `user`. */
zero_status_t zero_muon_update_create(zero_context_t *context, const zero_matrix_fns_t *fns, void *user,
                                      zero_muon_update_t **update);
void zero_muon_update_destroy(zero_muon_update_t *update); /* NULL is allowed */
/* Queues the update of all matrices in `stream`: the step has been decided there. update: NULL does nothing.
 * [collective] */
zero_status_t zero_muon_update_run(zero_muon_update_t *update, zero_stream_t stream);

#endif
