/* test_generate.c - zerotrain generate: the cache gives the logits of the whole text, the same text comes out on any
 * number of ranks and at every stage, it ends where the model ends it, and every mistake gets a line.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"
#include "tests/support/trainer.h"
#include "train/text/generate.h"

#define LIMIT_S 60.0

/* ---- the cache ---- */

enum { VOCAB = 61, SEQ_LEN = 40 };

static const int ARCHS[] = {ARCH_GPT2, ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3};

static options_t options_of(int arch)
{
    options_t o = trainer_options(3, 48, 6, VOCAB, SEQ_LEN);
    o.command = COMMAND_GENERATE;
    o.model.arch = arch;
    o.model.recompute = RECOMPUTE_FULL;
    o.train.micro_batch = 1;
    if (arch != ARCH_GPT2)
        o.model.kv_heads = 2;
    return o;
}

/* How many tokens are new in each call: alone, several at once, the prompt. */
static const int STEPS[] = {5, 1, 1, 7, 1, 3, 1, 21};

/* Both sum up a head's products, in other orders: a few roundings, 6e-8 each, of logits of size 1. */
START_TEST(the_cache_gives_the_logits_of_the_whole_text)
{
    options_t options = options_of(ARCHS[_i]);
    zero_comm_t *comm;
    trainer_t t;
    int32_t tokens[SEQ_LEN];
    float cached[VOCAB], whole[VOCAB];
    uint64_t state = 3;
    size_t n = 0;
    ck_assert_int_eq(zero_comm_create(ZERO_COMM_AUTO, &comm), ZERO_OK);
    ck_assert_int_eq(options_resolve(&options, 1), ZERO_OK);
    ck_assert_int_eq(trainer_open(&t, &options, comm), ZERO_OK);
    ck_assert_int_eq(zero_init_parameters(t.engine), ZERO_OK);
    for (int i = 0; i < SEQ_LEN; i++)
        tokens[i] = (int32_t)(support_random(&state) % VOCAB);
    for (size_t k = 0; k < sizeof STEPS / sizeof STEPS[0]; k++) {
        n += (size_t)STEPS[k];
        ck_assert_int_eq(model_next_logits(&t.model, tokens, n, cached), ZERO_OK);
        ck_assert_int_eq(model_logits(&t.model, tokens, n, whole), ZERO_OK);
        for (int i = 0; i < VOCAB; i++)
            ck_assert_msg(fabsf(cached[i] - whole[i]) < 1e-5f, "%zu tokens, logit %d: %g, not %g", n, i,
                          (double)cached[i], (double)whole[i]);
    }
    ck_assert_uint_eq(n, SEQ_LEN);
    for (size_t kept = SEQ_LEN - 1; kept > 0; kept -= 13) { /* a text with the same beginning */
        n = kept + 1 + kept % 3;
        n = n < SEQ_LEN ? n : SEQ_LEN;
        for (size_t i = kept; i < n; i++)
            tokens[i] = (tokens[i] + 1) % VOCAB;
        model_keep(&t.model, kept);
        ck_assert_int_eq(model_next_logits(&t.model, tokens, n, cached), ZERO_OK);
        ck_assert_int_eq(model_logits(&t.model, tokens, n, whole), ZERO_OK);
        for (int i = 0; i < VOCAB; i++)
            ck_assert(fabsf(cached[i] - whole[i]) < 1e-5f);
    }
    model_forget(&t.model); /* another text */
    ck_assert_int_eq(model_next_logits(&t.model, tokens + 3, 4, cached), ZERO_OK);
    ck_assert_int_eq(model_logits(&t.model, tokens + 3, 4, whole), ZERO_OK);
    for (int i = 0; i < VOCAB; i++)
        ck_assert(fabsf(cached[i] - whole[i]) < 1e-5f);
    trainer_close(&t);
    zero_comm_destroy(comm);
}
END_TEST

/* ---- the program ---- */

static char *scratch;

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, strlen(text));
}

