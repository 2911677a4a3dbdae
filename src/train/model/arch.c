/* arch.c - see arch.h. */
#include "train/model/arch.h"

#include <math.h>
#include <string.h>

#include "train/model/cuda_graphs.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/model/model_state.h"
#include "train/model/preference.h"
#include "train/model/sequence.h"
#include "train/report/report.h"

/* Returns whether all of the frozen model comes from a directory, so that first values cost time alone. */
static bool loads_base(const model_t *model)
{
    return model->lora && !options_init_is_random(model->options->model.init);
}

zero_status_t arch_declare(model_t *model, zero_unit_t unit, const arch_tensor_t *spec, zero_tensor_t *tensor)
{
    const options_t *o = model->options;
    bool is_matrix = spec->rows != 0, is_of_block = unit > 0 && unit <= o->model.layers;
    zero_tensor_desc_t desc = {.name = spec->name,
                               .n_dims = is_matrix ? 2 : 1,
                               .shape = {is_matrix ? spec->rows : spec->columns, is_matrix ? spec->columns : 0},
                               .init = loads_base(model) ? ZERO_INIT_ZEROS : spec->init,
                               .init_std = spec->std,
                               .decay = is_matrix,
                               .packed = spec->packed,
                               .hidden_matrix = is_matrix && is_of_block,
                               .fp8 = is_matrix && is_of_block && o->train.fp8 != FP8_NONE,
                               .frozen = model->lora != NULL,
                               .not_saved = model->lora != NULL,
                               .frozen_fp8 = model->lora && is_matrix && is_of_block && o->lora.base == BASE_FP8};
    return zero_model_add_tensor(model->declaration, unit, &desc, tensor);
}

float arch_residual_std(const model_t *model)
{
    return (float)(0.02 / sqrt(2.0 * (double)model->options->model.layers));
}

/* ---- activations ---- */

/* Returns the rows of a tile; if passes have none, all rows. */
static size_t most_tile_rows(const model_t *model)
{
    const size_t tile = (size_t)options_tile_rows(model->options);
    return tile > 0 ? tile : arch_largest_sizes(model).R;
}

/* Returns the rows times heads of the largest attention: of some heads of whole sequences if ranks share them, or of
 * all heads of a text that one computes alone. */
static size_t most_logsumexps(const model_t *model)
{
    const options_t *o = model->options;
    const arch_sizes_t s = arch_largest_sizes(model);
    const size_t alone = s.R * s.heads;
    const size_t shared = (size_t)(o->train.micro_batch * o->model.seq_len * options_most_heads(o).n_heads);
    return shared > alone ? shared : alone;
}

/* What backward needs and cannot recompute cheaply: each layer has its own unless its recompute is full. is_of_all: of
 * all layers that recompute everything. */
static void allocate_inputs(const model_t *model, activations_t *a, arch_layer_parts_t parts, bool is_of_all,
                            layer_activations_t *layer)
{
    arch_sizes_t s = arch_largest_sizes(model);
    bool has_means = model->ops->norms_keep_means;
    bool is_shared = options_sequence_ranks(&model->options->train) > 1;
    layer->qkv =
        is_shared && !parts.normed_qkv ? sequence_qkv(model) : activations_alloc(a, s.R * s.qkv, s.element_bytes);
    if (!is_of_all || !model->options->model.keep_attention || is_shared)
        layer->attention = activations_alloc(a, s.R * s.A, s.element_bytes);
    layer->mid = activations_alloc(a, s.R * s.C, s.element_bytes);
    layer->mlp_is_tile = is_of_all && options_tile_rows(model->options) > 0;
    layer->mlp = activations_alloc(a, (layer->mlp_is_tile ? most_tile_rows(model) : s.R) * s.mlp, s.element_bytes);
    layer->mean1 = has_means ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->mean2 = has_means ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->rstd1 = parts.normed_inputs ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->rstd2 = parts.normed_inputs ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->branch1 = parts.branches ? activations_alloc(a, s.R * s.C, s.element_bytes) : NULL;
    layer->branch2 = parts.branches ? activations_alloc(a, s.R * s.C, s.element_bytes) : NULL;
    layer->out_rstd1 = parts.branches ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    layer->out_rstd2 = parts.branches ? activations_alloc(a, s.R, sizeof(float)) : NULL;
    if (!is_of_all || !model->options->model.keep_attention)
        layer->logsumexp = activations_alloc(a, most_logsumexps(model), sizeof(float));
    sequence_allocate_layer(model, a, !is_of_all || !model->options->model.keep_attention, layer);
}

