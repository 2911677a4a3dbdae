/* llama.c - the Llama family as in Hugging Face: pre-RMSNorm, rotary positions, SwiGLU, key/value heads shared by query
 * heads (Touvron et al. 2023, arXiv:2302.13971). Its members differ in what their row of `families` and the options
 * say: biases, norms of q and k heads, names of tensors, and layer by layer whether heads are rotated and how far
 * attention looks back. The head is a matrix of its own, or the token embedding if `tied`.
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
 * of their gradients. Families with fused names have these matrices as tensors.
 *
 * A block leaves its second addition pending in `addend`; the next norm does it, fused. OLMo 2 has the norms behind
 * attention and MLP instead of before them, Gemma 3 both: x + norm(attention(norm(x))). Granite multiplies both
 * branches.
 *
 * What is kept of a block from forward to backward depends on options_block_recompute. none: every input that backward
 * needs. light: all but the outputs of norms and SwiGLU, which their own backward recomputes on the way. full: only x_l
 * (C per row and layer); backward runs the block's forward again. What is not kept lives in one set of buffers that all
 * layers share. The results have the same bits.
 */
#include "train/model/llama.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/model/sequence.h"
#include "train/report/report.h"

/* ---- activations ---- */

static void allocate(const model_t *model, activations_t *a)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_largest_sizes(model);
    arch_allocate_layers(model, a,
                         (arch_layer_parts_t){.normed_inputs = has_input_norms(model),
                                              .normed_qkv = normalizes_qk(model),
                                              .branches = has_output_norms(model)});
    g->common.x_final = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.normed = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->rstd = activations_alloc(a, s.R, sizeof(float));
    g->common.addend = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.d_x = activations_alloc(a, s.R * s.C, s.element_bytes);
    g->common.d_c = activations_alloc(a, s.R * (s.A > s.C ? s.A : s.C), s.element_bytes);
    /* What ranks that share a sequence exchange is on its way in forward alone. */
    const bool is_shared = options_sequence_ranks(&model->options->train) > 1;
    g->common.d_qkv = is_shared ? sequence_qkv(model) : activations_alloc(a, s.R * s.qkv, s.element_bytes);
    g->common.d_f = arch_allocate_d_f(model, a);
    g->d_branch = adds_branches_as_they_are(model) ? NULL : activations_alloc(a, s.R * s.C, s.element_bytes);
}

/* ---- forward ---- */

/* Returns whether a norm or the MLP's product of two writes a matrix's input. */
static bool records_x(const model_t *model, arch_matrix_t matrix)
{
    return matrix == ARCH_MLP_OUT || (matrix != ARCH_ATTENTION && has_input_norms(model));
}

/* Returns whether a norm, the rotation or the MLP's product of two writes the gradient of a matrix's output. */
static bool records_dy(const model_t *model, int l, arch_matrix_t matrix)
{
    if (matrix == ARCH_QKV)
        return !normalizes_qk(model) && arch_turns_heads(model, l);
    return matrix == ARCH_MLP_IN || (has_input_norms(model) && adds_branches_as_they_are(model));
}

static arch_linear_t matrix_of(const model_t *model, int l, arch_matrix_t matrix)
{
    const llama_block_t *t = &((const llama_t *)model->arch)->blocks[l];
    const zero_tensor_t weights[] = {
        [ARCH_QKV] = t->q, [ARCH_ATTENTION] = t->attention, [ARCH_MLP_IN] = t->gate, [ARCH_MLP_OUT] = t->down};
    return (arch_linear_t){.layer = l,
                           .matrix = matrix,
                           .weight = weights[matrix],
                           .x_is_recorded = records_x(model, matrix),
                           .dy_is_recorded = records_dy(model, l, matrix)};
}

/* Returns a context that records the absolute maximum of what a kernel writes, if that is recorded. */
static zero_model_context_t recording_x(const model_t *model, int l, arch_matrix_t matrix)
{
    return records_x(model, matrix) ? fp8_recording(model, l, matrix, FP8_X) : model->ctx;
}

static zero_model_context_t recording_dy(const model_t *model, int l, arch_matrix_t matrix)
{
    return records_dy(model, l, matrix) ? fp8_recording(model, l, matrix, FP8_DY) : model->ctx;
}

