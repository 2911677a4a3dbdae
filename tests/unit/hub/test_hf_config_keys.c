/* test_hf_config_keys.c - no key of config.json that changes what is computed is passed over; ordinary files are read
 * without a word; what is written again keeps what is not interpreted. */
#include <math.h>

#include "tests/unit/hub/hf_config_file.h"
#include "train/options/families.h"
#include "train/text/generator.h"

/* Of Mistral a sequence may exceed it. */
START_TEST(the_window_of_mistral_is_taken)
{
    static const struct {
        const char *more;
        int64_t window;
    } CASES[] = {
        {", \"sliding_window\": 2048", 2048},
        {", \"sliding_window\": 1", 1},
        {", \"sliding_window\": null", 0},
        {"", 4096}, /* transformers' default */
    };
    write_member("mistral", CASES[_i].more);
    options.model.seq_len = 8192;
    expect_ok();
    ck_assert_int_eq(options.model.window, CASES[_i].window);
    options.model.window = 77;
    expect_failure(ZERO_ERROR_USAGE, CASES[_i].window ? "[model] window = 77, but the model in init has sliding_window"
                                                      : "[model] window = 77, but the model in init has none");
    write_member("mistral", ", \"sliding_window\": \"wide\"");
    expect_failure(ZERO_ERROR_FORMAT, "sliding_window is neither");
    write_member("mistral", ", \"sliding_window\": 0");
    expect_failure(ZERO_ERROR_FORMAT, "it can be 1 to");
}
END_TEST

#define DENSE                                                                                                          \
    ", \"num_local_experts\": 0, \"shared_intermediate_size\": 96, \"layer_types\": [\"attention\", "                  \
    "\"full_attention\", \"attention\"]"

/* A letter for each of three layers; "": all alike. */
START_TEST(the_windows_of_some_layers_are_taken)
{
    static const struct {
        const char *model_type, *more, *kinds;
        int64_t window;
    } CASES[] = {
        {"qwen2", ", \"use_sliding_window\": false, \"sliding_window\": 2048", "", 0},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048, \"max_window_layers\": 2", "ffs", 2048},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048, \"max_window_layers\": 3", "", 0},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048", "", 0},    /* of 28 layers and more */
        {"qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 0", "", 4096}, /* 4096 is the default */
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 512" TYPES("full", "sliding", "full"), "fsf",
         512},
        {"qwen2", ", \"sliding_window\": 512" TYPES("full", "full", "full"), "", 0},
        {"qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 1", "fss", 64},
        {"mistral", ", \"sliding_window\": 64" TYPES("full", "sliding", "full"), "fsf", 64},
        {"ministral", ", \"sliding_window\": 64" TYPES("sliding", "sliding", "full"), "ssf", 64},
        {"ministral", "", "", 4096},
        {"mistral", ", \"sliding_window\": 64" TYPES("sliding", "sliding", "sliding"), "", 64},
        {"mistral", ", \"sliding_window\": null" TYPES("full", "full", "full"), "", 0},
        {"mistral", TYPES("full", "full", "full"), "", 0},
        {"phi3", "", "", 0}, /* unlike Mistral's */
        {"phi3", ", \"sliding_window\": 2047", "", 2047},
        {"smollm3", "", "", 0}, /* of four layers and more */
        {"smollm3", ", \"no_rope_layer_interval\": 2", "fnf", 0},
        {"smollm3", ", \"no_rope_layers\": [0, 1, 1, 1]", "nff", 0},
        {"smollm3", ", \"no_rope_layers\": [1, 0, 1], \"use_sliding_window\": true, \"sliding_window\": 9", "fwf", 9},
        {"smollm3", ", \"no_rope_layers\": [1, 0, 1], \"sliding_window\": 9" TYPES("sliding", "full", "full"), "snf",
         9},
        {"seed_oss", ", \"sliding_window\": 64" TYPES("full", "full", "full"), "", 0},
        {"granitemoehybrid", DENSE ", \"position_embedding_type\": \"rope\"", "", 0},
        {"granitemoehybrid", DENSE, "nnn", 0},
    };
    write_member(CASES[_i].model_type, CASES[_i].more);
    options.model.seq_len = 8192;
    apply(ZERO_OK); /* names the keys that a family does not know */
    ck_assert_str_eq(options.model.layer_kinds, CASES[_i].kinds);
    ck_assert_int_eq(options.model.window, CASES[_i].window);
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    for (int layer = 0; layer < 3; layer++) {
        const char kind = CASES[_i].kinds[0] ? CASES[_i].kinds[layer] : CASES[_i].window ? 's' : 'f';
        ck_assert_int_eq(options_window(&options.model, layer), kind == 's' || kind == 'w' ? CASES[_i].window : 0);
        ck_assert_int_eq(options_is_rotated(&options.model, layer), kind == 's' || kind == 'f');
    }
}
END_TEST

