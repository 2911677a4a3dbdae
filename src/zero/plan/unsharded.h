/* unsharded.h - which unit's flat is in which slot. Bookkeeping only: nobody here moves a byte.
 *
 * Units of a class take turns in its slots, which are all of one size (layout.h). A unit's flat is in at most one slot,
 * a slot holds at most one flat.
 */
#ifndef ZERO_SLOTS_H
#define ZERO_SLOTS_H

#include "zero/plan/layout.h"

typedef struct zero_slot {
    int slot_class;
    uint64_t offset;        /* in bytes, in the arena that holds the slots */
    zero_unit_t flat;       /* whose flat is here; -1: nobody's */
    uint64_t read_in_fence; /* gradient slots: peers may read until the fence after this one (pass.c counts them) */
} zero_slot_t;

typedef struct zero_slots {
    int n_slots;
    zero_slot_t *slots;
    int n_units;
    int *slot_of; /* by unit; -1: not resident */
} zero_slots_t;

/* counts: slots per class; the first begins at arena offset `base`. */
zero_status_t zero_slots_create(const zero_layout_t *layout, const int *counts, uint64_t base, size_t element_bytes,
                                zero_slots_t *slots);
void zero_slots_destroy(zero_slots_t *slots);

/* The slot of `flat`, or NULL. */
zero_slot_t *zero_slots_find(const zero_slots_t *slots, zero_unit_t flat);
/* An empty slot of the class, or NULL. */
zero_slot_t *zero_slots_empty(const zero_slots_t *slots, int slot_class);
/* The slot of the class whose flat is needed last, counted from `position` of the pass. */
zero_slot_t *zero_slots_farthest(const zero_slots_t *slots, const zero_model_t *model, zero_pass_t pass, int position,
                                 int slot_class);
void zero_slots_put(zero_slots_t *slots, zero_slot_t *slot, zero_unit_t flat); /* whoever was there leaves */
void zero_slots_clear(zero_slots_t *slots);

#endif
