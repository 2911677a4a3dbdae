/* activations.c - see activations.h. */
#include "train/activations.h"

void *activations_take(activations_t *activations, uint64_t n_elems, size_t element_bytes)
{
    void *data = NULL;
    uint64_t n_bytes = (n_elems * element_bytes + 255) / 256 * 256;
    activations->n_bytes += n_bytes;
    if (activations->engine && activations->status == ZERO_OK)
        activations->status = zero_alloc(activations->engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, &data);
    return data;
}
