/* llama.c - the Llama family as in Hugging Face: pre-RMSNorm, rotary positions, SwiGLU, key/value heads shared by query
 * heads (Touvron et al. 2023, arXiv:2302.13971). Its members differ in what TRAITS and the options say: Mistral is a
 * Llama; Qwen2 has biases of q, k and v; Qwen3 normalizes every q and k head before it is rotated. The head is a matrix
 * of its own, or the token embedding if `tied`.
 *
 * Shapes: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size, L layers; A = all heads
 * side by side, heads * head_dim; Q = the q, k and v heads, (heads + 2 kv_heads) * head_dim. Matrices have HF's layout:
 * nn.Linear weights [out, in].
 *
 *     x_0      = embed_tokens[token]                                        [R, C]
 *     mid_l    = x_l + attention(rope(RMS1(x_l) W_qkv^T + b_qkv)) W_o^T     [R, C]
 *     x_l+1    = mid_l + (silu(n W_gate^T) * (n W_up^T)) W_down^T,  n = RMS2(mid_l)
 *     logits   = RMSf(x_L) lm_head^T                                        [R, V], never held in full
 *
 * HF has separate tensors for q, k and v, and for gate and up. Here they are packed one after another: one matrix each,
 * W_qkv [Q, C] and W_gate_up [2F, C], and one product each, from the first tensor's pointer. So are the biases and all
 * of their gradients.
 *
 * A block leaves its second addition pending in `addend`; the next norm does it, fused.
 *
 * What is kept of a block from forward to backward depends on options_block_recompute. none: every input that backward
 * needs. light: all but the outputs of norms and SwiGLU, which their own backward recomputes on the way. full: only x_l
 * (C per row and layer); backward runs the block's forward again. What is not kept lives in one set of buffers that all
 * layers share. The results have the same bits.
 */
#include <stdio.h>

#include "train/model/arch.h"
#include "train/model/fp8.h"
#include "train/report/report.h"

typedef struct block_tensors {
    zero_tensor_t norm1;                  /* [C] */
    zero_tensor_t q, k, v;                /* packed: [Q, C] from q on */
    zero_tensor_t q_bias, k_bias, v_bias; /* packed: [Q] from q_bias on; only with TRAITS[].qkv_bias */
    zero_tensor_t q_norm, k_norm;         /* [head_dim]; only with TRAITS[].head_norms */
    zero_tensor_t attention;              /* [C, A] */
    zero_tensor_t norm2;                  /* [C] */
    zero_tensor_t gate, up;               /* packed: [2F, C] from gate on */
    zero_tensor_t down;                   /* [C, F] */
} block_tensors_t;

/* What makes a member of the family. */
typedef struct traits {
    bool qkv_bias;
    bool head_norms; /* RMSNorm of every q and k head */
} traits_t;

static const traits_t TRAITS[] = {
    [ARCH_LLAMA] = {.qkv_bias = false},
    [ARCH_MISTRAL] = {.qkv_bias = false},
    [ARCH_QWEN2] = {.qkv_bias = true},
    [ARCH_QWEN3] = {.head_norms = true},
};

static const traits_t *traits_of(const model_t *model)
{
    return &TRAITS[model->options->model.arch];
}

typedef struct llama {
    arch_common_t common;
    zero_tensor_t norm;       /* [C] */
    float *rstd;              /* [R] */
    block_tensors_t blocks[]; /* [L] */
} llama_t;

/* ---- declaration ---- */

