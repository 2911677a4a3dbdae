/* column.cuh - column sums inside a kernel, for column_sum.cu and for kernels that sum the columns they write.
 *
 * The warps of all blocks take turns with the rows of a tile of columns, so that together they read one stretch of
 * memory at any time. The rows of a block are a part; the block adds the sums of its warps in order. column_sum.cu sets
 * the number of parts.
 */
#ifndef ZERO_COLUMN_CUH
#define ZERO_COLUMN_CUH

#include "train/kernels/cuda/pack.cuh"

#define ZERO_COLUMN_WARPS 8 /* per block; each takes a row */

/* Returns a warp's first row; its next is gridDim.y * ZERO_COLUMN_WARPS rows further. */
static __device__ __forceinline__ size_t zero_first_row(void)
{
    return (size_t)blockIdx.y * ZERO_COLUMN_WARPS + threadIdx.y;
}

/* Adds the sums of WARPS warps, for N columns per lane; the first warp gets the result. The whole block calls it. */
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

/* Ends such a kernel: stores the block's part of partials, fp32 [gridDim.y, n_columns]. A lane's columns begin at
 * `column`. */
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

/* Returns the grid of a launch over n_columns, N of them per lane. */
template <int N> static inline dim3 zero_column_grid(size_t n_rows, size_t n_columns)
{
    return dim3((unsigned)zero_divide_up(n_columns, ZERO_WARP * N), (unsigned)zero_column_sum_parts(n_rows, n_columns));
}

#endif
