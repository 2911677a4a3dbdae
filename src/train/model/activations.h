/* activations.h - allocates a model's activations, or only counts their bytes.
 *
 * An architecture allocates all its activations in one function. Run without an engine, the function gives the plan;
 * run with one, it gives the memory. So the two cannot differ.
 */
#ifndef ZEROTRAIN_ACTIVATIONS_H
#define ZEROTRAIN_ACTIVATIONS_H

#include "zero.h"

typedef struct activations {
    zero_engine_t *engine;   /* NULL: only count */
    uint64_t n_bytes;        /* so far */
    zero_status_t status;    /* of the first allocation that failed */
    bool has_lifetime;       /* the next allocations are in use only from first to last, */
    zero_unit_t first, last; /* as zero_alloc_activations defines it */
} activations_t;

/* Declares that what is allocated from here on is written no earlier than the forward of `first` and read no later than
 * the backward of `last`. Between the passes of two steps it is idle. */
void activations_set_lifetime(activations_t *activations, zero_unit_t first, zero_unit_t last);
/* Declares that what is allocated from here on may be in use at any time, as it is at first. */
void activations_clear_lifetime(activations_t *activations);

/* Returns device memory that the engine owns, aligned to 256 bytes; NULL when counting and after a failure. */
void *activations_alloc(activations_t *activations, uint64_t n_elems, size_t element_bytes);

#endif