static zero_status_t declare_block(model_t *model, int layer, block_tensors_t *t)
{
    const options_t *o = model->options;
    int64_t C = o->model.dim, F = o->model.ffn_dim, A = options_head_dim(&o->model) * o->model.heads;
    int64_t kv = options_head_dim(&o->model) * o->model.kv_heads;
    bool has_bias = traits_of(model)->qkv_bias, has_head_norms = traits_of(model)->head_norms;
    float residual_std = arch_residual_std(model);
    const struct {
        const char *suffix;
        int64_t rows, columns;
        zero_init_t init;
        float std;
        bool packed;
        zero_tensor_t *tensor;
        bool is_absent;
    } tensors[] = {
        {"input_layernorm.weight", 0, C, ZERO_INIT_ONES, 0, false, &t->norm1, false},
        {"self_attn.q_proj.weight", A, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->q, false},
        {"self_attn.k_proj.weight", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->k, false},
        {"self_attn.v_proj.weight", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->v, false},
        {"self_attn.q_proj.bias", 0, A, ZERO_INIT_ZEROS, 0, false, &t->q_bias, !has_bias},
        {"self_attn.k_proj.bias", 0, kv, ZERO_INIT_ZEROS, 0, true, &t->k_bias, !has_bias},
        {"self_attn.v_proj.bias", 0, kv, ZERO_INIT_ZEROS, 0, true, &t->v_bias, !has_bias},
        {"self_attn.q_norm.weight", 0, options_head_dim(&o->model), ZERO_INIT_ONES, 0, false, &t->q_norm,
         !has_head_norms},
        {"self_attn.k_norm.weight", 0, options_head_dim(&o->model), ZERO_INIT_ONES, 0, false, &t->k_norm,
         !has_head_norms},
        {"self_attn.o_proj.weight", C, A, ZERO_INIT_NORMAL, residual_std, false, &t->attention, false},
        {"post_attention_layernorm.weight", 0, C, ZERO_INIT_ONES, 0, false, &t->norm2, false},
        {"mlp.gate_proj.weight", F, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->gate, false},
        {"mlp.up_proj.weight", F, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->up, false},
        {"mlp.down_proj.weight", C, F, ZERO_INIT_NORMAL, residual_std, false, &t->down, false},
    };
    char name[ZERO_MAX_NAME];
    zero_unit_t unit;
    snprintf(name, sizeof name, "model.layers.%d", layer);
    ZERO_TRY(zero_model_add_unit(model->declaration, name, &unit));
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        if (tensors[i].is_absent)
            continue;
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, tensors[i].suffix);
        arch_tensor_t spec = {name,           tensors[i].rows,  tensors[i].columns, tensors[i].init,
                              tensors[i].std, tensors[i].packed};
        ZERO_TRY(arch_declare(model, unit, &spec, tensors[i].tensor));
    }
    return ZERO_OK;
}