/* Returns where a matrix's bias begins; NULL: it has none. */
static const zero_tensor_t *bias_tensor(const model_t *model, int l, arch_matrix_t matrix)
{
    const model_options_t *o = &model->options->model;
    const llama_block_t *t = &((const llama_t *)model->arch)->blocks[l];
    const zero_tensor_t *const biases[] = {[ARCH_QKV] = o->qkv_bias ? &t->q_bias : NULL,
                                           [ARCH_ATTENTION] = o->out_bias ? &t->out_bias : NULL,
                                           [ARCH_MLP_IN] = o->mlp_bias ? &t->gate_bias : NULL,
                                           [ARCH_MLP_OUT] = o->mlp_bias ? &t->down_bias : NULL};
    return biases[matrix];
}

/* y = x W^T + b */
static zero_status_t linear(model_t *model, int l, arch_matrix_t matrix, void *y, const void *x)
{
    const zero_tensor_t *bias = bias_tensor(model, l, matrix);
    return arch_linear(model, matrix_of(model, l, matrix), y, x, bias ? model_weight(model, *bias) : ARCH_NO_WEIGHT);
}

/* Returns a norm's weight, to which some families add 1. */
static zero_weight_t norm_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_weight_t weight = model_weight(model, tensor);
    weight.offset = traits_of(model)->adds_one ? 1.0f : 0.0f;
    return weight;
}

/* residual_out = residual + addend (NULL: none); y = RMSNorm(residual_out) */
static zero_status_t norm(model_t *model, zero_model_context_t ctx, void *y, float *rstd, void *residual_out,
                          const void *residual, const void *addend, zero_tensor_t weight)
{
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->rmsnorm(&ctx, y, rstd, residual_out, residual, addend, norm_weight(model, weight),
                                   (float)model->options->model.norm_eps, s.R, s.C);
}

/* Rotates the q and k heads in place, in layers that do, or rotates them back. */
static zero_status_t rope(model_t *model, int l, zero_model_context_t ctx, void *qkv, bool inverse)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const zero_rope_t rotation = arch_rotation(model, l, ((const llama_t *)model->arch)->divisors);
    if (!arch_turns_heads(model, l))
        return ZERO_OK;
    return model->kernels->rope(&ctx, qkv, inverse, &rotation, &shape);
}

/* Turns the product's q, k and v into what attention reads: heads normalized, if the family does that, and rotated.
 * Without head norms this happens in place. With them it has a place of its own, since backward needs the product. */
static zero_status_t normalize_and_rotate(model_t *model, int l)
{
    const llama_block_t *t = &((const llama_t *)model->arch)->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    if (!normalizes_qk(model))
        return rope(model, l, model->ctx, a->qkv, false);
    const zero_weight_t q_weight = norm_weight(model, t->q_norm), k_weight = norm_weight(model, t->k_norm);
    const float eps = (float)model->options->model.norm_eps;
    if (traits_of(model)->qk_norm == QK_NORM_HEADS)
        ZERO_TRY(model->kernels->head_norm(&model->ctx, a->normed_qkv, a->qkv, q_weight, k_weight, eps, s.R, s.heads,
                                           s.kv_heads, s.head_dim));
    else
        ZERO_TRY(model->kernels->projection_norm(&model->ctx, a->normed_qkv, a->qkv, q_weight, k_weight, eps, s.R, s.A,
                                                 s.kv_heads * s.head_dim));
    return rope(model, l, model->ctx, a->normed_qkv, false);
}

/* Returns the q, k and v that attention reads. */
static const void *attention_input(const model_t *model, int l)
{
    return normalizes_qk(model) ? model->layers[l].normed_qkv : model->layers[l].qkv;
}

