/* test_model_files.c - a tokenizer's files stay with the model: from checkpoint to checkpoint, byte by byte; and no
 * other file of the machine comes with them.
 */
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/data/tokenizer_rules.h"
#include "train/hub/model_files.h"

#define RUN_LIMIT_S 60.0

static const struct {
    const char *name, *content;
} FILES[] = {{"tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}\n"},
             {"tokenizer_config.json", "{}"},
             {"merges.txt", "#version: 0.2\n"},
             {"generation_config.json", "{\"eos_token_id\": 0}\n"},
             {MODEL_TEMPLATES "/rag.jinja", "{{ documents }}\n"},
             {MODEL_TEMPLATES "/tool_use.jinja", "{{ tools }}\n"}};
enum { N_FILES = sizeof FILES / sizeof FILES[0] };

static char directory[1000];

static const char *path_of(const char *folder, const char *name)
{
    static char path[4][2100];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s/%s", directory, folder, name);
    return path[turn];
}

static void shell(const char *command)
{
    support_output_t output;
    ck_assert_int_eq(support_run(&output, RUN_LIMIT_S, "cd %s && %s", directory, command), 0);
    support_output_free(&output);
}

static void set_up(void)
{
    char *scratch = support_scratch();
    snprintf(directory, sizeof directory, "%s", scratch);
    free(scratch);
    shell("mkdir -p tok/" MODEL_TEMPLATES " other");
    for (int i = 0; i < N_FILES; i++)
        support_write_file(path_of("tok", FILES[i].name), FILES[i].content, strlen(FILES[i].content));
}

/* ---- Which files are read ---- */

/* Reads them from a folder. Returns what was said. */
static const char *read_from(const char *folder, model_files_t *files)
{
    capture_begin();
    ck_assert_int_eq(model_files_read(path_of(folder, "."), files), ZERO_OK);
    return capture_end();
}

START_TEST(the_files_that_are_there_are_read)
{
    model_files_t files;
    ck_assert_str_eq(read_from("tok", &files), "");
    ck_assert_int_eq(files.n_files, N_FILES);
    ck_assert_uint_eq(files.tokenizer, XXH3_64bits(FILES[0].content, strlen(FILES[0].content)));
    for (int i = 0; i < N_FILES; i++) {
        int found = 0;
        for (int k = 0; k < files.n_files; k++)
            found += strcmp(files.files[k].name, FILES[i].name) == 0 &&
                     files.files[k].n_bytes == strlen(FILES[i].content) &&
                     memcmp(files.files[k].data, FILES[i].content, files.files[k].n_bytes) == 0;
        ck_assert_int_eq(found, 1);
    }
    model_files_free(&files);
    ck_assert_str_eq(read_from("other", &files), "");
    ck_assert(files.n_files == 0 && files.tokenizer == 0);
}
END_TEST

static const struct {
    const char *make, *says;
} LEFT_OUT[] = {
    {"ln -s /etc/passwd other/tokenizer.json", "a link out of the model's directory"},
    {"ln -s ../tok/tokenizer.json other/tokenizer.json", "a link out of the model's directory"},
    {"mkdir other/blobs && ln -s blobs/x other/tokenizer.json && touch other/blobs/x", "a link out of"},
    {"ln -s nowhere other/tokenizer.json", "No such file"},
    {"mkfifo other/tokenizer.json", "not a regular file"},
    {"mkdir other/tokenizer.json", "not a regular file"},
    {"touch other/tokenizer.json", "it is empty"},
    {"truncate -s 67108865 other/tokenizer.json", "larger than 64 MiB"},
    {"ln -s ../tok/" MODEL_TEMPLATES " other/; rm tok/*/rag.jinja", "a link out of the model's directory"},
    {"mkdir other/" MODEL_TEMPLATES "; echo a >'other/" MODEL_TEMPLATES "/a b.jinja'", "other characters"},
    {"mkdir other/" MODEL_TEMPLATES "; echo a >other/" MODEL_TEMPLATES "/a..jinja", "its name is long, or has '..'"},
};

START_TEST(what_is_no_file_of_the_model_is_left_out_with_a_line)
{
    model_files_t files;
    shell(LEFT_OUT[_i].make);
    expect_line(read_from("other", &files), (const char *[]){"' is not kept in checkpoints", LEFT_OUT[_i].says, NULL});
    ck_assert_int_eq(files.n_files, 0);
}
END_TEST