static zero_status_t declare(model_t *model)
{
    llama_t *g = model->arch;
    int64_t L = model->options->model.layers, C = model->options->model.dim, V = model->options->model.vocab_size;
    zero_unit_t embed, head;
    const arch_tensor_t embed_spec = {"model.embed_tokens.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    const arch_tensor_t norm_spec = {"model.norm.weight", 0, C, ZERO_INIT_ONES, 0, false};
    const arch_tensor_t head_spec = {"lm_head.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    ZERO_TRY(zero_model_add_unit(model->declaration, "model.embeddings", &embed));
    ZERO_TRY(arch_declare(model, embed, &embed_spec, &g->common.tokens));
    ZERO_TRY(zero_model_set_unshard_in_backward(model->declaration, embed,
                                                false)); /* a look-up: it writes gradients alone */
    for (int l = 0; l < L; l++)
        ZERO_TRY(declare_block(model, l, &g->blocks[l]));
    ZERO_TRY(zero_model_add_unit(model->declaration, "model.head", &head));
    ZERO_TRY(arch_declare(model, head, &norm_spec, &g->norm));
    g->common.head = g->common.tokens;
    return model->options->model.tied ? zero_model_share_tensor(model->declaration, head, g->common.tokens)
                                      : arch_declare(model, head, &head_spec, &g->common.head);
}

/* The token table, unless it is also the head, which multiplies by it. */
static int64_t n_lookup_params(const model_t *model)
{
    return model->options->model.tied ? 0 : model->options->model.vocab_size * model->options->model.dim;
}

/* ---- activations ---- */

static void allocate(const model_t *model, activations_t *a)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_largest_sizes(model);
    arch_allocate_layers(model, a, traits_of(model)->head_norms);
    g->common.x_final = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.normed = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->rstd = activations_alloc(a, s.R, sizeof(float));
    g->common.addend = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.d_x = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.d_c = activations_alloc(a, s.R * (s.A > s.C ? s.A : s.C), s.element_bytes);
    g->common.d_qkv = activations_alloc(a, s.R * s.qkv, s.element_bytes);
    g->common.d_f = activations_alloc(a, s.R * s.F, s.element_bytes);
}

/* ---- forward ---- */

static arch_linear_t matrix_of(const model_t *model, int l, arch_matrix_t matrix)
{
    const block_tensors_t *t = &((const llama_t *)model->arch)->blocks[l];
    const zero_tensor_t weights[] = {
        [ARCH_QKV] = t->q, [ARCH_ATTENTION] = t->attention, [ARCH_MLP_IN] = t->gate, [ARCH_MLP_OUT] = t->down};
    return (arch_linear_t){.layer = l,
                           .matrix = matrix,
                           .weight = weights[matrix],
                           .x_is_recorded = matrix != ARCH_ATTENTION,
                           .dy_is_recorded = matrix != ARCH_QKV || !traits_of(model)->head_norms};
}

/* What is added to q, k and v: nothing unless the family has biases. */
static zero_weight_t qkv_bias(const model_t *model, const block_tensors_t *t)
{
    return traits_of(model)->qkv_bias ? model_weight(model, t->q_bias) : ARCH_NO_WEIGHT;
}

static zero_grad_t qkv_bias_grad(const model_t *model, const block_tensors_t *t)
{
    return traits_of(model)->qkv_bias ? model_grad(model, t->q_bias) : ARCH_NO_GRAD;
}

/* y = x W^T */
static zero_status_t linear(model_t *model, int l, arch_matrix_t matrix, void *y, const void *x)
{
    return arch_linear(model, matrix_of(model, l, matrix), y, x, ARCH_NO_WEIGHT);
}

/* residual_out = residual + addend (NULL: none); y = RMSNorm(residual_out) */
static zero_status_t norm(model_t *model, zero_model_context_t ctx, void *y, float *rstd, void *residual_out,
                          const void *residual, const void *addend, zero_tensor_t weight)
{
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->rmsnorm(&ctx, y, rstd, residual_out, residual, addend, model_weight(model, weight),
                                   (float)model->options->model.norm_eps, s.R, s.C);
}

static zero_status_t rope(model_t *model, zero_model_context_t ctx, void *qkv, bool inverse)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const options_t *o = model->options;
    const zero_rope_t frequencies = {.theta = (float)o->model.rope_theta,
                                     .factor = (float)o->model.rope_factor,
                                     .low_freq = (float)o->model.rope_low_freq,
                                     .high_freq = (float)o->model.rope_high_freq,
                                     .original = (float)o->model.rope_original,
                                     .starts = arch_mask(model).starts};
    return model->kernels->rope(&ctx, qkv, inverse, &frequencies, &shape);
}

/* Turns the product's q, k and v into what attention reads: heads normalized, if the family does that, and rotated.
 * Without head norms this happens in place. With them it has a place of its own, since backward needs the product. */
static zero_status_t normalize_and_rotate(model_t *model, int l)
{
    const block_tensors_t *t = &((const llama_t *)model->arch)->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    if (!traits_of(model)->head_norms)
        return rope(model, model->ctx, a->qkv, false);
    ZERO_TRY(model->kernels->head_norm(&model->ctx, a->normed_qkv, a->qkv, model_weight(model, t->q_norm),
                                       model_weight(model, t->k_norm), (float)model->options->model.norm_eps, s.R,
                                       s.heads, s.kv_heads, s.head_dim));
    return rope(model, model->ctx, a->normed_qkv, false);
}

