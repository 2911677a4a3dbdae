/* test_packing.c - [data] packing = fit and pad: whole documents in sequences, against a naive best fit and the files;
 * and runs, against runs in which every document has a sequence of its own.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "tests/support/stderr_capture.h"
#include "tests/unit/data/token_cases.h"
#include "train/data/packing.h"
#include "train/data/resume_check.h"
#include "train/data/shuffle.h"
#include "train/options/options_table.h"

/* ---- Best fit ---- */

/* Returns the largest of the sizes below `above`; 0: there is none. */
static int32_t next_smaller(int n, const int32_t *sizes, int32_t above)
{
    int32_t largest = 0;
    for (int i = 0; i < n; i++)
        if (sizes[i] < above && sizes[i] > largest)
            largest = sizes[i];
    return largest;
}

/* The definition: from the largest to the smallest, equal ones in the seed's order, into the bin with the least room
 * that is enough, among equal ones the one that was used last. */
static int64_t naive_fit(int n, const int32_t *sizes, int32_t room, uint64_t seed, int64_t *bins)
{
    int64_t n_bins = 0, *used = calloc((size_t)n, sizeof *used);
    int32_t *left = calloc((size_t)n, sizeof *left);
    int clock = 0;
    for (int32_t size = next_smaller(n, sizes, room + 1); size > 0; size = next_smaller(n, sizes, size))
        for (int i = 0; i < n; i++) {
            const int thing = (int)shuffle_index(seed, UINT64_MAX, (uint64_t)n, (uint64_t)i);
            int64_t best = -1;
            if (sizes[thing] != size)
                continue;
            for (int64_t b = 0; b < n_bins; b++)
                if (left[b] >= size &&
                    (best < 0 || left[b] < left[best] || (left[b] == left[best] && used[b] > used[best])))
                    best = b;
            if (best < 0) {
                best = n_bins++;
                left[best] = room;
            }
            left[best] -= size;
            used[best] = ++clock;
            bins[thing] = best;
        }
    free(left);
    free(used);
    return n_bins;
}

START_TEST(best_fit_is_that_of_the_definition)
{
    static const int32_t rooms[] = {1, 2, 63, 64, 65, 100, 4095, 4096, 4097, 300000};
    uint64_t random = 11;
    for (int i = 0; i < 300; i++) {
        enum { N = 150 };
        int32_t sizes[N], room = rooms[i % 10], most = i % 3 == 0 ? room : 1 + room / 3;
        int64_t got[N], want[N], n_got;
        int n = 1 + (int)(support_random(&random) % N);
        uint64_t seed = support_random(&random);
        for (int k = 0; k < n; k++)
            sizes[k] = 1 + (int32_t)(support_random(&random) % (uint64_t)most);
        ck_assert(packing_best_fit(n, sizes, room, seed, got, &n_got));
        ck_assert_int_eq(n_got, naive_fit(n, sizes, room, seed, want));
        for (int k = 0; k < n; k++)
            ck_assert_int_eq(got[k], want[k]);
    }
}
END_TEST

/* As many bins as a sum needs, but for a few percent: what cannot be split leaves some room. */
START_TEST(a_million_documents_fill_their_sequences)
{
    enum { N = 1000000, ROOM = 2048 };
    int32_t *sizes = malloc(N * sizeof *sizes);
    int64_t *bins = malloc(N * sizeof *bins), n_bins, sum = 0;
    uint64_t random = 3;
    for (int i = 0; i < N; i++)
        sum += sizes[i] = 1 + (int32_t)(support_random(&random) % 900);
    ck_assert(packing_best_fit(N, sizes, ROOM, 1, bins, &n_bins));
    ck_assert_double_lt((double)n_bins * ROOM / (double)sum, 1.001);
    free(sizes);
    free(bins);
}
END_TEST

/* ---- Batches ---- */

/* Of 1 token, of 4, or of a multiple of 5; the first is longer than a sequence, and so are others. */
static bool irregular(int token)
{
    return token > 90 && (token % 95 < 2 || (token % 5 == 0 && (unsigned)token * 2654435761u >> 30 == 0));
}

static bool some(int token)
{
    return (unsigned)token * 2246822519u >> 30 != 0;
}

static bool never(int token)
{
    (void)token;
    return false;
}

