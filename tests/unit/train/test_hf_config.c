/* Tests of src/train/hub/hf_config.c: a model's config.json fills what the user left open, and what does not
 * fit is refused in one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "train/hub/hf_config.h"
#include "train/options/options_table.h"
#include "train/report/report.h"

static options_t options;

static const char GPT2[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 48, \"n_head\": 4, "
                           "\"vocab_size\": 777, \"n_positions\": 65%s}";

static const char LLAMA[] = "{\"model_type\": \"llama\", \"num_hidden_layers\": 3, \"hidden_size\": 48, "
                            "\"num_attention_heads\": 4, \"intermediate_size\": 100, \"vocab_size\": 777, "
                            "\"max_position_embeddings\": 65%s}";

static void set_up(void)
{
    char *directory = support_scratch();
    options_set_defaults(&options);
    snprintf(options.model.init, sizeof options.model.init, "%s", directory);
    free(directory);
    report_init(0, 1);
}

static void write_config(const char *text)
{
    char *path;
    ck_assert_int_gt(asprintf(&path, "%s/config.json", options.model.init), 0);
    support_write_file(path, text, strlen(text));
    free(path);
}

/* GPT2 with more keys. */
static void write_gpt2(const char *more)
{
    char text[2048];
    snprintf(text, sizeof text, GPT2, more);
    write_config(text);
}

static void write_llama(const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, LLAMA, more);
    write_config(text);
}

/* hf_config_apply, with what it wrote to stderr. */
static zero_status_t apply(char line[4096])
{
    FILE *captured = tmpfile();
    int saved = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fileno(captured), STDERR_FILENO);
    zero_status_t status = hf_config_apply(&options);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(captured);
    line[fread(line, 1, 4095, captured)] = 0;
    fclose(captured);
    return status;
}

static void expect_failure(zero_status_t wanted, const char *text)
{
    char line[4096];
    options_t before = options;
    zero_status_t status = apply(line);
    ck_assert_msg(status == wanted, "%s instead of %s: %s", zero_status_name(status), zero_status_name(wanted), line);
    ck_assert_msg(support_count(line, "\n") == 1 && strstr(line, text), "'%s' is not in: %s", text, line);
    ck_assert_mem_eq(&options, &before, sizeof before);
}

static void expect_ok(void)
{
    char line[4096];
    zero_status_t status = apply(line);
    ck_assert_msg(status == ZERO_OK && line[0] == 0, "%s", line);
}

START_TEST(random_reads_no_file)
{
    strcpy(options.model.init, "random");
    options_t before = options;
    expect_ok();
    ck_assert_mem_eq(&options, &before, sizeof before);
}
END_TEST

START_TEST(sizes_of_gpt2_come_from_the_file)
{
    write_gpt2(_i ? ", \"n_inner\": 100, \"layer_norm_epsilon\": 0.001, \"activation_function\": \"gelu_new\""
                  : ", \"n_inner\": null");
    expect_ok();
    ck_assert_int_eq(options.model.arch, ARCH_GPT2);
    ck_assert_int_eq(options.model.layers, 3);
    ck_assert_int_eq(options.model.dim, 48);
    ck_assert_int_eq(options.model.heads, 4);
    ck_assert_int_eq(options.model.ffn_dim, _i ? 100 : 192);
    ck_assert_int_eq(options.model.vocab_size, 777);
    ck_assert(options.model.seq_len == 65 && options.model.positions == 65);
    ck_assert(options.model.norm_eps == (_i ? 1e-3 : 1e-5));
}
END_TEST

START_TEST(settings_that_agree_are_welcome)
{
    write_gpt2("");
    options.model.layers = 3;
    options.model.dim = 48;
    options.model.vocab_size = 777;
    options.model.ffn_dim = 192;
    expect_ok();
}
END_TEST

