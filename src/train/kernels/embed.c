/* embed.c - token and position embedding on the CPU; copies and sums of blocks.
 *
 * Backward gathers instead of scattering. The positions of each token form a chain in ascending order; one thread sums
 * a row of the table along its chain, in fp32, and rounds it once. So no two threads write the same element, and the
 * sums are taken in the order of positions. Rows whose token does not occur are only zeroed.
 */
#include "train/kernels/kernels_cpu.h"

#include <string.h>

#include "train/kernels/vector_math.h"

#define NO_POSITION UINT32_MAX
#define COLUMN_TILE ((size_t)256) /* of a row, summed at a time */
#define ROW_GROUP 16              /* table rows that a thread takes at a time */

static zero_status_t check_tokens(const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    for (size_t row = 0; row < n_rows; ++row) {
        if (tokens[row] < 0 || (size_t)tokens[row] >= vocab_size)
            return zero_fail(ZERO_ERROR_ARGUMENT, "position %zu holds token %d, the vocabulary has %zu", row,
                             (int)tokens[row], vocab_size);
    }
    return ZERO_OK;
}

/* Returns a row's position, counted from where its document begins. */
static size_t position_of(size_t row, const int32_t *starts, size_t seq_len)
{
    return row % seq_len - (starts != NULL ? (size_t)starts[row] : 0);
}

static void add_row(float *out, zero_weight_t table, size_t row, size_t dim)
{
    float tile[COLUMN_TILE];
    for (size_t first = 0; first < dim; first += COLUMN_TILE) {
        size_t n = dim - first < COLUMN_TILE ? dim - first : COLUMN_TILE;
        zero_read_fp32(tile, table, row * dim + first, n);
        for (size_t i = 0; i < n; ++i)
            out[first + i] += tile[i];
    }
}

zero_status_t ZERO_MODEL_FN(embed)(zero_model_context_t *ctx, void *out, const int32_t *tokens, const int32_t *starts,
                                   zero_weight_t token_table, zero_weight_t position_table, size_t n_batch,
                                   size_t seq_len, size_t dim, size_t vocab_size)
{
    (void)ctx;
    size_t n_rows = n_batch * seq_len;
    ZERO_TRY(check_tokens(tokens, n_rows, vocab_size));
#pragma omp parallel for schedule(static) if (n_rows * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        float *y = (float *)out + row * dim;
        zero_read_fp32(y, token_table, (size_t)tokens[row] * dim, dim);
        if (position_table.data != NULL)
            add_row(y, position_table, position_of(row, starts, seq_len), dim);
    }
    return ZERO_OK;
}

size_t ZERO_MODEL_FN(embed_workspace)(const zero_model_limits_t *limits)
{
    return zero_scratch_bytes(limits->vocab_size * sizeof(uint32_t)) +
           zero_scratch_bytes(limits->n_rows * sizeof(uint32_t));
}

/* Writes the sum of the rows first, next[first], ... of dout to row `row` of the gradient: zeros if there are none. */
static void put_chain(zero_grad_t grad, size_t row, const float *dout, const uint32_t *next, uint32_t first, size_t dim)
{
    if (first == NO_POSITION && grad.accumulate)
        return;
    for (size_t column = 0; column < dim; column += COLUMN_TILE) {
        size_t n = dim - column < COLUMN_TILE ? dim - column : COLUMN_TILE;
        float sum[COLUMN_TILE] = {0};
        for (uint32_t position = first; position != NO_POSITION; position = next[position])
            for (size_t i = 0; i < n; ++i)
                sum[i] += dout[position * dim + column + i];
        zero_grad_put(grad, row * dim + column, sum, n);
    }
}

