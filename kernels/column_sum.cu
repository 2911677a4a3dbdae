/* column_sum.cu - column sums on CUDA in a fixed order: bias gradients, and the last step of every gradient that is
 * summed in parts.
 *
 * Rows are cut into parts by their number alone. A block sums a part's rows for one tile of columns (column.cuh). The
 * parts are added by a second kernel: each warp takes every so many-th part, then the warps' sums are added in order.
 * No atomics: the order depends on shapes alone.
 */
#include "kernels/column.cuh"

#define PUT_WARPS 32     /* of a block that adds parts: many, since each waits for its own few loads */
#define TILE_COLUMNS 256 /* of a block that reads packs of 16-bit elements */
#define MIN_PART_ROWS 32
/* Blocks that an H200 holds at once: with so many, none waits for a place while others idle. */
#define MAX_BLOCKS 1056

extern "C" size_t zero_column_sum_parts(size_t n_rows, size_t n_columns)
{
    size_t most = MAX_BLOCKS / zero_divide_up(n_columns, TILE_COLUMNS), wanted = zero_divide_up(n_rows, MIN_PART_ROWS);
    return most < 1 ? 1 : most < wanted ? most : wanted;
}

/* Parts times tiles are at most MAX_BLOCKS, but for one part of many columns. */
extern "C" size_t zero_column_sum_bytes(size_t max_columns)
{
    size_t most = (size_t)MAX_BLOCKS * TILE_COLUMNS;
    return (max_columns > most ? max_columns : most) * sizeof(float);
}

template <typename T, int N>
static __global__ void __launch_bounds__(ZERO_WARP *ZERO_COLUMN_WARPS)
    sum_part(float *partials, const T *x, size_t n_rows, size_t n_columns)
{
    size_t column = ((size_t)blockIdx.x * ZERO_WARP + threadIdx.x) * N;
    size_t part = blockIdx.y, first = part * n_rows / gridDim.y, last = (part + 1) * n_rows / gridDim.y;
    float sum[N] = {};
    if (column < n_columns) {
#pragma unroll 8
        for (size_t row = first + threadIdx.y; row < last; row += ZERO_COLUMN_WARPS) {
            zero_pack<T, N> pack = zero_load<N>(x, row * n_columns + column);
#pragma unroll
            for (int i = 0; i < N; ++i)
                sum[i] += pack[i];
        }
    }
    zero_put_part(partials, column, n_columns, sum);
}

/* Partials [n_parts, n_grads, n_columns] go to n_grads gradients, of which some may have no data. */
typedef struct put_targets {
    zero_grad_t grad[ZERO_MAX_PUT];
} put_targets_t;

static __global__ void __launch_bounds__(ZERO_WARP *PUT_WARPS)
    put_partials(put_targets_t targets, const float *partials, size_t n_parts, size_t stride, size_t n_columns)
{
    size_t column = (size_t)blockIdx.x * ZERO_WARP + threadIdx.x;
    float sum[1] = {0.0f};
    if (column < stride) {
#pragma unroll 8
        for (size_t part = threadIdx.y; part < n_parts; part += PUT_WARPS)
            sum[0] += partials[part * stride + column];
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
    for (size_t i = 0; i < n_grads; ++i)
        targets.grad[i] = grads[i];
    put_partials<<<(unsigned)zero_divide_up(stride, ZERO_WARP), block, 0, stream>>>(targets, partials, n_parts, stride,
                                                                                    n_columns);
    return cudaGetLastError();
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
#define PUT_ELEMS 4 /* a thread's */

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

/* sums: of the workspace, so aligned. */
extern "C" cudaError_t zero_launch_put_grad(cudaStream_t stream, zero_grad_t grad, const float *sums, size_t n_elems)
{
    put_grad<<<(unsigned)zero_divide_up(n_elems, PUT_THREADS * PUT_ELEMS), PUT_THREADS, 0, stream>>>(grad, sums,
                                                                                                     n_elems);
    return cudaGetLastError();
}
