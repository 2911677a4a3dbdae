/* test_documents.c - [data] documents = separate: which documents a batch has, on any number of ranks; and runs,
 * against runs in which every document has a sequence of its own.
 */
#include <jansson.h>
#include <stdlib.h>

#include "tests/support/stderr_capture.h"
#include "tests/unit/data/token_cases.h"
#include "train/data/token_format.h"

/* Of lengths from 1 to some 20; some begin and some end with a sequence. */
static bool irregular(int token)
{
    return (unsigned)token * 2654435761u >> 29 == 0 || token % 97 < 2 || token % (3 * SEQ_LEN) == 0;
}

static bool some(int token)
{
    return (unsigned)token * 2246822519u >> 30 != 0; /* three of four */
}

static writer_content_t content_of(bool (*begins)(int token), bool (*counts)(int token))
{
    return (writer_content_t){
        .width = 2, .n_tokens = N_TOKENS, .vocab_size = WRITER_VOCAB, .begins = begins, .counts = counts};
}

/* ---- The table ---- */

/* More documents than are read at once; from any token, of any length. */
START_TEST(documents_are_found_from_any_token_on)
{
    enum { N = 30011 };
    writer_content_t content = content_of(irregular, NULL);
    content.n_tokens = N;
    token_file_t file;
    token_fault_t fault;
    static int32_t begins[N];
    uint64_t random = 5;
    int64_t n_begins;
    ck_assert_int_eq(token_file_open(write_tokens("long", content), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_gt((int)file.n_documents, 4000);
    for (int i = 0; i < 200; i++) {
        int first = i == 0 ? 0 : (int)(support_random(&random) % N);
        int n = i == 0 ? N : 1 + (int)(support_random(&random) % (uint64_t)(N - first)), n_want = 0;
        n = i % 2 == 1 && n > 33 ? 33 : n;
        ck_assert_int_eq(token_documents_find(&file, first, n, begins, &n_begins, &fault), ZERO_OK);
        for (int token = first; token < first + n; token++)
            if (writer_begins(&content, token))
                ck_assert_int_eq(begins[n_want++], token - first);
        ck_assert_int_eq(n_begins, n_want);
    }
    token_file_close(&file);
}
END_TEST

/* Whatever somebody writes into a file that is in use, what is found is ascending and within what was asked for. */
START_TEST(a_table_that_changes_in_use_harms_nothing)
{
    static const uint64_t numbers[] = {0, 1, 300, N_TOKENS, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};
    const writer_content_t content = content_of(irregular, NULL);
    uint64_t random = 7;
    for (int i = 0; i < 300; i++) {
        const char *path = write_tokens("changes", content);
        token_file_t file;
        token_fault_t fault;
        static int32_t begins[N_TOKENS];
        unsigned char bytes[8];
        ck_assert_int_eq(token_file_open(path, FORMAT_AUTO, &file), ZERO_OK);
        FILE *out = fopen(path, "r+b");
        for (int k = 0; k < 9; k++) {
            uint64_t document = support_random(&random) % file.n_documents;
            writer_put(bytes, numbers[support_random(&random) % 7], 8);
            fseek(out, (long)(file.documents_at + 8 * document), SEEK_SET);
            ck_assert_uint_eq(fwrite(bytes, 1, 8, out), 8);
        }
        fclose(out);
        int64_t first = (int64_t)(support_random(&random) % N_TOKENS), n = 1 + (N_TOKENS - first - 1) / 2, n_begins;
        ck_assert_int_eq(token_documents_find(&file, first, n, begins, &n_begins, &fault), ZERO_OK);
        for (int64_t b = 0; b < n_begins; b++)
            ck_assert(begins[b] >= (b == 0 ? 0 : begins[b - 1] + 1) && begins[b] < n);
        token_file_close(&file);
    }
}
END_TEST

/* ---- Batches ---- */

/* Of the two files below: whether token `at` of the sequence's file counts as a target. */
static bool is_target(int64_t sequence, int at)
{
    return !irregular(at) && (sequence >= N_SEQUENCES || some(at));
}

static void expect_batch(data_t *data, const int32_t *inputs, const int32_t *targets, int64_t first, int64_t n)
{
    const int32_t *starts = data_starts(data);
    for (int64_t i = 0; i < n * SEQ_LEN; i++) {
        int64_t sequence = (first + i / SEQ_LEN) % (2 * N_SEQUENCES);
        int t = (int)(i % SEQ_LEN), at = (int)(sequence % N_SEQUENCES * SEQ_LEN) + t, start = t;
        while (start > 0 && !irregular(at - t + start))
            start--;
        ck_assert_int_eq(inputs[i], writer_token(at));
        ck_assert_int_eq(starts[i], start);
        ck_assert_int_eq(targets[i], is_target(sequence, at + 1) ? writer_token(at + 1) : DATA_NO_TARGET);
    }
}

static int64_t counted_in_step(int step)
{
    int64_t n = 0;
    for (int i = 0; i < 12 * SEQ_LEN; i++) {
        int sequence = (step * 12 + i / SEQ_LEN) % (2 * N_SEQUENCES);
        n += is_target(sequence, sequence % N_SEQUENCES * SEQ_LEN + i % SEQ_LEN + 1);
    }
    return n;
}

/* A file with a mask and one without. Every rank knows the count of the whole step. */
START_TEST(batches_have_starts_and_counts_on_any_number_of_ranks)
{
    char paths[3000];
    snprintf(paths, sizeof paths, "%s,%s", write_tokens("masked", content_of(irregular, some)),
             write_tokens("plain", content_of(irregular, NULL)));
    expect_batches(paths, true, expect_batch, counted_in_step);
}
END_TEST

/* The parts of ranks that share sequences are, side by side, the batch of one rank, with masks and documents. */
START_TEST(parts_of_sequences_are_those_of_whole_ones)
{
    const char *path = write_tokens("parts", content_of(irregular, some));
    for (int n_sharing = 2; n_sharing <= SEQ_LEN; n_sharing += n_sharing == 2 ? 1 : 3) {
        data_spec_t spec = spec_of(path, 0, 2, 3); /* two groups */
        data_t *whole, *part;
        const int32_t *inputs, *targets, *part_inputs, *part_targets;
        spec.separate = true;
        for (int rank = 0; rank < 2 * n_sharing; rank++) {
            data_spec_t part_spec = spec;
            spec.rank = rank / n_sharing;
            part_spec.rank = rank;
            part_spec.world_size = 2 * n_sharing;
            part_spec.sequence_ranks = n_sharing;
            ck_assert_int_eq(data_open(&spec, &whole), ZERO_OK);
            ck_assert_int_eq(data_open(&part_spec, &part), ZERO_OK);
            const int64_t n = data_part_len(part), first = SEQ_LEN * (rank % n_sharing) / n_sharing;
            for (int step = 0; step < 4; step++)
                for (int k = 0; k < GLOBAL_BATCH / 6; k++) {
                    ck_assert_int_eq(data_batch(whole, step, k, &inputs, &targets), ZERO_OK);
                    ck_assert_int_eq(data_batch(part, step, k, &part_inputs, &part_targets), ZERO_OK);
                    for (int row = 0; row < 3; row++) {
                        ck_assert_mem_eq(part_inputs + row * n, inputs + row * SEQ_LEN + first, (size_t)n * 4);
                        ck_assert_mem_eq(part_targets + row * n, targets + row * SEQ_LEN + first, (size_t)n * 4);
                    }
                    ck_assert_mem_eq(data_starts(part), data_starts(whole), 3 * SEQ_LEN * 4);
                    ck_assert_int_eq((int)data_n_counted(part), (int)data_n_counted(whole));
                }
            data_close(whole);
            data_close(part);
        }
    }
}
END_TEST

START_TEST(files_that_do_not_name_their_documents_are_refused)
{
    data_t *data;
    char text[400];
    const char *path = in_directory("text.txt");
    memset(text, 'a', sizeof text);
    support_write_file(path, text, sizeof text);
    data_spec_t spec = spec_of(path, 0, 1, 12);
    spec.separate = true;
    capture_begin();
    zero_status_t status = data_open(&spec, &data);
    expect_line(capture_end(), (const char *[]){"text.txt'", "documents = separate", "launch/tokenize", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    spec.separate = false;
    ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
    ck_assert_ptr_null(data_starts(data));
    data_close(data);
}
END_TEST

/* ---- Runs ---- */

/* Returns the metrics of a run that follows the data's order and has no others before: free it. */
static char *run(int n_ranks, const char *arguments)
{
    return run_metrics(RUN_CONFIG("2"), n_ranks, arguments);
}

/* Returns a number of the last row. */
static double last_of(const char *metrics, const char *key)
{
    json_t *row = last_row(metrics);
    ck_assert_msg(json_is_number(json_object_get(row, key)), "no %s in %s", key, metrics);
    double number = json_number_value(json_object_get(row, key));
    json_decref(row);
    return number;
}

static char *losses_of(int n_ranks, const char *arguments)
{
    char *metrics = run(n_ranks, arguments), *losses = losses_in(metrics);
    free(metrics);
    return losses;
}

static void expect_same_losses(int n_ranks, const char *arguments, const char *want)
{
    if (support_leaves_out(n_ranks))
        return;
    char *got = losses_of(n_ranks, arguments);
    ck_assert_msg(strcmp(got, want) == 0, "%s on %d ranks:\n%s\ninstead of\n%s", arguments, n_ranks, got, want);
    free(got);
}

#define SEPARATE "--set data.train=tokens --set data.documents=separate "

START_TEST(losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks)
{
    static const struct {
        int n_ranks;
        const char *arguments;
    } jobs[] = {{2, "--stage 0"},
                {2, "--stage 1"},
                {3, "--stage 2"},
                {2, "--stage 3"},
                {6, "--stage 3"},
                {1, "--set model.recompute=light"},
                {2, "--stage 3 --set model.recompute=full"}};
    static const char *const archs[] = {"gpt2", "llama", "mistral --set model.window=5"};
    write_tokens("tokens", content_of(irregular, some));
    for (int a = 0; a < 3; a++) {
        char arguments[300];
        snprintf(arguments, sizeof arguments, SEPARATE "--set model.arch=%s --stage 0", archs[a]);
        char *want = losses_of(1, arguments);
        for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
            snprintf(arguments, sizeof arguments, SEPARATE "--set model.arch=%s %s", archs[a], jobs[j].arguments);
            expect_same_losses(jobs[j].n_ranks, arguments, want);
        }
        free(want);
    }
}
END_TEST

START_TEST(a_resumed_run_has_the_losses_of_one_that_was_not_stopped)
{
    write_tokens("tokens", content_of(irregular, NULL));
    char *want = losses_of(2, SEPARATE);
    free(losses_of(2, SEPARATE "--set checkpoint.dir=ck --steps 2"));
    char *got = losses_of(1, SEPARATE "--set checkpoint.dir=ck --resume");
    const char *tail = strlen(got) < strlen(want) ? want + strlen(want) - strlen(got) : want;
    ck_assert_msg(strcmp(got, tail) == 0, "%s\ninstead of the end of\n%s", got, want);
    ck_assert_ptr_nonnull(strchr(got, ',')); /* two steps at least */
    free(got), free(want);
}
END_TEST

static bool every_16(int token)
{
    return token % 16 == 0;
}
static bool not_every_16(int token)
{
    return token % 16 != 0;
}
static bool every_8(int token)
{
    return token % 8 == 0;
}
static bool not_every_8(int token)
{
    return token % 8 != 0;
}

/* Documents as long as sequences hide nothing, and only take out the first token of each as a target. */
START_TEST(documents_as_long_as_sequences_are_a_mask_of_first_tokens)
{
    write_tokens("tokens", content_of(every_16, NULL));
    write_tokens("masked", content_of(every_16, not_every_16));
    char *want = losses_of(2, "--set data.train=masked");
    expect_same_losses(2, SEPARATE, want);
    free(want);
}
END_TEST

static double val_loss(const char *arguments)
{
    char all[400];
    snprintf(all, sizeof all, "--set train.lr=0 --set train.eval_batches=1000 %s", arguments);
    char *metrics = run(2, all);
    double loss = last_of(metrics, "val_loss");
    free(metrics);
    return loss;
}

/* Two documents in a sequence have the loss of each in a sequence of its own. The last token of the first is followed
 * by the second's first one there, too, which no run counts. Losses are about 5.5 and printed as fp32. */
START_TEST(a_packed_document_has_the_loss_that_it_has_alone)
{
    static const char *const archs[] = {"gpt2", "llama", "qwen3"};
    write_tokens("tokens", content_of(every_8, NULL));
    write_tokens("masked", content_of(every_8, not_every_8));
    for (int a = 0; a < 3; a++) {
        char arguments[300];
        snprintf(arguments, sizeof arguments, SEPARATE "--set data.val=tokens --set model.arch=%s", archs[a]);
        double packed = val_loss(arguments);
        snprintf(arguments, sizeof arguments,
                 "--set data.train=masked --set data.val=masked --set model.seq_len=8 --set model.arch=%s", archs[a]);
        double alone = val_loss(arguments);
        snprintf(arguments, sizeof arguments, "--set data.train=masked --set data.val=masked --set model.arch=%s",
                 archs[a]);
        double joined = val_loss(arguments);
        ck_assert_double_eq_tol(packed, alone, 1e-6);
        ck_assert_double_gt(support_relative_error(joined, alone), 1e-5);
    }
}
END_TEST

START_TEST(zerotrain_evaluate_keeps_documents_apart)
{
    support_output_t output;
    write_tokens("tokens", content_of(irregular, NULL));
    char *metrics =
        run(1, SEPARATE "--set data.val=tokens --set train.eval_batches=1000 --set checkpoint.dir=evaluated");
    int n_targets = 0;
    for (int token = 1; token < N_TOKENS; token++)
        n_targets += !irregular(token);
    int code = support_mpirun(&output, RUN_LIMIT_S, 2,
                              "--wdir %s %s/zerotrain evaluate --json " SEPARATE "--set data.val=tokens --set "
                              "model.init=evaluated cfg.ini",
                              directory, support_build());
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL);
    ck_assert_msg(got != NULL, "%s", output.out);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "tokens")), n_targets);
    ck_assert_double_lt(
        support_relative_error(json_number_value(json_object_get(got, "loss")), last_of(metrics, "val_loss")), 1e-6);
    json_decref(got);
    support_output_free(&output);
    free(metrics);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("documents");
    TCase *c = tcase_create("files and runs");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 8 * RUN_LIMIT_S);
    tcase_add_test(c, documents_are_found_from_any_token_on);
    tcase_add_test(c, a_table_that_changes_in_use_harms_nothing);
    tcase_add_test(c, batches_have_starts_and_counts_on_any_number_of_ranks);
    tcase_add_test(c, parts_of_sequences_are_those_of_whole_ones);
    tcase_add_test(c, files_that_do_not_name_their_documents_are_refused);
    tcase_add_test(c, losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks);
    tcase_add_test(c, a_resumed_run_has_the_losses_of_one_that_was_not_stopped);
    tcase_add_test(c, documents_as_long_as_sequences_are_a_mask_of_first_tokens);
    tcase_add_test(c, a_packed_document_has_the_loss_that_it_has_alone);
    tcase_add_test(c, zerotrain_evaluate_keeps_documents_apart);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
