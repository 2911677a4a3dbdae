/* reduce.cu - gradient slices added in order, and their norm, on CUDA. reduce.c's twin.
 *
 * One block of threads processes one chunk, in rows. A thread owns one group of elements in each row, and 16 threads
 * have a cell of the norm in each. It has the loads of all rows in flight at once, keeps their sums in registers while
 * slice after slice is added, writes them out and squares them. So gradients are read only once even if the norm is
 * wanted.
 */
#include "kernels/cuda/master.cuh"
#include "kernels/cuda/shard_cuda.h"
#include "kernels/step_math.h"

constexpr unsigned THREADS = 256;
constexpr unsigned ROW_ELEMS = THREADS * GROUP_ELEMS;
constexpr unsigned ROWS = ZERO_SUM_CHUNK / ROW_ELEMS;
constexpr unsigned WARP = 32, FULL_WARP = 0xffffffffu;

/* ---- A thread's part of a chunk ------------------------------------------------------------------------------------
 */

/* A thread's group in each row. */
struct rows {
    float at[ROWS][GROUP_ELEMS];
};

__device__ static size_t group_in_chunk(unsigned row)
{
    return row * ROW_ELEMS + threadIdx.x * GROUP_ELEMS;
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

template <bool WHOLE, typename T> __device__ static void store_rows(T *chunk, size_t n_elems, const rows &values)
{
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const size_t begin = group_in_chunk(row);
        group<T> x;
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            if constexpr (sizeof(T) == 2)
                x.at[i] = zero_bf16_of_float(values.at[row][i]);
            else
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

/* ---- The norm ------------------------------------------------------------------------------------------------------
 */

/* Folds the 16 lanes of a cell: lane l's sum of row r becomes half the sum of a row. Before a step each lane has N
 * rows; then it has the first or the second half of them, whose sums over this lane and the one at `distance` it keeps.
 * So all rows are folded with few exchanges. Sums of two commute, so all lanes add as shard.h writes it. */
template <unsigned N> __device__ static void fold_cells(float (&sums)[ROWS], unsigned distance)
{
    const bool is_upper = threadIdx.x & distance;
#pragma unroll
    for (unsigned i = 0; i < N / 2; ++i) {
        const float keep = is_upper ? sums[i + N / 2] : sums[i], give = is_upper ? sums[i] : sums[i + N / 2];
        sums[i] = keep + __shfl_xor_sync(FULL_WARP, give, distance);
    }
}

/* Returns the sum of squares of one of the warp's cells, the same in a pair of lanes. All lanes call it. */
__device__ static float cell_sum(const rows &values)
{
    float sums[ROWS];
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        sums[row] = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i)
            sums[row] = fmaf(values.at[row][i], values.at[row][i], sums[row]);
    }
    static_assert(ROWS == 8 && ZERO_NORM_CELL / GROUP_ELEMS == 16, "three steps leave one row, the fourth folds it");
    fold_cells<8>(sums, 8);
    fold_cells<4>(sums, 4);
    fold_cells<2>(sums, 2);
    return sums[0] + __shfl_xor_sync(FULL_WARP, sums[0], 1);
}

/* Adds the squares of a block's values to the norm. All threads of the block call it. A warp adds the cells of one
 * digit at a time, from the highest: gradients that are neighbours seldom have more than two. 16 cells times 24 bits,
 * and 8 warps of those, fit 32. */
__device__ static void add_to_norm(const rows &values, zero_norm_t *norm)
{
    __shared__ unsigned words[ZERO_NORM_WORDS];
    if (threadIdx.x < ZERO_NORM_WORDS)
        words[threadIdx.x] = 0;
    __syncthreads();
    const zero_norm_part_t part = zero_norm_split(cell_sum(values));
    bool is_left = threadIdx.x % 2 == 0 && (part.low | part.high) != 0; /* the odd lanes have the same cells */
    unsigned next;
    while ((next = __reduce_max_sync(FULL_WARP, is_left ? part.at + 1 : 0)) != 0) {
        const bool is_taken = is_left && part.at + 1 == next;
        const unsigned low = __reduce_add_sync(FULL_WARP, is_taken ? part.low : 0);
        const unsigned high = __reduce_add_sync(FULL_WARP, is_taken ? part.high : 0);
        is_left = is_left && !is_taken;
        if (threadIdx.x % WARP == 0) {
            atomicAdd(&words[next - 1], low);
            if (high != 0)
                atomicAdd(&words[next], high);
        }
    }
    __syncthreads();
    if (threadIdx.x < ZERO_NORM_WORDS && words[threadIdx.x] != 0)
        atomicAdd((unsigned long long *)&norm->words[threadIdx.x], (unsigned long long)words[threadIdx.x]);
}

