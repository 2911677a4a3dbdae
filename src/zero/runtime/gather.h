/* gather.h - all-gathers of one unit, timed and counted. */
#ifndef ZERO_GATHER_H
#define ZERO_GATHER_H

#include "zero/runtime/context.h"

/* Gathers a unit's parameters from the ranks of this rank's group into `full`, an unsharded buffer (stage 3). If
 * matrices are gathered in fp8, the other tensors of every rank come behind them (zero_layout_buffer_elems). */
zero_status_t zero_gather_shards(zero_context_t *context, zero_unit_t unit, void *full, zero_stream_t stream);
/* The same from this rank's shard at `offset` of the window, in every rank's; frozen tensors' follows it. */
zero_status_t zero_gather_shards_at(zero_context_t *context, zero_unit_t unit, uint64_t offset, void *full,
                                    zero_stream_t stream);
/* Gathers this rank's part of its group's copy of a unit from the ranks that update it: one in each group, which hold
 * the same part. */
zero_status_t zero_gather_part(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);
/* The same of the unit's frozen tensors, which change only if they are set. */
zero_status_t zero_gather_frozen_part(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);
/* Gathers all ranks' slices of a unit's frozen tensors in the window (stages 0-2). Does nothing with one rank. */
zero_status_t zero_gather_frozen(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);
/* Gathers all ranks' slices of a unit's parameters in the window (stages 1-2). Does nothing with one rank. */
zero_status_t zero_gather_full(zero_context_t *context, zero_unit_t unit, zero_stream_t stream);
/* Gathers all ranks' slices of a unit's flat buffer in the window, among flat buffers of element_bytes that begin at
 * `offset`. Does nothing with one rank. */
zero_status_t zero_gather_in_place(zero_context_t *context, zero_unit_t unit, uint64_t offset, size_t element_bytes,
                                   zero_stream_t stream);

#endif
