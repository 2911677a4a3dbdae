/* test_embed.c - tests the embedding against plain fp64 loops: tables of every dtype, repeated tokens, rows that no
 * token uses.
 */
#include "tests/support/model_fixture.h"

typedef struct shape {
    size_t n_batch, seq_len, dim, vocab_size;
} shape_t;

/* More rows than a column tile's width; fewer tokens than rows of the table, and more. */
static const shape_t shapes[] = {{1, 1, 1, 1}, {3, 17, 36, 259}, {5, 40, 515, 11}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static zero_model_limits_t limits_of(shape_t s, zero_dtype_t dtype)
{
    return (zero_model_limits_t){.n_rows = s.n_batch * s.seq_len,
                                 .seq_len = 1,
                                 .max_linear = s.dim * s.vocab_size,
                                 .max_width = s.dim,
                                 .n_heads = 1,
                                 .head_dim = 1,
                                 .vocab_size = s.vocab_size,
                                 .dtype = dtype};
}

static int32_t *random_tokens(shape_t s)
{
    uint64_t seed = 1;
    int32_t *tokens = malloc(s.n_batch * s.seq_len * sizeof *tokens);
    ck_assert_ptr_nonnull(tokens);
    for (size_t i = 0; i < s.n_batch * s.seq_len; ++i)
        tokens[i] = (int32_t)(support_random(&seed) % s.vocab_size);
    return tokens;
}

/* Documents of random lengths from 1 to 9; every sequence begins with another part of one. */
static int32_t *random_starts(shape_t s)
{
    uint64_t seed = 7;
    int32_t *starts = malloc(s.n_batch * s.seq_len * sizeof *starts);
    ck_assert_ptr_nonnull(starts);
    for (size_t row = 0, left = 0; row < s.n_batch * s.seq_len; ++row) {
        size_t t = row % s.seq_len;
        bool begins = left == 0 || t == 0;
        left = left == 0 ? support_random(&seed) % 9 : left - 1;
        starts[row] = begins ? (int32_t)t : starts[row - 1];
    }
    return starts;
}

static size_t position_of(shape_t s, const int32_t *starts, size_t row)
{
    return row % s.seq_len - (starts ? (size_t)starts[row] : 0);
}

static void check_forward(int isa, shape_t s, zero_dtype_t dtype, bool with_positions, bool with_starts)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t table = array_normal(s.vocab_size * s.dim, dtype, 0.0, 1.0, 2);
    array_t positions = array_normal(s.seq_len * s.dim, dtype, 0.0, 1.0, 3);
    array_t out = array_poison(s.n_batch * s.seq_len * s.dim, ZERO_FP32);
    int32_t *tokens = random_tokens(s), *starts = with_starts ? random_starts(s) : NULL;
    zero_weight_t none = {.dtype = dtype};
    ck_assert_int_eq(f.kernels->embed(&f.ctx, out.data, tokens, starts, array_weight(&table),
                                      with_positions ? array_weight(&positions) : none, s.n_batch, s.seq_len, s.dim,
                                      s.vocab_size),
                     ZERO_OK);
    for (size_t row = 0; row < s.n_batch * s.seq_len; ++row)
        for (size_t i = 0; i < s.dim; ++i) {
            double want = table.values[(size_t)tokens[row] * s.dim + i];
            if (with_positions)
                want = fixture_round(want + positions.values[position_of(s, starts, row) * s.dim + i], ZERO_FP32);
            ck_assert(array_get(&out, row * s.dim + i) == want); /* one fp32 sum, exactly */
        }
    free(tokens), free(starts);
    array_free(&table), array_free(&positions), array_free(&out);
    fixture_close(&f);
}

START_TEST(forward_is_exact)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int flags = 0; flags < 4; ++flags)
                check_forward(_i, shapes[s], fixture_dtypes[d], flags & 1, flags & 2);
}
END_TEST

