/* hf_families.c - see hf_families.h. */
#include "train/hugging_face/hf_families.h"

#include <string.h>

static double four_dims(const options_t *filled)
{
    return 4.0 * (double)filled->model.dim;
}

/* The defaults of transformers' configuration classes, if a file leaves these out. */
static double default_kv_heads(const options_t *filled)
{
    static const double KV_HEADS[] = {[ARCH_MISTRAL] = 8.0, [ARCH_QWEN2] = 32.0, [ARCH_QWEN3] = 32.0};
    return filled->model.arch == ARCH_LLAMA ? (double)filled->model.heads : KV_HEADS[filled->model.arch];
}

/* 0 leaves a setting as it is, to be derived from others. */
static double derived(const options_t *filled)
{
    (void)filled;
    return 0.0;
}

static double default_head_dim(const options_t *filled)
{
    return filled->model.arch == ARCH_QWEN3 ? 128.0 : derived(filled);
}

static double one(const options_t *filled)
{
    (void)filled;
    return 1.0;
}

static double gpt2_eps(const options_t *filled)
{
    (void)filled;
    return 1e-5;
}

static double llama_eps(const options_t *filled)
{
    (void)filled;
    return 1e-6;
}

static double llama_theta(const options_t *filled)
{
    (void)filled;
    return 10000.0;
}

static double default_high_freq(const options_t *filled)
{
    (void)filled;
    return 4.0;
}

static double default_original(const options_t *filled)
{
    (void)filled;
    return 8192.0;
}

static const hf_key_t GPT2_KEYS[] = {
    {"layers", "n_layer", NULL},
    {"dim", "n_embd", NULL},
    {"heads", "n_head", NULL},
    {"ffn_dim", "n_inner", four_dims},
    {"vocab_size", "vocab_size", NULL},
    {"positions", "n_positions", NULL},
    {"norm_eps", "layer_norm_epsilon", gpt2_eps},
    {0},
};
static const hf_fixed_t GPT2_FIXED[] = {
    {"activation_function", "\"gelu_new\""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"tie_word_embeddings", "true"},
    {0},
};

/* The Llama family has no table of positions: the length of sequences is the user's choice. */
static const hf_key_t LLAMA_KEYS[] = {
    {"layers", "num_hidden_layers", NULL},
    {"dim", "hidden_size", NULL},
    {"heads", "num_attention_heads", NULL},
    {"kv_heads", "num_key_value_heads", default_kv_heads},
    {"head_dim", "head_dim", default_head_dim},
    {"ffn_dim", "intermediate_size", NULL},
    {"vocab_size", "vocab_size", NULL},
    {"norm_eps", "rms_norm_eps", llama_eps},
    {"tied", "tie_word_embeddings", derived},
    {"rope_theta", "rope_theta", llama_theta},
    {"rope_factor", HF_SCALING "factor", one},
    {"rope_low_freq", HF_SCALING "low_freq_factor", one},
    {"rope_high_freq", HF_SCALING "high_freq_factor", default_high_freq},
    {"rope_original", HF_SCALING "original_max_position_embeddings", default_original},
    {0},
};
static const hf_fixed_t LLAMA_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {"mlp_bias", "false"},
    {0},
};
static const hf_fixed_t QWEN3_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {"attention_bias", "false"},
    {0},
};
static const hf_fixed_t SILU_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {0},
};

/* What is written beside these and not read, unless it came with the model: no dropout, as in training, and no special
 * tokens, which a trainer does not know. The first is the class, which is always written. */
static const hf_fixed_t GPT2_WRITTEN[] = {
    {"architectures", "[\"GPT2LMHeadModel\"]"},
    {"embd_pdrop", "0.0"},
    {"attn_pdrop", "0.0"},
    {"resid_pdrop", "0.0"},
    {0},
};
static const hf_fixed_t LLAMA_WRITTEN[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {0},
};
static const hf_fixed_t MISTRAL_WRITTEN[] = {
    {"architectures", "[\"MistralForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {0},
};
static const hf_fixed_t QWEN2_WRITTEN[] = {
    {"architectures", "[\"Qwen2ForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {"use_sliding_window", "false"},
    {0},
};
static const hf_fixed_t QWEN3_WRITTEN[] = {
    {"architectures", "[\"Qwen3ForCausalLM\"]"},
    {"attention_dropout", "0.0"},
    {"use_sliding_window", "false"},
    {0},
};
const hf_fixed_t hf_all_written[] = {
    {"bos_token_id", "null"},
    {"eos_token_id", "null"},
    {0},
};

const hf_family_t hf_families[] = {
    [ARCH_GPT2] = {"gpt2", GPT2_KEYS, GPT2_FIXED, GPT2_WRITTEN},
    [ARCH_LLAMA] = {"llama", LLAMA_KEYS, LLAMA_FIXED, LLAMA_WRITTEN},
    [ARCH_MISTRAL] = {"mistral", LLAMA_KEYS, SILU_FIXED, MISTRAL_WRITTEN},
    [ARCH_QWEN2] = {"qwen2", LLAMA_KEYS, SILU_FIXED, QWEN2_WRITTEN},
    [ARCH_QWEN3] = {"qwen3", LLAMA_KEYS, QWEN3_FIXED, QWEN3_WRITTEN},
};
const int n_hf_families = (int)(sizeof hf_families / sizeof hf_families[0]);

/* Well-known families that are not supported, each with what it computes that is missing here. */
static const struct {
    const char *model_type, *missing;
} REFUSED[] = {
    {"gemma", "GELU in a gated MLP, scaled embeddings and norms with 1 + weight"},
    {"gemma2", "norms after attention and MLP, soft caps of scores and logits, and attention within a window"},
    {"gemma3", "images, norms after attention and MLP, and attention within a window"},
    {"gemma3_text", "norms after attention and MLP, and attention within a window"},
    {"ministral", "attention within a window in some of its layers"},
    {"mixtral", "a mixture of experts"},
    {"qwen2_moe", "a mixture of experts"},
    {"qwen3_moe", "a mixture of experts"},
    {"phi3", "its fused tensors' names and rotation of a part of each head"},
    {"gpt_neox", "attention and MLP side by side, and rotation of a part of each head"},
};

const char *hf_family_missing(const char *model_type)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++)
        if (strcmp(REFUSED[i].model_type, model_type) == 0)
            return REFUSED[i].missing;
    return NULL;
}
