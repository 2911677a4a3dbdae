/* swiglu.cu - SwiGLU on CUDA: silu(gate) * up and its gradient (Shazeer 2020, arXiv:2002.05202).
 *
 * Bound by memory: a thread takes one 16-byte pack of each tensor, without a loop. A block stays within a row, so that
 * a thread finds its row with one division, the same for the whole block. 16-bit types use the fast exponential and
 * division, whose errors are below their rounding.
 */
#include "kernels/model/cuda/maximum.cuh"

#define THREADS 256

/* s = 1 / (1 + exp(-gate)) and 1 - s, computed without subtracting near-equal numbers and without overflow. */
struct logistic {
    float s, rest;
};

template <bool FAST> static __device__ __forceinline__ logistic logistic_of(float gate)
{
    float e = FAST ? __expf(-fabsf(gate)) : expf(-fabsf(gate));
    float larger = FAST ? __fdividef(1.0f, 1.0f + e) : 1.0f / (1.0f + e), smaller = e * larger;
    return gate < 0.0f ? logistic{smaller, larger} : logistic{larger, smaller};
}

static __device__ __forceinline__ float swiglu_value(float gate, float up, float s)
{
    return gate * s * up;
}

/* The offsets of this thread's pack: `at` in y, `gate` in gate_up. */
template <int N> struct pack_offsets {
    size_t at, gate;
    bool exists;

    __device__ __forceinline__ pack_offsets(unsigned row_blocks, size_t width)
    {
        size_t row = blockIdx.x / row_blocks;
        size_t column = ((size_t)(blockIdx.x % row_blocks) * THREADS + threadIdx.x) * N;
        at = row * width + column;
        gate = at + row * width;
        exists = column < width;
    }
};

template <typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(THREADS)
    swiglu(T *y, const T *gate_up, unsigned row_blocks, size_t width, MAXIMUM maximum)
{
    pack_offsets<N> p(row_blocks, width);
    if (p.exists) {
        zero_pack<T, N> gate = zero_load<N>(gate_up, p.gate), up = zero_load<N>(gate_up, p.gate + width);
        float out[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] = swiglu_value(gate[i], up[i], logistic_of<sizeof(T) == 2>(gate[i]).s);
        zero_pack<T, N> rounded = zero_packed<T>(out);
        zero_store_pack<N>(y, p.at, rounded);
        maximum.see(rounded);
    }
    maximum.finish(true);
}

/* Computes dup = dy silu(gate), dgate = dy up (s + gate s (1 - s)). dgate_up may be gate_up: a thread writes only where
 * it has read. */
template <typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(THREADS) swiglu_backward(T *dgate_up, T *y, const T *dy, const T *gate_up,
                                                                  unsigned row_blocks, size_t width, MAXIMUM maximum)
{
    pack_offsets<N> p(row_blocks, width);
    if (p.exists) {
        zero_pack<T, N> gate = zero_load<N>(gate_up, p.gate), up = zero_load<N>(gate_up, p.gate + width);
        zero_pack<T, N> d = zero_load<N>(dy, p.at);
        float dgate[N], dup[N], out[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            logistic f = logistic_of<sizeof(T) == 2>(gate[i]);
            dgate[i] = d[i] * up[i] * fmaf(gate[i] * f.s, f.rest, f.s);
            dup[i] = d[i] * (gate[i] * f.s);
            out[i] = swiglu_value(gate[i], up[i], f.s);
        }
        zero_pack<T, N> of_gate = zero_packed<T>(dgate), of_up = zero_packed<T>(dup);
        zero_store_pack<N>(dgate_up, p.gate, of_gate);
        zero_store_pack<N>(dgate_up, p.gate + width, of_up);
        maximum.see(of_gate);
        maximum.see(of_up);
        if (y != nullptr)
            zero_store(y, p.at, out);
    }
    maximum.finish(true);
}

/* Calls f with a value of the pack type to use, the blocks per row and the number of all blocks. */
template <typename T, typename F> static cudaError_t with_packs(bool aligned, size_t n_rows, size_t width, F f)
{
    constexpr int N = 16 / sizeof(T);
    bool packs = aligned && width % N == 0;
    size_t row_blocks = zero_divide_up(width, THREADS * (packs ? N : 1));
    if (n_rows * row_blocks > INT32_MAX)
        return cudaErrorInvalidValue;
    if (packs)
        return f(zero_pack<T, N>(), (unsigned)row_blocks, (unsigned)(n_rows * row_blocks));
    return f(zero_pack<T, 1>(), (unsigned)row_blocks, (unsigned)(n_rows * row_blocks));
}

extern "C" cudaError_t zero_launch_swiglu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up,
                                          size_t n_rows, size_t width, uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(zero_aligned(y) && zero_aligned(gate_up), n_rows, width,
                             [&](auto pack, unsigned row_blocks, unsigned blocks) {
                                 constexpr int N = sizeof(pack) / sizeof(T);
                                 return zero_with_maximum<T>(absmax, [&](auto maximum) {
                                     swiglu<T, N><<<blocks, THREADS, 0, stream>>>((T *)y, (const T *)gate_up,
                                                                                  row_blocks, width, maximum);
                                     return cudaGetLastError();
                                 });
                             });
    });
}

extern "C" cudaError_t zero_launch_swiglu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y,
                                                   const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                                   uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        bool aligned = zero_aligned(dgate_up) && zero_aligned(y) && zero_aligned(dy) && zero_aligned(gate_up);
        return with_packs<T>(aligned, n_rows, width, [&](auto pack, unsigned row_blocks, unsigned blocks) {
            constexpr int N = sizeof(pack) / sizeof(T);
            return zero_with_maximum<T>(absmax, [&](auto maximum) {
                swiglu_backward<T, N><<<blocks, THREADS, 0, stream>>>((T *)dgate_up, (T *)y, (const T *)dy,
                                                                      (const T *)gate_up, row_blocks, width, maximum);
                return cudaGetLastError();
            });
        });
    });
}
