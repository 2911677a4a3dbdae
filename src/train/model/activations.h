/* activations.h - hands out a model's activations one after another, or only counts what it would hand out.
 *
 * An architecture places its activations in one function; run over a counter it gives the plan, run over an engine the
 * memory, so the two cannot differ.
 */
#ifndef ZEROTRAIN_ACTIVATIONS_H
#define ZEROTRAIN_ACTIVATIONS_H

#include "zero.h"

typedef struct activations {
    zero_engine_t *engine;   /* NULL: only counts */
    uint64_t n_bytes;        /* so far */
    zero_status_t status;    /* of the first that failed */
    bool has_span;           /* what is taken now matters only in: */
    zero_unit_t first, last; /* as zero_alloc_activations has it */
} activations_t;

/* From here on, what is taken is written no earlier than the forward of `first` and read no later than the backward of
 * `last`: between the passes of two steps it is idle. */
void activations_begin_span(activations_t *activations, zero_unit_t first, zero_unit_t last);
/* From here on, it is in use at any time. */
void activations_end_span(activations_t *activations);

/* Device memory of the engine's, 256-byte aligned; NULL when counting, and after a failure. */
void *activations_take(activations_t *activations, uint64_t n_elems, size_t element_bytes);

#endif
