/* layout.c - see layout.h. */
#include "zero/plan/layout.h"

#include <stdlib.h>

#include "base/log.h"

/* ---- stage ---- */
/* The table of stages. */

static const zero_stage_t stages[] = {
    {.shard_state = false, .shard_grads = false, .shard_params = false},
    {.shard_state = true, .shard_grads = false, .shard_params = false},
    {.shard_state = true, .shard_grads = true, .shard_params = false},
    {.shard_state = true, .shard_grads = true, .shard_params = true},
};

zero_stage_t zero_stage_get(const zero_config_t *config, int world_size)
{
    zero_stage_t stage = stages[config->stage];
    /* One rank's shard is the whole unit, and is used without a buffer. */
    if (world_size == 1)
        stage.shard_params = false;
    stage.accumulate_locally = !stage.shard_grads && config->micro_steps > 1 && !config->reduce_every_micro_step;
    stage.grad_dtype = stage.accumulate_locally ? ZERO_FP32 : config->dtype;
    /* In place only if a step reduces once: a later micro-step would overwrite what was reduced. */
    stage.reduces_once = config->micro_steps == 1 || stage.accumulate_locally;
    stage.reduced_in_place = !stage.shard_grads && stage.grad_dtype == ZERO_FP32 && stage.reduces_once;
    stage.reduced_grads_are_full = stage.reduced_in_place || !stage.shard_state;
    return stage;
}

/* ---- layout ---- */

/* As the declaration allows (declaration.c). */
#define MAX_ELEMS (UINT64_C(1) << 56)

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* The extents of all units' trained tensors, [begin, end) in the unit's flat buffer, in ascending order. Unit u's are
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
        made.first[model->tensors[t].owner + 2] += !model->tensors[t].frozen;
    for (int u = 2; u <= model->n_units; u++)
        made.first[u] += made.first[u - 1];
    for (int i = 0; i < model->n_tensors; i++) {
        zero_tensor_t t = layout->order[i];
        if (model->tensors[t].frozen)
            continue;
        made.all[made.first[model->tensors[t].owner + 1]++] =
            (extent_t){layout->tensor_offsets[t], layout->tensor_offsets[t] + model->tensors[t].n_elems};
    }
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
static bool are_of_one_size(uint64_t a, uint64_t b)
{
    uint64_t smaller = a < b ? a : b, larger = a < b ? b : a;
    return larger - smaller <= smaller / 16;
}

static bool can_take_turns(const zero_layout_t *layout, const extents_t *extents, zero_unit_t a, zero_unit_t b)
{
    return zero_layout_has_fp8(layout, a) == zero_layout_has_fp8(layout, b) &&
           are_of_one_size(layout->units[a].flat_elems, layout->units[b].flat_elems) &&
           spares_padding(layout, extents, a, b) && spares_padding(layout, extents, b, a);
}

/* What decides whether a unit can take turns with all units of a class. These agree on where tensors are, each as far
 * as it reaches, so a unit that agrees with the largest agrees with all. */
typedef struct buffer_class {
    zero_unit_t largest;
    uint64_t least_elems, least_frozen;
} buffer_class_t;

/* Returns whether the unit's frozen tensors need about as much room as those of all units of the class so far. */
static bool is_alike_in_frozen(const zero_layout_t *layout, const buffer_class_t *classes, int c, zero_unit_t unit)
{
    uint64_t n_elems = layout->units[unit].frozen_flat_elems;
    return are_of_one_size(classes[c].least_frozen, n_elems) &&
           are_of_one_size(layout->buffer_frozen_elems[c], n_elems);
}

/* Returns the first class all of whose units so far can take turns with `unit`, or a new one. */
static int find_buffer_class(const zero_layout_t *layout, const extents_t *extents, const buffer_class_t *classes,
                             zero_unit_t unit)
{
    int c = 0;
    while (c < layout->n_buffer_classes && (!are_of_one_size(classes[c].least_elems, layout->units[unit].flat_elems) ||
                                            !is_alike_in_frozen(layout, classes, c, unit) ||
                                            !can_take_turns(layout, extents, classes[c].largest, unit)))
        c++;
    return c;
}

