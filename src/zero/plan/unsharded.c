/* unsharded.c - see unsharded.h. */
#include "zero/plan/unsharded.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"

zero_status_t zero_unsharded_create(const zero_layout_t *layout, const int *counts, uint64_t base, size_t element_bytes,
                                    zero_unsharded_t *slots)
{
    zero_unsharded_t made = {.n_units = layout->n_units};
    int n_buffers = 0;
    for (int c = 0; c < layout->n_buffer_classes; c++)
        n_buffers += counts[c];
    made.slots = calloc((size_t)n_buffers + 1, sizeof *made.slots);
    made.buffer_of = calloc((size_t)layout->n_units, sizeof *made.buffer_of);
    if (!made.slots || !made.buffer_of) {
        zero_unsharded_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d slots", n_buffers);
    }
    uint64_t offset = base;
    for (int c = 0; c < layout->n_buffer_classes; c++)
        for (int i = 0; i < counts[c]; i++) {
            made.slots[made.n_buffers++] = (zero_unsharded_buffer_t){.buffer_class = c, .offset = offset, .flat = -1};
            offset += zero_layout_buffer_elems(layout, c) * element_bytes;
        }
    for (int u = 0; u < layout->n_units; u++)
        made.buffer_of[u] = -1;
    *slots = made;
    return ZERO_OK;
}

void zero_unsharded_destroy(zero_unsharded_t *slots)
{
    free(slots->slots);
    free(slots->buffer_of);
    *slots = (zero_unsharded_t){0};
}

zero_unsharded_buffer_t *zero_unsharded_find(const zero_unsharded_t *slots, zero_unit_t flat)
{
    return slots->buffer_of[flat] < 0 ? NULL : &slots->slots[slots->buffer_of[flat]];
}

zero_unsharded_buffer_t *zero_unsharded_empty(const zero_unsharded_t *slots, int buffer_class)
{
    zero_unsharded_buffer_t *oldest = NULL; /* the one whose readers were first to finish */
    for (int i = 0; i < slots->n_buffers; i++) {
        zero_unsharded_buffer_t *slot = &slots->slots[i];
        if (slot->buffer_class == buffer_class && slot->flat < 0 &&
            (!oldest || slot->read_in_fence < oldest->read_in_fence))
            oldest = slot;
    }
    return oldest;
}

zero_unsharded_buffer_t *zero_unsharded_farthest(const zero_unsharded_t *slots, const zero_model_t *model,
                                                 zero_pass_t pass, int position, int buffer_class)
{
    zero_unsharded_buffer_t *farthest = NULL;
    int farthest_use = -1;
    for (int i = 0; i < slots->n_buffers; i++) {
        zero_unsharded_buffer_t *slot = &slots->slots[i];
        if (slot->buffer_class != buffer_class || slot->flat < 0)
            continue;
        int use = zero_order_next_use(model, pass, position, slot->flat);
        if (use > farthest_use) {
            farthest = slot;
            farthest_use = use;
        }
    }
    return farthest;
}

void zero_unsharded_put(zero_unsharded_t *slots, zero_unsharded_buffer_t *slot, zero_unit_t flat)
{
    if (slot->flat >= 0)
        slots->buffer_of[slot->flat] = -1;
    slot->flat = flat;
    if (flat >= 0)
        slots->buffer_of[flat] = (int)(slot - slots->slots);
}

void zero_unsharded_clear(zero_unsharded_t *slots)
{
    for (int i = 0; i < slots->n_buffers; i++)
        zero_unsharded_put(slots, &slots->slots[i], -1);
}
