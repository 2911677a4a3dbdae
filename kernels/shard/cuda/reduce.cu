/* reduce.cu - sums in a fixed order on CUDA: gradient slices in rank order, and the norm's tree. reduce.c's twin.
 *
 * One block of threads processes one norm chunk, so that the chunk's sum of squares needs no other block. A thread owns
 * four neighbouring lanes of the tree, which is one group of elements in each of the chunk's rows. It has the loads of
 * all rows in flight at once, keeps their sums in registers while slice after slice is added, writes them out and
 * squares them. So gradients are read only once even if the norm is wanted.
 */
#include "kernels/shard/cuda/group.cuh"
#include "kernels/shard/cuda/shard_cuda.h"
#include "kernels/shard/shard_math.h"

constexpr unsigned THREADS = ZERO_NORM_LANES / GROUP_ELEMS;
constexpr unsigned ROWS = ZERO_NORM_CHUNK / ZERO_NORM_LANES;
constexpr unsigned WARP = 32;

/* Widens x. CUDA does not specify which double a NaN float becomes. */
__device__ static double double_of(float x)
{
    return x == x ? (double)x : __longlong_as_double(0x7ff8000000000000);
}

/* ---- A thread's part of a chunk ------------------------------------------------------------------------------------
 */

/* A thread's group in each row. */
struct rows {
    float at[ROWS][GROUP_ELEMS];
};

__device__ static size_t group_in_chunk(unsigned row)
{
    return row * ZERO_NORM_LANES + threadIdx.x * GROUP_ELEMS;
}

__device__ static float to_float(float x, zero_dtype_t)
{
    return x;
}
__device__ static float to_float(uint16_t x, zero_dtype_t dtype)
{
    return dtype == ZERO_BF16 ? zero_float_of_bf16(x) : zero_float_of_fp16(x);
}

/* Loads the thread's groups. WHOLE: the chunk is full and aligned, so whole groups are loaded. Otherwise elements are
 * loaded one by one, and those beyond n_elems are 0. */
template <bool WHOLE, zero_dtype_t DTYPE, typename T>
__device__ static void load_rows(const T *chunk, size_t n_elems, rows *values)
{
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const size_t begin = group_in_chunk(row);
        group<T> x = {};
        if constexpr (WHOLE)
            x = load_group(chunk + begin);
        else
            for (unsigned i = 0; i < GROUP_ELEMS; ++i)
                x.at[i] = begin + i < n_elems ? chunk[begin + i] : T(0);
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            values->at[row][i] = to_float(x.at[i], DTYPE);
    }
}

template <bool WHOLE> __device__ static void store_rows(float *chunk, size_t n_elems, const rows &values)
{
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const size_t begin = group_in_chunk(row);
        group<float> x;
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            x.at[i] = values.at[row][i];
        if constexpr (WHOLE)
            store_group(chunk + begin, x);
        else
            for (unsigned i = 0; i < GROUP_ELEMS; ++i)
                if (begin + i < n_elems)
                    chunk[begin + i] = x.at[i];
    }
}

/* a[i] = a[i] + b[i] */
__device__ static void add_rows(rows *a, const rows &b)
{
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row)
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            a->at[row][i] += b.at[row][i];
}

/* ---- The norm's tree -----------------------------------------------------------------------------------------------
 */

__device__ static void add_lanes(float *lanes, const float *others)
{
#pragma unroll
    for (unsigned i = 0; i < GROUP_ELEMS; ++i)
        lanes[i] += others[i];
}

/* Returns the chunk's sum of squares, in thread 0. All threads of the block call it. Lanes are folded by halving the
 * threads until one holds the last four, first through shared memory, then within a warp. */
__device__ static double sum_of_squares(const rows &values)
{
    __shared__ group<float> shared[THREADS / 2];
    float lanes[GROUP_ELEMS] = {0.0f};
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row)
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            lanes[i] = fmaf(values.at[row][i], values.at[row][i], lanes[i]);

#pragma unroll
    for (unsigned half = THREADS / 2; half >= WARP; half /= 2) {
        if (threadIdx.x >= half && threadIdx.x < 2 * half)
            shared[threadIdx.x - half] = {{lanes[0], lanes[1], lanes[2], lanes[3]}};
        __syncthreads();
        if (threadIdx.x < half)
            add_lanes(lanes, shared[threadIdx.x].at);
        __syncthreads();
    }
#pragma unroll
    for (unsigned half = WARP / 2; half > 0; half /= 2) {
        float others[GROUP_ELEMS];
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            others[i] = __shfl_down_sync(0xffffffffu, lanes[i], half);
        add_lanes(lanes, others);
    }
    return double_of((lanes[0] + lanes[2]) + (lanes[1] + lanes[3]));
}

/* There are 122,071 partials per billion elements: one block adds them, one thread per lane, with a batch of loads in
 * flight at a time. Missing partials count as 0, which changes no sum, since no lane is ever -0. */