static void add_to_class(zero_layout_t *layout, buffer_class_t *classes, zero_unit_t unit, int buffer_class)
{
    uint64_t n_elems = layout->units[unit].flat_elems, n_others = layout->units[unit].others_elems;
    uint64_t n_frozen = layout->units[unit].frozen_flat_elems;
    buffer_class_t *class = &classes[buffer_class];
    layout->units[unit].buffer_class = buffer_class;
    if (buffer_class == layout->n_buffer_classes) {
        layout->n_buffer_classes++;
        *class = (buffer_class_t){.largest = unit, .least_elems = n_elems, .least_frozen = n_frozen};
    } else if (n_elems > layout->buffer_elems[buffer_class]) {
        class->largest = unit;
    } else if (n_elems < class->least_elems) {
        class->least_elems = n_elems;
    }
    layout->buffer_elems[buffer_class] = layout->units[class->largest].flat_elems;
    if (n_others > layout->buffer_others_elems[buffer_class])
        layout->buffer_others_elems[buffer_class] = n_others;
    if (n_frozen > layout->buffer_frozen_elems[buffer_class])
        layout->buffer_frozen_elems[buffer_class] = n_frozen;
    if (n_frozen < class->least_frozen)
        class->least_frozen = n_frozen;
}

static zero_status_t assign_buffer_classes(const zero_model_t *model, zero_layout_t *layout)
{
    extents_t extents = {0};
    buffer_class_t *classes = calloc((size_t)layout->n_units, sizeof *classes);
    layout->buffer_elems = calloc((size_t)layout->n_units, sizeof *layout->buffer_elems);
    layout->buffer_others_elems = calloc((size_t)layout->n_units, sizeof *layout->buffer_others_elems);
    layout->buffer_frozen_elems = calloc((size_t)layout->n_units, sizeof *layout->buffer_frozen_elems);
    zero_status_t status = classes && layout->buffer_elems && layout->buffer_others_elems && layout->buffer_frozen_elems
                               ? extents_create(model, layout, &extents)
                               : zero_fail(ZERO_ERROR_MEMORY, "no memory for the buffers of %d units", layout->n_units);
    for (zero_unit_t unit = 0; unit < layout->n_units && status == ZERO_OK; unit++)
        add_to_class(layout, classes, unit, find_buffer_class(layout, &extents, classes, unit));
    extents_destroy(&extents);
    free(classes);
    return status;
}

uint64_t zero_layout_buffer_elems(const zero_layout_t *layout, int buffer_class)
{
    return layout->buffer_elems[buffer_class];
}

/* ---- tensors and shards ---- */

/* Returns the elements of its flat buffer that a tensor takes. */
static uint64_t room_of(const zero_tensor_decl_t *tensor)
{
    return tensor->frozen_fp8 ? tensor->n_elems / ZERO_FP8_IN_ELEMENT : tensor->n_elems;
}

/* Lays out a tensor behind those of its flat buffer so far. */
static void place_tensor(const zero_model_t *model, zero_layout_t *layout, zero_tensor_t t)
{
    const zero_tensor_decl_t *tensor = &model->tensors[t];
    zero_unit_layout_t *unit = &layout->units[tensor->owner];
    uint64_t align = zero_layout_has_fp8(layout, tensor->owner) ? ZERO_FP8_ALIGN_ELEMS : ZERO_ALIGN_ELEMS;
    uint64_t *flat_elems = tensor->frozen ? &unit->frozen_flat_elems : &unit->flat_elems;
    layout->tensor_offsets[t] = tensor->packed ? *flat_elems : round_up(*flat_elems, align);
    *flat_elems = layout->tensor_offsets[t] + room_of(tensor);
}

/* Returns whether a tensor is a trained matrix in fp8, or a part of one. */
static bool is_fp8(const zero_tensor_decl_t *tensor)
{
    return tensor->fp8 && !tensor->frozen;
}

