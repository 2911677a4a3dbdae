/* test_pairs.c - pairs of documents in sequences: every pair once an epoch, whole and side by side, whichever rank
 * reads it; what is cut off or left out where a pair is longer than a sequence; and headers that cannot be.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/support/scratch.h"
#include "tests/support/support.h"
#include "train/data/data.h"
#include "train/data/token_format.h"

enum { N_PAIRS = 50, MOST = 24, MAX_TOKENS = 2 * N_PAIRS * MOST, SEQ_LEN = 32 };

/* Token i of a file is i mod 251; of a document the tokens behind its prompt count. */
typedef struct content {
    int n_tokens, lengths[2 * N_PAIRS], prompts[2 * N_PAIRS], begins[2 * N_PAIRS];
    unsigned char bytes[64 + MAX_TOKENS + 8 + 16 * N_PAIRS + MAX_TOKENS / 8 + 1];
    size_t n_bytes;
} content_t;

static void put(unsigned char *at, uint64_t number, int width)
{
    for (int i = 0; i < width; i++)
        at[i] = (unsigned char)(number >> 8 * i);
}

static void make(content_t *c, int n_pairs, uint64_t seed)
{
    *c = (content_t){0};
    for (int d = 0; d < 2 * n_pairs; d++) {
        c->lengths[d] = 1 + (int)(support_random(&seed) % MOST);
        c->prompts[d] = (int)(support_random(&seed) % (uint64_t)c->lengths[d]);
        c->begins[d] = c->n_tokens;
        c->n_tokens += c->lengths[d];
    }
    unsigned char *head = c->bytes, *begins = head + 64 + (c->n_tokens + 7) / 8 * 8, *mask = begins + 16 * n_pairs;
    memcpy(head, "ZEROTOK", 8);
    put(head + 8, 1, 4), put(head + 12, 1, 4), put(head + 16, (uint64_t)c->n_tokens, 8), put(head + 24, 256, 8);
    put(head + 40, 2 * (uint64_t)n_pairs, 8), put(head + 48, 1, 4), put(head + 52, 1, 4);
    for (int i = 0; i < c->n_tokens; i++)
        head[64 + i] = (unsigned char)(i % 251);
    for (int d = 0; d < 2 * n_pairs; d++) {
        put(begins + 8 * d, (uint64_t)c->begins[d], 8);
        for (int i = c->begins[d] + c->prompts[d]; i < c->begins[d] + c->lengths[d]; i++)
            mask[i / 8] |= (unsigned char)(1 << i % 8);
    }
    c->n_bytes = (size_t)(mask - head) + (size_t)(c->n_tokens + 7) / 8;
}

/* Finds how many positions each document of a pair has: neither less than half, if it wants that. Returns whether the
 * pair is in the data: not if a document predicts no token, or none of its answer once it is truncated. */
static bool wanted(const content_t *c, int pair, bool drop, int given[2])
{
    const int a = c->lengths[2 * pair] - 1, b = c->lengths[2 * pair + 1] - 1;
    given[0] = a, given[1] = b;
    if (a < 1 || b < 1 || (drop && a + b > SEQ_LEN))
        return false;
    while (given[0] + given[1] > SEQ_LEN) /* a token at a time off the longer one */
        given[given[0] > given[1] ? 0 : 1]--;
    return given[0] >= c->prompts[2 * pair] && given[1] >= c->prompts[2 * pair + 1];
}

/* Finds the pair whose first document has these inputs, by where it begins: the numbers of a file are periodic. */
static int find_pair(const content_t *c, int n_pairs, int32_t first, int32_t second, const int n[2], const bool *seen,
                     bool drop)
{
    for (int pair = 0; pair < n_pairs; pair++) {
        int given[2];
        if (!seen[pair] && wanted(c, pair, drop, given) && c->begins[2 * pair] % 251 == first &&
            c->begins[2 * pair + 1] % 251 == second && given[0] == n[0] && given[1] == n[1])
            return pair;
    }
    return -1;
}

static void check_document(const content_t *c, int d, int n, const int32_t *inputs, const int32_t *targets,
                           const int32_t *starts, int at)
{
    for (int t = 0; t < n; t++) {
        const bool counts = t + 1 >= c->prompts[d];
        ck_assert_int_eq(inputs[t], (c->begins[d] + t) % 251);
        ck_assert_int_eq(targets[t], counts ? (c->begins[d] + t + 1) % 251 : DATA_NO_TARGET);
        ck_assert_int_eq(starts[t], at);
    }
}

