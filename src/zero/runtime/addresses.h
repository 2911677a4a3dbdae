/* addresses.h - what the plan's offsets mean: where this rank's parameters, reduced gradients and optimizer state
 * are. */
#ifndef ZERO_ADDRESSES_H
#define ZERO_ADDRESSES_H

#include "zero/runtime/context.h"

/* Return the address of an offset in bytes: in private memory, and in this rank's window. */
void *zero_context_private(const zero_context_t *context, uint64_t offset);
unsigned char *zero_context_window(const zero_context_t *context, uint64_t offset);

/* Return where all parameters and all reduced gradients begin: zero_adam_t's base pointers. Reduced gradients are in
 * plan.reduced_dtype. */
void *zero_context_params(const zero_context_t *context);
void *zero_context_reduced_grads(const zero_context_t *context);
/* Returns the address of an element of them. */
void *zero_context_reduced_grads_at(const zero_context_t *context, uint64_t elem);
/* Returns where this rank's parameters of a unit in the configured dtype begin: its part or all of them, by
 * zero_plan_shards_params. */
unsigned char *zero_context_params_of(const zero_context_t *context, zero_unit_t unit);
/* Of a unit whose matrices are gathered in fp8: the window's offset of its bytes (this rank's part of its group's copy
 * at stage 3, else all of them); with several groups, the window's offset of the others that came with the part; at
 * stages 1-2 the others of every rank. */
uint64_t zero_context_fp8_offset(const zero_context_t *context, zero_unit_t unit);
uint64_t zero_context_part_others(const zero_context_t *context, zero_unit_t unit);
unsigned char *zero_context_fp8_others(const zero_context_t *context, zero_unit_t unit);
/* Returns the reduced gradients of this rank's shard of a unit. */
void *zero_context_reduced_grads_of(const zero_context_t *context, zero_unit_t unit);
/* Returns where they begin after all reduced gradients, in elements, if they do not take turns. */
uint64_t zero_context_own_grads_begin(const zero_context_t *context, zero_unit_t unit);
/* Returns what a step decides, on the device. */
zero_step_scratch_t *zero_context_step_scratch(const zero_context_t *context);
/* Returns the scalars that a unit is updated with in the step at hand: with updates in backward its own, so that they
 * stay while the next unit's are decided. */
zero_adam_scalars_t *zero_context_unit_scalars(const zero_context_t *context, zero_unit_t unit);

/* Returns where this rank's frozen parameters of a unit begin, as zero_plan_frozen_of. */
unsigned char *zero_context_frozen_of(const zero_context_t *context, zero_unit_t unit);
/* Returns where element `at` of a unit's flat buffer of frozen tensors, which this rank owns, is among all frozen ones,
 * in elements. */
uint64_t zero_context_frozen_at(const zero_context_t *context, zero_unit_t unit, uint64_t at);
/* Finds the part of a tensor that a rank owns. */
zero_span_t zero_context_owned_span(const zero_context_t *context, zero_tensor_t tensor, int rank);

/* Return where this rank's shard of a unit, and its part of its group's copy, begin in the unit's flat buffer. */
uint64_t zero_context_shard_begin(const zero_context_t *context, zero_unit_t unit);
uint64_t zero_context_part_begin(const zero_context_t *context, zero_unit_t unit);
/* Finds the part of a unit's flat buffer whose state this rank holds: its shard, or all of it at stage 0. */
void zero_context_held(const zero_context_t *context, zero_unit_t unit, uint64_t *begin, uint64_t *end);
/* Returns where element `at` of a unit's flat buffer is for AdamW: a segment without length and decay. */
zero_adam_segment_t zero_context_segment_at(const zero_context_t *context, zero_unit_t unit, uint64_t at);
/* Finds the segment of a tensor that AdamW updates here: the part whose state this rank holds. Returns false if it
 * holds none, and for a frozen tensor. */
bool zero_context_segment(const zero_context_t *context, zero_tensor_t tensor, zero_adam_segment_t *segment);

#endif