START_TEST(a_setting_that_disagrees_is_a_usage_error_that_names_both)
{
    static const struct {
        const char *key, *value, *text;
    } CASES[] = {
        {"layers", "5", "[model] layers = 5, but the model in init has n_layer = 3"},
        {"dim", "5", "[model] dim = 5, but the model in init has n_embd = 48"},
        {"heads", "5", "[model] heads = 5, but the model in init has n_head = 4"},
        {"ffn_dim", "5", "[model] ffn_dim = 5, but the model in init has n_inner = 192"},
        {"vocab_size", "5", "[model] vocab_size = 5, but the model in init has vocab_size = 777"},
        {"seq_len", "66", "[model] seq_len = 66, but the model in init has n_positions = 65"},
        {"positions", "5", "[model] positions = 5, but the model in init has n_positions = 65"},
        /* what would be derived without init is as good a setting as any */
        {"vocab_size", "256", "[model] vocab_size = 256, but the model in init has vocab_size = 777"},
        {"seq_len", "1024", "[model] seq_len = 1024, but the model in init has n_positions = 65"},
        /* also one that is the default, if it was given */
        {"arch", "gpt2", NULL},
        {"vocab_size", " 0 ", NULL}, /* derived */
        {"norm_eps", "1e-5", "[model] norm_eps = 1e-05, but the model in init has layer_norm_epsilon = 0.001"},
    };
    write_gpt2(strcmp(CASES[_i].key, "norm_eps") == 0 ? ", \"layer_norm_epsilon\": 0.001" : "");
    ck_assert_int_eq(options_set(&options, "test", "model", CASES[_i].key, CASES[_i].value), ZERO_OK);
    if (CASES[_i].text)
        expect_failure(ZERO_ERROR_USAGE, CASES[_i].text);
    else
        expect_ok();
}
END_TEST

/* The whole table is kept, and written again. */
START_TEST(a_gpt2_may_be_trained_with_fewer_positions_than_it_has)
{
    write_gpt2("");
    options.model.seq_len = 5;
    expect_ok();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert(options.model.seq_len == 5 && options.model.positions == 65);
    char *text = hf_config_text(&options.model, (zero_dtype_t)options.train.precision, NULL);
    ck_assert_msg(strstr(text, "\"n_positions\": 65") && strstr(text, "\"n_ctx\": 65"), "%s", text);
    free(text);
}
END_TEST

START_TEST(an_arch_that_disagrees_is_a_usage_error)
{
    write_gpt2("");
    options.model.arch = ARCH_LLAMA;
    expect_failure(ZERO_ERROR_USAGE, "[model] arch = llama, but the model in init is a gpt2");
}
END_TEST

START_TEST(a_model_that_computes_otherwise_is_refused)
{
    static const struct {
        const char *more, *text;
    } CASES[] = {
        {", \"activation_function\": \"gelu\"", "activation_function is \"gelu\"; only models with \"gelu_new\""},
        {", \"tie_word_embeddings\": false", "tie_word_embeddings is false"},
        {", \"scale_attn_weights\": false", "scale_attn_weights is false"},
        {", \"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx is true"},
        {", \"add_cross_attention\": true", "add_cross_attention is true"},
    };
    write_gpt2(CASES[_i].more);
    expect_failure(ZERO_ERROR_USAGE, CASES[_i].text);
}
END_TEST

START_TEST(sizes_of_llama_come_from_the_file)
{
    static const struct {
        const char *more;
        int64_t kv_heads;
        double norm_eps, rope_theta;
    } CASES[] = {
        {"", 4, 1e-6, 10000.0}, /* as transformers has it */
        {", \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0, \"rope_scaling\": null", 2,
         1e-5, 500000.0},
        {", \"rope_parameters\": {\"rope_theta\": 5000, \"rope_type\": \"default\"}, \"head_dim\": 12", 4, 1e-6,
         5000.0},
        {", \"rope_scaling\": {\"type\": \"default\"}, \"head_dim\": null, \"hidden_act\": \"silu\"", 4, 1e-6, 10000.0},
    };
    write_llama(CASES[_i].more);
    options.model.seq_len = 4096; /* the user sets these */
    expect_ok();
    ck_assert_int_eq(options.model.arch, ARCH_LLAMA);
    ck_assert_int_eq(options.model.layers, 3);
    ck_assert_int_eq(options.model.dim, 48);
    ck_assert_int_eq(options.model.heads, 4);
    ck_assert_int_eq(options.model.kv_heads, CASES[_i].kv_heads);
    ck_assert_int_eq(options.model.ffn_dim, 100);
    ck_assert_int_eq(options.model.vocab_size, 777);
    ck_assert_int_eq(options.model.seq_len, 4096);
    ck_assert(options.model.norm_eps == CASES[_i].norm_eps);
    ck_assert(options.model.rope_theta == CASES[_i].rope_theta);
}
END_TEST

