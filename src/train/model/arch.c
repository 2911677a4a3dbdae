/* arch.c - see arch.h. */
#include "train/model/arch.h"

#include <math.h>

#include "train/model/cuda_graphs.h"
#include "train/model/fp8.h"
#include "train/model/model_state.h"
#include "train/report/report.h"

zero_status_t arch_declare(model_t *model, zero_unit_t unit, const arch_tensor_t *spec, zero_tensor_t *tensor)
{
    const options_t *o = model->options;
    bool is_matrix = spec->rows != 0, is_of_block = unit > 0 && unit <= o->model.layers;
    zero_tensor_desc_t desc = {.name = spec->name,
                               .n_dims = is_matrix ? 2 : 1,
                               .shape = {is_matrix ? spec->rows : spec->columns, is_matrix ? spec->columns : 0},
                               .init = spec->init,
                               .init_std = spec->std,
                               .decay = is_matrix,
                               .packed = spec->packed,
                               .hidden_matrix = is_matrix && is_of_block,
                               .fp8 = is_matrix && is_of_block && o->train.fp8 != FP8_NONE};
    return zero_model_add_tensor(model->declaration, unit, &desc, tensor);
}

float arch_residual_std(const model_t *model)
{
    return (float)(0.02 / sqrt(2.0 * (double)model->options->model.layers));
}

/* ---- activations ---- */

/* Units: 0 is the embedding, then come the layers, then the head. */
static zero_unit_t unit_of(int layer)
{
    return layer + 1;
}

/* What backward needs and cannot recompute cheaply: each layer has its own unless its recompute is full. */
static void allocate_inputs(const model_t *model, activations_t *a, layer_activations_t *layer)
{
    arch_sizes_t s = arch_largest_sizes(model);
    bool has_means = model->ops->norms_keep_means;
    layer->qkv = activations_alloc(a, s.R * s.qkv, s.element_bytes);
    layer->attention = activations_alloc(a, s.R * s.A, s.element_bytes);
    layer->mid = activations_alloc(a, s.R * s.C, s.element_bytes);
    layer->mlp = activations_alloc(a, s.R * s.mlp, s.element_bytes);
    layer->mean1 = has_means ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->rstd1 = activations_alloc(a, s.R, sizeof(float));
    layer->mean2 = has_means ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->rstd2 = activations_alloc(a, s.R, sizeof(float));
    layer->logsumexp = activations_alloc(a, s.R * s.heads, sizeof(float));
}

/* What a norm or the activation function computes: each layer has its own if recompute is none, unless nothing reads it
 * after forward. */
static void allocate_outputs(const model_t *model, activations_t *a, bool one_normed, layer_activations_t *layer)
{
    arch_sizes_t s = arch_largest_sizes(model);
    layer->normed1 = activations_alloc(a, s.R * s.C, s.element_bytes);
    layer->normed2 = one_normed ? layer->normed1 : activations_alloc(a, s.R * s.C, s.element_bytes);
    layer->hidden = activations_alloc(a, s.R * s.F, s.element_bytes);
}

static bool recomputes(const model_t *model, int layer)
{
    return options_block_recompute(&model->options->model, layer) != RECOMPUTE_NONE;
}

static bool any_recomputes(const model_t *model)
{
    bool any = false;
    for (int l = 0; l < model->options->model.layers; l++)
        any |= recomputes(model, l);
    return any;
}

/* Returns whether a layer's norms and activation function write to buffers of its own. */
static bool keeps_outputs(const model_t *model, int layer)
{
    return !recomputes(model, layer) && !fp8_keeps_inputs(model, layer);
}

/* Allocates what layers share: all that a layer with full recomputation fills again, and outputs of those that keep
 * none. One buffer serves both norms if no layer needs both outputs at once. */
static void allocate_shared(const model_t *model, activations_t *a, layer_activations_t *shared)
{
    bool any_full = false, any_shares = false, one_normed = true;
    for (int l = 0; l < model->options->model.layers; l++) {
        options_recompute_t recompute = options_block_recompute(&model->options->model, l);
        any_full |= recompute == RECOMPUTE_FULL;
        any_shares |= !keeps_outputs(model, l);
        one_normed &= keeps_outputs(model, l) || fp8_keeps_inputs(model, l) ||
                      (model->ops->shares_normed && recompute == RECOMPUTE_LIGHT);
    }
    if (any_full)
        allocate_inputs(model, a, shared);
    if (any_shares)
        allocate_outputs(model, a, one_normed, shared);
}

