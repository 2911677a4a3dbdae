/* reduce.c - sums in a fixed order on the CPU: gradient slices in rank order, and the norm's tree.
 *
 * Threads share the norm chunks (ZERO_NORM_CHUNK elements). A chunk is processed in rows of ZERO_NORM_LANES elements,
 * small enough that a row of sums stays in the first-level cache: slice after slice is added to it, then it is written
 * out and its squares are added to the chunk's lanes. So gradients are read only once even if the norm is wanted, and
 * no bit depends on the threads. Called through the table.
 */
#include "kernels/shard/shard_isa.h"
#include "kernels/shard/shard_math.h"

/* ---- The norm's tree -----------------------------------------------------------------------------------------------
 */

static void add_squares(float *restrict lanes, const float *restrict x, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; ++i)
        lanes[i] = fmaf(x[i], x[i], lanes[i]);
}

static double fold_lanes(float *lanes)
{
    for (size_t half = ZERO_NORM_LANES / 2; half > 0; half /= 2) {
#pragma omp simd
        for (size_t i = 0; i < half; ++i)
            lanes[i] += lanes[i + half];
    }
    return (double)zero_one_nan(lanes[0]);
}

static size_t row_length(size_t at, size_t end)
{
    return end - at < ZERO_NORM_LANES ? end - at : ZERO_NORM_LANES;
}

static size_t chunk_end(size_t chunk, size_t n_elems)
{
    size_t begin = chunk * ZERO_NORM_CHUNK;
    return n_elems - begin < ZERO_NORM_CHUNK ? n_elems : begin + ZERO_NORM_CHUNK;
}

/* There are only 122,071 partials per billion elements, so one thread adds them. */
#define PARTIAL_LANES 256

zero_status_t ZERO_ISA(zero_shard_contribute)(const double *partials, size_t n_partials, const zero_agreed_t *agreed,
                                              zero_contribution_t *mine, zero_stream_t stream)
{
    (void)stream;
    double lanes[PARTIAL_LANES] = {0.0};
    for (size_t i = 0; i < n_partials; ++i)
        lanes[i % PARTIAL_LANES] += partials[i];
    for (size_t half = PARTIAL_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; ++i)
            lanes[i] += lanes[i + half];
    }
    mine->sum_of_squares = lanes[0] == lanes[0] ? lanes[0] : (double)zero_float_of_bits(ZERO_FLOAT_NAN_BITS);
    mine->calls = agreed->calls;
    mine->lr = agreed->lr;
    return ZERO_OK;
}

/* ---- Slices in rank order ------------------------------------------------------------------------------------------
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

/* Writes a row of sums to out, and leaves in `sums` what was written. */
static void put_row(float *restrict out, float *restrict sums, size_t n, bool accumulate)
{
    if (accumulate) {
#pragma omp simd
        for (size_t i = 0; i < n; ++i)
            sums[i] = out[i] + sums[i];
    }
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        sums[i] = zero_one_nan(sums[i]);
        out[i] = sums[i];
    }
}

zero_status_t ZERO_ISA(zero_shard_sum_slices)(float *out, const void *const *slices, int n_slices, zero_dtype_t dtype,
                                              size_t n_elems, bool accumulate, double *partials, zero_stream_t stream)
{
    (void)stream;
    const size_t n_chunks = zero_norm_n_partials(n_elems);
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t chunk = 0; chunk < n_chunks; ++chunk) {
        const size_t end = chunk_end(chunk, n_elems);
        float sums[ZERO_NORM_LANES];
        float lanes[ZERO_NORM_LANES] = {0.0f};
        for (size_t at = chunk * ZERO_NORM_CHUNK; at < end; at += ZERO_NORM_LANES) {
            const size_t n = row_length(at, end);
            slice_loops[dtype].take(sums, slices[0], at, n);
            for (int r = 1; r < n_slices; ++r)
                slice_loops[dtype].add(sums, slices[r], at, n);
            put_row(out + at, sums, n, accumulate);
            if (partials != NULL)
                add_squares(lanes, sums, n);
        }
        if (partials != NULL)
            partials[chunk] = fold_lanes(lanes);
    }
    return ZERO_OK;
}
