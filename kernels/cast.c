/* cast.c - casts between dtypes on the CPU, and the split of fp32 master weights into parameter and master_lo and its
 * inverse.
 *
 * The conversions of one element are in shard_math.h, in integer arithmetic, so that every instruction set rounds in
 * the same way. A table has one loop over a run of elements for each pair of dtypes. Threads share the runs. Called
 * through the table of kernels.
 */
#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

/* The elements that a thread processes at a time. */
#define RUN_ELEMS ((size_t)1 << 14)

static size_t run_length(size_t at, size_t n_elems)
{
    return n_elems - at < RUN_ELEMS ? n_elems - at : RUN_ELEMS;
}

/* ---- Casts ---------------------------------------------------------------------------------------------------------
 */

#define CAST_LOOP(name, dst_type, src_type, converted)                                                                 \
    static void name(void *dst, const void *src, size_t at, size_t n)                                                  \
    {                                                                                                                  \
        dst_type *restrict to = (dst_type *)dst + at;                                                                  \
        const src_type *restrict from = (const src_type *)src + at;                                                    \
        _Pragma("omp simd") for (size_t i = 0; i < n; ++i)                                                             \
        {                                                                                                              \
            const src_type x = from[i];                                                                                \
            to[i] = converted;                                                                                         \
        }                                                                                                              \
    }
CAST_LOOP(fp32_of_bf16, float, uint16_t, zero_float_of_bf16(x))
CAST_LOOP(fp32_of_fp16, float, uint16_t, zero_float_of_fp16(x))
CAST_LOOP(bf16_of_fp32, uint16_t, float, zero_bf16_of_float(x))
CAST_LOOP(fp16_of_fp32, uint16_t, float, zero_fp16_of_float(x))
/* Widening is exact, so casting through fp32 rounds once. */
CAST_LOOP(fp16_of_bf16, uint16_t, uint16_t, zero_fp16_of_float(zero_float_of_bf16(x)))
CAST_LOOP(bf16_of_fp16, uint16_t, uint16_t, zero_bf16_of_float(zero_float_of_fp16(x)))
/* Copies all bits, also those of NaNs. */
CAST_LOOP(copy32, uint32_t, uint32_t, x)
CAST_LOOP(copy16, uint16_t, uint16_t, x)

typedef void (*cast_loop_t)(void *dst, const void *src, size_t at, size_t n);
static const cast_loop_t cast_loops[3][3] = {
    /* [dst][src] */
    [ZERO_FP32] = {[ZERO_FP32] = copy32, [ZERO_BF16] = fp32_of_bf16, [ZERO_FP16] = fp32_of_fp16},
    [ZERO_BF16] = {[ZERO_FP32] = bf16_of_fp32, [ZERO_BF16] = copy16, [ZERO_FP16] = bf16_of_fp16},
    [ZERO_FP16] = {[ZERO_FP32] = fp16_of_fp32, [ZERO_BF16] = fp16_of_bf16, [ZERO_FP16] = copy16},
};

zero_status_t ZERO_ISA(zero_shard_cast)(void *dst, zero_dtype_t dst_dtype, const void *src, zero_dtype_t src_dtype,
                                        size_t n_elems, zero_stream_t stream)
{
    (void)stream;
    const cast_loop_t loop = cast_loops[dst_dtype][src_dtype];
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t at = 0; at < n_elems; at += RUN_ELEMS)
        loop(dst, src, at, run_length(at, n_elems));
    return ZERO_OK;
}

/* ---- Master weights ------------------------------------------------------------------------------------------------
 */

static void split_bf16(uint16_t *restrict param, int16_t *restrict master_lo, const float *restrict master, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; ++i) {
        param[i] = zero_split_param(master[i]);
        master_lo[i] = zero_split_master_lo(master[i]);
    }
}

static void join_bf16(float *restrict master, const uint16_t *restrict param, const int16_t *restrict master_lo,
                      size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; ++i)
        master[i] = zero_join_master(param[i], master_lo[i]);
}

zero_status_t ZERO_ISA(zero_shard_split_master)(void *param, void *master_lo, zero_dtype_t param_dtype,
                                                const float *master, size_t n_elems, zero_stream_t stream)
{
    if (param_dtype != ZERO_BF16) {
        if (param_dtype == ZERO_FP16)
            ZERO_ISA(zero_shard_cast)(master_lo, ZERO_FP32, master, ZERO_FP32, n_elems, stream);
        return ZERO_ISA(zero_shard_cast)(param, param_dtype, master, ZERO_FP32, n_elems, stream);
    }
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t at = 0; at < n_elems; at += RUN_ELEMS)
        split_bf16((uint16_t *)param + at, (int16_t *)master_lo + at, master + at, run_length(at, n_elems));
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_join_master)(float *master, const void *param, const void *master_lo,
                                               zero_dtype_t param_dtype, size_t n_elems, zero_stream_t stream)
{
    if (param_dtype != ZERO_BF16) {
        const void *whole = param_dtype == ZERO_FP16 ? master_lo : param;
        return ZERO_ISA(zero_shard_cast)(master, ZERO_FP32, whole, ZERO_FP32, n_elems, stream);
    }
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (size_t at = 0; at < n_elems; at += RUN_ELEMS)
        join_bf16(master + at, (const uint16_t *)param + at, (const int16_t *)master_lo + at, run_length(at, n_elems));
    return ZERO_OK;
}