/* What a generated text may grow to is left to zerotrain generate; merge and export compute with no text. */
START_TEST(sequences_end_where_longrope_changes)
{
    static const char more[] = ", \"original_max_position_embeddings\": 64, \"rope_scaling\": {\"type\": \"su\", "
                               "\"short_factor\": [1.5], \"long_factor\": [2.0]}";
    write_member("phi3", more);
    options.command = (int[]){COMMAND_GENERATE, COMMAND_MERGE, COMMAND_EXPORT}[_i];
    options.model.seq_len = 0;
    expect_ok();
    ck_assert_int_eq(options.model.longest, 64);
    ck_assert_int_eq(options.model.rope, ROPE_LONGROPE);
    ck_assert_str_eq(options.model.rope_divisors, "1.5");
    /* sqrt(1 + log(4096 / 64) / log(64)) */
    ck_assert_double_eq_tol(options.model.rope_scale, sqrt(2.0), 1e-12);
    model_options_t model = options.model;
    int64_t max_tokens = 8;
    model.seq_len = 0;
    capture_begin();
    zero_status_t status = prompt_fit(&model, "generate", 70, &max_tokens);
    ck_assert_str_eq(capture_end(),
                     "zerotrain: generate: the prompt has 70 tokens, and the model has 64 positions (longrope's "
                     "long_factor, for longer texts, is not implemented): give a shorter one\n");
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    options.command = COMMAND_TRAIN;
    options.model.seq_len = 65;
    expect_failure(ZERO_ERROR_USAGE, "[model] seq_len = 65, but the model in init has longrope with "
                                     "original_max_position_embeddings = 64");
}
END_TEST

START_TEST(layers_with_a_window_may_rotate_otherwise)
{
    static const struct {
        const char *model_type, *more, *kinds;
        double theta, local, factor;
    } CASES[] = {
        {"gemma3_text", "", "", 1e6, 1e4, 1.0}, /* of six layers and more */
        {"gemma3_text",
         ", \"sliding_window_pattern\": 3, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}", "ssf", 1e6,
         1e4, 8.0},
        {"gemma3_text", ", \"rope_theta\": 5e5, \"rope_local_base_freq\": 500" TYPES("full", "sliding", "full"), "fsf",
         5e5, 500.0, 1.0},
        {"gemma3_text",
         ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 7e5}, "
         "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 8e3}}" TYPES("full", "sliding", "full"),
         "fsf", 7e5, 8e3, 4.0},
        {"olmo3", ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0}" TYPES("full", "sliding", "full"),
         "fsf", 5e5, 5e5, 8.0},
    };
    write_member(CASES[_i].model_type, CASES[_i].more);
    expect_ok();
    ck_assert_str_eq(options.model.layer_kinds, CASES[_i].kinds);
    ck_assert_double_eq(options.model.rope_theta, CASES[_i].theta);
    ck_assert_double_eq(options.model.rope_local_theta, CASES[_i].local);
    ck_assert_double_eq(options.model.rope_factor, CASES[_i].factor);
}
END_TEST

