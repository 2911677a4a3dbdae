/* test_evaluate.c - zerotrain evaluate: training's own validation loss over the same data, the same text on any number
 * of ranks and at every stage, and a line for each mistake.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/support.h"

#define LIMIT_S 60.0
#define SEQ_LEN 24
#define N_SEQUENCES 37 /* no multiple of micro_batch, nor of micro_batch * ranks */

static char *scratch;

static void write_text(const char *name, size_t n_bytes)
{
    static const char words[] = "for (int i = 0; i < n; i++) total += weights[i] * inputs[i]; /* a dot product */\n";
    char path[512], *text = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = words[(i * 3 + i / 40) % (sizeof words - 1)];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    support_write_file(path, text, n_bytes);
    free(text);
}

/* Trains one model for all tests. With global_batch 1 and as many batches as there are sequences, training evaluates on
 * each sequence once. */
static void set_up(void)
{
    static const char config[] =
        "[model]\narch = llama\nlayers = 2\ndim = 32\nheads = 4\nkv_heads = 2\nseq_len = 24\n"
        "[data]\ntrain = train.txt\nval = val.txt\n"
        "[train]\nsteps = 3\nmicro_batch = 1\nglobal_batch = 1\nlr = 1e-2\nprecision = fp32\neval_batches = 37\n"
        "[checkpoint]\ndir = ck\n[log]\nmetrics = metrics.jsonl\n";
    char path[512];
    support_output_t output;
    scratch = support_scratch();
    snprintf(path, sizeof path, "%s/cfg.ini", scratch);
    support_write_file(path, config, sizeof config - 1);
    write_text("train.txt", 4000);
    write_text("val.txt", N_SEQUENCES * SEQ_LEN + 1);
    int code = support_run(&output, LIMIT_S, "cd %s && %s/zerotrain cfg.ini", scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
}

static int evaluate(support_output_t *output, int n_ranks, const char *arguments)
{
    if (n_ranks == 1)
        return support_run(output, LIMIT_S, "cd %s && %s/zerotrain evaluate %s cfg.ini", scratch, support_build(),
                           arguments);
    return support_mpirun(output, LIMIT_S, n_ranks, "--wdir %s %s/zerotrain evaluate %s cfg.ini", scratch,
                          support_build(), arguments);
}

static double last_val_loss(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/metrics.jsonl", scratch);
    char *text = support_read_file(path, NULL), *last = NULL;
    for (char *at = text; (at = strstr(at, "\"val_loss\"")); at++)
        last = at;
    double loss = last ? strtod(last + sizeof "\"val_loss\":" - 1, NULL) : NAN;
    ck_assert(isfinite(loss));
    free(text);
    return loss;
}

/* Training's is a float: half a unit in its last place is 6e-8 of it. Batches of other sizes round differently. */
START_TEST(the_loss_is_that_of_training)
{
    support_output_t output;
    ck_assert_int_eq(evaluate(&output, 1, "--json"), 0);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_msg(got != NULL, "%s", output.out);
    double loss = json_number_value(json_object_get(got, "loss"));
    ck_assert_double_lt(support_relative_error(loss, last_val_loss()), 1e-6);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "sequences")), N_SEQUENCES);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "tokens")), N_SEQUENCES * SEQ_LEN);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "bytes")), N_SEQUENCES * SEQ_LEN);
    ck_assert_double_lt(
        support_relative_error(json_number_value(json_object_get(got, "perplexity")), pow(2.718281828459045, loss)),
        1e-12);
    ck_assert_double_lt(
        support_relative_error(json_number_value(json_object_get(got, "bits_per_byte")), loss / 0.6931471805599453),
        1e-12);
    json_decref(got);
    support_output_free(&output);
}
END_TEST