static writer_content_t content_of(bool (*begins)(int token), bool (*counts)(int token))
{
    return (writer_content_t){
        .width = 2, .n_tokens = N_TOKENS, .vocab_size = WRITER_VOCAB, .begins = begins, .counts = counts};
}

static data_spec_t packed_spec(const char *paths, int packing, int rank, int world_size, int64_t micro_batch)
{
    data_spec_t spec = spec_of(paths, rank, world_size, micro_batch);
    spec.packing = packing;
    spec.seed = 5;
    return spec;
}

static int64_t n_seen[2 * N_TOKENS]; /* how often a document that begins there was read */

/* Finds the document of n inputs that is at the beginning of these, which are those of a file (0: masked, 1: plain)
 * from some token on: documents are told by their tokens, of which two files have the same. Returns its first token. */
static int find_document(const int32_t *inputs, const int32_t *targets, int n)
{
    for (int first = 0; first < N_TOKENS; first++) {
        int same = 0;
        if (first > 0 && !irregular(first))
            continue;
        while (same < n && first + same < N_TOKENS && inputs[same] == writer_token(first + same))
            same++;
        bool is_end = first + n + 1 == N_TOKENS || irregular(first + n + 1) || n == SEQ_LEN;
        if (same < n || !is_end)
            continue;
        int file = 0; /* the plain one counts what the masked one does not */
        for (int t = 0; t < n; t++) {
            ck_assert(targets[t] == DATA_NO_TARGET || targets[t] == writer_token(first + t + 1));
            file |= targets[t] != DATA_NO_TARGET && !some(first + t + 1);
        }
        for (int t = 0; t < n; t++)
            ck_assert_int_eq(targets[t] != DATA_NO_TARGET, file == 1 || some(first + t + 1));
        return first;
    }
    ck_abort_msg("a document of %d tokens that is in no file", n + 1);
    return -1;
}

/* Checks a sequence: documents, each whole and with its own start, then padding. Returns how many targets count. */
static int check_sequence(const int32_t *inputs, const int32_t *targets, const int32_t *starts, bool is_alone)
{
    int n_counted = 0, n_documents = 0;
    for (int t = 0, end; t < SEQ_LEN; t = end) {
        for (end = t; end < SEQ_LEN && starts[end] == t; end++)
            n_counted += targets[end] != DATA_NO_TARGET;
        ck_assert_int_gt(end, t);
        const bool is_padding = end == t + 1 && inputs[t] == 0 && targets[t] == DATA_NO_TARGET;
        if (!is_padding) {
            n_seen[find_document(inputs + t, targets + t, end - t)]++;
            n_documents++;
        }
    }
    ck_assert(n_documents > 0 && (!is_alone || n_documents == 1));
    return n_counted;
}

/* Every document is read once an epoch, whole, on any number of ranks; and every rank knows how many targets count. */
START_TEST(an_epoch_has_every_document_once_and_whole)
{
    static const int jobs[][2] = {{1, 12}, {2, 3}, {3, 2}, {4, 1}}; /* ranks, sequences of a micro-batch */
    char paths[3000];
    snprintf(paths, sizeof paths, "%s,%s", write_tokens("masked", content_of(irregular, some)),
             write_tokens("plain", content_of(irregular, NULL)));
    for (int j = 0; j < 8; j++) {
        const int packing = j < 4 ? PACKING_FIT : PACKING_PAD, n_ranks = jobs[j % 4][0], n = jobs[j % 4][1];
        int64_t n_counted[100] = {0}, told[100] = {0}, n_left = 0, n_steps = 0;
        memset(n_seen, 0, sizeof n_seen);
        for (int rank = 0; rank < n_ranks; rank++) {
            data_t *data;
            data_spec_t spec = packed_spec(paths, packing, rank, n_ranks, n);
            spec.shuffle = true;
            ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
            ck_assert(data_has_mask(data));
            n_steps = (data_n_sequences(data) + GLOBAL_BATCH - 1) / GLOBAL_BATCH;
            n_left = data_n_sequences(data);
            ck_assert_int_lt(n_steps, 100);
            for (int step = 0; step < n_steps; step++)
                for (int k = 0; k < GLOBAL_BATCH / n_ranks / n; k++) {
                    const int32_t *inputs, *targets;
                    ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
                    told[step] = data_n_counted(data);
                    for (int64_t i = 0; i < n; i++) {
                        int64_t position = step * GLOBAL_BATCH + (k * n_ranks + rank) * n + i, at = i * SEQ_LEN;
                        if (position < n_left) /* the last step goes on with the next epoch */
                            n_counted[step] += check_sequence(inputs + at, targets + at, data_starts(data) + at,
                                                              packing == PACKING_PAD);
                    }
                }
            data_close(data);
        }
        for (int step = 0; step + 1 < n_steps; step++)
            ck_assert_int_eq(n_counted[step], told[step]);
        for (int end = 1, first = 0; end <= N_TOKENS; end++)
            if (end == N_TOKENS || irregular(end)) {
                ck_assert_int_eq(n_seen[first], end - first > 1 ? 2 : 0); /* once of each file */
                first = end;
            }
    }
}
END_TEST

