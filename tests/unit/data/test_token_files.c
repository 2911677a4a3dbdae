/* test_token_files.c - token files: what is written is read, and what is wrong is one line. */
#include "tests/support/stderr_capture.h"
#include "tests/support/support.h"
#include "train/data/token_files.h"

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

/* Tokens of a file that stays as it is, against the largest vocabulary there is. */
static void must_read(const token_file_t *file, int64_t first, int64_t n_tokens, int32_t *out)
{
    token_fault_t fault = {0};
    ck_assert_int_eq(token_file_read(file, first, n_tokens, INT32_MAX, out, &fault), ZERO_OK);
    ck_assert_int_eq(fault.status, ZERO_OK);
}

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
            must_read(&file, 7, 90, tokens);
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
    must_read(&file, 0, 3, tokens);
    ck_assert(tokens[0] == 1 && tokens[1] == 65535 && tokens[2] == 0x1234);
    token_file_close(&file);
    ck_assert_int_eq(token_file_open(write_named("x.txt", bytes, 6), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 6);
    must_read(&file, 0, 6, tokens);
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

/* As uint16 they would be other tokens, all of them in the vocabulary. */
START_TEST(uint32_tokens_without_a_header_are_refused_or_read_as_told)
{
    static const uint32_t largest[] = {50256, 128255, 1048575};
    token_file_t file;
    int32_t tokens[3];
    for (size_t v = 0; v < 3; v++) {
        uint32_t wide[1500];
        for (uint32_t i = 0; i < 1500; i++)
            wide[i] = i < 2 ? i : (i * 2654435761u) % (largest[v] + 1);
        wide[2] = largest[v];
        const char *path = write_named("wide.bin", wide, sizeof wide);
        expect_refusal(path, FORMAT_AUTO, ZERO_ERROR_FORMAT, "looks like uint32 tokens");
        ck_assert_int_eq(token_file_open(path, FORMAT_UINT32, &file), ZERO_OK);
        ck_assert(file.n_tokens == 1500 && file.token_bytes == 4);
        must_read(&file, 0, 3, tokens);
        ck_assert(tokens[0] == 0 && tokens[1] == 1 && tokens[2] == (int32_t)largest[v]);
        token_file_close(&file);
        ck_assert_int_eq(token_file_open(path, FORMAT_NANOGPT, &file), ZERO_OK); /* the user knows */
        ck_assert_int_eq(file.n_tokens, 3000);
        token_file_close(&file);
    }
    expect_refusal(write_named("wide.bin", "abcdef", 6), FORMAT_UINT32, ZERO_ERROR_FORMAT, "6 bytes");
}
END_TEST

/* Of bytes, of a vocabulary of 65536, and of the four letters of DNA. */
START_TEST(uint16_tokens_are_not_taken_for_uint32)
{
    static const uint32_t sizes[] = {256, 65536, 4};
    for (size_t v = 0; v < 3; v++) {
        uint16_t narrow[3000];
        token_file_t file;
        for (uint32_t i = 0; i < 3000; i++)
            narrow[i] = (uint16_t)((i * 2654435761u >> 7) % sizes[v]);
        ck_assert_int_eq(token_file_open(write_named("narrow.bin", narrow, sizeof narrow), FORMAT_AUTO, &file),
                         ZERO_OK);
        ck_assert(file.n_tokens == 3000 && file.token_bytes == 2);
        token_file_close(&file);
    }
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
    expect_refusal(write_named("x.bin", "hello", 5), FORMAT_LLMC, ZERO_ERROR_FORMAT, "not an llm.c token file");
    expect_refusal(write_named("x.bin", "h", 1), FORMAT_LLMC, ZERO_ERROR_FORMAT, "not an llm.c token file");
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

/* ---- Megatron-LM's pairs ---- */

enum { PAIR_TOKENS = 12 };

/* The entries of an index, by the format's description: what a test does not set is that of sound files. */
typedef struct pair {
    int type;                    /* its code */
    int token_bytes;             /* of that type */
    int n_sequences;             /* at most 8 */
    int32_t sizes[8];            /* tokens */
    int64_t tokens[PAIR_TOKENS]; /* one sequence after another */
    int64_t pointers[8];
    int n_bounds;
    int64_t bounds[9];
    uint64_t version, header_n_sequences, header_n_bounds;
} pair_t;

/* Returns four sequences, the second of them empty, in two documents: PAIR_TOKENS tokens, token i being (i * 37) % 100.
 */
static pair_t plain_pair(int type, int token_bytes)
{
    pair_t pair = {.type = type,
                   .token_bytes = token_bytes,
                   .n_sequences = 4,
                   .sizes = {5, 0, 1, 6},
                   .n_bounds = 3,
                   .bounds = {0, 2, 4},
                   .version = 1,
                   .header_n_sequences = 4,
                   .header_n_bounds = 3};
    for (int i = 0, next = 0; i < pair.n_sequences; next += pair.sizes[i++])
        pair.pointers[i] = next * token_bytes;
    for (int i = 0; i < PAIR_TOKENS; i++)
        pair.tokens[i] = (i * 37) % 100;
    return pair;
}

static size_t put(unsigned char *out, size_t at, const void *value, size_t n_bytes)
{
    memcpy(out + at, value, n_bytes); /* the tests run on little-endian machines */
    return at + n_bytes;
}

static size_t make_index(const pair_t *pair, unsigned char *out)
{
    unsigned char type = (unsigned char)pair->type;
    size_t n = put(out, 0, "MMIDIDX\0\0", 9);
    n = put(out, n, &pair->version, 8);
    n = put(out, n, &type, 1);
    n = put(out, n, &pair->header_n_sequences, 8);
    n = put(out, n, &pair->header_n_bounds, 8);
    ck_assert_uint_eq(n, 34);
    n = put(out, n, pair->sizes, 4 * (size_t)pair->n_sequences);
    n = put(out, n, pair->pointers, 8 * (size_t)pair->n_sequences);
    return put(out, n, pair->bounds, 8 * (size_t)pair->n_bounds);
}

/* NAME.bin and NAME.idx. */
static void write_pair(const char *name, const pair_t *pair)
{
    unsigned char bytes[1024];
    char file[64];
    size_t n = 0;
    for (int i = 0; i < PAIR_TOKENS; i++)
        n = put(bytes, n, &pair->tokens[i], (size_t)pair->token_bytes);
    snprintf(file, sizeof file, "%s.bin", name);
    write_named(file, bytes, n);
    n = make_index(pair, bytes);
    snprintf(file, sizeof file, "%s.idx", name);
    write_named(file, bytes, n);
}

static const struct {
    int type, token_bytes;
    bool is_signed;
} integers[] = {{1, 1, false}, {2, 1, true}, {3, 2, true}, {4, 4, true}, {5, 8, true}, {8, 2, false}};
enum { N_INTEGERS = sizeof integers / sizeof integers[0] };

START_TEST(megatron_tokens_of_every_integer_type_are_one_stream_by_any_name_of_the_pair)
{
    const char *const names[] = {"pair", "pair.bin", "pair.idx"};
    for (int t = 0; t < N_INTEGERS; t++)
        for (int name = 0; name < 3; name++)
            for (int asked = 0; asked < 2; asked++) {
                pair_t pair = plain_pair(integers[t].type, integers[t].token_bytes);
                write_pair("pair", &pair);
                token_file_t file;
                ck_assert_int_eq(
                    token_file_open(in_directory(names[name]), asked ? FORMAT_MEGATRON : FORMAT_AUTO, &file), ZERO_OK);
                ck_assert_int_eq(file.format, FORMAT_MEGATRON);
                ck_assert_int_eq(file.n_tokens, PAIR_TOKENS);
                ck_assert_int_eq(file.token_bytes, integers[t].token_bytes);
                ck_assert_int_eq(token_file_check(&file, 0, PAIR_TOKENS, 100), ZERO_OK);
                int32_t tokens[PAIR_TOKENS];
                must_read(&file, 3, PAIR_TOKENS - 3, tokens);
                for (int i = 3; i < PAIR_TOKENS; i++)
                    ck_assert_int_eq(tokens[i - 3], (i * 37) % 100);
                token_file_close(&file);
            }
}
END_TEST

/* Reading lets no token through that checking would not: 2^32 + 5 is not 5. Token 7 may be bad. */
static void expect_read(const token_file_t *file, int64_t vocab_size, bool is_bad, int64_t bad)
{
    int32_t tokens[PAIR_TOKENS] = {0};
    token_fault_t fault = {0};
    capture_begin();
    zero_status_t status = token_file_read(file, 0, PAIR_TOKENS, vocab_size, tokens, &fault);
    ck_assert_str_eq(capture_end(), "");
    ck_assert_int_eq(status, is_bad ? ZERO_ERROR_FORMAT : ZERO_OK);
    ck_assert_int_eq(fault.status, status);
    if (is_bad)
        ck_assert(fault.position == 7 && fault.token == bad);
    else
        ck_assert_int_eq(tokens[7], bad);
}

/* In a vocabulary that every positive number of the type is in, and in one of 100. */
START_TEST(negative_and_too_large_megatron_tokens_are_found)
{
    const int64_t bad[] = {-1,
                           -100,
                           INT8_MIN,
                           INT16_MIN,
                           INT32_MIN,
                           INT64_MIN,
                           100,
                           INT8_MAX,
                           INT16_MAX,
                           INT32_MAX,
                           (INT64_C(1) << 32) + 5,
                           INT64_MAX};
    for (int t = 0; t < N_INTEGERS; t++)
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            int bits = 8 * integers[t].token_bytes - integers[t].is_signed;
            int64_t most = bits >= 63 ? INT64_MAX : (INT64_C(1) << bits) - 1;
            if (bad[b] > most || bad[b] < (integers[t].is_signed ? -most - 1 : 0))
                continue; /* this type has no such number */
            pair_t pair = plain_pair(integers[t].type, integers[t].token_bytes);
            pair.tokens[7] = bad[b];
            write_pair("bad", &pair);
            token_file_t file;
            ck_assert_int_eq(token_file_open(in_directory("bad"), FORMAT_AUTO, &file), ZERO_OK);
            const int64_t vocabularies[] = {100, INT32_MAX};
            for (int v = 0; v < 2; v++) {
                bool is_bad = bad[b] < 0 || bad[b] >= vocabularies[v];
                char token[64];
                snprintf(token, sizeof token, "token %lld at position 7 ", (long long)bad[b]);
                ck_assert_int_eq(token_file_check(&file, 0, 7, vocabularies[v]), ZERO_OK);
                capture_begin();
                zero_status_t status = token_file_check(&file, 0, PAIR_TOKENS, vocabularies[v]);
                const char *said = capture_end();
                ck_assert_int_eq(status, is_bad ? ZERO_ERROR_FORMAT : ZERO_OK);
                if (is_bad)
                    expect_line(said, (const char *[]){token, "bad.bin", "beyond the vocabulary", NULL});
                expect_read(&file, vocabularies[v], is_bad, bad[b]);
            }
            token_file_close(&file);
        }
}
END_TEST

static void expect_pair_refusal(const pair_t *pair, zero_status_t want, const char *fragment)
{
    write_pair("p", pair);
    expect_refusal(in_directory("p.idx"), FORMAT_MEGATRON, want, fragment);
    expect_refusal(in_directory("p.idx"), FORMAT_AUTO, want, fragment);
}

START_TEST(a_wrong_megatron_index_is_refused_with_the_reason)
{
    const struct {
        int64_t offset, value; /* of a field of 8 bytes within pair_t, and what it is then */
        const char *says;
    } cases[] = {
        {offsetof(pair_t, version), 2, "version 2 is unknown"},
        {offsetof(pair_t, header_n_sequences), 5, "truncated to 106"},
        {offsetof(pair_t, header_n_sequences), 3, "but the file has 106"},
        {offsetof(pair_t, header_n_sequences), INT64_C(1) << 62, "fit into no file"},
        {offsetof(pair_t, header_n_sequences), -1, "fit into no file"},
        {offsetof(pair_t, header_n_bounds), 4, "truncated to 106"},
        {offsetof(pair_t, header_n_bounds), 2, "but the file has 106"},
        {offsetof(pair_t, header_n_bounds), INT64_C(1) << 61, "fit into no file"},
        {offsetof(pair_t, header_n_bounds), INT64_MIN, "fit into no file"},
        {offsetof(pair_t, pointers[0]), 2, "sequence 0 begins at byte 2 and not at 0"},
        {offsetof(pair_t, pointers[2]), 12, "sequence 2 begins at byte 12 and not at 10"},
        {offsetof(pair_t, pointers[3]), 0, "sequence 3 begins at byte 0 and not at 12"},
        {offsetof(pair_t, pointers[3]), 25, "sequence 3 begins at byte 25, but"},
        {offsetof(pair_t, pointers[3]), INT64_MAX, "has 24 bytes"},
        {offsetof(pair_t, pointers[1]), -2, "sequence 1 begins at byte -2"},
        {offsetof(pair_t, bounds[0]), -1, "document bound 0 is sequence -1"},
        {offsetof(pair_t, bounds[2]), 5, "document bound 2 is sequence 5"},
        {offsetof(pair_t, bounds[2]), 1, "document bound 2 is sequence 1, not one of 2 to 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair_t pair = plain_pair(8, 2);
        memcpy((char *)&pair + cases[i].offset, &cases[i].value, 8);
        expect_pair_refusal(&pair, ZERO_ERROR_FORMAT, cases[i].says);
    }
    const struct {
        int sequence;
        int32_t size;
        const char *says;
    } sizes[] = {{3, 5, "22 bytes"},
                 {3, 7, "ends at byte 26"},
                 {3, -6, "negative number of tokens, -6"},
                 {3, INT32_MAX, "ends at byte 4294967306"},
                 {1, 1, "sequence 2 begins at byte 10 and not at 12"}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        pair_t pair = plain_pair(8, 2);
        pair.sizes[sizes[i].sequence] = sizes[i].size;
        expect_pair_refusal(&pair, ZERO_ERROR_FORMAT, sizes[i].says);
    }
    const struct {
        int type;
        const char *says;
    } types[] = {{0, "type 0"}, {9, "type 9"}, {255, "type 255"}, {6, "float64"}, {7, "float32"}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        pair_t pair = plain_pair(types[i].type, 2);
        expect_pair_refusal(&pair, ZERO_ERROR_FORMAT, types[i].says);
    }
    pair_t empty = plain_pair(8, 2);
    empty.n_sequences = empty.n_bounds = 0;
    empty.header_n_sequences = empty.header_n_bounds = 0;
    expect_pair_refusal(&empty, ZERO_ERROR_FORMAT, "names no sequences");
}
END_TEST

START_TEST(a_megatron_index_cut_anywhere_is_refused)
{
    pair_t pair = plain_pair(4, 4);
    write_pair("cut", &pair);
    size_t n = make_index(&pair, buffer);
    ck_assert_uint_eq(n, 34 + 4 * 12 + 3 * 8);
    for (size_t cut = 0; cut < n; cut++)
        expect_refusal(write_named("cut.idx", buffer, cut), FORMAT_AUTO, ZERO_ERROR_FORMAT,
                       cut == 0 ? "is empty" : "truncated");
    memset(buffer + n, 0, 4); /* a mode for each sequence */
    expect_refusal(write_named("cut.idx", buffer, n + 4), FORMAT_AUTO, ZERO_ERROR_FORMAT, "multimodal");
    expect_refusal(write_named("cut.idx", buffer, n + 1), FORMAT_AUTO, ZERO_ERROR_FORMAT, "but the file has 107");
    buffer[3] = 'x';
    expect_refusal(write_named("cut.idx", buffer, n), FORMAT_AUTO, ZERO_ERROR_FORMAT, "not a Megatron index");
}
END_TEST

START_TEST(a_pair_of_which_a_file_is_missing_names_it)
{
    expect_refusal(write_named("alone.bin", "abcd", 4), FORMAT_MEGATRON, ZERO_ERROR_USAGE, "alone.idx': No such file");
    expect_refusal(in_directory("alone"), FORMAT_MEGATRON, ZERO_ERROR_USAGE, "alone.idx': No such file");
    expect_refusal(in_directory("absent"), FORMAT_MEGATRON, ZERO_ERROR_USAGE, "absent.bin': No such file");
    pair_t pair = plain_pair(8, 2);
    write_pair("q", &pair);
    char bin[4096];
    snprintf(bin, sizeof bin, "%s", in_directory("q.bin"));
    ck_assert_int_eq(remove(bin), 0);
    expect_refusal(in_directory("q"), FORMAT_AUTO, ZERO_ERROR_USAGE, "q.bin': No such file");
    expect_refusal(write_named("q.bin", "", 0), FORMAT_AUTO, ZERO_ERROR_FORMAT, "is empty");
}
END_TEST

/* A format that is set in the configuration holds, whatever file is beside this one. */
START_TEST(an_index_beside_a_file_matters_only_for_format_auto)
{
    pair_t pair = plain_pair(4, 4);
    write_pair("both", &pair);
    token_file_t file;
    ck_assert_int_eq(token_file_open(in_directory("both.bin"), FORMAT_NANOGPT, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 2 * PAIR_TOKENS);
    token_file_close(&file);
    ck_assert_int_eq(token_file_open(in_directory("both.idx"), FORMAT_TEXT, &file), ZERO_OK);
    ck_assert_int_eq(file.n_tokens, 106);
    token_file_close(&file);
    ck_assert_int_eq(token_file_open(write_named("both", "text", 4), FORMAT_AUTO, &file), ZERO_OK);
    ck_assert_int_eq(file.format, FORMAT_TEXT);
    token_file_close(&file);
}
END_TEST

START_TEST(damaged_megatron_indices_never_crash)
{
    uint64_t state = 12;
    for (int round = 0; round < 4000; round++) {
        int t = round % N_INTEGERS;
        pair_t pair = plain_pair(integers[t].type, integers[t].token_bytes);
        write_pair("f", &pair);
        size_t n = make_index(&pair, buffer);
        for (int flips = (int)(support_random(&state) % 3); flips >= 0; flips--)
            buffer[support_random(&state) % n] ^= (unsigned char)(1u << (support_random(&state) % 8));
        if (support_random(&state) % 4 == 0)
            n = support_random(&state) % (n + 1);
        const char *path = write_named("f.idx", buffer, n);
        token_file_t file;
        capture_begin();
        zero_status_t status = token_file_open(path, FORMAT_AUTO, &file);
        if (status == ZERO_OK) {
            int32_t tokens[8 * PAIR_TOKENS];
            ck_assert(file.n_tokens >= 0 && file.n_tokens <= 8 * PAIR_TOKENS);
            must_read(&file, 0, file.n_tokens, tokens);
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

/* For each width, the first token beyond the vocabulary in a long file, at any position. */
START_TEST(the_first_token_beyond_the_vocabulary_is_found_anywhere)
{
    enum { N = 200000 };
    static unsigned char bytes[4 * N + 1024];
    static int32_t tokens[N];
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
            must_read(&file, 0, N, tokens);
            for (int i = 0; i < N - 1; i++)
                ck_assert_int_eq(tokens[i], i == positions[p] ? 101 : i % 100);
            ck_assert_int_eq(tokens[N - 1], 103);
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

/* Headers with random damage: each is refused in one line or read within its bounds (AddressSanitizer checks that). */
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
            must_read(&file, 0, file.n_tokens, tokens);
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
    tcase_add_test(c, uint32_tokens_without_a_header_are_refused_or_read_as_told);
    tcase_add_test(c, uint16_tokens_are_not_taken_for_uint32);
    tcase_add_test(c, a_truncated_llmc_header_is_named);
    tcase_add_test(c, llmc_is_refused_where_the_file_is_something_else);
    tcase_add_test(c, an_llmc_count_that_disagrees_with_the_size_names_both);
    tcase_add_test(c, megatron_tokens_of_every_integer_type_are_one_stream_by_any_name_of_the_pair);
    tcase_add_test(c, negative_and_too_large_megatron_tokens_are_found);
    tcase_add_test(c, a_wrong_megatron_index_is_refused_with_the_reason);
    tcase_add_test(c, a_megatron_index_cut_anywhere_is_refused);
    tcase_add_test(c, a_pair_of_which_a_file_is_missing_names_it);
    tcase_add_test(c, an_index_beside_a_file_matters_only_for_format_auto);
    tcase_add_test(c, damaged_megatron_indices_never_crash);
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
