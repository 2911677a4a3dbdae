/* activations.h - hands out a model's activations one after another, or only counts what it would hand out.
 *
 * An architecture places its activations in one function; run over a counter it gives the plan, run over an engine the
 * memory, so the two cannot differ.
 */
#ifndef ZEROTRAIN_ACTIVATIONS_H
#define ZEROTRAIN_ACTIVATIONS_H

#include "zero.h"

typedef struct activations {
    zero_engine_t *engine; /* NULL: only counts */
    uint64_t n_bytes;      /* so far */
    zero_status_t status;  /* of the first that failed */
} activations_t;

/* Device memory of the engine's, 256-byte aligned; NULL when counting, and after a failure. */
void *activations_take(activations_t *activations, uint64_t n_elems, size_t element_bytes);

#endif