static void set_up(void)
{
    char text[6000] = "";
    support_output_t output;
    scratch = support_scratch();
    for (int i = 0; i < 100; i++)
        strcat(text, "to be or not to be, that is the question; ");
    write_file("train.txt", text);
    write_file("prompt.txt", "to be");
    write_file("line.txt", "to be\n");
    write_file("cfg.ini", "[model]\narch = llama\nlayers = 2\ndim = 48\nheads = 4\nkv_heads = 2\nseq_len = 64\n"
                          "[data]\ntrain = train.txt\n[train]\nsteps = 250\nmicro_batch = 8\nlr = 5e-3\n"
                          "[checkpoint]\ndir = ck\n");
    int code = support_run(&output, LIMIT_S, "cd %s && %s/zerotrain cfg.ini", scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
}

static int generate_text(support_output_t *output, int n_ranks, const char *arguments)
{
    if (n_ranks == 1)
        return support_run(output, LIMIT_S, "cd %s && %s/zerotrain generate %s", scratch, support_build(), arguments);
    return support_mpirun(output, LIMIT_S, n_ranks, "--wdir %s %s/zerotrain generate %s", scratch, support_build(),
                          arguments);
}

/* It has learned its one sentence by heart. */
START_TEST(a_model_says_what_it_has_learned)
{
    support_output_t output;
    ck_assert_int_eq(generate_text(&output, 1, "--temperature 0 --max-tokens 50 --prompt-file prompt.txt ck"), 0);
    ck_assert_msg(strstr(output.out, " or not to be, that is the question; to be") == output.out, "%s", output.out);
    ck_assert_uint_eq(strlen(output.out), 51);
    const char *line = strstr(output.err, "50 tokens behind a prompt of 5, ");
    float rate = 0.0f, first_ms = 0.0f, later_ms = 0.0f;
    ck_assert_msg(line &&
                      sscanf(line, "%*d tokens behind a prompt of %*d, %f tokens/s: the first after %f ms, %f ms each",
                             &rate, &first_ms, &later_ms) == 3,
                  "%s", output.err);
    ck_assert_msg(first_ms > 0.0f && later_ms > 0.0f && 34.0f * later_ms < 50.1e3f / rate, "%s", line);
    support_output_free(&output);
    /* A line feed at the end of the file is part of the prompt. */
    ck_assert_int_eq(generate_text(&output, 1, "--temperature 0 --max-tokens 1 --prompt-file line.txt ck"), 0);
    ck_assert_msg(strstr(output.err, "behind a prompt of 6") != NULL, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    int n_ranks;
    const char *stage;
} CASES[] = {{1, "0"}, {2, "3"}, {3, "3"}, {2, "1"}, {4, "2"}};

START_TEST(the_text_is_the_same_on_any_number_of_ranks_at_every_stage)
{
    static const char draws[] = "--temperature 8 --top-k 50 --top-p 0.95 --max-tokens 80 --prompt 'to '";
    support_output_t first, other;
    char arguments[256];
    snprintf(arguments, sizeof arguments, "%s --seed 7 ck", draws);
    ck_assert_int_eq(generate_text(&first, 1, arguments), 0);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        if (support_leaves_out(CASES[i].n_ranks))
            continue;
        snprintf(arguments, sizeof arguments, "--stage %s %s --seed 7 ck", CASES[i].stage, draws);
        int code = generate_text(&other, CASES[i].n_ranks, arguments);
        ck_assert_msg(code == 0 && strcmp(first.out, other.out) == 0, "%d ranks, stage %s: %s%s", CASES[i].n_ranks,
                      CASES[i].stage, other.err, other.out);
        support_output_free(&other);
    }
    snprintf(arguments, sizeof arguments, "%s --seed 8 ck", draws);
    ck_assert_int_eq(generate_text(&other, 1, arguments), 0);
    ck_assert_str_ne(first.out, other.out);
    support_output_free(&first);
    support_output_free(&other);
}
END_TEST

/* Training samples in numbers then, and a line says why: with that of the setting, the checkpoint's, or init's. */
START_TEST(a_tokenizer_that_cannot_be_read_costs_no_run)
{
    static const char *const settings[] = {"model.init=other", "model.tokenizer=other",
                                           "train.steps=2 --resume other_ck --set train.steps=2"};
    support_output_t output;
    for (int i = 0; i < 3; i++) {
        int code = support_run(&output, LIMIT_S,
                               "cd %s && rm -rf other && cp -rL ck/latest other && echo '{\"model\": {\"type\": "
                               "\"Unigram\"}}' >other/tokenizer.json && %s/zerotrain --set train.steps=1 --set "
                               "train.sample_every=1 --set data.format=text --set checkpoint.dir=%s --set %s cfg.ini",
                               scratch, support_build(), i == 1 ? "other_ck" : "", settings[i]);
        ck_assert_msg(code == 0, "%s: %s", settings[i], output.err);
        ck_assert_msg(strstr(output.err, "model.type is Unigram"), "%s: %s", settings[i], output.err);
        ck_assert_msg(strstr(output.out, "--- the model goes on\n") && strstr(output.out, "116 "), "%s: %s",
                      settings[i], output.out); /* t */
        support_output_free(&output);
    }
}
END_TEST

/* eos_token_id: ';' is byte 59. */
START_TEST(a_text_ends_where_the_model_ends_it)
{
    support_output_t output;
    char path[512];
    snprintf(path, sizeof path, "%s/ck/latest/generation_config.json", scratch);
    support_write_file(path, "{\"eos_token_id\": [0, 59]}", strlen("{\"eos_token_id\": [0, 59]}"));
    ck_assert_int_eq(generate_text(&output, 1, "--temperature 0 --prompt 'to be' ck"), 0);
    ck_assert_str_eq(output.out, " or not to be, that is the question\n");
    support_output_free(&output);
}
END_TEST

#define IDS16 "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16"
#define IDS64 IDS16 ", " IDS16 ", " IDS16 ", " IDS16

static const struct {
    const char *text, *says; /* of generation_config.json */
} bad_stops[] = {
    {"{\"eos_token_id\": 59", "generation_config.json' cannot be read as JSON: "},
    {"", "generation_config.json' cannot be read as JSON: "},
    {"[59]", "generation_config.json' cannot be read as JSON: it is no object"},
    {"{\"eos_token_id\": \";\"}", "generation_config.json': eos_token_id is neither a whole number"},
    {"{\"eos_token_id\": [59, null]}", "generation_config.json': eos_token_id is neither a whole number"},
    {"{\"eos_token_id\": [" IDS64 ", 59]}", "generation_config.json': eos_token_id has 65 tokens; it can have 64"},
};

START_TEST(a_file_that_does_not_say_where_a_text_ends_is_refused)
{
    support_output_t output;
    char path[512];
    const int n_ranks = support_leaves_out(2) ? 1 : 1 + _i % 2;
    snprintf(path, sizeof path, "%s/ck/latest/generation_config.json", scratch);
    support_write_file(path, bad_stops[_i].text, strlen(bad_stops[_i].text));
    int code = generate_text(&output, n_ranks, "--temperature 0 --prompt 'to be' ck");
    ck_assert_msg(code == 1 && support_count(output.err, bad_stops[_i].says) == 1 && !output.out[0], "%d: %s%s", code,
                  output.out, output.err);
    support_output_free(&output);
    support_write_file(path, "{\"eos_token_id\": null}", strlen("{\"eos_token_id\": null}"));
    ck_assert_int_eq(generate_text(&output, 1, "--prompt 'to be' --max-tokens 2 ck"), 0);
    support_output_free(&output);
}
END_TEST

START_TEST(a_text_that_ends_at_the_last_position_says_so)
{
    support_output_t output;
    ck_assert_int_eq(
        generate_text(&output, 1, "--prompt ab --temperature 0 --max-tokens 9999 --set model.seq_len=20 ck"), 0);
    int most = 0, positions = 0, n_taken = 0;
    const char *line = strstr(output.err, "generate: at most "),
               *taken = strstr(output.err, " tokens behind a prompt of");
    ck_assert_msg(line && taken, "%s", output.err);
    ck_assert_int_eq(sscanf(line, "generate: at most %d tokens, since the model has %d", &most, &positions), 2);
    while (taken[-1] >= '0' && taken[-1] <= '9')
        taken--;
    n_taken = atoi(taken);
    ck_assert_int_eq(most, positions - 2);
    ck_assert_int_eq(n_taken, most);
    support_output_free(&output);
}
END_TEST

/* The model was trained on sequences as long as config.json says; a longer text is another matter. */
START_TEST(a_text_beyond_the_positions_that_were_trained_says_so)
{
    support_output_t output;
    for (int beyond = 0; beyond < 2; beyond++) {
        ck_assert_int_eq(
            generate_text(&output, 1, beyond ? "--prompt ab --max-tokens 99 ck" : "--prompt ab --max-tokens 3 ck"), 0);
        const bool says =
            strstr(output.err, "up to 101 tokens, where config.json's max_position_embeddings is ") != NULL;
        ck_assert_msg(says == (beyond == 1), "%s", output.err);
        support_output_free(&output);
    }
}
END_TEST

static const struct {
    const char *arguments, *says;
} refusals[] = {
    {"ck", "the prompt is missing"},
    {"--prompt a --prompt-file prompt.txt ck", "give one of them"},
    {"--prompt '' ck", "the prompt is empty"},
    {"--prompt-file none.txt ck", "cannot open 'none.txt'"},
    {"--prompt a", "the checkpoint is missing"},
    {"--prompt a none", "generate: CHECKPOINT: cannot read 'none/config.json'"},
    {"--prompt a --top-p 0 ck", "--top-p: '0' is no number from 1e-06 to 1"},
    {"--prompt a --temperature hot ck", "--temperature: 'hot' is no number"},
    {"--prompt a --max-tokens 0 ck", "--max-tokens: 0 is out of range"},
    {"--prompt a ck ck", "there can be only one checkpoint, not two: 'ck' and 'ck'"},
    {"--prompt a --json ck", "--json: this is an option of"},
    {"--prompt a --resume ck", "--resume: this is an option of training, zerotrain evaluate"},
    {"--prompt a --steps 3 ck", "--steps: this is an option of training"},
};

START_TEST(mistakes_are_refused_with_a_line)
{
    support_output_t output;
    int code = generate_text(&output, 1, refusals[_i].arguments);
    ck_assert_msg(code == 2, "%s: exit code %d\n%s", refusals[_i].arguments, code, output.err);
    ck_assert_msg(strstr(output.err, refusals[_i].says) && support_count(output.err, "\n") == 1, "%s: %s",
                  refusals[_i].arguments, output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(a_limit_of_memory_is_kept)
{
    support_output_t output;
    int code = generate_text(&output, 1, "--prompt a --set device.memory=0.001 ck");
    ck_assert_msg(code == 1 && strstr(output.err, " MiB and 1.02 MiB may be used: "), "exit code %d\n%s", code,
                  output.err);
    support_output_free(&output);
}
END_TEST

/* ---- what reaches a terminal ---- */

/* Prints the bytes as byte tokens, one a call as generate does; returns what came out. */
static char *printed(const char *bytes)
{
    char *directory = support_scratch(), path[4200];
    tokenizer_t *tokenizer = print_text_open("", 256);
    snprintf(path, sizeof path, "%s/out", directory);
    free(directory);
    ck_assert_ptr_nonnull(tokenizer);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    ck_assert_ptr_nonnull(freopen(path, "w", stdout));
    for (const char *c = bytes; *c; c++) {
        int32_t token = (unsigned char)*c;
        print_text(tokenizer, &token, 1, false);
    }
    print_text_end();
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    tokenizer_close(tokenizer);
    return support_read_file(path, NULL);
}

START_TEST(a_text_controls_no_terminal_and_keeps_its_lines)
{
    static const struct {
        const char *says, *shown;
    } texts[] = {
        {"a\xc2\x9b"
         "31mX",
         "a?31mX\n"}, /* U+009B: as ESC [ */
        {"\x1b[31m\x7f", "?[31m?\n"},
        {"a\r\nb\r\n", "a\r\nb\r\n\n"},
        {"true\rlie", "true?lie\n"},
        {"\r\r\nx\r", "?\r\nx\r\n"},
        {"\xc2\xa0\xc3\xa9\xe2\x82\xac", "\xc2\xa0\xc3\xa9\xe2\x82\xac\n"},
        {"\xc2", "\xc2\n"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char *shown = printed(texts[i].says);
        ck_assert_msg(strcmp(shown, texts[i].shown) == 0, "text %zu: %s", i, shown);
        free(shown);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("generate");
    TCase *cache = tcase_create("cache"), *program = tcase_create("program");
    tcase_set_timeout(cache, 20);
    tcase_add_loop_test(cache, the_cache_gives_the_logits_of_the_whole_text, 0, sizeof ARCHS / sizeof ARCHS[0]);
    suite_add_tcase(s, cache);
    tcase_set_timeout(program, 5 * LIMIT_S);
    tcase_add_unchecked_fixture(program, set_up, NULL);
    tcase_add_test(cache, a_text_controls_no_terminal_and_keeps_its_lines);
    tcase_add_test(program, a_model_says_what_it_has_learned);
    tcase_add_test(program, the_text_is_the_same_on_any_number_of_ranks_at_every_stage);
    tcase_add_test(program, a_text_that_ends_at_the_last_position_says_so);
    tcase_add_test(program, a_text_beyond_the_positions_that_were_trained_says_so);
    tcase_add_test(program, a_limit_of_memory_is_kept);
    tcase_add_loop_test(program, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    tcase_add_test(program, a_tokenizer_that_cannot_be_read_costs_no_run);
    /* Last: they add a file. */
    tcase_add_test(program, a_text_ends_where_the_model_ends_it);
    tcase_add_loop_test(program, a_file_that_does_not_say_where_a_text_ends_is_refused, 0,
                        sizeof bad_stops / sizeof bad_stops[0]);
    suite_add_tcase(s, program);
    return s;
}

int main(void)
{
    return support_main(suite());
}
