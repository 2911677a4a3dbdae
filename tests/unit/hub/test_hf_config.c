/* test_hf_config.c - a model's config.json fills what the user left open; a file that is none, or does not agree with
 * the user's settings, is refused in one line. */
#include <unistd.h>

#include "tests/unit/hub/hf_config_file.h"

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
        {", \"rope_scaling\": {\"rope_type\": 3}", "rope_scaling is 3; only"},
        {", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor is 0.5; only models with 1"},
        {", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", "rope_scaling is \"dynamic\"; only"},
        {", \"rope_parameters\": {\"rope_type\": \"proportional\"}", "rope_parameters is \"proportional\"; only"},
        {", \"rope_scaling\": 2",
         "rope_scaling is 2; only models with \"default\", \"linear\", \"llama3\", \"longrope\", \"yarn\" or null"},
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
        {", \"attention_bias\": 1", NULL, NULL, ZERO_ERROR_FORMAT, "attention_bias is neither true nor false"},
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

/* Keys that are left out have the defaults of transformers' class. */
START_TEST(members_of_the_llama_family_are_told_apart)
{
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
        {"qwen3", ", \"num_key_value_heads\": null, \"head_dim\": null", ARCH_QWEN3, 0, 0, false, 10000.0, 1.0},
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
        {"{\"model_type\": \"gemma2\"}", ZERO_ERROR_USAGE, "gemma2, which needs what is not implemented: soft caps"},
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

/* transformers runs no Ministral whose sliding_window is null. The size that is written for it is of no layer, and read
 * as that. */
START_TEST(a_ministral_without_windows_is_written_with_the_size_of_one)
{
    options_t written = options;
    written.model.arch = ARCH_MINISTRAL;
    written.model.layers = 2, written.model.dim = 64, written.model.heads = 4, written.model.seq_len = 65;
    ck_assert_int_eq(options_resolve(&written, 1), ZERO_OK);
    char *text = hf_config_text(&written.model, ZERO_FP32, NULL);
    ck_assert_msg(strstr(text, "\"layer_types\": [\n    \"full_attention\",\n    \"full_attention\"\n  ]") &&
                      strstr(text, "\"sliding_window\": 4096"),
                  "%s", text);
    expect_read_as(&written.model, text);
    free(text);
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
    tcase_add_loop_test(tc, a_llama_that_computes_otherwise_is_refused, 0, 6);
    tcase_add_loop_test(tc, numbers_of_llama_are_checked_and_must_agree, 0, 16);
    tcase_add_loop_test(tc, members_of_the_llama_family_are_told_apart, 0, 10);
    tcase_add_loop_test(tc, a_bad_file_is_refused_with_the_reason, 0, 13);
    tcase_add_test(tc, a_directory_without_a_model_is_a_usage_error);
    tcase_add_loop_test(tc, only_regular_files_are_accepted, 0, 4);
    tcase_add_loop_test(tc, models_saved_by_transformers_are_understood, 0, 2);
    tcase_add_test(tc, a_ministral_without_windows_is_written_with_the_size_of_one);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