START_TEST(a_llama_that_computes_otherwise_is_refused)
{
    static const struct {
        const char *more, *text;
    } CASES[] = {
        {", \"hidden_act\": \"gelu\"", "hidden_act is \"gelu\"; only models with \"silu\" can be trained"},
        {", \"attention_bias\": true", "attention_bias is true; only models with false"},
        {", \"mlp_bias\": true", "mlp_bias is true"},
        {", \"rope_scaling\": {\"rope_type\": 3}", "rope_scaling is 3; only"},
        {", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor is 0.5; only models with 1"},
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", "rope_scaling is \"linear\"; only"},
        {", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1e4}", "rope_parameters is \"yarn\"; only"},
        {", \"rope_scaling\": 2", "rope_scaling is 2; only models with \"default\", \"llama3\" or null"},
    };
    write_llama(CASES[_i].more);
    expect_failure(ZERO_ERROR_USAGE, CASES[_i].text);
}
END_TEST

START_TEST(numbers_of_llama_are_checked_and_must_agree)
{
    static const struct {
        const char *more, *setting, *value;
        zero_status_t status;
        const char *text;
    } CASES[] = {
        {", \"rms_norm_eps\": 0", NULL, NULL, ZERO_ERROR_FORMAT, "rms_norm_eps is 0; it can be 1e-30 to 1"},
        {", \"rms_norm_eps\": \"1e-5\"", NULL, NULL, ZERO_ERROR_FORMAT, "rms_norm_eps is missing or not a number"},
        {", \"rope_theta\": -1", NULL, NULL, ZERO_ERROR_FORMAT, "rope_theta is -1; it can be 1 to 1e+12"},
        {", \"num_key_value_heads\": 2.0", NULL, NULL, ZERO_ERROR_FORMAT, "not a whole number"},
        {"", "kv_heads", "2", ZERO_ERROR_USAGE,
         "[model] kv_heads = 2, but the model in init has num_key_value_heads = 4"},
        {", \"rope_theta\": 500000", "rope_theta", "20000", ZERO_ERROR_USAGE,
         "[model] rope_theta = 20000, but the model in init has rope_theta = 500000"},
        {", \"head_dim\": \"12\"", NULL, NULL, ZERO_ERROR_FORMAT, "head_dim is missing or not a whole number"},
        {", \"head_dim\": 16", "head_dim", "12", ZERO_ERROR_USAGE,
         "[model] head_dim = 12, but the model in init has head_dim = 16"},
        {", \"tie_word_embeddings\": 1", NULL, NULL, ZERO_ERROR_FORMAT,
         "tie_word_embeddings is neither true nor false"},
        {"", "tied", "true", ZERO_ERROR_USAGE,
         "[model] tied = true, but the model in init has tie_word_embeddings = false"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0}", NULL, NULL, ZERO_ERROR_FORMAT,
         "rope_scaling has no low_freq_factor, which \"llama3\" needs"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 0.5, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4}",
         NULL, NULL, ZERO_ERROR_FORMAT, "rope_scaling.factor is 0.5; it can be 1 to 1e+06"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": \"1\", "
         "\"high_freq_factor\": 4}",
         NULL, NULL, ZERO_ERROR_FORMAT, "rope_scaling.low_freq_factor is missing or not a number"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4}",
         "rope", "default", ZERO_ERROR_USAGE, "[model] rope = default, but the model in init has Llama 3.1's scaling"},
        {"", "rope", "llama3", ZERO_ERROR_USAGE, "[model] rope = llama3, but the model in init has no scaling"},
    };
    write_llama(CASES[_i].more);
    if (CASES[_i].setting)
        ck_assert_int_eq(options_set(&options, "test", "model", CASES[_i].setting, CASES[_i].value), ZERO_OK);
    expect_failure(CASES[_i].status, CASES[_i].text);
}
END_TEST