START_TEST(the_scaling_of_positions_is_taken)
{
    static const struct {
        const char *more;
        int rope;
        double factor, scale;
        int64_t original;
    } CASES[] = {
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}", ROPE_LINEAR, 4.0, 1.0, 8192},
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1.0}", ROPE_DEFAULT, 1.0, 1.0, 8192},
        {", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}", ROPE_YARN, 4.0, 1.1386294361119891, 4096},
        {", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"rope_theta\": 1e6, "
         "\"original_max_position_embeddings\": 512, \"attention_factor\": 1.25, \"beta_fast\": 16}",
         ROPE_YARN, 4.0, 1.25, 512},
        {", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}",
         ROPE_YARN, 4.0, 1.0, 4096},
    };
    write_member("llama", CASES[_i].more);
    expect_ok();
    ck_assert_int_eq(options.model.rope, CASES[_i].rope);
    ck_assert_double_eq(options.model.rope_factor, CASES[_i].factor);
    ck_assert_double_eq_tol(options.model.rope_scale, CASES[_i].scale, 1e-12);
    ck_assert_int_eq(options.model.rope_original, CASES[_i].original);
}
END_TEST

static const struct {
    const char *model_type, *more, *text;
    zero_status_t status;
} CHANGES[] = {
    {"llama", ", \"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5; only models with 1", ZERO_ERROR_USAGE},
    {"qwen3", ", \"quantization_config\": {\"quant_method\": \"fp8\"}",
     "its weights are quantized, by fp8 (quantization_config): only weights in", ZERO_ERROR_USAGE},
    {"gemma9", ", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4}", "are quantized, by awq",
     ZERO_ERROR_USAGE},
    {"llama", ", \"compression_config\": {\"format\": \"dense\"}", "by a method that is not named (compression_config)",
     ZERO_ERROR_USAGE},
    {"llama", TYPES("full", "sliding", "full"), "layer_types is", ZERO_ERROR_USAGE},
    {"qwen2", ", \"sliding_window\": 512" TYPES("full", "sliding", "full"), "but use_sliding_window is not true",
     ZERO_ERROR_USAGE},
    {"phi3",
     ", \"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"rope_type\": \"default\", "
     "\"partial_rotary_factor\": 0.5}",
     "partial_rotary_factor differs in rope_scaling and rope_parameters", ZERO_ERROR_USAGE},
    {"llama",
     ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"truncate\": false}, \"rope_parameters\": {\"type\": "
     "\"yarn\", \"factor\": 4}",
     "truncate differs in rope_scaling and rope_parameters", ZERO_ERROR_USAGE},
    {"gemma3_text", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8.0}", "rope_scaling has no rope_type",
     ZERO_ERROR_USAGE},
    {"gemma3_text", ", \"final_logit_softcapping\": 30.0", "final_logit_softcapping is 30", ZERO_ERROR_USAGE},
    {"gemma3_text", ", \"use_bidirectional_attention\": true", "use_bidirectional_attention is true", ZERO_ERROR_USAGE},
    {"gemma3_text", ", \"hidden_activation\": \"gelu\"", "only models with \"gelu_pytorch_tanh\"", ZERO_ERROR_USAGE},
    {"olmo3", ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}",
     "an object full_attention in it", ZERO_ERROR_USAGE},
    {"gemma3_text",
     ", \"rope_parameters\": {\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"linear\", "
     "\"factor\": 2}}",
     "\"default\" for sliding_attention", ZERO_ERROR_USAGE},
    {"smollm3", ", \"no_rope_layers\": [1]", "no_rope_layers has 1 entries for the 3 layers", ZERO_ERROR_FORMAT},
    {"llama", ", \"rope_scaling\": {\"rope_type\": \"yarn\"}", "rope_scaling has no factor, which \"yarn\" needs",
     ZERO_ERROR_FORMAT},
    {"phi3", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
     "rope_scaling is \"linear\"; only models with \"default\", \"longrope\" or null", ZERO_ERROR_USAGE},
    {"phi3", ", \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1], \"short_factor\": [-1]}",
     "short_factor has an entry that is no positive number", ZERO_ERROR_FORMAT},
    {"phi3", ", \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1], \"short_factor\": 3}",
     "short_factor is no list of numbers", ZERO_ERROR_FORMAT},
    {"mistral", ", \"is_causal\": false", "is_causal is false; only models with true", ZERO_ERROR_USAGE},
    {"qwen2", ", \"per_layer_config\": {\"0\": {}}", "per_layer_config is", ZERO_ERROR_USAGE},
    {"llama", ", \"pruned_heads\": {\"0\": [1]}", "pruned_heads is", ZERO_ERROR_USAGE},
    {"llama", ", \"is_encoder_decoder\": true", "is_encoder_decoder is true", ZERO_ERROR_USAGE},
    {"llama", ", \"original_max_position_embeddings\": 64", "original_max_position_embeddings is 64", ZERO_ERROR_USAGE},
    {"mistral", ", \"attention_bias\": true", "attention_bias is true", ZERO_ERROR_USAGE},
    {"mistral", TYPES("full", "chunked", "full"), "only models with full_attention and sliding_attention",
     ZERO_ERROR_USAGE},
    {"qwen2", ", \"layer_types\": [\"full_attention\"]", "layer_types has 1 entries for the 3 layers",
     ZERO_ERROR_FORMAT},
    {"mistral", ", \"sliding_window\": null" TYPES("full", "sliding", "full"), "sliding_window is null",
     ZERO_ERROR_USAGE},
    /* two sources of rotary settings */
    {"llama", ", \"rope_theta\": 10000.0, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}",
     "rope_theta is 10000, and 500000 in rope_parameters", ZERO_ERROR_USAGE},
    {"llama",
     ", \"rope_scaling\": {\"rope_type\": \"llama3\", " SCALED "}, \"rope_parameters\": {\"rope_type\": "
     "\"default\", \"rope_theta\": 1e4}",
     "rope_scaling is \"llama3\" and rope_parameters is \"default\"", ZERO_ERROR_USAGE},
    {"llama",
     ", \"rope_scaling\": {\"rope_type\": \"llama3\", " SCALED "}, \"rope_parameters\": {\"rope_type\": "
     "\"llama3\", \"factor\": 4, \"low_freq_factor\": 2, \"high_freq_factor\": 5}",
     "factor is 8 by rope_scaling and 4 by rope_parameters", ZERO_ERROR_USAGE},
    {"llama",
     ", \"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"rope_type\": \"default\", "
     "\"rope_theta\": 5e5}",
     "rope_theta is 10000 by rope_scaling and 500000 by rope_parameters", ZERO_ERROR_USAGE},
    {"qwen3", ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}}",
     "rope_parameters has settings of its own for full_attention", ZERO_ERROR_USAGE},
};

