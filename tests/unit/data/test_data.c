/* test_data.c - batches against a naive reading of the files, and the order of sequences against its promises. */
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/data/data.h"
#include "train/data/shuffle.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Two text files and an llm.c file with known tokens: the naive reference. */
enum { SEQ_LEN = 17, N_TEXT = 17 * 40 + 9, N_SECOND = 17 * 3, N_LLMC = 17 * 21 + 1, VOCAB = 50257 };
static int32_t text_tokens[N_TEXT], second_tokens[N_SECOND], llmc_tokens[N_LLMC];
static const struct {
    const int32_t *tokens;
    int n_sequences;
} files[] = {{text_tokens, 40}, {second_tokens, 2}, {llmc_tokens, 21}};
enum { N_SEQUENCES = 40 + 2 + 21 };
static char paths[OPTIONS_MAX_PATH];
static char scratch[1000];

static void set_up(void)
{
    char *directory = support_scratch();
    snprintf(scratch, sizeof scratch, "%s", directory);
    free(directory);
    uint64_t state = 3;
    static unsigned char bytes[1024 + 2 * N_LLMC + N_TEXT];
    char path[2100];
    for (int i = 0; i < N_TEXT; i++)
        bytes[i] = (unsigned char)(text_tokens[i] = (int32_t)(i == 300 ? 255 : support_random(&state) % 256));
    snprintf(path, sizeof path, "%s/a.txt", scratch);
    support_write_file(path, bytes, N_TEXT);
    for (int i = 0; i < N_SECOND; i++)
        bytes[i] = (unsigned char)(second_tokens[i] = (int32_t)(support_random(&state) % 256));
    snprintf(path, sizeof path, "%s/b.txt", scratch);
    support_write_file(path, bytes, N_SECOND);
    memset(bytes, 0, sizeof bytes);
    const uint32_t header[3] = {20240520, 1, N_LLMC};
    memcpy(bytes, header, sizeof header);
    for (int i = 0; i < N_LLMC; i++) {
        llmc_tokens[i] = (int32_t)(support_random(&state) % VOCAB);
        bytes[1024 + 2 * i] = (unsigned char)llmc_tokens[i];
        bytes[1024 + 2 * i + 1] = (unsigned char)(llmc_tokens[i] >> 8);
    }
    snprintf(path, sizeof path, "%s/c.bin", scratch);
    support_write_file(path, bytes, 1024 + 2 * N_LLMC);
    snprintf(paths, sizeof paths, "%s/a.txt, %s/b.txt ,%s/c.bin", scratch, scratch, scratch);
}

static data_spec_t spec_of(int rank, int world_size, int64_t micro_batch, bool shuffle)
{
    return (data_spec_t){.paths = paths,
                         .format = FORMAT_AUTO,
                         .vocab_size = VOCAB,
                         .seq_len = SEQ_LEN,
                         .global_batch = 24,
                         .micro_batch = micro_batch,
                         .rank = rank,
                         .world_size = world_size,
                         .seed = 42,
                         .shuffle = shuffle};
}

static data_t *must_open(data_spec_t spec)
{
    data_t *data;
    ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
    return data;
}

/* The number of the sequence with these inputs and targets, found by comparing with every one. */
static int identify(const int32_t *inputs, const int32_t *targets)
{
    int number = 0;
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++)
        for (int s = 0; s < files[f].n_sequences; s++, number++) {
            const int32_t *window = files[f].tokens + s * SEQ_LEN;
            if (memcmp(window, inputs, SEQ_LEN * sizeof *window) == 0) {
                ck_assert_mem_eq(window + 1, targets, SEQ_LEN * sizeof *window);
                return number;
            }
        }
    ck_abort_msg("a sequence that is in no file");
    return -1;
}

/* Lists the sequences of a step in the order of their positions: micro-batch after micro-batch, of which micro-step k
 * of rank r reads number k * world_size + r. */
