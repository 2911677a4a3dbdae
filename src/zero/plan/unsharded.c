/* unsharded.c - see unsharded.h. */
#include "zero/plan/unsharded.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"

zero_status_t zero_slots_create(const zero_layout_t *layout, const int *counts, uint64_t base, size_t element_bytes,
                                zero_slots_t *slots)
{
    zero_slots_t made = {.n_units = layout->n_units};
    int n_slots = 0;
    for (int c = 0; c < layout->n_slot_classes; c++)
        n_slots += counts[c];
    made.slots = calloc((size_t)n_slots + 1, sizeof *made.slots);
    made.slot_of = calloc((size_t)layout->n_units, sizeof *made.slot_of);
    if (!made.slots || !made.slot_of) {
        zero_slots_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d slots", n_slots);
    }
    uint64_t offset = base;
    for (int c = 0; c < layout->n_slot_classes; c++)
        for (int i = 0; i < counts[c]; i++) {
            made.slots[made.n_slots++] = (zero_slot_t){.slot_class = c, .offset = offset, .flat = -1};
            offset += zero_layout_slot_elems(layout, c) * element_bytes;
        }
    for (int u = 0; u < layout->n_units; u++)
        made.slot_of[u] = -1;
    *slots = made;
    return ZERO_OK;
}

void zero_slots_destroy(zero_slots_t *slots)
{
    free(slots->slots);
    free(slots->slot_of);
    *slots = (zero_slots_t){0};
}

zero_slot_t *zero_slots_find(const zero_slots_t *slots, zero_unit_t flat)
{
    return slots->slot_of[flat] < 0 ? NULL : &slots->slots[slots->slot_of[flat]];
}

zero_slot_t *zero_slots_empty(const zero_slots_t *slots, int slot_class)
{
    zero_slot_t *oldest = NULL; /* the one whose readers were first to finish */
    for (int i = 0; i < slots->n_slots; i++) {
        zero_slot_t *slot = &slots->slots[i];
        if (slot->slot_class == slot_class && slot->flat < 0 &&
            (!oldest || slot->read_in_fence < oldest->read_in_fence))
            oldest = slot;
    }
    return oldest;
}

zero_slot_t *zero_slots_farthest(const zero_slots_t *slots, const zero_model_t *model, zero_pass_t pass, int position,
                                 int slot_class)
{
    zero_slot_t *farthest = NULL;
    int farthest_use = -1;
    for (int i = 0; i < slots->n_slots; i++) {
        zero_slot_t *slot = &slots->slots[i];
        if (slot->slot_class != slot_class || slot->flat < 0)
            continue;
        int use = zero_order_next_use(model, pass, position, slot->flat);
        if (use > farthest_use) {
            farthest = slot;
            farthest_use = use;
        }
    }
    return farthest;
}

void zero_slots_put(zero_slots_t *slots, zero_slot_t *slot, zero_unit_t flat)
{
    if (slot->flat >= 0)
        slots->slot_of[slot->flat] = -1;
    slot->flat = flat;
    if (flat >= 0)
        slots->slot_of[flat] = (int)(slot - slots->slots);
}

void zero_slots_clear(zero_slots_t *slots)
{
    for (int i = 0; i < slots->n_slots; i++)
        zero_slots_put(slots, &slots->slots[i], -1);
}