START_TEST(a_key_that_changes_what_is_computed_is_refused_by_name)
{
    write_member(CHANGES[_i].model_type, CHANGES[_i].more);
    options.model.seq_len = 64;
    expect_failure(CHANGES[_i].status, CHANGES[_i].text);
}
END_TEST

START_TEST(another_name_of_a_size_of_gpt2_must_agree)
{
    write_gpt2(", \"hidden_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
               "\"max_position_embeddings\": 65");
    expect_ok();
    options.model.seq_len = 0;
    write_gpt2(", \"num_hidden_layers\": 2");
    expect_failure(ZERO_ERROR_USAGE, "num_hidden_layers is 2; only models with n_layer can be trained");
}
END_TEST

/* Two sources that say the same, as files have them that several versions wrote. */
START_TEST(rotary_settings_may_be_said_twice)
{
    write_member("llama", ", \"rope_theta\": 500000, \"partial_rotary_factor\": 1.0, \"rope_scaling\": {\"type\": "
                          "\"llama3\", " SCALED "}, \"rope_parameters\": {\"rope_type\": \"llama3\", "
                          "\"rope_theta\": 5e5, " SCALED "}");
    expect_ok();
    ck_assert(options.model.rope_theta == 5e5 && options.model.rope_factor == 8.0);
}
END_TEST

