/* llama_tensors.c - declares the tensors of the Llama family, by Hugging Face's names. See llama.h.
 */
#include <stdio.h>

#include "train/model/llama.h"
#include "train/model/lora.h"
#include "train/report/report.h"

typedef struct block_tensor {
    const char *suffix;
    int64_t rows, columns; /* as arch_tensor_t's */
    zero_init_t init;
    float std;
    bool packed;
    zero_tensor_t *tensor;
    bool is_absent;
} block_tensor_t;

static zero_status_t declare_block(model_t *model, int layer, llama_block_t *t)
{
    const options_t *o = model->options;
    int64_t C = o->model.dim, F = o->model.ffn_dim, A = options_head_dim(&o->model) * o->model.heads;
    int64_t hd = options_head_dim(&o->model), kv = hd * o->model.kv_heads;
    const bool no_qkv_bias = !o->model.qkv_bias, no_out_bias = !o->model.out_bias, no_mlp_bias = !o->model.mlp_bias;
    const bool no_qk_norm = !normalizes_qk(model), fused = traits_of(model)->fuses_qkv;
    const bool fused_mlp = traits_of(model)->gate_up != NULL;
    const bool of_all = traits_of(model)->qk_norm == QK_NORM_PROJECTIONS;
    const bool no_in_norm = !has_input_norms(model), no_out_norm = !has_output_norms(model);
    const zero_init_t ones =
        traits_of(model)->adds_one ? ZERO_INIT_ZEROS : ZERO_INIT_ONES; /* with the one that is added */
    const char *norm2 = no_out_norm ? "post_attention_layernorm.weight" : "pre_feedforward_layernorm.weight";
    const float residual_std = arch_residual_std(model);
    char gate_up[ZERO_MAX_NAME] = "", down[ZERO_MAX_NAME];
    if (fused_mlp)
        snprintf(gate_up, sizeof gate_up, "%s.weight", traits_of(model)->gate_up);
    snprintf(down, sizeof down, "%s.weight", traits_of(model)->down ? traits_of(model)->down : "mlp.down_proj");
    const block_tensor_t tensors[] = {
        {"input_layernorm.weight", 0, C, ones, 0, false, &t->norm1, no_in_norm},
        {"self_attn.qkv_proj.weight", A + 2 * kv, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->q, !fused},
        {"self_attn.q_proj.weight", A, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->q, fused},
        {"self_attn.k_proj.weight", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->k, fused},
        {"self_attn.v_proj.weight", kv, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->v, fused},
        {"self_attn.q_proj.bias", 0, A, ZERO_INIT_ZEROS, 0, false, &t->q_bias, no_qkv_bias},
        {"self_attn.k_proj.bias", 0, kv, ZERO_INIT_ZEROS, 0, true, &t->k_bias, no_qkv_bias},
        {"self_attn.v_proj.bias", 0, kv, ZERO_INIT_ZEROS, 0, true, &t->v_bias, no_qkv_bias},
        {"self_attn.q_norm.weight", 0, of_all ? A : hd, ones, 0, false, &t->q_norm, no_qk_norm},
        {"self_attn.k_norm.weight", 0, of_all ? kv : hd, ones, 0, false, &t->k_norm, no_qk_norm},
        {"self_attn.o_proj.weight", C, A, ZERO_INIT_NORMAL, residual_std, false, &t->attention, false},
        {"self_attn.o_proj.bias", 0, C, ZERO_INIT_ZEROS, 0, false, &t->out_bias, no_out_bias},
        {"post_attention_layernorm.weight", 0, C, ones, 0, false, &t->out_norm1, no_out_norm},
        {norm2, 0, C, ones, 0, false, &t->norm2, no_in_norm},
        {gate_up, 2 * F, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->gate, !fused_mlp},
        {"mlp.gate_proj.weight", F, C, ZERO_INIT_NORMAL, ARCH_STD, false, &t->gate, fused_mlp},
        {"mlp.up_proj.weight", F, C, ZERO_INIT_NORMAL, ARCH_STD, true, &t->up, fused_mlp},
        {"mlp.gate_proj.bias", 0, F, ZERO_INIT_ZEROS, 0, false, &t->gate_bias, no_mlp_bias},
        {"mlp.up_proj.bias", 0, F, ZERO_INIT_ZEROS, 0, true, &t->up_bias, no_mlp_bias},
        {down, C, F, ZERO_INIT_NORMAL, residual_std, false, &t->down, false},
        {"mlp.down_proj.bias", 0, C, ZERO_INIT_ZEROS, 0, false, &t->down_bias, no_mlp_bias},
        {"post_feedforward_layernorm.weight", 0, C, ones, 0, false, &t->out_norm2, no_out_norm},
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
    return lora_declare(model, layer, unit);
}

zero_status_t llama_declare(model_t *model)
{
    llama_t *g = model->arch;
    arch_rope_divisors(&model->options->model, g->divisors);
    int64_t L = model->options->model.layers, C = model->options->model.dim, V = model->options->model.vocab_size;
    zero_unit_t embed, head;
    const arch_tensor_t embed_spec = {"model.embed_tokens.weight", V, C, ZERO_INIT_NORMAL, ARCH_STD, false};
    const zero_init_t ones = traits_of(model)->adds_one ? ZERO_INIT_ZEROS : ZERO_INIT_ONES;
    const arch_tensor_t norm_spec = {"model.norm.weight", 0, C, ones, 0, false};
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
int64_t llama_n_lookup_params(const model_t *model)
{
    return model->options->model.tied ? 0 : model->options->model.vocab_size * model->options->model.dim;
}