/* Weights of several hundreds: a loss whose exponential no double holds. */
START_TEST(a_perplexity_beyond_all_numbers_is_null)
{
    support_output_t output;
    int code = support_run(&output, LIMIT_S,
                           "cd %s && %s/zerotrain --set checkpoint.dir=large --set train.optimizer=lion --set "
                           "train.lr=100 --set train.weight_decay=0 --set log.metrics= cfg.ini",
                           scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    code = evaluate(&output, 1, "--json --set checkpoint.dir=large");
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_msg(json_number_value(json_object_get(got, "loss")) > 710.0, "%s", output.out);
    ck_assert(json_is_null(json_object_get(got, "perplexity")));
    json_decref(got);
    support_output_free(&output);
}
END_TEST

/* A learning rate that is too high: the loss falls and rises. The run is stopped and resumed in between. */
START_TEST(the_best_checkpoint_is_that_of_the_lowest_loss)
{
    static const char settings[] = "--set checkpoint.dir=ckb --set checkpoint.best=true --set train.eval_every=1 --set "
                                   "train.steps=12 --set train.lr=0.3 --set train.schedule=constant --set "
                                   "train.warmup_steps=0 --set train.min_lr=0.3 --set log.metrics=best.jsonl";
    support_output_t output;
    char path[512], want[40];
    for (int part = 0; part < 2; part++) {
        int code = support_run(&output, LIMIT_S, "cd %s && %s/zerotrain %s %s cfg.ini", scratch, support_build(),
                               settings, part == 0 ? "--steps 7" : "--resume");
        ck_assert_msg(code == 0, "%s", output.err);
        support_output_free(&output);
    }
    snprintf(path, sizeof path, "%s/best.jsonl", scratch);
    char *text = support_read_file(path, NULL);
    double best = INFINITY;
    int step = 0, best_step = 0;
    for (char *at = text; (at = strstr(at, "\"val_loss\": ")); at++) {
        double loss = strtod(at + strlen("\"val_loss\": "), NULL);
        best_step = (step++, loss < best) ? step : best_step;
        best = loss < best ? loss : best;
    }
    free(text);
    ck_assert_int_eq(step, 12);
    snprintf(path, sizeof path, "%s/ckb/best/latest", scratch);
    snprintf(want, sizeof want, "step-%08d", best_step);
    char link[100] = "";
    ck_assert_int_gt((int)readlink(path, link, sizeof link - 1), 0);
    ck_assert_str_eq(link, want);
    ck_assert_int_eq(evaluate(&output, 1, "--json --resume ckb/best"), 0);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_double_lt(support_relative_error(json_number_value(json_object_get(got, "loss")), best), 1e-6);
    json_decref(got);
    support_output_free(&output);
}
END_TEST

/* Of families whose configuration has numbers that are derived here. */
static const char *const families_from_nowhere[] = {"granite", "granitemoehybrid", "gemma3_text", "phi3", "smollm3"};

START_TEST(a_checkpoint_of_a_model_from_nowhere_can_be_used)
{
    support_output_t output;
    int code = support_run(&output, LIMIT_S,
                           "cd %s && %s/zerotrain --steps 1 --set model.arch=%s --set "
                           "checkpoint.dir=ckn --set log.metrics=n.jsonl cfg.ini && %s/zerotrain generate --prompt ab "
                           "--max-tokens 3 ckn && %s/zerotrain evaluate --resume ckn --set model.arch=%s cfg.ini",
                           scratch, support_build(), families_from_nowhere[_i], support_build(), support_build(),
                           families_from_nowhere[_i]);
    ck_assert_msg(code == 0, "%s: %s", families_from_nowhere[_i], output.err);
    support_output_free(&output);
}
END_TEST

/* Losses of other data, or of another part of them, cannot be compared: that the old one is lower says nothing. */
START_TEST(the_best_checkpoint_is_of_the_validation_data_that_there_are)
{
    static const struct {
        const char *settings;
        bool is_other;
    } cases[] = {{"data.val=noise.txt", true},
                 {"data.val=other.txt", true},
                 {"train.eval_batches=1", true},
                 {"data.val=copy.txt", false}};
    static const char run[] =
        "cd %s && rm -rf ckw && cp -r cks ckw 2>/dev/null; %s/zerotrain --set checkpoint.best=true "
        "--set train.eval_every=1 --set log.metrics= %s cfg.ini && readlink ckw/best/latest";
    support_output_t output;
    char path[512], noise[N_SEQUENCES * SEQ_LEN + 1]; /* of which a model that has learned text knows nothing */
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(support_random(&seed) % 256);
    snprintf(path, sizeof path, "%s/noise.txt", scratch);
    support_write_file(path, noise, sizeof noise);
    write_text("copy.txt", N_SEQUENCES * SEQ_LEN + 1);
    write_text("other.txt", N_SEQUENCES * SEQ_LEN + 2);
    int code = support_run(&output, LIMIT_S,
                           "cd %s && %s/zerotrain --set checkpoint.best=true --set checkpoint.dir=cks --set "
                           "train.eval_every=1 --set log.metrics= --steps 2 cfg.ini",
                           scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char arguments[200];
        snprintf(arguments, sizeof arguments, "--set checkpoint.dir=ckw --resume --set %s", cases[i].settings);
        code = support_run(&output, LIMIT_S, run, scratch, support_build(), arguments);
        ck_assert_msg(code == 0, "%s", output.err);
        ck_assert_msg((strstr(output.err, "is of other validation data") != NULL) == cases[i].is_other, "%s:\n%s",
                      cases[i].settings, output.err);
        ck_assert_msg(!cases[i].is_other || strcmp(output.out, "step-00000003\n") == 0, "%s: %s", cases[i].settings,
                      output.out);
        support_output_free(&output);
    }
}
END_TEST

START_TEST(what_is_left_out_or_not_applied_is_said)
{
    support_output_t output;
    write_text("tail.txt", N_SEQUENCES * SEQ_LEN + 1 + 5);
    ck_assert_int_eq(evaluate(&output, 1, "--set data.val=tail.txt"), 0);
    ck_assert_msg(strstr(output.err, "the last 5 of 894 bytes fill no sequence and are left out"), "%s", output.err);
    support_output_free(&output);
    ck_assert_int_eq(evaluate(&output, 1, ""), 0);
    ck_assert_msg(!strstr(output.err, "left out"), "%s", output.err);
    support_output_free(&output);
    int code =
        support_run(&output, LIMIT_S,
                    "cd %s && cp -r ck dropped && sed -i 's/\"attention_dropout\": 0.0/\"attention_dropout\": 0.1/' "
                    "dropped/latest/config.json && %s/zerotrain --steps 1 --set model.init=dropped --set "
                    "checkpoint.dir=ckd --set log.metrics=d.jsonl cfg.ini",
                    scratch, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    ck_assert_msg(strstr(output.err, "attention_dropout = 0.1: no dropout is applied"), "%s", output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    int n_ranks, micro_batch, global_batch, eval_batches;
} VALIDATIONS[] = {
    {1, 1, 7, 100}, {1, 4, 40, 1}, {2, 4, 16, 20}, {3, 5, 15, 3}, {2, 1, 10, 4}, {1, 1, 10, 3}, {2, 1, 10, 3},
};

/* Trains a step. Returns the validation loss as text: free it. */
static char *validate(size_t i)
{
    char arguments[200];
    support_output_t output;
    snprintf(arguments, sizeof arguments,
             "--set train.steps=1 --set train.micro_batch=%d --set train.global_batch=%d --set train.eval_batches=%d "
             "--overwrite --set checkpoint.dir=ckv",
             VALIDATIONS[i].micro_batch, VALIDATIONS[i].global_batch, VALIDATIONS[i].eval_batches);
    int code = support_mpirun(&output, LIMIT_S, VALIDATIONS[i].n_ranks, "--wdir %s %s/zerotrain %s cfg.ini", scratch,
                              support_build(), arguments);
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    char *text = NULL;
    ck_assert_int_gt(asprintf(&text, "%.9g", last_val_loss()), 0);
    return text;
}

/* Training's is a float. */
START_TEST(validation_takes_each_sequence_once_as_evaluate_does)
{
    for (size_t i = 0; i < 5; i++) {
        char arguments[200], want[32];
        support_output_t output;
        if (support_leaves_out(VALIDATIONS[i].n_ranks))
            continue;
        char *got = validate(i);
        snprintf(arguments, sizeof arguments, "--json --set train.micro_batch=%d --set checkpoint.dir=ckv",
                 VALIDATIONS[i].micro_batch);
        ck_assert_int_eq(evaluate(&output, 1, arguments), 0);
        json_t *json = json_loads(output.out, 0, NULL);
        snprintf(want, sizeof want, "%.9g", (double)(float)json_number_value(json_object_get(json, "loss")));
        ck_assert_msg(strcmp(got, want) == 0, "row %zu: val_loss is %s, evaluate's %s", i, got, want);
        json_decref(json);
        support_output_free(&output);
        free(got);
    }
}
END_TEST

/* 30 of the 37 sequences, on one rank and on two. */
START_TEST(a_sample_is_the_same_on_any_number_of_ranks)
{
    char *first = validate(5), *second = validate(6), *all = validate(4);
    ck_assert_str_eq(first, second);
    ck_assert_str_ne(first, all);
    free(first), free(second), free(all);
}
END_TEST

/* A tokenizer of seven tokens: its own spelling of a space and of the two bytes of an e with an acute accent among
 * them. */
#define TOKENIZER                                                                                                      \
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<|end|>\", \"special\": true}, "                                   \
    "{\"id\": 6, \"content\": \"<b>\", \"special\": false}], "                                                         \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "                 \
    "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": "  \
    "2, "                                                                                                              \
    "\"abab\": 3, \"\u0120\": 4, \"\u00c3\u00a9\": 7}, \"merges\": [\"a b\", \"ab ab\"]}}"

/* One like SentencePiece's: a mark for a space, of which decoding takes off the first; a token of a byte. */
#define PIECES                                                                                                         \
    "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"special\": true}], "                                      \
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\u2581\", \"prepend_scheme\": \"first\"}, "       \
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "          \
    "\"\u2581\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", "     \
    "\"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"<u>\", "        \
    "\"vocab\": {\"a\": 0, \"\u2581\": 1, \"\u2581a\": 2, \"aa\": 3, \"<0x0A>\": 4, \"<u>\": 6, \"\u2581\u2581\": "    \
    "7}, "                                                                                                             \
    "\"merges\": [\"\u2581 a\", \"a a\", \"\u2581 \u2581\"]}}"

static const struct {
    const char *tokenizer;
    int within[8], first[8]; /* bytes of each token in a text, and behind token 5, which ends one */
} TOKENIZERS[] = {{TOKENIZER, {1, 1, 2, 4, 1, 0, 3, 2}, {1, 1, 2, 4, 1, 0, 3, 2}},
                  {PIECES, {1, 1, 2, 2, 1, 0, 3, 2}, {1, 0, 1, 2, 1, 0, 3, 1}}};

/* Trains on tokens of uint16, and counts the bytes of all targets by hand: all tokens but the first. */
START_TEST(bits_per_byte_count_the_bytes_of_the_tokens)
{
    enum { N = 6 * 8 + 1 };
    uint16_t tokens[N];
    uint64_t state = 9;
    long long n_bytes = 0;
    char path[512];
    support_output_t output, other;
    for (int i = 0; i < N; i++) {
        tokens[i] = (uint16_t)(support_random(&state) % 8);
        const bool is_first = i > 0 && tokens[i - 1] == 5;
        n_bytes += i == 0 ? 0 : is_first ? TOKENIZERS[_i].first[tokens[i]] : TOKENIZERS[_i].within[tokens[i]];
    }
    snprintf(path, sizeof path, "%s/tokens.bin", scratch);
    support_write_file(path, (const char *)tokens, sizeof tokens);
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch);
    support_write_file(path, TOKENIZERS[_i].tokenizer, strlen(TOKENIZERS[_i].tokenizer));
    static const char tokens_options[] =
        "--set data.train=tokens.bin --set data.val=tokens.bin --set data.format=nanogpt "
        "--set model.vocab_size=8 --set model.seq_len=8 --set checkpoint.dir=ck8";
    int code =
        support_run(&output, LIMIT_S, "cd %s && %s/zerotrain %s --set model.tokenizer=. --set log.metrics= cfg.ini",
                    scratch, support_build(), tokens_options);
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
    char arguments[400];
    snprintf(arguments, sizeof arguments, "--json %s", tokens_options);
    code = evaluate(&output, 1, arguments);
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    double loss = json_number_value(json_object_get(got, "loss"));
    ck_assert_int_eq(json_integer_value(json_object_get(got, "tokens")), N - 1);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "bytes")), n_bytes);
    ck_assert_double_lt(support_relative_error(json_number_value(json_object_get(got, "bits_per_byte")),
                                               loss * (N - 1) / 0.6931471805599453 / (double)n_bytes),
                        1e-12);
    json_decref(got);
    if (!support_leaves_out(3)) {
        ck_assert_int_eq(evaluate(&other, 3, arguments), 0);
        ck_assert_str_eq(output.out, other.out);
        support_output_free(&other);
    }
    support_output_free(&output);
    code = evaluate(&output, 1, tokens_options);
    snprintf(path, sizeof path, " per byte: these tokens are %lld bytes of text\n", n_bytes);
    ck_assert_msg(code == 0 && strstr(output.out, path), "%s%s", output.out, output.err);
    support_output_free(&output);
}
END_TEST