/* What attention gives, as its backward reads it, of a layer that recomputes all else. */
static void allocate_kept_attention(const model_t *model, activations_t *a, layer_activations_t *layer)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    layer->logsumexp = activations_alloc(a, most_logsumexps(model), sizeof(float));
    if (options_sequence_ranks(&model->options->train) > 1)
        sequence_allocate_kept(model, a, layer);
    else
        layer->attention = activations_alloc(a, s.R * s.A, s.element_bytes);
}

/* What a norm or the activation function computes: each layer has its own if recompute is none, unless nothing reads it
 * after forward. */
static void allocate_outputs(const model_t *model, activations_t *a, arch_layer_parts_t parts, bool one_normed,
                             bool is_of_all, layer_activations_t *layer)
{
    arch_sizes_t s = arch_largest_sizes(model);
    one_normed |= !parts.normed_inputs;
    layer->normed1 = parts.normed_inputs ? activations_alloc(a, s.R * s.C, s.element_bytes) : NULL;
    layer->normed2 = one_normed ? layer->normed1 : activations_alloc(a, s.R * s.C, s.element_bytes);
    layer->hidden_is_tile = is_of_all && options_tile_rows(model->options) > 0;
    layer->hidden = activations_alloc(a, (layer->hidden_is_tile ? most_tile_rows(model) : s.R) * s.F, s.element_bytes);
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
static void allocate_shared(const model_t *model, activations_t *a, arch_layer_parts_t parts,
                            layer_activations_t *shared)
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
        allocate_inputs(model, a, parts, true, shared);
    if (any_shares)
        allocate_outputs(model, a, parts, one_normed, true, shared);
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
    if (options_sequence_ranks(&model->options->train) > 1)
        return sequence_qkv(model); /* on its way to the ranks that have the heads */
    return activations_alloc(a, s.R * s.qkv, s.element_bytes);
}

void arch_allocate_layers(const model_t *model, activations_t *a, arch_layer_parts_t parts)
{
    arch_sizes_t s = arch_largest_sizes(model);
    layer_activations_t shared = {0}; /* by all layers that recompute */
    allocate_stash(model, a);
    sequence_allocate_shared(model, a);
    allocate_shared(model, a, parts, &shared);
    if (parts.normed_qkv && any_recomputes(model))
        shared.normed_qkv = allocate_normed_qkv(model, a);
    fp8_allocate(model, a);
    lora_allocate(model, a);
    preference_allocate(model, a);
    for (int l = 0; l < model->options->model.layers; l++) {
        layer_activations_t *layer = &model->layers[l];
        *layer = shared;
        /* The embedding writes the first x. */
        activations_set_lifetime(a, l == 0 ? 0 : l + 1, l + 1); /* unit 0 is the embedding */
        layer->x = l < options_offloaded_blocks(&model->options->model)
                       ? zero_stash_buffer(a->stash, l)
                       : activations_alloc(a, s.R * s.C, s.element_bytes);
        activations_set_lifetime(a, l + 1, l + 1);
        if (options_block_recompute(&model->options->model, l) != RECOMPUTE_FULL)
            allocate_inputs(model, a, parts, false, layer);
        else if (model->options->model.keep_attention)
            allocate_kept_attention(model, a, layer);
        if (keeps_outputs(model, l))
            allocate_outputs(model, a, parts, false, false, layer);
        if (parts.normed_qkv && !recomputes(model, l))
            layer->normed_qkv = allocate_normed_qkv(model, a);
        fp8_allocate_layer(model, a, l);
        lora_allocate_layer(model, a, l);
    }
    activations_clear_lifetime(a);
}

/* ---- tiles ---- */

void *arch_allocate_d_f(const model_t *model, activations_t *a)
{
    const arch_sizes_t s = arch_largest_sizes(model);
    arch_common_t *c = arch_common(model);
    for (int m = ARCH_MLP_IN; m <= ARCH_MLP_OUT; m++) {
        const arch_extents_t e = arch_extents(model, (arch_matrix_t)m);
        const bool adds = options_tile_rows(model->options) > 0 && model->options->train.precision != ZERO_FP32;
        c->tile_sums[m] = adds ? activations_alloc(a, (e.n_in + 1) * e.n_out, sizeof(float)) : NULL;
    }
    return activations_alloc(a, most_tile_rows(model) * s.F, s.element_bytes);
}