static void sequences_of_steps(int world_size, int64_t micro_batch, bool shuffle, int n_steps, int *numbers)
{
    for (int rank = 0; rank < world_size; rank++) {
        data_t *data = must_open(spec_of(rank, world_size, micro_batch, shuffle));
        int64_t n_micro_steps = 24 / world_size / micro_batch;
        for (int step = 0; step < n_steps; step++)
            for (int k = 0; k < n_micro_steps; k++) {
                const int32_t *inputs, *targets;
                ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
                for (int64_t i = 0; i < micro_batch; i++)
                    numbers[step * 24 + (k * world_size + rank) * micro_batch + i] =
                        identify(inputs + i * SEQ_LEN, targets + i * SEQ_LEN);
            }
        data_close(data);
    }
}

START_TEST(counts_are_those_of_the_files)
{
    data_t *data = must_open(spec_of(0, 1, 24, true));
    ck_assert_int_eq(data_n_tokens(data), N_TEXT + N_SECOND + N_LLMC);
    ck_assert_int_eq(data_n_sequences(data), N_SEQUENCES);
    data_close(data);
}
END_TEST

START_TEST(without_shuffling_batches_are_the_files_in_order)
{
    int numbers[24 * 6];
    sequences_of_steps(2, 4, false, 6, numbers);
    for (int i = 0; i < 24 * 6; i++)
        ck_assert_int_eq(numbers[i], i % N_SEQUENCES);
}
END_TEST

START_TEST(micro_batches_have_the_same_sequences_on_any_number_of_ranks)
{
    enum { STEPS = 9 }; /* more than three epochs */
    int want[24 * STEPS], got[24 * STEPS];
    sequences_of_steps(1, 24, true, STEPS, want);
    const struct {
        int world_size;
        int64_t micro_batch;
    } jobs[] = {{1, 1}, {2, 12}, {2, 3}, {3, 8}, {3, 2}, {4, 6}, {4, 1}, {8, 3}, {8, 1}, {24, 1}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        sequences_of_steps(jobs[i].world_size, jobs[i].micro_batch, true, STEPS, got);
        ck_assert_mem_eq(got, want, sizeof want);
    }
}
END_TEST

START_TEST(each_epoch_visits_every_sequence_once)
{
    enum { STEPS = 21 }; /* 21 * 24 = 8 * 63 */
    int numbers[24 * STEPS], same_place = 0;
    sequences_of_steps(1, 24, true, STEPS, numbers);
    for (int epoch = 0; epoch < 8; epoch++) {
        int visits[N_SEQUENCES] = {0};
        for (int i = 0; i < N_SEQUENCES; i++) {
            visits[numbers[epoch * N_SEQUENCES + i]]++;
            same_place += epoch > 0 && numbers[epoch * N_SEQUENCES + i] == numbers[i];
        }
        for (int i = 0; i < N_SEQUENCES; i++)
            ck_assert_int_eq(visits[i], 1);
    }
    ck_assert_int_lt(same_place, 30); /* 7 are expected of independent orders; 441 were they all the same */
}
END_TEST

START_TEST(batches_may_be_asked_for_in_any_order)
{
    enum { STEPS = 12 };
    int want[24 * STEPS];
    sequences_of_steps(1, 24, true, STEPS, want);
    data_t *data = must_open(spec_of(1, 2, 4, true));
    uint64_t state = 8;
    for (int round = 0; round < 300; round++) {
        int step = (int)(support_random(&state) % STEPS), k = (int)(support_random(&state) % 3);
        const int32_t *inputs, *targets;
        ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
        if (round % 3 == 0) { /* gives the reader time for a write that is wrong */
            const struct timespec moment = {.tv_nsec = 200000};
            nanosleep(&moment, NULL);
        }
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(identify(inputs + i * SEQ_LEN, targets + i * SEQ_LEN),
                             want[step * 24 + (2 * k + 1) * 4 + i]);
    }
    data_close(data);
}
END_TEST

/* Steps 0..4 with batches of 24, and then, from where they ended, batches of 24 again or of 12. */
START_TEST(a_run_that_resumes_reads_on_where_the_one_before_ended)
{
    enum { STEPS = 12, BEFORE = 5 };
    int want[24 * STEPS];
    sequences_of_steps(1, 24, true, STEPS, want);
    for (int global_batch = 12; global_batch <= 24; global_batch += 12) {
        data_spec_t spec = spec_of(0, 1, 12, true);
        spec.global_batch = global_batch;
        data_t *data = must_open(spec);
        const int32_t *inputs, *targets;
        ck_assert_int_eq(data_batch(data, 0, 0, &inputs, &targets), ZERO_OK); /* something is read ahead */
        data_start_at(data, BEFORE, BEFORE * 24);
        int place = BEFORE * 24;
        for (int step = BEFORE; place < 24 * STEPS; step++)
            for (int k = 0; k < global_batch / 12; k++) {
                ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
                for (int i = 0; i < 12; i++)
                    ck_assert_int_eq(identify(inputs + i * SEQ_LEN, targets + i * SEQ_LEN), want[place++]);
            }
        data_close(data);
    }
}
END_TEST

