/* column.cuh - column sums inside a kernel: the warps of all blocks take the rows of a tile of columns in turn, so that
 * at any time they read one stretch of memory; a block's rows are a part, and it adds what its warps hold in order. For
 * column_sum.cu, which says how parts are cut, and for kernels that sum what they write anyway.
 */
#ifndef ZERO_COLUMN_CUH
#define ZERO_COLUMN_CUH

#include "kernels/model/cuda/pack.cuh"

#define ZERO_COLUMN_WARPS 8 /* of a block, a row each */

/* A warp's first row; gridDim.y * ZERO_COLUMN_WARPS rows further is its next. */
static __device__ __forceinline__ size_t zero_first_row(void)
{
    return (size_t)blockIdx.y * ZERO_COLUMN_WARPS + threadIdx.y;
}

/* Adds what WARPS warps hold for N columns a lane; the result is the first warp's. The whole block calls it. */
template <int WARPS, int N> static __device__ __forceinline__ void zero_add_warps(float (&sum)[N])
{
    __shared__ float sums[WARPS][N][ZERO_WARP];
    int lane = threadIdx.x, warp = threadIdx.y;
#pragma unroll
    for (int i = 0; i < N; ++i)
        sums[warp][i][lane] = sum[i];
    __syncthreads();
    if (warp != 0)
        return;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int w = 1; w < WARPS; ++w)
            sum[i] += sums[w][i][lane];
}

/* The end of such a kernel: the block's part of fp32 partials [gridDim.y, n_columns], from `column` on for a lane. */
template <int N>
static __device__ __forceinline__ void zero_put_part(float *partials, size_t column, size_t n_columns, float (&sum)[N])
{
    zero_add_warps<ZERO_COLUMN_WARPS>(sum);
    if (threadIdx.y != 0 || column >= n_columns)
        return;
#pragma unroll
    for (int i = 0; i < N; ++i)
        partials[blockIdx.y * n_columns + column + i] = sum[i];
}

/* Blocks of a launch over n_columns, N of them a lane. */
template <int N> static inline dim3 zero_column_grid(size_t n_rows, size_t n_columns)
{
    return dim3((unsigned)zero_divide_up(n_columns, ZERO_WARP * N), (unsigned)zero_column_sum_parts(n_rows, n_columns));
}

#endif
