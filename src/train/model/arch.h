/* arch.h - what GPT-2 and Llama share: declaring a tensor, a layer's activations, embedding and output head,
 * attention, linear layers. For gpt2.c, llama.c and model.c alone.
 */
#ifndef ZEROTRAIN_ARCH_H
#define ZEROTRAIN_ARCH_H

#include "train/model/model_state.h"

/* ---- arch sizes ---- */
/* The extents of a pass's arrays and of a block's matrices. */

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

/* ---- unit tensors ---- */
/* What the engine holds of the acquired unit's tensors, for the functions that compute a unit. */

/* Return what the engine holds of the acquired unit's tensor, for an architecture's compute functions. While a CUDA
 * graph is captured, they also note the answer. */
zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor);
zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor); /* data is NULL: it is in bf16 */
zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor);

/* ---- arch ---- */

/* ---- declaration ---- */

/* A matrix [rows, columns], which decays; with rows 0 a vector [columns], which does not. */
typedef struct arch_tensor {
    const char *name;
    int64_t rows, columns;
    zero_init_t init;
    float std;   /* for ZERO_INIT_NORMAL */
    bool packed; /* one matrix with the tensor before it */
} arch_tensor_t;

/* Adds a tensor to model->declaration. */
zero_status_t arch_declare(model_t *model, zero_unit_t unit, const arch_tensor_t *spec, zero_tensor_t *tensor);

/* Standard deviations of GPT-2's initialization: 0.02, and less for the matrices that end one of a layer's 2 residual
 * branches. */
#define ARCH_STD 0.02f
float arch_residual_std(const model_t *model);

/* ---- activations ---- */

/* One layer's activations. They have the device's activation dtype, except for the fp32 statistics. */
struct layer_activations {
    void *x;                      /* [R, C] the block's input; of the first blocks it may wait in the model's stash */
    void *normed1;                /* [R, C] */
    void *qkv;                    /* [R, qkv] */
    void *normed_qkv;             /* [R, qkv] with heads normalized and rotated; NULL if qkv itself is rotated */
    void *attention;              /* [R, A] heads side by side */
    void *mid;                    /* [R, C] */
    void *normed2;                /* [R, C] */
    void *mlp;                    /* [R, mlp] before the activation function */
    void *hidden;                 /* [R, F] after it */
    float *mean1, *mean2;         /* [R]; NULL: RMSNorm has none */
    float *rstd1, *rstd2;         /* [R] */
    void *branch1, *branch2;      /* [R, C] what attention and the MLP give, if that is normalized */
    float *out_rstd1, *out_rstd2; /* [R] of those norms */
    float *logsumexp;             /* [B, heads, T] */
    /* If ranks share a sequence: q, k and v of this rank's heads [B, T, ...], and what attention gives. logsumexp is
     * theirs. */
    void *heads_qkv, *heads_out;
    bool mlp_is_tile, hidden_is_tile; /* they have room for a tile's rows alone */
};

/* Which activations a layer has that not all architectures have. */
typedef struct arch_layer_parts {
    bool normed_inputs; /* normed1 and normed2, with their statistics */
    bool normed_qkv;
    bool branches; /* branch1 and branch2, with out_rstd1 and out_rstd2 */
} arch_layer_parts_t;

/* Allocates model->layers as options_block_recompute asks. What is recomputed is in one set of buffers that all layers
 * share. */
void arch_allocate_layers(const model_t *model, activations_t *activations, arch_layer_parts_t parts);

/* What every architecture keeps in model->arch, first. The rest is its own. Buffers that are never in use together may
 * share an address. */
typedef struct arch_common {
    zero_tensor_t tokens;              /* [V, C] */
    zero_tensor_t head;                /* [V, C] the output head's matrix; tied: tokens */
    zero_tensor_t positions;           /* [P, C], if ops->learns_positions */
    void *x_final;                     /* [R, C] x_L */
    void *normed;                      /* [R, C] the output of the last norm */
    void *addend;                      /* [R, C] the pending addition */
    void *d_x;                         /* [R, C] gradient of the residual stream */
    void *d_c, *d_qkv, *d_f;           /* [R, C] or [R, A], [R, qkv], [R or a tile, F] gradients within a block */
    float *tile_sums[ARCH_N_MATRICES]; /* of a matrix' gradient and its bias's over tiles; NULL: there are none */
} arch_common_t;