START_TEST(the_permutation_is_a_bijection_of_any_size)
{
    static unsigned char seen[5000];
    for (uint64_t n = 1; n <= 5000; n = n < 70 ? n + 1 : n * 2 + 3)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t to = shuffle_index(1, epoch, n, i);
                ck_assert_uint_lt(to, n);
                ck_assert_msg(!seen[to]++, "twice: %d of %d", (int)to, (int)n);
            }
        }
}
END_TEST

/* Counts where the first of n things goes, over many keys: each position as often as any other. Chi-squared with n - 1
 * = 63 degrees of freedom has mean 63 and standard deviation 11.2; 120 is five of them. */
START_TEST(the_permutation_is_even_over_seeds_and_over_epochs)
{
    enum { N = 64, KEYS = 64000 };
    for (int by_epoch = 0; by_epoch < 2; by_epoch++)
        for (uint64_t index = 0; index < N; index += 21) {
            double counts[N] = {0}, chi_squared = 0;
            for (uint64_t key = 0; key < KEYS; key++)
                counts[shuffle_index(by_epoch ? 9 : key, by_epoch ? key : 0, N, index)]++;
            for (int i = 0; i < N; i++)
                chi_squared += (counts[i] - KEYS / N) * (counts[i] - KEYS / N) / (KEYS / N);
            ck_assert_double_lt(chi_squared, 120);
            ck_assert_double_gt(chi_squared, 20);
        }
}
END_TEST

static void expect_refusal(const data_spec_t *spec, zero_status_t want, const char *first, const char *second)
{
    data_t *data = NULL;
    capture_begin();
    zero_status_t status = data_open(spec, &data);
    expect_line(capture_end(), (const char *[]){first, second, NULL});
    ck_assert_int_eq(status, want);
    ck_assert_ptr_null(data);
}

START_TEST(bad_files_are_refused_in_one_line)
{
    char path[2100];
    data_spec_t spec = spec_of(0, 1, 24, true);
    spec.paths = path;
    snprintf(path, sizeof path, "%s/a.txt,%s/absent", scratch, scratch);
    expect_refusal(&spec, ZERO_ERROR_USAGE, "/absent'", "No such file");
    snprintf(path, sizeof path, "%s/a.txt,,%s/b.txt", scratch, scratch);
    expect_refusal(&spec, ZERO_ERROR_USAGE, "empty path", "[data]");
    snprintf(path, sizeof path, "%s/c.bin", scratch);
    spec.vocab_size = 256;
    expect_refusal(&spec, ZERO_ERROR_FORMAT, "beyond the vocabulary", "vocab_size is 256");
    snprintf(path, sizeof path, "%s/a.txt", scratch);
    spec.vocab_size = 255;
    expect_refusal(&spec, ZERO_ERROR_FORMAT, "token 255", "text needs up to 256");
}
END_TEST

