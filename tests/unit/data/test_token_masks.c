/* test_token_masks.c - zerotrain's own token files: what is written is read, what is damaged is refused in one line,
 * and targets that do not count change neither the loss nor which bits it has on any number of ranks.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "tests/support/stderr_capture.h"
#include "tests/unit/data/token_cases.h"
#include "train/data/token_format.h"

/* ---- Files ---- */

static bool all(int i)
{
    return i >= 0;
}

static bool none(int i)
{
    return i < 0;
}

static bool last(int i) /* targets of the last sequence */
{
    return i > N_TOKENS - 1 - SEQ_LEN;
}

static bool some(int i)
{
    return (unsigned)i * 2654435761u >> 30 != 0; /* three of four */
}

static bool others(int i)
{
    return !some(i);
}

static unsigned char buffer[1 << 16];

static const writer_content_t PLAIN = {
    .width = 2, .n_tokens = N_TOKENS, .vocab_size = WRITER_VOCAB, .document_every = 100};

static writer_content_t masked(bool (*counts)(int token))
{
    writer_content_t content = PLAIN;
    content.counts = counts;
    return content;
}

/* ---- Reading ---- */

START_TEST(tokens_and_masks_of_every_width_are_read)
{
    static const int widths[] = {1, 2, 4};
    for (int w = 0; w < 3; w++) {
        writer_content_t content = masked(some);
        content.width = widths[w];
        token_file_t file;
        token_fault_t fault = {0};
        static int32_t tokens[N_TOKENS];
        int64_t n_counted, want = 0;
        ck_assert_int_eq(token_file_open(write_tokens("a.bin", content), FORMAT_AUTO, &file), ZERO_OK);
        ck_assert(file.format == FORMAT_ZEROTRAIN && file.n_tokens == N_TOKENS && file.n_documents == 8);
        ck_assert_int_eq(token_file_read(&file, 0, N_TOKENS, WRITER_VOCAB, tokens, &fault), ZERO_OK);
        for (int i = 0; i < N_TOKENS; i++)
            ck_assert_int_eq(tokens[i], writer_token(i));
        for (int first = 0; first < 40; first++)
            for (int n = 0; n < 40; n++, want = 0) {
                for (int i = first; i < first + n; i++)
                    want += some(i);
                ck_assert_int_eq(token_mask_count(&file, first, n, &n_counted, &fault), ZERO_OK);
                ck_assert_int_eq(n_counted, want);
            }
        ck_assert_int_eq(token_mask_apply(&file, 0, N_TOKENS, -1, tokens, &fault), ZERO_OK);
        for (int i = 0; i < N_TOKENS; i++)
            ck_assert_int_eq(tokens[i], some(i) ? writer_token(i) : -1);
        token_file_close(&file);
    }
}
END_TEST

