/* order.c - see order.h. */
#include "zero/plan/order.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static bool is_among_flats(const zero_model_t *model, zero_unit_t unit, int first, zero_unit_t flat)
{
    for (int i = first; i < zero_model_n_flats(model, unit); i++)
        if (zero_model_flat(model, unit, i) == flat)
            return true;
    return false;
}

bool zero_order_uses(const zero_model_t *model, int position, zero_unit_t flat)
{
    return is_among_flats(model, zero_order_unit(position, model->n_units), 0, flat);
}

bool zero_order_needs(const zero_model_t *model, int position, zero_unit_t flat)
{
    return is_among_flats(model, zero_order_unit(position, model->n_units), zero_order_first_flat(model, position),
                          flat);
}

/* Returns the first of the positions begin, begin + 1 ... end - 1 that needs `flat`; INT_MAX if none does. */
static int first_use_between(const zero_model_t *model, int begin, int end, zero_unit_t flat)
{
    for (int position = begin; position < end; position++)
        if (zero_order_needs(model, position, flat))
            return position;
    return INT_MAX;
}

/* Searches only from the unit itself to its last user, so that the search takes no longer in a model of many units. */
int zero_order_next_use(const zero_model_t *model, zero_pass_t pass, int from, zero_unit_t flat)
{
    int n_both = 2 * model->n_units, last_user = model->units[flat].last_user;
    int backward = n_both - 1 - last_user;
    int next = first_use_between(model, from > flat ? from : flat, last_user + 1, flat);
    if (next < INT_MAX || pass == ZERO_PASS_EVAL)
        return next;
    return first_use_between(model, from > backward ? from : backward, n_both - flat, flat);
}

/* The units that a window of positions needs, counted by class: each once, however often it is needed. */
typedef struct window {
    zero_unit_t first; /* units before it need no buffer */
    int *n_uses;       /* by unit: of the window's positions */
    int *n_resident;   /* by buffer class */
} window_t;

static void window_enter(window_t *window, const zero_model_t *model, const zero_layout_t *layout, int position)
{
    zero_unit_t unit = zero_order_unit(position, model->n_units);
    for (int i = zero_order_first_flat(model, position); i < zero_model_n_flats(model, unit); i++) {
        zero_unit_t flat = zero_model_flat(model, unit, i);
        if (flat >= window->first)
            window->n_resident[layout->units[flat].buffer_class] += window->n_uses[flat]++ == 0;
    }
}

static void window_leave(window_t *window, const zero_model_t *model, const zero_layout_t *layout, int position)
{
    zero_unit_t unit = zero_order_unit(position, model->n_units);
    for (int i = zero_order_first_flat(model, position); i < zero_model_n_flats(model, unit); i++) {
        zero_unit_t flat = zero_model_flat(model, unit, i);
        if (flat >= window->first)
            window->n_resident[layout->units[flat].buffer_class] -= --window->n_uses[flat] == 0;
    }
}

/* Raises n_buffers if a class has more resident than ever before. Only the units that have just come matter. */
static void take_most(const window_t *window, const zero_model_t *model, const zero_layout_t *layout, int position,
                      int *n_buffers)
{
    zero_unit_t unit = zero_order_unit(position, model->n_units);
    for (int i = zero_order_first_flat(model, position); i < zero_model_n_flats(model, unit); i++) {
        int c = layout->units[zero_model_flat(model, unit, i)].buffer_class;
        n_buffers[c] = window->n_resident[c] > n_buffers[c] ? window->n_resident[c] : n_buffers[c];
    }
}

/* Moves the window's begin behind `position`. A kept unit holds what its backward will need from its forward on. */
static void window_pass(window_t *window, const zero_model_t *model, const zero_layout_t *layout, int position,
                        int n_kept)
{
    int n_units = model->n_units;
    if (position < n_units && position >= n_units - n_kept)
        window_enter(window, model, layout, 2 * n_units - 1 - position);
    window_leave(window, model, layout, position);
    if (position >= n_units && position < n_units + n_kept)
        window_leave(window, model, layout, position);
}