/* d_qkv, the gradient of what attention reads, becomes that of the product's q, k and v. */
static zero_status_t normalize_and_rotate_backward(model_t *model, int l)
{
    llama_t *g = model->arch;
    const llama_block_t *t = &g->blocks[l];
    arch_sizes_t s = arch_sizes(model);
    if (!normalizes_qk(model))
        return rope(model, l, recording_dy(model, l, ARCH_QKV), g->common.d_qkv, true);
    ZERO_TRY(rope(model, l, model->ctx, g->common.d_qkv, true));
    const zero_weight_t q_weight = norm_weight(model, t->q_norm), k_weight = norm_weight(model, t->k_norm);
    const zero_grad_t dq_weight = model_grad(model, t->q_norm), dk_weight = model_grad(model, t->k_norm);
    const float eps = (float)model->options->model.norm_eps;
    if (traits_of(model)->qk_norm == QK_NORM_HEADS)
        return model->kernels->head_norm_backward(&model->ctx, g->common.d_qkv, dq_weight, dk_weight,
                                                  model->layers[l].qkv, q_weight, k_weight, eps, s.R, s.heads,
                                                  s.kv_heads, s.head_dim);
    return model->kernels->projection_norm_backward(&model->ctx, g->common.d_qkv, dq_weight, dk_weight,
                                                    model->layers[l].qkv, q_weight, k_weight, eps, s.R, s.A,
                                                    s.kv_heads * s.head_dim);
}

/* ---- the two branches of a block ---- */

typedef enum branch { BRANCH_ATTENTION, BRANCH_MLP } branch_t;

/* Returns what a branch's first product reads. */
static void *branch_input(const model_t *model, int l, branch_t branch)
{
    const layer_activations_t *a = &model->layers[l];
    if (has_input_norms(model))
        return branch == BRANCH_ATTENTION ? a->normed1 : a->normed2;
    return branch == BRANCH_ATTENTION ? a->x : a->mid;
}

/* sum[R, C] = residual + addend (NULL: it is there already), the residual stream before a branch; and its norm, if the
 * family has that. */
static zero_status_t begin_branch(model_t *model, int l, branch_t branch, void *sum, const void *residual,
                                  const void *addend)
{
    const llama_block_t *t = &((const llama_t *)model->arch)->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    arch_sizes_t s = arch_sizes(model);
    if (has_input_norms(model) && branch == BRANCH_ATTENTION)
        return norm(model, recording_x(model, l, ARCH_QKV), a->normed1, a->rstd1, sum, residual, addend, t->norm1);
    if (has_input_norms(model))
        return norm(model, recording_x(model, l, ARCH_MLP_IN), a->normed2, a->rstd2, sum, residual, addend, t->norm2);
    return addend ? model->kernels->add_scaled(&model->ctx, sum, residual, addend, 1.0f, s.R * s.C) : ZERO_OK;
}

/* Returns where a branch's last product goes. */
static void *product_of(const model_t *model, int l, branch_t branch)
{
    const layer_activations_t *a = &model->layers[l];
    if (!has_output_norms(model))
        return arch_common(model)->addend;
    return branch == BRANCH_ATTENTION ? a->branch1 : a->branch2;
}

/* addend = that product as it is, normalized or multiplied */
static zero_status_t end_branch(model_t *model, int l, branch_t branch)
{
    llama_t *g = model->arch;
    const llama_block_t *t = &g->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    const bool is_mlp = branch == BRANCH_MLP;
    void *product = product_of(model, l, branch);
    if (!has_output_norms(model))
        return arch_scale(model, product, (float)model->options->model.residual_multiplier);
    return norm(model, model->ctx, g->common.addend, is_mlp ? a->out_rstd2 : a->out_rstd1, product, product, NULL,
                is_mlp ? t->out_norm2 : t->out_norm1);
}

/* Computes the input of a block's last matrix from that of its MLP, for a tile's rows. */
static zero_status_t mlp_inner(model_t *model, int l)
{
    const layer_activations_t *a = &model->layers[l];
    const arch_sizes_t s = arch_sizes(model);
    const zero_model_kernels_t *k = model->kernels;
    void *mlp = arch_row(model, a->mlp, s.mlp, a->mlp_is_tile);
    void *hidden = arch_row(model, a->hidden, s.F, a->hidden_is_tile);
    ZERO_TRY(linear(model, l, ARCH_MLP_IN, mlp, arch_row(model, branch_input(model, l, BRANCH_MLP), s.C, false)));
    zero_model_context_t ctx = recording_x(model, l, ARCH_MLP_OUT);
    zero_gated_adapters_t adapters;
    const bool has_gelu = traits_of(model)->has_gelu;
    if (lora_gated_adapters(model, l, LORA_FORWARD, &adapters))
        return k->gated_adapters(&ctx, has_gelu, &adapters, hidden, mlp, arch_n_rows(model), s.F);
    return (has_gelu ? k->geglu : k->swiglu)(&ctx, hidden, mlp, arch_n_rows(model), s.F);
}