size_t arch_n_tiles(const model_t *model)
{
    const size_t tile = (size_t)options_tile_rows(model->options), R = arch_sizes(model).R;
    return tile > 0 ? (R + tile - 1) / tile : 1;
}

void arch_begin_tile(model_t *model, size_t i)
{
    const size_t tile = most_tile_rows(model), R = arch_sizes(model).R;
    model->tile = i;
    model->n_tile_rows = R - i * tile < tile ? R - i * tile : tile;
}

void arch_end_tiles(model_t *model)
{
    model->tile = model->n_tile_rows = 0;
}

size_t arch_n_rows(const model_t *model)
{
    return model->n_tile_rows > 0 ? model->n_tile_rows : arch_sizes(model).R;
}

void *arch_row(const model_t *model, void *data, size_t width, bool is_tile)
{
    const size_t first = is_tile ? 0 : model->tile * most_tile_rows(model);
    return (unsigned char *)data + first * width * arch_sizes(model).element_bytes;
}

/* ---- embedding ---- */

zero_status_t arch_scale(model_t *model, void *x, float factor)
{
    arch_sizes_t s = arch_sizes(model);
    return factor == 1.0f ? ZERO_OK : model->kernels->add_scaled(&model->ctx, x, NULL, x, factor, s.R * s.C);
}

/* layers[0].x = the rows of the token table that the batch names, plus those of the positions if they are learned. */
static zero_status_t embed_forward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    const float scale = (float)options_embedding_scale(&model->options->model);
    ZERO_TRY(fp8_begin_pass(model));
    ZERO_TRY(model->kernels->embed(
        &model->ctx, model->layers[0].x, model->tokens, arch_starts(model), model_weight(model, c->tokens),
        model->ops->learns_positions ? model_weight(model, c->positions) : ARCH_NO_WEIGHT, s.B, s.T, s.C, s.V));
    return arch_scale(model, model->layers[0].x, scale);
}

/* Clears rows first .. end of the gradient of positions: those that no token of this rank has. */
static zero_status_t clear_positions(model_t *model, zero_grad_t positions, size_t first, size_t end)
{
    size_t row_bytes = arch_sizes(model).C * zero_dtype_size(positions.dtype);
    if (!positions.data || positions.accumulate || first == end)
        return ZERO_OK;
    return model->kernels->zero_fill(&model->ctx, (unsigned char *)positions.data + first * row_bytes,
                                     (end - first) * row_bytes);
}

static zero_status_t embed_backward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    zero_grad_t tokens = model_grad(model, c->tokens);
    zero_grad_t positions = model->ops->learns_positions ? model_grad(model, c->positions) : ARCH_NO_GRAD;
    if (!tokens.data && !positions.data)
        return ZERO_OK;
    /* Documents have positions from 0 on, wherever they are. Else this rank's are one run. */
    const size_t first = model->starts ? 0 : sequence_begin(model);
    const size_t n = model->starts ? (size_t)model->options->model.seq_len : s.T;
    ZERO_TRY(clear_positions(model, positions, 0, first));
    ZERO_TRY(clear_positions(model, positions, first + n, (size_t)options_positions(&model->options->model)));
    if (positions.data)
        positions.data = (unsigned char *)positions.data + first * s.C * zero_dtype_size(positions.dtype);
    ZERO_TRY(arch_scale(model, c->d_x, (float)options_embedding_scale(&model->options->model)));
    return model->kernels->embed_backward(&model->ctx, tokens, positions, c->d_x, model->tokens,
                                          model->starts ? arch_starts(model) : NULL, s.B, s.T, n, s.C, s.V);
}

/* ---- attention ---- */

zero_mask_t arch_mask(const model_t *model, int layer)
{
    bool has_starts =
        options_generate(model->options) ? model->continues && model->n_cached > 0 : model->pass != MODEL_LOGITS;
    return (zero_mask_t){.starts = has_starts ? model->starts : NULL,
                         .window = (size_t)options_window(&model->options->model, layer)};
}

const int32_t *arch_starts(const model_t *model)
{
    return sequence_is_shared(model) ? model->part_starts : arch_mask(model, 0).starts;
}

