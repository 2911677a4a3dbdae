/* arch.c - see arch.h. */
#include "train/model/arch.h"

#include <math.h>

zero_status_t arch_declare(model_t *model, zero_unit_t unit, const arch_tensor_t *spec, zero_tensor_t *tensor)
{
    bool is_matrix = spec->rows != 0;
    zero_tensor_desc_t desc = {.name = spec->name,
                               .n_dims = is_matrix ? 2 : 1,
                               .shape = {is_matrix ? spec->rows : spec->columns, is_matrix ? spec->columns : 0},
                               .init = spec->init,
                               .init_std = spec->std,
                               .decay = is_matrix,
                               .packed = spec->packed};
    return zero_model_add_tensor(model->declaration, unit, &desc, tensor);
}

float arch_residual_std(const model_t *model)
{
    return (float)(0.02 / sqrt(2.0 * (double)model->options->model.layers));
}

static arch_sizes_t sizes_of(const model_t *model, size_t n_batch, size_t seq_len)
{
    const options_t *o = model->options;
    size_t C = (size_t)o->model.dim, heads = (size_t)o->model.heads, kv_heads = (size_t)o->model.kv_heads;
    size_t head_dim = C / heads;
    return (arch_sizes_t){
        .R = n_batch * seq_len,
        .B = n_batch,
        .T = seq_len,
        .C = C,
        .F = (size_t)o->model.ffn_dim,
        .V = (size_t)o->model.vocab_size,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .qkv = (heads + 2 * kv_heads) * head_dim,
        .element_bytes = zero_dtype_size(model->kernels->activation_dtype((zero_dtype_t)o->train.precision)),
    };
}

arch_sizes_t arch_sizes(const model_t *model)
{
    return sizes_of(model, model->n_batch, model->seq_len);
}

arch_sizes_t arch_largest_sizes(const model_t *model)
{
    return sizes_of(model, (size_t)model->options->train.micro_batch, (size_t)model->options->model.seq_len);
}

zero_status_t arch_head_forward(model_t *model, const void *x, zero_tensor_t weight)
{
    const zero_model_kernels_t *k = model->kernels;
    arch_sizes_t s = arch_sizes(model);
    if (model->pass == MODEL_LOSS)
        return k->head_loss(&model->ctx, model->loss, NULL, (zero_grad_t){0}, x, model_weight(model, weight),
                            model->targets, model->loss_weight, zero_loss_scale(model->engine), s.R, s.C, s.V);
    if (model->pass == MODEL_LOGITS) {
        const unsigned char *row = (const unsigned char *)x + model->logits_at * s.C * s.element_bytes;
        return k->head_logits(&model->ctx, model->logits, row, model_weight(model, weight), 1, s.C, s.V);
    }
    return ZERO_OK;
}

zero_status_t arch_head_backward(model_t *model, void *dx, const void *x, zero_tensor_t weight)
{
    arch_sizes_t s = arch_sizes(model);
    return model->kernels->head_loss(&model->ctx, model->loss, dx, model_grad(model, weight), x,
                                     model_weight(model, weight), model->targets, model->loss_weight,
                                     zero_loss_scale(model->engine), s.R, s.C, s.V);
}
