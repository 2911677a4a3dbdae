/* layout.h - where every tensor is in its unit's flat buffer, and which slice of that each rank owns. Pure arithmetic.
 *
 * A unit's tensors are laid out one after another in declared order, each at a multiple of ZERO_ALIGN_ELEMS unless it
 * is packed. The whole is padded so that it splits into world_size shards of equal size, each a multiple of
 * ZERO_ALIGN_ELEMS. Rank r owns elements [r * shard_elems, (r + 1) * shard_elems). Gradients never write the padding,
 * which stays zero.
 *
 *     | tensor 0 ..pad| tensor 1 ......pad| tensor 2 .pad|...pad|
 *     |<- rank 0 ->|<- rank 1 ->|<- rank 2 ->|<- rank 3 ->|
 *
 * The flat buffers of all units (stages 0-2), and their shards, are laid end to end in unit order.
 *
 * In a unit with matrices in fp8, the other tensors come first. They are small, and all in rank 0's shard, so that the
 * two kinds can be gathered separately. This depends on the declaration alone, not on whether matrices are gathered in
 * fp8.
 *
 *     | others ..pad| matrix 0 | matrix 1 ..pad| matrix 2 ..pad|...pad|
 *     |<-- rank 0 -->|<--- rank 1 --->|<--- rank 2 --->|<-- rank 3 -->|
 *
 * A unit's frozen tensors have a flat buffer of their own, laid out and cut into shards in the same way, and end to end
 * with those of the other units. Nothing of it has a gradient or optimizer state. So all numbers of elements here,
 * unless they say frozen, are of trained tensors alone. A frozen tensor in fp8 takes the room of half as many elements,
 * which are bf16's: whatever moves frozen tensors moves its bytes, too.
 */
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H

#include "zero.h"
#include "zero/plan/declaration.h"

/* ---- stage ---- */
/* The four stages as one table: what a rank holds completely and what it holds a shard of.
 *
 * The engine reads these columns and never asks for the stage's number. */

typedef struct zero_stage {
    bool shard_state;  /* master weights, m, v: this rank's shard only */
    bool shard_grads;  /* full gradients are in unsharded buffers, from acquire to grad_ready */
    bool shard_params; /* full parameters are in unsharded buffers, from acquire to release */

    /* Derived from these, the configuration and the world size. */
    bool accumulate_locally;     /* micro-steps add up in the full gradient, in fp32, and are reduced once per step */
    bool reduces_once;           /* a step; else the sums of earlier micro-steps are added to */
    zero_dtype_t grad_dtype;     /* of full gradients: the wire dtype */
    bool reduced_in_place;       /* reduced gradients replace this rank's slice of the full ones, which are fp32 */
    bool reduced_grads_are_full; /* there is room for every rank's slice: in place, or gathered because state is not
                                    sharded */
} zero_stage_t;

/* Returns the row for a configuration, with its derived columns. config->stage must be 0..3. */
zero_stage_t zero_stage_get(const zero_config_t *config, int world_size);

/* ---- layout ---- */

/* 128 bytes of bf16: an alignment that suits vector loads, cuBLASLt and copy engines. */
#define ZERO_ALIGN_ELEMS 64

/* The same for units with matrices in fp8, so that these have 128 bytes in 1 byte an element, too. */
#define ZERO_FP8_ALIGN_ELEMS 128

/* A matrix in fp8: a tensor or a run of packed ones. */
typedef struct zero_fp8_matrix {
    zero_unit_t unit;
    uint64_t begin, end; /* in the unit's flat buffer, in elements */
} zero_fp8_matrix_t;

typedef struct zero_unit_layout {
    uint64_t flat_elems; /* padded: shard_elems * world_size */
    uint64_t shard_elems;
    uint64_t flat_offset;  /* of this unit among all flat buffers, in elements */
    uint64_t shard_offset; /* of this unit among all shards */
    int buffer_class;      /* units of a class take turns in unsharded buffers (zero_layout_buffer_elems) */

    int first_matrix, n_matrices; /* in fp8 */
    /* Of units with matrices in fp8, in elements: what their other tensors occupy, from the beginning of the flat
     * buffer; and the flat buffer, shard and others of this unit among those of all such units. */
    uint64_t others_elems, fp8_flat_offset, fp8_shard_offset, others_offset;

    /* The flat buffer of frozen tensors: its elements, its place among those of all units, and the same of shards. */
    uint64_t frozen_flat_elems, frozen_shard_elems, frozen_flat_offset, frozen_shard_offset;
} zero_unit_layout_t;

typedef struct zero_layout {
    int world_size;
    int n_units, n_tensors;
    int n_buffer_classes;
    zero_unit_layout_t *units;
    uint64_t *buffer_elems;        /* by buffer class */
    uint64_t *buffer_others_elems; /* by buffer class: the largest others_elems */
    uint64_t *buffer_frozen_elems; /* by buffer class: the largest frozen_flat_elems */
    uint64_t *tensor_offsets;      /* of each tensor in its flat buffer, in elements */
    zero_tensor_t *order;          /* all tensors, those of a unit by ascending offset, frozen ones last */
    uint64_t total_flat_elems, total_shard_elems;
    uint64_t total_frozen_flat_elems, total_frozen_shard_elems;

    int n_matrices; /* in fp8, in the order of units and offsets */
    zero_fp8_matrix_t *matrices;
    int *matrix_of; /* by tensor; -1: none */
    uint64_t total_fp8_flat_elems, total_fp8_shard_elems, total_others_elems;
    int n_frozen_matrices; /* in fp8, as declared */
    int *frozen_matrix_of; /* by tensor; -1: none */
} zero_layout_t;

zero_status_t zero_layout_create(const zero_model_t *model, int world_size, zero_layout_t *layout);
void zero_layout_destroy(zero_layout_t *layout);

/* Returns the elements of a buffer of the class: those of its largest unit. Its units are similar in size, and none has
 * a tensor where another has padding, so padding stays zero whichever unit had the buffer before. Transformer blocks
 * are one class; an embedding and a head of its own mostly share another. */
uint64_t zero_layout_buffer_elems(const zero_layout_t *layout, int buffer_class);

/* Returns whether a unit has trained matrices in fp8. */
static inline bool zero_layout_has_fp8(const zero_layout_t *layout, zero_unit_t unit)
{
    return layout->units[unit].n_matrices > 0;
}

/* Of a frozen tensor in fp8, in the room of an element. */
#define ZERO_FP8_IN_ELEMENT 2

/* The part of a tensor that is in elements [begin, end) of its flat buffer; n_elems is 0 if there is none. */
typedef struct zero_span {
    uint64_t first;       /* element of the tensor */
    uint64_t flat_offset; /* of that element */
    uint64_t n_elems;
} zero_span_t;
zero_span_t zero_layout_span(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t tensor,
                             uint64_t begin, uint64_t end);

#endif
