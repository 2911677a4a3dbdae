/* adam8.c - AdamW with 8-bit moments over a flat shard on the CPU (Dettmers et al. 2022, arXiv:2110.02861).
 *
 * A block is decoded, updated in fp32 by AdamW's arithmetic, and encoded, so that a new number's rounding depends on
 * its block alone. Blocks are at places that neither shards nor threads move, so neither changes bits. Called through
 * the table.
 */
#include <omp.h>

#include "kernels/adam8_math.h"
#include "kernels/shard_isa.h"

enum { BLOCK = ZERO_BLOCK8_ELEMS };

/* ---- codes ---- */

/* Inlined with is_signed known, so that the loops become vector code. */
#define INLINED static inline __attribute__((always_inline))

INLINED void decode_block(float *values, const zero_block8_t *block, bool is_signed)
{
    const float scale = block->scale;
#pragma omp simd
    for (size_t i = 0; i < BLOCK; ++i)
        values[i] =
            is_signed ? zero_decode8_signed(block->codes[i], scale) : zero_decode8_unsigned(block->codes[i], scale);
}

INLINED void encode_block(zero_block8_t *block, const float *values, bool is_signed)
{
    uint32_t key = 0;
#pragma omp simd reduction(max : key)
    for (size_t i = 0; i < BLOCK; ++i) {
        uint32_t other = zero_scale8_key(values[i]);
        key = other > key ? other : key;
    }
    const float scale = zero_scale8_of_key(key), inverse = zero_scale8_inverse(scale);
    block->scale = scale;
#pragma omp simd
    for (size_t i = 0; i < BLOCK; ++i)
        block->codes[i] =
            is_signed ? zero_encode8_signed(values[i], inverse) : zero_encode8_unsigned(values[i], inverse);
}

void ZERO_ISA(zero_shard_encode8)(zero_block8_t *blocks, const float *values, size_t n_elems, bool is_signed)
{
    for (size_t at = 0; at < n_elems; at += BLOCK) {
        const size_t n = n_elems - at < BLOCK ? n_elems - at : BLOCK;
        float block[BLOCK] = {0};
        memcpy(block, values + at, n * sizeof *block);
        if (is_signed)
            encode_block(&blocks[at / BLOCK], block, true);
        else
            encode_block(&blocks[at / BLOCK], block, false);
    }
}

void ZERO_ISA(zero_shard_decode8)(float *values, const zero_block8_t *blocks, size_t n_elems, bool is_signed)
{
    for (size_t at = 0; at < n_elems; at += BLOCK) {
        const size_t n = n_elems - at < BLOCK ? n_elems - at : BLOCK;
        float block[BLOCK];
        if (is_signed)
            decode_block(block, &blocks[at / BLOCK], true);
        else
            decode_block(block, &blocks[at / BLOCK], false);
        memcpy(values + at, block, n * sizeof *block);
    }
}

/* ---- weights: n of a block's, from element `first` of the segment on ---- */

static void read_weights(const zero_adam_t *args, const zero_adam_segment_t *segment, uint64_t first, size_t n,
                         float *weights)
{
    const size_t param = segment->param + first, state = segment->state + first;
    if (args->param_dtype == ZERO_FP32)
        memcpy(weights, (const float *)args->param + param, n * sizeof *weights);
    else if (args->param_dtype == ZERO_FP16)
        memcpy(weights, (const float *)args->master_lo + state, n * sizeof *weights);
    else
        for (size_t i = 0; i < n; ++i)
            weights[i] = zero_join_master(((const uint16_t *)args->param)[param + i],
                                          ((const int16_t *)args->master_lo)[state + i]);
}