/* A config.json of another member of the family, with more keys. */
static void write_member(const char *model_type, const char *more)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"num_hidden_layers\": 3, \"hidden_size\": 64, \"num_attention_heads\": 32, "
             "\"intermediate_size\": 100, \"vocab_size\": 777, \"max_position_embeddings\": 4096%s}",
             model_type, more);
    write_config(text);
}

/* Keys that are left out have the defaults of transformers' class. */
START_TEST(members_of_the_llama_family_are_told_apart)
{
#define SCALED                                                                                                         \
    "\"factor\": 8.0, \"low_freq_factor\": 2.0, \"high_freq_factor\": 5.0, \"original_max_position_embeddings\": 64"
    static const struct {
        const char *model_type, *more;
        int arch;
        int64_t kv_heads, head_dim;
        bool tied;
        double theta, factor;
    } CASES[] = {
        {"llama", "", ARCH_LLAMA, 32, 0, false, 10000.0, 1.0},
        {"mistral", "", ARCH_MISTRAL, 8, 0, false, 10000.0, 1.0},
        {"qwen2", "", ARCH_QWEN2, 32, 0, false, 10000.0, 1.0},
        {"mistral", ", \"head_dim\": 128, \"num_key_value_heads\": 4", ARCH_MISTRAL, 4, 128, false, 10000.0, 1.0},
        {"qwen2", ", \"tie_word_embeddings\": true, \"rope_theta\": 1e6", ARCH_QWEN2, 32, 0, true, 1e6, 1.0},
        {"qwen3", "", ARCH_QWEN3, 32, 128, false, 10000.0, 1.0},
        {"qwen3", ", \"head_dim\": 64, \"num_key_value_heads\": 8, \"tie_word_embeddings\": true", ARCH_QWEN3, 8, 64,
         true, 10000.0, 1.0},
        {"llama",
         ", \"tie_word_embeddings\": true, \"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": "
         "\"llama3\", " SCALED "}",
         ARCH_LLAMA, 32, 0, true, 5e5, 8.0},
        {"llama", ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, " SCALED "}", ARCH_LLAMA, 32,
         0, false, 5e5, 8.0},
    };
    write_member(CASES[_i].model_type, CASES[_i].more);
    expect_ok();
    ck_assert_int_eq(options.model.arch, CASES[_i].arch);
    ck_assert_int_eq(options.model.kv_heads, CASES[_i].kv_heads);
    ck_assert_int_eq(options.model.head_dim, CASES[_i].head_dim);
    ck_assert_int_eq(options.model.tied, CASES[_i].tied);
    ck_assert(options.model.rope_theta == CASES[_i].theta && options.model.rope_factor == CASES[_i].factor);
    if (CASES[_i].factor > 1.0)
        ck_assert(options.model.rope_low_freq == 2.0 && options.model.rope_high_freq == 5.0 &&
                  options.model.rope_original == 64);
    ck_assert_int_eq(options.model.rope, CASES[_i].factor > 1.0 ? ROPE_LLAMA3 : ROPE_DEFAULT);
}
END_TEST

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

#define TYPES(a, b, c) ", \"layer_types\": [\"" a "_attention\", \"" b "_attention\", \"" c "_attention\"]"

