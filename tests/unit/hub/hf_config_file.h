/* hf_config_file.h - writes a model's config.json and applies it to settings. */
#ifndef ZERO_TEST_HF_CONFIG_FILE_H
#define ZERO_TEST_HF_CONFIG_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stderr_capture.h"
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

static inline void set_up(void)
{
    char *directory = support_scratch();
    options_set_defaults(&options);
    snprintf(options.model.init, sizeof options.model.init, "%s", directory);
    free(directory);
    report_init(0, 1);
}

static inline void write_config(const char *text)
{
    char *path;
    ck_assert_int_gt(asprintf(&path, "%s/config.json", options.model.init), 0);
    support_write_file(path, text, strlen(text));
    free(path);
}

/* GPT2 with more keys. */
static inline void write_gpt2(const char *more)
{
    char text[2048];
    snprintf(text, sizeof text, GPT2, more);
    write_config(text);
}

static inline void write_llama(const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, LLAMA, more);
    write_config(text);
}

/* A config.json of another member of the family, with more keys. */
static inline void write_member(const char *model_type, const char *more)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"num_hidden_layers\": 3, \"hidden_size\": 64, \"num_attention_heads\": 32, "
             "\"intermediate_size\": 100, \"vocab_size\": 777, \"max_position_embeddings\": 4096%s}",
             model_type, more);
    write_config(text);
}

/* Llama 3.1's scaling of positions, and the kinds of attention of three layers. */
#define SCALED                                                                                                         \
    "\"factor\": 8.0, \"low_freq_factor\": 2.0, \"high_freq_factor\": 5.0, \"original_max_position_embeddings\": 64"
#define TYPES(a, b, c) ", \"layer_types\": [\"" a "_attention\", \"" b "_attention\", \"" c "_attention\"]"

/* Applies the file. Returns what that wrote to stderr, until the next call. */
static const char *apply(zero_status_t wanted)
{
    capture_begin();
    zero_status_t status = hf_config_apply(&options);
    const char *line = capture_end();
    ck_assert_msg(status == wanted, "%s instead of %s: %s", zero_status_name(status), zero_status_name(wanted), line);
    return line;
}

static inline void expect_failure(zero_status_t wanted, const char *text)
{
    options_t before = options;
    const char *line = apply(wanted);
    ck_assert_msg(support_count(line, "\n") == 1 && strstr(line, text), "'%s' is not in: %s", text, line);
    ck_assert_mem_eq(&options, &before, sizeof before);
}

static inline void expect_ok(void)
{
    ck_assert_str_eq(apply(ZERO_OK), "");
}

/* Expects what was written of a resolved model, of sequences of 65, to be read as that model. */
static inline void expect_read_as(const model_options_t *model, const char *text)
{
    write_config(text);
    options.model.seq_len = 65;
    expect_ok();
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_mem_eq(&options.model, model, sizeof options.model);
}

#endif