/* Though they are below 256, as bytes are: how much text they stand for is not known. */
START_TEST(tokens_of_a_small_vocabulary_are_not_called_bytes)
{
    uint16_t tokens[4 * SEQ_LEN + 9];
    char path[512];
    support_output_t output;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        tokens[i] = (uint16_t)(i * i % 250);
    snprintf(path, sizeof path, "%s/small.bin", scratch);
    support_write_file(path, (const char *)tokens, sizeof tokens);
    int code = support_run(&output, LIMIT_S,
                           "cd %s && %s/zerotrain --set data.train=small.bin --set data.val=small.bin --set "
                           "checkpoint.dir= --set log.metrics= cfg.ini",
                           scratch, support_build());
    ck_assert_msg(code == 0 && strstr(output.err, " nats per token") && !strstr(output.err, "byte"), "%s", output.err);
    ck_assert_msg(strstr(output.err, "the last 8 of 105 tokens fill no sequence"), "%s", output.err);
    support_output_free(&output);
    for (int as_json = 0; as_json < 2; as_json++) {
        code = evaluate(&output, 1, as_json ? "--json --set data.val=small.bin" : "--set data.val=small.bin");
        ck_assert_msg(code == 0 && !strstr(output.out, "byte"), "%s%s", output.out, output.err);
        support_output_free(&output);
    }
}
END_TEST