/* Computes the MLP's branch from its hidden rows or, in tiles, from its input. */
static zero_status_t end_mlp(model_t *model, int l)
{
    const layer_activations_t *a = &model->layers[l];
    const arch_sizes_t s = arch_sizes(model);
    const size_t n_tiles = arch_n_tiles(model);
    for (size_t i = 0; i < n_tiles; i++) {
        arch_begin_tile(model, i);
        if (n_tiles > 1)
            ZERO_TRY(mlp_inner(model, l));
        ZERO_TRY(linear(model, l, ARCH_MLP_OUT, arch_row(model, product_of(model, l, BRANCH_MLP), s.C, false),
                        arch_row(model, a->hidden, s.F, a->hidden_is_tile)));
    }
    arch_end_tiles(model);
    return end_branch(model, l, BRANCH_MLP);
}

/* Computes a block up to the input of its last matrix or, in tiles, of its MLP. x = residual + addend; if x is there
 * already, they are x and NULL. again: in backward. */
static zero_status_t block_inner(model_t *model, int l, const void *residual, const void *addend, bool again)
{
    llama_t *g = model->arch;
    layer_activations_t *a = &model->layers[l];
    ZERO_TRY(begin_branch(model, l, BRANCH_ATTENTION, a->x, residual, addend));
    ZERO_TRY(linear(model, l, ARCH_QKV, a->qkv, branch_input(model, l, BRANCH_ATTENTION)));
    ZERO_TRY(normalize_and_rotate(model, l));
    ZERO_TRY((again ? arch_attention_again : arch_attention)(model, l, attention_input(model, l)));
    ZERO_TRY(linear(model, l, ARCH_ATTENTION, product_of(model, l, BRANCH_ATTENTION), a->attention));
    ZERO_TRY(end_branch(model, l, BRANCH_ATTENTION));
    ZERO_TRY(begin_branch(model, l, BRANCH_MLP, a->mid, a->x, g->common.addend));
    return arch_n_tiles(model) > 1 ? ZERO_OK : mlp_inner(model, l);
}

static zero_status_t block_forward(model_t *model, int l, const void *residual, const void *addend)
{
    ZERO_TRY(block_inner(model, l, residual, addend, false));
    return end_mlp(model, l);
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
    const zero_tensor_t *bias = bias_tensor(model, l, matrix);
    return arch_linear_backward_weight(model, matrix_of(model, l, matrix),
                                       bias ? model_grad(model, *bias) : ARCH_NO_GRAD, x, dy);
}

/* d_x += the gradient of dy through the norm. If `y` is not NULL, the norm's output is recomputed there. */
static zero_status_t norm_backward(model_t *model, zero_model_context_t ctx, void *y, const void *dy,
                                   const void *residual, const float *rstd, zero_tensor_t weight)
{
    llama_t *g = model->arch;
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->rmsnorm_backward(&ctx, g->common.d_x, model_grad(model, weight), y, dy, residual, rstd,
                                            norm_weight(model, weight), s.R, s.C);
}

/* Sets *d_product to the gradient of a branch's last product, from d_x, that of the sum. */
static zero_status_t end_branch_backward(model_t *model, int l, branch_t branch, void **d_product)
{
    llama_t *g = model->arch;
    const layer_activations_t *a = &model->layers[l];
    const bool is_mlp = branch == BRANCH_MLP;
    const zero_tensor_t weight = is_mlp ? g->blocks[l].out_norm2 : g->blocks[l].out_norm1;
    const zero_model_kernels_t *k = model->kernels;
    arch_sizes_t s = arch_sizes(model);
    *d_product = adds_branches_as_they_are(model) ? g->common.d_x : g->d_branch;
    if (adds_branches_as_they_are(model))
        return ZERO_OK;
    if (!has_output_norms(model))
        return k->add_scaled(&model->ctx, g->d_branch, NULL, g->common.d_x,
                             (float)model->options->model.residual_multiplier, s.R * s.C);
    ZERO_TRY(k->zero_fill(&model->ctx, g->d_branch, s.R * s.C * s.element_bytes));
    return k->rmsnorm_backward(&model->ctx, g->d_branch, model_grad(model, weight), NULL, g->common.d_x,
                               is_mlp ? a->branch2 : a->branch1, is_mlp ? a->out_rstd2 : a->out_rstd1,
                               norm_weight(model, weight), s.R, s.C);
}

