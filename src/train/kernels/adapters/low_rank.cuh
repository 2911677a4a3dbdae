/* low_rank.cuh - u B for a warp: 16 rows of few columns u times 32 columns of B, by tensor cores.
 *
 * Columns are dealt to the products' lanes so that each lane gets eight neighbours of a row, 16 bytes of bf16: of lane
 * 4 g + t and product j, elements 0 and 1 are columns 8t + 2j and 8t + 2j + 1 of row g, and 2 and 3 those of row g + 8.
 * A lane keeps its part of B in registers while its warp goes down the rows.
 */
#ifndef ZERO_LOW_RANK_CUH
#define ZERO_LOW_RANK_CUH

#include "train/kernels/cuda/mma.cuh"

#define ZERO_LOW_RANK_MAX 32     /* the most columns of u */
#define ZERO_LOW_RANK_COLUMNS 32 /* a warp's */
#define ZERO_LOW_RANK_ROWS 16    /* at a time */

/* A block's. */
#define ZERO_LOW_RANK_WARPS 8
#define ZERO_LOW_RANK_THREADS (ZERO_LOW_RANK_WARPS * ZERO_WARP)
#define ZERO_LOW_RANK_BLOCK_COLUMNS (ZERO_LOW_RANK_WARPS * ZERO_LOW_RANK_COLUMNS)
#define ZERO_LOW_RANK_BLOCK_ROWS 128

/* u and B of a kernel, without dtypes. */
struct zero_low_rank_operands {
    const __nv_bfloat16 *u; /* [n_rows, rank], rows of stride ld, 16-byte aligned; NULL: nothing is added */
    const __nv_bfloat16 *b; /* [width, rank], rows of stride ldb; transposed: [rank, width] */
    size_t ld, ldb;
    uint32_t rank; /* a multiple of 8 */
};

/* A lane's part of B. STEPS: of 16 columns of u; those behind `rank` are zeros. */
template <int STEPS> struct zero_low_rank_columns {
    uint32_t b[4][STEPS][2];

    template <bool TRANSPOSED>
    __device__ __forceinline__ void load(const zero_low_rank_operands &of, size_t first_column, size_t width)
    {
        const uint32_t lane = threadIdx.x % ZERO_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 2 * STEPS; ++i) {
                const size_t column = first_column + g / 2 * 8 + 2 * j + g % 2, k = 8 * (uint32_t)i + 2 * t;
                const bool valid = of.u != nullptr && column < width && k < of.rank;
                uint32_t two = 0;
                if (valid && TRANSPOSED) {
                    const uint16_t *from = reinterpret_cast<const uint16_t *>(of.b) + k * of.ldb + column;
                    two = from[0] | (uint32_t)from[of.ldb] << 16;
                } else if (valid) {
                    two = *reinterpret_cast<const uint32_t *>(of.b + column * of.ldb + k);
                }
                b[j][i / 2][i % 2] = two;
            }
    }
};

/* The rows of u that a block needs, in shared memory. A row takes 16 bytes more than it has, so that eight of them lie
 * in different banks. */
template <int STEPS, int ROWS> struct zero_low_rank_tile {
    static constexpr int CHUNKS = 2 * STEPS, STRIDE = 16 * STEPS + 8;
    __nv_bfloat16 u[ROWS * STRIDE];

    /* Starts copying; all threads of the block call it. Rows and ranks that do not exist become zeros. */
    __device__ __forceinline__ void load(const zero_low_rank_operands &of, size_t first_row, size_t n_rows)
    {
        for (uint32_t i = threadIdx.x; i < ROWS * CHUNKS; i += blockDim.x) {
            const uint32_t row = i / CHUNKS, k = i % CHUNKS * 8;
            const bool valid = of.u != nullptr && first_row + row < n_rows && k < of.rank;
            __nv_bfloat16 *to = u + row * STRIDE + k;
            if (valid)
                zero_copy_16(zero_shared_address(to), of.u + (first_row + row) * of.ld + k, true);
            else
                *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
        }
    }
};

/* A lane's part of 16 rows of a tile. */
template <int STEPS> struct zero_low_rank_rows {
    uint32_t a[STEPS][4];

    template <int ROWS>
    __device__ __forceinline__ void load(const zero_low_rank_tile<STEPS, ROWS> &tile, uint32_t first_row)
    {
        const uint32_t lane = threadIdx.x % ZERO_WARP, g = lane / 4, t = lane % 4;
        const __nv_bfloat16 *from = tile.u + (first_row + g) * tile.STRIDE + 2 * t;
#pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i)
            a[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(from + i % 2 * 8 * tile.STRIDE + i / 2 * 8);
    }
};

/* Eight neighbours of a row. */
typedef zero_pack<__nv_bfloat16, 8> zero_octet;

/* By one instruction: the compiler would store each word once its product is there, which takes three times as long. */
static __device__ __forceinline__ void zero_store_octet(__nv_bfloat16 *to, const zero_octet &octet)
{
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(octet.word[0]), "r"(octet.word[1]),
                 "r"(octet.word[2]), "r"(octet.word[3])
                 : "memory");
}

/* sums += u B, of product j's columns. */
template <int STEPS>
static __device__ __forceinline__ void zero_add_low_rank(float (&sums)[4], const zero_low_rank_rows<STEPS> &rows,
                                                         const zero_low_rank_columns<STEPS> &columns, int j)
{
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
        zero_mma<__nv_bfloat16>(sums, rows.a[s], columns.b[j][s][0], columns.b[j][s][1]);
}

#endif