static void check_backward(int isa, shape_t s, zero_dtype_t dtype, bool accumulate, bool with_starts)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, dtype);
    if (!fixture_open(&f, isa, &limits))
        return;
    size_t n_rows = s.n_batch * s.seq_len;
    array_t dout = array_normal(n_rows * s.dim, ZERO_FP32, 0.0, 1.0, 4);
    array_t dtokens = array_grad_target(s.vocab_size * s.dim, dtype, accumulate, 5), dtokens2 = array_copy(&dtokens);
    array_t dpositions = array_grad_target(s.seq_len * s.dim, dtype, accumulate, 6);
    array_t dpositions2 = array_copy(&dpositions);
    int32_t *tokens = random_tokens(s), *starts = with_starts ? random_starts(s) : NULL;
    for (int run = 0; run < 2; ++run)
        ck_assert_int_eq(f.kernels->embed_backward(&f.ctx, array_grad(run == 0 ? &dtokens : &dtokens2, accumulate),
                                                   array_grad(run == 0 ? &dpositions : &dpositions2, accumulate),
                                                   dout.data, tokens, starts, s.n_batch, s.seq_len, s.seq_len, s.dim,
                                                   s.vocab_size),
                         ZERO_OK);
    for (size_t row = 0; row < n_rows; ++row)
        for (size_t i = 0; i < s.dim; ++i) {
            dtokens.values[(size_t)tokens[row] * s.dim + i] += dout.values[row * s.dim + i];
            dpositions.values[position_of(s, starts, row) * s.dim + i] += dout.values[row * s.dim + i];
        }
    /* At most 200 numbers are added one by one, with random signs; then one rounding to the dtype. */
    double bound = sqrt(200.0) * 0x1p-24 + fixture_unit(dtype);
    array_expect(&dtokens, dtokens.values, bound, "dtokens");
    array_expect(&dpositions, dpositions.values, bound, "dpositions");
    array_expect_same_bits(&dtokens, &dtokens2, "dtokens, run to run");
    array_expect_same_bits(&dpositions, &dpositions2, "dpositions, run to run");
    free(tokens), free(starts);
    array_free(&dout), array_free(&dtokens), array_free(&dtokens2), array_free(&dpositions), array_free(&dpositions2);
    fixture_close(&f);
}

START_TEST(backward_equals_fp64)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t d = 0; d < FIXTURE_N_DTYPES; ++d)
            for (int flags = 0; flags < 4; ++flags)
                check_backward(_i, shapes[s], fixture_dtypes[d], flags & 1, flags & 2);
}
END_TEST

/* Ranks that share a sequence have its positions, whichever rows are theirs. */
static void check_parts(int isa, shape_t s, size_t n_parts)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, isa, &limits))
        return;
    array_t table = array_normal(s.vocab_size * s.dim, ZERO_FP32, 0.0, 1.0, 2);
    array_t positions = array_normal(s.seq_len * s.dim, ZERO_FP32, 0.0, 1.0, 3);
    array_t dout = array_normal(s.n_batch * s.seq_len * s.dim, ZERO_FP32, 0.0, 1.0, 4);
    array_t dtokens = array_poison(s.vocab_size * s.dim, ZERO_FP32);
    array_t dpositions = array_grad_target(s.seq_len * s.dim, ZERO_FP32, true, 6);
    int32_t *tokens = random_tokens(s), *starts = random_starts(s);
    for (size_t part = 0; part < n_parts; ++part) {
        size_t first = s.seq_len * part / n_parts, n = s.seq_len * (part + 1) / n_parts - first;
        for (size_t b = 0; b < s.n_batch && n > 0; ++b) {
            size_t row = b * s.seq_len + first;
            int32_t *part_starts = malloc(n * sizeof *part_starts);
            array_t out = array_poison(n * s.dim, ZERO_FP32);
            for (size_t t = 0; t < n; ++t)
                part_starts[t] = starts[row + t] - (int32_t)first;
            ck_assert_int_eq(f.kernels->embed(&f.ctx, out.data, tokens + row, part_starts, array_weight(&table),
                                              array_weight(&positions), 1, n, s.dim, s.vocab_size),
                             ZERO_OK);
            for (size_t t = 0; t < n; ++t)
                for (size_t i = 0; i < s.dim; ++i)
                    ck_assert(array_get(&out, t * s.dim + i) ==
                              fixture_round(table.values[(size_t)tokens[row + t] * s.dim + i] +
                                                positions.values[position_of(s, starts, row + t) * s.dim + i],
                                            ZERO_FP32));
            ck_assert_int_eq(f.kernels->embed_backward(&f.ctx, array_grad(&dtokens, false),
                                                       array_grad(&dpositions, true), (float *)dout.data + row * s.dim,
                                                       tokens + row, part_starts, 1, n, s.seq_len, s.dim, s.vocab_size),
                             ZERO_OK);
            array_free(&out);
            free(part_starts);
        }
    }
    for (size_t row = 0; row < s.n_batch * s.seq_len; ++row)
        for (size_t i = 0; i < s.dim; ++i)
            dpositions.values[position_of(s, starts, row) * s.dim + i] += dout.values[row * s.dim + i];
    array_expect(&dpositions, dpositions.values, sqrt(200.0) * 0x1p-24, "dpositions of parts");
    free(tokens), free(starts);
    array_free(&table), array_free(&positions), array_free(&dout), array_free(&dtokens), array_free(&dpositions);
    fixture_close(&f);
}

