/* pair_loss.cu - the loss of pairs of documents on CUDA (zero_pair_loss_t): a block takes a pair and adds up its rows;
 * one block adds up pairs; then the gradient's rows are multiplied by what their pair gave. Sums are in double, in
 * fixed trees.
 */
#include "train/kernels/common.h"
#include "train/kernels/cuda/pack.cuh"

#define THREADS 256
#define N_SUMS (ZERO_N_PAIR_SUMS + 1) /* the last is the loss */

/* Adds up the threads' values. Every thread gets the sum. */
static __device__ double sum_block(double value)
{
    __shared__ double sums[THREADS];
    __syncthreads(); /* an earlier sum has been read */
    sums[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    return sums[0];
}

/* Returns how much likelier the model makes a document than the reference does: log p - log p_reference. */
static __device__ double gain(const zero_pair_loss_t &pairs, int32_t begin, int32_t end)
{
    double gained = 0.0;
    for (int32_t row = begin + (int32_t)threadIdx.x; row < end; row += THREADS)
        gained += pairs.reference[row] - pairs.losses[row];
    return sum_block(gained);
}

static __device__ bool has_pair(const zero_pair_loss_t &pairs, size_t pair)
{
    return (size_t)pairs.documents[2 * pair + 1] < pairs.n_rows;
}

static __global__ void __launch_bounds__(THREADS) compute_pairs(const __grid_constant__ zero_pair_loss_t pairs)
{
    const size_t pair = blockIdx.x;
    if (!has_pair(pairs, pair))
        return;
    const int32_t *begins = pairs.documents + 2 * pair;
    const double chosen = pairs.beta * gain(pairs, begins[0], begins[1]);
    const double rejected = pairs.beta * gain(pairs, begins[1], begins[2]);
    const double margin = chosen - rejected;
    double *sums = pairs.pairs + pair * N_SUMS;
    if (threadIdx.x == 0) {
        sums[ZERO_PAIR_CHOSEN] = chosen;
        sums[ZERO_PAIR_REJECTED] = rejected;
        sums[ZERO_PAIR_ACCURACY] = chosen > rejected ? 1.0 : 0.0;
        sums[ZERO_N_PAIR_SUMS] = zero_pair_loss_of(margin);
    }
    const float factor = (float)zero_pair_slope_of(margin);
    for (int32_t row = begins[0] + (int32_t)threadIdx.x; row < begins[2]; row += THREADS)
        pairs.factors[row] = row < begins[1] ? factor : -factor;
}

static __global__ void __launch_bounds__(THREADS) add_pairs(const __grid_constant__ zero_pair_loss_t pairs)
{
    double sums[N_SUMS] = {};
    for (size_t pair = threadIdx.x; pair < pairs.n_rows / 2 && has_pair(pairs, pair); pair += THREADS)
        for (int i = 0; i < N_SUMS; ++i)
            sums[i] += pairs.pairs[pair * N_SUMS + i];
    for (int i = 0; i < N_SUMS; ++i) {
        const double sum = zero_loss_rounded(pairs.loss_weight * sum_block(sums[i]));
        if (threadIdx.x == 0)
            *(i == ZERO_N_PAIR_SUMS ? pairs.loss_sum : pairs.sums + i) += sum;
    }
}

/* A block takes a row. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS) scale_rows(T *dx, const float *factors, size_t dim)
{
    T *row = dx + blockIdx.x * dim;
    const float factor = factors[blockIdx.x];
    for (size_t pack = threadIdx.x; pack < dim / N; pack += THREADS) {
        zero_pack<T, N> loaded = zero_load<N>(row, pack * N);
        float x[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            x[i] = factor * (float)loaded[i];
        zero_store(row, pack * N, x);
    }
}

template <typename T> static void launch_scale(cudaStream_t stream, const zero_pair_loss_t *pairs)
{
    constexpr int N = 16 / sizeof(T);
    const unsigned n_rows = (unsigned)pairs->n_rows;
    if (zero_aligned(pairs->dx) && pairs->dim % N == 0)
        scale_rows<T, N><<<n_rows, THREADS, 0, stream>>>((T *)pairs->dx, pairs->factors, pairs->dim);
    else
        scale_rows<T, 1><<<n_rows, THREADS, 0, stream>>>((T *)pairs->dx, pairs->factors, pairs->dim);
}

extern "C" cudaError_t zero_launch_pair_loss(cudaStream_t stream, zero_dtype_t dtype, const zero_pair_loss_t *pairs)
{
    if (pairs->n_rows >= 2)
        compute_pairs<<<(unsigned)(pairs->n_rows / 2), THREADS, 0, stream>>>(*pairs);
    add_pairs<<<1, THREADS, 0, stream>>>(*pairs);
    if (pairs->dx == nullptr)
        return cudaGetLastError();
    return zero_with_type(dtype, [&](auto type) {
        launch_scale<decltype(type)>(stream, pairs);
        return cudaGetLastError();
    });
}
