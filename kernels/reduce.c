/* reduce.c - gradient slices added in order, and their norm, on the CPU.
 *
 * Threads share the chunks (ZERO_SUM_CHUNK elements). A chunk is processed in rows, small enough that a row of sums
 * stays in the first-level cache: slice after slice is added to it, then it is written out and its squares are added to
 * the norm. So gradients are read only once even if the norm is wanted, and no bit depends on the threads. Called
 * through the table.
 */
#include "kernels/shard_isa.h"
#include "kernels/step_math.h"

#define ROW ((size_t)1024)
_Static_assert(ROW % ZERO_NORM_CELL == 0 && ZERO_SUM_CHUNK % ROW == 0, "rows have whole cells, chunks whole rows");

/* ---- The norm ------------------------------------------------------------------------------------------------------
 */

#define GROUP 4 /* elements whose squares are added one after another */
#define N_GROUPS (ZERO_NORM_CELL / GROUP)

/* Adds the cells of a row of n numbers to the norm. The row has room for whole cells. */
static void add_row_to_norm(zero_norm_t *norm, float *restrict row, size_t n)
{
    float groups[ROW / GROUP];
    const size_t n_cells = (n + ZERO_NORM_CELL - 1) / ZERO_NORM_CELL;
    memset(row + n, 0, (n_cells * ZERO_NORM_CELL - n) * sizeof *row);
#pragma omp simd
    for (size_t g = 0; g < n_cells * N_GROUPS; ++g) {
        const float *x = row + GROUP * g;
        groups[g] = fmaf(x[3], x[3], fmaf(x[2], x[2], fmaf(x[1], x[1], x[0] * x[0])));
    }
    for (size_t cell = 0; cell < n_cells; ++cell) {
        float *restrict sums = groups + cell * N_GROUPS;
        for (size_t half = N_GROUPS / 2; half > 0; half /= 2) {
#pragma omp simd
            for (size_t g = 0; g < half; ++g)
                sums[g] += sums[g + half];
        }
        const zero_norm_part_t part = zero_norm_split(sums[0]);
        norm->words[part.at] += part.low;
        if (part.high != 0)
            norm->words[part.at + 1] += part.high;
    }
}

/* Adds a chunk's norm to that of all: other threads, and other streams, may do so too. */
static void add_norm(zero_norm_t *norm, const zero_norm_t *chunk)
{
    for (int i = 0; i < ZERO_NORM_WORDS; ++i) {
        if (chunk->words[i] != 0)
            __atomic_fetch_add(&norm->words[i], chunk->words[i], __ATOMIC_RELAXED);
    }
}

zero_status_t ZERO_ISA(zero_shard_contribute)(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                              zero_stream_t stream)
{
    (void)stream;
    mine->norm = *norm;
    *norm = (zero_norm_t){{0}};
    mine->calls = agreed->calls;
    mine->groups = agreed->groups;
    mine->lr = agreed->lr;
    return ZERO_OK;
}

/* ---- Slices in order -----------------------------------------------------------------------------------------------
 */

/* For each dtype: take_ sets the row of sums to elements [at, at + n) of a slice, add_ adds them to it. */
#define SLICE_LOOPS(suffix, type, to_float)                                                                            \
    static void take_##suffix(float *restrict sums, const void *slice, size_t at, size_t n)                            \
    {                                                                                                                  \
        const type *restrict x = (const type *)slice + at;                                                             \
        _Pragma("omp simd") for (size_t i = 0; i < n; ++i) sums[i] = to_float(x[i]);                                   \
    }                                                                                                                  \
    static void add_##suffix(float *restrict sums, const void *slice, size_t at, size_t n)                             \
    {                                                                                                                  \
        const type *restrict x = (const type *)slice + at;                                                             \
        _Pragma("omp simd") for (size_t i = 0; i < n; ++i) sums[i] += to_float(x[i]);                                  \
    }
SLICE_LOOPS(fp32, float, )
SLICE_LOOPS(bf16, uint16_t, zero_float_of_bf16)
SLICE_LOOPS(fp16, uint16_t, zero_float_of_fp16)

typedef void (*slice_loop_t)(float *restrict sums, const void *slice, size_t at, size_t n);
static const struct {
    slice_loop_t take, add;
} slice_loops[] = {
    [ZERO_FP32] = {take_fp32, add_fp32},
    [ZERO_BF16] = {take_bf16, add_bf16},
    [ZERO_FP16] = {take_fp16, add_fp16},
};