START_TEST(a_window_is_refused_where_a_sequence_exceeds_it)
{
    static const struct {
        const char *model_type, *more;
        int64_t seq_len;
        bool is_good;
    } CASES[] = {
        {"qwen2", ", \"use_sliding_window\": false, \"sliding_window\": 2048", 8192, true},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048, \"max_window_layers\": 2", 8192, false},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048, \"max_window_layers\": 3", 8192, true},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 2048", 8192, true},  /* of 28 layers and more */
        {"qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 0", 8192, false}, /* 4096 is the default */
        {"qwen2", ", \"sliding_window\": 512" TYPES("full", "sliding", "full"), 0, false},
        {"qwen2", ", \"sliding_window\": 512" TYPES("full", "full", "full"), 0, true},
        {"qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 0", 65, false},
        {"mistral", ", \"sliding_window\": 64" TYPES("full", "sliding", "full"), 65, false},
        {"mistral", ", \"sliding_window\": 64" TYPES("full", "sliding", "full"), 64, true},
        {"mistral", ", \"sliding_window\": 64" TYPES("sliding", "sliding", "sliding"), 65, true},
        {"mistral", ", \"sliding_window\": null" TYPES("full", "full", "full"), 65, true},
        {"mistral", TYPES("full", "full", "full"), 5000, false},
    };
    write_member(CASES[_i].model_type, CASES[_i].more);
    options.model.seq_len = CASES[_i].seq_len;
    if (CASES[_i].is_good)
        expect_ok();
    else
        expect_failure(ZERO_ERROR_USAGE, "but the model in init has sliding_window = ");
}
END_TEST

/* What a generated text may grow to is left to zerotrain generate. */
START_TEST(a_generated_text_ends_at_a_window)
{
    static const char *const members[] = {"qwen2", "qwen3", "mistral"};
    write_member(members[_i],
                 ", \"use_sliding_window\": true, \"sliding_window\": 64" TYPES("full", "sliding", "full"));
    options.command = COMMAND_GENERATE;
    char line[4096];
    ck_assert_int_eq(apply(line), ZERO_OK);
    ck_assert_int_eq(options.model.longest, 64);
}
END_TEST

static const struct {
    const char *model_type, *more, *text;
    zero_status_t status;
} CHANGES[] = {
    {"llama", ", \"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5; only models with 1", ZERO_ERROR_USAGE},
    {"qwen3", ", \"quantization_config\": {\"quant_method\": \"fp8\"}",
     "quantization_config is {\"quant_method\": "
     "\"fp8\"}; only models without it can be trained",
     ZERO_ERROR_USAGE},
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
    char line[4096], many[900] = "";
    write_member("qwen2", ", \"attention_sinks\": 4, \"tie_word_embeddings\": true, \"logit_scale\": 0.5");
    ck_assert_int_eq(apply(line), ZERO_OK);
    ck_assert_msg(strstr(line,
                         "config.json': keys that are not known for this family, and not heeded: attention_sinks, "
                         "logit_scale\n") &&
                      support_count(line, "\n") == 1,
                  "%s", line);
    for (int i = 0; i < 40; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ", \"a_long_name_%d\": 1", i);
    set_up();
    write_gpt2(many);
    ck_assert_int_eq(apply(line), ZERO_OK);
    ck_assert_msg(strstr(line, "...\n") && support_count(line, "\n") == 1, "%s", line);
}
END_TEST

