/* head_norm.cu - RMSNorm of every q and k head on CUDA, as in Qwen3 (Zhang & Sennrich 2019, arXiv:1910.07467).
 *
 * A group of lanes owns a head and keeps it in registers: as many lanes as the head has packs, rounded up to a power of
 * two, so that a warp serves several short heads. A lane holds at most LANE_ELEMS elements of a head. A group loads
 * several heads before it computes, which keeps more bytes in flight. Groups whose turn is past the last head compute
 * on zeros and store nothing, so that every lane takes part in every shuffle.
 *
 * Backward: a fixed number of blocks takes turns with the heads. A group sums dy h of q's heads and of k's in
 * registers; a block adds its groups in order and writes one part; column_sum.cu adds the parts. Which heads a group
 * takes depends on sizes alone, so the bits are the same in every run.
 */
#include <climits>
#include <type_traits>

#include "train/kernels/cuda/pack.cuh"

#define THREADS 256
#define LANE_ELEMS 8    /* at most: ZERO_HEAD_NORM_MAX_DIM over the lanes of a warp */
#define FORWARD_HEADS 4 /* that a group has in flight */
#define BACKWARD_HEADS 3

/* Returns the sum over the lanes of a group, in a fixed tree; every lane of it gets the sum. All lanes of the warp
 * call it. */
static __device__ __forceinline__ float group_sum(float x, int group_lanes)
{
    for (int offset = group_lanes / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ZERO_FULL_WARP, x, offset);
    return x;
}

/* A lane's packs of a head: lane, lane + group_lanes, ... below n_packs, at most PACKS. */
template <int N, int PACKS> struct head_lane {
    int lane, group_lanes, n_packs;

    __device__ __forceinline__ bool is_mine(int p) const
    {
        return lane + p * group_lanes < n_packs;
    }
    __device__ __forceinline__ int column(int p) const
    {
        return (lane + p * group_lanes) * N;
    }
    /* Loads a head's elements; zeros where there are none. */
    template <typename T>
    __device__ __forceinline__ void load(zero_pack<T, N> (&x)[PACKS], const T *data, size_t start, bool exists) const
    {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            x[p] = {};
            if (exists && is_mine(p))
                x[p] = zero_load<N>(data, start + column(p));
        }
    }
    template <typename T>
    static __device__ __forceinline__ void unpack(float (&x)[PACKS][N], const zero_pack<T, N> (&packs)[PACKS])
    {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < N; ++i)
                x[p][i] = packs[p][i];
    }
    /* Reads a weight, and adds the offset to it. */
    template <typename T> __device__ __forceinline__ void read(float (&x)[PACKS][N], const T *data, float offset) const
    {
        zero_pack<T, N> packs[PACKS];
        load(packs, data, 0, true);
        unpack(x, packs);
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < N; ++i)
                x[p][i] += offset;
    }
    __device__ __forceinline__ float rstd(const float (&x)[PACKS][N], float eps, int head_dim) const
    {
        float squares = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < N; ++i)
                squares = fmaf(x[p][i], x[p][i], squares);
        return 1.0f / sqrtf(group_sum(squares, group_lanes) / (float)head_dim + eps);
    }
    template <typename T>
    __device__ __forceinline__ void write(T *data, size_t start, bool exists, const float (&x)[PACKS][N]) const
    {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (exists && is_mine(p))
                zero_store(data, start + column(p), x[p]);
    }
};