static inline arch_common_t *arch_common(const model_t *model)
{
    return model->arch;
}

/* ---- compute ---- */

#define ARCH_NO_WEIGHT ((zero_weight_t){0})
#define ARCH_NO_GRAD ((zero_grad_t){0})

/* Compute a unit, for the architectures' tables. */
zero_status_t arch_forward(model_t *model, zero_unit_t unit);
zero_status_t arch_backward(model_t *model, zero_unit_t unit);

/* layers[layer].attention = causal attention of qkv[R, qkv], whose q and k are rotated. In a pass that continues a
 * text, also to the text's earlier positions. */
zero_status_t arch_attention(model_t *model, int layer, const void *qkv);
/* The same when backward runs the block again: only what the layer has not kept is computed. */
zero_status_t arch_attention_again(model_t *model, int layer, const void *qkv);
/* d_qkv[R, qkv], from the gradient of layers[layer].attention and what arch_attention was given. */
zero_status_t arch_attention_backward(model_t *model, int layer, void *d_qkv, const void *d_out, const void *qkv);
/* Returns the sizes of the pass's attention. */
zero_attention_shape_t arch_attention_shape(const model_t *model);
/* Returns what the pass's positions do not see in a layer, and where their documents begin: if ranks share a sequence,
 * for all of its positions. */
zero_mask_t arch_mask(const model_t *model, int layer);
/* Returns where the documents of the pass's rows begin, counted from this rank's first position; NULL: at each
 * sequence's first row. */
const int32_t *arch_starts(const model_t *model);

/* normed = the norm of the residual stream and its pending addition, as the output head reads it */
zero_status_t arch_final_norm(model_t *model, const void *residual);

/* x[R, C] *= factor, unless that is 1 */
zero_status_t arch_scale(model_t *model, void *x, float factor);

/* ---- tiles ---- */
/* A long pass computes its MLP a tile of rows at a time, so that what lies between its matrices is no longer than a
 * tile. Gradients of the matrices are added over tiles in fp32, and rounded once.
 *
 *     for (size_t i = 0; i < arch_n_tiles(model); i++) {
 *         arch_begin_tile(model, i);        the linear layers take its rows, x, y from arch_row on
 *         ...
 *     }
 *     arch_end_tiles(model); */
void *arch_allocate_d_f(const model_t *model, activations_t *activations); /* with the sums of its matrices */
size_t arch_n_tiles(const model_t *model);                                 /* of the pass: 1 unless it is long */
void arch_begin_tile(model_t *model, size_t i);
void arch_end_tiles(model_t *model);
size_t arch_n_rows(const model_t *model); /* of the tile, else R */
/* Returns where the tile's rows are of a buffer [R, width], or of one that has room for a tile alone. */
void *arch_row(const model_t *model, void *data, size_t width, bool is_tile);

/* y[R, n_out] = x[R, n_in] W + bias, in the architecture's layout of W. These three include the layer's adapters, if
 * it has any: x W is then x (W + scale A^T B^T), and their gradients take the place of W's. */
zero_status_t arch_linear(model_t *model, arch_linear_t at, void *y, const void *x, zero_weight_t bias);
/* dx[R, n_in] = dy[R, n_out] W^T. With adapters it also writes the gradients of their B: it is called once in a
 * micro-step, behind arch_linear of the same x. */
zero_status_t arch_linear_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy);
/* dW = x^T dy and, unless it is ARCH_NO_GRAD, dbias = the column sums of dy. Comes after arch_linear_backward_input of
 * the same layer, without another layer's in between. If fp8_keeps_inputs, x is not read. */
zero_status_t arch_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                          const void *dy);

/* ---- rotation ---- */

#define ARCH_MAX_DIVISORS 2048
/* Reads longrope's divisors, one a pair. Returns how many there are. */
size_t arch_rope_divisors(const model_options_t *model, float divisors[ARCH_MAX_DIVISORS]);
/* Returns whether a layer's heads are rotated, or its q scaled: both are done at once. */
bool arch_turns_heads(const model_t *model, int layer);
/* Returns how the heads are rotated. divisors: longrope's, which outlive it. */
zero_rope_t arch_rotation(const model_t *model, int layer, const float *divisors);

/* ---- the architectures ---- */

extern const model_ops_t gpt2_ops, llama_ops;

#endif
