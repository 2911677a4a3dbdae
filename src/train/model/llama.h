/* llama.h - what a model of the Llama family consists of: for llama.c, which computes it, and llama_tensors.c, which
 * declares its tensors. Extents are llama.c's.
 */
#ifndef ZEROTRAIN_LLAMA_H
#define ZEROTRAIN_LLAMA_H

#include "train/model/arch.h"
#include "train/options/families.h"

typedef struct llama_block {
    zero_tensor_t norm1, norm2;           /* [C] before attention and the MLP; unless NORMS_BEHIND */
    zero_tensor_t out_norm1, out_norm2;   /* [C] behind them; unless NORMS_BEFORE */
    zero_tensor_t q, k, v;                /* packed: [Q, C] from q on */
    zero_tensor_t q_bias, k_bias, v_bias; /* packed: [Q] from q_bias on; only with qkv_bias */
    zero_tensor_t q_norm, k_norm;         /* [head_dim], or [A] and [kv_heads * head_dim]; only with qk_norm */
    zero_tensor_t attention;              /* [C, A] */
    zero_tensor_t out_bias;               /* [C]; only with out_bias */
    zero_tensor_t gate, up;               /* packed: [2F, C] from gate on */
    zero_tensor_t gate_bias, up_bias;     /* packed: [2F] from gate_bias on; only with mlp_bias, as down_bias */
    zero_tensor_t down;                   /* [C, F] */
    zero_tensor_t down_bias;              /* [C] */
} llama_block_t;

static inline const family_t *traits_of(const model_t *model)
{
    return family_of(&model->options->model);
}

static inline bool normalizes_qk(const model_t *model)
{
    return traits_of(model)->qk_norm != QK_NORM_NONE;
}

static inline bool has_input_norms(const model_t *model)
{
    return traits_of(model)->norms != NORMS_BEHIND;
}

static inline bool has_output_norms(const model_t *model)
{
    return traits_of(model)->norms != NORMS_BEFORE;
}

/* Returns whether the gradient of a branch's product is d_x itself. */
static inline bool adds_branches_as_they_are(const model_t *model)
{
    return !has_output_norms(model) && model->options->model.residual_multiplier == 1.0;
}

typedef struct llama {
    arch_common_t common;
    zero_tensor_t norm;                /* [C] */
    float *rstd;                       /* [R] */
    float divisors[ARCH_MAX_DIVISORS]; /* of longrope */
    void *d_branch;                    /* [R, C] gradient of a branch's product, unless that is d_x */
    llama_block_t blocks[];            /* [L] */
} llama_t;

/* For the architecture's table. */
zero_status_t llama_declare(model_t *model);
int64_t llama_n_lookup_params(const model_t *model);

#endif
