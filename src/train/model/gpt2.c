/* gpt2.c - GPT-2 as in Hugging Face: pre-LayerNorm, learned positions, gelu_new, head tied to the token embedding
 * (Radford et al. 2019).
 *
 * Shapes: B sequences of T positions, R = B * T rows, C = dim, F = ffn_dim, V = vocab_size, L layers. Matrices have
 * HF's layout: Conv1D weights [in, out], the token table [V, C].
 *
 *     x_0      = wte[token] + wpe[position]                                 [R, C]
 *     mid_l    = x_l + attention(LN1(x_l))                                  [R, C]
 *     x_l+1    = mid_l + gelu(LN2(mid_l) W_fc) W_proj                       [R, C]
 *     logits   = LNf(x_L) wte^T                                             [R, V], never held in full
 *
 * A block leaves its second addition pending in `addend`; the next norm does it, fused.
 *
 * What is kept of a block from forward to backward depends on options_block_recompute. none: every input that backward
 * needs (16 C per row and layer if F = 4 C). light: all but the outputs of norms and gelu (10 C), which their own
 * backward recomputes on the way, before the product that needs them. full: only x_l (C); backward runs the block's
 * forward again. What is not kept lives in one set of buffers that all layers share. The results have the same bits.
 *
 * Gradients of biases are column sums of tensors that the backward of a norm or of gelu writes, and are computed there.
 * d_x_sums passes them from one block to the previous one, whose proj_bias gradient they are.
 */
#include <stdio.h>

#include "train/model/arch.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/report/report.h"

typedef struct block_tensors {
    zero_tensor_t ln1_weight, ln1_bias;
    zero_tensor_t qkv_weight, qkv_bias;             /* [C, 3C] */
    zero_tensor_t attention_weight, attention_bias; /* [C, C] */
    zero_tensor_t ln2_weight, ln2_bias;
    zero_tensor_t fc_weight, fc_bias;     /* [C, F] */
    zero_tensor_t proj_weight, proj_bias; /* [F, C] */
} block_tensors_t;

typedef struct gpt2 {
    arch_common_t common;
    zero_tensor_t lnf_weight, lnf_bias;
    float *lnf_mean, *lnf_rstd; /* [R] */
    float *d_x_sums;            /* [C] column sums of d_x */
    block_tensors_t blocks[];   /* [L] */
} gpt2_t;

/* ---- declaration ---- */

static zero_status_t add_pair(model_t *model, zero_unit_t unit, const char *prefix, int64_t rows, int64_t columns,
                              zero_init_t weight_init, float std, zero_tensor_t *weight, zero_tensor_t *bias)
{
    char name[ZERO_MAX_NAME];
    snprintf(name, sizeof name, "%s.weight", prefix);
    ZERO_TRY(arch_declare(model, unit, &(arch_tensor_t){name, rows, columns, weight_init, std, false}, weight));
    snprintf(name, sizeof name, "%s.bias", prefix);
    return arch_declare(model, unit, &(arch_tensor_t){name, 0, columns, ZERO_INIT_ZEROS, 0, false}, bias);
}