/* d_x += the gradient d_c of a branch's input, through its norm if it has one, which with recompute = light is computed
 * again. */
static zero_status_t begin_branch_backward(model_t *model, int l, branch_t branch)
{
    llama_t *g = model->arch;
    const llama_block_t *t = &g->blocks[l];
    const layer_activations_t *a = &model->layers[l];
    const bool light = options_block_recompute(&model->options->model, l) == RECOMPUTE_LIGHT;
    arch_sizes_t s = arch_sizes(model);
    if (!has_input_norms(model))
        return model->kernels->add_scaled(&model->ctx, g->common.d_x, g->common.d_x, g->common.d_c, 1.0f, s.R * s.C);
    if (branch == BRANCH_MLP)
        return norm_backward(model, recording_dy(model, l, ARCH_ATTENTION), light ? a->normed2 : NULL, g->common.d_c,
                             a->mid, a->rstd2, t->norm2);
    return norm_backward(model, adds_branches_as_they_are(model) ? fp8_recording_d_x(model, l) : model->ctx,
                         light ? a->normed1 : NULL, g->common.d_c, a->x, a->rstd1, t->norm1);
}

static zero_status_t final_norm_backward(model_t *model)
{
    llama_t *g = model->arch;
    const bool is_recorded = records_dy(model, (int)model->options->model.layers - 1, ARCH_MLP_OUT);
    return norm_backward(model, is_recorded ? fp8_recording_d_x(model, (int)model->options->model.layers) : model->ctx,
                         NULL, g->common.d_c, g->common.x_final, g->rstd, g->norm);
}

/* mlp becomes its own gradient, from d_f, that of the hidden rows, which are computed again if `hidden` is not NULL. */
static zero_status_t gated_backward(model_t *model, int l, void *mlp, void *hidden)
{
    const zero_model_kernels_t *k = model->kernels;
    const bool has_gelu = traits_of(model)->has_gelu;
    const void *d_f = ((const llama_t *)model->arch)->common.d_f;
    const size_t n_rows = arch_n_rows(model), F = arch_sizes(model).F;
    zero_model_context_t ctx = recording_dy(model, l, ARCH_MLP_IN);
    zero_gated_adapters_t adapters;
    if (!lora_gated_adapters(model, l, LORA_BACKWARD, &adapters))
        return (has_gelu ? k->geglu_backward : k->swiglu_backward)(&ctx, mlp, hidden, d_f, mlp, n_rows, F);
    return k->gated_adapters_backward(&ctx, has_gelu, &adapters, mlp, hidden, d_f, mlp, n_rows, F);
}

/* The MLP's backward for a tile's rows, from the gradient of its product. a->mlp becomes its own gradient. Where that
 * has no room for all rows, nor does it wait for the gradient of its matrix. */
static zero_status_t mlp_backward(model_t *model, int l, bool light, void *d_product)
{
    const llama_t *g = model->arch;
    const layer_activations_t *a = &model->layers[l];
    const arch_sizes_t s = arch_sizes(model);
    void *mlp = arch_row(model, a->mlp, s.mlp, a->mlp_is_tile), *dy = arch_row(model, d_product, s.C, false);
    void *hidden = arch_row(model, a->hidden, s.F, a->hidden_is_tile);
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_OUT, g->common.d_f, dy));
    ZERO_TRY(gated_backward(model, l, mlp, light ? hidden : NULL));
    ZERO_TRY(weight_gradient(model, l, ARCH_MLP_OUT, hidden, dy));
    ZERO_TRY(input_gradient(model, l, ARCH_MLP_IN, arch_row(model, g->common.d_c, s.C, false), mlp));
    void *x = arch_row(model, branch_input(model, l, BRANCH_MLP), s.C, false);
    return a->mlp_is_tile ? weight_gradient(model, l, ARCH_MLP_IN, x, mlp) : ZERO_OK;
}