/* Returns the q, k and v that attention reads. */
static const void *attention_input(const model_t *model, int l)
{
    return traits_of(model)->head_norms ? model->layers[l].normed_qkv : model->layers[l].qkv;
}

/* d_qkv, the gradient of what attention reads, becomes that of the product's q, k and v. */
static zero_status_t normalize_and_rotate_backward(model_t *model, int l)
{
    llama_t *g = model->arch;
    const block_tensors_t *t = &g->blocks[l];
    arch_sizes_t s = arch_sizes(model);
    if (!traits_of(model)->head_norms)
        return rope(model, fp8_recording(model, l, ARCH_QKV, FP8_DY), g->common.d_qkv, true);
    ZERO_TRY(rope(model, model->ctx, g->common.d_qkv, true));
    return model->kernels->head_norm_backward(
        &model->ctx, g->common.d_qkv, model_grad(model, t->q_norm), model_grad(model, t->k_norm), model->layers[l].qkv,
        model_weight(model, t->q_norm), model_weight(model, t->k_norm), (float)model->options->model.norm_eps, s.R,
        s.heads, s.kv_heads, s.head_dim);
}

/* Computes a block up to the input of its last matrix. x = residual + addend; if x is there already, they are x and
 * NULL. */
static zero_status_t block_inner(model_t *model, int l, const void *residual, const void *addend)
{
    llama_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(
        norm(model, fp8_recording(model, l, ARCH_QKV, FP8_X), a->normed1, a->rstd1, a->x, residual, addend, t->norm1));
    ZERO_TRY(arch_linear(model, matrix_of(model, l, ARCH_QKV), a->qkv, a->normed1, qkv_bias(model, t)));
    ZERO_TRY(normalize_and_rotate(model, l));
    ZERO_TRY(arch_attention(model, l, attention_input(model, l)));
    ZERO_TRY(linear(model, l, ARCH_ATTENTION, g->common.addend, a->attention));
    ZERO_TRY(norm(model, fp8_recording(model, l, ARCH_MLP_IN, FP8_X), a->normed2, a->rstd2, a->mid, a->x,
                  g->common.addend, t->norm2));
    ZERO_TRY(linear(model, l, ARCH_MLP_IN, a->mlp, a->normed2));
    zero_model_context_t ctx = fp8_recording(model, l, ARCH_MLP_OUT, FP8_X);
    return k->swiglu(&ctx, a->hidden, a->mlp, s.R, s.F);
}

static zero_status_t block_forward(model_t *model, int l, const void *residual, const void *addend)
{
    llama_t *g = model->arch;
    ZERO_TRY(block_inner(model, l, residual, addend));
    return linear(model, l, ARCH_MLP_OUT, g->common.addend, model->layers[l].hidden);
}

static zero_status_t final_norm(model_t *model, const void *residual)
{
    llama_t *g = model->arch;
    return norm(model, model->ctx, g->common.normed, g->rstd, g->common.x_final, residual, g->common.addend, g->norm);
}

/* ---- backward ---- */

/* dx = dy W */
static zero_status_t input_gradient(model_t *model, int l, arch_matrix_t matrix, void *dx, const void *dy)
{
    return arch_linear_backward_input(model, matrix_of(model, l, matrix), dx, dy);
}

static zero_status_t weight_gradient(model_t *model, int l, arch_matrix_t matrix, const void *x, const void *dy)
{
    return arch_linear_backward_weight(model, matrix_of(model, l, matrix), ARCH_NO_GRAD, x, dy);
}

