/* hf_keys.c - see hf_keys.h.
 *
 * Every key of transformers' configuration classes, old and new, is of one kind: a setting (the families' tables in
 * hf_families.c, and the rows READ here), one that must have the value that is computed with (`fixed` there, and ONE
 * and SAME here), or one that changes no loss (ANY). tests/reference/config_keys.py compares each with transformers at
 * another value than its default. A key that is in no table is said, once: transformers' classes do not know it,
 * either.
 */
#include "train/hub/hf_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/options/families.h"
#include "train/report/report.h"

#define OF(arch) (1u << (arch))

enum {
    GPT2 = OF(ARCH_GPT2),
    MISTRAL = OF(ARCH_MISTRAL),
    QWEN2 = OF(ARCH_QWEN2),
    QWEN3 = OF(ARCH_QWEN3),
    MINISTRAL = OF(ARCH_MINISTRAL),
    SMOLLM3 = OF(ARCH_SMOLLM3),
    PHI3 = OF(ARCH_PHI3),
    GRANITE = OF(ARCH_GRANITE),
    GRANITE4 = OF(ARCH_GRANITE4),
    OLMO2 = OF(ARCH_OLMO2),
    OLMO3 = OF(ARCH_OLMO3),
    GEMMA3 = OF(ARCH_GEMMA3),
    SEED_OSS = OF(ARCH_SEED_OSS),
    FULLY_ROTARY = OF(ARCH_LLAMA) | MISTRAL | QWEN2 | QWEN3 | MINISTRAL | SMOLLM3 | GRANITE | GRANITE4 | OLMO2 | OLMO3 |
                   GEMMA3 | SEED_OSS,
    ROTARY = FULLY_ROTARY | PHI3,
    WINDOWED = MISTRAL | QWEN2 | QWEN3 | MINISTRAL | SMOLLM3 | PHI3 | OLMO3 | GEMMA3,
    EVERY = GPT2 | ROTARY,
};

typedef enum use {
    ANY,  /* changes no loss */
    READ, /* by hf_config.c */
    ONE,  /* only `value`, as JSON, or null if null means the same */
    SAME, /* another name of the key `value`, which it must agree with */
} use_t;

typedef struct rule {
    const char *hf_key;
    unsigned families;
    use_t use;
    const char *value;
    bool or_null;
} rule_t;