zero_status_t zero_order_unsharded_params(const zero_model_t *model, const zero_layout_t *layout, zero_unit_t first,
                                          int prefetch, int keep, int *n_buffers)
{
    int n_positions = zero_order_n_positions(ZERO_PASS_TRAIN, model->n_units);
    int n_ahead = prefetch < model->n_units ? prefetch : model->n_units;
    int n_kept = keep < model->n_units ? keep : model->n_units;
    window_t window = {.first = first,
                       .n_uses = calloc((size_t)model->n_units, sizeof(int)),
                       .n_resident = calloc((size_t)layout->n_buffer_classes, sizeof(int))};
    bool has_memory = window.n_uses && window.n_resident;
    memset(n_buffers, 0, (size_t)layout->n_buffer_classes * sizeof *n_buffers);
    for (int position = 0; position < n_positions && has_memory; position++) {
        if (position > n_ahead)
            window_pass(&window, model, layout, position - n_ahead - 1, n_kept);
        window_enter(&window, model, layout, position);
        take_most(&window, model, layout, position, n_buffers);
    }
    free(window.n_uses);
    free(window.n_resident);
    return has_memory ? ZERO_OK
                      : zero_fail(ZERO_ERROR_MEMORY, "no memory to plan the buffers of %d units", model->n_units);
}

/* Goes through backward as the engine does (gradients.c): a unit's gradients take a buffer at its last user and are
 * complete at the unit itself, where their reduction begins. Units without gradients take none and reduce none. */
zero_status_t zero_order_unsharded_grads(const zero_model_t *model, const zero_layout_t *layout, int n_spare,
                                         int *n_buffers)
{
    int n_units = model->n_units, n_reduced = 0;
    int *n_in_use = calloc((size_t)layout->n_buffer_classes, sizeof *n_in_use);
    int *first = malloc((size_t)n_units * sizeof *first);     /* by last user: a unit, -1: none */
    int *next = malloc((size_t)n_units * sizeof *next);       /* by unit: another with the same last user */
    int *reduced = malloc((size_t)n_units * sizeof *reduced); /* units, in the order of their reductions */
    bool has_memory = n_in_use && first && next && reduced;
    memset(n_buffers, 0, (size_t)layout->n_buffer_classes * sizeof *n_buffers);
    for (zero_unit_t unit = 0; unit < n_units && has_memory; unit++)
        first[unit] = -1;
    for (zero_unit_t flat = 0; flat < n_units && has_memory; flat++) {
        zero_unit_t last_user = model->units[flat].last_user;
        if (layout->units[flat].shard_elems == 0)
            continue;
        next[flat] = first[last_user];
        first[last_user] = flat;
    }
    for (zero_unit_t unit = n_units - 1; unit >= 0 && has_memory; unit--) {
        for (zero_unit_t flat = first[unit]; flat >= 0; flat = next[flat]) {
            int c = layout->units[flat].buffer_class;
            n_in_use[c]++;
            n_buffers[c] = n_in_use[c] > n_buffers[c] ? n_in_use[c] : n_buffers[c];
        }
        if (layout->units[unit].shard_elems == 0)
            continue;
        reduced[n_reduced++] = unit;
        if (n_reduced > n_spare)
            n_in_use[layout->units[reduced[n_reduced - 1 - n_spare]].buffer_class]--;
    }
    free(reduced);
    free(n_in_use);
    free(first);
    free(next);
    return has_memory ? ZERO_OK : zero_fail(ZERO_ERROR_MEMORY, "no memory to plan the buffers of %d units", n_units);
}

/* ---- unsharded ---- */