/* Sequences of the data set are windows over the stream of tokens, wherever Megatron's own sequences end. */
START_TEST(a_megatron_pair_gives_the_batches_of_the_same_tokens_in_llmc)
{
    static unsigned char index[34 + 2 * 12];
    const int64_t version = 1, n_sequences = 2, pointers[2] = {0, 4 * 100};
    const int32_t sizes[2] = {100, N_LLMC - 100};
    memcpy(index, "MMIDIDX\0\0", 9);
    memcpy(index + 9, &version, 8);
    index[17] = 4; /* int32; and no bounds of documents */
    memcpy(index + 18, &n_sequences, 8);
    memcpy(index + 34, sizes, 8);
    memcpy(index + 42, pointers, 16);
    char pair[2100], path[2110];
    snprintf(pair, sizeof pair, "%s/pair", scratch);
    snprintf(path, sizeof path, "%s.idx", pair);
    support_write_file(path, index, sizeof index);
    snprintf(path, sizeof path, "%s.bin", pair);
    support_write_file(path, llmc_tokens, sizeof llmc_tokens);
    data_spec_t spec = spec_of(0, 1, 24, true);
    spec.paths = pair;
    data_t *megatron = must_open(spec);
    snprintf(path, sizeof path, "%s/c.bin", scratch);
    spec.paths = path;
    data_t *llmc = must_open(spec);
    ck_assert_int_eq(data_n_sequences(megatron), data_n_sequences(llmc));
    for (int step = 0; step < 5; step++) {
        const int32_t *got[2], *want[2];
        ck_assert_int_eq(data_batch(megatron, step, 0, &got[0], &got[1]), ZERO_OK);
        ck_assert_int_eq(data_batch(llmc, step, 0, &want[0], &want[1]), ZERO_OK);
        for (int i = 0; i < 2; i++)
            ck_assert_mem_eq(got[i], want[i], 24 * SEQ_LEN * sizeof **got);
    }
    data_close(megatron);
    data_close(llmc);
}
END_TEST

START_TEST(data_too_short_for_one_sequence_names_the_numbers)
{
    char path[2100];
    snprintf(path, sizeof path, "%s/short.txt", scratch);
    data_spec_t spec = spec_of(0, 1, 24, true);
    spec.paths = path;
    support_write_file(path, "0123456789abcdefg", SEQ_LEN);
    data_t *data = NULL;
    capture_begin();
    zero_status_t status = data_open(&spec, &data);
    const char *said = capture_end();
    ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
    ck_assert_ptr_nonnull(strstr(said, "17 tokens"));
    ck_assert_ptr_nonnull(strstr(said, "seq_len = 17"));
    ck_assert_ptr_nonnull(strstr(said, "18"));
    support_write_file(path, "0123456789abcdefgh", SEQ_LEN + 1);
    data = must_open(spec);
    ck_assert_int_eq(data_n_sequences(data), 1);
    const int32_t *inputs, *targets;
    ck_assert_int_eq(data_batch(data, 1000, 0, &inputs, &targets), ZERO_OK);
    for (int i = 0; i < 24; i++) /* the one sequence fills every position */
        ck_assert(inputs[i * SEQ_LEN] == '0' && targets[i * SEQ_LEN + SEQ_LEN - 1] == 'h');
    data_close(data);
}
END_TEST

/* The scan is shared: exactly one rank finds a bad token, whichever it is. */
START_TEST(every_token_is_checked_by_exactly_one_rank)
{
    char path[2100];
    snprintf(path, sizeof path, "%s/bad.txt", scratch);
    enum { N = 101 };
    for (int at = 0; at < N; at++) {
        char bytes[N];
        memset(bytes, 'a', N);
        bytes[at] = '~';
        support_write_file(path, bytes, N);
        int n_failed = 0;
        for (int rank = 0; rank < 8; rank++) {
            data_spec_t spec = spec_of(rank, 8, 3, true);
            spec.paths = path;
            spec.vocab_size = '~';
            data_t *data = NULL;
            capture_begin();
            zero_status_t status = data_open(&spec, &data);
            capture_end();
            ck_assert(status == ZERO_OK || status == ZERO_ERROR_FORMAT);
            n_failed += status != ZERO_OK;
            data_close(data);
        }
        ck_assert_int_eq(n_failed, 1);
    }
}
END_TEST

/* Writes a text of 24 sequences whose token i is token_of(i). */
enum { N_USED = 24 * SEQ_LEN + 1 };
static char used_path[2100];

static int32_t token_of(int i)
{
    return 'a' + i * 7 % 26;
}

static data_t *open_used(int64_t vocab_size)
{
    char bytes[N_USED];
    for (int i = 0; i < N_USED; i++)
        bytes[i] = (char)token_of(i);
    snprintf(used_path, sizeof used_path, "%s/used.txt", scratch);
    support_write_file(used_path, bytes, N_USED);
    data_spec_t spec = spec_of(0, 1, 8, false);
    spec.paths = used_path;
    spec.vocab_size = vocab_size;
    return must_open(spec);
}