static const struct {
    int n_ranks;
    const char *arguments;
} CASES[] = {{1, "--stage 0 --set train.micro_batch=4"},
             {1, "--stage 3 --set train.micro_batch=4"},
             {2, "--stage 1 --set train.micro_batch=4 --set train.global_batch=40"},
             {3, "--stage 3 --set train.micro_batch=4 --set zero.comm=mpi"},
             {4, "--stage 0 --set train.micro_batch=4"},
             {5, "--stage 2 --set train.micro_batch=4"}};

START_TEST(the_text_is_the_same_on_any_number_of_ranks_at_every_stage)
{
    support_output_t first, other;
    ck_assert_int_eq(evaluate(&first, 1, "--json --set train.micro_batch=4"), 0);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char arguments[128];
        if (support_leaves_out(CASES[i].n_ranks))
            continue;
        snprintf(arguments, sizeof arguments, "--json %s", CASES[i].arguments);
        int code = evaluate(&other, CASES[i].n_ranks, arguments);
        ck_assert_msg(code == 0 && strcmp(first.out, other.out) == 0, "%d ranks, %s: %s%s", CASES[i].n_ranks, arguments,
                      other.err, other.out);
        support_output_free(&other);
    }
    support_output_free(&first);
}
END_TEST

/* bf16: the low halves of the master weights are dropped, as training drops them for its passes. */
START_TEST(a_plan_has_no_optimizer_and_is_kept_to_in_bf16)
{
    support_output_t output;
    ck_assert_int_eq(evaluate(&output, 1, "--plan"), 0);
    static const char *const rows[] = {"\ngradients ", "\nunsharded gradients ", "\noptimizer state "};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *row = strstr(output.out, rows[i]);
        ck_assert_msg(row != NULL, "%s", output.out);
        long long bytes[4] = {-1, -1, -1, -1};
        sscanf(row + strlen(rows[i]), "%lld %lld %lld %lld", &bytes[0], &bytes[1], &bytes[2], &bytes[3]);
        for (int stage = 0; stage < 4; stage++)
            ck_assert_msg(bytes[stage] == 0, "%s", output.out);
    }
    support_output_free(&output);
    ck_assert_int_eq(evaluate(&output, 1, "--json --set train.precision=bf16"), 0);
    double loss = strtod(strstr(output.out, "\"loss\": ") + 8, NULL);
    ck_assert_double_lt(support_relative_error(loss, last_val_loss()), 4e-3); /* 2^-8, bf16's rounding */
    support_output_free(&output);
}
END_TEST

