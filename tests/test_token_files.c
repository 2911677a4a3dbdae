/* test_token_files.c - token files: what is written is read, and what is wrong is one line. */
#include "stderr_capture.h"
#include "support.h"
#include "train/token_files.h"

#include <stdlib.h>
#include <sys/stat.h>

static char directory[3000];

static void set_up(void)
{
    char *scratch = support_scratch();
    snprintf(directory, sizeof directory, "%s", scratch);
    free(scratch);
}

static const char *in_directory(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static const char *write_named(const char *name, const void *data, size_t n_bytes)
{
    const char *path = in_directory(name);
    support_write_file(path, data, n_bytes);
    return path;
}

/* An llm.c file with this header; count tokens of `width` bytes, token i being (i * 37) & 0xff, then `extra` bytes. */
static size_t make_llmc(uint32_t magic, uint32_t version, uint32_t header_count, int count, int width, int extra,
                        unsigned char *out)
{
    size_t n_bytes = 1024 + (size_t)(count * width + extra);
    memset(out, 0, n_bytes);
    const uint32_t header[3] = {magic, version, header_count};
    memcpy(out, header, sizeof header); /* the tests run on little-endian machines */
    for (int i = 0; i < count; i++)
        out[1024 + i * width] = (unsigned char)(i * 37);
    return n_bytes;
}

static unsigned char buffer[1 << 16];

START_TEST(llmc_tokens_of_both_widths_are_read)
{
    const struct {
        uint32_t magic, version;
        int width;
    } kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
    for (int k = 0; k < 2; k++)
        for (int asked = 0; asked < 2; asked++) {
            size_t n = make_llmc(kinds[k].magic, kinds[k].version, 100, 100, kinds[k].width, 0, buffer);
            token_file_t file;
            zero_status_t status =
                token_file_open(write_named("a.bin", buffer, n), asked ? FORMAT_LLMC : FORMAT_AUTO, &file);
            ck_assert_int_eq(status, ZERO_OK);
            ck_assert_int_eq(file.n_tokens, 100);
            ck_assert_int_eq(file.token_bytes, kinds[k].width);
            int32_t tokens[90];
            token_file_read(&file, 7, 90, tokens);
            for (int i = 0; i < 90; i++)
                ck_assert_int_eq(tokens[i], ((i + 7) * 37) & 0xff);
            token_file_close(&file);
        }
}
END_TEST

START_TEST(nanogpt_and_text_are_read_and_recognised_by_name)
{
    const unsigned char bytes[] = {0x01, 0x00, 0xff, 0xff, 0x34, 0x12};
    token_file_t file;
    int32_t tokens[6];
    ck_assert_int_eq(token_file_open(write_named("x.bin", bytes, 6), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 3);
    token_file_read(&file, 0, 3, tokens);
    ck_assert(tokens[0] == 1 && tokens[1] == 65535 && tokens[2] == 0x1234);
    token_file_close(&file);
    ck_assert_int_eq(token_file_open(write_named("x.txt", bytes, 6), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 6);
    token_file_read(&file, 0, 6, tokens);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(tokens[i], bytes[i]);
    token_file_close(&file);
    ck_assert_int_eq(token_file_open(write_named("x.bin", bytes, 5), FORMAT_TEXT, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 5);
    token_file_close(&file);
}
END_TEST

static void expect_refusal(const char *path, options_format_t format, zero_status_t want, const char *fragment)
{
    token_file_t file = {.n_tokens = -7};
    capture_begin();
    zero_status_t status = token_file_open(path, format, &file);
    expect_line(capture_end(), (const char *[]){path, fragment, NULL});
    ck_assert_msg(status == want, "%s: status %d, not %d", path, status, want);
    ck_assert_int_eq(file.n_tokens, -7); /* outputs are set only on success */
}

START_TEST(a_path_that_is_no_file_is_a_usage_error)
{
    expect_refusal(in_directory("absent.txt"), FORMAT_AUTO, ZERO_ERROR_USAGE, "No such file");
    expect_refusal(directory, FORMAT_AUTO, ZERO_ERROR_USAGE, "is a directory");
    expect_refusal("/dev/null", FORMAT_AUTO, ZERO_ERROR_USAGE, "not a regular file");
    const char *pipe_path = in_directory("pipe");
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    expect_refusal(pipe_path, FORMAT_AUTO, ZERO_ERROR_USAGE, "not a regular file"); /* and does not wait for a writer */
}
END_TEST

START_TEST(an_unreadable_file_is_a_usage_error)
{
    if (geteuid() == 0)
        return; /* root reads everything */
    const char *path = write_named("secret.txt", "abc", 3);
    ck_assert_int_eq(chmod(path, 0), 0);
    expect_refusal(path, FORMAT_AUTO, ZERO_ERROR_USAGE, "Permission denied");
}
END_TEST

START_TEST(an_empty_file_is_a_format_error)
{
    expect_refusal(write_named("empty.txt", "", 0), FORMAT_AUTO, ZERO_ERROR_FORMAT, "is empty");
}
END_TEST

START_TEST(an_odd_number_of_bytes_is_not_nanogpt)
{
    expect_refusal(write_named("odd.bin", "abc", 3), FORMAT_AUTO, ZERO_ERROR_FORMAT, "3 bytes");
    expect_refusal(write_named("odd.txt", "abc", 3), FORMAT_NANOGPT, ZERO_ERROR_FORMAT, "3 bytes");
}
END_TEST

START_TEST(a_truncated_llmc_header_is_named)
{
    make_llmc(20240520, 1, 0, 0, 2, 0, buffer);
    for (size_t n = 4; n < 1024; n += 51)
        expect_refusal(write_named("t.bin", buffer, n), FORMAT_AUTO, ZERO_ERROR_FORMAT, "truncated");
}
END_TEST

START_TEST(llmc_is_refused_where_the_file_is_something_else)
{
    expect_refusal(write_named("x.bin", "hello", 5), FORMAT_LLMC, ZERO_ERROR_USAGE, "not an llm.c token file");
    expect_refusal(write_named("x.bin", "h", 1), FORMAT_LLMC, ZERO_ERROR_USAGE, "not an llm.c token file");
    size_t n = make_llmc(20240520, 7, 10, 10, 2, 0, buffer);
    expect_refusal(write_named("v.bin", buffer, n), FORMAT_AUTO, ZERO_ERROR_FORMAT, "version 7");
}
END_TEST

START_TEST(an_llmc_count_that_disagrees_with_the_size_names_both)
{
    const struct {
        uint32_t header_count;
        int extra;
        const char *fragment;
    } cases[] = {{11, 0, "11 tokens"},         {9, 0, "9 tokens"},     {10, 1, "1045"},
                 {0x80000000u, 0, "negative"}, {0xffffffffu, 0, "-1"}, {0x7fffffff, 0, "2147483647 tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = make_llmc(20240520, 1, cases[i].header_count, 10, 2, cases[i].extra, buffer);
        expect_refusal(write_named("c.bin", buffer, n), FORMAT_AUTO, ZERO_ERROR_FORMAT, cases[i].fragment);
    }
}
END_TEST

START_TEST(megatron_is_not_in_this_version)
{
    expect_refusal(write_named("m.bin", "abcd", 4), FORMAT_MEGATRON, ZERO_ERROR_USAGE, "not in this version");
}
END_TEST

/* Of every width, the first token beyond the vocabulary in a long file, wherever it stands. */
START_TEST(the_first_token_beyond_the_vocabulary_is_found_anywhere)
{
    enum { N = 200000 };
    static unsigned char bytes[4 * N + 1024];
    const int positions[] = {0, 1, 65535, 65536, 131071, N - 1};
    for (int width = 1; width <= 4; width *= 2)
        for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
            memset(bytes, 0, sizeof bytes);
            size_t start = width == 4 ? make_llmc(20240801, 7, N, N, 4, 0, bytes) - 4 * N : 0;
            for (int i = 0; i < N; i++)
                bytes[start + (size_t)(i * width)] = (unsigned char)(i % 100);
            bytes[start + (size_t)(positions[p] * width)] = 101;
            bytes[start + (size_t)((N - 1) * width)] = 103;
            token_file_t file;
            options_format_t format = width == 1 ? FORMAT_TEXT : width == 2 ? FORMAT_NANOGPT : FORMAT_LLMC;
            const char *path = write_named("w.bin", bytes, start + (size_t)(N * width));
            ck_assert_int_eq(token_file_open(path, format, &file), ZERO_OK);
            ck_assert_int_eq(token_file_check(&file, 0, N, 104), ZERO_OK);
            ck_assert_int_eq(token_file_check(&file, 0, positions[p], 101), ZERO_OK); /* only the range counts */
            char token[32], position[32];
            snprintf(token, sizeof token, "token %d ", positions[p] == N - 1 ? 103 : 101);
            snprintf(position, sizeof position, "position %d ", positions[p]);
            capture_begin();
            zero_status_t status = token_file_check(&file, 0, N, 101);
            expect_line(capture_end(), (const char *[]){token, position, "vocab_size is 101", path, NULL});
            ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
            token_file_close(&file);
        }
}
END_TEST

START_TEST(a_token_above_2_31_is_beyond_any_vocabulary)
{
    size_t n = make_llmc(20240801, 7, 2, 2, 4, 0, buffer);
    memset(buffer + 1024, 0xff, 4);
    token_file_t file;
    ck_assert_int_eq(token_file_open(write_named("big.bin", buffer, n), FORMAT_AUTO, &file), ZERO_OK);
    capture_begin();
    zero_status_t status = token_file_check(&file, 0, 2, INT32_MAX);
    expect_line(capture_end(), (const char *[]){"token 4294967295 at position 0", NULL});
    ck_assert_int_eq(status, ZERO_ERROR_FORMAT);
    token_file_close(&file);
}
END_TEST

/* Headers with random damage: each is refused in one line or read within its bounds (AddressSanitizer sees the rest).
 */
START_TEST(damaged_headers_never_crash)
{
    uint64_t state = 11;
    for (int round = 0; round < 2000; round++) {
        size_t n = make_llmc(round % 2 ? 20240520 : 20240801, round % 2 ? 1 : 7, 20, 20, round % 2 ? 2 : 4, 0, buffer);
        for (int flips = (int)(support_random(&state) % 4); flips >= 0; flips--)
            buffer[support_random(&state) % 12] ^= (unsigned char)(1u << (support_random(&state) % 8));
        if (support_random(&state) % 3 == 0)
            n = support_random(&state) % (n + 1);
        const char *path = write_named(support_random(&state) % 2 ? "f.bin" : "f.txt", buffer, n);
        options_format_t format = (options_format_t)(support_random(&state) % 5);
        token_file_t file;
        capture_begin();
        zero_status_t status = token_file_open(path, format, &file);
        if (status == ZERO_OK) {
            int32_t tokens[4096];
            ck_assert(file.n_tokens >= 0 && file.n_tokens <= 4096);
            token_file_read(&file, 0, file.n_tokens, tokens);
            status = token_file_check(&file, 0, file.n_tokens, 256);
            token_file_close(&file);
        }
        const char *said = capture_end();
        if (status == ZERO_OK)
            ck_assert_str_eq(said, "");
        else
            expect_line(said, (const char *[]){path, NULL});
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("token_files");
    TCase *c = tcase_create("files");
    tcase_add_checked_fixture(c, set_up, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, llmc_tokens_of_both_widths_are_read);
    tcase_add_test(c, nanogpt_and_text_are_read_and_recognised_by_name);
    tcase_add_test(c, a_path_that_is_no_file_is_a_usage_error);
    tcase_add_test(c, an_unreadable_file_is_a_usage_error);
    tcase_add_test(c, an_empty_file_is_a_format_error);
    tcase_add_test(c, an_odd_number_of_bytes_is_not_nanogpt);
    tcase_add_test(c, a_truncated_llmc_header_is_named);
    tcase_add_test(c, llmc_is_refused_where_the_file_is_something_else);
    tcase_add_test(c, an_llmc_count_that_disagrees_with_the_size_names_both);
    tcase_add_test(c, megatron_is_not_in_this_version);
    tcase_add_test(c, the_first_token_beyond_the_vocabulary_is_found_anywhere);
    tcase_add_test(c, a_token_above_2_31_is_beyond_any_vocabulary);
    tcase_add_test(c, damaged_headers_never_crash);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