/* K ranks that share sequences have their parts of what one rank has, and all of where documents begin. */
START_TEST(ranks_that_share_sequences_have_their_parts)
{
    const char *path = write_tokens("masked", content_of(irregular, some));
    for (int k = 2; k <= 5; k++)
        for (int rank = 0; rank < k; rank++) {
            data_t *whole, *part;
            data_spec_t spec = packed_spec(path, PACKING_FIT, 0, 1, 3);
            ck_assert_int_eq(data_open(&spec, &whole), ZERO_OK);
            spec.rank = rank;
            spec.world_size = spec.sequence_ranks = k;
            ck_assert_int_eq(data_open(&spec, &part), ZERO_OK);
            const int64_t begin = options_part_begin(SEQ_LEN, k, rank), n = data_part_len(part);
            for (int step = 0; step < 4; step++) {
                const int32_t *inputs, *targets, *own_inputs, *own_targets;
                ck_assert_int_eq(data_batch(whole, step, 0, &inputs, &targets), ZERO_OK);
                ck_assert_int_eq(data_batch(part, step, 0, &own_inputs, &own_targets), ZERO_OK);
                ck_assert_int_eq(data_n_counted(whole), data_n_counted(part));
                ck_assert_mem_eq(data_starts(whole), data_starts(part), 3 * SEQ_LEN * sizeof(int32_t));
                for (int64_t i = 0; i < 3; i++) {
                    ck_assert_mem_eq(inputs + i * SEQ_LEN + begin, own_inputs + i * n, (size_t)n * sizeof(int32_t));
                    ck_assert_mem_eq(targets + i * SEQ_LEN + begin, own_targets + i * n, (size_t)n * sizeof(int32_t));
                }
            }
            data_close(whole);
            data_close(part);
        }
}
END_TEST

static bool every_30(int token)
{
    return token % 30 == 0;
}

/* Documents of 30 tokens, and a last one of 19, where 17 fit a sequence. */
START_TEST(long_documents_are_truncated_or_dropped_and_counted)
{
    const char *path = write_tokens("long", content_of(every_30, NULL));
    for (int drops = 0; drops < 2; drops++) {
        data_t *data;
        data_spec_t spec = packed_spec(path, PACKING_FIT, 0, 1, 12);
        spec.drop_long = drops;
        capture_begin();
        zero_status_t status = data_open(&spec, &data);
        if (status == ZERO_OK)
            data_report_left_out(data, "train");
        if (drops) /* nothing is left */
            expect_line(capture_end(), (const char *[]){"no document", "long'", "dropped", NULL});
        else
            expect_line(capture_end(),
                        (const char *[]){"26 documents in 26 sequences of 16", "0.0% padding",
                                         "26 longer than 17 tokens truncated, which leaves out 327 tokens", NULL});
        ck_assert_int_eq(status, drops ? ZERO_ERROR_FORMAT : ZERO_OK);
        if (status == ZERO_OK)
            data_close(data);
    }
}
END_TEST

