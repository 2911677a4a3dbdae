/* fp8.c - parameters in fp8 on the CPU: the absolute maximum of this rank's part of each matrix, scales from the maxima
 * of all ranks, and the cast.
 *
 * A maximum does not depend on the order in which it is taken, so scales and bytes depend neither on threads nor on how
 * matrices are cut into shards. The arithmetic of one element is in float_bits.h. Called through the table.
 */
#include "kernels/float_bits.h"
#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

static uint32_t absmax_of(const uint16_t *param, uint64_t n_elems)
{
    uint32_t largest = 0;
#pragma omp parallel for simd schedule(static) reduction(max : largest) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (uint64_t i = 0; i < n_elems; ++i) {
        const uint32_t magnitude = zero_fp8_magnitude(zero_float_of_bf16(param[i]));
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

zero_status_t ZERO_ISA(zero_shard_fp8_absmax)(const zero_fp8_parts_t *parts, uint32_t *absmaxes, zero_stream_t stream)
{
    (void)stream;
    for (uint32_t m = 0; m < parts->n_matrices; ++m)
        absmaxes[parts->first_matrix + m] = 0;
    for (size_t s = 0; s < parts->n_segments; ++s) {
        const zero_fp8_segment_t *segment = &parts->segments[s];
        absmaxes[segment->matrix] = absmax_of(parts->param + segment->param, segment->n_elems);
    }
    return ZERO_OK;
}

zero_status_t ZERO_ISA(zero_shard_fp8_scale)(zero_fp8_scales_t *scales, const uint32_t *absmaxes, int n_ranks,
                                             uint32_t n_matrices, zero_stream_t stream)
{
    (void)stream;
    for (uint32_t m = 0; m < n_matrices; ++m) {
        uint32_t largest = 0;
        for (size_t r = 0; r < (size_t)n_ranks; ++r) {
            const uint32_t absmax = absmaxes[r * n_matrices + m];
            largest = absmax > largest ? absmax : largest;
        }
        scales[m] = zero_fp8_scales_of(ZERO_E4M3, largest);
    }
    return ZERO_OK;
}

static void cast(uint8_t *restrict bytes, const uint16_t *restrict param, float scale, uint64_t n_elems)
{
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (uint64_t i = 0; i < n_elems; ++i)
        bytes[i] = zero_fp8_of_float(ZERO_E4M3, zero_float_of_bf16(param[i]) * scale);
}

zero_status_t ZERO_ISA(zero_shard_fp8_cast)(const zero_fp8_parts_t *parts, const zero_fp8_scales_t *scales,
                                            zero_stream_t stream)
{
    (void)stream;
    for (size_t s = 0; s < parts->n_segments; ++s) {
        const zero_fp8_segment_t *segment = &parts->segments[s];
        cast(parts->bytes + segment->byte, parts->param + segment->param, scales[segment->matrix].scale,
             segment->n_elems);
    }
    return ZERO_OK;
}