/* Other files of their folder are not: transformers reads *.jinja alone. */
START_TEST(sixteen_named_templates_are_read)
{
    model_files_t files;
    shell("mkdir other/" MODEL_TEMPLATES "; cd other/" MODEL_TEMPLATES "; touch notes.txt .a.jinja; "
          "for i in $(seq 10 26); do echo $i >$i.jinja; done");
    expect_line(read_from("other", &files), (const char *[]){"26.jinja' is not kept", "more templates than 16", NULL});
    ck_assert_int_eq(files.n_files, MODEL_TEMPLATES_MAX);
    model_files_free(&files);
}
END_TEST

START_TEST(links_of_hugging_faces_cache_are_followed)
{
    model_files_t files;
    shell("mkdir -p m/snapshots/1 m/blobs && cp tok/tokenizer.json m/blobs/0f && "
          "ln -s ../../blobs/0f m/snapshots/1/tokenizer.json && ln -s ../../../tok/merges.txt m/snapshots/1/merges.txt "
          "&& "
          "mkdir m/snapshots/1/" MODEL_TEMPLATES " && ln -s ../../../blobs/0f m/snapshots/1/" MODEL_TEMPLATES
          "/a.jinja");
    expect_line(read_from("m/snapshots/1", &files), (const char *[]){"merges.txt' is not kept", NULL});
    ck_assert(files.n_files == 2 && files.tokenizer == XXH3_64bits(FILES[0].content, strlen(FILES[0].content)));
    model_files_free(&files);
}
END_TEST

/* ---- Runs ---- */

#define CONFIG                                                                                                         \
    "[model]\nlayers = 1\ndim = 24\nheads = 2\nseq_len = 16\n[data]\ntrain = zeros.bin\n"                              \
    "[train]\nsteps = 4\nglobal_batch = 4\nprecision = fp32\n[device]\ntype = cpu\n"

static int train(int n_ranks, const char *arguments, support_output_t *output)
{
    static const char zeros[2000];
    support_write_file(path_of(".", "cfg.ini"), CONFIG, sizeof CONFIG - 1);
    support_write_file(path_of(".", "zeros.bin"), zeros, sizeof zeros);
    return support_mpirun(output, RUN_LIMIT_S, n_ranks, "--wdir %s %s/zerotrain %s cfg.ini", directory, support_build(),
                          arguments);
}

static void must_train(int n_ranks, const char *arguments)
{
    support_output_t output;
    ck_assert_msg(train(n_ranks, arguments, &output) == 0, "%s", output.err);
    support_output_free(&output);
}

/* They are in the manifest, so that damage to them is found, too. */
static void expect_files(const char *checkpoints)
{
    char folder[200];
    snprintf(folder, sizeof folder, "%s/latest", checkpoints);
    char *manifest = support_read_file(path_of(folder, "manifest.json"), NULL);
    for (int i = 0; i < N_FILES; i++) {
        char *content = support_read_file(path_of(folder, FILES[i].name), NULL);
        ck_assert_str_eq(content, FILES[i].content);
        ck_assert_msg(strstr(manifest, FILES[i].name) != NULL, "%s", manifest);
        free(content);
    }
    free(manifest);
}