START_TEST(what_is_written_is_read_again)
{
    static const int ARCHS[] = {ARCH_GPT2, ARCH_LLAMA, ARCH_MISTRAL, ARCH_QWEN2, ARCH_QWEN3};
    options_t written = options;
    written.model.arch = ARCHS[_i];
    written.model.layers = 3, written.model.dim = 48, written.model.heads = 4, written.model.seq_len = 65;
    written.model.vocab_size = 777;
    if (_i > 0) {
        written.model.head_dim = 10, written.model.kv_heads = 2, written.model.tied = _i == 1;
        written.model.window = _i == 2 ? 33 : 0;
        written.model.rope = ROPE_LLAMA3;
        if (_i > 1)
            written.model.rope_factor = 32.0, written.model.rope_low_freq = 1.5, written.model.rope_original = 512;
    }
    ck_assert_int_eq(options_resolve(&written, 1), ZERO_OK);
    char *text = hf_config_text(&written.model, (zero_dtype_t)written.train.precision, NULL);
    write_config(text);
    free(text);
    options.model.seq_len = 65;
    expect_ok();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_mem_eq(&options.model, &written.model, sizeof options.model);
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
          "\"eos_token_id\": null"},
         64},
        {", \"architectures\": [\"MistralModel\"], \"sliding_window\": null",
         {"\"torch_dtype\": \"bfloat16\"", "\"max_position_embeddings\": 5000", "\"MistralForCausalLM\"",
          "\"sliding_window\": null"},
         5000},
        {", \"sliding_window\": null, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5, \"b\": 2}",
         {"\"rope_parameters\": {\n    \"b\": 2,\n    \"rope_theta\": 500000.0,", "\"attention_dropout\": 0.0",
          "\"model_type\": \"mistral\"", "\"head_dim\": 2"},
         64},
    };
    char *source;
    write_member("mistral", CASES[_i].more);
    options.model.seq_len = CASES[_i].seq_len;
    char line[4096]; /* names the keys that are not known */
    ck_assert_int_eq(apply(line), ZERO_OK);
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(hf_config_read(options.model.init, &source), ZERO_OK);
    char *text = hf_config_text(&options.model, (zero_dtype_t)options.train.precision, source);
    for (int k = 0; k < 4; k++)
        ck_assert_msg(strstr(text, CASES[_i].kept[k]) != NULL, "%s is not in %s", CASES[_i].kept[k], text);
    ck_assert_msg(_i != 3 || !strstr(text, "\n  \"rope_theta\""), "twice: %s", text);
    free(text);
    free(source);
}
END_TEST

START_TEST(a_bad_file_is_refused_with_the_reason)
{
    static const struct {
        const char *config;
        zero_status_t status;
        const char *text;
    } CASES[] = {
        {"", ZERO_ERROR_FORMAT, "not valid JSON"},
        {"{\"n_layer\": 3", ZERO_ERROR_FORMAT, "not valid JSON"},
        {"{\"n_layer\": 3, \"n_layer\": 4}", ZERO_ERROR_FORMAT, "duplicate object key"},
        {"[1]", ZERO_ERROR_USAGE, "model_type is missing"},
        {"{\"model_type\": 3}", ZERO_ERROR_USAGE, "model_type is missing"},
        {"{\"model_type\": \"bert\"}", ZERO_ERROR_USAGE, "model_type is bert"},
        {"{\"model_type\": \"gemma2\"}", ZERO_ERROR_USAGE, "gemma2, which needs what is not implemented: norms"},
        {"{\"model_type\": \"qwen3_moe\"}", ZERO_ERROR_USAGE, "not implemented: a mixture of experts; gpt2, llama,"},
        {"{\"model_type\": \"gpt2\"}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole number"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"3\"}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 3.0}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", ZERO_ERROR_FORMAT, "n_layer is 0; it can be 1 to"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 4611686018427387904}", ZERO_ERROR_FORMAT,
         "n_embd is 4611686018427387904; it can be 1 to"},
    };
    write_config(CASES[_i].config);
    expect_failure(CASES[_i].status, CASES[_i].text);
}
END_TEST

START_TEST(a_directory_without_a_model_is_a_usage_error)
{
    expect_failure(ZERO_ERROR_USAGE, "config.json': No such file or directory; name a model's directory, or random");
}
END_TEST

/* A pipe without a writer is refused at once. */
START_TEST(only_regular_files_are_accepted)
{
    static const struct {
        const char *make, *text;
    } cases[] = {{"mkfifo %s/config.json", "config.json': it is not a regular file; name a model's directory"},
                 {"mkdir %s/config.json", "config.json': it is a directory; name a model's directory"},
                 {"ln -s /dev/zero %s/config.json", "config.json': it is not a regular file"},
                 {"truncate -s 20M %s/config.json", "config.json': it has more than 16777216 bytes"}};
    char command[OPTIONS_MAX_PATH + 100];
    snprintf(command, sizeof command, cases[_i].make, options.model.init);
    ck_assert_int_eq(support_run(NULL, 10, "%s", command), 0);
    expect_failure(ZERO_ERROR_USAGE, cases[_i].text);
}
END_TEST