static void write_weights(const zero_adam_t *args, const zero_adam_segment_t *segment, uint64_t first, size_t n,
                          const float *weights)
{
    const size_t param = segment->param + first, state = segment->state + first;
    uint16_t *halves = (uint16_t *)args->param + param;
    if (args->param_dtype == ZERO_FP32) {
        memcpy((float *)args->param + param, weights, n * sizeof *weights);
    } else if (args->param_dtype == ZERO_FP16) {
        memcpy((float *)args->master_lo + state, weights, n * sizeof *weights);
        for (size_t i = 0; i < n; ++i)
            halves[i] = zero_fp16_of_float(weights[i]);
    } else {
        int16_t *master_lo = (int16_t *)args->master_lo + state;
        for (size_t i = 0; i < n; ++i) {
            halves[i] = zero_split_param(weights[i]);
            master_lo[i] = zero_split_master_lo(weights[i]);
        }
    }
}

/* ---- the update ---- */

/* Updates the block that begins at element `first` of the segment. What it has beyond the segment's end is computed
 * from zeros, and so is 0. */
static void update_block(const zero_adam_t *args, const zero_adam_segment_t *segment, uint64_t first,
                         const zero_adam_scalars_t *given, float shrink)
{
    const zero_adam_scalars_t scalars = *given;
    const size_t n = segment->n_elems - first < BLOCK ? segment->n_elems - first : BLOCK;
    const size_t at = (segment->state + first) / BLOCK;
    zero_block8_t *m_block = (zero_block8_t *)(void *)args->m + at, *v_block = (zero_block8_t *)(void *)args->v + at;
    float weights[BLOCK] = {0}, grads[BLOCK] = {0}, m[BLOCK], v[BLOCK];
    read_weights(args, segment, first, n, weights);
    memcpy(grads, args->grad + segment->grad + first, n * sizeof *grads);
    decode_block(m, m_block, true);
    decode_block(v, v_block, false);
#pragma omp simd
    for (size_t i = 0; i < BLOCK; ++i) {
        float w = weights[i], new_m = m[i], new_v = v[i];
        zero_adam_element(&scalars, shrink, grads[i], &w, &new_m, &new_v);
        weights[i] = w;
        m[i] = new_m;
        v[i] = new_v;
    }
    encode_block(m_block, m, true);
    encode_block(v_block, v, false);
    write_weights(args, segment, first, n, weights);
}

static uint64_t n_blocks_of(const zero_adam_segment_t *segment)
{
    return (segment->n_elems + BLOCK - 1) / BLOCK;
}

/* Updates blocks [begin, end) of the row that all segments' blocks form. */
static void update_range(const zero_adam_t *args, uint64_t begin, uint64_t end)
{
    uint64_t segment_begin = 0;
    for (size_t s = 0; s < args->n_segments && segment_begin < end; ++s) {
        const zero_adam_segment_t *segment = &args->segments[s];
        const uint64_t segment_end = segment_begin + n_blocks_of(segment);
        const uint64_t from = begin > segment_begin ? begin : segment_begin, to = end < segment_end ? end : segment_end;
        zero_adam_scalars_t scalars = *args->scalars;
        float decay = segment->decay;
        zero_take_tensor_scalars(args, segment, &scalars, &decay);
        for (uint64_t block = from; block < to; ++block)
            update_block(args, segment, (block - segment_begin) * BLOCK, &scalars, -(scalars.lr * decay));
        segment_begin = segment_end;
    }
}

zero_status_t ZERO_ISA(zero_shard_adam8)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    if (args->scalars->skip)
        return ZERO_OK;
    uint64_t n_blocks = 0;
    for (size_t s = 0; s < args->n_segments; ++s)
        n_blocks += n_blocks_of(&args->segments[s]);
#pragma omp parallel if (n_blocks * BLOCK >= ZERO_SHARD_PARALLEL_MIN)
    {
        const uint64_t n_threads = (uint64_t)omp_get_num_threads(), thread = (uint64_t)omp_get_thread_num();
        update_range(args, n_blocks * thread / n_threads, n_blocks * (thread + 1) / n_threads);
    }
    return ZERO_OK;
}