template <typename T, int N, int PACKS>
static __global__ void __launch_bounds__(THREADS) head_norm(T *y, zero_head_norm_t norm, int group_lanes)
{
    unsigned n_groups = THREADS / group_lanes, group = threadIdx.x / group_lanes, n_heads = (unsigned)norm.n_heads;
    int head_dim = (int)norm.head_dim;
    const head_lane<N, PACKS> own{(int)threadIdx.x % group_lanes, group_lanes, head_dim / N};
    unsigned n_normed = n_heads + (unsigned)norm.n_kv_heads, of_row = n_normed + (unsigned)norm.n_kv_heads;
    unsigned n_all = (unsigned)norm.n_rows * of_row, first = blockIdx.x * FORWARD_HEADS * n_groups + group;
    zero_pack<T, N> packs[FORWARD_HEADS][PACKS];
#pragma unroll
    for (int k = 0; k < FORWARD_HEADS; ++k) {
        unsigned index = first + k * n_groups;
        own.load(packs[k], (const T *)norm.qkv, (size_t)index * head_dim, index < n_all);
    }
#pragma unroll
    for (int k = 0; k < FORWARD_HEADS; ++k) {
        unsigned index = first + k * n_groups, head = index % of_row;
        float x[PACKS][N], w[PACKS][N];
        own.unpack(x, packs[k]);
        own.read(w, (const T *)(head < n_heads ? norm.q_weight : norm.k_weight), norm.offset);
        float rstd = own.rstd(x, norm.eps, head_dim);
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < N; ++i)
                x[p][i] = head >= n_normed ? x[p][i] : x[p][i] * rstd * w[p][i];
        own.write(y, (size_t)index * head_dim, index < n_all, x);
    }
}

/* Computes, with h = x rstd and g = dy w, dx = rstd (g - h mean(g h)) in place of dy. Adds dy h to sums. */
template <int N, int PACKS>
static __device__ __forceinline__ void head_backward(const head_lane<N, PACKS> &own, float (&dy)[PACKS][N],
                                                     const float (&x)[PACKS][N], const float (&w)[PACKS][N],
                                                     float (&sums)[PACKS][N], float eps, int head_dim)
{
    float gh = 0.0f, rstd = own.rstd(x, eps, head_dim);
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float h = x[p][i] * rstd;
            gh = fmaf(dy[p][i] * w[p][i], h, gh);
            sums[p][i] = fmaf(dy[p][i], h, sums[p][i]);
        }
    float gh_mean = group_sum(gh, own.group_lanes) / (float)head_dim;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int i = 0; i < N; ++i)
            dy[p][i] = rstd * fmaf(-gh_mean, x[p][i] * rstd, dy[p][i] * w[p][i]);
}

/* The heads that a group takes, in the order in which it takes them. */
struct head_turns {
    size_t row, head, row_step, head_step, n_normed;

    __device__ __forceinline__ head_turns(size_t first, size_t step, size_t n_normed)
        : row(first / n_normed), head(first % n_normed), row_step(step / n_normed), head_step(step % n_normed),
          n_normed(n_normed)
    {
    }
    __device__ __forceinline__ void next()
    {
        row += row_step;
        head += head_step;
        if (head >= n_normed) {
            head -= n_normed;
            row++;
        }
    }
};