static __global__ void __launch_bounds__(WARP)
    contribute_kernel(zero_norm_t *norm, zero_agreed_t agreed, zero_contribution_t *mine)
{
    if (threadIdx.x < ZERO_NORM_WORDS) {
        mine->norm.words[threadIdx.x] = norm->words[threadIdx.x];
        norm->words[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        mine->calls = agreed.calls;
        mine->groups = agreed.groups;
        mine->lr = agreed.lr;
    }
}

/* ---- Slices in order -----------------------------------------------------------------------------------------------
 */

/* What a launch needs of zero_sum_t besides the slices. */
struct sum_args {
    void *out;
    bool is_bf16, is_rounded, accumulates, is_aligned;
    int n_slices;
    size_t n_elems;
    zero_norm_t *norm;
};

template <bool WHOLE, zero_dtype_t DTYPE, typename T>
__device__ static void sum_chunk(const sum_args &sum, const zero_cuda_slices_t &slices, size_t begin, size_t n_left,
                                 rows *sums)
{
    if (sum.accumulates)
        load_rows<WHOLE, ZERO_FP32>((const float *)sum.out + begin, n_left, sums);
    else
        load_rows<WHOLE, DTYPE>((const T *)slices.at[0] + begin, n_left, sums);
    for (int r = sum.accumulates ? 0 : 1; r < sum.n_slices; ++r) {
        rows slice;
        load_rows<WHOLE, DTYPE>((const T *)slices.at[r] + begin, n_left, &slice);
        add_rows(sums, slice);
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row)
#pragma unroll
        for (unsigned i = 0; i < GROUP_ELEMS; ++i) {
            const float x = zero_one_nan(sums->at[row][i]);
            sums->at[row][i] = sum.is_rounded ? zero_float_of_bf16(zero_bf16_of_float(x)) : x;
        }
    if (sum.is_bf16)
        store_rows<WHOLE>((uint16_t *)sum.out + begin, n_left, *sums);
    else
        store_rows<WHOLE>((float *)sum.out + begin, n_left, *sums);
}

/* Three blocks on a multiprocessor are needed to keep enough of 16-bit slices in flight, two of fp32 (measured). */
template <typename T> constexpr unsigned BLOCKS_PER_SM = sizeof(T) == 2 ? 3 : 2;

template <zero_dtype_t DTYPE, typename T>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM<T>)
    sum_slices_kernel(const __grid_constant__ sum_args sum, const __grid_constant__ zero_cuda_slices_t slices)
{
    const size_t begin = (size_t)blockIdx.x * ZERO_SUM_CHUNK, n_left = sum.n_elems - begin;
    rows sums;
    if (sum.is_aligned && n_left >= ZERO_SUM_CHUNK)
        sum_chunk<true, DTYPE, T>(sum, slices, begin, n_left, &sums);
    else
        sum_chunk<false, DTYPE, T>(sum, slices, begin, n_left, &sums);
    if (sum.norm != nullptr)
        add_to_norm(sums, sum.norm);
}

template <zero_dtype_t DTYPE, typename T>
static void launch_sum_slices(sum_args sum, const zero_cuda_slices_t *slices, cudaStream_t stream)
{
    sum.is_aligned =
        sum.is_bf16 ? is_group_aligned((const uint16_t *)sum.out) : is_group_aligned((const float *)sum.out);
    for (int r = 0; r < sum.n_slices; ++r)
        sum.is_aligned = sum.is_aligned && is_group_aligned((const T *)slices->at[r]);
    sum_slices_kernel<DTYPE, T><<<blocks_for(sum.n_elems, ZERO_SUM_CHUNK), THREADS, 0, stream>>>(sum, *slices);
}

/* ---- Launches ------------------------------------------------------------------------------------------------------
 */

cudaError_t zero_cuda_sum_slices(const zero_sum_t *sum, const zero_cuda_slices_t *slices, cudaStream_t stream)
{
    const bool is_bf16 = sum->out_dtype == ZERO_BF16;
    const sum_args args = {sum->out,     is_bf16,  is_bf16 || sum->is_rounded, sum->accumulates, false, sum->n_slices,
                           sum->n_elems, sum->norm};
    if (sum->dtype == ZERO_BF16)
        launch_sum_slices<ZERO_BF16, uint16_t>(args, slices, stream);
    else if (sum->dtype == ZERO_FP16)
        launch_sum_slices<ZERO_FP16, uint16_t>(args, slices, stream);
    else
        launch_sum_slices<ZERO_FP32, float>(args, slices, stream);
    return cudaGetLastError();
}

cudaError_t zero_cuda_contribute(zero_norm_t *norm, const zero_agreed_t *agreed, zero_contribution_t *mine,
                                 cudaStream_t stream)
{
    contribute_kernel<<<1, WARP, 0, stream>>>(norm, *agreed, mine);
    return cudaGetLastError();
}

/* ---- step ---- */
/* The decision at the end of a step (step_math.h), by one GPU thread, and what it means for tensors with
 * rules of their own, by one thread each. The CPU's twin is step.c. */

