/* fp8.c - see fp8.h.
 *
 * GPUs multiply fp8 only if the summed extent of both operands is contiguous, so a copy is wanted in rows or in columns
 * (transposed):
 *
 *     y  = x W       x in rows                   a layer's input is cast once, in both forms if backward needs no other
 *     dx = dy W^T    dy in rows                  dy is cast once for both products
 *     dW = x^T dy    x in columns, dy in columns
 *
 * Where recompute is none, x's columns are kept from forward to backward: a byte in place of an activation's two. Else
 * backward recomputes x, which then takes no memory per layer, and casts it again with the scale that forward found.
 * Under adapters no dW is computed, so there are no columns at all, and backward needs x itself.
 * Weights that were gathered in fp8 are used as they are, or transposed into room for one matrix. Others are cast
 * before each product, to the same bytes. They don't change between forward and backward, so their scale is found once.
 *
 * The absolute maximum of an x or dy is recorded by the kernel that writes it (fp8_recording), which raises a number
 * that fp8_begin_pass has cleared: a maximum over what is written twice, once more by recompute, is the same. What
 * attention writes is read once more for its maximum.
 */
#include "train/model/fp8.h"

#include <math.h>
#include <stdlib.h>

#include "train/model/arch.h"
#include "train/report/report.h"

struct fp8 {
    /* Device memory, the engine's. */
    zero_fp8_scales_t *scales;           /* [layers, ARCH_N_MATRICES, FP8_N_OPERANDS] */
    uint8_t *rows;                       /* [R, the widest] x or dy, written by fp8_cast or lora.c's
                                          * narrow_product and read by the next product: every cast overwrites it */
    uint8_t *weight;                     /* of the largest matrix, in the form that is multiplied next */
    uint8_t *dy_columns, *x_columns;     /* [the widest, R]; x_columns NULL: every layer keeps its own */
    zero_fp8_scales_t *reports;          /* host, pinned: a ring of n_reports copies of the scales */
    int64_t n_reports, n_stored, n_read; /* copies so far */
    const zero_fp8_scales_t *gathered;   /* device: [layers, ARCH_N_MATRICES] of weights; NULL: they are among scales */
    uint8_t *kept[][ARCH_N_MATRICES];    /* [layers] x's columns of [n_in, R] each; NULL: not kept */
};

static size_t n_scales(const model_t *model)
{
    return (size_t)model->options->model.layers * ARCH_N_MATRICES * FP8_N_OPERANDS;
}

/* Weights that are gathered in fp8 also have the engine's scales: a copy has room for both. */
static size_t n_reported(const model_t *model)
{
    return n_scales(model) + n_scales(model) / FP8_N_OPERANDS;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

zero_status_t fp8_create(model_t *model)
{
    size_t n_layers = (size_t)model->options->model.layers;
    if (model->options->train.fp8 == FP8_NONE)
        return ZERO_OK;
    model->fp8 = calloc(1, sizeof *model->fp8 + n_layers * sizeof model->fp8->kept[0]);
    if (!model->fp8)
        return report_rank_error(ZERO_ERROR_MEMORY, "no memory for the fp8 tables of %zu layers", n_layers);
    return ZERO_OK;
}

void fp8_destroy(model_t *model)
{
    if (model->fp8 && model->device)
        zero_host_free(model->device, model->fp8->reports);
    free(model->fp8);
}

/* ---- memory ---- */

bool fp8_keeps_inputs(const model_t *model, int layer)
{
    return model->options->train.fp8 != FP8_NONE && !model->lora &&
           options_block_recompute(&model->options->model, layer) == RECOMPUTE_NONE;
}

void fp8_allocate(const model_t *model, activations_t *a)
{
    fp8_t *f = model->fp8;
    arch_sizes_t s = arch_largest_sizes(model);
    size_t widest_input = 0, widest_output = 0, largest_matrix = 0;
    if (!f)
        return;
    for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++) {
        arch_extents_t extents = arch_extents(model, m);
        widest_input = larger(widest_input, extents.n_in);
        widest_output = larger(widest_output, extents.n_out);
        largest_matrix = larger(largest_matrix, extents.n_in * extents.n_out);
    }
    f->scales = activations_alloc(a, n_scales(model), sizeof *f->scales);
    f->rows = activations_alloc(a, s.R * larger(widest_input, widest_output), 1);
    f->weight = activations_alloc(a, largest_matrix, 1);
    if (model->lora)
        return;
    f->dy_columns = activations_alloc(a, s.R * widest_output, 1);
    bool all_keep = true;
    for (int l = 0; l < model->options->model.layers; l++)
        all_keep &= fp8_keeps_inputs(model, l);
    if (!all_keep)
        f->x_columns = activations_alloc(a, s.R * widest_input, 1);
}