/* Creates the stash for the inputs of the first blocks, if the options ask for it. */
static void allocate_stash(const model_t *model, activations_t *a)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    const int n = (int)options_offloaded_blocks(&model->options->model);
    if (n > 0)
        activations_stash(a, (zero_device_type_t)model->options->device.type, n, s.R * s.C, s.element_bytes);
}

/* What attention reads where heads are normalized: each layer has its own if recompute is none. */
static void *allocate_normed_qkv(const model_t *model, activations_t *a)
{
    arch_sizes_t s = arch_largest_sizes(model);
    return activations_alloc(a, s.R * s.qkv, s.element_bytes);
}

void arch_allocate_layers(const model_t *model, activations_t *a, bool normalizes_heads)
{
    arch_sizes_t s = arch_largest_sizes(model);
    layer_activations_t shared = {0}; /* by all layers that recompute */
    allocate_stash(model, a);
    allocate_shared(model, a, &shared);
    if (normalizes_heads && any_recomputes(model))
        shared.normed_qkv = allocate_normed_qkv(model, a);
    fp8_allocate(model, a);
    for (int l = 0; l < model->options->model.layers; l++) {
        layer_activations_t *layer = &model->layers[l];
        *layer = shared;
        /* The embedding writes the first x. */
        activations_set_lifetime(a, l == 0 ? 0 : unit_of(l), unit_of(l));
        layer->x = l < options_offloaded_blocks(&model->options->model)
                       ? zero_stash_buffer(a->stash, l)
                       : activations_alloc(a, s.R * s.C, s.element_bytes);
        activations_set_lifetime(a, unit_of(l), unit_of(l));
        if (options_block_recompute(&model->options->model, l) != RECOMPUTE_FULL)
            allocate_inputs(model, a, layer);
        if (keeps_outputs(model, l))
            allocate_outputs(model, a, false, layer);
        if (normalizes_heads && !recomputes(model, l))
            layer->normed_qkv = allocate_normed_qkv(model, a);
        fp8_allocate_layer(model, a, l);
    }
    activations_clear_lifetime(a);
}

/* ---- embedding ---- */

/* layers[0].x = the rows of the token table that the batch names, plus those of the positions if they are learned. */
static zero_status_t embed_forward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(fp8_begin_pass(model));
    return model->kernels->embed(
        &model->ctx, model->layers[0].x, model->tokens, arch_mask(model).starts, model_weight(model, c->tokens),
        model->ops->learns_positions ? model_weight(model, c->positions) : ARCH_NO_WEIGHT, s.B, s.T, s.C, s.V);
}

/* Clears the gradient of positions that no sequence reaches. */
static zero_status_t clear_unused_positions(model_t *model, zero_grad_t positions)
{
    size_t used = arch_sizes(model).T, all = (size_t)options_positions(&model->options->model);
    size_t row_bytes = arch_sizes(model).C * zero_dtype_size(positions.dtype);
    if (!positions.data || positions.accumulate || used == all)
        return ZERO_OK;
    return model->kernels->zero_fill(&model->ctx, (unsigned char *)positions.data + used * row_bytes,
                                     (all - used) * row_bytes);
}

static zero_status_t embed_backward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    const zero_grad_t positions = model->ops->learns_positions ? model_grad(model, c->positions) : ARCH_NO_GRAD;
    ZERO_TRY(clear_unused_positions(model, positions));
    return model->kernels->embed_backward(&model->ctx, model_grad(model, c->tokens), positions, c->d_x, model->tokens,
                                          arch_mask(model).starts, s.B, s.T, s.C, s.V);
}

/* ---- attention ---- */

zero_mask_t arch_mask(const model_t *model)
{
    bool has_starts =
        options_generate(model->options) ? model->continues && model->n_cached > 0 : model->pass != MODEL_LOGITS;
    return (zero_mask_t){.starts = has_starts ? model->starts : NULL, .window = (size_t)model->options->model.window};
}

zero_attention_shape_t arch_attention_shape(const model_t *model)
{
    arch_sizes_t s = arch_sizes(model);
    return (zero_attention_shape_t){s.B, s.T, s.heads, s.kv_heads, s.head_dim};
}