START_TEST(parts_of_a_sequence_have_its_positions)
{
    for (size_t s = 0; s < N_SHAPES; ++s)
        for (size_t n_parts = 1; n_parts < 5; ++n_parts)
            check_parts(_i, shapes[s], n_parts);
}
END_TEST

/* ---- blocks ---- */

START_TEST(blocks_are_added_in_order)
{
    fixture_t f;
    zero_model_limits_t limits = limits_of((shape_t){1, 1, 1, 1}, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    static const size_t sizes[][2] = {{1, 1}, {7, 13}, {300, 65}};
    for (size_t c = 0; c < 3; ++c)
        for (int n_blocks = 1; n_blocks <= 5; n_blocks += 2) {
            size_t rows = sizes[c][0], columns = sizes[c][1], stride = columns + 3;
            array_t blocks[5] = {{0}}, out = array_poison(rows * (columns + 5), ZERO_FP32);
            zero_block_t list[5];
            for (int b = 0; b < n_blocks; ++b) {
                blocks[b] = array_normal(rows * (stride + (size_t)b), ZERO_FP32, 0.0, 1.0, (uint64_t)b + 20);
                list[b] = (zero_block_t){blocks[b].data, stride + (size_t)b};
            }
            ck_assert_int_eq(f.kernels->sum_blocks(&f.ctx, out.data, columns + 5, list, n_blocks, rows, columns),
                             ZERO_OK);
            for (size_t row = 0; row < rows; ++row)
                for (size_t i = 0; i < columns; ++i) {
                    float want = (float)blocks[0].values[row * stride + i];
                    for (int b = 1; b < n_blocks; ++b)
                        want += (float)blocks[b].values[row * (stride + (size_t)b) + i];
                    ck_assert((float)array_get(&out, row * (columns + 5) + i) == want);
                }
            for (int b = 0; b < n_blocks; ++b)
                array_free(&blocks[b]);
            array_free(&out);
        }
    fixture_close(&f);
}
END_TEST

START_TEST(tokens_beyond_the_vocabulary_are_refused)
{
    const shape_t s = {1, 2, 4, 3};
    fixture_t f;
    zero_model_limits_t limits = limits_of(s, ZERO_FP32);
    if (!fixture_open(&f, _i, &limits))
        return;
    array_t table = array_normal(12, ZERO_FP32, 0.0, 1.0, 7), dout = array_normal(8, ZERO_FP32, 0.0, 1.0, 8);
    array_t dtokens = array_poison(12, ZERO_FP32), out = array_poison(8, ZERO_FP32);
    const int32_t beyond[] = {0, 3}, negative[] = {-1, 0};
    zero_grad_t none = {0};
    ck_assert_int_eq(
        f.kernels->embed_backward(&f.ctx, array_grad(&dtokens, false), none, dout.data, beyond, NULL, 1, 2, 2, 4, 3),
        ZERO_ERROR_ARGUMENT);
    const int32_t *const bad[] = {negative, beyond};
    for (int i = 0; i < 2; ++i)
        ck_assert_int_eq(
            f.kernels->embed(&f.ctx, out.data, bad[i], NULL, array_weight(&table), (zero_weight_t){0}, 1, 2, 4, 3),
            ZERO_ERROR_ARGUMENT);
    array_free(&table), array_free(&dout), array_free(&dtokens), array_free(&out);
    fixture_close(&f);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_add_loop_test(tests, forward_is_exact, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, backward_equals_fp64, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, parts_of_a_sequence_have_its_positions, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, blocks_are_added_in_order, 0, FIXTURE_N_ISAS);
    tcase_add_loop_test(tests, tokens_beyond_the_vocabulary_are_refused, 0, FIXTURE_N_ISAS);
}

int main(void)
{
    return fixture_main("embed", add_tests);
}
