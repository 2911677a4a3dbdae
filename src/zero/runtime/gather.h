/* gather.h - all-gathers of one unit, timed and counted. */
#ifndef ZERO_GATHER_H
#define ZERO_GATHER_H

#include "zero/runtime/context.h"

/* Gathers all ranks' shards of a unit's parameters into `full`, a buffer of private memory (stage 3). */
zero_status_t zero_gather_shards(zero_context_t *context, zero_unit_t unit, void *full, zero_stream_t stream);
/* Gathers all ranks' slices of a unit's flat buffer in the window, among flat buffers of element_bytes that begin at
 * `offset`. Does nothing with one rank. */
zero_status_t zero_gather_in_place(zero_context_t *context, zero_unit_t unit, uint64_t offset, size_t element_bytes,
                                   zero_stream_t stream);

#endif