zero_status_t zero_unsharded_create(const zero_layout_t *layout, const int *counts, const uint64_t *buffer_bytes,
                                    uint64_t base, zero_unsharded_t *unsharded)
{
    zero_unsharded_t made = {.n_units = layout->n_units};
    int n_buffers = 0;
    for (int c = 0; c < layout->n_buffer_classes; c++)
        n_buffers += counts[c];
    made.buffers = calloc((size_t)n_buffers + 1, sizeof *made.buffers);
    made.buffer_of = calloc((size_t)layout->n_units, sizeof *made.buffer_of);
    if (!made.buffers || !made.buffer_of) {
        zero_unsharded_destroy(&made);
        return zero_fail(ZERO_ERROR_MEMORY, "no memory for %d unsharded buffers", n_buffers);
    }
    uint64_t offset = base;
    for (int c = 0; c < layout->n_buffer_classes; c++)
        for (int i = 0; i < counts[c]; i++) {
            made.buffers[made.n_buffers++] = (zero_unsharded_buffer_t){.buffer_class = c, .offset = offset, .flat = -1};
            offset += buffer_bytes[c];
        }
    for (int u = 0; u < layout->n_units; u++)
        made.buffer_of[u] = -1;
    *unsharded = made;
    return ZERO_OK;
}

void zero_unsharded_destroy(zero_unsharded_t *unsharded)
{
    free(unsharded->buffers);
    free(unsharded->buffer_of);
    *unsharded = (zero_unsharded_t){0};
}

zero_unsharded_buffer_t *zero_unsharded_find(const zero_unsharded_t *unsharded, zero_unit_t flat)
{
    return unsharded->buffer_of[flat] < 0 ? NULL : &unsharded->buffers[unsharded->buffer_of[flat]];
}

zero_unsharded_buffer_t *zero_unsharded_empty(const zero_unsharded_t *unsharded, int buffer_class)
{
    zero_unsharded_buffer_t *oldest = NULL; /* its readers were the first to finish */
    for (int i = 0; i < unsharded->n_buffers; i++) {
        zero_unsharded_buffer_t *buffer = &unsharded->buffers[i];
        if (buffer->buffer_class == buffer_class && buffer->flat < 0 &&
            (!oldest || buffer->published_in < oldest->published_in))
            oldest = buffer;
    }
    return oldest;
}

zero_unsharded_buffer_t *zero_unsharded_farthest(const zero_unsharded_t *unsharded, const zero_model_t *model,
                                                 zero_pass_t pass, int position, int buffer_class)
{
    zero_unsharded_buffer_t *farthest = NULL;
    int farthest_use = -1;
    for (int i = 0; i < unsharded->n_buffers; i++) {
        zero_unsharded_buffer_t *buffer = &unsharded->buffers[i];
        if (buffer->buffer_class != buffer_class || buffer->flat < 0)
            continue;
        int use = zero_order_next_use(model, pass, position, buffer->flat);
        if (use > farthest_use) {
            farthest = buffer;
            farthest_use = use;
        }
    }
    return farthest;
}

void zero_unsharded_assign(zero_unsharded_t *unsharded, zero_unsharded_buffer_t *buffer, zero_unit_t flat)
{
    if (buffer->flat >= 0)
        unsharded->buffer_of[buffer->flat] = -1;
    buffer->flat = flat;
    if (flat >= 0)
        unsharded->buffer_of[flat] = (int)(buffer - unsharded->buffers);
}

void zero_unsharded_clear(zero_unsharded_t *unsharded)
{
    for (int i = 0; i < unsharded->n_buffers; i++)
        zero_unsharded_assign(unsharded, &unsharded->buffers[i], -1);
}

zero_unsharded_buffer_t *zero_unsharded_acquire(zero_unsharded_t *unsharded, const zero_model_t *model,
                                                zero_pass_t pass, int position, int buffer_class, zero_unit_t flat)
{
    zero_unsharded_buffer_t *buffer = zero_unsharded_empty(unsharded, buffer_class);
    if (!buffer)
        buffer = zero_unsharded_farthest(unsharded, model, pass, position, buffer_class);
    if (buffer)
        zero_unsharded_assign(unsharded, buffer, flat);
    return buffer;
}