START_TEST(they_are_carried_from_checkpoint_to_checkpoint)
{
    must_train(2, "--set checkpoint.dir=ck --set model.tokenizer=tok --steps 2");
    expect_files("ck");
    shell("mv tok moved");
    must_train(1, "--set checkpoint.dir=ck --set checkpoint.async=true --resume");
    expect_files("ck");
    must_train(2, "--set checkpoint.dir=second --set model.init=ck");
    expect_files("second");
    ck_assert_int_eq(
        support_run(NULL, RUN_LIMIT_S, "cd %s && %s/zerotrain export second exported", directory, support_build()), 0);
    for (int i = 0; i < N_FILES; i++) {
        char *content = support_read_file(path_of("exported", FILES[i].name), NULL);
        ck_assert_str_eq(content, FILES[i].content);
        free(content);
    }
    shell("echo >>second/latest/merges.txt");
    support_output_t output;
    ck_assert_int_ne(train(1, "--set checkpoint.dir=second --resume --set train.steps=9", &output), 0);
    ck_assert_msg(strstr(output.err, "merges.txt") != NULL, "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* Bytes are no tokens of a model that has a tokenizer, in training or in evaluation, unless format says so. */
START_TEST(text_is_refused_where_the_model_has_a_tokenizer)
{
    static const char *const refused[] = {
        "--set data.train=text.txt --set model.tokenizer=tok",
        "--set data.train=text.txt --set model.init=ck",
        "--set data.val=text.txt --set model.init=ck",
        "evaluate --set data.val=text.txt --resume ck",
        "--set data.train=text.txt --set model.tokenizer=pieces",
        "--set data.train=text.txt --set model.init=linked"}; /* whose tokenizer.json is not kept */
    support_output_t output;
    shell("head -c 2000 /dev/zero | tr '\\0' a >text.txt; mkdir pieces; echo a >pieces/tokenizer.model");
    must_train(1, "--set checkpoint.dir=ck --set model.tokenizer=tok");
    shell("cp -rL ck/latest linked; rm linked/tokenizer.json; ln -s ../tok/tokenizer.json linked/");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        ck_assert_msg(train(2, refused[i], &output) == 2, "%s: %s", refused[i], output.err);
        ck_assert_msg(support_count(output.err, "'text.txt' is text, of which each byte would be a token") == 1 &&
                          strstr(output.err, "launch/tokenize; [data] format = text"),
                      "%s: %s", refused[i], output.err);
        support_output_free(&output);
    }
    must_train(1, "--set data.train=text.txt --set data.format=text --set model.init=ck");
    must_train(1, "evaluate --set data.format=text --set data.val=text.txt --resume ck");
}
END_TEST

/* Of 1024 zeros, with XXH3 7. */
START_TEST(data_of_another_tokenizer_are_refused)
{
    support_output_t output;
    unsigned char file[64 + 1024 + 8] = "ZEROTOK";
    file[8] = 1, file[12] = 1, file[17] = 4, file[25] = 1, file[32] = 7, file[40] = 1;
    support_write_file(path_of(".", "made.bin"), file, sizeof file);
    must_train(1, "--set data.train=made.bin");
    ck_assert_int_eq(train(2, "--set data.train=made.bin --set model.tokenizer=tok", &output), 2);
    ck_assert_msg(support_count(output.err, "another tokenizer.json than the model's") == 1, "%s", output.err);
    support_output_free(&output);
    uint64_t hash = XXH3_64bits(FILES[0].content, strlen(FILES[0].content));
    for (int i = 0; i < 8; i++)
        file[32 + i] = (unsigned char)(hash >> 8 * i);
    support_write_file(path_of(".", "made.bin"), file, sizeof file);
    must_train(1, "--set data.train=made.bin --set model.tokenizer=tok");
}
END_TEST

/* Written in other ways, and another. */
static const struct {
    const char *text;
    bool is_same;
} WRITTEN[] = {
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], \"normalizer\": null, "
     "\"pre_tokenizer\": "
     "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, "
     "\"b\": 1, "
     "\"\u0120\": 4, \"ab\": 2, \"aba\": 5}, \"merges\": [\"a b\", \"ab a\"]}}",
     true},
    {"{\n  \"version\": \"1.0\",\n  \"truncation\": {\"max_length\": 512, \"stride\": 0},\n  \"padding\": {\"pad_id\": "
     "0},\n"
     "  \"model\": {\"merges\": [[\"a\", \"b\"], [\"ab\", \"a\"]], \"dropout\": 0.0, \"unk_token\": null, "
     "\"fuse_unk\": false,"
     " \"continuing_subword_prefix\": \"\", \"ignore_merges\": false,\n\"vocab\": {\"aba\": 5, \"ab\": 2, \"b\": 1, "
     "\"a\": 0, "
     "\"\\u0120\": 4}},\n  \"pre_tokenizer\": {\"add_prefix_space\": false, \"type\": \"ByteLevel\"},\n  "
     "\"added_tokens\": "
     "[{\"special\": true, \"content\": \"<s>\", \"id\": 3}], \"post_processor\": {\"type\": \"ByteLevel\"}}",
     true},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], \"pre_tokenizer\": {\"type\": "
     "\"ByteLevel\", "
     "\"add_prefix_space\": false}, \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"\u0120\": 4, \"ab\": 2, \"aba\": 5}, "
     "\"merges\": [\"ab a\", \"a b\"]}}", /* two merges swapped */
     false},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], \"pre_tokenizer\": {\"type\": "
     "\"ByteLevel\", "
     "\"add_prefix_space\": true}, \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"\u0120\": 4, \"ab\": 2, \"aba\": 5}, "
     "\"merges\": [\"a b\", \"ab a\"]}}",
     false},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], \"pre_tokenizer\": {\"type\": "
     "\"ByteLevel\", "
     "\"add_prefix_space\": false}, \"model\": {\"vocab\": {\"a\": 1, \"b\": 0, \"\u0120\": 4, \"ab\": 2, \"aba\": 5}, "
     "\"merges\": [\"a b\", \"ab a\"]}}",
     false},
    {"{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}], \"pre_tokenizer\": {\"type\": "
     "\"ByteLevel\", "
     "\"add_prefix_space\": false}, \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"\u0120\": 4, \"ab\": 2, \"aba\": 5}, "
     "\"merges\": [\"a b\", \"ab a\"], \"dropout\": 0.1}}",
     false},
    {"{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
     "{\"vocab\": "
     "{\"a\": 0, \"b\": 1, \"\u0120\": 4, \"ab\": 2, \"aba\": 5}, \"merges\": [\"a b\", \"ab a\"]}}",
     false},
};
#define N_WRITTEN (sizeof WRITTEN / sizeof WRITTEN[0])
/* Of the first two, by launch/tokenizing/rules.py: python3 -c 'import json, sys; from tokenizing.rules import hash_of;
 * print(hex(hash_of(json.load(sys.stdin))))' */
