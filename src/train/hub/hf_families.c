/* hf_families.c - what config.json says of each family of models: which keys are settings, which have one value, which
 * are written; and which families are refused, with the reason. See hf_keys.h.
 */
#include <math.h>
#include <string.h>

#include "train/hub/hf_keys.h"
#include "train/options/families.h"

/* ---- the defaults of transformers' configuration classes, if a file leaves keys out ---- */

static const struct {
    double kv_heads; /* 0: as many as heads */
    double head_dim; /* 0: dim / heads */
    double eps, theta;
    bool tied, qkv_bias;
    double query_scalar;
} CLASSES[] = {
    [ARCH_LLAMA] = {.eps = 1e-6, .theta = 1e4},
    [ARCH_MISTRAL] = {8, .eps = 1e-6, .theta = 1e4},
    [ARCH_QWEN2] = {32, .eps = 1e-6, .theta = 1e4},
    [ARCH_QWEN3] = {32, 128, .eps = 1e-6, .theta = 1e4},
    [ARCH_MINISTRAL] = {8, .eps = 1e-6, .theta = 1e4},
    [ARCH_SMOLLM3] = {4, .eps = 1e-6, .theta = 2e6, .tied = true},
    [ARCH_PHI3] = {.eps = 1e-5, .theta = 1e4},
    [ARCH_SEED_OSS] = {8, 128, .eps = 1e-6, .theta = 1e4, .qkv_bias = true},
    [ARCH_GRANITE] = {.eps = 1e-6, .theta = 1e4},
    [ARCH_GRANITE4] = {.eps = 1e-6, .theta = 1e4},
    [ARCH_OLMO2] = {.eps = 1e-5, .theta = 1e4},
    [ARCH_OLMO3] = {.eps = 1e-5, .theta = 5e5},
    [ARCH_GEMMA3] = {4, 256, .eps = 1e-6, .theta = 1e6, .tied = true, .query_scalar = 256},
};

static double default_kv_heads(const model_options_t *filled)
{
    const double kv_heads = CLASSES[filled->arch].kv_heads;
    return kv_heads > 0.0 ? kv_heads : (double)filled->heads;
}

static double default_head_dim(const model_options_t *filled)
{
    return CLASSES[filled->arch].head_dim;
}

static double default_eps(const model_options_t *filled)
{
    return CLASSES[filled->arch].eps;
}

static double default_theta(const model_options_t *filled)
{
    return CLASSES[filled->arch].theta;
}

static double default_tied(const model_options_t *filled)
{
    return CLASSES[filled->arch].tied;
}

static double default_qkv_bias(const model_options_t *filled)
{
    return CLASSES[filled->arch].qkv_bias;
}

static double default_query_scalar(const model_options_t *filled)
{
    return CLASSES[filled->arch].query_scalar;
}

static double zero(const model_options_t *filled)
{
    (void)filled;
    return 0.0;
}

static double four_dims(const model_options_t *filled)
{
    return 4.0 * (double)filled->dim;
}

static double one(const model_options_t *filled)
{
    (void)filled;
    return 1.0;
}

static double gpt2_eps(const model_options_t *filled)
{
    (void)filled;
    return 1e-5;
}

static double default_high_freq(const model_options_t *filled)
{
    (void)filled;
    return 4.0;
}

static double default_original(const model_options_t *filled)
{
    (void)filled;
    return 8192.0;
}

/* ---- keys ---- */

static const hf_key_t NO_KEYS[] = {{0}};
static const hf_key_t GPT2_KEYS[] = {
    {"layers", "n_layer", NULL, 0},
    {"dim", "n_embd", NULL, 0},
    {"heads", "n_head", NULL, 0},
    {"ffn_dim", "n_inner", four_dims, 0},
    {"vocab_size", "vocab_size", NULL, 0},
    {"positions", "n_positions", NULL, 0},
    {"norm_eps", "layer_norm_epsilon", gpt2_eps, 0},
    {0},
};

/* The Llama family has no table of positions: the length of sequences is the user's choice. */
#define LLAMA_ROWS(ffn_dim)                                                                                            \
    {"layers", "num_hidden_layers", NULL, 0}, {"dim", "hidden_size", NULL, 0},                                         \
        {"heads", "num_attention_heads", NULL, 0},                                                                     \
        {"kv_heads", "num_key_value_heads", default_kv_heads, HF_NULL_IS_0},                                           \
        {"head_dim", "head_dim", default_head_dim, HF_NULL_IS_0}, {"ffn_dim", ffn_dim, NULL, 0},                       \
        {"vocab_size", "vocab_size", NULL, 0}, {"norm_eps", "rms_norm_eps", default_eps, 0},                           \
        {"tied", "tie_word_embeddings", default_tied, 0}, {"rope_theta", "rope_theta", default_theta, 0},              \
        {"rope_factor", HF_SCALING "factor", one, 0}, {"rope_low_freq", HF_SCALING "low_freq_factor", one, 0},         \
        {"rope_high_freq", HF_SCALING "high_freq_factor", default_high_freq, 0},                                       \
        {"rope_original", HF_SCALING "original_max_position_embeddings", default_original, 0},                         \
    {                                                                                                                  \
        0                                                                                                              \
    }