static zero_status_t declare_block(model_t *model, int layer, block_tensors_t *t)
{
    int64_t C = model->options->model.dim, F = model->options->model.ffn_dim;
    float std = ARCH_STD, residual_std = arch_residual_std(model);
    char unit_name[ZERO_MAX_NAME], prefix[ZERO_MAX_NAME - sizeof ".weight"];
    zero_unit_t unit;
    snprintf(unit_name, sizeof unit_name, "transformer.h.%d", layer);
    ZERO_TRY(zero_model_add_unit(model->declaration, unit_name, &unit));
#define PAIR(suffix, rows, columns, init, s, field)                                                                    \
    snprintf(prefix, sizeof prefix, "transformer.h.%d." suffix, layer);                                                \
    ZERO_TRY(add_pair(model, unit, prefix, rows, columns, init, s, &t->field##_weight, &t->field##_bias))
    PAIR("ln_1", 0, C, ZERO_INIT_ONES, 0, ln1);
    PAIR("attn.c_attn", C, 3 * C, ZERO_INIT_NORMAL, std, qkv);
    PAIR("attn.c_proj", C, C, ZERO_INIT_NORMAL, residual_std, attention);
    PAIR("ln_2", 0, C, ZERO_INIT_ONES, 0, ln2);
    PAIR("mlp.c_fc", C, F, ZERO_INIT_NORMAL, std, fc);
    PAIR("mlp.c_proj", F, C, ZERO_INIT_NORMAL, residual_std, proj);
#undef PAIR
    return lora_declare(model, layer, unit);
}

static zero_status_t declare(model_t *model)
{
    gpt2_t *g = model->arch;
    int64_t L = model->options->model.layers, C = model->options->model.dim;
    int64_t V = model->options->model.vocab_size, P = options_positions(&model->options->model);
    zero_unit_t embed, head;
    const arch_tensor_t wte = {"transformer.wte.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    const arch_tensor_t wpe = {"transformer.wpe.weight", P, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    ZERO_TRY(zero_model_add_unit(model->declaration, "transformer.embeddings", &embed));
    ZERO_TRY(arch_declare(model, embed, &wte, &g->common.tokens));
    ZERO_TRY(arch_declare(model, embed, &wpe, &g->common.positions));
    for (int l = 0; l < L; l++)
        ZERO_TRY(declare_block(model, l, &g->blocks[l]));
    ZERO_TRY(zero_model_add_unit(model->declaration, "transformer.head", &head));
    ZERO_TRY(add_pair(model, head, "transformer.ln_f", 0, C, ZERO_INIT_ONES, 0, &g->lnf_weight, &g->lnf_bias));
    g->common.head = g->common.tokens;
    return zero_model_share_tensor(model->declaration, head, g->common.tokens);
}

/* Positions. The token table is also the head, which multiplies by it. */
static int64_t n_lookup_params(const model_t *model)
{
    return options_positions(&model->options->model) * model->options->model.dim;
}

/* ---- activations ---- */

/* Buffers that are never in use together share an address. addend belongs to forward (also to that of a block that
 * backward runs again, before the block's backward), d_c to backward. normed is no longer needed when d_x is first
 * written, x_final when d_f is, and d_f when d_qkv is. */
static void allocate(const model_t *model, activations_t *a)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_largest_sizes(model);
    arch_allocate_layers(model, a, (arch_layer_parts_t){.normed_inputs = true});
    g->lnf_mean = activations_alloc(a, s.R, sizeof(float));
    g->lnf_rstd = activations_alloc(a, s.R, sizeof(float));
    g->common.d_x = g->common.normed = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->d_x_sums = activations_alloc(a, s.C, sizeof(float));
    g->common.addend = g->common.d_c = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.d_f = g->common.d_qkv = g->common.x_final =
        activations_alloc(a, s.R * (s.F > s.qkv ? s.F : s.qkv), s.element_bytes);
}

/* ---- forward ---- */

static arch_linear_t matrix_of(const model_t *model, int l, arch_matrix_t matrix)
{
    const block_tensors_t *t = &((const gpt2_t *)model->arch)->blocks[l];
    const zero_tensor_t weights[] = {[ARCH_QKV] = t->qkv_weight,
                                     [ARCH_ATTENTION] = t->attention_weight,
                                     [ARCH_MLP_IN] = t->fc_weight,
                                     [ARCH_MLP_OUT] = t->proj_weight};
    return (arch_linear_t){.layer = l,
                           .matrix = matrix,
                           .weight = weights[matrix],
                           .x_is_recorded = matrix != ARCH_ATTENTION,
                           .dy_is_recorded = matrix != ARCH_QKV};
}

/* y = x W + b */
static zero_status_t conv1d(model_t *model, int l, arch_matrix_t matrix, void *y, const void *x, zero_tensor_t bias)
{
    return arch_linear(model, matrix_of(model, l, matrix), y, x, model_weight(model, bias));
}

/* residual_out = residual + addend (NULL: none); y = LayerNorm(residual_out) */
static zero_status_t norm(model_t *model, zero_model_context_t ctx, void *y, float *mean, float *rstd,
                          void *residual_out, const void *residual, const void *addend, zero_tensor_t weight,
                          zero_tensor_t bias)
{
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->layernorm(&ctx, y, mean, rstd, residual_out, residual, addend, model_weight(model, weight),
                                     model_weight(model, bias), (float)model->options->model.norm_eps, s.R, s.C);
}

/* Computes a block up to the input of its last matrix. x = residual + addend; if x is there already, they are x and
 * NULL. again: in backward. */
static zero_status_t block_inner(model_t *model, int l, const void *residual, const void *addend, bool again)
{
    gpt2_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(norm(model, fp8_recording(model, l, ARCH_QKV, FP8_X), a->normed1, a->mean1, a->rstd1, a->x, residual,
                  addend, t->ln1_weight, t->ln1_bias));
    ZERO_TRY(conv1d(model, l, ARCH_QKV, a->qkv, a->normed1, t->qkv_bias));
    ZERO_TRY((again ? arch_attention_again : arch_attention)(model, l, a->qkv));
    ZERO_TRY(conv1d(model, l, ARCH_ATTENTION, g->common.addend, a->attention, t->attention_bias));
    ZERO_TRY(norm(model, fp8_recording(model, l, ARCH_MLP_IN, FP8_X), a->normed2, a->mean2, a->rstd2, a->mid, a->x,
                  g->common.addend, t->ln2_weight, t->ln2_bias));
    ZERO_TRY(conv1d(model, l, ARCH_MLP_IN, a->mlp, a->normed2, t->fc_bias));
    zero_model_context_t ctx = fp8_recording(model, l, ARCH_MLP_OUT, FP8_X);
    return k->gelu(&ctx, a->hidden, a->mlp, s.R * s.F);
}

static zero_status_t block_forward(model_t *model, int l, const void *residual, const void *addend)
{
    gpt2_t *g = model->arch;
    ZERO_TRY(block_inner(model, l, residual, addend, false));
    return conv1d(model, l, ARCH_MLP_OUT, g->common.addend, model->layers[l].hidden, g->blocks[l].proj_bias);
}

static zero_status_t final_norm(model_t *model, const void *residual)
{
    gpt2_t *g = model->arch;
    return norm(model, model->ctx, g->common.normed, g->lnf_mean, g->lnf_rstd, g->common.x_final, residual,
                g->common.addend, g->lnf_weight, g->lnf_bias);
}

/* ---- backward ---- */

/* d_x += the gradient of dy through a LayerNorm; dcolumns = the column sums of d_x. If `y` is not NULL, the norm's
 * output is recomputed there. */
static zero_status_t norm_backward(model_t *model, zero_model_context_t ctx, zero_grad_t dcolumns, void *y,
                                   const void *dy, const void *x, const float *mean, const float *rstd,
                                   zero_tensor_t weight, zero_tensor_t bias)
{
    gpt2_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->layernorm_backward(&ctx, g->common.d_x, model_grad(model, weight), model_grad(model, bias),
                                              dcolumns, y, dy, x, mean, rstd, model_weight(model, weight),
                                              model_weight(model, bias), s.R, s.C);
}

/* dx = dy W^T */
static zero_status_t input_gradient(model_t *model, int l, arch_matrix_t matrix, void *dx, const void *dy)
{
    return arch_linear_backward_input(model, matrix_of(model, l, matrix), dx, dy);
}

static zero_status_t weight_gradient(model_t *model, int l, arch_matrix_t matrix, zero_grad_t dbias, const void *x,
                                     const void *dy)
{
    return arch_linear_backward_weight(model, matrix_of(model, l, matrix), dbias, x, dy);
}

/* Where the column sums of d_x wait for the previous block. */
static zero_grad_t d_x_sums(const gpt2_t *g)
{
    return (zero_grad_t){.data = g->d_x_sums, .dtype = ZERO_FP32};
}

static zero_status_t final_norm_backward(model_t *model)
{
    gpt2_t *g = model->arch;
    return norm_backward(model, fp8_recording_d_x(model, (int)model->options->model.layers), d_x_sums(g), NULL,
                         g->common.d_c, g->common.x_final, g->lnf_mean, g->lnf_rstd, g->lnf_weight, g->lnf_bias);
}

static zero_status_t block_backward(model_t *model, int l)
{
    gpt2_t *g = model->arch;
    const zero_model_kernels_t *k = model->kernels;
    const block_tensors_t *t = &g->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    options_recompute_t recompute = options_block_recompute(&model->options->model, l);
    bool light = recompute == RECOMPUTE_LIGHT;
    if (recompute == RECOMPUTE_FULL)
        ZERO_TRY(block_inner(model, l, a->x, NULL, true));

    /* Here d_x is the gradient of x_l+1, and so of both terms of the sum: mid and the MLP's output. */
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_OUT, g->common.d_f, g->common.d_x));
    zero_model_context_t ctx = fp8_recording(model, l, ARCH_MLP_IN, FP8_DY);
    ZERO_TRY(k->gelu_backward(&ctx, g->common.d_f, model_grad(model, t->fc_bias), light ? a->hidden : NULL,
                              g->common.d_f, a->mlp, s.R, s.F));
    ZERO_TRY(weight_gradient(model, l, ARCH_MLP_OUT, ARCH_NO_GRAD, a->hidden, g->common.d_x));
    ZERO_TRY(k->put_grad(&model->ctx, model_grad(model, t->proj_bias), g->d_x_sums, s.C));
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_IN, g->common.d_c, g->common.d_f));
    ZERO_TRY(norm_backward(model, fp8_recording(model, l, ARCH_ATTENTION, FP8_DY), model_grad(model, t->attention_bias),
                           light ? a->normed2 : NULL, g->common.d_c, a->mid, a->mean2, a->rstd2, t->ln2_weight,
                           t->ln2_bias));
    ZERO_TRY(weight_gradient(model, l, ARCH_MLP_IN, ARCH_NO_GRAD, a->normed2, g->common.d_f));

    /* Here d_x is the gradient of mid, and so of both of its terms. */
    ZERO_TRY(input_gradient(model, l, ARCH_ATTENTION, g->common.d_c, g->common.d_x));
    ZERO_TRY(weight_gradient(model, l, ARCH_ATTENTION, ARCH_NO_GRAD, a->attention, g->common.d_x));
    ZERO_TRY(arch_attention_backward(model, l, g->common.d_qkv, g->common.d_c, a->qkv));
    ZERO_TRY(input_gradient(model, l, ARCH_QKV, g->common.d_c, g->common.d_qkv));
    ZERO_TRY(norm_backward(model, fp8_recording_d_x(model, l), d_x_sums(g), light ? a->normed1 : NULL, g->common.d_c,
                           a->x, a->mean1, a->rstd1, t->ln1_weight, t->ln1_bias));
    return weight_gradient(model, l, ARCH_QKV, model_grad(model, t->qkv_bias), a->normed1, g->common.d_qkv);
}

const model_ops_t gpt2_ops = {
    .name = "GPT-2",
    .bytes = sizeof(gpt2_t),
    .block_bytes = sizeof(block_tensors_t),
    .mlp_inputs = 1,
    .layout = ZERO_LINEAR_IN_OUT,
    .norms_keep_means = true,
    .learns_positions = true,
    .shares_normed = true,
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
