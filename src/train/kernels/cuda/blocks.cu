/* blocks.cu - copies and sums of matrices within larger ones: heads of a sequence that ranks share. A thread owns a
 * pack of columns in a row; blocks are added in fp32, in order, and rounded once. */
#include "train/kernels/cuda/pack.cuh"

#define THREADS 256

typedef struct blocks {
    zero_block_t of[ZERO_MAX_BLOCKS];
    int n;
} blocks_t;

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_blocks(T *dst, size_t dst_stride, const __grid_constant__ blocks_t blocks, size_t row_packs, size_t n_packs)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_packs)
        return;
    size_t row = i / row_packs, column = i % row_packs * N;
    zero_pack<T, N> first = zero_load<N>((const T *)blocks.of[0].data, row * blocks.of[0].stride + column);
    if (blocks.n == 1) {
        zero_store_pack<N>(dst, row * dst_stride + column, first);
        return;
    }
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k)
        sum[k] = first[k];
    for (int b = 1; b < blocks.n; ++b) {
        zero_pack<T, N> addend = zero_load<N>((const T *)blocks.of[b].data, row * blocks.of[b].stride + column);
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum[k] += addend[k];
    }
    zero_store(dst, row * dst_stride + column, sum);
}

template <typename T, int N>
static cudaError_t launch(cudaStream_t stream, void *dst, size_t dst_stride, const blocks_t *blocks, size_t n_rows,
                          size_t n_columns)
{
    size_t row_packs = n_columns / N, n_packs = n_rows * row_packs;
    sum_blocks<T, N><<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>((T *)dst, dst_stride, *blocks,
                                                                                         row_packs, n_packs);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_sum_blocks(cudaStream_t stream, zero_dtype_t dtype, void *dst, size_t dst_stride,
                                              const zero_block_t *blocks, int n_blocks, size_t n_rows, size_t n_columns)
{
    blocks_t all = {};
    all.n = n_blocks;
    for (int b = 0; b < n_blocks; ++b)
        all.of[b] = blocks[b];
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        bool packs = zero_aligned(dst) && dst_stride % N == 0 && n_columns % N == 0;
        for (int b = 0; b < n_blocks; ++b)
            packs = packs && zero_aligned(blocks[b].data) && blocks[b].stride % N == 0;
        auto launcher = packs ? launch<T, N> : launch<T, 1>;
        return launcher(stream, dst, dst_stride, &all, n_rows, n_columns);
    });
}
