/* column_sum.cu - column sums on CUDA in a fixed order: bias gradients, and the last step of every gradient that is
 * summed in parts.
 *
 * Rows are divided into parts by their number alone. A block sums a part's rows for one tile of columns (column.cuh). A
 * second kernel adds the parts: each of its PUT_WARPS warps adds every PUT_WARPS-th part, then the sums of the warps
 * are added in order. Without atomics, the order depends on shapes alone.
 */
#include "train/kernels/cuda/column.cuh"

#define PUT_WARPS 32     /* per block that adds parts: many, since each waits for a few loads of its own */
#define PARTS_AHEAD 5    /* parts whose loads are in flight together */
#define TILE_COLUMNS 256 /* per block that reads packs of 16-bit elements */
#define MIN_PART_ROWS 32
#define ROWS_AHEAD 8 /* rows whose loads are in flight together */
/* Blocks that an H200 runs at once. With more, the last ones would run while most of the GPU idles. */
#define MAX_BLOCKS 528

extern "C" size_t zero_column_sum_parts(size_t n_rows, size_t n_columns)
{
    size_t most = MAX_BLOCKS / zero_divide_up(n_columns, TILE_COLUMNS), wanted = zero_divide_up(n_rows, MIN_PART_ROWS);
    return most < 1 ? 1 : most < wanted ? most : wanted;
}

/* Parts times tiles are at most MAX_BLOCKS, except for a single part of many columns. */
extern "C" size_t zero_column_sum_bytes(size_t max_columns)
{
    size_t most = (size_t)MAX_BLOCKS * TILE_COLUMNS;
    return (max_columns > most ? max_columns : most) * sizeof(float);
}

template <typename T, int N>
static __global__ void __launch_bounds__(ZERO_WARP *ZERO_COLUMN_WARPS, 4)
    sum_part(float *partials, const T *x, size_t n_rows, size_t n_columns)
{
    size_t column = ((size_t)blockIdx.x * ZERO_WARP + threadIdx.x) * N;
    size_t step = (size_t)gridDim.y * ZERO_COLUMN_WARPS;
    float sum[N] = {};
    zero_may_launch_next();
    for (size_t row = zero_first_row(); column < n_columns && row < n_rows; row += ROWS_AHEAD * step) {
        zero_pack<T, N> packs[ROWS_AHEAD];
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r)
            if (row + r * step < n_rows)
                packs[r] = zero_load<N>(x, (row + r * step) * n_columns + column);
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (row + r * step < n_rows)
                    sum[i] += packs[r][i];
    }
    zero_put_part(partials, column, n_columns, sum);
}

/* Where partials [n_parts, n_grads, n_columns] go; some of the n_grads gradients may have no data. */
typedef struct put_targets {
    zero_grad_t grad[ZERO_MAX_PUT];
} put_targets_t;

static __global__ void __launch_bounds__(ZERO_WARP *PUT_WARPS)
    put_partials(put_targets_t targets, const float *partials, size_t n_parts, size_t stride, size_t n_columns)
{
    size_t column = (size_t)blockIdx.x * ZERO_WARP + threadIdx.x;
    float sum[1] = {0.0f};
    zero_wait_for_last();
    for (size_t first = threadIdx.y; column < stride && first < n_parts; first += PARTS_AHEAD * PUT_WARPS) {
        float part[PARTS_AHEAD];
#pragma unroll
        for (int p = 0; p < PARTS_AHEAD; ++p)
            part[p] = first + p * PUT_WARPS < n_parts ? partials[(first + p * PUT_WARPS) * stride + column] : 0.0f;
#pragma unroll
        for (int p = 0; p < PARTS_AHEAD; ++p)
            sum[0] += part[p];
    }
    zero_add_warps<PUT_WARPS>(sum);
    if (threadIdx.y != 0 || column >= stride)
        return;
    const zero_grad_t &grad = targets.grad[column / n_columns];
    if (grad.data != nullptr)
        zero_put_grad(grad, column % n_columns, sum);
}

extern "C" cudaError_t zero_launch_put_partials(cudaStream_t stream, const zero_grad_t *grads, size_t n_grads,
                                                const float *partials, size_t n_parts, size_t n_columns)
{
    dim3 block(ZERO_WARP, PUT_WARPS);
    size_t stride = n_grads * n_columns;
    put_targets_t targets = {};
    bool is_wanted = false;
    for (size_t i = 0; i < n_grads; ++i) {
        targets.grad[i] = grads[i];
        is_wanted = is_wanted || grads[i].data != nullptr;
    }
    if (!is_wanted) /* the weights are frozen */
        return cudaSuccess;
    return zero_launch_next(stream, put_partials, (unsigned)zero_divide_up(stride, ZERO_WARP), block, targets, partials,
                            n_parts, stride, n_columns);
}

template <typename T, int N>
static cudaError_t launch_parts(cudaStream_t stream, float *partials, const T *x, size_t n_rows, size_t n_columns)
{
    dim3 block(ZERO_WARP, ZERO_COLUMN_WARPS);
    sum_part<T, N><<<zero_column_grid<N>(n_rows, n_columns), block, 0, stream>>>(partials, x, n_rows, n_columns);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_column_sum(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t grad, const void *x,
                                              float *partials, size_t n_rows, size_t n_columns)
{
    cudaError_t error = zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(x) && n_columns % N == 0)
            return launch_parts<T, N>(stream, partials, (const T *)x, n_rows, n_columns);
        return launch_parts<T, 1>(stream, partials, (const T *)x, n_rows, n_columns);
    });
    if (error != cudaSuccess)
        return error;
    return zero_launch_put_partials(stream, &grad, 1, partials, zero_column_sum_parts(n_rows, n_columns), n_columns);
}

#define PUT_THREADS 256
#define PUT_ELEMS 4 /* per thread */

static __global__ void __launch_bounds__(PUT_THREADS) put_grad(zero_grad_t grad, const float *sums, size_t n_elems)
{
    size_t first = ((size_t)blockIdx.x * PUT_THREADS + threadIdx.x) * PUT_ELEMS;
    if (first + PUT_ELEMS <= n_elems) {
        zero_put_grad(grad, first, zero_load<PUT_ELEMS>(sums, first).elem);
        return;
    }
    for (size_t i = first; i < n_elems; ++i) {
        float value[1] = {sums[i]};
        zero_put_grad(grad, i, value);
    }
}

/* sums are in the workspace, so they are aligned. */
extern "C" cudaError_t zero_launch_put_grad(cudaStream_t stream, zero_grad_t grad, const float *sums, size_t n_elems)
{
    put_grad<<<(unsigned)zero_divide_up(n_elems, PUT_THREADS * PUT_ELEMS), PUT_THREADS, 0, stream>>>(grad, sums,
                                                                                                     n_elems);
    return cudaGetLastError();
}