/* Gives tensors in fp8 the numbers of their matrices, in the order of units and declaration, and counts these. */
static void number_matrices(const zero_model_t *model, zero_layout_t *layout)
{
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (is_fp8(&model->tensors[t]) && !model->tensors[t].packed)
            layout->units[model->tensors[t].owner].n_matrices++;
    for (int u = 0; u < model->n_units; u++) {
        layout->units[u].first_matrix = layout->n_matrices;
        layout->n_matrices += layout->units[u].n_matrices;
        layout->units[u].n_matrices = 0;
    }
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        zero_unit_layout_t *unit = &layout->units[model->tensors[t].owner];
        layout->matrix_of[t] = !is_fp8(&model->tensors[t]) ? -1
                               : model->tensors[t].packed  ? layout->matrix_of[t - 1]
                                                           : unit->first_matrix + unit->n_matrices++;
    }
}

static void number_frozen_matrices(const zero_model_t *model, zero_layout_t *layout)
{
    for (zero_tensor_t t = 0; t < model->n_tensors; t++) {
        const bool begins = model->tensors[t].frozen_fp8 && !model->tensors[t].packed;
        layout->n_frozen_matrices += begins;
        layout->frozen_matrix_of[t] = model->tensors[t].frozen_fp8 ? layout->n_frozen_matrices - 1 : -1;
    }
}

/* Places the tensors that are not in fp8, then those that are, then frozen ones. Nothing overflows: the declaration
 * keeps all tensors together under 2^56 elements. */
static void place_tensors(const zero_model_t *model, zero_layout_t *layout)
{
    int n_placed = 0;
    number_matrices(model, layout);
    number_frozen_matrices(model, layout);
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (!is_fp8(&model->tensors[t]) && !model->tensors[t].frozen) {
            place_tensor(model, layout, t);
            layout->order[n_placed++] = t;
        }
    for (int u = 0; u < model->n_units; u++)
        if (zero_layout_has_fp8(layout, u))
            layout->units[u].others_elems = round_up(layout->units[u].flat_elems, ZERO_FP8_ALIGN_ELEMS);
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (is_fp8(&model->tensors[t])) {
            zero_fp8_matrix_t *matrix = &layout->matrices[layout->matrix_of[t]];
            place_tensor(model, layout, t);
            layout->order[n_placed++] = t;
            if (!model->tensors[t].packed)
                *matrix = (zero_fp8_matrix_t){.unit = model->tensors[t].owner, .begin = layout->tensor_offsets[t]};
            matrix->end = layout->tensor_offsets[t] + model->tensors[t].n_elems;
        }
    for (zero_tensor_t t = 0; t < model->n_tensors; t++)
        if (model->tensors[t].frozen) {
            place_tensor(model, layout, t);
            layout->order[n_placed++] = t;
        }
}

/* Returns the elements of a rank's shard. Rank 0's has room for the tensors that are not in fp8. */
static uint64_t shard_elems(const zero_layout_t *layout, zero_unit_t u)
{
    const zero_unit_layout_t *unit = &layout->units[u];
    uint64_t n = (uint64_t)layout->world_size, share = (unit->flat_elems + n - 1) / n;
    if (!zero_layout_has_fp8(layout, u))
        return round_up(share, ZERO_ALIGN_ELEMS);
    return round_up(share > unit->others_elems ? share : unit->others_elems, ZERO_FP8_ALIGN_ELEMS);
}

/* Every rank's shard is as large as rank 0's. */
static zero_status_t check_others(const zero_layout_t *layout)
{
    uint64_t n_elems = 0;
    for (int u = 0; u < layout->n_units; u++)
        n_elems += layout->units[u].others_elems;
    if (n_elems > MAX_ELEMS / (uint64_t)layout->world_size)
        return zero_fail(ZERO_ERROR_OVERFLOW,
                         "units with matrices in fp8 have %llu elements in other tensors, for which each of %d ranks "
                         "has room: more than 2^56",
                         (unsigned long long)n_elems, layout->world_size);
    return ZERO_OK;
}

