/* causal.cuh - what the kernels of causal attention on Hopper share, in forward_causal_mma.cu and backward_causal.cuh:
 * rings of buffers that a thread fills and warps empty, and rows of a head on the way to and from the tensor cores.
 *
 * They take heads of 64 and 128 in 16 bits, without a mask.
 */
#ifndef ZERO_ATTENTION_CAUSAL_CUH
#define ZERO_ATTENTION_CAUSAL_CUH

#include "train/kernels/attention/hopper/bulk.cuh"
#include "train/kernels/attention/tiles.cuh"

/* Describes a tensor [n_matrices, n_rows, n_columns] of 16 bits, from which boxes of 64 rows and columns are copied. */
extern "C" cudaError_t zero_describe_rows(CUtensorMap *map, zero_dtype_t dtype, const void *data, size_t n_matrices,
                                          size_t n_rows, size_t n_columns);

#if ZERO_HAS_WGMMA /* elsewhere the kernels only trap, and are not launched */

/* ---- Rings ---- */

/* Return a step's buffer in a ring of N, and how many rounds came before. */
template <int N> static __device__ __forceinline__ int buffer_of(int step)
{
    return (unsigned)step % N;
}
template <int N> static __device__ __forceinline__ int round_of(int step)
{
    return (unsigned)step / N;
}

/* Waits until a step may write to its buffer, which the step N before has left. */
template <int N> static __device__ __forceinline__ void wait_for_room(uint32_t empty, int step)
{
    if (step >= N)
        zero_barrier_wait(empty + 8 * buffer_of<N>(step), round_of<N>(step) - 1);
}

/* Waits until a step's buffer is full. */
template <int N> static __device__ __forceinline__ void wait_for_full(uint32_t full, int step)
{
    zero_barrier_wait(full + 8 * buffer_of<N>(step), round_of<N>(step));
}

/* Arrives at a step's barrier. */
template <int N> static __device__ __forceinline__ void arrive_at(uint32_t barrier, int step)
{
    zero_barrier_arrive(barrier + 8 * buffer_of<N>(step));
}

/* One lane arrives for its warp, whose lanes have met after what they did before. racecheck of compute-sanitizer only
 * sees what the lane itself did: for it, ZERO_EVERY_LANE_ARRIVES lets all lanes arrive. */
#ifdef ZERO_EVERY_LANE_ARRIVES
#define WARP_ARRIVALS ZERO_WARP
#else
#define WARP_ARRIVALS 1
#endif
template <int N> static __device__ __forceinline__ void warp_arrive_at(uint32_t barrier, int step, int lane)
{
    if (lane < WARP_ARRIVALS)
        arrive_at<N>(barrier, step);
}

/* ---- Loading: a thread ---- */

/* Copies 64 rows of a head to a tile of ROWS rows. */
template <int DIM, int ROWS>
static __device__ __forceinline__ void load_64_rows(uint32_t to, const CUtensorMap *map, int column, int row, int batch,
                                                    uint32_t barrier)
{
#pragma unroll
    for (int d = 0; d < DIM; d += 64)
        zero_copy_box(to + d / 64 * ROWS * ROW_BYTES, map, column + d, row, batch, barrier);
}

/* ---- Writing rows ---- */

/* Exchanges words among four neighbouring lanes: lane t gets the t-th word of each, in their order. */
static __device__ __forceinline__ void exchange_words(uint32_t (&w)[4], int lane)
{
    const bool odd = lane & 1, high = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t word = __shfl_xor_sync(ZERO_FULL_WARP, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? word : w[i];
        w[i + 1] = odd ? w[i + 1] : word;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t word = __shfl_xor_sync(ZERO_FULL_WARP, high ? w[i] : w[i + 2], 2);
        w[i] = high ? word : w[i];
        w[i + 2] = high ? w[i + 2] : word;
    }
}

/* Writes a warp's 16 rows to rows first .. of a head that begins at `rows`, as far as n_rows. factors: of the lane's
 * row among the first eight, and of that among the others. */
template <typename T, int N>
static __device__ __forceinline__ void write_rows(T *rows, size_t width, int first, int n_rows,
                                                  const float (&sums)[N][4], const float (&factors)[2], int lane)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + half * 8;
        T *to = rows + (size_t)row * width + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] =
                    zero_pair<T>::of(sums[n + i][2 * half] * factors[half], sums[n + i][2 * half + 1] * factors[half]);
            exchange_words(w, lane);
            if (row < n_rows)
                *(uint4 *)(to + n * 8) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

#endif

#endif
