/* unsharded.c - see unsharded.h. */
#include "zero/plan/unsharded.h"

#include <stdlib.h>

#include "base/log.h"
#include "zero/plan/order.h"

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

void zero_unsharded_put(zero_unsharded_t *unsharded, zero_unsharded_buffer_t *buffer, zero_unit_t flat)
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
        zero_unsharded_put(unsharded, &unsharded->buffers[i], -1);
}

zero_unsharded_buffer_t *zero_unsharded_take(zero_unsharded_t *unsharded, const zero_model_t *model, zero_pass_t pass,
                                             int position, int buffer_class, zero_unit_t flat)
{
    zero_unsharded_buffer_t *buffer = zero_unsharded_empty(unsharded, buffer_class);
    if (!buffer)
        buffer = zero_unsharded_farthest(unsharded, model, pass, position, buffer_class);
    if (buffer)
        zero_unsharded_put(unsharded, buffer, flat);
    return buffer;
}
