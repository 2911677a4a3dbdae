/* Tests of src/train/hf_config.c: a model's config.json fills what the user left open, and what does not fit is refused
 * in one line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"
#include "train/hf_config.h"
#include "train/options_table.h"
#include "train/report.h"

static options_t options;

static const char GPT2[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 48, \"n_head\": 4, "
                           "\"vocab_size\": 777, \"n_positions\": 65%s}";

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
    char text[1024];
    snprintf(text, sizeof text, GPT2, more);
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
    write_gpt2(_i ? ", \"n_inner\": 100, \"layer_norm_epsilon\": 0.00001, \"activation_function\": \"gelu_new\""
                  : ", \"n_inner\": null");
    expect_ok();
    ck_assert_int_eq(options.model.arch, ARCH_GPT2);
    ck_assert_int_eq(options.model.layers, 3);
    ck_assert_int_eq(options.model.dim, 48);
    ck_assert_int_eq(options.model.heads, 4);
    ck_assert_int_eq(options.model.ffn_dim, _i ? 100 : 192);
    ck_assert_int_eq(options.model.vocab_size, 777);
    ck_assert_int_eq(options.model.seq_len, 65);
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
        {"seq_len", "5", "[model] seq_len = 5, but the model in init has n_positions = 65"},
        /* what would be derived without init is as good a setting as any */
        {"vocab_size", "256", "[model] vocab_size = 256, but the model in init has vocab_size = 777"},
        {"seq_len", "1024", "[model] seq_len = 1024, but the model in init has n_positions = 65"},
    };
    write_gpt2("");
    ck_assert_int_eq(options_set(&options, "test", "model", CASES[_i].key, CASES[_i].value), ZERO_OK);
    expect_failure(ZERO_ERROR_USAGE, CASES[_i].text);
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
        {", \"layer_norm_epsilon\": 1e-6", "only models with 1e-05 can be trained"},
        {", \"layer_norm_epsilon\": \"1e-5\"", "layer_norm_epsilon is \"1e-5\"; only"},
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

START_TEST(llama_is_recognised_and_not_in_this_version)
{
    write_config("{\"model_type\": \"llama\"}");
    expect_failure(ZERO_ERROR_USAGE, "[model] arch = llama is not in this version");
}
END_TEST

START_TEST(a_bad_file_is_an_error_that_says_what_is_wrong)
{
    static const struct {
        const char *config;
        zero_status_t status;
        const char *text;
    } CASES[] = {
        {"", ZERO_ERROR_FORMAT, "not good JSON"},
        {"{\"n_layer\": 3", ZERO_ERROR_FORMAT, "not good JSON"},
        {"{\"n_layer\": 3, \"n_layer\": 4}", ZERO_ERROR_FORMAT, "duplicate object key"},
        {"[1]", ZERO_ERROR_USAGE, "model_type is missing"},
        {"{\"model_type\": 3}", ZERO_ERROR_USAGE, "model_type is missing"},
        {"{\"model_type\": \"bert\"}", ZERO_ERROR_USAGE, "model_type is bert"},
        {"{\"model_type\": \"gpt2\"}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole number"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"3\"}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 3.0}", ZERO_ERROR_FORMAT, "n_layer is missing or not a whole"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 0}", ZERO_ERROR_FORMAT, "n_layer is 0; [model] layers can be 1 to"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 4611686018427387904}", ZERO_ERROR_FORMAT,
         "n_embd is 4611686018427387904; [model] dim can be 1 to"},
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

START_TEST(a_model_saved_by_transformers_is_understood)
{
    if (access("tests/reference/gpt2_tiny/config.json", R_OK) != 0) {
        printf("SKIP: tests/reference/gpt2_tiny is not there\n");
        return;
    }
    strcpy(options.model.init, "tests/reference/gpt2_tiny");
    expect_ok();
    ck_assert_int_eq(options.model.layers, 4);
    ck_assert_int_eq(options.model.dim, 64);
    ck_assert_int_eq(options.model.heads, 4);
    ck_assert_int_eq(options.model.ffn_dim, 256);
    ck_assert_int_eq(options.model.vocab_size, 256);
    ck_assert_int_eq(options.model.seq_len, 32);
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
    tcase_add_loop_test(tc, a_setting_that_disagrees_is_a_usage_error_that_names_both, 0, 8);
    tcase_add_test(tc, an_arch_that_disagrees_is_a_usage_error);
    tcase_add_loop_test(tc, a_model_that_computes_otherwise_is_refused, 0, 7);
    tcase_add_test(tc, llama_is_recognised_and_not_in_this_version);
    tcase_add_loop_test(tc, a_bad_file_is_an_error_that_says_what_is_wrong, 0, 11);
    tcase_add_test(tc, a_directory_without_a_model_is_a_usage_error);
    tcase_add_test(tc, a_model_saved_by_transformers_is_understood);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return support_main(suite());
}
