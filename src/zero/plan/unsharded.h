/* unsharded.h - which unit's flat is in which slot. Bookkeeping only: nobody here moves a byte.
 *
 * Units of a class take turns in its slots, which are all of one size (layout.h). A unit's flat is in at most one slot,
 * a slot holds at most one flat.
 */
#ifndef ZERO_UNSHARDED_H
#define ZERO_UNSHARDED_H

#include "zero/plan/layout.h"

typedef struct zero_unsharded_buffer {
    int buffer_class;
    uint64_t offset;        /* in bytes, in the arena that holds the slots */
    zero_unit_t flat;       /* whose flat is here; -1: nobody's */
    uint64_t read_in_fence; /* gradient slots: peers may read until the fence after this one (pass.c counts them) */
} zero_unsharded_buffer_t;

typedef struct zero_unsharded {
    int n_buffers;
    zero_unsharded_buffer_t *slots;
    int n_units;
    int *buffer_of; /* by unit; -1: not resident */
} zero_unsharded_t;

/* counts: slots per class; the first begins at arena offset `base`. */
zero_status_t zero_unsharded_create(const zero_layout_t *layout, const int *counts, uint64_t base, size_t element_bytes,
                                    zero_unsharded_t *slots);
void zero_unsharded_destroy(zero_unsharded_t *slots);

/* The slot of `flat`, or NULL. */
zero_unsharded_buffer_t *zero_unsharded_find(const zero_unsharded_t *slots, zero_unit_t flat);
/* An empty slot of the class, or NULL. */
zero_unsharded_buffer_t *zero_unsharded_empty(const zero_unsharded_t *slots, int buffer_class);
/* The slot of the class whose flat is needed last, counted from `position` of the pass. */
zero_unsharded_buffer_t *zero_unsharded_farthest(const zero_unsharded_t *slots, const zero_model_t *model,
                                                 zero_pass_t pass, int position, int buffer_class);
void zero_unsharded_put(zero_unsharded_t *slots, zero_unsharded_buffer_t *slot,
                        zero_unit_t flat); /* whoever was there leaves */
void zero_unsharded_clear(zero_unsharded_t *slots);

#endif
