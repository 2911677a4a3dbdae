/* master.h - what the optimizers' loops on the CPU share: master weights in their three forms, and the walk over the
 * segments, whose elements are split among threads. master.cuh's twin. An element's or a block's result depends on it
 * alone, so the split changes no bits.
 */
#ifndef ZERO_MASTER_H
#define ZERO_MASTER_H

#include <omp.h>

#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* Inlined with the form of master weights and the rule known, so that loops become vector code. */
#define ZERO_INLINED static inline __attribute__((always_inline))

/* ---- Master weights in the three forms of zero_adam_t --------------------------------------------------------------
 */

/* Calls f with the form as a constant before the other arguments. */
#define ZERO_WITH_FORM(dtype, f, ...)                                                                                  \
    ((dtype) == ZERO_FP32   ? f(ZERO_FP32, __VA_ARGS__)                                                                \
     : (dtype) == ZERO_BF16 ? f(ZERO_BF16, __VA_ARGS__)                                                                \
                            : f(ZERO_FP16, __VA_ARGS__))

/* Return the bytes of an element in each array. Gradients have those of parameters of their dtype. */

ZERO_INLINED size_t zero_param_bytes(zero_dtype_t form)
{
    return form == ZERO_FP32 ? sizeof(float) : sizeof(uint16_t);
}

ZERO_INLINED size_t zero_master_lo_bytes(zero_dtype_t form)
{
    return form == ZERO_FP32 ? 0 : form == ZERO_BF16 ? sizeof(int16_t) : sizeof(float);
}

ZERO_INLINED float zero_read_master(zero_dtype_t form, const void *param, const void *master_lo, size_t i)
{
    if (form == ZERO_FP32)
        return ((const float *)param)[i];
    if (form == ZERO_FP16)
        return ((const float *)master_lo)[i];
    return zero_join_master(((const uint16_t *)param)[i], ((const int16_t *)master_lo)[i]);
}

ZERO_INLINED void zero_write_master(zero_dtype_t form, void *param, void *master_lo, size_t i, float master)
{
    if (form == ZERO_FP32) {
        ((float *)param)[i] = master;
    } else if (form == ZERO_FP16) {
        ((uint16_t *)param)[i] = zero_fp16_of_float(master);
        ((float *)master_lo)[i] = master;
    } else {
        ((uint16_t *)param)[i] = zero_split_param(master);
        ((int16_t *)master_lo)[i] = zero_split_master_lo(master);
    }
}

/* ---- Segments ------------------------------------------------------------------------------------------------------
 */

/* Consecutive elements of one segment: where they begin in each array, and what they are updated with. */
typedef struct zero_part {
    size_t n_elems;
    void *param, *master_lo; /* master_lo: not valid if the form has none */
    const void *grad;
    zero_dtype_t grad_dtype;
    size_t state, v; /* elements: in the state arrays, and in v where that leaves gaps out */
    zero_adam_scalars_t scalars;
    float decay;
} zero_part_t;

static zero_part_t zero_part_of(const zero_adam_t *args, const zero_adam_segment_t *segment, uint64_t first,
                                uint64_t n_elems)
{
    const size_t state = segment->state + first;
    zero_part_t part = {.n_elems = n_elems,
                        .param = (char *)args->param + (segment->param + first) * zero_param_bytes(args->param_dtype),
                        .master_lo = (char *)args->master_lo + state * zero_master_lo_bytes(args->param_dtype),
                        .grad = (const char *)args->grad + (segment->grad + first) * zero_param_bytes(args->grad_dtype),
                        .grad_dtype = args->grad_dtype,
                        .state = state,
                        .v = state - segment->v_gap,
                        .scalars = *args->scalars,
                        .decay = segment->decay};
    zero_take_tensor_scalars(args, segment, &part.scalars, &part.decay);
    return part;
}

/* Returns gradients [begin, begin + n) of a part as floats: where they are, or widened into `room`. */
ZERO_INLINED const float *zero_grads_of(const zero_part_t *part, size_t begin, size_t n, float *restrict room)
{
    if (part->grad_dtype != ZERO_BF16)
        return (const float *)part->grad + begin;
    const uint16_t *restrict halves = (const uint16_t *)part->grad + begin;
#pragma omp simd
    for (size_t i = 0; i < n; ++i)
        room[i] = zero_float_of_bf16(halves[i]);
    return room;
}

/* Updates a part. */
typedef void (*zero_part_fn)(const zero_adam_t *args, const zero_part_t *part);

static uint64_t zero_units_of(const zero_adam_segment_t *segment, uint64_t unit)
{
    return (segment->n_elems + unit - 1) / unit;
}

/* Updates units [begin, end) of the row that all segments' units form. */
static void zero_update_range(const zero_adam_t *args, uint64_t unit, uint64_t begin, uint64_t end, zero_part_fn update)
{
    uint64_t segment_begin = 0;
    for (size_t s = 0; s < args->n_segments && segment_begin < end; ++s) {
        const zero_adam_segment_t *segment = &args->segments[s];
        const uint64_t segment_end = segment_begin + zero_units_of(segment, unit);
        const uint64_t from = begin > segment_begin ? begin : segment_begin, to = end < segment_end ? end : segment_end;
        if (from < to) {
            const uint64_t first = (from - segment_begin) * unit, last = (to - segment_begin) * unit;
            const uint64_t n_elems = (last < segment->n_elems ? last : segment->n_elems) - first;
            const zero_part_t part = zero_part_of(args, segment, first, n_elems);
            update(args, &part);
        }
        segment_begin = segment_end;
    }
}

/* Updates the shard. A unit is the elements that are updated together; each segment begins with one. Threads' shares
 * are multiples of `grain` units. `update` is called through a pointer: it must know its rule, since a parallel region
 * would carry that in memory, where the compiler cannot see through it. */
static zero_status_t zero_update_shard(const zero_adam_t *args, uint64_t unit, uint64_t grain, zero_part_fn update)
{
    if (args->scalars->skip)
        return ZERO_OK;
    uint64_t n_units = 0;
    for (size_t s = 0; s < args->n_segments; ++s)
        n_units += zero_units_of(&args->segments[s], unit);
#pragma omp parallel if (n_units * unit >= ZERO_SHARD_PARALLEL_MIN)
    {
        const uint64_t n_threads = (uint64_t)omp_get_num_threads(), thread = (uint64_t)omp_get_thread_num();
        const uint64_t share = (n_units / n_threads / grain + 1) * grain, begin = thread * share;
        zero_update_range(args, unit, begin, begin + share < n_units ? begin + share : n_units, update);
    }
    return ZERO_OK;
}

#endif