/* Writes a row of sums to elements [at, at + n) of out, and leaves in `sums` what was written. */
static void put_row(const zero_sum_t *sum, size_t at, float *restrict sums, size_t n)
{
    uint16_t *restrict halves = sum->out_dtype == ZERO_BF16 ? (uint16_t *)sum->out + at : NULL;
#pragma omp simd
    for (size_t i = 0; i < n; ++i)
        sums[i] = zero_one_nan(sums[i]);
    if (halves != NULL) {
#pragma omp simd
        for (size_t i = 0; i < n; ++i) {
            halves[i] = zero_bf16_of_float(sums[i]);
            sums[i] = zero_float_of_bf16(halves[i]);
        }
        return;
    }
    if (sum->is_rounded) {
#pragma omp simd
        for (size_t i = 0; i < n; ++i)
            sums[i] = zero_float_of_bf16(zero_bf16_of_float(sums[i]));
    }
    memcpy((float *)sum->out + at, sums, n * sizeof *sums);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

zero_status_t ZERO_ISA(zero_shard_sum_slices)(const zero_sum_t *sum, zero_stream_t stream)
{
    (void)stream;
#pragma omp parallel for schedule(static) if (sum->n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t begin = 0; begin < sum->n_elems; begin += ZERO_SUM_CHUNK) {
        const size_t end = least(begin + ZERO_SUM_CHUNK, sum->n_elems);
        zero_norm_t chunk_norm = {{0}};
        float sums[ROW];
        for (size_t at = begin; at < end; at += ROW) {
            const size_t n = least(ROW, end - at);
            if (sum->accumulates)
                take_fp32(sums, sum->out, at, n);
            else
                slice_loops[sum->dtype].take(sums, sum->slices[0], at, n);
            for (int r = sum->accumulates ? 0 : 1; r < sum->n_slices; ++r)
                slice_loops[sum->dtype].add(sums, sum->slices[r], at, n);
            put_row(sum, at, sums, n);
            if (sum->norm != NULL)
                add_row_to_norm(&chunk_norm, sums, n);
        }
        if (sum->norm != NULL)
            add_norm(sum->norm, &chunk_norm);
    }
    return ZERO_OK;
}

/* ---- step ---- */
/* The decision at the end of a step (step_math.h), on the CPU, and what it means for tensors with rules of
 * their own. The CUDA twin is reduce.cu. */

zero_status_t ZERO_ISA(zero_shard_decide_step)(const zero_step_rules_t *rules, float lr,
                                               const zero_contribution_t *contributions, int n_ranks,
                                               zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                               zero_step_outcome_t *outcome, zero_stream_t stream)
{
    (void)stream;
    zero_step_decide(rules, lr, contributions, n_ranks, state, scalars, outcome);
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_decide_unit)(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite,
                                               size_t stride, int n_ranks, uint32_t unit, zero_step_state_t *state,
                                               zero_adam_scalars_t *scalars, zero_stream_t stream)
{
    (void)stream;
    zero_unit_decide(rules, lr, nonfinite, stride, n_ranks, unit, state, scalars);
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_tensor_scalars)(const zero_tensor_rules_t *rules, size_t n_tensors,
                                                  const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                                  zero_stream_t stream)
{
    (void)stream;
    for (size_t t = 0; t < n_tensors; ++t)
        zero_tensor_scalars_decide(&rules[t], scalars, &by_tensor[t]);
    return ZERO_OK;
}

/* ---- poison ---- */
/* Fills gradient buffers with a NaN that no arithmetic makes, and counts the elements that still have it, so
 * that gradients that the program did not write are found. On the CPU; the CUDA twin is reduce.cu. Called through the
 * table, if the engine's checks are on (zero_config_t). */

zero_status_t ZERO_ISA(zero_shard_poison)(void *data, zero_dtype_t dtype, size_t n_elems, zero_stream_t stream)
{
    (void)stream;
    uint16_t *restrict halves = data;
    const size_t n_halves = n_elems * (zero_dtype_size(dtype) / sizeof *halves);
#pragma omp parallel for simd schedule(static) if (n_halves >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t i = 0; i < n_halves; ++i)
        halves[i] = ZERO_POISON;
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_count_poison)(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                                zero_stream_t stream)
{
    (void)stream;
    const uint16_t *restrict halves = data;
    const size_t stride = zero_dtype_size(dtype) / sizeof *halves;
    uint64_t n = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : n) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t i = 0; i < n_elems; ++i)
        n += halves[i * stride] == ZERO_POISON && halves[i * stride + stride - 1] == ZERO_POISON;
    *n_found = n;
    return ZERO_OK;
}
