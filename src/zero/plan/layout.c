/* layout.c - see layout.h. */
#include "zero/plan/layout.h"

#include <stdlib.h>

#include "base/log.h"

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* The extents of all units' tensors, [begin, end) in the unit's flat buffer, in ascending order. Unit u's are
 * all[first[u]] .. all[first[u + 1] - 1]. */
typedef struct extent {
    uint64_t begin, end;
} extent_t;

typedef struct extents {
    int *first; /* [n_units + 1] */
    extent_t *all;
} extents_t;

static void extents_destroy(extents_t *extents)
{
    free(extents->first);
    free(extents->all);
}

static zero_status_t extents_create(const zero_model_t *model, const zero_layout_t *layout, extents_t *extents)
{
    extents_t made = {.first = calloc((size_t)model->n_units + 2, sizeof *made.first),
                      .all = calloc((size_t)model->n_tensors, sizeof *made.all)};
    if (!made.first || !made.all) {
        extents_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the layout of %d tensors", model->n_tensors);
    }
    /* first[u + 2] counts the tensors of unit u; then first[u + 1] is where unit u's begin, and is advanced to their
     * end, which is where those of unit u + 1 begin. */
    for (int t = 0; t < model->n_tensors; t++)
        made.first[model->tensors[t].owner + 2]++;
    for (int u = 2; u <= model->n_units; u++)
        made.first[u] += made.first[u - 1];
    for (int t = 0; t < model->n_tensors; t++)
        made.all[made.first[model->tensors[t].owner + 1]++] =
            (extent_t){layout->tensor_offsets[t], layout->tensor_offsets[t] + model->tensors[t].n_elems};
    *extents = made;
    return ZERO_OK;
}

/* Returns whether the tensors of `writer`, in the same buffer, leave the padding of `unit` as it is. */
static bool spares_padding(const zero_layout_t *layout, const extents_t *extents, zero_unit_t unit, zero_unit_t writer)
{
    int i = extents->first[unit], n = extents->first[unit + 1];
    uint64_t flat = layout->units[unit].flat_elems;
    for (int j = extents->first[writer]; j < extents->first[writer + 1]; j++) {
        uint64_t at = extents->all[j].begin, end = extents->all[j].end < flat ? extents->all[j].end : flat;
        while (at < end) { /* to the end of the tensor of `unit` that is there */
            while (i < n && extents->all[i].end <= at)
                i++;
            if (i == n || extents->all[i].begin > at)
                return false;
            at = extents->all[i].end;
        }
    }
    return true;
}

/* Buffers are as large as the largest unit that uses them. Up to a sixteenth of waste is worth a buffer less. */
static bool are_alike_in_size(uint64_t a, uint64_t b)
{
    uint64_t smaller = a < b ? a : b, larger = a < b ? b : a;
    return larger - smaller <= smaller / 16;
}

static bool can_take_turns(const zero_layout_t *layout, const extents_t *extents, zero_unit_t a, zero_unit_t b)
{
    return are_alike_in_size(layout->units[a].flat_elems, layout->units[b].flat_elems) &&
           spares_padding(layout, extents, a, b) && spares_padding(layout, extents, b, a);
}

/* What decides whether a unit can take turns with all units of a class. These agree on where tensors are, each as far
 * as it reaches, so a unit that agrees with the largest agrees with all. */
typedef struct buffer_class {
    zero_unit_t largest;
    uint64_t least_elems;
} buffer_class_t;

/* Returns the first class all of whose units so far can take turns with `unit`, or a new one. */
static int find_buffer_class(const zero_layout_t *layout, const extents_t *extents, const buffer_class_t *classes,
                             zero_unit_t unit)
{
    int c = 0;
    while (c < layout->n_buffer_classes &&
           (!are_alike_in_size(classes[c].least_elems, layout->units[unit].flat_elems) ||
            !can_take_turns(layout, extents, classes[c].largest, unit)))
        c++;
    return c;
}

static void put_into_class(zero_layout_t *layout, buffer_class_t *classes, zero_unit_t unit, int buffer_class)
{
    uint64_t n_elems = layout->units[unit].flat_elems;
    buffer_class_t *class = &classes[buffer_class];
    layout->units[unit].buffer_class = buffer_class;
    if (buffer_class == layout->n_buffer_classes) {
        layout->n_buffer_classes++;
        *class = (buffer_class_t){.largest = unit, .least_elems = n_elems};
    } else if (n_elems > layout->buffer_elems[buffer_class]) {
        class->largest = unit;
    } else if (n_elems < class->least_elems) {
        class->least_elems = n_elems;
    }
    layout->buffer_elems[buffer_class] = layout->units[class->largest].flat_elems;
}

static zero_status_t assign_buffer_classes(const zero_model_t *model, zero_layout_t *layout)
{
    extents_t extents = {0};
    buffer_class_t *classes = calloc((size_t)layout->n_units, sizeof *classes);
    layout->buffer_elems = calloc((size_t)layout->n_units, sizeof *layout->buffer_elems);
    zero_status_t status = classes && layout->buffer_elems
                               ? extents_create(model, layout, &extents)
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory for the buffers of %d units", layout->n_units);
    for (zero_unit_t unit = 0; unit < layout->n_units && status == ZERO_OK; unit++)
        put_into_class(layout, classes, unit, find_buffer_class(layout, &extents, classes, unit));
    extents_destroy(&extents);
    free(classes);
    return status;
}

uint64_t zero_layout_buffer_elems(const zero_layout_t *layout, int buffer_class)
{
    return layout->buffer_elems[buffer_class];
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

    /* Nothing overflows: the declaration keeps all tensors together under 2^56 elements. */
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
    zero_status_t status = assign_buffer_classes(model, &made);
    if (status != ZERO_OK) {
        zero_layout_destroy(&made);
        return status;
    }
    *layout = made;
    return ZERO_OK;
}

void zero_layout_destroy(zero_layout_t *layout)
{
    free(layout->units);
    free(layout->tensor_offsets);
    free(layout->buffer_elems);
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