static const hf_key_t LLAMA_KEYS[] = {LLAMA_ROWS("intermediate_size")};
static const hf_key_t GRANITE4_KEYS[] = {LLAMA_ROWS("shared_intermediate_size")}; /* of what all tokens pass */
static const hf_key_t BIAS_KEYS[] = {
    {"qkv_bias", "attention_bias", zero, 0},
    {"out_bias", "attention_bias", zero, 0},
    {0},
};
static const hf_key_t BIASES_KEYS[] = {
    {"qkv_bias", "attention_bias", zero, 0},
    {"out_bias", "attention_bias", zero, 0},
    {"mlp_bias", "mlp_bias", zero, 0},
    {0},
};
#define MULTIPLIERS                                                                                                    \
    {"embedding_multiplier", "embedding_multiplier", one, 0}, {"residual_multiplier", "residual_multiplier", one, 0},  \
        {"attention_multiplier", "attention_multiplier", one, HF_0_IS_UNSET},                                          \
    {                                                                                                                  \
        "logits_scaling", "logits_scaling", one, 0                                                                     \
    }
static const hf_key_t GRANITE_KEYS[] = {
    {"qkv_bias", "attention_bias", zero, 0},
    {"out_bias", "attention_bias", zero, 0},
    {"mlp_bias", "mlp_bias", zero, 0},
    MULTIPLIERS,
    {0},
};
static const hf_key_t GRANITE4_MORE_KEYS[] = {
    {"qkv_bias", "attention_bias", zero, 0},
    {"out_bias", "attention_bias", zero, 0},
    MULTIPLIERS,
    {0},
};
static const hf_key_t GEMMA3_KEYS[] = {
    {"qkv_bias", "attention_bias", zero, 0},
    {"out_bias", "attention_bias", zero, 0},
    {"query_scalar", "query_pre_attn_scalar", default_query_scalar, HF_0_IS_UNSET},
    {0},
};
static const hf_key_t SEED_OSS_KEYS[] = {
    {"qkv_bias", "attention_bias", default_qkv_bias, 0},
    {"out_bias", "attention_out_bias", zero, 0},
    {"mlp_bias", "mlp_bias", zero, 0},
    {0},
};

/* ---- keys of one value ---- */

static const hf_fixed_t GPT2_FIXED[] = {
    {"activation_function", "\"gelu_new\""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
    {"tie_word_embeddings", "true"},
    {0},
};
static const hf_fixed_t SILU_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {0},
};
/* Without experts what all tokens pass is the whole MLP. */
static const hf_fixed_t GRANITE4_FIXED[] = {
    {"hidden_act", "\"silu\""},
    {"num_local_experts", "0"},
    {0},
};
static const hf_fixed_t GELU_FIXED[] = {
    {"hidden_activation", "\"gelu_pytorch_tanh\""},
    {0},
};

/* What is also written, but not read, of a model that came from nowhere: no dropout, as in training, and no special
 * tokens, which a trainer does not know. The first is the class, which is always written. */
static const hf_fixed_t GPT2_WRITTEN[] = {
    {"architectures", "[\"GPT2LMHeadModel\"]"},
    {"embd_pdrop", "0.0"},
    {"attn_pdrop", "0.0"},
    {"resid_pdrop", "0.0"},
    {0},
};
#define WRITTEN(class)                                                                                                 \
    (const hf_fixed_t[])                                                                                               \
    {                                                                                                                  \
        {"architectures", "[\"" class "ForCausalLM\"]"}, {"attention_dropout", "0.0"}, {0},                            \
    }
#define WRITTEN_WITH(class, key, value)                                                                                \
    (const hf_fixed_t[])                                                                                               \
    {                                                                                                                  \
        {"architectures", "[\"" class "ForCausalLM\"]"}, {"attention_dropout", "0.0"}, {key, value}, {0},              \
    }
const hf_fixed_t hf_all_written[] = {
    {"bos_token_id", "null"},
    {"eos_token_id", "null"},
    {"pad_token_id", "null"}, /* else a class's default may be a row that the embedding does not have */
    {0},
};

