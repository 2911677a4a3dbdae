/* test_tokenizer.c - text to tokens and back. What `tokenizers` 0.23 made of a text is stored beside small files of
 * several families (tests/reference/tokenizers writes both); whatever a file asks for that is not implemented is
 * refused by its name.
 *
 *   test_tokenizer DIRECTORY VOCAB_SIZE TEXT OUT      writes the tokens of a file as int32, and to OUT.text what they
 *                                                     stand for, for tests/reference
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"
#include "train/report/report.h"
#include "train/report/utf8.h"
#include "train/text/generator.h"
#include "train/text/tokenizer.h"

#define SAMPLES "tests/reference/tokenizers/"
#define VOCAB_SIZE 700

static const char *const FAMILIES[] = {"gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral", "gemma"};
#define N_FAMILIES (int)(sizeof FAMILIES / sizeof FAMILIES[0])

static tokenizer_t *open_family(const char *name)
{
    char directory[256];
    tokenizer_t *tokenizer = NULL;
    snprintf(directory, sizeof directory, SAMPLES "%s", name);
    ck_assert_int_eq(tokenizer_open(directory, VOCAB_SIZE, &tokenizer), ZERO_OK);
    return tokenizer;
}

/* samples.json: [{"text": ..., "gpt2": [...], ...}, ...] */
START_TEST(tokens_are_those_of_tokenizers)
{
    tokenizer_t *tokenizer = open_family(FAMILIES[_i]);
    json_t *samples = json_load_file(SAMPLES "samples.json", JSON_ALLOW_NUL, NULL);
    ck_assert(json_array_size(samples) > 20);
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *sample = json_array_get(samples, i), *text = json_object_get(sample, "text");
        const json_t *wanted = json_object_get(sample, FAMILIES[_i]);
        tokens_t tokens = {0};
        ck_assert_int_eq(tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), true, &tokens),
                         ZERO_OK);
        ck_assert_msg(tokens.n == json_array_size(wanted), "sample %zu: %zu tokens, not %zu", i, tokens.n,
                      json_array_size(wanted));
        for (size_t k = 0; k < tokens.n; k++)
            ck_assert_msg(tokens.at[k] == json_integer_value(json_array_get(wanted, k)), "sample %zu, token %zu: %d", i,
                          k, tokens.at[k]);
        tokens_free(&tokens);
    }
    json_decref(samples);
    tokenizer_close(tokenizer);
}
END_TEST

/* Returns whether a family puts a space before this text. */
static bool puts_space(const char *family, const char *text, size_t n_bytes)
{
    return n_bytes > 0 && (strcmp(family, "llama2") == 0 || (strcmp(family, "mistral") == 0 && text[0] != ' '));
}

/* Any bytes: what is UTF-8 comes back as it was, but for the space that some put before it. */
START_TEST(bytes_come_back)
{
    tokenizer_t *tokenizer = open_family(FAMILIES[_i]);
    uint64_t state = 11;
    for (int run = 0; run < 200; run++) {
        char text[300], back[1000];
        size_t n = support_random(&state) % sizeof text, n_wanted, n_back = 0, n_bytes;
        tokens_t tokens = {0};
        for (size_t i = 0; i < n; i++) /* mostly ASCII, so that words are merged; no combining characters */
            text[i] = (char)(support_random(&state) % 16 ? 32 + support_random(&state) % 95 : 0xf5);
        char *wanted = utf8_repaired(text, n, &n_wanted);
        ck_assert_int_eq(tokenizer_encode(tokenizer, text, n, false, &tokens), ZERO_OK);
        for (size_t i = 0; i < tokens.n; i++) {
            const char *bytes = tokenizer_bytes(tokenizer, tokens.at[i], &n_bytes);
            memcpy(back + n_back, bytes, n_bytes);
            n_back += n_bytes;
        }
        const bool has_space = puts_space(FAMILIES[_i], wanted, n_wanted);
        ck_assert_uint_eq(n_back, n_wanted + has_space);
        ck_assert_mem_eq(back + has_space, wanted, n_wanted);
        ck_assert(!has_space || back[0] == ' ');
        free(wanted);
        tokens_free(&tokens);
    }
    tokenizer_close(tokenizer);
}
END_TEST

