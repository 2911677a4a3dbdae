/* adam8.c - AdamW with 8-bit moments over a flat shard on the CPU (Dettmers et al. 2022, arXiv:2110.02861).
 *
 * A block is decoded, updated in fp32 by AdamW's arithmetic, and encoded, so that a new number's rounding depends on
 * its block alone. Blocks are at places that neither shards nor threads move, so neither changes bits. Called through
 * the table.
 */
#include "kernels/adam8_math.h"
#include "kernels/master.h"

enum { BLOCK = ZERO_BLOCK8_ELEMS };

/* ---- codes ---- */

/* Inlined with is_signed known, so that the loops become vector code. */

ZERO_INLINED void decode_block(float *values, const zero_block8_t *block, bool is_signed)
{
    const float scale = block->scale;
#pragma omp simd
    for (size_t i = 0; i < BLOCK; ++i)
        values[i] =
            is_signed ? zero_decode8_signed(block->codes[i], scale) : zero_decode8_unsigned(block->codes[i], scale);
}

ZERO_INLINED void encode_block(zero_block8_t *block, const float *values, bool is_signed)
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

/* ---- the update ---- */

/* Updates the block that begins at element `first` of the part. What it has beyond the segment's end is computed from
 * zeros, and so is 0. */
ZERO_INLINED void update_block(zero_dtype_t form, const zero_adam_t *args, const zero_part_t *part, size_t first)
{
    const zero_adam_scalars_t scalars = part->scalars;
    const float shrink = -(scalars.lr * part->decay);
    const size_t n = part->n_elems - first < BLOCK ? part->n_elems - first : BLOCK;
    const size_t at = (part->state + first) / BLOCK;
    zero_block8_t *m_block = (zero_block8_t *)(void *)args->m + at, *v_block = (zero_block8_t *)(void *)args->v + at;
    float weights[BLOCK] = {0}, grads[BLOCK] = {0}, m[BLOCK], v[BLOCK], room[BLOCK];
    for (size_t i = 0; i < n; ++i)
        weights[i] = zero_read_master(form, part->param, part->master_lo, first + i);
    memcpy(grads, zero_grads_of(part, first, n, room), n * sizeof *grads);
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
    for (size_t i = 0; i < n; ++i)
        zero_write_master(form, part->param, part->master_lo, first + i, weights[i]);
}

ZERO_INLINED void update_part(zero_dtype_t form, const zero_adam_t *args, const zero_part_t *part)
{
    for (size_t first = 0; first < part->n_elems; first += BLOCK)
        update_block(form, args, part, first);
}

static void adam8_part(const zero_adam_t *args, const zero_part_t *part)
{
    ZERO_WITH_FORM(args->param_dtype, update_part, args, part);
}

zero_status_t ZERO_ISA(zero_shard_adam8)(const zero_adam_t *args, zero_stream_t stream)
{
    (void)stream;
    return zero_update_shard(args, BLOCK, 1, adam8_part);
}
