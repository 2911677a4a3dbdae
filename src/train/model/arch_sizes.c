/* arch_sizes.c - see arch_sizes.h. */
#include "train/model/arch_sizes.h"

static arch_sizes_t sizes_of(const model_t *model, size_t n_batch, size_t seq_len)
{
    const options_t *o = model->options;
    size_t C = (size_t)o->model.dim, heads = (size_t)o->model.heads, kv_heads = (size_t)o->model.kv_heads;
    size_t head_dim = (size_t)options_head_dim(o);
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
        .A = heads * head_dim,
        .qkv = (heads + 2 * kv_heads) * head_dim,
        .mlp = (size_t)model->ops->mlp_inputs * (size_t)o->model.ffn_dim,
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

arch_extents_t arch_extents(const model_t *model, arch_matrix_t matrix)
{
    arch_sizes_t s = arch_largest_sizes(model);
    const arch_extents_t extents[] = {
        [ARCH_QKV] = {s.C, s.qkv},
        [ARCH_ATTENTION] = {s.A, s.C},
        [ARCH_MLP_IN] = {s.C, s.mlp},
        [ARCH_MLP_OUT] = {s.F, s.C},
    };
    return extents[matrix];
}
