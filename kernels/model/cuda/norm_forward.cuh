/* norm_forward.cuh - what the forward passes of LayerNorm and RMSNorm share: reading a row and adding to it, and sums
 * over the warps of a row.
 */
#ifndef ZERO_NORM_FORWARD_CUH
#define ZERO_NORM_FORWARD_CUH

#include "kernels/model/cuda/maximum.cuh"

#define NORM_MAX_WARPS 16  /* per forward block: leaves 128 registers per thread */
#define NORM_BLOCK_WARPS 4 /* per forward block whose rows take one warp each */

/* A thread's part of a row: packs t, t + width, ... below n_packs, at most PACKS. */
template <typename T, int N, int PACKS> struct norm_row {
    size_t start; /* the row's first element in the tensor */
    int t, width, n_packs;
    zero_pack<T, N> x[PACKS];

    /* Does not set x: zeroing packs that are never used would take registers. */
    __device__ __forceinline__ norm_row(size_t start, int t, int width, int n_packs)
        : start(start), t(t), width(width), n_packs(n_packs)
    {
    }

    __device__ __forceinline__ bool is_mine(int p) const
    {
        return t + p * width < n_packs;
    }
    __device__ __forceinline__ size_t column(int p) const
    {
        return (size_t)(t + p * width) * N;
    }
    /* Sets x to residual + addend, rounded, or to residual if addend is NULL. */
    __device__ __forceinline__ void read(const T *residual, const T *addend)
    {
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
            if (is_mine(p))
                x[p] = zero_load<N>(residual, start + column(p));
        if (addend == nullptr)
            return;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!is_mine(p))
                continue;
            zero_pack<T, N> other = zero_load<N>(addend, start + column(p));
            float total[N];
#pragma unroll
            for (int i = 0; i < N; ++i)
                total[i] = x[p][i] + other[i];
            x[p] = zero_packed<T>(total);
        }
    }
};

/* Stores each warp's sum in shared[warp] and waits, so that all threads of a row of several warps can read it.
 * shared[NORM_MAX_WARPS] must have been read before it is used again. */
static __device__ __forceinline__ void norm_share_warp_sums(float warp_sum, float *shared)
{
    if (threadIdx.x % ZERO_WARP == 0)
        shared[threadIdx.x / ZERO_WARP] = warp_sum;
    __syncthreads();
}

#endif
