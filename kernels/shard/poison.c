/* poison.c - fills gradient buffers with a NaN that no arithmetic makes, and counts the elements that still have it, so
 * that gradients that the program did not write are found. On the CPU; the CUDA twin is poison.cu. Called through the
 * table, if the engine's checks are on (zero_config_t).
 */
#include "kernels/shard/shard_isa.h"

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
