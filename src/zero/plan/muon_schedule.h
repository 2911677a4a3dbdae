/* muon_schedule.h - which rank orthogonalizes which matrix, and in which order. Pure arithmetic, the same on every
 * rank. A caller's own optimizer that sees matrices whole has the same schedule.
 *
 * An update has rounds. In a round a rank (the owner) gets one unit whole: each rank sends it its shard of the unit's
 * momentum, and gets its shard of the result. So a rank receives a unit's bytes twice a round, however many ranks there
 * are, and in rounds in which every rank has a unit of its own nobody is idle. If fewer units are left than ranks,
 * several ranks get the same unit and share out its matrices.
 */
#ifndef ZERO_MUON_SCHEDULE_H
#define ZERO_MUON_SCHEDULE_H

#include "zero/plan/layout.h"

typedef struct zero_muon_schedule {
    int n_rounds, n_owners;   /* owners: all ranks */
    zero_unit_t *unit_of;     /* [n_rounds][n_owners]; -1: none, the owner is idle */
    uint64_t *slot_elems;     /* [n_rounds]: the largest shard of the round's units */
    int *round_of, *owner_of; /* by tensor; -1: it is not orthogonalized */
    uint64_t largest_slot;    /* of slot_elems */
    uint64_t largest_matrix;  /* elements */
    uint64_t largest_scratch; /* elements of scratch that orthogonalize needs for a matrix */
    int n_matrices;
    int most_at_once; /* matrices that one owner has in one round */
} zero_muon_schedule_t;

/* Returns whether the optimizer updates matrices whole. */
static inline bool zero_muon_has_matrices(const zero_config_t *config)
{
    return config->optimizer == ZERO_OPTIMIZER_MUON ||
           (config->optimizer == ZERO_OPTIMIZER_OWN && config->own_optimizer->whole);
}

/* Returns whether the tensor is updated whole. */
static inline bool zero_muon_takes(const zero_config_t *config, const zero_tensor_decl_t *tensor)
{
    return zero_muon_has_matrices(config) && tensor->hidden_matrix && !tensor->frozen;
}

/* In place of zero_adam_segment_t's v_gap: the elements are a matrix's, of which Muon keeps no v. */
#define ZERO_MUON_NO_V UINT64_MAX
/* Returns how many elements v lacks before element `at` of a unit's flat buffer, or ZERO_MUON_NO_V; of the state that
 * shard `shard` of every unit has, or, if that is negative, of all of it. unit: the model's number of units for the end
 * of v. */
uint64_t zero_muon_v_gap(const zero_model_t *model, const zero_layout_t *layout, const zero_config_t *config,
                         int64_t shard, zero_unit_t unit, uint64_t at);

/* Makes the schedule: one without rounds if no tensor is orthogonalized. */
zero_status_t zero_muon_schedule_create(const zero_model_t *model, const zero_layout_t *layout,
                                        const zero_config_t *config, bool on_gpu, zero_muon_schedule_t *schedule);
void zero_muon_schedule_destroy(zero_muon_schedule_t *schedule);

#endif
