/* activations.c - see activations.h. */
#include "train/model/activations.h"

void activations_set_lifetime(activations_t *activations, zero_unit_t first, zero_unit_t last)
{
    activations->has_lifetime = true;
    activations->first = first;
    activations->last = last;
}

void activations_clear_lifetime(activations_t *activations)
{
    activations->has_lifetime = false;
}

void *activations_alloc(activations_t *activations, uint64_t n_elems, size_t element_bytes)
{
    void *data = NULL;
    uint64_t n_bytes = (n_elems * element_bytes + 255) / 256 * 256;
    activations->n_bytes += n_bytes;
    if (!activations->engine || activations->status != ZERO_OK)
        return NULL;
    activations->status =
        activations->has_lifetime
            ? zero_alloc_activations(activations->engine, activations->first, activations->last, n_bytes, &data)
            : zero_alloc(activations->engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, &data);
    return data;
}