const hf_family_t hf_families[] = {
    [ARCH_GPT2] = {GPT2_KEYS, NO_KEYS, GPT2_FIXED, GPT2_WRITTEN, HF_NO_WINDOWS, 0, 1024},
    [ARCH_LLAMA] = {LLAMA_KEYS, BIASES_KEYS, SILU_FIXED, WRITTEN("Llama"), HF_NO_WINDOWS, 0, 2048},
    [ARCH_MISTRAL] = {LLAMA_KEYS, NO_KEYS, SILU_FIXED, WRITTEN("Mistral"), HF_ALL_WINDOWS, 4096, 131072},
    [ARCH_QWEN2] = {LLAMA_KEYS, NO_KEYS, SILU_FIXED, WRITTEN_WITH("Qwen2", "use_sliding_window", "false"),
                    HF_UPPER_WINDOWS, 4096, 32768},
    [ARCH_QWEN3] = {LLAMA_KEYS, BIAS_KEYS, SILU_FIXED, WRITTEN_WITH("Qwen3", "use_sliding_window", "false"),
                    HF_UPPER_WINDOWS, 4096, 32768},
    [ARCH_MINISTRAL] = {LLAMA_KEYS, NO_KEYS, SILU_FIXED, WRITTEN("Ministral"), HF_ALL_WINDOWS, 4096, 131072},
    [ARCH_SMOLLM3] = {LLAMA_KEYS, BIASES_KEYS, SILU_FIXED, WRITTEN("SmolLM3"), HF_UNROTATED_WINDOWS, 0, 32768},
    [ARCH_GRANITE] = {LLAMA_KEYS, GRANITE_KEYS, SILU_FIXED, WRITTEN("Granite"), HF_NO_WINDOWS, 0, 2048},
    [ARCH_GRANITE4] = {GRANITE4_KEYS, GRANITE4_MORE_KEYS, GRANITE4_FIXED,
                       WRITTEN_WITH("GraniteMoeHybrid", "mamba_n_heads", "1"), HF_NO_WINDOWS, 0, 2048},
    [ARCH_OLMO2] = {LLAMA_KEYS, BIAS_KEYS, SILU_FIXED, WRITTEN("Olmo2"), HF_NO_WINDOWS, 0, 2048},
    [ARCH_OLMO3] = {LLAMA_KEYS, BIAS_KEYS, SILU_FIXED, WRITTEN("Olmo3"), HF_KIND_WINDOWS, 4096, 2048},
    [ARCH_GEMMA3] = {LLAMA_KEYS, GEMMA3_KEYS, GELU_FIXED, WRITTEN("Gemma3"), HF_KIND_WINDOWS, 4096, 131072},
    [ARCH_PHI3] = {LLAMA_KEYS, NO_KEYS, SILU_FIXED, WRITTEN("Phi3"), HF_ALL_WINDOWS, 0, 4096},
    [ARCH_SEED_OSS] = {LLAMA_KEYS, SEED_OSS_KEYS, SILU_FIXED, WRITTEN_WITH("SeedOss", "residual_dropout", "0.0"),
                       HF_NO_WINDOWS, 0, 524288},
};

/* ---- families that are refused ---- */

#define EXPERTS "a mixture of experts"

/* Well-known families that are not supported, each with what it computes that is missing here. */
static const struct {
    const char *model_type, *missing;
} REFUSED[] = {
    {"gemma", "scaled embeddings, norms with 1 + weight and GELU in a gated MLP, in Gemma 1's order"},
    {"gemma2", "soft caps of scores and logits"},
    {"gemma3", "images beside text (its text model alone, gemma3_text, is supported)"},
    {"gemma3n", "images and sound, and embeddings of each layer"},
    {"mixtral", EXPERTS},
    {"qwen2_moe", EXPERTS},
    {"qwen3_moe", EXPERTS},
    {"gpt_oss", EXPERTS " and attention sinks"},
    {"deepseek_v3", EXPERTS " and compressed keys and values"},
    {"qwen3_next", EXPERTS " and linear attention"},
    {"qwen3_5", "linear attention"},
    {"lfm2", "convolutions in place of attention"},
    {"apertus", "xIELU, its activation function"},
    {"ministral3", "queries scaled by their position"},
    {"cohere2", "attention and MLP side by side"},
    {"glm4", "rotation of neighbouring elements"},
    {"phi", "attention and MLP side by side, and LayerNorm"},
    {"gpt_neox", "attention and MLP side by side, and rotation of a part of each head"},
};

const char *hf_family_missing(const char *model_type)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++)
        if (strcmp(REFUSED[i].model_type, model_type) == 0)
            return REFUSED[i].missing;
    return NULL;
}