zero_attention_shape_t arch_attention_shape(const model_t *model)
{
    arch_sizes_t s = arch_sizes(model);
    return (zero_attention_shape_t){s.B, s.T, s.heads, s.kv_heads, s.head_dim};
}

zero_status_t arch_attention(model_t *model, int layer, const void *qkv)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const zero_mask_t mask = arch_mask(model, layer);
    const zero_model_kernels_t *k = model->kernels;
    const layer_activations_t *a = &model->layers[layer];
    arch_sizes_t s = arch_sizes(model);
    size_t layer_elems = (size_t)model->options->model.seq_len * 2 * s.kv_heads * s.head_dim;
    if (sequence_is_shared(model))
        return sequence_attention(model, layer, qkv);
    if (!model->continues)
        return k->attention(&model->ctx, a->attention, a->logsumexp, qkv, &mask, &shape);
    return k->attention_cached(&model->ctx, a->attention, a->logsumexp,
                               (unsigned char *)model->cache + (size_t)layer * layer_elems * s.element_bytes, qkv,
                               &mask, &shape);
}

zero_status_t arch_attention_again(model_t *model, int layer, const void *qkv)
{
    if (!model->options->model.keep_attention)
        return arch_attention(model, layer, qkv);
    return sequence_is_shared(model) ? sequence_attention_again(model, layer, qkv) : ZERO_OK;
}

zero_status_t arch_attention_backward(model_t *model, int layer, void *d_qkv, const void *d_out, const void *qkv)
{
    const zero_attention_shape_t shape = arch_attention_shape(model);
    const zero_mask_t mask = arch_mask(model, layer);
    const layer_activations_t *a = &model->layers[layer];
    if (sequence_is_shared(model))
        return sequence_attention_backward(model, layer, d_qkv, d_out);
    return model->kernels->attention_backward(&model->ctx, d_qkv, d_out, qkv, a->attention, a->logsumexp, &mask,
                                              &shape);
}

/* ---- output head ---- */

/* Returns what logits are multiplied by: here the head's input is. */
static float logits_factor(const model_t *model)
{
    return (float)(1.0 / model->options->model.logits_scaling);
}

zero_status_t arch_final_norm(model_t *model, const void *residual)
{
    ZERO_TRY(model->ops->final_norm(model, residual));
    return arch_scale(model, arch_common(model)->normed, logits_factor(model));
}

/* Adds the pass's loss, and unless dx is NULL computes the head's gradient and that of its input. */
static zero_status_t head_loss(model_t *model, void *dx)
{
    const arch_common_t *c = arch_common(model);
    const arch_sizes_t s = arch_sizes(model);
    if (model->preference)
        return preference_loss(model, dx);
    return model->kernels->head_loss(&model->ctx, model->loss, dx, dx ? model_grad(model, c->head) : ARCH_NO_GRAD,
                                     c->normed, model_weight(model, c->head), model->targets, model->loss_weight,
                                     zero_loss_scale(model->engine), s.R, s.C, s.V);
}

static zero_status_t head_forward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(arch_final_norm(model, model->layers[model->options->model.layers - 1].mid));
    if (model->pass == MODEL_LOSS)
        return head_loss(model, NULL);
    if (model->pass == MODEL_LOGITS) {
        const unsigned char *row = (const unsigned char *)c->normed + model->logits_at * s.C * s.element_bytes;
        return model->kernels->head_logits(&model->ctx, model->logits, row, model_weight(model, c->head), 1, s.C, s.V);
    }
    return ZERO_OK;
}

/* Computes the loss, the head's gradient and d_x. */
static zero_status_t head_backward(model_t *model)
{
    const arch_common_t *c = arch_common(model);
    arch_sizes_t s = arch_sizes(model);
    ZERO_TRY(head_loss(model, c->d_c));
    ZERO_TRY(arch_scale(model, c->d_c, logits_factor(model)));
    ZERO_TRY(model->kernels->zero_fill(&model->ctx, c->d_x, s.R * s.C * s.element_bytes));
    return model->ops->final_norm_backward(model);
}

/* ---- units ---- */

zero_status_t arch_forward(model_t *model, zero_unit_t unit)
{
    int layer = unit - 1;
    if (unit == 0)
        return embed_forward(model);
    ZERO_TRY(preference_forward(model, unit));
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
