/* sequence.h - a sequence that several ranks share ([train] sequence_ranks = K): which tokens and heads a rank has, and
 * the exchange between the two (Ulysses: Jacobs et al. 2023, arXiv:2309.14509). For model.c, model_passes.c and arch.c.
 *
 * A rank's rows are its part of the tokens: Tp of T positions in each of B sequences. Everything but attention takes a
 * row at a time, and takes these. Before attention ranks exchange q, k and v, so that each has some heads of all T
 * positions; behind it they exchange what attention gives. Backward does both the other way round:
 *
 *     forward    qkv [B, Tp, all heads]  ->  heads_qkv [B, T, own heads]  attention  heads_out [B, T, own heads]
 *                ->  attention [B, Tp, all heads]
 *     backward   d_attention [B, Tp, all] -> d_heads_out [B, T, own]  attention's  d_heads_qkv [B, T, own]
 *                ->  d_qkv [B, Tp, all]
 *
 * If there are more ranks than kv heads, several have the same one. Their gradients of it are added in rank order.
 */
#ifndef ZEROTRAIN_SEQUENCE_H
#define ZEROTRAIN_SEQUENCE_H

#include "train/model/arch.h"

/* Allocates what the exchange needs in addition to activations: rows of indices in host memory, nothing on the device.
 * Leaves model->sequence NULL if K is 1. rank: of the communicator. */
zero_status_t sequence_create(model_t *model, int rank);
void sequence_destroy(model_t *model);

/* Returns whether the pass is shared. One that only computes logits is not: each rank computes all of it. */
bool sequence_is_shared(const model_t *model);
/* Returns this rank's first position, and how many it has: 0 and all if K is 1. */
size_t sequence_begin(const model_t *model);
size_t sequence_len(const model_t *model);

/* Adds the exchange's memory to the model's plan; creates it. */
zero_status_t sequence_plan(const model_t *model, zero_memory_t *memory);
zero_status_t sequence_attach(model_t *model);

/* Allocate what layers share, and what a layer keeps of its own or all share that recompute everything; with_out: also
 * what attention gives, which else is a layer's own all the same (kept). */
void sequence_allocate_shared(const model_t *model, activations_t *activations);
void sequence_allocate_layer(const model_t *model, activations_t *activations, bool with_out,
                             layer_activations_t *layer);
void sequence_allocate_kept(const model_t *model, activations_t *activations, layer_activations_t *layer);

/* Returns where a layer's rows of q, k and v are computed that are exchanged next. */
void *sequence_qkv(const model_t *model);

/* arch_attention, arch_attention_again and arch_attention_backward of a shared pass. */
zero_status_t sequence_attention(model_t *model, int layer, const void *qkv);
zero_status_t sequence_attention_again(model_t *model, int layer, const void *qkv);
zero_status_t sequence_attention_backward(model_t *model, int layer, void *d_qkv, const void *d_out);

/* Returns the largest attention that this rank computes. */
zero_attention_shape_t sequence_attention_shape(const model_t *model, size_t n_batch);

#endif