constexpr unsigned PARTIAL_LANES = 256, PARTIAL_BATCH = 32;

static __global__ void __launch_bounds__(PARTIAL_LANES)
    contribute_kernel(const double *partials, size_t n_partials, zero_agreed_t agreed, zero_contribution_t *mine)
{
    __shared__ double lanes[PARTIAL_LANES];
    double sum = 0.0;
    for (size_t begin = threadIdx.x; begin < n_partials; begin += PARTIAL_BATCH * PARTIAL_LANES) {
        double batch[PARTIAL_BATCH];
#pragma unroll
        for (unsigned k = 0; k < PARTIAL_BATCH; ++k) {
            const size_t i = begin + k * PARTIAL_LANES;
            batch[k] = i < n_partials ? partials[i] : 0.0;
        }
#pragma unroll
        for (unsigned k = 0; k < PARTIAL_BATCH; ++k)
            sum += batch[k];
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = PARTIAL_LANES / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            lanes[threadIdx.x] += lanes[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        mine->sum_of_squares = lanes[0] == lanes[0] ? lanes[0] : double_of(zero_float_of_bits(ZERO_FLOAT_NAN_BITS));
        mine->calls = agreed.calls;
        mine->lr = agreed.lr;
    }
}

/* ---- Slices in rank order ------------------------------------------------------------------------------------------
 */

template <bool WHOLE, zero_dtype_t DTYPE, typename T>
__device__ static void sum_chunk(float *out, const zero_cuda_slices_t &slices, int n_slices, size_t begin,
                                 size_t n_left, bool accumulate, rows *sums)
{
    load_rows<WHOLE, DTYPE>((const T *)slices.at[0] + begin, n_left, sums);
    for (int r = 1; r < n_slices; ++r) {
        rows slice;
        load_rows<WHOLE, DTYPE>((const T *)slices.at[r] + begin, n_left, &slice);
        add_rows(sums, slice);
    }
    if (accumulate) {
        rows old;
        load_rows<WHOLE, ZERO_FP32>(out + begin, n_left, &old);
        add_rows(sums, old); /* equals out + t: IEEE addition commutes except for NaNs, which become one */
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row)
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            sums->at[row][i] = zero_one_nan(sums->at[row][i]);
    store_rows<WHOLE>(out + begin, n_left, *sums);
}

template <zero_dtype_t DTYPE, typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_slices_kernel(float *out, const __grid_constant__ zero_cuda_slices_t slices, int n_slices, size_t n_elems,
                      bool accumulate, bool aligned, double *partials)
{
    const size_t begin = (size_t)blockIdx.x * ZERO_NORM_CHUNK, n_left = n_elems - begin;
    rows sums;
    if (aligned && n_left >= ZERO_NORM_CHUNK)
        sum_chunk<true, DTYPE, T>(out, slices, n_slices, begin, n_left, accumulate, &sums);
    else
        sum_chunk<false, DTYPE, T>(out, slices, n_slices, begin, n_left, accumulate, &sums);
    if (partials == nullptr)
        return;
    const double sum = sum_of_squares(sums);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

template <zero_dtype_t DTYPE, typename T>
static void launch_sum_slices(float *out, const zero_cuda_slices_t *slices, int n_slices, size_t n_elems,
                              bool accumulate, double *partials, cudaStream_t stream)
{
    bool aligned = is_group_aligned(out);
    for (int r = 0; r < n_slices; ++r)
        aligned = aligned && is_group_aligned((const T *)slices->at[r]);
    sum_slices_kernel<DTYPE, T><<<blocks_for(n_elems, ZERO_NORM_CHUNK), THREADS, 0, stream>>>(
        out, *slices, n_slices, n_elems, accumulate, aligned, partials);
}

/* ---- Launches ------------------------------------------------------------------------------------------------------
 */

cudaError_t zero_cuda_sum_slices(float *out, const zero_cuda_slices_t *slices, int n_slices, zero_dtype_t dtype,
                                 size_t n_elems, bool accumulate, double *partials, cudaStream_t stream)
{
    if (dtype == ZERO_BF16)
        launch_sum_slices<ZERO_BF16, uint16_t>(out, slices, n_slices, n_elems, accumulate, partials, stream);
    else if (dtype == ZERO_FP16)
        launch_sum_slices<ZERO_FP16, uint16_t>(out, slices, n_slices, n_elems, accumulate, partials, stream);
    else
        launch_sum_slices<ZERO_FP32, float>(out, slices, n_slices, n_elems, accumulate, partials, stream);
    return cudaGetLastError();
}

cudaError_t zero_cuda_contribute(const double *partials, size_t n_partials, const zero_agreed_t *agreed,
                                 zero_contribution_t *mine, cudaStream_t stream)
{
    contribute_kernel<<<1, PARTIAL_LANES, 0, stream>>>(partials, n_partials, *agreed, mine);
    return cudaGetLastError();
}