static zero_status_t backward_tokens(zero_scratch_t *scratch, zero_grad_t dtokens, const float *dout,
                                     const int32_t *tokens, size_t n_rows, size_t dim, size_t vocab_size)
{
    uint32_t *first; /* [vocab_size]: a token's first position */
    uint32_t *next;  /* [n_rows]: the next position of the same token */
    ZERO_TRY(zero_scratch_alloc(scratch, vocab_size * sizeof *first, &first));
    ZERO_TRY(zero_scratch_alloc(scratch, n_rows * sizeof *next, &next));
    for (size_t token = 0; token < vocab_size; ++token)
        first[token] = NO_POSITION;
    for (size_t row = n_rows; row-- > 0;) {
        next[row] = first[tokens[row]];
        first[tokens[row]] = (uint32_t)row;
    }
#pragma omp parallel for schedule(dynamic, ROW_GROUP)
    for (size_t token = 0; token < vocab_size; ++token)
        put_chain(dtokens, token, dout, next, first[token], dim);
    return ZERO_OK;
}

/* Adds up the rows of dout at position t of one sequence: row t or, with starts, one of every document that is longer.
 * Documents begin at the first row or, in a part of a sequence, before it. */
static void add_position(float *sum, const float *dout, const int32_t *starts, size_t t, size_t seq_len, size_t dim,
                         size_t column, size_t n)
{
    const size_t end = starts != NULL ? seq_len : t + 1, before = starts != NULL ? (size_t) - (int64_t)starts[0] : 0;
    for (size_t row = t > before ? t - before : 0; row < end; ++row) {
        if (position_of(row, starts, seq_len) != t)
            continue;
        for (size_t i = 0; i < n; ++i)
            sum[i] += dout[row * dim + column + i];
    }
}

/* Computes dpositions[t] = the sum of dout's rows at position t, in order. */
static void backward_positions(zero_grad_t dpositions, const float *dout, const int32_t *starts, size_t n_batch,
                               size_t seq_len, size_t n_positions, size_t dim)
{
#pragma omp parallel for schedule(static) if (n_batch * n_positions * dim >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t t = 0; t < n_positions; ++t) {
        for (size_t column = 0; column < dim; column += COLUMN_TILE) {
            size_t n = dim - column < COLUMN_TILE ? dim - column : COLUMN_TILE;
            float sum[COLUMN_TILE] = {0};
            for (size_t batch = 0; batch < n_batch; ++batch)
                add_position(sum, dout + batch * seq_len * dim, starts != NULL ? starts + batch * seq_len : NULL, t,
                             seq_len, dim, column, n);
            zero_grad_put(dpositions, t * dim + column, sum, n);
        }
    }
}

zero_status_t ZERO_MODEL_FN(embed_backward)(zero_model_context_t *ctx, zero_grad_t dtokens, zero_grad_t dpositions,
                                            const void *dout, const int32_t *tokens, const int32_t *starts,
                                            size_t n_batch, size_t seq_len, size_t n_positions, size_t dim,
                                            size_t vocab_size)
{
    zero_scratch_t scratch = zero_scratch_begin(ctx);
    size_t n_rows = n_batch * seq_len;
    if (n_rows >= NO_POSITION)
        return zero_fail(ZERO_ERROR_OVERFLOW, "%zu positions do not fit 32 bits", n_rows);
    ZERO_TRY(check_tokens(tokens, n_rows, vocab_size));
    if (dtokens.data != NULL)
        ZERO_TRY(backward_tokens(&scratch, dtokens, dout, tokens, n_rows, dim, vocab_size));
    if (dpositions.data != NULL)
        backward_positions(dpositions, dout, starts, n_batch, seq_len, n_positions, dim);
    return ZERO_OK;
}

/* ---- blocks ---- */

zero_status_t ZERO_MODEL_FN(sum_blocks)(zero_model_context_t *ctx, void *dst, size_t dst_stride,
                                        const zero_block_t *blocks, int n_blocks, size_t n_rows, size_t n_columns)
{
    (void)ctx;
#pragma omp parallel for schedule(static) if (n_rows * n_columns >= ZERO_MODEL_PARALLEL_MIN)
    for (size_t row = 0; row < n_rows; ++row) {
        float *sums = (float *)dst + row * dst_stride;
        memcpy(sums, (const float *)blocks[0].data + row * blocks[0].stride, n_columns * sizeof *sums);
        for (int b = 1; b < n_blocks; ++b) {
            const float *addends = (const float *)blocks[b].data + row * blocks[b].stride;
#pragma omp simd
            for (size_t i = 0; i < n_columns; ++i)
                sums[i] += addends[i];
        }
    }
    return ZERO_OK;
}