template <typename T, int N, int PACKS>
static __global__ void __launch_bounds__(THREADS, 2)
    head_norm_backward(T *dqkv, float *partials, zero_head_norm_t norm, int group_lanes)
{
    __shared__ alignas(sizeof(float) * LANE_ELEMS) float shared[THREADS * LANE_ELEMS * 2]; /* [n_groups, 2, head_dim] */
    int n_groups = THREADS / group_lanes, group = threadIdx.x / group_lanes, head_dim = (int)norm.head_dim;
    const head_lane<N, PACKS> own{(int)threadIdx.x % group_lanes, group_lanes, head_dim / N};
    size_t n_normed = norm.n_heads + norm.n_kv_heads, of_row = n_normed + norm.n_kv_heads;
    size_t n_turns_all = norm.n_rows * n_normed, step = (size_t)gridDim.x * n_groups;
    float q_sums[PACKS][N] = {}, k_sums[PACKS][N] = {};
    head_turns turn((size_t)blockIdx.x * n_groups + group, step, n_normed);
    for (size_t done = 0; done < n_turns_all; done += BACKWARD_HEADS * step) { /* as often in every group */
        zero_pack<T, N> x_packs[BACKWARD_HEADS][PACKS], dy_packs[BACKWARD_HEADS][PACKS];
        size_t start[BACKWARD_HEADS];
        bool exists[BACKWARD_HEADS], is_q[BACKWARD_HEADS];
#pragma unroll
        for (int k = 0; k < BACKWARD_HEADS; ++k, turn.next()) {
            start[k] = (turn.row * of_row + turn.head) * norm.head_dim;
            exists[k] = turn.row < norm.n_rows, is_q[k] = turn.head < norm.n_heads;
            own.load(x_packs[k], (const T *)norm.qkv, start[k], exists[k]);
            own.load(dy_packs[k], (const T *)dqkv, start[k], exists[k]);
        }
#pragma unroll
        for (int k = 0; k < BACKWARD_HEADS; ++k) {
            float x[PACKS][N], dy[PACKS][N], w[PACKS][N], sums[PACKS][N];
            own.unpack(x, x_packs[k]);
            own.unpack(dy, dy_packs[k]);
            own.read(w, (const T *)(is_q[k] ? norm.q_weight : norm.k_weight), norm.offset);
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
#pragma unroll
                for (int i = 0; i < N; ++i)
                    sums[p][i] = is_q[k] ? q_sums[p][i] : k_sums[p][i];
            head_backward(own, dy, x, w, sums, norm.eps, head_dim);
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    q_sums[p][i] = is_q[k] ? sums[p][i] : q_sums[p][i];
                    k_sums[p][i] = is_q[k] ? k_sums[p][i] : sums[p][i];
                }
            own.write(dqkv, start[k], exists[k], dy);
        }
    }
    own.write(shared, (size_t)group * 2 * head_dim, true, q_sums);
    own.write(shared, (size_t)(group * 2 + 1) * head_dim, true, k_sums);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * head_dim; i += THREADS) {
        float sum = 0.0f;
        for (int g = 0; g < n_groups; ++g)
            sum += shared[g * 2 * head_dim + i];
        partials[(size_t)blockIdx.x * 2 * head_dim + i] = sum;
    }
}

/* ---- Launching ---- */

/* Returns how many lanes a head of n_packs takes. */
static int group_lanes_of(size_t n_packs)
{
    int lanes = 1;
    while (lanes < ZERO_WARP && (size_t)lanes < n_packs)
        lanes *= 2;
    return lanes;
}

/* Calls f with the length of a pack and the packs of a lane, as compile-time constants. */
template <typename T, typename F> static cudaError_t with_packs(const zero_head_norm_t *norm, const void *other, F f)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = zero_aligned(norm->qkv) && zero_aligned(other) && zero_aligned(norm->q_weight) &&
                 zero_aligned(norm->k_weight) && norm->head_dim % N == 0;
    if (norm->head_dim > ZERO_HEAD_NORM_MAX_DIM)
        return cudaErrorInvalidValue;
    if (packs)
        return f(std::integral_constant<int, N>(), std::integral_constant<int, LANE_ELEMS / N>());
    return f(std::integral_constant<int, 1>(), std::integral_constant<int, LANE_ELEMS>());
}

extern "C" cudaError_t zero_launch_head_norm(cudaStream_t stream, zero_dtype_t dtype, void *y,
                                             const zero_head_norm_t *norm)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(norm, y, [&](auto n, auto packs) {
            int lanes = group_lanes_of(norm->head_dim / n);
            size_t n_all = norm->n_rows * (norm->n_heads + 2 * norm->n_kv_heads),
                   of_block = THREADS / lanes * FORWARD_HEADS;
            if (n_all > UINT_MAX - of_block) /* indices are unsigned, since 64-bit remainders are slow */
                return cudaErrorInvalidValue;
            head_norm<T, n, packs>
                <<<(unsigned)zero_divide_up(n_all, of_block), THREADS, 0, stream>>>((T *)y, *norm, lanes);
            return cudaGetLastError();
        });
    });
}

extern "C" cudaError_t zero_launch_head_norm_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv,
                                                      float *partials, const zero_head_norm_t *norm)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(norm, dqkv, [&](auto n, auto packs) {
            int lanes = group_lanes_of(norm->head_dim / n);
            head_norm_backward<T, n, packs><<<(unsigned)zero_head_norm_parts(norm->n_rows), THREADS, 0, stream>>>(
                (T *)dqkv, partials, *norm, lanes);
            return cudaGetLastError();
        });
    });
}
