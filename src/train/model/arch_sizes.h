/* arch_sizes.h - the extents of a pass's arrays and of a block's matrices. */
#ifndef ZEROTRAIN_ARCH_SIZES_H
#define ZEROTRAIN_ARCH_SIZES_H

#include "train/model/model_state.h"

/* In elements: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size. */
typedef struct arch_sizes {
    size_t R, B, T, C, F, V, heads, kv_heads, head_dim;
    size_t A;             /* all heads side by side: heads * head_dim, often C */
    size_t qkv;           /* the q, k and v heads side by side */
    size_t mlp;           /* what the MLP's first product gives: F, or 2 F with a gate */
    size_t element_bytes; /* of an activation */
} arch_sizes_t;

arch_sizes_t arch_sizes(const model_t *model);         /* of the current pass */
arch_sizes_t arch_largest_sizes(const model_t *model); /* of a training pass, the largest there is */

/* A block's matrices in forward order: q, k and v; attention's output; the MLP's first product and its second. */
typedef enum arch_matrix { ARCH_QKV, ARCH_ATTENTION, ARCH_MLP_IN, ARCH_MLP_OUT, ARCH_N_MATRICES } arch_matrix_t;

typedef struct arch_extents {
    size_t n_in, n_out;
} arch_extents_t;

arch_extents_t arch_extents(const model_t *model, arch_matrix_t matrix);

/* One of a block's linear layers; the block is acquired. */
typedef struct arch_linear {
    int layer;
    arch_matrix_t matrix;
    zero_tensor_t weight; /* where the matrix begins */
    /* Whether what writes the input, and what writes the output's gradient, is given a context of fp8_recording. */
    bool x_is_recorded, dy_is_recorded;
} arch_linear_t;

#endif