static void cut_frozen(zero_layout_t *layout, zero_unit_layout_t *unit)
{
    uint64_t n = (uint64_t)layout->world_size;
    unit->frozen_shard_elems = round_up((unit->frozen_flat_elems + n - 1) / n, ZERO_ALIGN_ELEMS);
    unit->frozen_flat_elems = unit->frozen_shard_elems * n;
    unit->frozen_flat_offset = layout->total_frozen_flat_elems;
    unit->frozen_shard_offset = layout->total_frozen_shard_elems;
    layout->total_frozen_flat_elems += unit->frozen_flat_elems;
    layout->total_frozen_shard_elems += unit->frozen_shard_elems;
}

static void cut_into_shards(zero_layout_t *layout)
{
    for (int u = 0; u < layout->n_units; u++) {
        zero_unit_layout_t *unit = &layout->units[u];
        unit->shard_elems = shard_elems(layout, u);
        unit->flat_elems = unit->shard_elems * (uint64_t)layout->world_size;
        unit->flat_offset = layout->total_flat_elems;
        unit->shard_offset = layout->total_shard_elems;
        unit->fp8_flat_offset = layout->total_fp8_flat_elems;
        unit->fp8_shard_offset = layout->total_fp8_shard_elems;
        unit->others_offset = layout->total_others_elems;
        layout->total_flat_elems += unit->flat_elems;
        layout->total_shard_elems += unit->shard_elems;
        cut_frozen(layout, unit);
        if (!zero_layout_has_fp8(layout, u))
            continue;
        layout->total_fp8_flat_elems += unit->flat_elems;
        layout->total_fp8_shard_elems += unit->shard_elems;
        layout->total_others_elems += unit->others_elems;
    }
}

zero_status_t zero_layout_create(const zero_model_t *model, int world_size, zero_layout_t *layout)
{
    zero_layout_t made = {.world_size = world_size, .n_units = model->n_units, .n_tensors = model->n_tensors};
    size_t n_units = (size_t)model->n_units, n_tensors = (size_t)model->n_tensors;
    if (world_size < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "world size %d: there must be at least one rank", world_size);
    if (model->n_units < 1 || model->n_tensors < 1)
        return zero_fail(ZERO_ERROR_ARGUMENT, "the model declares %d units and %d tensors; both need at least one",
                         model->n_units, model->n_tensors);
    made.units = calloc(n_units, sizeof *made.units);
    made.tensor_offsets = calloc(n_tensors, sizeof *made.tensor_offsets);
    made.order = calloc(n_tensors, sizeof *made.order);
    made.matrices = calloc(n_tensors, sizeof *made.matrices);
    made.matrix_of = calloc(n_tensors, sizeof *made.matrix_of);
    made.frozen_matrix_of = calloc(n_tensors, sizeof *made.frozen_matrix_of);
    if (!made.units || !made.tensor_offsets || !made.order || !made.matrices || !made.matrix_of ||
        !made.frozen_matrix_of) {
        zero_layout_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for the layout of %d tensors", model->n_tensors);
    }
    place_tensors(model, &made);
    zero_status_t status = check_others(&made);
    if (status == ZERO_OK) {
        cut_into_shards(&made);
        status = assign_buffer_classes(model, &made);
    }
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
    free(layout->order);
    free(layout->matrices);
    free(layout->matrix_of);
    free(layout->frozen_matrix_of);
    free(layout->buffer_elems);
    free(layout->buffer_others_elems);
    free(layout->buffer_frozen_elems);
    *layout = (zero_layout_t){0};
}

zero_span_t zero_layout_span(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t tensor,
                             uint64_t begin, uint64_t end)
{
    uint64_t tensor_begin = layout->tensor_offsets[tensor];
    uint64_t tensor_end = tensor_begin + room_of(&model->tensors[tensor]);
    const uint64_t each = model->tensors[tensor].frozen_fp8 ? ZERO_FP8_IN_ELEMENT : 1;
    uint64_t lo = begin > tensor_begin ? begin : tensor_begin;
    uint64_t hi = end < tensor_end ? end : tensor_end;
    if (lo >= hi)
        return (zero_span_t){0};
    return (zero_span_t){.first = (lo - tensor_begin) * each, .flat_offset = lo, .n_elems = (hi - lo) * each};
}