/* Keys of files that are widely used, as they were published. */
START_TEST(ordinary_files_are_read_without_a_word)
{
    static const struct {
        const char *model_type, *more;
    } FILES[] = {
        {"llama", /* Llama 3.2 */
         ", \"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
         "\"bos_token_id\": 128000, \"eos_token_id\": 128001, \"head_dim\": 64, \"hidden_act\": \"silu\", "
         "\"initializer_range\": 0.02, \"mlp_bias\": false, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
         "\"rope_scaling\": {\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "
         "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}, \"rope_theta\": 500000.0, "
         "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"transformers_version\": "
         "\"4.45.0.dev0\", \"use_cache\": true"},
        {"llama", /* SmolLM2 */
         ", \"is_llama_config\": true, \"rope_interleaved\": false, \"rope_scaling\": null, \"rope_theta\": 100000, "
         "\"transformers.js_config\": {\"kv_cache_dtype\": {\"fp16\": \"float16\"}}, \"pad_token_id\": 2"},
        {"qwen2", /* Qwen2.5 */
         ", \"max_window_layers\": 28, \"sliding_window\": 32768, \"use_mrope\": false, \"use_sliding_window\": "
         "false, \"rope_theta\": 1000000.0, \"attention_dropout\": 0.0"},
        {"qwen3", /* Qwen3 */
         ", \"attention_bias\": false, \"head_dim\": 128, \"max_window_layers\": 28, \"rope_scaling\": null, "
         "\"sliding_window\": null, \"use_sliding_window\": false, \"_attn_implementation_autoset\": true"},
        {"mistral", /* Mistral 7B v0.3, with the other name of silu */
         ", \"_name_or_path\": \"mistral\", \"hidden_act\": \"swish\", \"sliding_window\": null, \"rope_theta\": "
         "1000000.0, "
         "\"num_key_value_heads\": 8, \"output_attentions\": false, \"return_dict\": true"},
    };
    write_member(FILES[_i].model_type, FILES[_i].more);
    expect_ok();
}
END_TEST

START_TEST(the_published_gpt2_is_read_without_a_word)
{
    write_gpt2(", \"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": "
               "0.1, \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256, \"initializer_range\": "
               "0.02, \"layer_norm_epsilon\": 1e-05, \"n_ctx\": 1024, \"resid_pdrop\": 0.1, \"summary_activation\": "
               "null, \"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, \"summary_type\": "
               "\"cls_index\", \"summary_use_proj\": true, \"task_specific_params\": {\"text-generation\": "
               "{\"do_sample\": true, \"max_length\": 50}}");
    expect_ok();
}
END_TEST

START_TEST(keys_that_are_not_known_are_said_in_a_line)
{
    char many[900] = "";
    write_member("llama", ", \"attention_sinks\": 4, \"sliding_window\": 8, \"logit_scale\": 0.5");
    const char *line = apply(ZERO_OK);
    ck_assert_msg(strstr(line,
                         "config.json': keys that are not known for this family, and not heeded: attention_sinks, "
                         "sliding_window, logit_scale\n") &&
                      support_count(line, "\n") == 1,
                  "%s", line);
    for (int i = 0; i < 40; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ", \"a_long_name_%d\": 1", i);
    set_up();
    write_gpt2(many);
    line = apply(ZERO_OK);
    ck_assert_msg(strstr(line, "...\n") && support_count(line, "\n") == 1, "%s", line);
}
END_TEST

