/* order.h - the declared order of a pass, as arithmetic on positions.
 *
 * A train pass over units 0..U-1 has positions 0..2U-1: forward 0, 1 .. U-1, then backward U-1 .. 1, 0. An eval pass
 * has the first half only; an input-grad pass is like a train pass. Because the order is known before step 0 there is
 * no tracing: what to prefetch, which buffer can be reused and how many are needed all follow from positions.
 */
#ifndef ZERO_ORDER_H
#define ZERO_ORDER_H

#include "zero/plan/layout.h"

static inline int zero_order_n_positions(zero_pass_t pass, int n_units)
{
    return pass == ZERO_PASS_EVAL ? n_units : 2 * n_units;
}

static inline bool zero_order_is_backward(int position, int n_units)
{
    return position >= n_units;
}

static inline zero_unit_t zero_order_unit(int position, int n_units)
{
    return position < n_units ? position : 2 * n_units - 1 - position;
}

/* Returns the first of the unit's flats (zero_model_flat) whose parameters are needed at `position`. Its own is flat 0,
 * which its backward may do without; all that follow are needed. */
static inline int zero_order_first_flat(const zero_model_t *model, int position)
{
    return zero_order_is_backward(position, model->n_units) &&
           model->units[zero_order_unit(position, model->n_units)].sharded_in_backward;
}

/* Returns whether the unit at `position` uses tensors of `flat`, its own or shared: in backward it writes their
 * gradients. */
bool zero_order_uses(const zero_model_t *model, int position, zero_unit_t flat);
/* Returns whether it needs their parameters. */
bool zero_order_needs(const zero_model_t *model, int position, zero_unit_t flat);

/* Returns the next position >= from of the pass that needs `flat`; INT_MAX if none does. */
int zero_order_next_use(const zero_model_t *model, zero_pass_t pass, int from, zero_unit_t flat);

/* Counts the buffers that each class needs so that at every position of a train pass its units and those up to
 * `prefetch` positions later are resident together, and what backward needs of the last `keep` units from their forward
 * on. Units before `first` need no buffer. n_buffers has layout->n_buffer_classes entries. */
zero_status_t zero_order_unsharded_params(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t first,
                                          int prefetch, int keep, int *n_buffers);

/* Counts the buffers for full gradients: the most that are unfinished at once, or belong to one of the `n_spare` newest
 * reductions, so that a unit's backward need not wait for these. Overlapped reductions need one spare at least: a
 * buffer is in use until its sum is queued, which is when the next reduction begins. */
zero_status_t zero_order_unsharded_grads(const zero_model_t *model, const zero_layout_t *layout, int n_spare,
                                         int *n_buffers);

/* ---- unsharded ---- */
/* Which unit's flat buffer is in which unsharded buffer. Bookkeeping only: nothing here moves a byte.
 *
 * Units of a class take turns in its buffers, which are all of one size (layout.h). A unit is in at most one buffer,
 * and a buffer holds at most one unit. */

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
/* Acquires a buffer of the class for a unit that has none, at `position` of the pass: an empty one, or else the one
 * whose unit is needed last. Returns the buffer; NULL if the class has none. */
zero_unsharded_buffer_t *zero_unsharded_acquire(zero_unsharded_t *unsharded, const zero_model_t *model,
                                                zero_pass_t pass, int position, int buffer_class, zero_unit_t flat);
/* Assigns a buffer to a unit (-1: none). The unit that had the buffer loses it. */
void zero_unsharded_assign(zero_unsharded_t *unsharded, zero_unsharded_buffer_t *buffer, zero_unit_t flat);
void zero_unsharded_clear(zero_unsharded_t *unsharded);

#endif
