/* arch.h - what the architectures do alike: declare a tensor, know the sizes of the pass, end in an output head.
 * Private to gpt2.c and llama.c.
 */
#ifndef ZEROTRAIN_ARCH_H
#define ZEROTRAIN_ARCH_H

#include "train/model/model.h"

/* A matrix [rows, columns], which decays, or with rows 0 a vector [columns], which does not. */
typedef struct arch_tensor {
    const char *name;
    int64_t rows, columns;
    zero_init_t init;
    float std;   /* of ZERO_INIT_NORMAL */
    bool packed; /* one matrix with the tensor before it */
} arch_tensor_t;

/* Units: 0 is the embedding, then come the layers, then the head. */
static inline zero_unit_t arch_layer_unit(int layer)
{
    return layer + 1;
}

zero_status_t arch_declare(model_t *model, zero_unit_t unit, const arch_tensor_t *spec, zero_tensor_t *tensor);

/* Standard deviations of GPT-2's initialisation: 0.02, and less where one of the 2 residual branches of a layer ends.
 */
#define ARCH_STD 0.02f
float arch_residual_std(const model_t *model);

/* In element counts: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size. */
typedef struct arch_sizes {
    size_t R, B, T, C, F, V, heads, kv_heads, head_dim, qkv; /* qkv: width of q, k and v heads side by side */
    size_t element_bytes;                                    /* of an activation */
} arch_sizes_t;

arch_sizes_t arch_sizes(const model_t *model);         /* of the pass at hand */
arch_sizes_t arch_largest_sizes(const model_t *model); /* of a training pass, the largest there is */

/* Loss or logits from the normed residual stream x[R, C] by weight[V, C]; nothing in training, where backward, which
 * comes next, has loss and gradient in one. */
zero_status_t arch_head_forward(model_t *model, const void *x, zero_tensor_t weight);
/* Loss, dx[R, C] and the weight's gradient. */
zero_status_t arch_head_backward(model_t *model, void *dx, const void *x, zero_tensor_t weight);

#endif