START_TEST(what_is_written_is_read_again)
{
    static const int ARCHS[] = {ARCH_GPT2,      ARCH_LLAMA,   ARCH_MISTRAL, ARCH_QWEN2,    ARCH_QWEN3,
                                ARCH_MINISTRAL, ARCH_SMOLLM3, ARCH_PHI3,    ARCH_SEED_OSS, ARCH_GRANITE,
                                ARCH_GRANITE4,  ARCH_OLMO2,   ARCH_OLMO3,   ARCH_GEMMA3};
    options_t written = options;
    written.model.arch = ARCHS[_i];
    written.model.layers = 5, written.model.dim = 48, written.model.heads = 4, written.model.seq_len = 65;
    written.model.vocab_size = 777;
    if (_i > 0) {
        written.model.head_dim = 10, written.model.kv_heads = 2, written.model.tied = _i == 1;
        written.model.window = _i == 2 ? 33 : 0;
        written.model.rope = ARCHS[_i] == ARCH_PHI3 ? ROPE_DEFAULT : ROPE_LLAMA3;
        if (ARCHS[_i] == ARCH_PHI3)
            written.model.rope_share = 0.75, written.model.head_dim = 8;
        else if (_i > 1)
            written.model.rope_factor = 32.0, written.model.rope_low_freq = 1.5, written.model.rope_original = 512;
        if (families[ARCHS[_i]].may_window && _i > 2) {
            written.model.window = 7;
            strcpy(written.model.layer_kinds, ARCHS[_i] == ARCH_SMOLLM3 ? "nsffw"
                                              : ARCHS[_i] == ARCH_PHI3  ? ""
                                                                        : "sfsff");
        }
        written.model.mlp_bias = written.model.out_bias = ARCHS[_i] == ARCH_SMOLLM3 || ARCHS[_i] == ARCH_SEED_OSS;
        written.model.qkv_bias = ARCHS[_i] == ARCH_SMOLLM3;
        if (ARCHS[_i] == ARCH_GRANITE || ARCHS[_i] == ARCH_GRANITE4)
            written.model.embedding_multiplier = 12.0, written.model.residual_multiplier = 0.22,
            written.model.attention_multiplier = 0.0078125, written.model.logits_scaling = 8.0;
        if (ARCHS[_i] == ARCH_GEMMA3)
            written.model.query_scalar = 168, written.model.rope_local_theta = 5e3;
    }
    ck_assert_int_eq(options_resolve(&written, 1), ZERO_OK);
    char *text = hf_config_text(&written.model, (zero_dtype_t)written.train.precision, NULL);
    expect_read_as(&written.model, text);
    free(text);
}
END_TEST

/* A model from nowhere has the factors of scores of its head_dim, 16. Its checkpoints once said 0. */
START_TEST(factors_of_scores_that_are_derived_are_written)
{
    static const struct {
        int arch;
        const char *key;
        double value;
    } CASES[] = {
        {ARCH_GRANITE, "\"attention_multiplier\": ", 0.25},
        {ARCH_GRANITE4, "\"attention_multiplier\": ", 0.25},
        {ARCH_GEMMA3, "\"query_pre_attn_scalar\": ", 16.0},
    };
    options_t written = options;
    written.model.arch = CASES[_i].arch;
    written.model.layers = 2, written.model.dim = 64, written.model.heads = 4, written.model.seq_len = 65;
    strcpy(written.model.init, "random");
    ck_assert_int_eq(options_resolve(&written, 1), ZERO_OK);
    char *text = hf_config_text(&written.model, ZERO_FP32, NULL), *value = strstr(text, CASES[_i].key);
    ck_assert_ptr_nonnull(value);
    value += strlen(CASES[_i].key);
    ck_assert_msg(strtod(value, NULL) == CASES[_i].value, "%s", text);
    for (int is_older = 0; is_older < 2; is_older++) {
        set_up();
        write_config(text);
        expect_ok();
        ck_assert_double_eq(options_score_scale(&options.model), 0.25);
        memset(value, ' ', strcspn(value, ",\n"));
        value[0] = '0';
    }
    free(text);
}
END_TEST