void fp8_allocate_layer(const model_t *model, activations_t *a, int layer)
{
    if (!fp8_keeps_inputs(model, layer))
        return;
    for (arch_matrix_t m = 0; m < ARCH_N_MATRICES; m++)
        model->fp8->kept[layer][m] = activations_alloc(a, arch_largest_sizes(model).R * arch_extents(model, m).n_in, 1);
}

zero_status_t fp8_attach(model_t *model, int64_t n_steps)
{
    fp8_t *f = model->fp8;
    char why[ZERO_MODEL_WHY];
    void *reports;
    if (!f)
        return ZERO_OK;
    if (!model->kernels->fp8_is_available(&model->ctx, why))
        return report_error(ZERO_ERROR_USAGE, "[train] fp8 = linear: %s; use none", why);
    ZERO_TRY(zero_host_alloc(model->device, (size_t)n_steps * n_reported(model) * sizeof *f->scales, &reports));
    f->reports = reports;
    f->n_reports = n_steps;
    return model->kernels->zero_fill(&model->ctx, f->scales, n_scales(model) * sizeof *f->scales);
}

/* ---- products ---- */

static zero_fp8_scales_t *scales_of(const model_t *model, arch_linear_t at, fp8_operand_t operand)
{
    return &model->fp8->scales[(at.layer * ARCH_N_MATRICES + at.matrix) * FP8_N_OPERANDS + operand];
}

zero_status_t fp8_begin_pass(model_t *model)
{
    const fp8_t *f = model->fp8;
    return !f ? ZERO_OK : model->kernels->zero_fill(&model->ctx, f->scales, n_scales(model) * sizeof *f->scales);
}

zero_status_t fp8_forget(model_t *model, int layer)
{
    const size_t n = ARCH_N_MATRICES * FP8_N_OPERANDS;
    const fp8_t *f = model->fp8;
    return !f ? ZERO_OK : model->kernels->zero_fill(&model->ctx, f->scales + (size_t)layer * n, n * sizeof *f->scales);
}

zero_model_context_t fp8_recording(const model_t *model, int layer, arch_matrix_t matrix, fp8_operand_t operand)
{
    zero_model_context_t ctx = model->ctx;
    if (model->fp8)
        ctx.absmax = &scales_of(model, (arch_linear_t){.layer = layer, .matrix = matrix}, operand)->absmax;
    return ctx;
}

zero_model_context_t fp8_recording_d_x(const model_t *model, int l)
{
    return l == 0 ? model->ctx : fp8_recording(model, l - 1, ARCH_MLP_OUT, FP8_DY);
}

/* Takes a weight as it was gathered, in the form of *w8 that is wanted. */
static zero_status_t take_gathered(model_t *model, arch_linear_t at, zero_fp8_param_t gathered, size_t n_rows,
                                   size_t n_columns, zero_fp8_t *w8)
{
    w8->scales = (zero_fp8_scales_t *)gathered.scales;
    model->fp8->gathered = gathered.scales - (at.layer * ARCH_N_MATRICES + at.matrix);
    if (w8->columns)
        return model->kernels->fp8_transpose(&model->ctx, w8->columns, gathered.data, n_rows, n_columns);
    w8->rows = (uint8_t *)gathered.data;
    return ZERO_OK;
}

/* Finds a weight for forward (W), or for the gradient of the input (W^T), which follows forward. */
static zero_status_t find_weight(model_t *model, arch_linear_t at, bool forward, zero_fp8_t *w8)
{
    fp8_t *f = model->fp8;
    arch_extents_t e = arch_extents(model, at.matrix);
    zero_fp8_param_t gathered = model_fp8_weight(model, at.weight);
    bool in_out = model->ops->layout == ZERO_LINEAR_IN_OUT, columns = in_out == forward;
    size_t n_rows = in_out ? e.n_in : e.n_out, n_columns = in_out ? e.n_out : e.n_in;
    *w8 = (zero_fp8_t){.format = ZERO_E4M3,
                       .rows = columns ? NULL : f->weight,
                       .columns = columns ? f->weight : NULL,
                       .scales = scales_of(model, at, FP8_W)};
    if (gathered.data)
        return take_gathered(model, at, gathered, n_rows, n_columns, w8);
    return model->kernels->fp8_cast_weight(&model->ctx, w8, model_weight(model, at.weight), !forward, n_rows,
                                           n_columns);
}

