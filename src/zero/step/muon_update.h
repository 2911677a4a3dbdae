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
/* Queues the update of all matrices in `stream`, in which the step has been decided. update: NULL does nothing.
 * [collective] */
zero_status_t zero_muon_update_run(zero_muon_update_t *update, zero_stream_t stream);

/* ---- muon owner ---- */
/* An update of matrices under way, and the part of it that is the owner's (muon_update.c). Called by
 * muon_update.c alone. */

struct zero_muon_update {
    zero_context_t *context;
    const zero_muon_schedule_t *schedule;
    const zero_matrix_fns_t *fns; /* NULL: Muon's */
    void *user;
    int rank, n_ranks, n_chunks; /* chunks: shards of a unit that this rank holds */
    size_t *first_segment; /* [n_rounds][n_ranks][n_chunks], and behind the last; segments at plan.muon.segments */
    uint64_t *longest;     /* [n_rounds][n_ranks][n_chunks]: elements of the longest segment */
    const void **slices;   /* [n_ranks]: where each rank's slots can be read */
    zero_orthogonalizer_t *orthogonalizer; /* NULL: the device needs none */
};

/* Returns the bytes between a round's slots. */
static inline uint64_t zero_muon_slot_bytes(const zero_muon_update_t *update, int round)
{
    return update->schedule->slot_elems[round] * zero_dtype_size(update->context->plan.muon.dtype);
}

/* Prepares the device for the matrices that this rank owns. */
zero_status_t zero_muon_owner_create(zero_muon_update_t *update);
/* Orthogonalizes all matrices of a round that this rank owns: slices[r] has rank r's parts of them. */
zero_status_t zero_muon_owner_run(const zero_muon_update_t *update, int round, zero_stream_t stream);

#endif