START_TEST(packing_needs_documents)
{
    data_t *data;
    char text[400];
    const char *path = in_directory("text.txt");
    memset(text, 'a', sizeof text);
    support_write_file(path, text, sizeof text);
    data_spec_t spec = packed_spec(path, PACKING_FIT, 0, 1, 12);
    capture_begin();
    zero_status_t status = data_open(&spec, &data);
    expect_line(capture_end(), (const char *[]){"text.txt'", "packing = fit", "packing = cut", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
}
END_TEST

/* ---- Which packing ---- */

START_TEST(the_default_is_fit_for_files_with_a_mask)
{
    static const struct {
        int packing, documents;
        const char *train, *val;
        int want, want_val, want_documents;
    } cases[] = {
        {PACKING_AUTO, DOCUMENTS_AUTO, "plain", "", PACKING_CUT, PACKING_CUT, DOCUMENTS_JOIN},
        {PACKING_AUTO, DOCUMENTS_AUTO, "masked", "", PACKING_FIT, PACKING_CUT, DOCUMENTS_SEPARATE},
        {PACKING_AUTO, DOCUMENTS_AUTO, "plain, masked", "plain", PACKING_FIT, PACKING_CUT, DOCUMENTS_SEPARATE},
        {PACKING_AUTO, DOCUMENTS_AUTO, "plain", "masked", PACKING_CUT, PACKING_FIT, DOCUMENTS_SEPARATE},
        {PACKING_AUTO, DOCUMENTS_JOIN, "masked", "masked", PACKING_CUT, PACKING_CUT, DOCUMENTS_JOIN},
        {PACKING_AUTO, DOCUMENTS_SEPARATE, "plain", "masked", PACKING_CUT, PACKING_FIT, DOCUMENTS_SEPARATE},
        {PACKING_AUTO, DOCUMENTS_AUTO, "none at all", "", PACKING_CUT, PACKING_CUT, DOCUMENTS_JOIN},
        {PACKING_CUT, DOCUMENTS_AUTO, "masked", "masked", PACKING_CUT, PACKING_CUT, DOCUMENTS_JOIN},
        {PACKING_PAD, DOCUMENTS_AUTO, "plain", "plain", PACKING_PAD, PACKING_PAD, DOCUMENTS_SEPARATE},
    };
    write_tokens("masked", content_of(irregular, some));
    write_tokens("plain", content_of(irregular, NULL));
    ck_assert_int_eq(chdir(directory), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        data_options_t data = {.packing = cases[i].packing, .documents = cases[i].documents};
        snprintf(data.train, sizeof data.train, "%s", cases[i].train);
        snprintf(data.val, sizeof data.val, "%s", cases[i].val);
        ck_assert_int_eq(data_choose_packing(&data), ZERO_OK);
        ck_assert_int_eq(data.packing, cases[i].want);
        ck_assert_int_eq(data.val_packing[0], cases[i].want_val);
        ck_assert_int_eq(data.documents, cases[i].want_documents);
    }
    data_options_t joined = {.packing = PACKING_FIT, .documents = DOCUMENTS_JOIN, .train = "masked"};
    capture_begin();
    zero_status_t status = data_choose_packing(&joined);
    expect_line(capture_end(), (const char *[]){"documents = join", "packing = fit", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
}
END_TEST

/* ---- Runs ---- */

static char *losses_of(int n_ranks, const char *arguments)
{
    char *metrics = run_metrics(RUN_CONFIG("2"), n_ranks, arguments), *losses = losses_in(metrics);
    free(metrics);
    return losses;
}

#define PACKED "--set data.train=tokens --set data.packing=fit "

START_TEST(losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks)
{
    static const struct {
        int n_ranks;
        const char *arguments;
    } jobs[] = {{2, "--stage 0"}, {2, "--stage 1"}, {3, "--stage 2"}, {2, "--stage 3"}, {6, "--stage 3"}};
    write_tokens("tokens", content_of(irregular, some));
    char *want = losses_of(1, PACKED "--set model.arch=llama --stage 0");
    for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
        char arguments[300];
        if (support_leaves_out(jobs[j].n_ranks))
            continue;
        snprintf(arguments, sizeof arguments, PACKED "--set model.arch=llama %s", jobs[j].arguments);
        char *got = losses_of(jobs[j].n_ranks, arguments);
        ck_assert_str_eq(got, want);
        free(got);
    }
    free(want);
}
END_TEST

START_TEST(a_resumed_run_has_the_losses_of_one_that_was_not_stopped)
{
    write_tokens("tokens", content_of(irregular, some));
    char *want = losses_of(2, PACKED);
    free(losses_of(2, PACKED "--set checkpoint.dir=ck --steps 2"));
    char *got = losses_of(3, PACKED "--set checkpoint.dir=ck --resume");
    ck_assert_str_eq(got, want); /* rows of both runs */
    free(got), free(want);
}
END_TEST

/* The same weights and documents, each in a sequence of its own or several in one: the mean over all of them, taken in
 * one step, and the norm of its gradient. Numbers are printed as fp32; sums are in another order. */
START_TEST(packed_documents_have_the_loss_and_the_gradient_of_each_alone)
{
    static const char *const archs[] = {"gpt2", "llama", "qwen3", "mistral --set model.window=5"};
    int n = 0, n_packed = 0;
    write_tokens("tokens", content_of(irregular, some));
    for (int packing = PACKING_FIT; packing <= PACKING_PAD; packing++) {
        data_t *data;
        data_spec_t spec = packed_spec(in_directory("tokens"), packing, 0, 1, 1);
        ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
        n_packed = packing == PACKING_FIT ? (int)data_n_sequences(data) : n_packed;
        n = (int)data_n_sequences(data);
        data_close(data);
    }
    ck_assert_int_gt(n, n_packed);
    for (int a = 0; a < 4; a++) {
        double numbers[2][3];
        for (int alone = 0; alone < 2; alone++) {
            char arguments[300];
            snprintf(arguments, sizeof arguments,
                     "--set data.train=tokens --set data.packing=%s --set train.global_batch=%d --set "
                     "train.micro_batch=1 --steps 1 --set model.arch=%s",
                     alone ? "pad" : "fit", alone ? n : n_packed, archs[a]);
            char *metrics = run_metrics(RUN_CONFIG("2"), 1, arguments);
            json_t *row = last_row(metrics);
            numbers[alone][0] = json_number_value(json_object_get(row, "loss"));
            numbers[alone][1] = json_number_value(json_object_get(row, "grad_norm"));
            numbers[alone][2] = json_number_value(json_object_get(row, "targets"));
            json_decref(row);
            free(metrics);
        }
        ck_assert_double_eq(numbers[0][2], numbers[1][2]);
        ck_assert_double_lt(support_relative_error(numbers[0][0], numbers[1][0]), 1e-6);
        ck_assert_double_lt(support_relative_error(numbers[0][1], numbers[1][1]), 1e-5);
    }
}
END_TEST

/* A checkpoint of a run that cut its sequences; one of a version that did not name its packing is as such a one. */
START_TEST(another_packing_is_refused_by_name_on_resume)
{
    support_output_t output;
    write_tokens("tokens", content_of(irregular, some));
    free(losses_of(1, "--set data.train=tokens --set checkpoint.dir=ck --steps 2"));
    static const char *const packings[] = {"cut", "fit"};
    for (int i = 0; i < 2; i++) {
        int code = support_mpirun(&output, RUN_LIMIT_S, 1,
                                  "-x OMP_NUM_THREADS=1 --wdir %s %s/zerotrain --set data.train=tokens --set "
                                  "checkpoint.dir=ck --resume --steps 3 --set data.packing=%s cfg.ini",
                                  directory, support_build(), packings[i]);
        ck_assert_msg(code == (i == 0 ? 0 : 2), "%s", output.err);
        if (i == 1)
            ck_assert_msg(strstr(output.err, "[data] packing = fit, but the checkpoint") != NULL, "%s", output.err);
        support_output_free(&output);
    }
    static options_t options;
    const data_identity_t none = {0};
    options_set_defaults(&options);
    options.data.packing = PACKING_FIT;
    json_t *state = json_pack("{s:{s:{s:s}}}", "config", "data", "documents", "join");
    capture_begin();
    zero_status_t status = resume_check(&options, "old", state, &none);
    expect_line(capture_end(), (const char *[]){"[data] packing = fit, but the checkpoint 'old'", "with cut", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_USAGE);
    json_decref(state);
}
END_TEST

START_TEST(epochs_are_steps_over_all_sequences)
{
    static const double epochs[] = {0.5, 1.0, 2.75};
    support_output_t output;
    data_t *data;
    write_tokens("tokens", content_of(irregular, some));
    data_spec_t spec = packed_spec(in_directory("tokens"), PACKING_FIT, 0, 1, 12);
    ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
    const int64_t n = data_n_sequences(data);
    for (int i = 0; i < 3; i++) {
        train_options_t train = {.epochs = epochs[i], .global_batch = 5, .steps = 7};
        ck_assert_int_eq(data_choose_steps(n, 0, 0, &train), ZERO_OK);
        ck_assert_int_eq(train.steps, (int64_t)ceil(epochs[i] * (double)n / 5.0));
        const int64_t n_steps = train.steps;
        for (int64_t done = 1; done <= n_steps; done++) { /* goes on with the same batch */
            ck_assert_int_eq(data_choose_steps(n, done, done * 5, &train), ZERO_OK);
            ck_assert_int_eq(train.steps, n_steps);
        }
        train.global_batch = 3;
        ck_assert_int_eq(data_choose_steps(n, 2, 10, &train), ZERO_OK);
        ck_assert_int_eq(train.steps, 2 + (int64_t)ceil((epochs[i] * (double)n - 10.0) / 3.0));
        ck_assert_int_eq(data_choose_steps(n, 2, 10 * n, &train), ZERO_OK);
        ck_assert_int_eq(train.steps, 2); /* all is taken */
    }
    data_close(data);
    support_write_file(in_directory("cfg.ini"), RUN_CONFIG("1"), strlen(RUN_CONFIG("1")));
    int code = support_mpirun(&output, RUN_LIMIT_S, 1,
                              "--wdir %s %s/zerotrain --set data.train=tokens --set train.steps=2 --set "
                              "train.epochs=1 cfg.ini",
                              directory, support_build());
    ck_assert_int_eq(code, 2);
    ck_assert_ptr_nonnull(strstr(output.err, "[train] steps and epochs: give one of them"));
    support_output_free(&output);
}
END_TEST

/* The mean over the targets of all documents, with no document cut: of every text the same as in training. */
START_TEST(evaluation_packs_as_training_does)
{
    support_output_t output;
    write_tokens("tokens", content_of(irregular, some));
    write_tokens("text", content_of(never, NULL)); /* one document */
    char *metrics = run_metrics(RUN_CONFIG("2"), 2,
                                "--set data.train=text --set data.packing=auto --set data.val=tokens --set "
                                "train.eval_batches=1000 --set checkpoint.dir=evaluated");
    int code = support_mpirun(&output, RUN_LIMIT_S, 1,
                              "--wdir %s %s/zerotrain evaluate --json --set data.train=text --set data.packing=auto "
                              "--set data.val=tokens --set model.init=evaluated cfg.ini",
                              directory, support_build());
    int n_targets = 0;
    for (int token = 1; token < N_TOKENS; token++)
        n_targets += some(token) && !irregular(token);
    ck_assert_msg(code == 0, "%s", output.err);
    json_t *got = json_loads(output.out, 0, NULL), *row = last_row(metrics);
    int n_lost = 0; /* of the first document, of more than 17 tokens */
    for (int token = SEQ_LEN + 1; token < N_TOKENS && !irregular(token); token++)
        n_lost += some(token);
    ck_assert_int_eq(json_integer_value(json_object_get(got, "tokens")) <= n_targets - n_lost, 1);
    ck_assert_double_lt(support_relative_error(json_number_value(json_object_get(got, "loss")),
                                               json_number_value(json_object_get(row, "val_loss"))),
                        1e-6);
    json_decref(got);
    json_decref(row);
    support_output_free(&output);
    free(metrics);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("packing");
    TCase *c = tcase_create("files and runs");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 8 * RUN_LIMIT_S);
    tcase_add_test(c, best_fit_is_that_of_the_definition);
    tcase_add_test(c, a_million_documents_fill_their_sequences);
    tcase_add_test(c, an_epoch_has_every_document_once_and_whole);
    tcase_add_test(c, ranks_that_share_sequences_have_their_parts);
    tcase_add_test(c, long_documents_are_truncated_or_dropped_and_counted);
    tcase_add_test(c, packing_needs_documents);
    tcase_add_test(c, the_default_is_fit_for_files_with_a_mask);
    tcase_add_test(c, losses_are_the_same_text_at_every_stage_and_on_any_number_of_ranks);
    tcase_add_test(c, a_resumed_run_has_the_losses_of_one_that_was_not_stopped);
    tcase_add_test(c, packed_documents_have_the_loss_and_the_gradient_of_each_alone);
    tcase_add_test(c, another_packing_is_refused_by_name_on_resume);
    tcase_add_test(c, epochs_are_steps_over_all_sequences);
    tcase_add_test(c, evaluation_packs_as_training_does);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
