/* layout.c - see layout.h. */
#include "zero/layout.h"

#include <stdlib.h>

#include "zero/log.h"

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Two units can take turns in one slot when every tensor of one has a twin of the same size at the same place in the
 * other: then padding is where padding was. */
static bool same_inner_layout(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t a, zero_unit_t b)
{
    int i = 0, j = 0;
    for (;;) {
        while (i < model->n_tensors && model->tensors[i].owner != a)
            i++;
        while (j < model->n_tensors && model->tensors[j].owner != b)
            j++;
        if (i == model->n_tensors || j == model->n_tensors)
            return i == model->n_tensors && j == model->n_tensors;
        if (model->tensors[i].n_elems != model->tensors[j].n_elems ||
            layout->tensor_offsets[i] != layout->tensor_offsets[j])
            return false;
        i++;
        j++;
    }
}

static void assign_slot_classes(const zero_model_t *model, zero_layout_t *layout)
{
    layout->n_slot_classes = 0;
    for (int u = 0; u < layout->n_units; u++) {
        int twin = 0;
        while (twin < u && !same_inner_layout(model, layout, twin, u))
            twin++;
        layout->units[u].slot_class = twin < u ? layout->units[twin].slot_class : layout->n_slot_classes++;
    }
}

zero_status_t zero_layout_create(const zero_model_t *model, int world_size, zero_layout_t *layout)
{
    zero_layout_t made = {.world_size = world_size, .n_units = model->n_units, .n_tensors = model->n_tensors};
    if (world_size < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "world size %d: there must be at least one rank", world_size);
    if (model->n_units < 1 || model->n_tensors < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "the model declares %d units and %d tensors; both need at least one",
                         model->n_units, model->n_tensors);
    made.units = calloc((size_t)model->n_units, sizeof *made.units);
    made.tensor_offsets = calloc((size_t)model->n_tensors, sizeof *made.tensor_offsets);
    if (!made.units || !made.tensor_offsets) {
        zero_layout_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the layout of %d tensors", model->n_tensors);
    }

    /* Sums cannot overflow: the declaration keeps all tensors together under 2^56 elements. */
    for (int t = 0; t < model->n_tensors; t++) {
        zero_unit_layout_t *unit = &made.units[model->tensors[t].owner];
        made.tensor_offsets[t] =
            model->tensors[t].packed ? unit->flat_elems : round_up(unit->flat_elems, ZERO_ALIGN_ELEMS);
        unit->flat_elems = made.tensor_offsets[t] + model->tensors[t].n_elems;
    }
    for (int u = 0; u < model->n_units; u++) {
        zero_unit_layout_t *unit = &made.units[u];
        uint64_t n = (uint64_t)world_size;
        unit->shard_elems = round_up((unit->flat_elems + n - 1) / n, ZERO_ALIGN_ELEMS);
        unit->flat_elems = unit->shard_elems * n;
        unit->flat_offset = made.total_flat_elems;
        unit->shard_offset = made.total_shard_elems;
        made.total_flat_elems += unit->flat_elems;
        made.total_shard_elems += unit->shard_elems;
    }
    assign_slot_classes(model, &made);
    *layout = made;
    return ZERO_OK;
}

void zero_layout_destroy(zero_layout_t *layout)
{
    free(layout->units);
    free(layout->tensor_offsets);
    *layout = (zero_layout_t){0};
}

zero_span_t zero_layout_span(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t tensor,
                             uint64_t begin, uint64_t end)
{
    uint64_t tensor_begin = layout->tensor_offsets[tensor];
    uint64_t tensor_end = tensor_begin + model->tensors[tensor].n_elems;
    uint64_t lo = begin > tensor_begin ? begin : tensor_begin;
    uint64_t hi = end < tensor_end ? end : tensor_end;
    if (lo >= hi)
        return (zero_span_t){0};
    return (zero_span_t){.first = lo - tensor_begin, .flat_offset = lo, .n_elems = hi - lo};
}