#define RULES_OF_PYTHON UINT64_C(0x57adcd76788b88af)

START_TEST(only_what_decides_tokens_is_compared)
{
    for (size_t i = 0; i < N_WRITTEN; i++) {
        const uint64_t rules = tokenizer_rules_hash(WRITTEN[i].text, strlen(WRITTEN[i].text));
        ck_assert_msg((rules == RULES_OF_PYTHON) == WRITTEN[i].is_same, "%zu: %016llx", i, (unsigned long long)rules);
    }
    ck_assert_uint_eq(tokenizer_rules_hash("[1]", 3), 0);
    ck_assert_uint_eq(tokenizer_rules_hash("{\"model\": ", 10), 0);
}
END_TEST

static void put_number(unsigned char *bytes, uint64_t number)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
}

/* Tokens that the first made, and models with the others; in two files, too. */
START_TEST(data_of_a_tokenizer_that_is_written_otherwise_are_accepted)
{
    support_output_t output;
    unsigned char file[64 + 1024 + 8] = "ZEROTOK";
    file[8] = 1, file[12] = 1, file[17] = 4, file[25] = 1, file[40] = 1;
    put_number(file + 32, XXH3_64bits(WRITTEN[0].text, strlen(WRITTEN[0].text)));
    put_number(file + 56, RULES_OF_PYTHON);
    support_write_file(path_of(".", "first.bin"), file, sizeof file);
    put_number(file + 32, 7);
    support_write_file(path_of(".", "second.bin"), file, sizeof file);
    put_number(file + 56, 0); /* of an earlier version */
    support_write_file(path_of(".", "older.bin"), file, sizeof file);
    shell("mkdir -p other");
    for (size_t i = 0; i < N_WRITTEN; i++) {
        support_write_file(path_of("other", "tokenizer.json"), WRITTEN[i].text, strlen(WRITTEN[i].text));
        const int code = train(1, "--set data.train=first.bin,second.bin --set model.tokenizer=other", &output);
        ck_assert_msg(code == (WRITTEN[i].is_same ? 0 : 2), "%zu: %s", i, output.err);
        const char *says = i == 0               ? "training tokens"
                           : WRITTEN[i].is_same ? "it differs, but makes the same tokens"
                                                : "vocabulary, merges or how text is split differ";
        ck_assert_msg(strstr(output.err, says), "%zu: %s", i, output.err);
        support_output_free(&output);
    }
    ck_assert_int_eq(train(1, "--set data.train=first.bin,older.bin", &output), 2);
    ck_assert_msg(strstr(output.err, "different tokenizers"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* What a model from nowhere gets in config.json, of which of the tokenizer's files. */
static const struct {
    const char *generation, *settings, *map, *want[2];
} ENDS[] = {
    {"{\"eos_token_id\": [7, 8], \"bos_token_id\": 6}",
     "{\"eos_token\": \"<s>\"}",
     NULL,
     {"\"eos_token_id\": [\n    7,\n    8\n  ]", "\"bos_token_id\": 6"}},
    {NULL, "{\"eos_token\": \"<s>\"}", NULL, {"\"eos_token_id\": 3", "\"bos_token_id\": null"}},
    {NULL,
     "{\"eos_token\": \"<s>\", \"model_max_length\": 1000000000000000019884624838656}", /* as transformers writes it */
     NULL,
     {"\"eos_token_id\": 3", "\"bos_token_id\": null"}},
    {NULL,
     "{\"eos_token\": {\"content\": \"<s>\"}, \"bos_token\": \"ab\"}",
     NULL,
     {"\"eos_token_id\": 3", "\"bos_token_id\": 2"}},
    {"{\"bos_token_id\": 1}",
     "{\"eos_token\": null}",
     "{\"eos_token\": \"ab\"}",
     {"\"eos_token_id\": 2", "\"bos_token_id\": 1"}},
    {NULL, "{\"eos_token\": \"none such\"}", NULL, {"\"eos_token_id\": null", "\"bos_token_id\": null"}},
};

START_TEST(a_model_from_nowhere_knows_where_a_text_ends)
{
    const char *const names[] = {"generation_config.json", "tokenizer_config.json", "special_tokens_map.json"};
    const char *const texts[] = {ENDS[_i].generation, ENDS[_i].settings, ENDS[_i].map};
    shell("rm -rf ends ck-ends && mkdir ends");
    support_write_file(path_of("ends", "tokenizer.json"), WRITTEN[0].text, strlen(WRITTEN[0].text));
    for (int i = 0; i < 3; i++)
        if (texts[i])
            support_write_file(path_of("ends", names[i]), texts[i], strlen(texts[i]));
    must_train(1, "--set checkpoint.dir=ck-ends --set model.tokenizer=ends --steps 1");
    char *config = support_read_file(path_of("ck-ends/latest", "config.json"), NULL);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(config, ENDS[_i].want[i]), "%s\n%s", ENDS[_i].want[i], config);
    free(config);
}
END_TEST

START_TEST(every_dropout_that_is_not_applied_is_said_in_a_line)
{
    support_output_t output;
    shell("rm -rf wet ck-wet");
    must_train(1, "--set checkpoint.dir=wet --steps 1");
    ck_assert_int_eq(train(1, "--set model.init=wet --set checkpoint.dir=ck-wet --steps 1", &output), 0);
    ck_assert_msg(!strstr(output.err, "dropout"), "%s", output.err);
    support_output_free(&output);
    shell("sed -i 's/\"attn_pdrop\": 0.0/\"attn_pdrop\": 0.1/; s/\"resid_pdrop\": 0.0/\"resid_pdrop\": 0.25/' "
          "wet/latest/config.json");
    ck_assert_int_eq(train(1, "--set model.init=wet --set checkpoint.dir=ck-wet --overwrite --steps 1", &output), 0);
    ck_assert_msg(strstr(output.err, "config.json has attn_pdrop = 0.1, resid_pdrop = 0.25: no dropout is applied"),
                  "%s", output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("model_files");
    TCase *c = tcase_create("files and runs");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 4 * RUN_LIMIT_S);
    tcase_add_test(c, the_files_that_are_there_are_read);
    tcase_add_loop_test(c, what_is_no_file_of_the_model_is_left_out_with_a_line, 0,
                        sizeof LEFT_OUT / sizeof LEFT_OUT[0]);
    tcase_add_test(c, sixteen_named_templates_are_read);
    tcase_add_test(c, links_of_hugging_faces_cache_are_followed);
    tcase_add_test(c, they_are_carried_from_checkpoint_to_checkpoint);
    tcase_add_test(c, data_of_another_tokenizer_are_refused);
    tcase_add_test(c, text_is_refused_where_the_model_has_a_tokenizer);
    tcase_add_test(c, only_what_decides_tokens_is_compared);
    tcase_add_test(c, every_dropout_that_is_not_applied_is_said_in_a_line);
    tcase_add_loop_test(c, a_model_from_nowhere_knows_where_a_text_ends, 0, sizeof ENDS / sizeof ENDS[0]);
    tcase_add_test(c, data_of_a_tokenizer_that_is_written_otherwise_are_accepted);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
