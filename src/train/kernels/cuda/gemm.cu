/* gemm.cu - two small kernels for gemm_cuda.c: one fills rows with a bias, one computes the fingerprint that
 * shows whether two algorithms give the same bits.
 */
#include "train/kernels/cuda/pack.cuh"

#define THREADS 256

template <typename T>
static __global__ void __launch_bounds__(THREADS) fill_rows(T *y, const T *row, size_t n_columns, size_t n_elems)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_elems)
        y[i] = row[i % n_columns];
}

extern "C" cudaError_t zero_launch_fill_rows(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *row,
                                             size_t n_rows, size_t n_columns)
{
    size_t n_elems = n_rows * n_columns;
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        fill_rows<<<(unsigned)zero_divide_up(n_elems, THREADS), THREADS, 0, stream>>>((T *)y, (const T *)row, n_columns,
                                                                                      n_elems);
        return cudaGetLastError();
    });
}

/* Mixes every element's bits and index as SplitMix64 does (Steele, Lea, Flood 2014) and adds the results. They are
 * integers, so the order does not matter. */
template <typename WORD>
static __global__ void __launch_bounds__(THREADS)
    fingerprint_rows(zero_fingerprint_t *fingerprint, const WORD *x, size_t n_rows, size_t n_columns, size_t ld)
{
    unsigned long long hash = 0, n_unlike = 0;
    for (size_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        for (size_t column = threadIdx.x; column < n_columns; column += THREADS) {
            WORD bits = x[row * ld + column];
            unsigned long long z = (row * n_columns + column) * 0x9e3779b97f4a7c15ull + bits;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
            hash += z ^ (z >> 31);
            n_unlike += bits != x[0];
        }
    }
    atomicAdd(&fingerprint->hash, hash);
    atomicAdd(&fingerprint->n_unlike_first, n_unlike);
}

extern "C" cudaError_t zero_launch_fingerprint(cudaStream_t stream, zero_dtype_t dtype, zero_fingerprint_t *fingerprint,
                                               const void *x, size_t n_rows, size_t n_columns, size_t ld)
{
    unsigned n_blocks = (unsigned)(n_rows < 4096 ? n_rows : 4096);
    cudaError_t error = cudaMemsetAsync(fingerprint, 0, sizeof *fingerprint, stream);
    if (error != cudaSuccess)
        return error;
    if (dtype == ZERO_FP32)
        fingerprint_rows<<<n_blocks, THREADS, 0, stream>>>(fingerprint, (const uint32_t *)x, n_rows, n_columns, ld);
    else
        fingerprint_rows<<<n_blocks, THREADS, 0, stream>>>(fingerprint, (const uint16_t *)x, n_rows, n_columns, ld);
    return cudaGetLastError();
}