/* What the model came with is in what is written for it, beside what describes its weights. */
START_TEST(keys_that_are_not_interpreted_are_kept)
{
    static const struct {
        const char *more, *kept[4];
        int64_t seq_len;
    } CASES[] = {
        {", \"eos_token_id\": [4, 5], \"bos_token_id\": 3, \"attention_dropout\": 0.25, \"mine\": {\"a\": 1}",
         {"\"eos_token_id\": [\n    4,\n    5\n  ]", "\"bos_token_id\": 3", "\"attention_dropout\": 0.25",
          "\"mine\": {\n    \"a\": 1\n  }"},
         64},
        {", \"dtype\": \"float32\", \"sliding_window\": 5000",
         {"\"dtype\": \"bfloat16\"", "\"max_position_embeddings\": 4096", "\"sliding_window\": 5000",
          "\"rms_norm_eps\""},
         64},
        {", \"architectures\": [\"MistralModel\"], \"sliding_window\": null",
         {"\"torch_dtype\": \"bfloat16\"", "\"max_position_embeddings\": 5000", "\"MistralForCausalLM\"",
          "\"sliding_window\": null"},
         5000},
        {", \"sliding_window\": null, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5, \"b\": 2}",
         {"\"rope_parameters\": {\n    \"b\": 2,\n    \"rope_theta\": 500000.0,", "\"vocab_size\": 777",
          "\"model_type\": \"mistral\"", "\"head_dim\": 2"},
         64},
    };
    char *source;
    write_member("mistral", CASES[_i].more);
    options.model.seq_len = CASES[_i].seq_len;
    apply(ZERO_OK); /* names the keys that are not known */
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(hf_config_read(options.model.init, &source), ZERO_OK);
    char *text = hf_config_text(&options.model, (zero_dtype_t)options.train.precision, source);
    for (int k = 0; k < 4; k++)
        ck_assert_msg(strstr(text, CASES[_i].kept[k]) != NULL, "%s is not in %s", CASES[_i].kept[k], text);
    ck_assert(_i == 0 || (!strstr(text, "eos_token_id") && !strstr(text, "attention_dropout"))); /* as in its class */
    ck_assert_msg(_i != 3 || !strstr(text, "\n  \"rope_theta\""), "twice: %s", text);
    free(text);
    free(source);
}
END_TEST

/* Without a number of positions in the file, it is that of transformers' class: scaling is relative to it, and shorter
 * sequences do not lower it. What longer ones are relative to is kept in both objects of a file that has two, of which
 * transformers reads the other. */
START_TEST(positions_that_are_not_said_are_those_of_the_class)
{
    static const char YARN[] = "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}, "
                               "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0}";
    char config[1024], *source, *second;
    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"num_hidden_layers\": 3, \"hidden_size\": 48, \"num_attention_heads\": 4, "
             "\"intermediate_size\": 100, \"vocab_size\": 777, %s}",
             YARN);
    write_config(config);
    options.model.seq_len = _i ? 5000 : 64;
    expect_ok();
    ck_assert_int_eq(options.model.rope_original, 2048);
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(hf_config_read(options.model.init, &source), ZERO_OK);
    char *text = hf_config_text(&options.model, ZERO_FP32, source);
    ck_assert_int_eq(strstr(text, "\"max_position_embeddings\": 5000") != NULL, _i);
    ck_assert_int_eq(strstr(text, "\"max_position_embeddings\"") != NULL, _i);
    ck_assert((second = strstr(text, "\"original_max_position_embeddings\": 2048")) &&
              strstr(second + 1, "\"original_max_position_embeddings\": 2048"));
    free(text);
    free(source);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hf_config_keys");
    TCase *tc = tcase_create("keys");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, the_windows_of_some_layers_are_taken, 0, 24);
    tcase_add_loop_test(tc, the_window_of_mistral_is_taken, 0, 4);
    tcase_add_loop_test(tc, sequences_end_where_longrope_changes, 0, 3);
    tcase_add_loop_test(tc, the_scaling_of_positions_is_taken, 0, 5);
    tcase_add_loop_test(tc, layers_with_a_window_may_rotate_otherwise, 0, 5);
    tcase_add_loop_test(tc, a_key_that_changes_what_is_computed_is_refused_by_name, 0,
                        sizeof CHANGES / sizeof CHANGES[0]);
    tcase_add_test(tc, another_name_of_a_size_of_gpt2_must_agree);
    tcase_add_test(tc, rotary_settings_may_be_said_twice);
    tcase_add_loop_test(tc, ordinary_files_are_read_without_a_word, 0, 5);
    tcase_add_test(tc, the_published_gpt2_is_read_without_a_word);
    tcase_add_test(tc, keys_that_are_not_known_are_said_in_a_line);
    tcase_add_loop_test(tc, what_is_written_is_read_again, 0, 14);
    tcase_add_loop_test(tc, factors_of_scores_that_are_derived_are_written, 0, 3);
    tcase_add_loop_test(tc, keys_that_are_not_interpreted_are_kept, 0, 4);
    tcase_add_loop_test(tc, positions_that_are_not_said_are_those_of_the_class, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