static __global__ void decide_step_kernel(zero_step_rules_t rules, float lr, const zero_contribution_t *contributions,
                                          int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                          zero_step_outcome_t *outcome)
{
    zero_step_decide(&rules, lr, contributions, n_ranks, state, scalars, outcome);
}

cudaError_t zero_cuda_decide_step(const zero_step_rules_t *rules, float lr, const zero_contribution_t *contributions,
                                  int n_ranks, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                  zero_step_outcome_t *outcome, cudaStream_t stream)
{
    decide_step_kernel<<<1, 1, 0, stream>>>(*rules, lr, contributions, n_ranks, state, scalars, outcome);
    return cudaGetLastError();
}

static __global__ void decide_unit_kernel(zero_step_rules_t rules, float lr, const uint64_t *nonfinite, size_t stride,
                                          int n_ranks, uint32_t unit, zero_step_state_t *state,
                                          zero_adam_scalars_t *scalars)
{
    zero_unit_decide(&rules, lr, nonfinite, stride, n_ranks, unit, state, scalars);
}

cudaError_t zero_cuda_decide_unit(const zero_step_rules_t *rules, float lr, const uint64_t *nonfinite, size_t stride,
                                  int n_ranks, uint32_t unit, zero_step_state_t *state, zero_adam_scalars_t *scalars,
                                  cudaStream_t stream)
{
    decide_unit_kernel<<<1, 1, 0, stream>>>(*rules, lr, nonfinite, stride, n_ranks, unit, state, scalars);
    return cudaGetLastError();
}

constexpr unsigned SCALARS_THREADS = 128;

static __global__ void __launch_bounds__(SCALARS_THREADS)
    tensor_scalars_kernel(const zero_tensor_rules_t *rules, size_t n_tensors, const zero_adam_scalars_t *scalars,
                          zero_tensor_scalars_t *by_tensor)
{
    const size_t t = (size_t)blockIdx.x * SCALARS_THREADS + threadIdx.x;
    if (t < n_tensors)
        zero_tensor_scalars_decide(&rules[t], scalars, &by_tensor[t]);
}

cudaError_t zero_cuda_tensor_scalars(const zero_tensor_rules_t *rules, size_t n_tensors,
                                     const zero_adam_scalars_t *scalars, zero_tensor_scalars_t *by_tensor,
                                     cudaStream_t stream)
{
    tensor_scalars_kernel<<<blocks_for(n_tensors, SCALARS_THREADS), SCALARS_THREADS, 0, stream>>>(rules, n_tensors,
                                                                                                  scalars, by_tensor);
    return cudaGetLastError();
}

/* ---- poison ---- */
/* Poison.c's twin on CUDA: fills gradient buffers with a NaN that no arithmetic makes, and counts what is
 * left of it. */

constexpr unsigned POISON_THREADS = 256;

static __global__ void __launch_bounds__(POISON_THREADS) poison_kernel(uint16_t *halves, size_t n_halves)
{
    const size_t i = (size_t)blockIdx.x * POISON_THREADS + threadIdx.x;
    if (i < n_halves)
        halves[i] = ZERO_POISON;
}

/* stride: the 16-bit halves per element, 1 or 2. */
static __global__ void __launch_bounds__(POISON_THREADS)
    count_poison_kernel(const uint16_t *halves, unsigned stride, size_t n_elems, unsigned long long *n_found)
{
    const size_t i = (size_t)blockIdx.x * POISON_THREADS + threadIdx.x;
    const bool found =
        i < n_elems && halves[i * stride] == ZERO_POISON && halves[i * stride + stride - 1] == ZERO_POISON;
    const int n_in_block = __syncthreads_count(found);
    if (threadIdx.x == 0 && n_in_block > 0)
        atomicAdd(n_found, (unsigned long long)n_in_block);
}

cudaError_t zero_cuda_poison(void *data, zero_dtype_t dtype, size_t n_elems, cudaStream_t stream)
{
    const size_t n_halves = dtype == ZERO_FP32 ? 2 * n_elems : n_elems;
    poison_kernel<<<blocks_for(n_halves, POISON_THREADS), POISON_THREADS, 0, stream>>>((uint16_t *)data, n_halves);
    return cudaGetLastError();
}

cudaError_t zero_cuda_count_poison(const void *data, zero_dtype_t dtype, size_t n_elems, uint64_t *n_found,
                                   cudaStream_t stream)
{
    const cudaError_t error = cudaMemsetAsync(n_found, 0, sizeof *n_found, stream);
    if (error != cudaSuccess)
        return error;
    count_poison_kernel<<<blocks_for(n_elems, POISON_THREADS), POISON_THREADS, 0, stream>>>(
        (const uint16_t *)data, dtype == ZERO_FP32 ? 2 : 1, n_elems, (unsigned long long *)n_found);
    return cudaGetLastError();
}