/* More bits than are read at once. */
START_TEST(a_long_mask_is_read_in_parts)
{
    enum { N = 200003 };
    static unsigned char large[N + N / 8 + 4096];
    writer_content_t content = {
        .width = 1, .n_tokens = N, .vocab_size = WRITER_VOCAB, .document_every = N, .counts = some};
    support_write_file(in_directory("long"), large, writer_make(&content, large));
    token_file_t file;
    token_fault_t fault = {0};
    int64_t n_counted, want = 0;
    for (int i = 5; i < N; i++)
        want += some(i);
    ck_assert_int_eq(token_file_open(in_directory("long"), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_eq(token_mask_count(&file, 5, N - 5, &n_counted, &fault), ZERO_OK);
    ck_assert_int_eq(n_counted, want);
    int32_t *targets = calloc(N, sizeof *targets);
    ck_assert_int_eq(token_mask_apply(&file, 5, N - 5, -1, targets, &fault), ZERO_OK);
    for (int i = 5; i < N; i++)
        ck_assert_int_eq(targets[i - 5], some(i) ? 0 : -1);
    free(targets);
    token_file_close(&file);
}
END_TEST

/* ---- Damage ---- */

static const struct {
    int offset;
    uint64_t number;
    int width;
    const char *says;
} DAMAGES[] = {
    {8, 2, 4, "version 2"},
    {12, 3, 4, "another width"},
    {12, 8, 4, "another width"},
    {16, N_TOKENS + 4, 8, "do not fill"},
    {16, UINT64_MAX, 8, "do not fill"},
    {16, UINT64_C(1) << 63, 8, "do not fill"},
    {16, 0, 8, "more documents than tokens"},
    {24, 0, 8, "vocabulary"},
    {24, UINT64_C(1) << 31, 8, "vocabulary"},
    {40, 0, 8, "no document"},
    {40, 7, 8, "do not fill"},
    {40, UINT64_MAX / 8, 8, "more documents than tokens"},
    {48, 0, 4, "do not fill"},
    {48, 2, 4, "later version"},
    {52, 2, 4, "later version"},
    {WRITER_HEADER_BYTES + (N_TOKENS * 2 + 7) / 8 * 8, 1, 8, "document 0 begins at token 1"},
    {WRITER_HEADER_BYTES + (N_TOKENS * 2 + 7) / 8 * 8 + 8, 0, 8, "document 1 begins at token 0"},
    {WRITER_HEADER_BYTES + (N_TOKENS * 2 + 7) / 8 * 8 + 56, N_TOKENS, 8, "document 7 begins at token 769"},
    {WRITER_HEADER_BYTES + (N_TOKENS * 2 + 7) / 8 * 8 + 64 + N_TOKENS / 8, 0xff, 1, "goes on after the last token"},
};

START_TEST(damage_is_refused_with_the_reason)
{
    const writer_content_t content = masked(some);
    size_t n_bytes = writer_make(&content, buffer);
    writer_put(buffer + DAMAGES[_i].offset, DAMAGES[_i].number, DAMAGES[_i].width);
    support_write_file(in_directory("bad"), buffer, n_bytes);
    token_file_t file;
    capture_begin();
    zero_status_t status = token_file_open(in_directory("bad"), FORMAT_AUTO, &file);
    expect_line(capture_end(), (const char *[]){"/bad'", DAMAGES[_i].says, NULL});
    ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
}
END_TEST

START_TEST(a_file_cut_anywhere_is_refused)
{
    const writer_content_t content = masked(some);
    size_t n_bytes = writer_make(&content, buffer);
    for (size_t n = 8; n < n_bytes; n += n < 100 ? 1 : 13) {
        token_file_t file;
        support_write_file(in_directory("cut"), buffer, n);
        capture_begin();
        zero_status_t status = token_file_open(in_directory("cut"), FORMAT_AUTO, &file);
        expect_line(capture_end(), (const char *[]){"write the file anew", NULL});
        ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
    }
}
END_TEST

START_TEST(a_token_beyond_the_files_own_vocabulary_is_damage)
{
    writer_content_t content = PLAIN;
    content.vocab_size = 100;
    token_file_t file;
    ck_assert_int_eq(token_file_open(write_tokens("small", content), FORMAT_ZEROTRAIN, &file), ZERO_OK);
    capture_begin();
    zero_status_t status = token_file_check(&file, 0, N_TOKENS, 50257);
    expect_line(capture_end(), (const char *[]){"its own header names", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
    token_file_close(&file);
}
END_TEST

START_TEST(markup_is_text_only_if_the_user_says_so)
{
    static const char *const names[] = {"a.jsonl", "a.JSON", "a.html", "a.csv"};
    for (int i = 0; i < 4; i++) {
        token_file_t file;
        support_write_file(in_directory(names[i]), "{\"text\": \"a few words\"}\n", 24);
        capture_begin();
        zero_status_t status = token_file_open(in_directory(names[i]), FORMAT_AUTO, &file);
        expect_line(capture_end(), (const char *[]){"is that meant?", "format = text", NULL});
        ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
        ck_assert_int_eq(token_file_open(in_directory(names[i]), FORMAT_TEXT, &file), ZERO_OK);
        token_file_close(&file);
    }
}
END_TEST

/* ---- Batches ---- */

/* Expects a batch's targets to be those of sequences `first` and up, in file order, of a masked file followed by one
 * without a mask. */
static void expect_targets(data_t *data, const int32_t *inputs, const int32_t *targets, int64_t first, int64_t n)
{
    (void)data;
    for (int64_t i = 0; i < n * SEQ_LEN; i++) {
        int64_t sequence = (first + i / SEQ_LEN) % (2 * N_SEQUENCES);
        int at = (int)(sequence % N_SEQUENCES * SEQ_LEN + i % SEQ_LEN);
        bool counts = sequence >= N_SEQUENCES || some(at + 1);
        ck_assert_int_eq(inputs[i], writer_token(at));
        ck_assert_int_eq(targets[i], counts ? writer_token(at + 1) : DATA_NO_TARGET);
    }
}

static int64_t counted_in_step(int step)
{
    int64_t n = 0;
    for (int i = 0; i < 12 * SEQ_LEN; i++) {
        int sequence = (step * 12 + i / SEQ_LEN) % (2 * N_SEQUENCES);
        n += sequence >= N_SEQUENCES || some(sequence * SEQ_LEN + i % SEQ_LEN + 1);
    }
    return n;
}

/* Every rank knows the count of the whole step. */
START_TEST(batches_have_the_masks_targets_and_counts_on_any_number_of_ranks)
{
    char paths[3000];
    snprintf(paths, sizeof paths, "%s,%s", write_tokens("masked", masked(some)), write_tokens("plain", PLAIN));
    expect_batches(paths, false, expect_targets, counted_in_step);
}
END_TEST

static void expect_refusal(const char *paths, int vocab_size, const char *says)
{
    data_t *data;
    data_spec_t spec = spec_of(paths, 0, 1, 12);
    spec.vocab_size = vocab_size;
    capture_begin();
    zero_status_t status = data_open(&spec, &data);
    expect_line(capture_end(), (const char *[]){says, NULL});
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
}

START_TEST(tokens_of_another_vocabulary_or_of_two_tokenizers_are_refused)
{
    writer_content_t first = PLAIN, second = PLAIN;
    char paths[3000];
    expect_refusal(write_tokens("plain", PLAIN), WRITER_VOCAB - 1, "vocabulary of 256, but [model] vocab_size is 255");
    first.tokenizer = 7, second.tokenizer = UINT64_MAX;
    snprintf(paths, sizeof paths, "%s,%s", write_tokens("first", first), write_tokens("second", second));
    expect_refusal(paths, WRITER_VOCAB, "different tokenizers");
}
END_TEST

/* ---- Training ---- */

/* Returns the last row of the metrics of a run. *losses: of every step, loss and grad_norm as text; free it. */
static json_t *train(int n_ranks, const char *arguments, char **losses)
{
    char *metrics = run_metrics(RUN_CONFIG("1"), n_ranks, arguments);
    json_t *row = last_row(metrics);
    *losses = losses_in(metrics);
    free(metrics);
    return row;
}

static char *losses_of(int n_ranks, const char *arguments)
{
    char *losses;
    json_decref(train(n_ranks, arguments, &losses));
    return losses;
}

START_TEST(masked_losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks)
{
    static const struct {
        int n_ranks, stage;
    } jobs[] = {{2, 0}, {2, 1}, {3, 2}, {2, 3}, {6, 3}};
    write_tokens("masked", masked(some));
    char *want = losses_of(1, "--set data.train=masked --stage 0");
    for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
        char arguments[100];
        snprintf(arguments, sizeof arguments, "--set data.train=masked --stage %d", jobs[j].stage);
        if (support_leaves_out(jobs[j].n_ranks))
            continue;
        char *got = losses_of(jobs[j].n_ranks, arguments);
        ck_assert_str_eq(got, want);
        free(got);
    }
    free(want);
}
END_TEST

START_TEST(a_mask_of_ones_changes_nothing)
{
    write_tokens("plain", PLAIN), write_tokens("ones", masked(all));
    char *want = losses_of(2, "--set data.train=plain"), *got = losses_of(2, "--set data.train=ones");
    ck_assert_str_eq(got, want);
    free(got), free(want);
}
END_TEST

/* Runs zerotrain on two ranks, by cfg.ini. Returns the exit code; free the output. */
static int run_with(const char *command, const char *arguments, support_output_t *output)
{
    support_write_file(in_directory("cfg.ini"), RUN_CONFIG("1"), sizeof RUN_CONFIG("1") - 1);
    return support_mpirun(output, RUN_LIMIT_S, 2, "-x OMP_NUM_THREADS=1 --wdir %s %s/zerotrain %s %s cfg.ini",
                          directory, support_build(), command, arguments);
}

static const struct {
    const char *command, *arguments;
} NOTHING_COUNTS[] = {
    {"", "--set data.train=zeros"},
    {"", "--set data.train=zeros,zeros2"},
    {"", "--set data.train=some --set data.val=zeros"},
    {"evaluate", "--set model.init=ck --set data.train=some --set data.val=zeros"},
    {"", "--set data.train=some --set data.val=last --set train.eval_batches=1"},
};

START_TEST(data_of_which_nothing_counts_are_refused_before_the_first_step)
{
    support_output_t output;
    write_tokens("zeros", masked(none)), write_tokens("zeros2", masked(none)), write_tokens("some", masked(some));
    write_tokens("last", masked(last));
    if (NOTHING_COUNTS[_i].command[0])
        free(losses_of(1, "--set data.train=some --set checkpoint.dir=ck"));
    int code = run_with(NOTHING_COUNTS[_i].command, NOTHING_COUNTS[_i].arguments, &output);
    ck_assert_msg(code == 2, "exit code %d\n%s", code, output.err);
    ck_assert_msg(
        strstr(output.err, _i == 4 ? "data: 'last': no token counts as a target in the 12 of 48" : "data: 'zeros'") &&
            strstr(output.err, "no token counts as a target") && !strstr(output.err, "step 1/"),
        "%s", output.err);
    support_output_free(&output);
}
END_TEST

START_TEST(a_file_of_which_nothing_counts_is_a_line)
{
    support_output_t output;
    write_tokens("zeros", masked(none)), write_tokens("some", masked(some));
    int code = run_with("", "--set data.train=some,zeros", &output);
    ck_assert_msg(code == 0 && support_count(output.err, "data file 'zeros': no token counts as a target") == 1,
                  "exit code %d\n%s", code, output.err);
    support_output_free(&output);
}
END_TEST

/* One sequence counts, so a step of the four has a loss, or none. AdamW sees a gradient of zero in the others. */
START_TEST(a_step_in_which_nothing_counts_has_no_loss_and_says_so)
{
    support_output_t output;
    write_tokens("last", masked(last));
    int n_without = 0;
    int code = run_with("", "--set data.train=last --set log.metrics=m.jsonl", &output);
    char *metrics = support_read_file(in_directory("m.jsonl"), NULL);
    for (char *line = strtok(metrics, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *row = json_loads(line, 0, NULL);
        if (json_is_null(json_object_get(row, "loss"))) {
            n_without++;
            ck_assert_double_eq(json_number_value(json_object_get(row, "grad_norm")), 0.0);
        } else {
            ck_assert_double_gt(json_number_value(json_object_get(row, "loss")), 1.0);
        }
        json_decref(row);
    }
    free(metrics);
    ck_assert_msg(code == (n_without == 4 ? 1 : 0) && n_without >= 3, "exit code %d\n%s", code, output.err);
    ck_assert_msg((int)support_count(output.err, "loss none") == n_without &&
                      (int)support_count(output.err, "NOTHING LEARNED: no token of this step counts") == n_without,
                  "%s", output.err);
    support_output_free(&output);
}
END_TEST

/* Of ten orders the sequence that counts is not in the first step of all. */
START_TEST(a_run_that_has_learned_nothing_is_no_success)
{
    bool failed = false;
    write_tokens("last", masked(last));
    for (int seed = 0; seed < 10 && !failed; seed++) {
        char arguments[100];
        support_output_t output;
        snprintf(arguments, sizeof arguments, "--set data.train=last --steps 1 --set train.seed=%d", seed);
        int code = run_with("", arguments, &output);
        failed = code == 1;
        ck_assert_msg(code == 0 || (failed && strstr(output.err, "so nothing was learned")), "%s", output.err);
        support_output_free(&output);
    }
    ck_assert(failed);
}
END_TEST

static double evaluate(const char *name, int seed)
{
    char arguments[200], *losses;
    snprintf(arguments, sizeof arguments,
             "--set data.train=plain --set data.val=%s --set train.eval_batches=4 --set train.lr=0 --set train.seed=%d",
             name, seed);
    json_t *row = train(2, arguments, &losses);
    double loss = json_number_value(json_object_get(row, "val_loss"));
    json_decref(row);
    free(losses);
    return loss;
}

/* All of the file is evaluated, and its sum of losses is that of the targets that count and of the others. Losses are
 * about 5.5 and printed as fp32. */
START_TEST(the_mean_is_over_the_targets_that_count)
{
    double n_some = 0.0, n = N_TOKENS - 1.0;
    for (int i = 1; i < N_TOKENS; i++)
        n_some += some(i);
    write_tokens("plain", PLAIN), write_tokens("some", masked(some)), write_tokens("others", masked(others));
    double whole = evaluate("plain", 3), of_some = evaluate("some", 3), of_others = evaluate("others", 3);
    ck_assert_double_eq_tol((n_some * of_some + (n - n_some) * of_others) / n, whole, 1e-6);
    ck_assert(fabs(of_some - of_others) > 1e-4);
}
END_TEST

/* Returns whether two numbers are the same fp32. */
static bool is_float(const json_t *first, const json_t *second)
{
    const float a = (float)json_number_value(first), b = (float)json_number_value(second);
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Training's loss is printed as fp32, to the bit. There are 48 sequences, and five steps have 60. */
START_TEST(zerotrain_evaluate_means_over_the_same_targets)
{
    support_output_t output;
    char *losses;
    int n_some = 0;
    for (int i = 1; i < N_TOKENS; i++)
        n_some += some(i);
    write_tokens("some", masked(some));
    json_t *row = train(
        1, "--set data.train=some --set data.val=some --set train.eval_batches=5 --set checkpoint.dir=ck", &losses);
    int code = support_mpirun(&output, RUN_LIMIT_S, 2,
                              "--wdir %s %s/zerotrain evaluate --json --set data.train=some --set data.val=some --set "
                              "model.init=ck cfg.ini",
                              directory, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_msg(got != NULL, "%s", output.out);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "tokens")), n_some);
    ck_assert(is_float(json_object_get(row, "val_loss"), json_object_get(got, "loss")));
    support_output_free(&output);
    json_decref(got), json_decref(row);
    free(losses);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("token_masks");
    TCase *c = tcase_create("files and runs");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 4 * RUN_LIMIT_S);
    tcase_add_test(c, tokens_and_masks_of_every_width_are_read);
    tcase_add_test(c, a_long_mask_is_read_in_parts);
    tcase_add_loop_test(c, damage_is_refused_with_the_reason, 0, sizeof DAMAGES / sizeof DAMAGES[0]);
    tcase_add_test(c, a_file_cut_anywhere_is_refused);
    tcase_add_test(c, a_token_beyond_the_files_own_vocabulary_is_damage);
    tcase_add_test(c, markup_is_text_only_if_the_user_says_so);
    tcase_add_test(c, batches_have_the_masks_targets_and_counts_on_any_number_of_ranks);
    tcase_add_test(c, tokens_of_another_vocabulary_or_of_two_tokenizers_are_refused);
    tcase_add_test(c, masked_losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks);
    tcase_add_test(c, a_mask_of_ones_changes_nothing);
    tcase_add_loop_test(c, data_of_which_nothing_counts_are_refused_before_the_first_step, 0,
                        sizeof NOTHING_COUNTS / sizeof NOTHING_COUNTS[0]);
    tcase_add_test(c, a_file_of_which_nothing_counts_is_a_line);
    tcase_add_test(c, a_step_in_which_nothing_counts_has_no_loss_and_says_so);
    tcase_add_test(c, a_run_that_has_learned_nothing_is_no_success);
    tcase_add_test(c, the_mean_is_over_the_targets_that_count);
    tcase_add_test(c, zerotrain_evaluate_means_over_the_same_targets);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
