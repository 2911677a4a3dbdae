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
 */
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H

#include "zero/plan/declaration.h"

/* 128 bytes of bf16: an alignment that suits vector loads, cuBLASLt and copy engines. */
#define ZERO_ALIGN_ELEMS 64

typedef struct zero_unit_layout {
    uint64_t flat_elems; /* padded: shard_elems * world_size */
    uint64_t shard_elems;
    uint64_t flat_offset;  /* of this unit among all flat buffers, in elements */
    uint64_t shard_offset; /* of this unit among all shards */
    int buffer_class;      /* units of a class take turns in unsharded buffers (zero_layout_buffer_elems) */
} zero_unit_layout_t;

typedef struct zero_layout {
    int world_size;
    int n_units, n_tensors;
    int n_buffer_classes;
    zero_unit_layout_t *units;
    uint64_t *buffer_elems;   /* by buffer class */
    uint64_t *tensor_offsets; /* of each tensor in its unit's flat buffer, in elements */
    uint64_t total_flat_elems, total_shard_elems;
} zero_layout_t;

zero_status_t zero_layout_create(const zero_model_t *model, int world_size, zero_layout_t *layout);
void zero_layout_destroy(zero_layout_t *layout);

/* Returns the elements of a buffer of the class: those of its largest unit. Its units are similar in size, and none has
 * a tensor where another has padding, so padding stays zero whichever unit had the buffer before. Transformer blocks
 * are one class; an embedding and a head of its own mostly share another. */
uint64_t zero_layout_buffer_elems(const zero_layout_t *layout, int buffer_class);

/* The part of a tensor that is in elements [begin, end) of its unit's flat buffer; n_elems is 0 if there is none. */
typedef struct zero_span {
    uint64_t first;       /* element of the tensor */
    uint64_t flat_offset; /* of that element */
    uint64_t n_elems;
} zero_span_t;
zero_span_t zero_layout_span(const zero_layout_t *layout, const zero_model_t *model, zero_tensor_t tensor,
                             uint64_t begin, uint64_t end);

#endif