/* The gradient of the MLP's first matrix. */
static zero_status_t mlp_in_gradient(model_t *model, int l)
{
    const layer_activations_t *a = &model->layers[l];
    const arch_sizes_t s = arch_sizes(model);
    for (size_t i = 0; i < arch_n_tiles(model) && !a->mlp_is_tile; i++) {
        arch_begin_tile(model, i);
        ZERO_TRY(weight_gradient(model, l, ARCH_MLP_IN, arch_row(model, branch_input(model, l, BRANCH_MLP), s.C, false),
                                 arch_row(model, a->mlp, s.mlp, false)));
    }
    arch_end_tiles(model);
    return ZERO_OK;
}

/* With recompute = light, the input of a matrix is recomputed by the backward of what made it. So each matrix computes
 * the gradient of its input first, and its own gradient once the input is there. */
static zero_status_t block_backward(model_t *model, int l)
{
    llama_t *g = model->arch;
    const layer_activations_t *a = &model->layers[l];
    const size_t n_tiles = arch_n_tiles(model);
    void *d_product;
    options_recompute_t recompute = options_block_recompute(&model->options->model, l);
    bool light = recompute == RECOMPUTE_LIGHT;
    if (recompute == RECOMPUTE_FULL)
        ZERO_TRY(block_inner(model, l, a->x, NULL, true));
    else if (normalizes_qk(model) && light && !model->sequence) /* then attention has kept its own */
        ZERO_TRY(normalize_and_rotate(model, l));               /* the layers after it have overwritten normed_qkv */
    if (recompute == RECOMPUTE_FULL && has_output_norms(model))
        ZERO_TRY(end_mlp(model, l)); /* for branch2 */

    /* Here d_x is the gradient of x_l+1, and so of both terms of the sum: mid and the MLP's branch. */
    ZERO_TRY(end_branch_backward(model, l, BRANCH_MLP, &d_product));
    for (size_t i = 0; i < n_tiles; i++) {
        arch_begin_tile(model, i);
        if (n_tiles > 1 && recompute == RECOMPUTE_FULL)
            ZERO_TRY(mlp_inner(model, l));
        ZERO_TRY(mlp_backward(model, l, light, d_product));
    }
    arch_end_tiles(model);
    ZERO_TRY(begin_branch_backward(model, l, BRANCH_MLP));
    ZERO_TRY(mlp_in_gradient(model, l));

    /* Here d_x is the gradient of mid, and so of both of its terms. */
    ZERO_TRY(end_branch_backward(model, l, BRANCH_ATTENTION, &d_product));
    ZERO_TRY(input_gradient(model, l, ARCH_ATTENTION, g->common.d_c, d_product));
    ZERO_TRY(weight_gradient(model, l, ARCH_ATTENTION, a->attention, d_product));
    ZERO_TRY(arch_attention_backward(model, l, g->common.d_qkv, g->common.d_c, attention_input(model, l)));
    ZERO_TRY(normalize_and_rotate_backward(model, l));
    ZERO_TRY(input_gradient(model, l, ARCH_QKV, g->common.d_c, g->common.d_qkv));
    ZERO_TRY(begin_branch_backward(model, l, BRANCH_ATTENTION));
    return weight_gradient(model, l, ARCH_QKV, branch_input(model, l, BRANCH_ATTENTION), g->common.d_qkv);
}

const model_ops_t llama_ops = {
    .name = "Llama",
    .bytes = sizeof(llama_t),
    .block_bytes = sizeof(llama_block_t),
    .mlp_inputs = 2,
    .layout = ZERO_LINEAR_OUT_IN,
    .norms_keep_means = false,
    .learns_positions = false,
    .shares_normed = false,
    .declare = llama_declare,
    .n_lookup_params = llama_n_lookup_params,
    .allocate = allocate,
    .forward = arch_forward,
    .backward = arch_backward,
    .block_forward = block_forward,
    .block_backward = block_backward,
    .final_norm = final_norm,
    .final_norm_backward = final_norm_backward,
};
