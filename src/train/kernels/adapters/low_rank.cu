/* low_rank.cu - c = scale u B, or c += scale u B, of few columns u: what adapters write to a layer's output or input
 * gradient.
 *
 * Bound by the memory that it writes. To write 64 MiB (H200) it takes 20 us with 16 columns of u, 22 if B is
 * transposed, and 25 with 32 columns; cuBLASLt takes 25 to 27, and is faster with 48. A warp takes 32 columns of c,
 * whose part of B it keeps in registers, and goes down the rows; the warps of a block lie side by side.
 */
#include "train/kernels/adapters/adapters.h"
#include "train/kernels/adapters/low_rank.cuh"

typedef struct call {
    zero_low_rank_operands of;
    __nv_bfloat16 *c;
    size_t n_rows, width, ldc;
    float scale;
} call_t;

template <int STEPS, bool TRANSPOSED, bool ACCUMULATE>
static __global__ void __launch_bounds__(ZERO_LOW_RANK_THREADS) low_rank(const __grid_constant__ call_t call)
{
    __shared__ __align__(16) zero_low_rank_tile<STEPS, ZERO_LOW_RANK_BLOCK_ROWS> tile;
    const uint32_t warp = threadIdx.x / ZERO_WARP, lane = threadIdx.x % ZERO_WARP, g = lane / 4, t = lane % 4;
    const size_t first_column = (size_t)blockIdx.x * ZERO_LOW_RANK_BLOCK_COLUMNS + warp * ZERO_LOW_RANK_COLUMNS;
    const size_t first_row = (size_t)blockIdx.y * ZERO_LOW_RANK_BLOCK_ROWS, column = first_column + 8 * t,
                 step = 8 * call.ldc;
    const uint32_t n_rows = (uint32_t)min(call.n_rows - first_row, (size_t)ZERO_LOW_RANK_BLOCK_ROWS);
    __nv_bfloat16 *c = call.c + (first_row + g) * call.ldc + column;
    zero_low_rank_columns<STEPS> columns;
    tile.load(call.of, first_row, call.n_rows);
    columns.template load<TRANSPOSED>(call.of, first_column, call.width);
    zero_wait_for_copies();
    __syncthreads();
    for (uint32_t row = 0; row < n_rows; row += ZERO_LOW_RANK_ROWS, c += 2 * step) {
        zero_low_rank_rows<STEPS> rows;
        zero_octet octets[2] = {};
        bool exist[2];
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            exist[below] = column < call.width && row + g + 8 * below < n_rows;
            if (ACCUMULATE && exist[below])
                octets[below] = zero_load<8>(c, below * step);
        }
        rows.load(tile, row);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float sums[4] = {};
            zero_add_low_rank(sums, rows, columns, j);
#pragma unroll
            for (int below = 0; below < 2; ++below)
                octets[below].word[j] =
                    zero_pair<__nv_bfloat16>::of(fmaf(call.scale, sums[2 * below], octets[below][2 * j]),
                                                 fmaf(call.scale, sums[2 * below + 1], octets[below][2 * j + 1]));
        }
#pragma unroll
        for (int below = 0; below < 2; ++below)
            if (exist[below])
                zero_store_octet(c + below * step, octets[below]);
    }
}

template <int STEPS> static void launch(cudaStream_t stream, const call_t &call, bool transposed, bool accumulate)
{
    const dim3 grid((unsigned)zero_divide_up(call.width, ZERO_LOW_RANK_BLOCK_COLUMNS),
                    (unsigned)zero_divide_up(call.n_rows, ZERO_LOW_RANK_BLOCK_ROWS));
    if (transposed && accumulate)
        low_rank<STEPS, true, true><<<grid, ZERO_LOW_RANK_THREADS, 0, stream>>>(call);
    else if (transposed)
        low_rank<STEPS, true, false><<<grid, ZERO_LOW_RANK_THREADS, 0, stream>>>(call);
    else if (accumulate)
        low_rank<STEPS, false, true><<<grid, ZERO_LOW_RANK_THREADS, 0, stream>>>(call);
    else
        low_rank<STEPS, false, false><<<grid, ZERO_LOW_RANK_THREADS, 0, stream>>>(call);
}

extern "C" bool zero_low_rank_takes(const zero_product_t *p)
{
    const bool is_bf16 = p->a.dtype == ZERO_BF16 && p->b.dtype == ZERO_BF16 && p->c.dtype == ZERO_BF16;
    const bool has_a = !p->transpose_a && zero_aligned(p->a.data) && p->lda % 8 == 0;
    const bool has_b = !p->transpose_b || ((uintptr_t)p->b.data % sizeof(uint32_t) == 0 && p->ldb % 2 == 0);
    const bool has_c = zero_aligned(p->c.data) && p->ldc % 8 == 0 && p->n % 8 == 0 && p->n > 0;
    return is_bf16 && has_a && has_b && has_c && p->k % 8 == 0 && p->k > 0 && p->k <= ZERO_LOW_RANK_MAX && p->m > 0 &&
           p->m / ZERO_LOW_RANK_BLOCK_ROWS < 65535;
}

extern "C" cudaError_t zero_launch_low_rank(cudaStream_t stream, const zero_product_t *p)
{
    const call_t call = {
        .of = {(const __nv_bfloat16 *)p->a.data, (const __nv_bfloat16 *)p->b.data, p->lda, p->ldb, (uint32_t)p->k},
        .c = (__nv_bfloat16 *)p->c.data,
        .n_rows = p->m,
        .width = p->n,
        .ldc = p->ldc,
        .scale = p->scale};
    const bool transposed = !p->transpose_b; /* b is [k, n] */
    if (p->k <= 16)
        launch<1>(stream, call, transposed, p->c.accumulate);
    else
        launch<2>(stream, call, transposed, p->c.accumulate);
    return cudaGetLastError();
}