zero_status_t arch_attention(model_t *model, int layer, const void *qkv)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const zero_mask_t mask = arch_mask(model);
    const zero_model_kernels_t *k = model->kernels;
    const layer_activations_t *a = &model->layers[layer];
    arch_sizes_t s = arch_sizes(model);
    size_t layer_elems = (size_t)model->options->model.seq_len * 2 * s.kv_heads * s.head_dim;
    if (!model->continues)
        return k->attention(&model->ctx, a->attention, a->logsumexp, qkv, &mask, &shape);
    return k->attention_cached(&model->ctx, a->attention, a->logsumexp,
                               (unsigned char *)model->cache + (size_t)layer * layer_elems * s.element_bytes, qkv,
                               &mask, &shape);
}

zero_status_t arch_attention_backward(model_t *model, int layer, void *d_qkv, const void *d_out, const void *qkv)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const zero_mask_t mask = arch_mask(model);
    const layer_activations_t *a = &model->layers[layer];
    return model->kernels->attention_backward(&model->ctx, d_qkv, d_out, qkv, a->attention, a->logsumexp, &mask,
                                              &shape);
}

/* ---- linear layers ---- */

zero_status_t arch_linear(model_t *model, arch_linear_t at, void *y, const void *x, zero_weight_t bias)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    if (model->fp8)
        return fp8_linear(model, at, y, x, bias);
    return model->kernels->linear(&model->ctx, y, x, model_weight(model, at.weight), model->ops->layout, bias,
                                  model->n_batch * model->seq_len, e.n_in, e.n_out);
}

zero_status_t arch_linear_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    if (model->fp8)
        return fp8_linear_backward_input(model, at, dx, dy);
    return model->kernels->linear_backward_input(&model->ctx, dx, false, dy, model_weight(model, at.weight),
                                                 model->ops->layout, model->n_batch * model->seq_len, e.n_in, e.n_out);
}

zero_status_t arch_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                          const void *dy)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    if (model->fp8)
        return fp8_linear_backward_weight(model, at, dbias, x, dy);
    return model->kernels->linear_backward_weight(&model->ctx, model_grad(model, at.weight), model->ops->layout, dbias,
                                                  x, dy, model->n_batch * model->seq_len, e.n_in, e.n_out);
}

/* ---- output head ---- */

static zero_status_t head_forward(model_t *model)
{
    const zero_model_kernels_t *k = model->kernels;
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(model->ops->final_norm(model, model->layers[model->options->model.layers - 1].mid));
    if (model->pass == MODEL_LOSS)
        return k->head_loss(&model->ctx, model->loss, NULL, (zero_grad_t){0}, c->normed, model_weight(model, c->head),
                            model->targets, model->loss_weight, zero_loss_scale(model->engine), s.R, s.C, s.V);
    if (model->pass == MODEL_LOGITS) {
        const unsigned char *row = (const unsigned char *)c->normed + model->logits_at * s.C * s.element_bytes;
        return k->head_logits(&model->ctx, model->logits, row, model_weight(model, c->head), 1, s.C, s.V);
    }
    return ZERO_OK;
}

/* Computes the loss, the head's gradient and d_x. */
static zero_status_t head_backward(model_t *model)
{
    const zero_model_kernels_t *k = model->kernels;
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(k->head_loss(&model->ctx, model->loss, c->d_c, model_grad(model, c->head), c->normed,
                          model_weight(model, c->head), model->targets, model->loss_weight,
                          zero_loss_scale(model->engine), s.R, s.C, s.V));
    ZERO_TRY(k->zero_fill(&model->ctx, c->d_x, s.R * s.C * s.element_bytes));
    return model->ops->final_norm_backward(model);
}

/* ---- units ---- */

zero_status_t arch_forward(model_t *model, zero_unit_t unit)
{
    int layer = unit - 1;
    if (unit == 0)
        return embed_forward(model);
    if (layer == model->options->model.layers)
        return head_forward(model);
    return model->ops->block_forward(model, layer, layer == 0 ? model->layers[0].x : model->layers[layer - 1].mid,
                                     layer == 0 ? NULL : arch_common(model)->addend);
}

zero_status_t arch_backward(model_t *model, zero_unit_t unit)
{
    int layer = unit - 1;
    if (unit == 0)
        return embed_backward(model);
    return layer == model->options->model.layers ? head_backward(model) : model->ops->block_backward(model, layer);
}
