/* unsharded.h - which unit's flat buffer is in which unsharded buffer. Bookkeeping only: nothing here moves a byte.
 *
 * Units of a class take turns in its buffers, which are all of one size (layout.h). A unit is in at most one buffer,
 * and a buffer holds at most one unit.
 */
#ifndef ZERO_UNSHARDED_H
#define ZERO_UNSHARDED_H

#include "zero/plan/layout.h"

typedef struct zero_unsharded_buffer {
    int buffer_class;
    uint64_t offset;       /* in bytes, in the arena that the buffers are in */
    zero_unit_t flat;      /* the unit that is here; -1: none */
    uint64_t published_in; /* for gradients: the fence behind which peers read them, until a later one (streams.h) */
} zero_unsharded_buffer_t;

typedef struct zero_unsharded {
    int n_buffers;
    zero_unsharded_buffer_t *buffers;
    int n_units;
    int *buffer_of; /* by unit; -1: none */
} zero_unsharded_t;

/* counts, buffer_bytes: by class, how many buffers there are and how large each is. The first begins at arena offset
 * `base`. */
zero_status_t zero_unsharded_create(const zero_layout_t *layout, const int *counts, const uint64_t *buffer_bytes,
                                    uint64_t base, zero_unsharded_t *unsharded);
void zero_unsharded_destroy(zero_unsharded_t *unsharded);

/* Returns the buffer that a unit is in, or NULL. */
zero_unsharded_buffer_t *zero_unsharded_find(const zero_unsharded_t *unsharded, zero_unit_t flat);
/* Returns the empty buffer of the class that was published first, or NULL. */
zero_unsharded_buffer_t *zero_unsharded_empty(const zero_unsharded_t *unsharded, int buffer_class);
/* Returns the buffer of the class whose unit is needed last, counted from `position` of the pass; NULL if all are
 * empty. */
zero_unsharded_buffer_t *zero_unsharded_farthest(const zero_unsharded_t *unsharded, const zero_model_t *model,
                                                 zero_pass_t pass, int position, int buffer_class);
/* Puts a unit that is in no buffer into one of its class, from `position` of the pass on: into an empty one, or else
 * that whose unit is needed last. Returns the buffer; NULL if the class has none. */
zero_unsharded_buffer_t *zero_unsharded_take(zero_unsharded_t *unsharded, const zero_model_t *model, zero_pass_t pass,
                                             int position, int buffer_class, zero_unit_t flat);
/* Puts a unit (-1: none) into a buffer, which the unit that was there leaves. */
void zero_unsharded_put(zero_unsharded_t *unsharded, zero_unsharded_buffer_t *buffer, zero_unit_t flat);
void zero_unsharded_clear(zero_unsharded_t *unsharded);

#endif
