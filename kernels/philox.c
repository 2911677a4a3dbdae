/* philox.c - initial values on the CPU: normal numbers that depend only on seed, key and element index. So they are the
 * same at every world size and however the work is split.
 *
 * Element e is word e % 4 of Philox block e / 4; two words make two normals (shard_math.h). Numbers are computed in
 * whole tiles, which begin at multiples of TILE_ELEMS in the index, and the part of a tile that was asked for is copied
 * out. A tile holds the four words of all its blocks in four rows, so that the loop over blocks vectorizes. Called
 * through the table.
 */
#include "kernels/shard_isa.h"
#include "kernels/shard_math.h"

#define TILE_BLOCKS 128
#define TILE_ELEMS (TILE_BLOCKS * 4)

typedef struct tile {
    float word[4][TILE_BLOCKS]; /* word[k][b]: element 4 b + k */
} tile_t;

static void make_tile(tile_t *restrict tile, uint64_t first_block, uint64_t seed, uint64_t key, float std)
{
    const uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    /* A tile begins at a multiple of its length, so only the low bits of the block number change inside it. */
    const uint32_t block0 = (uint32_t)first_block, block1 = (uint32_t)(first_block >> 32);
#pragma omp simd
    for (uint32_t b = 0; b < TILE_BLOCKS; ++b) {
        uint32_t c0 = block0 + b, c1 = block1, c2 = (uint32_t)key, c3 = (uint32_t)(key >> 32);
        zero_philox(&c0, &c1, &c2, &c3, key0, key1);
        float z0, z1, z2, z3;
        zero_box_muller(c0, c1, &z0, &z1);
        zero_box_muller(c2, c3, &z2, &z3);
        tile->word[0][b] = std * z0;
        tile->word[1][b] = std * z1;
        tile->word[2][b] = std * z2;
        tile->word[3][b] = std * z3;
    }
}

zero_status_t ZERO_ISA(zero_shard_fill_normal)(float *dst, size_t n_elems, uint64_t seed, uint64_t key, uint64_t first,
                                               float std, zero_stream_t stream)
{
    (void)stream;
    const uint64_t end = first + n_elems;
    const uint64_t first_tile = first / TILE_ELEMS, end_tile = end / TILE_ELEMS + (end % TILE_ELEMS != 0);
#pragma omp parallel for schedule(static) if (n_elems >= ZERO_SHARD_PARALLEL_MIN)
    for (uint64_t t = first_tile; t < end_tile; ++t) {
        tile_t tile;
        make_tile(&tile, t * TILE_BLOCKS, seed, key, std);
        const uint64_t begin = t * TILE_ELEMS;
        const uint64_t from = begin > first ? begin : first;
        const uint64_t to = end - begin < TILE_ELEMS ? end : begin + TILE_ELEMS;
        for (uint64_t e = from; e < to; ++e)
            dst[e - first] = tile.word[e % 4][(e - begin) / 4];
    }
    return ZERO_OK;
}