zero_fp8_t fp8_x(const model_t *model, arch_linear_t at)
{
    const fp8_t *f = model->fp8;
    if (!f)
        return (zero_fp8_t){.rows = NULL};
    const bool keeps = model->pass == MODEL_TRAIN && fp8_keeps_inputs(model, at.layer);
    return (zero_fp8_t){.format = ZERO_E4M3,
                        .rows = f->rows,
                        .columns = keeps ? f->kept[at.layer][at.matrix] : NULL,
                        .scales = scales_of(model, at, FP8_X)};
}

zero_fp8_t fp8_dy(const model_t *model, arch_linear_t at)
{
    const fp8_t *f = model->fp8;
    return f ? (zero_fp8_t){ZERO_E5M2, f->rows, f->dy_columns, scales_of(model, at, FP8_DY)}
             : (zero_fp8_t){.rows = NULL};
}

zero_status_t fp8_linear(model_t *model, arch_linear_t at, void *y, bool accumulate, const void *x, zero_weight_t bias)
{
    const arch_extents_t e = arch_extents(model, at.matrix);
    const zero_fp8_t x8 = fp8_x(model, at);
    zero_fp8_t w8;
    if (x)
        ZERO_TRY(model->kernels->fp8_cast(&model->ctx, &x8, x, at.x_is_recorded, arch_n_rows(model), e.n_in));
    ZERO_TRY(find_weight(model, at, true, &w8));
    return model->kernels->linear_fp8(&model->ctx, y, accumulate, &x8, &w8, model->ops->layout, bias,
                                      arch_n_rows(model), e.n_in, e.n_out);
}

zero_status_t fp8_linear_backward_input(model_t *model, arch_linear_t at, void *dx, bool accumulate, const void *dy)
{
    const arch_extents_t e = arch_extents(model, at.matrix);
    const zero_fp8_t dy8 = fp8_dy(model, at);
    zero_fp8_t w8;
    if (dy)
        ZERO_TRY(model->kernels->fp8_cast(&model->ctx, &dy8, dy, at.dy_is_recorded, arch_n_rows(model), e.n_out));
    ZERO_TRY(find_weight(model, at, false, &w8));
    return model->kernels->linear_fp8_backward_input(&model->ctx, dx, accumulate, &dy8, &w8, model->ops->layout,
                                                     arch_n_rows(model), e.n_in, e.n_out);
}

zero_status_t fp8_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                         const void *dy)
{
    const zero_model_kernels_t *k = model->kernels;
    fp8_t *f = model->fp8;
    arch_extents_t e = arch_extents(model, at.matrix);
    zero_grad_t dweight = model_grad(model, at.weight);
    zero_fp8_t dy8 = {ZERO_E5M2, NULL, f->dy_columns, scales_of(model, at, FP8_DY)};
    zero_fp8_t x8 = {ZERO_E4M3, NULL, f->kept[at.layer][at.matrix], scales_of(model, at, FP8_X)};
    if (!fp8_keeps_inputs(model, at.layer)) {
        x8.columns = f->x_columns;
        ZERO_TRY(k->fp8_cast(&model->ctx, &x8, x, true, arch_n_rows(model), e.n_in));
    }
    ZERO_TRY(k->linear_fp8_backward_weight(&model->ctx, dweight, model->ops->layout, &x8, &dy8, arch_n_rows(model),
                                           e.n_in, e.n_out));
    return dbias.data ? k->sum_columns(&model->ctx, dbias, dy, arch_n_rows(model), e.n_out) : ZERO_OK;
}

/* ---- the range of scales ---- */

zero_status_t fp8_store_range(model_t *model)
{
    fp8_t *f = model->fp8;
    size_t n = n_scales(model);
    if (!f)
        return ZERO_OK;
    zero_fp8_scales_t *report = f->reports + (size_t)(f->n_stored++ % f->n_reports) * n_reported(model);
    ZERO_TRY(zero_device_copy(model->device, report, f->scales, n * sizeof *report, model->ctx.stream));
    return !f->gathered ? ZERO_OK
                        : zero_device_copy(model->device, report + n, f->gathered,
                                           (n_reported(model) - n) * sizeof *report, model->ctx.stream);
}

fp8_range_t fp8_read_range(model_t *model)
{
    fp8_t *f = model->fp8;
    fp8_range_t range = {.is_known = f != NULL, .min_scale = INFINITY, .max_scale = 0.0f};
    if (!f)
        return range;
    const zero_fp8_scales_t *scales = f->reports + (size_t)(f->n_read++ % f->n_reports) * n_reported(model);
    for (size_t i = 0; i < n_reported(model); i++) {
        if (scales[i].scale == 0.0f) /* of a weight that is in the other array */
            continue;
        range.min_scale = fminf(range.min_scale, scales[i].scale);
        range.max_scale = fmaxf(range.max_scale, scales[i].scale);
    }
    return range;
}
