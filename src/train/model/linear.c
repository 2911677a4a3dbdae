/* linear.c - the blocks' linear layers of arch.h: the matrix's product in the model's precision or in fp8, with
 * adapters, and in tiles.
 */
#include "train/model/arch.h"
#include "train/model/fp8.h"
#include "train/model/lora.h"
#include "train/model/model_state.h"
#include "train/report/report.h"

/* Finds a layer's matrix in the model's precision; not where it is multiplied in fp8. */
static zero_status_t find_weight(model_t *model, arch_linear_t at, zero_weight_t *weight)
{
    *weight = ARCH_NO_WEIGHT;
    if (model->fp8)
        return ZERO_OK;
    if (model->lora && model->options->lora.base == BASE_FP8)
        return lora_widen(model, at, weight);
    *weight = model_weight(model, at.weight);
    return ZERO_OK;
}

/* Computes y = x W + bias, or adds x W to y. In fp8, x NULL means that lora_forward has cast it; likewise
 * dy below. */
static zero_status_t multiply(model_t *model, arch_linear_t at, void *y, bool accumulate, const void *x,
                              zero_weight_t bias)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    zero_weight_t weight;
    ZERO_TRY(find_weight(model, at, &weight));
    return model->fp8 ? fp8_linear(model, at, y, accumulate, x, bias)
                      : model->kernels->linear(&model->ctx, y, accumulate, x, weight, model->ops->layout, bias,
                                               arch_n_rows(model), e.n_in, e.n_out);
}

/* Computes dx = dy W^T, or adds it to dx. */
static zero_status_t multiply_backward(model_t *model, arch_linear_t at, void *dx, bool accumulate, const void *dy)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    zero_weight_t weight;
    ZERO_TRY(find_weight(model, at, &weight));
    return model->fp8 ? fp8_linear_backward_input(model, at, dx, accumulate, dy)
                      : model->kernels->linear_backward_input(&model->ctx, dx, accumulate, dy, weight,
                                                              model->ops->layout, arch_n_rows(model), e.n_in, e.n_out);
}

/* Fused adapters are added by what reads y. Else, if they cover all of y, they write it first, and the layer's
 * product adds to it. A product that adds reads y while it computes; adapters that added would take a pass over y of
 * their own. The very first product of a matrix overwrites y, since a GPU times its algorithms only then: for these
 * rows, and unless y is all alike. */
zero_status_t arch_linear(model_t *model, arch_linear_t at, void *y, const void *x, zero_weight_t bias)
{
    if (!lora_is_on(model, at))
        return multiply(model, at, y, false, x, bias);
    if (lora_is_fused(model, at.matrix, LORA_FORWARD)) {
        ZERO_TRY(lora_forward(model, at, NULL, false, x, true));
        return multiply(model, at, y, false, model->fp8 ? NULL : x, bias);
    }
    if (bias.data || !lora_writes_output(model, at)) {
        ZERO_TRY(multiply(model, at, y, false, x, bias));
        return lora_forward(model, at, y, true, x, false);
    }
    if (lora_take_first_product(model, at.matrix, LORA_FORWARD))
        ZERO_TRY(multiply(model, at, y, false, x, bias));
    ZERO_TRY(lora_forward(model, at, y, false, x, true));
    return multiply(model, at, y, true, model->fp8 ? NULL : x, bias);
}

zero_status_t arch_linear_backward_input(model_t *model, arch_linear_t at, void *dx, const void *dy)
{
    if (!lora_is_on(model, at))
        return multiply_backward(model, at, dx, false, dy);
    const bool fused = lora_is_fused(model, at.matrix, LORA_BACKWARD);
    if (!fused && lora_take_first_product(model, at.matrix, LORA_BACKWARD))
        ZERO_TRY(multiply_backward(model, at, dx, false, dy));
    ZERO_TRY(lora_backward_input(model, at, fused ? NULL : dx, dy));
    return multiply_backward(model, at, dx, !fused, model->fp8 ? NULL : dy);
}

/* Returns where a tile's gradient is added: to fp32 sums, or to the gradient itself if that is fp32. */
static zero_grad_t tile_grad(const model_t *model, zero_grad_t grad, float *sums)
{
    const bool is_first = model->tile == 0;
    if (!grad.data)
        return grad;
    if (grad.dtype != ZERO_FP32)
        return (zero_grad_t){.data = sums, .dtype = ZERO_FP32, .accumulate = !is_first};
    return (zero_grad_t){.data = grad.data, .dtype = ZERO_FP32, .accumulate = grad.accumulate || !is_first};
}

/* Adds a tile's gradients. Those of the last are put where they belong. */
static zero_status_t add_tile(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x, const void *dy)
{
    const zero_model_kernels_t *k = model->kernels;
    const arch_extents_t e = arch_extents(model, at.matrix);
    const zero_grad_t grad = model_grad(model, at.weight);
    float *sums = arch_common(model)->tile_sums[at.matrix], *bias_sums = sums ? sums + e.n_in * e.n_out : NULL;
    ZERO_TRY(k->linear_backward_weight(&model->ctx, tile_grad(model, grad, sums), model->ops->layout,
                                       tile_grad(model, dbias, bias_sums), x, dy, arch_n_rows(model), e.n_in, e.n_out));
    if (model->tile + 1 < arch_n_tiles(model))
        return ZERO_OK;
    if (grad.data && grad.dtype != ZERO_FP32)
        ZERO_TRY(k->put_grad(&model->ctx, grad, sums, e.n_in * e.n_out));
    return dbias.data && dbias.dtype != ZERO_FP32 ? k->put_grad(&model->ctx, dbias, bias_sums, e.n_out) : ZERO_OK;
}

zero_status_t arch_linear_backward_weight(model_t *model, arch_linear_t at, zero_grad_t dbias, const void *x,
                                          const void *dy)
{
    arch_extents_t e = arch_extents(model, at.matrix);
    if (model->lora) /* the matrix and its bias are frozen */
        return lora_backward_weight(model, at, x);
    if (model->fp8)
        return fp8_linear_backward_weight(model, at, dbias, x, dy);
    if (model->n_tile_rows > 0 && arch_n_tiles(model) > 1)
        return add_tile(model, at, dbias, x, dy);
    return model->kernels->linear_backward_weight(&model->ctx, model_grad(model, at.weight), model->ops->layout, dbias,
                                                  x, dy, arch_n_rows(model), e.n_in, e.n_out);
}
