/* momentum.c - optimizers with one state array over a flat shard on the CPU: SGD with momentum, with and without
 * Nesterov's step, and Lion (Chen et al. 2023, arXiv:2302.06675).
 *
 * As in adam.c the segments form one long row, which is split evenly among threads, and an element's result depends
 * only on that element, so the split changes no bits. There is no square root and no division to wait for, hence no
 * prefetches. Called through the table.
 */
#include <omp.h>

#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* Threads' shares are multiples of this: whole cache lines, if the arrays begin with one. */
enum { RUN = 32 };

typedef void (*element_fn)(const zero_adam_scalars_t *scalars, float decay, float grad, float *w, float *m);

/* Inlined with `element` known, so that the loops become vector code. */
#define INLINED static inline __attribute__((always_inline)) void

/* The following update elements [first, first + n) of the segment. */

INLINED update_fp32(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n,
                    zero_adam_scalars_t scalars, float decay, element_fn element)
{
    const float *grad = args->grad + segment->grad + first;
    float *param = (float *)args->param + segment->param + first, *m = args->m + segment->state + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = param[i], new_m = m[i];
        element(&scalars, decay, grad[i], &w, &new_m);
        param[i] = w;
        m[i] = new_m;
    }
}

INLINED update_bf16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n,
                    zero_adam_scalars_t scalars, float decay, element_fn element)
{
    const float *grad = args->grad + segment->grad + first;
    uint16_t *param = (uint16_t *)args->param + segment->param + first;
    int16_t *master_lo = (int16_t *)args->master_lo + segment->state + first;
    float *m = args->m + segment->state + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = zero_join_master(param[i], master_lo[i]), new_m = m[i];
        element(&scalars, decay, grad[i], &w, &new_m);
        param[i] = zero_split_param(w);
        master_lo[i] = zero_split_master_lo(w);
        m[i] = new_m;
    }
}

INLINED update_fp16(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n,
                    zero_adam_scalars_t scalars, float decay, element_fn element)
{
    const float *grad = args->grad + segment->grad + first;
    uint16_t *param = (uint16_t *)args->param + segment->param + first;
    float *master = (float *)args->master_lo + segment->state + first, *m = args->m + segment->state + first;
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = master[i], new_m = m[i];
        element(&scalars, decay, grad[i], &w, &new_m);
        param[i] = zero_fp16_of_float(w);
        master[i] = w;
        m[i] = new_m;
    }
}

INLINED update_segment(const zero_adam_t *args, const zero_adam_segment_t *segment, size_t first, size_t n,
                       element_fn element)
{
    zero_adam_scalars_t scalars = *args->scalars;
    float decay = segment->decay;
    zero_take_tensor_scalars(args, segment, &scalars, &decay);
    if (args->param_dtype == ZERO_FP32)
        update_fp32(args, segment, first, n, scalars, decay, element);
    else if (args->param_dtype == ZERO_BF16)
        update_bf16(args, segment, first, n, scalars, decay, element);
    else
        update_fp16(args, segment, first, n, scalars, decay, element);
}

/* Updates elements [begin, end) of the row that all segments form. */
INLINED update_range(const zero_adam_t *args, uint64_t begin, uint64_t end, element_fn element)
{
    uint64_t segment_begin = 0;
    for (size_t s = 0; s < args->n_segments && segment_begin < end; ++s) {
        const zero_adam_segment_t *segment = &args->segments[s];
        uint64_t segment_end = segment_begin + segment->n_elems;
        uint64_t from = begin > segment_begin ? begin : segment_begin;
        uint64_t to = end < segment_end ? end : segment_end;
        if (from < to)
            update_segment(args, segment, from - segment_begin, to - from, element);
        segment_begin = segment_end;
    }
}

/* The same by one rule. A parallel region would carry `element` in memory, where the compiler cannot see through it. */

static void sgd_range(const zero_adam_t *args, uint64_t begin, uint64_t end)
{
    update_range(args, begin, end, zero_sgd_element);
}

static void nesterov_range(const zero_adam_t *args, uint64_t begin, uint64_t end)
{
    update_range(args, begin, end, zero_nesterov_element);
}

static void lion_range(const zero_adam_t *args, uint64_t begin, uint64_t end)
{
    update_range(args, begin, end, zero_lion_element);
}

static zero_status_t update_row(const zero_adam_t *args,
                                void (*range)(const zero_adam_t *args, uint64_t begin, uint64_t end))
{
    if (args->scalars->skip)
        return ZERO_OK;
    uint64_t n_elems = 0;
    for (size_t s = 0; s < args->n_segments; ++s)
        n_elems += args->segments[s].n_elems;
#pragma omp parallel if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    {
        uint64_t n_threads = (uint64_t)omp_get_num_threads(), thread = (uint64_t)omp_get_thread_num();
        uint64_t share = (n_elems / n_threads / RUN + 1) * RUN;
        uint64_t begin = thread * share;
        range(args, begin, begin + share < n_elems ? begin + share : n_elems);
    }
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_sgd)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return update_row(args, sgd_range);
}

zero_status_t ZERO_ISA(zero_shard_nesterov)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return update_row(args, nesterov_range);
}

zero_status_t ZERO_ISA(zero_shard_lion)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return update_row(args, lion_range);
}
