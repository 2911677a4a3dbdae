/* layout.h - where every tensor lies in its unit's flat buffer, and which slice of it each rank owns. Pure arithmetic.
 *
 * A unit's tensors stand one after another in declared order, each starting at a multiple of ZERO_ALIGN_ELEMS unless it
 * is packed. The whole is padded so that it splits into world_size shards of equal size, each a multiple of
 * ZERO_ALIGN_ELEMS. Rank r owns flat elements [r * shard_elems, (r + 1) * shard_elems). Padding is never written by
 * gradients and stays zero.
 *
 *     | tensor 0 ..pad| tensor 1 ......pad| tensor 2 .pad|...pad|
 *     |<- rank 0 ->|<- rank 1 ->|<- rank 2 ->|<- rank 3 ->|
 *
 * Over all units, flats (stages 0-2) and shards are laid end to end in unit order.
 */
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H

#include "zero/plan/declaration.h"

/* 128 bytes of bf16: vector loads, cuBLASLt and copy engines all like it. */
#define ZERO_ALIGN_ELEMS 64

typedef struct zero_unit_layout {
    uint64_t flat_elems; /* padded: shard_elems * world_size */
    uint64_t shard_elems;
    uint64_t flat_offset;  /* of this unit among all flats, in elements */
    uint64_t shard_offset; /* of this unit among all shards */
    int buffer_class;      /* units of a class can take turns in slots, see zero_layout_buffer_elems */
} zero_unit_layout_t;

typedef struct zero_layout {
    int world_size;
    int n_units, n_tensors;
    int n_buffer_classes;
    zero_unit_layout_t *units;
    uint64_t *slot_elems;     /* by slot class */
    uint64_t *tensor_offsets; /* of each tensor in its unit's flat, in elements */
    uint64_t total_flat_elems, total_shard_elems;
} zero_layout_t;

/* ZERO_ERROR_OVERFLOW where a size does not fit. */
zero_status_t zero_layout_create(const zero_model_t *model, int world_size, zero_layout_t *layout);
void zero_layout_destroy(zero_layout_t *layout);

/* Elements of a slot of the class: as many as its largest unit has. Its units are alike in size, and none has a tensor
 * where another has padding: so padding stays zero whoever was there before. Transformer blocks are one class; so are
 * an embedding and a head of its own, mostly. */
uint64_t zero_layout_buffer_elems(const zero_layout_t *layout, int buffer_class);

/* The part of a tensor inside flat elements [begin, end) of its unit: its first element there, counted in the tensor,
 * and how many; n_elems 0 where they do not meet. */
typedef struct zero_span {
    uint64_t first;       /* in the tensor */
    uint64_t flat_offset; /* in the unit's flat */
    uint64_t n_elems;
} zero_span_t;
zero_span_t zero_layout_span(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t tensor,
                             uint64_t begin, uint64_t end);

#endif