/* Changes the file in place, as a process that has it open sees it. */
static void overwrite(const char *path, long at, char byte)
{
    FILE *file = fopen(path, "r+");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, at, SEEK_SET), 0);
    ck_assert_int_eq(fputc(byte, file), byte);
    ck_assert_int_eq(fclose(file), 0);
}

static void expect_batch(data_t *data, int micro_step)
{
    const int32_t *inputs, *targets;
    ck_assert_int_eq(data_batch(data, 0, micro_step, &inputs, &targets), ZERO_OK);
    for (int i = 0; i < 8 * SEQ_LEN; i++) {
        ck_assert_int_eq(inputs[i], token_of(micro_step * 8 * SEQ_LEN + i));
        ck_assert_int_eq(targets[i], token_of(micro_step * 8 * SEQ_LEN + i + 1));
    }
}

static void expect_fault(data_t *data, int micro_step, zero_status_t want, const char *const *parts)
{
    const int32_t *inputs = NULL, *targets = NULL;
    capture_begin();
    zero_status_t status = data_batch(data, 0, micro_step, &inputs, &targets);
    expect_line(capture_end(), parts);
    ck_assert_int_eq(status, want);
    ck_assert(inputs == NULL && targets == NULL);
}

/* Wherever it is cut: what is left can be read, what is gone is named, again and again. It is the reading caller's
 * first batch, or one that was read ahead. */
START_TEST(a_file_that_is_truncated_in_use_is_named)
{
    const int third = 8 * SEQ_LEN; /* tokens of a micro-step */
    const int lengths[] = {0, 1, third, third + 1, third + 5, 2 * third, 2 * third + 1, N_USED - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int ahead = 0; ahead < 2; ahead++) {
            data_t *data = open_used(256);
            int whole = (lengths[i] - 1) / third; /* micro-steps that are left: each needs a token more than its own */
            if (ahead)
                expect_batch(data, 0); /* and then micro-step 1 is read, before or after the cut */
            ck_assert_int_eq(truncate(used_path, lengths[i]), 0);
            for (int k = ahead; k < whole; k++)
                expect_batch(data, k);
            for (int k = ahead && whole < 2 ? 2 : whole; k < 3; k++) /* micro-step 1 may have been read in time */
                for (int again = 0; again < 2; again++)
                    expect_fault(data, k, ZERO_ERROR_IO,
                                 (const char *[]){used_path, "409 bytes", "truncated while in use", NULL});
            data_close(data);
        }
}
END_TEST

START_TEST(a_token_that_is_overwritten_in_use_is_named)
{
    const int third = 8 * SEQ_LEN;
    const int places[] = {2 * third, 2 * third + 1, N_USED - 2, N_USED - 1}; /* of micro-step 2, first and last */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char token[32], position[32];
        data_t *data = open_used('z' + 1);
        expect_batch(data, 0);
        overwrite(used_path, places[i], '~');
        expect_batch(data, 0); /* not what was read ahead: micro-step 1 follows again */
        snprintf(token, sizeof token, "token %d ", '~');
        snprintf(position, sizeof position, "position %d ", places[i]);
        expect_fault(data, 2, ZERO_ERROR_FORMAT,
                     (const char *[]){used_path, token, position, "vocab_size is 123", "changed while in use", NULL});
        overwrite(used_path, places[i],
                  (char)token_of(places[i])); /* a reader that continues where the file is correct again may */
        expect_batch(data, 2);
        data_close(data);
    }
}
END_TEST

/* A run reads one batch more than it uses: nothing is wrong with a run that ends before what is gone. */
START_TEST(errors_in_batches_that_are_never_used_are_ignored)
{
    capture_begin();
    for (int round = 0; round < 50; round++) {
        data_t *data = open_used(256);
        ck_assert_int_eq(truncate(used_path, 8 * SEQ_LEN + 1), 0);
        expect_batch(data, 0);
        if (round % 2) {
            const struct timespec moment = {.tv_nsec = 200000};
            nanosleep(&moment, NULL);
        }
        data_close(data);
    }
    ck_assert_str_eq(capture_end(), "");
}
END_TEST

