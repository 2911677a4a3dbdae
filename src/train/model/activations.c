/* activations.c - the extents of a pass and of its matrices, the memory for its activations, a unit's tensors: what
 * arch.c and fp8.c build on. See arch.h and model_state.h.
 */
#include "train/model/arch.h"
#include "train/model/cuda_graphs.h"
#include "train/model/fp8.h"
#include "train/model/model_state.h"
#include "train/report/report.h"
#include <math.h>

/* ---- arch sizes ---- */

static arch_sizes_t sizes_of(const model_t *model, size_t n_batch, size_t seq_len)
{
    const options_t *o = model->options;
    size_t C = (size_t)o->model.dim, heads = (size_t)o->model.heads, kv_heads = (size_t)o->model.kv_heads;
    size_t head_dim = (size_t)options_head_dim(&o->model);
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
    return sizes_of(model, (size_t)model->options->train.micro_batch, (size_t)options_longest_part(model->options));
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

/* ---- activations ---- */

void activations_set_lifetime(activations_t *activations, zero_unit_t first, zero_unit_t last)
{
    activations->has_lifetime = true;
    activations->first = first;
    activations->last = last;
}

void activations_clear_lifetime(activations_t *activations)
{
    activations->has_lifetime = false;
}

void *activations_alloc(activations_t *activations, uint64_t n_elems, size_t element_bytes)
{
    void *data = NULL;
    uint64_t n_bytes = (n_elems * element_bytes + 255) / 256 * 256;
    activations->n_bytes += n_bytes;
    if (!activations->engine || activations->status != ZERO_OK)
        return NULL;
    activations->status =
        activations->has_lifetime
            ? zero_alloc_activations(activations->engine, activations->first, activations->last, n_bytes, &data)
            : zero_alloc(activations->engine, ZERO_MEMORY_ACTIVATIONS, n_bytes, &data);
    return data;
}

void activations_stash(activations_t *activations, zero_device_type_t device, int n_buffers, uint64_t n_elems,
                       size_t element_bytes)
{
    zero_memory_t memory = {0};
    if (activations->status != ZERO_OK)
        return;
    activations->status = zero_stash_plan(device, n_buffers, n_elems * element_bytes, OPTIONS_STASH_SLOTS, &memory);
    activations->n_bytes += memory.bytes[ZERO_MEMORY_ACTIVATIONS];
    activations->pinned_bytes += memory.pinned_bytes;
    if (activations->engine && activations->status == ZERO_OK)
        activations->status = zero_stash_create(activations->engine, n_buffers, n_elems * element_bytes,
                                                OPTIONS_STASH_SLOTS, &activations->stash);
}

/* ---- unit tensors ---- */

zero_weight_t model_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_weight_t weight = {.data = zero_param(model->engine, tensor),
                            .dtype = (zero_dtype_t)model->options->train.precision};
    cuda_graphs_note_weight(model->graphs, tensor, weight);
    return weight;
}

zero_fp8_param_t model_fp8_weight(const model_t *model, zero_tensor_t tensor)
{
    zero_fp8_param_t weight = zero_param_fp8(model->engine, tensor);
    if (weight.data)
        cuda_graphs_note_fp8_weight(model->graphs, tensor, weight);
    return weight;
}

zero_grad_t model_grad(const model_t *model, zero_tensor_t tensor)
{
    zero_grad_t grad = zero_grad(model->engine, tensor);
    cuda_graphs_note_grad(model->graphs, tensor, grad);
    return grad;
}