/* Reads an epoch's batches of this rank; marks what it has seen. */
static int64_t read_rank(const content_t *c, int n_pairs, const data_spec_t *spec, bool *seen)
{
    data_t *data;
    const int32_t *inputs, *targets;
    int64_t n_counted = 0;
    ck_assert_int_eq(data_open(spec, &data), ZERO_OK);
    const int64_t n_steps = data_n_sequences(data) / spec->global_batch;
    const int micro_steps = (int)(spec->global_batch / spec->world_size / spec->micro_batch);
    for (int64_t step = 0; step < n_steps; step++)
        for (int k = 0; k < micro_steps; k++) {
            ck_assert_int_eq(data_batch(data, step, k, &inputs, &targets), ZERO_OK);
            const int32_t *begins = data_documents(data), *starts = data_starts(data);
            const int n_rows = (int)spec->micro_batch * SEQ_LEN;
            int i = 0, end = 0;
            for (; begins[i] < n_rows; i += 2) {
                const int row = begins[i], sequence = row / SEQ_LEN, second = begins[i + 1];
                ck_assert(row == (row % SEQ_LEN == 0 ? row : end) && second / SEQ_LEN == sequence);
                int n[2] = {second - row, 0};
                while (second + n[1] < begins[i + 2] && starts[second + n[1]] == second % SEQ_LEN)
                    n[1]++;
                const int pair = find_pair(c, n_pairs, inputs[row], inputs[second], n, seen, spec->drop_long);
                ck_assert_int_ge(pair, 0);
                seen[pair] = true;
                check_document(c, 2 * pair, n[0], inputs + row, targets + row, starts + row, row % SEQ_LEN);
                check_document(c, 2 * pair + 1, n[1], inputs + second, targets + second, starts + second,
                               second % SEQ_LEN);
                end = second + n[1];
            }
            ck_assert_int_eq(begins[i], n_rows);
            if (k == 0)
                n_counted += data_n_counted(data);
        }
    data_close(data);
    return n_counted;
}

/* Micro-batches of one or all sequences of a rank, on 1 to 3 ranks; a global batch is the epoch. */
START_TEST(every_pair_is_read_once_whole_and_side_by_side)
{
    static content_t c;
    uint64_t random = 5;
    for (int i = 0; i < 48; i++) {
        const int n_pairs = 1 + (int)(support_random(&random) % N_PAIRS), n_ranks = 1 + i % 3;
        const char *path = path_of("pairs.tokens");
        bool seen[N_PAIRS] = {0};
        int given[2];
        int64_t n_counted = 0, n_wanted = 0;
        make(&c, n_pairs, support_random(&random));
        support_write_file(path, c.bytes, c.n_bytes);
        data_spec_t spec = {.paths = path,
                            .vocab_size = 256,
                            .seq_len = SEQ_LEN,
                            .global_batch = 1,
                            .micro_batch = 1,
                            .world_size = 1,
                            .packing = i % 2 ? PACKING_FIT : PACKING_PAD,
                            .pairs = true,
                            .drop_long = i % 4 < 2,
                            .seed = (uint64_t)i};
        data_t *data = NULL;
        for (int pair = 0; pair < n_pairs; pair++)
            n_wanted += wanted(&c, pair, spec.drop_long, given);
        if (n_wanted == 0)
            continue;
        ck_assert_int_eq(data_open(&spec, &data), ZERO_OK);
        const int64_t n = data_n_sequences(data);
        data_close(data);
        ck_assert(spec.packing == PACKING_FIT ? n <= n_wanted : n == n_wanted);
        if (n % n_ranks != 0)
            continue;
        spec.global_batch = n, spec.world_size = n_ranks, spec.micro_batch = i % 5 ? n / n_ranks : 1;
        spec.shuffle = i % 3 == 0;
        for (spec.rank = 0; spec.rank < n_ranks; spec.rank++)
            n_counted = read_rank(&c, n_pairs, &spec, seen);
        ck_assert_int_eq(n_counted, n_wanted);
        for (int pair = 0; pair < n_pairs; pair++)
            ck_assert(seen[pair] == wanted(&c, pair, spec.drop_long, given));
    }
}
END_TEST

/* An odd number of documents; pairs without a mask. */
START_TEST(headers_of_pairs_that_cannot_be_are_refused)
{
    static content_t c;
    token_header_t header;
    make(&c, 3, 1);
    ck_assert_int_eq(token_header_read("x", c.bytes, c.n_bytes, &header), ZERO_OK);
    ck_assert(header.has_pairs);
    put(c.bytes + 40, 5, 8);
    ck_assert_int_eq(token_header_read("x", c.bytes, c.n_bytes - 8, &header), ZERO_ERROR_FORMAT);
    make(&c, 3, 1);
    put(c.bytes + 48, 0, 4);
    ck_assert_int_eq(token_header_read("x", c.bytes, c.n_bytes - (size_t)(c.n_tokens + 7) / 8, &header),
                     ZERO_ERROR_FORMAT);
    make(&c, 3, 1);
    put(c.bytes + 52, 2, 4);
    ck_assert_int_eq(token_header_read("x", c.bytes, c.n_bytes, &header), ZERO_ERROR_FORMAT);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pairs");
    TCase *c = tcase_create("data");
    tcase_set_timeout(c, 60);
    tcase_add_unchecked_fixture(c, scratch_open, scratch_close);
    tcase_add_test(c, every_pair_is_read_once_whole_and_side_by_side);
    tcase_add_test(c, headers_of_pairs_that_cannot_be_are_refused);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return support_main(suite());
}