START_TEST(sizes_that_do_not_fit_are_refused)
{
    data_t *data = NULL;
    data_spec_t specs[4];
    for (int i = 0; i < 4; i++)
        specs[i] = spec_of(0, 1, 24, true);
    specs[0].micro_batch = 5;
    specs[1].world_size = 5;
    specs[2].seq_len = 0;
    specs[3].rank = 1;
    for (int i = 0; i < 4; i++) {
        capture_begin();
        zero_status_t status = data_open(&specs[i], &data);
        expect_line(capture_end(), (const char *[]){"data", NULL});
        ck_assert_int_eq(status, ZERO_ERROR_ARGUMENT);
    }
    data = must_open(spec_of(0, 1, 24, true));
    const int32_t *inputs, *targets;
    capture_begin();
    ck_assert_int_eq(data_batch(data, INT64_MAX / 2, 0, &inputs, &targets), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(data_batch(data, 0, 1, &inputs, &targets), ZERO_ERROR_ARGUMENT);
    capture_end();
    ck_assert_int_eq(data_batch(data, INT64_MAX / 24 - 2, 0, &inputs, &targets), ZERO_OK);
    /* Positions from a checkpoint: up to the last step that ends, with the one after it, below 2^63. */
    data_start_at(data, 7, INT64_MAX - 2 * 24);
    ck_assert_int_eq(data_batch(data, 7, 0, &inputs, &targets), ZERO_OK);
    capture_begin();
    ck_assert_int_eq(data_batch(data, 8, 0, &inputs, &targets), ZERO_ERROR_ARGUMENT);
    ck_assert_int_eq(data_batch(data, INT64_MAX, 0, &inputs, &targets), ZERO_ERROR_ARGUMENT);
    capture_end();
    data_close(data);
}
END_TEST

/* A file may be larger than any disk if most of it is never written. */
START_TEST(more_tokens_than_can_be_counted_are_refused)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/zero-test-%d", (int)getpid());
    support_write_file(path, "x", 1);
    data_spec_t spec = spec_of(0, 1, 24, true);
    spec.paths = path;
    spec.seq_len = 1;
    int refused = truncate(path, (off_t)((INT64_C(1) << 62) + 4096));
    if (refused)
        printf("SKIP: /dev/shm takes no file of 2^62 bytes\n");
    else
        expect_refusal(&spec, ZERO_ERROR_OVERFLOW, path, "more than 2^62 tokens");
    unlink(path);
}
END_TEST

START_TEST(closing_at_any_moment_ends_the_reader)
{
    for (int round = 0; round < 200; round++) {
        data_t *data = must_open(spec_of(0, 1, 24, true));
        const int32_t *inputs, *targets;
        for (int k = 0; k < round % 3; k++)
            ck_assert_int_eq(data_batch(data, k, 0, &inputs, &targets), ZERO_OK);
        data_close(data);
    }
    data_close(NULL);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("data");
    TCase *c = tcase_create("batches");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, counts_are_those_of_the_files);
    tcase_add_test(c, without_shuffling_batches_are_the_files_in_order);
    tcase_add_test(c, micro_batches_have_the_same_sequences_on_any_number_of_ranks);
    tcase_add_test(c, each_epoch_visits_every_sequence_once);
    tcase_add_test(c, batches_may_be_asked_for_in_any_order);
    tcase_add_test(c, a_run_that_resumes_reads_on_where_the_one_before_ended);
    tcase_add_test(c, the_permutation_is_a_bijection_of_any_size);
    tcase_add_test(c, the_permutation_is_even_over_seeds_and_over_epochs);
    tcase_add_test(c, bad_files_are_refused_in_one_line);
    tcase_add_test(c, a_megatron_pair_gives_the_batches_of_the_same_tokens_in_llmc);
    tcase_add_test(c, data_too_short_for_one_sequence_names_the_numbers);
    tcase_add_test(c, every_token_is_checked_by_exactly_one_rank);
    tcase_add_test(c, a_file_that_is_truncated_in_use_is_named);
    tcase_add_test(c, a_token_that_is_overwritten_in_use_is_named);
    tcase_add_test(c, errors_in_batches_that_are_never_used_are_ignored);
    tcase_add_test(c, sizes_that_do_not_fit_are_refused);
    tcase_add_test(c, more_tokens_than_can_be_counted_are_refused);
    tcase_add_test(c, closing_at_any_moment_ends_the_reader);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
