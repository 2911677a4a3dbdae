/* adam.c - AdamW over a flat shard on the CPU (Loshchilov & Hutter 2019, arXiv:1711.05101), in one pass over memory.
 *
 * The segments are read as one long row of elements that is cut evenly among threads; each element's result depends on
 * nothing but itself (zero_adam_element), so cuts change no bits. Memory bandwidth is the limit: the pass reads the
 * parameter, its low half, m, v and the gradient once and writes all but the gradient once. What is written was read
 * just before, so plain stores fetch nothing that streaming stores would spare: these measured 0.5 to 0.8 of the speed,
 * and prefetching ahead of the hardware's made no difference. Called through the table.
 */
#include <omp.h>

#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* `first`: elements skipped from the segment's start; `n`: elements to update. */
static void adam_fp32(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const zero_adam_scalars_t scalars = *args->scalars;
    const float shrink = -(scalars.lr * segment->decay);
    float *restrict param = (float *)args->param + segment->param + first;
    float *restrict m = args->m + segment->state + first;
    float *restrict v = args->v + segment->state + first;
    const float *restrict grad = args->grad + segment->grad + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = param[i], new_m = m[i], new_v = v[i];
        zero_adam_element(&scalars, shrink, grad[i], &w, &new_m, &new_v);
        param[i] = w;
        m[i] = new_m;
        v[i] = new_v;
    }
}

static void adam_bf16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const zero_adam_scalars_t scalars = *args->scalars;
    const float shrink = -(scalars.lr * segment->decay);
    uint16_t *restrict param = (uint16_t *)args->param + segment->param + first;
    int16_t *restrict low = (int16_t *)args->low + segment->state + first;
    float *restrict m = args->m + segment->state + first;
    float *restrict v = args->v + segment->state + first;
    const float *restrict grad = args->grad + segment->grad + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = zero_join_master(param[i], low[i]), new_m = m[i], new_v = v[i];
        zero_adam_element(&scalars, shrink, grad[i], &w, &new_m, &new_v);
        param[i] = zero_split_param(w);
        low[i] = zero_split_low(w);
        m[i] = new_m;
        v[i] = new_v;
    }
}

static void adam_fp16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n)
{
    const zero_adam_scalars_t scalars = *args->scalars;
    const float shrink = -(scalars.lr * segment->decay);
    uint16_t *restrict param = (uint16_t *)args->param + segment->param + first;
    float *restrict master = (float *)args->low + segment->state + first;
    float *restrict m = args->m + segment->state + first;
    float *restrict v = args->v + segment->state + first;
    const float *restrict grad = args->grad + segment->grad + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = master[i], new_m = m[i], new_v = v[i];
        zero_adam_element(&scalars, shrink, grad[i], &w, &new_m, &new_v);
        param[i] = zero_fp16_of_float(w);
        master[i] = w;
        m[i] = new_m;
        v[i] = new_v;
    }
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
        uint64_t share = n_elems / n_threads + 1;
        uint64_t begin = thread * share;
        uint64_t end = begin + share < n_elems ? begin + share : n_elems;
        adam_range(args, begin, end);
    }
    return ZERO_OK;
}
