/* muon_owner.h - an update of matrices under way, and the part of it that is the owner's (muon_owner.c). Called by
 * muon_update.c alone. */
#ifndef ZERO_MUON_OWNER_H
#define ZERO_MUON_OWNER_H

#include "zero/muon/muon_update.h"

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