/* In the words of a training run that does not fit. What would fit of one says nothing of a forward pass. */
START_TEST(a_limit_of_memory_is_kept)
{
    support_output_t output;
    int code = evaluate(&output, 1, "--set train.micro_batch=8 --set device.memory=0.001");
    ck_assert_msg(code == 1 && strstr(output.err, "this does not fit; each rank would hold") &&
                      strstr(output.err, " MiB and 1.02 MiB may be used: ") && !strstr(output.err, "would fit:"),
                  "exit code %d\n%s", code, output.err);
    support_output_free(&output);
    code = evaluate(&output, 1, "--set train.micro_batch=1 --set device.memory=0.001");
    ck_assert_msg(code == 0, "%s", output.err);
    support_output_free(&output);
}
END_TEST

static const struct {
    const char *arguments, *says;
} refusals[] = {
    {"--set data.val=", "[data] val names no file"},
    {"--set checkpoint.dir=", "name a model with --resume DIR"},
    {"--set checkpoint.dir=none", "there is no checkpoint in [checkpoint] dir = none"},
    {"--set data.val=nothere.txt", "nothere.txt"},
    {"--auto-resume", "evaluate takes the latest checkpoint by itself"},
    {"--gpus 4", "is an option of zerotrain fit"},
    {"--steps 4", "--steps: this is an option of training"},
    {"--overwrite", "--overwrite: this is an option of training"},
    {"--trace t.json", "--trace: this is an option of training"},
    {"--set zero.shard_group=3", "divide the 1 rank: --set zero.shard_group=world evaluates on any number"},
    {"--set model.layers=5", "[model] layers = 5, but the model in init has"},
};

