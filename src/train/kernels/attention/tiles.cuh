/* tiles.cuh - attention's tiles of rows in shared memory, and their products by tensor cores.
 *
 * A tile holds rows of one head, DIM elements each, zeros where the head or the sequence ends: the first 64 elements of
 * all rows, then the others. So a row takes 128 bytes at a time, in chunks of 16. They are exchanged by the low bits of
 * the row's number, so that the chunks that one instruction reads, of 8 rows, lie in different banks; Hopper's products
 * expect them so. Tiles are aligned to 1024 bytes.
 *
 * A warp owns M times 16 rows of its block's own tile, and OTHER rows of the other side pass by. On Hopper (WIDE) four
 * warps multiply together.
 */
#ifndef ZERO_ATTENTION_TILES_CUH
#define ZERO_ATTENTION_TILES_CUH

#include "train/kernels/attention/head.cuh"
#include "train/kernels/attention/wgmma.cuh"
#include "train/kernels/common.h"

#define OTHER 64
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

#define ROW_BYTES 128
template <int DIM> static constexpr int n_chunks = DIM / 8;
/* Bytes of a tile. */
template <int DIM, int ROWS> static constexpr int tile_bytes = (DIM + 63) / 64 * ROWS *ROW_BYTES;

/* Returns where a chunk is in a tile of ROWS rows, or from one of its rows on, a multiple of 8. */
template <int ROWS> static __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk)
{
    return (uint32_t)((chunk / 8 * ROWS + row) * ROW_BYTES + ((chunk % 8 ^ (row & 7)) << 4));
}

/* Starts copying rows first .. first + N of a head, which begins at `rows`, by all threads of the block. */
template <int DIM, int N, int THREADS, typename T>
static __device__ __forceinline__ void load_rows(uint32_t tile, const T *rows, size_t width, int first, sizes_t s)
{
#pragma unroll
    for (int i = 0; i < (N * n_chunks<DIM> + THREADS - 1) / THREADS; ++i) {
        int at = i * THREADS + (int)threadIdx.x, row = at / n_chunks<DIM>, chunk = at % n_chunks<DIM>;
        bool valid = first + row < s.seq_len && chunk * 8 < s.head_dim;
        if (N * n_chunks<DIM> % THREADS == 0 || row < N)
            zero_copy_16(tile + chunk_offset<N>(row, chunk),
                         rows + (valid ? (size_t)(first + row) * width + chunk * 8 : 0), valid);
    }
}