START_TEST(models_saved_by_transformers_are_understood)
{
    bool is_llama = _i == 1;
    if (access("tests/reference/gpt2_tiny/config.json", R_OK) != 0) {
        printf("SKIP: tests/reference/gpt2_tiny is not there\n");
        return;
    }
    strcpy(options.model.init, is_llama ? "tests/reference/llama_tiny" : "tests/reference/gpt2_tiny");
    expect_ok();
    ck_assert_int_eq(options.model.layers, 4);
    ck_assert_int_eq(options.model.dim, 64);
    ck_assert_int_eq(options.model.heads, 4);
    ck_assert_int_eq(options.model.kv_heads, is_llama ? 2 : 0);
    ck_assert_int_eq(options.model.ffn_dim, is_llama ? 172 : 256);
    ck_assert_int_eq(options.model.vocab_size, 256);
    ck_assert_int_eq(options.model.seq_len, is_llama ? 0 : 32); /* 0: yet to be derived */
    ck_assert(options.model.norm_eps == 1e-5);
    ck_assert(options.model.rope_theta == (is_llama ? 5000.0 : 10000.0));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("hf_config");
    TCase *tc = tcase_create("config.json");
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, random_reads_no_file);
    tcase_add_loop_test(tc, sizes_of_gpt2_come_from_the_file, 0, 2);
    tcase_add_test(tc, settings_that_agree_are_welcome);
    tcase_add_loop_test(tc, a_setting_that_disagrees_is_a_usage_error_that_names_both, 0, 12);
    tcase_add_test(tc, a_gpt2_may_be_trained_with_fewer_positions_than_it_has);
    tcase_add_test(tc, an_arch_that_disagrees_is_a_usage_error);
    tcase_add_loop_test(tc, a_model_that_computes_otherwise_is_refused, 0, 5);
    tcase_add_loop_test(tc, sizes_of_llama_come_from_the_file, 0, 4);
    tcase_add_loop_test(tc, a_llama_that_computes_otherwise_is_refused, 0, 8);
    tcase_add_loop_test(tc, numbers_of_llama_are_checked_and_must_agree, 0, 15);
    tcase_add_loop_test(tc, members_of_the_llama_family_are_told_apart, 0, 9);
    tcase_add_loop_test(tc, a_window_is_refused_where_a_sequence_exceeds_it, 0, 13);
    tcase_add_loop_test(tc, the_window_of_mistral_is_taken, 0, 4);
    tcase_add_loop_test(tc, a_generated_text_ends_at_a_window, 0, 3);
    tcase_add_loop_test(tc, a_key_that_changes_what_is_computed_is_refused_by_name, 0,
                        sizeof CHANGES / sizeof CHANGES[0]);
    tcase_add_test(tc, another_name_of_a_size_of_gpt2_must_agree);
    tcase_add_test(tc, rotary_settings_may_be_said_twice);
    tcase_add_loop_test(tc, ordinary_files_are_read_without_a_word, 0, 5);
    tcase_add_test(tc, the_published_gpt2_is_read_without_a_word);
    tcase_add_test(tc, keys_that_are_not_known_are_said_in_a_line);
    tcase_add_loop_test(tc, what_is_written_is_read_again, 0, 5);
    tcase_add_loop_test(tc, keys_that_are_not_interpreted_are_kept, 0, 4);
    tcase_add_loop_test(tc, a_bad_file_is_refused_with_the_reason, 0, 13);
    tcase_add_test(tc, a_directory_without_a_model_is_a_usage_error);
    tcase_add_loop_test(tc, only_regular_files_are_accepted, 0, 4);
    tcase_add_loop_test(tc, models_saved_by_transformers_are_understood, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