/* d_x += the gradient of dy through the norm. If `y` is not NULL, the norm's output is recomputed there. */
static zero_status_t norm_backward(model_t *model, zero_model_context_t ctx, void *y, const void *dy,
                                   const void *residual, const float *rstd, zero_tensor_t weight)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->rmsnorm_backward(&ctx, g->common.d_x, model_grad(model, weight), y, dy, residual, rstd,
                                            model_weight(model, weight), s.R, s.C);
}

static zero_status_t final_norm_backward(model_t *model)
{
    llama_t *g = model->arch;
    return norm_backward(model, fp8_recording_d_x(model, (int)model->options->model.layers), NULL, g->common.d_c,
                         g->common.x_final, g->rstd, g->norm);
}

/* With recompute = light, the input of a matrix is recomputed by the backward of what made it. So each matrix computes
 * the gradient of its input first, and its own gradient once the input is there. */
static zero_status_t block_backward(model_t *model, int l)
{
    llama_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    options_recompute_t recompute = options_block_recompute(&model->options->model, l);
    bool light = recompute == RECOMPUTE_LIGHT;
    if (recompute == RECOMPUTE_FULL)
        ZERO_TRY(block_inner(model, l, a->x, NULL));
    else if (traits_of(model)->head_norms && light)
        ZERO_TRY(normalize_and_rotate(model, l)); /* the layers after it have overwritten normed_qkv */

    /* Here d_x is the gradient of x_l+1, and so of both terms of the sum: mid and the MLP's output. a->mlp becomes its
     * own gradient. */
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_OUT, g->common.d_f, g->common.d_x));
    zero_model_context_t ctx = fp8_recording(model, l, ARCH_MLP_IN, FP8_DY);
    ZERO_TRY(k->swiglu_backward(&ctx, a->mlp, light ? a->hidden : NULL, g->common.d_f, a->mlp, s.R, s.F));
    ZERO_TRY(weight_gradient(model, l, ARCH_MLP_OUT, a->hidden, g->common.d_x));
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_IN, g->common.d_c, a->mlp));
    ZERO_TRY(norm_backward(model, fp8_recording(model, l, ARCH_ATTENTION, FP8_DY), light ? a->normed2 : NULL,
                           g->common.d_c, a->mid, a->rstd2, t->norm2));
    ZERO_TRY(weight_gradient(model, l, ARCH_MLP_IN, a->normed2, a->mlp));

    /* Here d_x is the gradient of mid, and so of both of its terms. */
    ZERO_TRY(input_gradient(model, l, ARCH_ATTENTION, g->common.d_c, g->common.d_x));
    ZERO_TRY(weight_gradient(model, l, ARCH_ATTENTION, a->attention, g->common.d_x));
    ZERO_TRY(arch_attention_backward(model, l, g->common.d_qkv, g->common.d_c, attention_input(model, l)));
    ZERO_TRY(normalize_and_rotate_backward(model, l));
    ZERO_TRY(input_gradient(model, l, ARCH_QKV, g->common.d_c, g->common.d_qkv));
    ZERO_TRY(norm_backward(model, fp8_recording_d_x(model, l), light ? a->normed1 : NULL, g->common.d_c, a->x, a->rstd1,
                           t->norm1));
    return arch_linear_backward_weight(model, matrix_of(model, l, ARCH_QKV), qkv_bias_grad(model, t), a->normed1,
                                       g->common.d_qkv);
}

const model_ops_t llama_ops = {
    .name = "Llama",
    .bytes = sizeof(llama_t),
    .block_bytes = sizeof(block_tensors_t),
    .mlp_inputs = 2,
    .layout = ZERO_LINEAR_OUT_IN,
    .norms_keep_means = false,
    .learns_positions = false,
    .shares_normed = false,
    .declare = declare,
    .n_lookup_params = n_lookup_params,
    .allocate = allocate,
    .forward = arch_forward,
    .backward = arch_backward,
    .block_forward = block_forward,
    .block_backward = block_backward,
    .final_norm = final_norm,
    .final_norm_backward = final_norm_backward,
};
