/* adam.c - AdamW over a flat shard on the CPU (Loshchilov & Hutter 2019, arXiv:1711.05101), in one pass over memory.
 *
 * The segments form one long row of elements, which is split evenly among threads. Each element's result depends only
 * on that element (zero_adam_element), so the split changes no bits. Memory bandwidth is the limit: the pass reads the
 * parameter, master_lo, m, v and the gradient once, and writes all but the gradient once. Each location is read just
 * before it is written, so streaming stores would save no reads; they measured 0.5 to 0.8 of the speed. Called through
 * the table.
 *
 * Square root and division take more than half as long as memory does. Instructions that wait for them fill the core's
 * window, so the next loads are issued late and memory idles. Hence the prefetches.
 */
#include <omp.h>

#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* RUN: elements updated between two rounds of prefetches (one cache line of 16-bit elements, two of floats). AHEAD: how
 * many elements ahead these reach. On a Zen 4, from memory, with AVX2 or AVX-512, the time fell to 0.86-0.97 in bf16
 * and 0.90-1.00 in fp32. With 128 ahead fp32 took 1.04, with 512 ahead 1.3. */
enum { RUN = 32, AHEAD = 96, CACHE_LINE = 64 };

/* Consecutive elements of one segment: their addresses, and what they share. */
typedef struct row {
    zero_adam_scalars_t scalars;
    float shrink; /* zero_adam_element's */
    void *param, *master_lo;
    float *m, *v;
    const float *grad;
} row_t;

/* The following update elements [begin, begin + n) of the row. */

static inline void update_fp32(const row_t *row, size_t begin, size_t n)
{
    float *param = (float *)row->param + begin, *m = row->m + begin, *v = row->v + begin;
    const float *grad = row->grad + begin;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = param[i], new_m = m[i], new_v = v[i];
        zero_adam_element(&row->scalars, row->shrink, grad[i], &w, &new_m, &new_v);
        param[i] = w;
        m[i] = new_m;
        v[i] = new_v;
    }
}

static inline void update_bf16(const row_t *row, size_t begin, size_t n)
{
    uint16_t *param = (uint16_t *)row->param + begin;
    int16_t *master_lo = (int16_t *)row->master_lo + begin;
    float *m = row->m + begin, *v = row->v + begin;
    const float *grad = row->grad + begin;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = zero_join_master(param[i], master_lo[i]), new_m = m[i], new_v = v[i];
        zero_adam_element(&row->scalars, row->shrink, grad[i], &w, &new_m, &new_v);
        param[i] = zero_split_param(w);
        master_lo[i] = zero_split_master_lo(w);
        m[i] = new_m;
        v[i] = new_v;
    }
}

static inline void update_fp16(const row_t *row, size_t begin, size_t n)
{
    uint16_t *param = (uint16_t *)row->param + begin;
    float *master = (float *)row->master_lo + begin, *m = row->m + begin, *v = row->v + begin;
    const float *grad = row->grad + begin;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = master[i], new_m = m[i], new_v = v[i];
        zero_adam_element(&row->scalars, row->shrink, grad[i], &w, &new_m, &new_v);
        param[i] = zero_fp16_of_float(w);
        master[i] = w;
        m[i] = new_m;
        v[i] = new_v;
    }
}

static inline void prefetch_run(const void *array, size_t elem_size, size_t begin)
{
    for (size_t byte = 0; byte < RUN * elem_size; byte += CACHE_LINE)
        __builtin_prefetch((const char *)array + begin * elem_size + byte);
}

/* Updates the first n elements. Inlined, with all arguments but row and n known. */
static inline void update_row(const row_t *row, size_t n, size_t param_size, size_t master_lo_size,
                              void (*update)(const row_t *row, size_t begin, size_t n))
{
    size_t begin = 0;
    for (; begin + AHEAD + RUN <= n; begin += RUN) {
        prefetch_run(row->grad, sizeof(float), begin + AHEAD);
        prefetch_run(row->m, sizeof(float), begin + AHEAD);
        prefetch_run(row->v, sizeof(float), begin + AHEAD);
        prefetch_run(row->param, param_size, begin + AHEAD);
        prefetch_run(row->master_lo, master_lo_size, begin + AHEAD);
        update(row, begin, RUN);
    }
    update(row, begin, n - begin);
}

/* Returns the row that begins at element `first` of the segment. */
static row_t row_of(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t param_size,
                    size_t master_lo_size)
{
    size_t state = segment->state + first;
    zero_adam_scalars_t scalars = *args->scalars;
    float decay = segment->decay;
    zero_take_tensor_scalars(args, segment, &scalars, &decay);
    return (row_t){
        .scalars = scalars,
        .shrink = -(scalars.lr * decay),
        .param = (char *)args->param + (segment->param + first) * param_size,
        .master_lo = master_lo_size ? (char *)args->master_lo + state * master_lo_size : NULL,
        .m = args->m + state,
        .v = args->v + (state - segment->v_gap),
        .grad = args->grad + segment->grad + first,
    };
}

/* The following update elements [first, first + n) of the segment. */
static void adam_fp32(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const row_t row = row_of(args, segment, first, sizeof(float), 0);
    update_row(&row, n, sizeof(float), 0, update_fp32);
}

static void adam_bf16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const row_t row = row_of(args, segment, first, sizeof(uint16_t), sizeof(int16_t));
    update_row(&row, n, sizeof(uint16_t), sizeof(int16_t), update_bf16);
}

static void adam_fp16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const row_t row = row_of(args, segment, first, sizeof(uint16_t), sizeof(float));
    update_row(&row, n, sizeof(uint16_t), sizeof(float), update_fp16);
}

typedef void (*adam_loop_t)(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n);
static const adam_loop_t adam_loops[] = {[ZERO_FP32] = adam_fp32, [ZERO_BF16] = adam_bf16, [ZERO_FP16] = adam_fp16};

/* Updates elements [begin, end) of the row that all segments form. */
static void adam_range(const zero_adam_t *args, uint64_t begin, uint64_t end)
{
    uint64_t segment_begin = 0;
    for (size_t s = 0; s < args->n_segments && segment_begin < end; ++s) {
        const zero_adam_segment_t *segment = &args->segments[s];
        uint64_t segment_end = segment_begin + segment->n_elems;
        uint64_t from = begin > segment_begin ? begin : segment_begin;
        uint64_t to = end < segment_end ? end : segment_end;
        if (from < to)
            adam_loops[args->param_dtype](args, segment, from - segment_begin, to - from);
        segment_begin = segment_end;
    }
}

zero_status_t ZERO_ISA(zero_shard_adam)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    if (args->scalars->skip)
        return ZERO_OK;
    uint64_t n_elems = 0;
    for (size_t s = 0; s < args->n_segments; ++s)
        n_elems += args->segments[s].n_elems;
#pragma omp parallel if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    {
        uint64_t n_threads = (uint64_t)omp_get_num_threads(), thread = (uint64_t)omp_get_thread_num();
        uint64_t share = (n_elems / n_threads / RUN + 1) * RUN; /* whole cache lines, if the arrays begin with one */
        uint64_t begin = thread * share;
        uint64_t end = begin + share < n_elems ? begin + share : n_elems;
        adam_range(args, begin, end);
    }
    return ZERO_OK;
}