/* Returns the product of 8 elements of dout, from `at` on, with those of out. */
template <typename T> static __device__ __forceinline__ float product_of_8(const T *dout, const T *out, size_t at)
{
    const zero_pack<T, 8> a = zero_load<8>(dout, at), b = zero_load<8>(out, at);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

/* Computes the products of the warp's rows, which begin at a, with those of the other tile. */
template <typename T, int DIM, int OWN, int M>
static __device__ __forceinline__ void tile_dots(float (&dots)[M][OTHER / 8][4], uint32_t a, uint32_t b, int lane)
{
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                dots[m][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
            zero_load_matrices(left[m], a + chunk_offset<OWN>(m * 16 + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < OTHER / 16; ++n) {
            uint32_t right[4];
            int row = n * 16 + (lane & 7) + (lane >> 4) * 8;
            zero_load_matrices(right, b + chunk_offset<OTHER>(row, 2 * k + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                zero_mma<T>(dots[m][2 * n], left[m], right[0], right[1]);
                zero_mma<T>(dots[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Rounds weights, of the warp's rows and the other tile's, to the elements of a product's left side. */
template <typename T, int K>
static __device__ __forceinline__ void round_weights(uint32_t (&rounded)[K][4], const float (&weights)[2 * K][4])
{
#pragma unroll
    for (int k = 0; k < K; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&pair)[4] = weights[2 * k + i / 2];
            rounded[k][i] = zero_pair<T>::of(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
}
template <typename T, int M>
static __device__ __forceinline__ void round_weights(uint32_t (&rounded)[M][OTHER / 16][4],
                                                     const float (&weights)[M][OTHER / 8][4])
{
#pragma unroll
    for (int m = 0; m < M; ++m)
        round_weights<T>(rounded[m], weights[m]);
}

/* Adds weights times the other tile to the warp's rows of sums. */
template <typename T, int DIM, int M>
static __device__ __forceinline__ void
tile_accumulate(float (&sums)[M][DIM / 8][4], const uint32_t (&weights)[M][OTHER / 16][4], uint32_t b, int lane)
{
#pragma unroll
    for (int k = 0; k < OTHER / 16; ++k)
#pragma unroll
        for (int n = 0; n < DIM / 16; ++n) {
            uint32_t right[4];
            zero_load_matrices_transposed(right, b + chunk_offset<OTHER>(k * 16 + (lane & 15), 2 * n + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                zero_mma<T>(sums[m][2 * n], weights[m][k], right[0], right[1]);
                zero_mma<T>(sums[m][2 * n + 1], weights[m][k], right[2], right[3]);
            }
        }
}

/* Start the same products by four warps, whose 64 rows begin at a. The other tile has 8 N rows, or 16 K. The sums are
 * there after zero_wide_wait. */
template <typename T, int DIM, int OWN, int N>
static __device__ __forceinline__ void wide_dots(float (&dots)[N][4], uint32_t a, uint32_t b)
{
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k)
        zero_wide_dot<T>(dots, zero_wide_tile(a + k / 4 * OWN * ROW_BYTES + k % 4 * 32, 0),
                         zero_wide_tile(b + k / 4 * 8 * N * ROW_BYTES + k % 4 * 32, 0), k > 0);
    zero_wide_commit();
}
template <typename T, int DIM, int K>
static __device__ __forceinline__ void wide_accumulate(float (&sums)[DIM / 8][4], uint32_t (&weights)[K][4], uint32_t b)
{
    zero_wide_hold(sums);
    zero_wide_hold(weights);
    zero_wide_begin();
#pragma unroll
    for (int k = 0; k < K; ++k)
        zero_wide_add<T>(sums, weights[k], zero_wide_tile(b + k * 16 * ROW_BYTES, 16 * K * ROW_BYTES));
    zero_wide_commit();
}

/* Writes the warp's rows, times their factors, to rows first .. of a head that begins at `rows`. They pass through the
 * warp's rows of a tile, `staging`, which all have read. */
template <typename T, int DIM, int OWN, int M>
static __device__ __forceinline__ void store_rows(T *rows, size_t width, int first, sizes_t s, unsigned char *staging,
                                                  const float (&sums)[M][DIM / 8][4], const float (&factors)[M][2],
                                                  int lane)
{
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *(uint32_t *)(staging + chunk_offset<OWN>(m * 16 + half * 8 + lane / 4, n) + lane % 4 * 4) =
                    zero_pair<T>::of(sums[m][n][2 * half] * factors[m][half],
                                     sums[m][n][2 * half + 1] * factors[m][half]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M * 16 * n_chunks<DIM> / ZERO_WARP; ++i) {
        int at = i * ZERO_WARP + lane, row = at / n_chunks<DIM>, chunk = at % n_chunks<DIM>;
        if (first + row < s.seq_len && chunk * 8 < s.head_dim)
            *(uint4 *)(rows + (size_t)(first + row) * width + chunk * 8) =
                *(const uint4 *)(staging + chunk_offset<OWN>(row, chunk));
    }
}

/* How much of a tile of queries and keys is seen. */
typedef enum sight { SIGHT_NONE, SIGHT_SOME, SIGHT_ALL } sight_t;

/* Of n_queries and n_keys from query and key on; first and last: the first keys that the first and last query see. */
static __device__ __forceinline__ sight_t sight_of(int query, int n_queries, int key, int n_keys, int first, int last)
{
    if (key > query + n_queries - 1 || key + n_keys <= first)
        return SIGHT_NONE;
    return key + n_keys - 1 <= query && last <= key ? SIGHT_ALL : SIGHT_SOME;
}

/* ---- Launching ---- */

/* Calls f with a value of the C++ type of a dtype of 16 bits. */
template <typename F> static inline cudaError_t with_half_type(zero_dtype_t dtype, F f)
{
    return dtype == ZERO_BF16 ? f(__nv_bfloat16()) : f(__half());
}

/* Calls f with the DIM, a compile-time number, that covers head_dim, and with whether the GPU is a Hopper. */
template <typename F> static inline cudaError_t with_head_dim(int head_dim, F f)
{
    int capability;
    cudaError_t error = zero_find_capability(&capability);
    if (error != cudaSuccess)
        return error;
    if (capability / 10 == 9)
        return head_dim <= 64 ? f(constant<64>(), constant<true>())
                              : f(constant<ZERO_ATTENTION_MMA_MAX_HEAD_DIM>(), constant<true>());
    if (head_dim <= 64)
        return f(constant<64>(), constant<false>());
    if (head_dim <= 96)
        return f(constant<96>(), constant<false>());
    return f(constant<ZERO_ATTENTION_MMA_MAX_HEAD_DIM>(), constant<false>());
}

#endif