static const rule_t RULES[] = {
    /* ---- what is computed ---- */
    {"rope_scaling", ROTARY, READ, NULL, false},
    {"rope_parameters", ROTARY, READ, NULL, false},
    {"max_position_embeddings", ROTARY, READ, NULL, false}, /* of llama3's scaling, if that has none of its own */
    {"layer_types", ROTARY, READ, NULL, false},
    {"sliding_window", WINDOWED, READ, NULL, false},
    {"use_sliding_window", QWEN2 | QWEN3 | SMOLLM3, READ, NULL, false},
    {"max_window_layers", QWEN2 | QWEN3, READ, NULL, false},
    {"sliding_window_pattern", GEMMA3, READ, NULL, false},
    {"_sliding_window_pattern", GEMMA3, READ, NULL, false},
    {"rope_local_base_freq", GEMMA3, READ, NULL, false},
    {"final_logit_softcapping", GEMMA3, ONE, "null", true},
    {"attn_logit_softcapping", GEMMA3, ONE, "null", true},
    {"use_bidirectional_attention", GEMMA3, ONE, "false", true},
    {"cache_implementation", GEMMA3, ANY, NULL, false},
    {"no_rope_layers", SMOLLM3, READ, NULL, false},
    {"position_embedding_type", GRANITE4, READ, NULL, false},
    {"no_rope_layer_interval", SMOLLM3, READ, NULL, false},
    {"partial_rotary_factor", FULLY_ROTARY, ONE, "1", true},
    {"partial_rotary_factor", PHI3, READ, NULL, false},
    {"original_max_position_embeddings", PHI3, READ, NULL, false},
    {"original_max_position_embeddings", FULLY_ROTARY, ONE, "null", true}, /* it would go before rope_parameters' own */
    {"rope_interleaved", ROTARY, ONE, "false", true},
    {"use_mrope", ROTARY, ONE, "false", true},
    {"attention_bias", MISTRAL | QWEN2 | MINISTRAL | PHI3, ONE, "false", true},
    {"mlp_bias", MISTRAL | QWEN2 | QWEN3 | MINISTRAL | PHI3 | GRANITE4 | OLMO2 | OLMO3 | GEMMA3, ONE, "false", true},
    {"is_causal", EVERY, ONE, "true", false},
    {"is_encoder_decoder", EVERY, ONE, "false", true},
    {"pruned_heads", EVERY, ONE, "{}", true},
    {"per_layer_config", EVERY, ONE, "null", true},
    {"quantization_config", EVERY, READ, NULL, false},
    {"compression_config", EVERY, READ, NULL, false},
    {"hidden_size", GPT2, SAME, "n_embd", false},
    {"num_attention_heads", GPT2, SAME, "n_head", false},
    {"num_hidden_layers", GPT2, SAME, "n_layer", false},
    {"max_position_embeddings", GPT2, SAME, "n_positions", false},
    /* ---- how a model is trained: dropout is not applied here ---- */
    {"attention_dropout", ROTARY, ANY, NULL, false},
    {"residual_dropout", SEED_OSS, ANY, NULL, false},
    {"attn_pdrop", GPT2, ANY, NULL, false},
    {"embd_pdrop", GPT2 | PHI3, ANY, NULL, false},
    {"resid_pdrop", GPT2 | PHI3, ANY, NULL, false},
    {"initializer_range", EVERY, ANY, NULL, false},
    {"gradient_checkpointing", EVERY, ANY, NULL, false},
    /* ---- of experts and of Mamba layers, where there are none ---- */
    {"intermediate_size", GRANITE4, ANY, NULL, false},
    {"num_experts_per_tok", GRANITE4, ANY, NULL, false},
    {"output_router_logits", GRANITE4, ANY, NULL, false},
    {"router_aux_loss_coef", GRANITE4, ANY, NULL, false},
    {"mamba_n_heads", GRANITE4, ANY, NULL, false},
    {"mamba_n_groups", GRANITE4, ANY, NULL, false},
    {"mamba_d_state", GRANITE4, ANY, NULL, false},
    {"mamba_d_head", GRANITE4, ANY, NULL, false},
    {"mamba_d_conv", GRANITE4, ANY, NULL, false},
    {"mamba_expand", GRANITE4, ANY, NULL, false},
    {"mamba_chunk_size", GRANITE4, ANY, NULL, false},
    {"mamba_conv_bias", GRANITE4, ANY, NULL, false},
    {"mamba_proj_bias", GRANITE4, ANY, NULL, false},
    {"time_step_limit", GRANITE4, ANY, NULL, false},
    /* ---- how it is computed ---- */
    {"dtype", EVERY, ANY, NULL, false},
    {"torch_dtype", EVERY, ANY, NULL, false},
    {"use_bfloat16", EVERY, ANY, NULL, false},
    {"use_cache", EVERY, ANY, NULL, false},
    {"chunk_size_feed_forward", EVERY, ANY, NULL, false},
    {"pretraining_tp", ROTARY, ANY, NULL, false},
    {"reorder_and_upcast_attn", GPT2, ANY, NULL, false},
    {"attn_implementation", EVERY, ANY, NULL, false},
    {"_attn_implementation", EVERY, ANY, NULL, false},
    {"_attn_implementation_autoset", EVERY, ANY, NULL, false},
    {"torchscript", EVERY, ANY, NULL, false},
    {"tf_legacy_loss", EVERY, ANY, NULL, false},
    /* ---- what is returned, and what other heads than a language model's do ---- */
    {"return_dict", EVERY, ANY, NULL, false},
    {"output_attentions", EVERY, ANY, NULL, false},
    {"output_hidden_states", EVERY, ANY, NULL, false},
    {"output_past", EVERY, ANY, NULL, false},
    {"keys_to_ignore_at_inference", EVERY, ANY, NULL, false},
    {"finetuning_task", EVERY, ANY, NULL, false},
    {"problem_type", EVERY, ANY, NULL, false},
    {"id2label", EVERY, ANY, NULL, false},
    {"label2id", EVERY, ANY, NULL, false},
    {"num_labels", EVERY, ANY, NULL, false},
    {"_num_labels", EVERY, ANY, NULL, false},
    {"classifier_dropout", EVERY, ANY, NULL, false},
    {"summary_activation", GPT2, ANY, NULL, false},
    {"summary_first_dropout", GPT2, ANY, NULL, false},
    {"summary_proj_to_labels", GPT2, ANY, NULL, false},
    {"summary_type", GPT2, ANY, NULL, false},
    {"summary_use_proj", GPT2, ANY, NULL, false},
    {"add_cross_attention", ROTARY, ANY, NULL, false},
    {"cross_attention_hidden_size", EVERY, ANY, NULL, false},
    {"is_decoder", EVERY, ANY, NULL, false},
    {"tie_encoder_decoder", EVERY, ANY, NULL, false},
    /* ---- tokens, and how text is generated ---- */
    {"pad_token_id", EVERY, ANY, NULL, false},
    {"sep_token_id", EVERY, ANY, NULL, false},
    {"decoder_start_token_id", EVERY, ANY, NULL, false},
    {"tokenizer_class", EVERY, ANY, NULL, false},
    {"prefix", EVERY, ANY, NULL, false},
    {"task_specific_params", EVERY, ANY, NULL, false},
    {"max_length", EVERY, ANY, NULL, false},
    {"min_length", EVERY, ANY, NULL, false},
    {"do_sample", EVERY, ANY, NULL, false},
    {"early_stopping", EVERY, ANY, NULL, false},
    {"num_beams", EVERY, ANY, NULL, false},
    {"num_beam_groups", EVERY, ANY, NULL, false},
    {"diversity_penalty", EVERY, ANY, NULL, false},
    {"temperature", EVERY, ANY, NULL, false},
    {"top_k", EVERY, ANY, NULL, false},
    {"top_p", EVERY, ANY, NULL, false},
    {"typical_p", EVERY, ANY, NULL, false},
    {"repetition_penalty", EVERY, ANY, NULL, false},
    {"length_penalty", EVERY, ANY, NULL, false},
    {"no_repeat_ngram_size", EVERY, ANY, NULL, false},
    {"encoder_no_repeat_ngram_size", EVERY, ANY, NULL, false},
    {"bad_words_ids", EVERY, ANY, NULL, false},
    {"num_return_sequences", EVERY, ANY, NULL, false},
    {"output_scores", EVERY, ANY, NULL, false},
    {"return_dict_in_generate", EVERY, ANY, NULL, false},
    {"forced_bos_token_id", EVERY, ANY, NULL, false},
    {"forced_eos_token_id", EVERY, ANY, NULL, false},
    {"remove_invalid_values", EVERY, ANY, NULL, false},
    {"exponential_decay_length_penalty", EVERY, ANY, NULL, false},
    {"suppress_tokens", EVERY, ANY, NULL, false},
    {"begin_suppress_tokens", EVERY, ANY, NULL, false},
    /* ---- what a file says of itself, and positions that nothing is computed with ---- */
    {"model_type", EVERY, READ, NULL, false},
    {"_name_or_path", EVERY, ANY, NULL, false},
    {"name_or_path", EVERY, ANY, NULL, false},
    {"_commit_hash", EVERY, ANY, NULL, false},
    {"transformers_version", EVERY, ANY, NULL, false},
    {"transformers.js_config", EVERY, ANY, NULL, false},
    {"unsloth_version", EVERY, ANY, NULL, false},
    {"unsloth_fixed", EVERY, ANY, NULL, false},
    {"is_llama_config", ROTARY, ANY, NULL, false},
    {"n_ctx", GPT2, ANY, NULL, false},
};

