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
#include "kernels/master.h"

/* RUN: elements updated between two rounds of prefetches (one cache line of 16-bit elements, two of floats). AHEAD: how
 * many elements ahead these reach. On a Zen 4, from memory, with AVX2 or AVX-512, the time fell to 0.86-0.97 in bf16
 * and 0.90-1.00 in fp32. With 128 ahead fp32 took 1.04, with 512 ahead 1.3. */
enum { RUN = 32, AHEAD = 96, CACHE_LINE = 64 };

/* A part with its m and v, and zero_adam_element's shrink. */
typedef struct row {
    zero_part_t part;
    float *m, *v;
    float shrink;
} row_t;

/* Updates elements [begin, begin + n) of the row. */
ZERO_INLINED void update_run(zero_dtype_t form, const row_t *row, size_t begin, size_t n)
{
    char *param = (char *)row->part.param + begin * zero_param_bytes(form);
    char *master_lo = (char *)row->part.master_lo + begin * zero_master_lo_bytes(form);
    float *m = row->m + begin, *v = row->v + begin;
    float room[RUN + AHEAD];
    const float *grad = zero_grads_of(&row->part, begin, n, room);
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        float w = zero_read_master(form, param, master_lo, i), new_m = m[i], new_v = v[i];
        zero_adam_element(&row->part.scalars, row->shrink, grad[i], &w, &new_m, &new_v);
        zero_write_master(form, param, master_lo, i, w);
        m[i] = new_m;
        v[i] = new_v;
    }
}

static inline void prefetch_run(const void *array, size_t elem_size, size_t begin)
{
    for (size_t byte = 0; byte < RUN * elem_size; byte += CACHE_LINE)
        __builtin_prefetch((const char *)array + begin * elem_size + byte);
}

ZERO_INLINED void update_part(zero_dtype_t form, const zero_adam_t *args, const zero_part_t *part)
{
    /* A copy: what stores cannot reach stays in registers. */
    const row_t row = {*part, args->m + part->state, args->v + part->v, -(part->scalars.lr * part->decay)};
    size_t begin = 0;
    for (; begin + AHEAD + RUN <= row.part.n_elems; begin += RUN) {
        prefetch_run(row.part.grad, zero_param_bytes(row.part.grad_dtype), begin + AHEAD);
        prefetch_run(row.m, sizeof(float), begin + AHEAD);
        prefetch_run(row.v, sizeof(float), begin + AHEAD);
        prefetch_run(row.part.param, zero_param_bytes(form), begin + AHEAD);
        prefetch_run(row.part.master_lo, zero_master_lo_bytes(form), begin + AHEAD);
        update_run(form, &row, begin, RUN);
    }
    update_run(form, &row, begin, row.part.n_elems - begin);
}

static void adam_part(const zero_adam_t *args, const zero_part_t *part)
{
    ZERO_WITH_FORM(args->param_dtype, update_part, args, part);
}

zero_status_t ZERO_ISA(zero_shard_adam)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return zero_update_shard(args, 1, RUN, adam_part);
}