/* A word of a megabyte takes no time that grows with its square: that would be minutes. */
START_TEST(a_long_word_is_soon_merged)
{
    tokenizer_t *tokenizer = open_family(_i == 0 ? "gpt2" : "llama2");
    const size_t n = 1 << 20;
    char *text = malloc(n);
    tokens_t tokens = {0};
    memset(text, 'a', n);
    ck_assert_int_eq(tokenizer_encode(tokenizer, text, n, false, &tokens), ZERO_OK);
    ck_assert_uint_le(tokens.n, n);
    tokens_free(&tokens);
    free(text);
    tokenizer_close(tokenizer);
}
END_TEST

/* Unicode 15, table 3-8, and what Python's errors="replace" gives. */
START_TEST(what_is_not_utf8_becomes_the_replacement)
{
    static const struct {
        const char *text, *wanted;
    } cases[] = {{"a\xf1\x80\x80\xe1\x80\xc2"
                  "b\x80"
                  "c\x80\xbf"
                  "d",
                  "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd"},
                 {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
                 {"\xc0\xaf\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
                 {"\xe2\x82", "\uFFFD"},
                 {"\u00e9\u20ac\U0001F600", "\u00e9\u20ac\U0001F600"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n;
        char *got = utf8_repaired(cases[i].text, strlen(cases[i].text), &n);
        ck_assert_str_eq(got, cases[i].wanted);
        ck_assert_uint_eq(n, strlen(cases[i].wanted));
        free(got);
    }
}
END_TEST

static const struct {
    const char *text, *composed;
} NFC_CASES[] = {{"plain \u00e9", "plain \u00e9"},
                 {"e\u0301", "\u00e9"},
                 {"\u212b", "\u00c5"},                                         /* the angstrom sign */
                 {"\u05d0\u05bc\u05b0", "\u05d0\u05b0\u05bc"},                 /* classes 21, 10 */
                 {"\u1112\u1161\u11ab", "\ud55c"},                             /* Hangul of letters */
                 {"a\u0323\u0307 a\u0307\u0323", "\u1ea1\u0307 \u1ea1\u0307"}, /* in either order */
                 {"\uac00\u11a7 \u11a7", "\uac00\u11a7 \u11a7"},               /* no letter to compose */
                 {"\u0958", "\u0915\u093c"},                                   /* one that is never composed */
                 {"<|im_end|>\u0338", "<|im_end|>\u0338"}};                    /* special tokens are cut out before */

/* Expects tokens to stand for a text. */
static void expect_bytes(const tokenizer_t *tokenizer, const tokens_t *tokens, const char *text)
{
    char back[64] = "";
    for (size_t i = 0; i < tokens->n; i++) {
        size_t n_bytes;
        const char *bytes = tokenizer_bytes(tokenizer, tokens->at[i], &n_bytes);
        strncat(back, bytes, n_bytes);
    }
    ck_assert_str_eq(back, text);
}

/* Qwen's text comes back in normal form C (UAX 15; what Python's unicodedata gives). */
START_TEST(text_is_composed)
{
    tokenizer_t *tokenizer = open_family("qwen2");
    tokens_t tokens = {0};
    ck_assert_int_eq(tokenizer_encode(tokenizer, NFC_CASES[_i].text, strlen(NFC_CASES[_i].text), false, &tokens),
                     ZERO_OK);
    expect_bytes(tokenizer, &tokens, NFC_CASES[_i].composed);
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
}
END_TEST

static const struct {
    const char *family, *place, *value; /* what stands there in the family's sample */
    const char *says;
} REFUSALS[] = {
    {"gpt2", "normalizer", "{\"type\": \"Lowercase\"}", "normalizer is Lowercase"},
    {"gpt2", "pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer is Metaspace"},
    {"gpt2", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
     "it has a group without its end"},
    {"gpt2", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Isolated\"}",
     "pre_tokenizer is without ByteLevel"},
    {"gpt2", "pre_tokenizer", "null", "pre_tokenizer is without ByteLevel"},
    {"gpt2", "pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}",
     "pre_tokenizer is a step behind ByteLevel"},
    {"gpt2", "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"}",
     "the behavior of a Split is Removed"},
    {"gpt2", "post_processor", "{\"type\": \"RobertaProcessing\"}", "post_processor is RobertaProcessing"},
    {"gpt2", "decoder", "{\"type\": \"WordPiece\"}", "decoder is WordPiece"},
    {"gpt2", "model", "{\"type\": \"Unigram\"}", "model.type is Unigram"},
    {"gpt2", "model", "{\"type\": \"BPE\", \"byte_fallback\": true}", "model is byte_fallback"},
    {"gpt2", "model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}", "the merge of 'a' and 'b'"},
    {"gpt2", "model", "{\"type\": \"BPE\", \"vocab\": {\"a\": 900}, \"merges\": []}",
     "has number 900, but the model has"},
    {"gpt2", "model", "{\"type\": \"BPE\", \"vocab\": {\"\u4e2d\": 1}, \"merges\": []}", "no byte-level vocabulary"},
    {"gpt2", "model", "3", "model is missing"},
    {"llama2", "normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" +\"}, \"content\": \"_\"}",
     "normalizer is a Replace of a pattern"},
    {"llama2", "normalizer", "{\"type\": \"Precompiled\"}", "normalizer is Precompiled"},
    {"llama2", "pre_tokenizer", "{\"type\": \"ByteLevel\"}", "pre_tokenizer is ByteLevel"},
    {"llama2", "pre_tokenizer", "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}",
     "prepend_scheme of Metaspace"},
    {"llama2", "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}",
     "decoder is ByteFallback"},
    {"llama2", "decoder", "{\"type\": \"Strip\", \"content\": \" \", \"start\": 2, \"stop\": 0}",
     "decoder is a Strip of more"},
    {"llama2", "model", "{\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"a\": 5}, \"merges\": []}",
     "<0x00> to <0xFF>"},
    {"llama2", "model", "{\"type\": \"BPE\", \"unk_token\": \"<u>\", \"vocab\": {\"a\": 5}, \"merges\": []}",
     "the token that unk_token names"},
    {"llama2", "model", "{\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}", "model is dropout"},
};

START_TEST(what_is_not_implemented_is_refused_by_name)
{
    char *directory = support_scratch(), path[512];
    support_output_t output;
    snprintf(path, sizeof path, SAMPLES "%s/tokenizer.json", REFUSALS[_i].family);
    json_t *file = json_load_file(path, 0, NULL);
    json_object_set_new(file, REFUSALS[_i].place, json_loads(REFUSALS[_i].value, JSON_DECODE_ANY, NULL));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    ck_assert_int_eq(json_dump_file(file, path, 0), 0);
    int code = support_run(&output, 10.0, "%s/tests/unit/forward/test_tokenizer %s %d /dev/null /dev/null",
                           support_build(), directory, VOCAB_SIZE);
    ck_assert_msg(code == 1 || code == 2, "exit code %d", code); /* malformed, or not implemented */
    ck_assert_msg(strstr(output.err, REFUSALS[_i].says) && support_count(output.err, "\n") == 1, "%s", output.err);
    support_output_free(&output);
    json_decref(file);
    free(directory);
}
END_TEST

/* A prompt that brings its own beginning of text, as chat templates write it, gets no second one. */
START_TEST(a_prompt_begins_once)
{
    static const char *const texts[] = {"Hello", "<|begin_of_text|>Hello"};
    tokenizer_t *llama3 = open_family("llama3");
    tokens_t tokens[2] = {{0}};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(prompt_encode(llama3, "generate", texts[i], strlen(texts[i]), &tokens[i]), ZERO_OK);
    ck_assert_uint_gt(tokens[0].n, 1);
    ck_assert_uint_eq(tokens[1].n, tokens[0].n);
    ck_assert_mem_eq(tokens[1].at, tokens[0].at, tokens[0].n * sizeof(int32_t));
    tokens_free(&tokens[0]);
    tokens_free(&tokens[1]);
    tokenizer_close(llama3);
}
END_TEST

/* What training scripts leave in a file, and does nothing to a text. */
START_TEST(truncation_padding_and_a_dropout_of_zero_are_harmless)
{
    static const char text[] = "Two words, 3 numbers";
    char *directory = support_scratch(), path[512];
    tokenizer_t *plain = open_family("gpt2"), *other;
    tokens_t want = {0}, got = {0};
    snprintf(path, sizeof path, SAMPLES "%s/tokenizer.json", "gpt2");
    json_t *file = json_load_file(path, 0, NULL);
    json_object_set_new(file, "truncation", json_pack("{s:i}", "max_length", 4));
    json_object_set_new(file, "padding", json_pack("{s:s}", "strategy", "BatchLongest"));
    json_object_set_new(json_object_get(file, "model"), "dropout", json_real(0.0));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    ck_assert_int_eq(json_dump_file(file, path, 0), 0);
    ck_assert_int_eq(tokenizer_open(directory, VOCAB_SIZE, &other), ZERO_OK);
    ck_assert_int_eq(tokenizer_encode(plain, text, sizeof text - 1, true, &want), ZERO_OK);
    ck_assert_int_eq(tokenizer_encode(other, text, sizeof text - 1, true, &got), ZERO_OK);
    ck_assert_uint_eq(got.n, want.n);
    ck_assert_uint_gt(got.n, 4);
    ck_assert_mem_eq(got.at, want.at, want.n * sizeof *want.at);
    tokens_free(&want);
    tokens_free(&got);
    tokenizer_close(plain);
    tokenizer_close(other);
    json_decref(file);
    free(directory);
}
END_TEST

/* Opens GPT-2's sample with added tokens that have the numbers behind its vocabulary. */
static zero_status_t open_with_added(const char *const contents[], int n, tokenizer_t **tokenizer)
{
    char *directory = support_scratch(), path[512];
    json_t *file = json_load_file(SAMPLES "gpt2/tokenizer.json", 0, NULL);
    for (int i = 0; i < n; i++)
        json_array_append_new(
            json_object_get(file, "added_tokens"),
            json_pack("{s:i, s:s, s:b}", "id", VOCAB_SIZE + i, "content", contents[i], "normalized", 1));
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    ck_assert_int_eq(json_dump_file(file, path, 0), 0);
    zero_status_t status = tokenizer_open(directory, VOCAB_SIZE + n, tokenizer);
    json_decref(file);
    free(directory);
    return status;
}

static const struct {
    const char *added, *text;
    size_t n;
    int32_t tokens[16]; /* what tokenizers 0.23.3 makes of the text */
} BESIDE[] = {{"  ", "a  b    c   the  <|endoftext|>  x", 12, {64, 700, 65, 700, 700, 66, 700, 301, 700, 699, 700, 87}},
              {" the", "in the end the  the", 7, {261, 700, 220, 461, 700, 220, 700}}};

/* "  " is another token than the vocabulary's, which is written with U+0120 for a space. */
START_TEST(an_added_token_may_stand_for_the_bytes_of_another)
{
    tokenizer_t *tokenizer;
    tokens_t tokens = {0};
    ck_assert_int_eq(open_with_added(&BESIDE[_i].added, 1, &tokenizer), ZERO_OK);
    ck_assert_int_eq(tokenizer_encode(tokenizer, BESIDE[_i].text, strlen(BESIDE[_i].text), true, &tokens), ZERO_OK);
    ck_assert_uint_eq(tokens.n, BESIDE[_i].n);
    ck_assert_mem_eq(tokens.at, BESIDE[_i].tokens, tokens.n * sizeof *tokens.at);
    expect_bytes(tokenizer, &tokens, BESIDE[_i].text);
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
}
END_TEST

/* tokenizers takes the number of the first, or of the vocabulary: which one a model was trained with is not known. */
START_TEST(a_token_that_is_there_twice_is_refused)
{
    static const char *const twice[][2] = {{"  ", "  "}, {"<new>", "<new>"}, {"<new>", "a"}};
    for (size_t i = 0; i < sizeof twice / sizeof twice[0]; i++) {
        tokenizer_t *tokenizer;
        ck_assert_int_eq(open_with_added(twice[i], 2, &tokenizer), ZERO_ERROR_FORMAT);
    }
}
END_TEST

/* U+10FFFD is private, and U+FFFF will never be assigned; U+3FFFC may be. */
START_TEST(characters_newer_than_the_tables_are_refused)
{
    tokenizer_t *tokenizer = open_family("llama3");
    tokens_t tokens = {0};
    ck_assert_int_eq(tokenizer_encode(tokenizer, "a\xf4\x8f\xbf\xbd \xef\xbf\xbf", 9, false, &tokens), ZERO_OK);
    ck_assert_int_eq(tokenizer_encode(tokenizer, "a \xf0\xbf\xbf\xbc", 6, false, &tokens), ZERO_ERROR_FORMAT);
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
}
END_TEST

/* transformers writes tokenizer.json of SentencePiece's own file. */
START_TEST(a_sentencepiece_file_alone_is_refused_with_the_way_out)
{
    char *directory = support_scratch(), path[512];
    support_output_t output;
    snprintf(path, sizeof path, "%s/tokenizer.model", directory);
    support_write_file(path, "x", 1);
    int code = support_run(&output, 10.0, "%s/tests/unit/forward/test_tokenizer %s %d /dev/null /dev/null",
                           support_build(), directory, VOCAB_SIZE);
    ck_assert_int_eq(code, 2);
    ck_assert_msg(strstr(output.err, "save_pretrained") && support_count(output.err, "\n") == 1, "%s", output.err);
    support_output_free(&output);
    free(directory);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("tokens");
    tcase_set_timeout(c, 20);
    tcase_add_loop_test(c, tokens_are_those_of_tokenizers, 0, N_FAMILIES);
    tcase_add_loop_test(c, bytes_come_back, 0, N_FAMILIES);
    tcase_add_test(c, a_prompt_begins_once);
    tcase_add_test(c, truncation_padding_and_a_dropout_of_zero_are_harmless);
    tcase_add_loop_test(c, a_long_word_is_soon_merged, 0, 2);
    tcase_add_test(c, what_is_not_utf8_becomes_the_replacement);
    tcase_add_loop_test(c, text_is_composed, 0, sizeof NFC_CASES / sizeof NFC_CASES[0]);
    tcase_add_loop_test(c, what_is_not_implemented_is_refused_by_name, 0, sizeof REFUSALS / sizeof REFUSALS[0]);
    tcase_add_loop_test(c, an_added_token_may_stand_for_the_bytes_of_another, 0, sizeof BESIDE / sizeof BESIDE[0]);
    tcase_add_test(c, a_token_that_is_there_twice_is_refused);
    tcase_add_test(c, a_sentencepiece_file_alone_is_refused_with_the_way_out);
    tcase_add_test(c, characters_newer_than_the_tables_are_refused);
    suite_add_tcase(s, c);
    return s;
}

static void write_outputs(const tokenizer_t *tokenizer, const tokens_t *tokens, const char *path)
{
    char text_path[512];
    snprintf(text_path, sizeof text_path, "%s.text", path);
    FILE *out = fopen(path, "wb"), *text = fopen(text_path, "wb");
    if (out)
        fwrite(tokens->at, sizeof *tokens->at, tokens->n, out);
    for (size_t i = 0; text && i < tokens->n; i++) {
        size_t n_bytes;
        const char *bytes = tokenizer_bytes(tokenizer, tokens->at[i], &n_bytes);
        fwrite(bytes, 1, n_bytes, text);
    }
    if (out)
        fclose(out);
    if (text)
        fclose(text);
}

static int write_tokens(char **argv)
{
    size_t n_bytes;
    tokens_t tokens = {0};
    tokenizer_t *tokenizer;
    report_init(0, 1);
    zero_status_t status = tokenizer_open(argv[1], atoll(argv[2]), &tokenizer);
    if (status != ZERO_OK)
        return report_exit_code(status);
    char *text = support_read_file(argv[3], &n_bytes);
    status = tokenizer_encode(tokenizer, text, n_bytes, true, &tokens);
    if (status == ZERO_OK)
        write_outputs(tokenizer, &tokens, argv[4]);
    free(text);
    tokens_free(&tokens);
    tokenizer_close(tokenizer);
    return report_exit_code(status);
}

int main(int argc, char **argv)
{
    return argc == 5 ? write_tokens(argv) : support_main(suite());
}