static const rule_t *find_rule(const char *key, int arch)
{
    for (size_t i = 0; i < sizeof RULES / sizeof RULES[0]; i++)
        if ((RULES[i].families & OF(arch)) && strcmp(RULES[i].hf_key, key) == 0)
            return &RULES[i];
    return NULL;
}

static bool is_among(const char *key, const hf_fixed_t *rows)
{
    for (; rows->hf_key; rows++)
        if (strcmp(rows->hf_key, key) == 0)
            return true;
    return false;
}

static bool is_known(const char *key, int arch)
{
    const hf_family_t *family = &hf_families[arch];
    const hf_key_t *const tables[] = {family->keys, family->more_keys};
    for (int i = 0; i < 2; i++)
        for (const hf_key_t *row = tables[i]; row->key; row++)
            if (strcmp(row->hf_key, key) == 0)
                return true;
    return find_rule(key, arch) || is_among(key, family->fixed) || is_among(key, family->written) ||
           is_among(key, hf_all_written);
}

/* ---- refusing ---- */

zero_status_t hf_keys_refuse(const char *path, const char *key, const json_t *value, const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    const bool is_none = strcmp(wanted, "null") == 0;
    report_error(ZERO_ERROR_USAGE, "'%s': %s is %.60s; only models with%s %s can be trained", path, key,
                 text ? text : "?", is_none ? "out" : "", is_none ? "it" : wanted);
    free(text);
    return ZERO_ERROR_USAGE;
}