START_TEST(mistakes_are_refused_with_a_line)
{
    support_output_t output;
    int code = evaluate(&output, 1, refusals[_i].arguments);
    ck_assert_msg(code == 2, "%s: exit code %d\n%s", refusals[_i].arguments, code, output.err);
    ck_assert_msg(strstr(output.err, refusals[_i].says) && support_count(output.err, "\n") == 1, "%s: %s",
                  refusals[_i].arguments, output.err);
    support_output_free(&output);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("evaluate");
    TCase *c = tcase_create("program");
    tcase_set_timeout(c, 5 * LIMIT_S);
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_add_test(c, the_loss_is_that_of_training);
    tcase_add_test(c, a_perplexity_beyond_all_numbers_is_null);
    tcase_add_test(c, the_best_checkpoint_is_that_of_the_lowest_loss);
    tcase_add_loop_test(c, a_checkpoint_of_a_model_from_nowhere_can_be_used, 0,
                        sizeof families_from_nowhere / sizeof families_from_nowhere[0]);
    tcase_add_test(c, the_best_checkpoint_is_of_the_validation_data_that_there_are);
    tcase_add_test(c, what_is_left_out_or_not_applied_is_said);
    tcase_add_test(c, validation_takes_each_sequence_once_as_evaluate_does);
    tcase_add_test(c, a_sample_is_the_same_on_any_number_of_ranks);
    tcase_add_loop_test(c, bits_per_byte_count_the_bytes_of_the_tokens, 0, 2);
    tcase_add_test(c, tokens_of_a_small_vocabulary_are_not_called_bytes);
    tcase_add_test(c, the_text_is_the_same_on_any_number_of_ranks_at_every_stage);
    tcase_add_test(c, a_plan_has_no_optimizer_and_is_kept_to_in_bf16);
    tcase_add_test(c, a_limit_of_memory_is_kept);
    tcase_add_loop_test(c, mistakes_are_refused_with_a_line, 0, sizeof refusals / sizeof refusals[0]);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