/* 1 is 1.0 here. */
static bool is_equal(const json_t *first, const json_t *second)
{
    if (json_is_number(first) && json_is_number(second))
        return json_number_value(first) == json_number_value(second);
    return json_equal(first, second);
}

/* transformers has two names for one activation function. */
static bool is_silu(const json_t *value)
{
    const char *name = json_string_value(value);
    return name && (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0);
}

static zero_status_t check_value(const char *path, const char *key, const json_t *value, const char *wanted)
{
    json_t *only = json_loads(wanted, JSON_DECODE_ANY, NULL);
    bool is_good = is_equal(value, only) || (is_silu(value) && is_silu(only));
    json_decref(only);
    return is_good ? ZERO_OK : hf_keys_refuse(path, key, value, wanted);
}

static zero_status_t check_rule(const char *path, const json_t *json, const json_t *value, const rule_t *rule)
{
    if (rule->use == ONE && !(rule->or_null && json_is_null(value)))
        return check_value(path, rule->hf_key, value, rule->value);
    if (rule->use == SAME && !is_equal(value, json_object_get(json, rule->value)))
        return hf_keys_refuse(path, rule->hf_key, value, rule->value);
    return ZERO_OK;
}

zero_status_t hf_keys_check(const char *path, const json_t *json, int arch)
{
    const char *key;
    const json_t *value;
    for (const hf_fixed_t *fixed = hf_families[arch].fixed; fixed->hf_key; fixed++) {
        value = json_object_get(json, fixed->hf_key);
        if (value)
            ZERO_TRY(check_value(path, fixed->hf_key, value, fixed->value));
    }
    json_object_foreach((json_t *)json, key, value)
    {
        const rule_t *rule = find_rule(key, arch);
        if (rule)
            ZERO_TRY(check_rule(path, json, value, rule));
    }
    return ZERO_OK;
}

/* ---- what is not known ---- */

void hf_keys_report_unknown(const char *path, const json_t *json, int arch)
{
    const char *key;
    const json_t *value;
    char names[512] = "";
    size_t length = 0;
    json_object_foreach((json_t *)json, key, value)
    {
        if (is_known(key, arch))
            continue;
        int n = snprintf(names + length, sizeof names - length, "%s%s", length > 0 ? ", " : "", key);
        length += n > 0 ? (size_t)n : 0;
        if (length >= sizeof names) {
            strcpy(names + sizeof names - 4, "...");
            break;
        }
    }
    if (length > 0)
        report("'%s': keys that are not known for this family, and not heeded: %s", path, names);
}
