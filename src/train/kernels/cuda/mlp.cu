/* mlp.cu - the tanh form of GELU, SwiGLU and GeGLU, and their gradients on CUDA.
 *
 * All are bound by memory. GELU forward takes one 16-byte pack per thread, without a loop, which moves more bytes per
 * second than a grid-stride loop. Backward goes down the rows instead, as column.cuh does, since it also sums the
 * columns of dx: a separate pass for that would take a third longer. The formulas are in activation.cuh.
 */
#include "train/kernels/cuda/activation.cuh"
#include "train/kernels/cuda/column.cuh"
#include "train/kernels/cuda/maximum.cuh"

#define THREADS 256

template <typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(THREADS) gelu(T *y, const T *x, size_t n_packs, MAXIMUM maximum)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n_packs) {
        zero_pack<T, N> in = zero_load<N>(x, i * N);
        float out[N];
#pragma unroll
        for (int k = 0; k < N; ++k)
            out[k] = zero_gelu_value<sizeof(T) == 2>(in[k]);
        zero_pack<T, N> rounded = zero_packed<T>(out);
        zero_store_pack<N>(y, i * N, rounded);
        maximum.see(rounded);
    }
    maximum.finish(true);
}

/* Launches whole packs, then single elements for the rest. */
template <typename T, typename MAXIMUM>
static cudaError_t launch_forward(cudaStream_t stream, T *y, const T *x, size_t n, MAXIMUM maximum)
{
    constexpr int N = 16 / sizeof(T);
    size_t n_packs = zero_aligned(y) && zero_aligned(x) ? n / N : 0, done = n_packs * N;
    if (n_packs > 0)
        gelu<T, N><<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>(y, x, n_packs, maximum);
    if (n > done)
        gelu<T, 1><<<(unsigned)zero_divide_up(n - done, THREADS), THREADS, 0, stream>>>(y + done, x + done, n - done,
                                                                                        maximum);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_gelu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *x, size_t n_elems,
                                        uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return zero_with_maximum<T>(
            absmax, [&](auto maximum) { return launch_forward(stream, (T *)y, (const T *)x, n_elems, maximum); });
    });
}

#define ROWS_AHEAD 3 /* rows whose loads are in flight while as many are computed */

template <typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(ZERO_WARP *ZERO_COLUMN_WARPS, 2)
    gelu_backward(T *dx, float *partials, T *y, const T *dy, const T *x, size_t n_rows, size_t width, MAXIMUM maximum)
{
    constexpr bool FAST = sizeof(T) == 2;
    size_t column = ((size_t)blockIdx.x * ZERO_WARP + threadIdx.x) * N, step = (size_t)gridDim.y * ZERO_COLUMN_WARPS;
    zero_pack<T, N> grad[ROWS_AHEAD], in[ROWS_AHEAD], next_grad[ROWS_AHEAD], next_in[ROWS_AHEAD];
    float sum[N] = {};
    auto load = [&](size_t row) {
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r) {
            size_t at = row + r * step;
            if (at < n_rows && column < width) {
                next_grad[r] = zero_load<N>(dy, at * width + column);
                next_in[r] = zero_load<N>(x, at * width + column);
            }
        }
    };
    zero_may_launch_next();
    load(zero_first_row());
    for (size_t row = zero_first_row(); row < n_rows && column < width; row += ROWS_AHEAD * step) {
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r) {
            grad[r] = next_grad[r];
            in[r] = next_in[r];
        }
        load(row + ROWS_AHEAD * step); /* before this turn's stores: dx may be dy */
#pragma unroll
        for (int r = 0; r < ROWS_AHEAD; ++r) {
            size_t at = row + r * step;
            float values[N];
            if (at >= n_rows)
                break;
#pragma unroll
            for (int i = 0; i < N; ++i)
                values[i] = grad[r][i] * zero_gelu_slope<FAST>(in[r][i]);
            zero_pack<T, N> out = zero_packed<T>(values);
            zero_store_pack<N>(dx, at * width + column, out);
            maximum.see(out);
#pragma unroll
            for (int i = 0; i < N; ++i)
                sum[i] += out[i];
            if (y == nullptr)
                continue;
#pragma unroll
            for (int i = 0; i < N; ++i)
                values[i] = zero_gelu_value<FAST>(in[r][i]);
            zero_store(y, at * width + column, values);
        }
    }
    zero_put_part(partials, column, width, sum);
    maximum.finish(true);
}

template <int N, typename T>
static cudaError_t launch_backward(cudaStream_t stream, T *dx, float *partials, T *y, const T *dy, const T *x,
                                   size_t n_rows, size_t width, uint32_t *absmax)
{
    dim3 block(ZERO_WARP, ZERO_COLUMN_WARPS);
    return zero_with_maximum<T>(absmax, [&](auto maximum) {
        gelu_backward<T, N>
            <<<zero_column_grid<N>(n_rows, width), block, 0, stream>>>(dx, partials, y, dy, x, n_rows, width, maximum);
        return cudaGetLastError();
    });
}

extern "C" cudaError_t zero_launch_gelu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dx, float *partials,
                                                 void *y, const void *dy, const void *x, size_t n_rows, size_t width,
                                                 uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(dx) && zero_aligned(y) && zero_aligned(dy) && zero_aligned(x) && width % N == 0)
            return launch_backward<N>(stream, (T *)dx, partials, (T *)y, (const T *)dy, (const T *)x, n_rows, width,
                                      absmax);
        return launch_backward<1>(stream, (T *)dx, partials, (T *)y, (const T *)dy, (const T *)x, n_rows, width,
                                  absmax);
    });
}

/* ---- swiglu and geglu ---- */
/* act(gate) * up and its gradient on CUDA (Shazeer 2020, arXiv:2002.05202): act is silu or GELU's tanh form.
 *
 * Bound by memory: a thread takes one 16-byte pack of each tensor, without a loop. A block stays within a row, so that
 * a thread finds its row with one division, the same for the whole block. */

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

template <typename ACT, typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(THREADS)
    gated(T *y, const T *gate_up, unsigned row_blocks, size_t width, MAXIMUM maximum)
{
    pack_offsets<N> p(row_blocks, width);
    if (p.exists) {
        zero_pack<T, N> gate = zero_load<N>(gate_up, p.gate), up = zero_load<N>(gate_up, p.gate + width);
        float out[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
            out[i] = ACT::template of<sizeof(T) == 2>(gate[i]).value * up[i];
        zero_pack<T, N> rounded = zero_packed<T>(out);
        zero_store_pack<N>(y, p.at, rounded);
        maximum.see(rounded);
    }
    maximum.finish(true);
}

/* Computes dup = dy act(gate), dgate = dy up act'(gate). dgate_up may be gate_up: a thread writes only where it has
 * read. */
template <typename ACT, typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(THREADS)
    gated_backward(T *dgate_up, T *y, const T *dy, const T *gate_up, unsigned row_blocks, size_t width, MAXIMUM maximum)
{
    pack_offsets<N> p(row_blocks, width);
    if (p.exists) {
        zero_pack<T, N> gate = zero_load<N>(gate_up, p.gate), up = zero_load<N>(gate_up, p.gate + width);
        zero_pack<T, N> d = zero_load<N>(dy, p.at);
        float dgate[N], dup[N], out[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            zero_activation act = ACT::template of<sizeof(T) == 2>(gate[i]);
            dgate[i] = d[i] * up[i] * act.slope;
            dup[i] = d[i] * act.value;
            out[i] = act.value * up[i];
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

template <typename ACT>
static cudaError_t launch_gated(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up, size_t n_rows,
                                size_t width, uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_packs<T>(zero_aligned(y) && zero_aligned(gate_up), n_rows, width,
                             [&](auto pack, unsigned row_blocks, unsigned blocks) {
                                 constexpr int N = sizeof(pack) / sizeof(T);
                                 return zero_with_maximum<T>(absmax, [&](auto maximum) {
                                     gated<ACT, T, N><<<blocks, THREADS, 0, stream>>>((T *)y, (const T *)gate_up,
                                                                                      row_blocks, width, maximum);
                                     return cudaGetLastError();
                                 });
                             });
    });
}

template <typename ACT>
static cudaError_t launch_gated_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y,
                                         const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                         uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        bool aligned = zero_aligned(dgate_up) && zero_aligned(y) && zero_aligned(dy) && zero_aligned(gate_up);
        return with_packs<T>(aligned, n_rows, width, [&](auto pack, unsigned row_blocks, unsigned blocks) {
            constexpr int N = sizeof(pack) / sizeof(T);
            return zero_with_maximum<T>(absmax, [&](auto maximum) {
                gated_backward<ACT, T, N><<<blocks, THREADS, 0, stream>>>(
                    (T *)dgate_up, (T *)y, (const T *)dy, (const T *)gate_up, row_blocks, width, maximum);
                return cudaGetLastError();
            });
        });
    });
}

extern "C" cudaError_t zero_launch_swiglu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up,
                                          size_t n_rows, size_t width, uint32_t *absmax)
{
    return launch_gated<zero_silu>(stream, dtype, y, gate_up, n_rows, width, absmax);
}

extern "C" cudaError_t zero_launch_swiglu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y,
                                                   const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                                   uint32_t *absmax)
{
    return launch_gated_backward<zero_silu>(stream, dtype, dgate_up, y, dy, gate_up, n_rows, width, absmax);
}

extern "C" cudaError_t zero_launch_geglu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *gate_up,
                                         size_t n_rows, size_t width, uint32_t *absmax)
{
    return launch_gated<zero_gelu>(stream, dtype, y, gate_up, n_rows, width, absmax);
}

extern "C" cudaError_t zero_launch_geglu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dgate_up, void *y,
                                                  const void *dy, const void *gate_up, size_t n_rows, size_t width,
                                                  uint32_t *absmax)
{
    return launch_gated_backward<zero_gelu>(stream, dtype, dgate_up, y, dy, gate_up, n_rows, width, absmax);
}

/* ---- scaled sums ---- */

/* y = residual + factor x. y may be either: a thread writes only where it has read. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    add_scaled(T *y, const T *residual, const T *x, float factor, size_t n_packs)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_packs)
        return;
    zero_pack<T, N> in = zero_load<N>(x, i * N), before = {};
    if (residual != nullptr)
        before = zero_load<N>(residual, i * N);
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k)
        out[k] = residual != nullptr ? fmaf(factor, in[k], before[k]) : factor * in[k];
    zero_store(y, i * N, out);
}

template <typename T, int N>
static void launch_add_scaled(cudaStream_t stream, T *y, const T *residual, const T *x, float factor, size_t n_packs)
{
    if (n_packs > 0)
        add_scaled<T, N>
            <<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>(y, residual, x, factor, n_packs);
}

/* Launches whole packs, then single elements for the rest. */
extern "C" cudaError_t zero_launch_add_scaled(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *residual,
                                              const void *x, float factor, size_t n_elems)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        bool aligned = zero_aligned(y) && zero_aligned(residual) && zero_aligned(x);
        size_t n_packs = aligned ? n_elems / N : 0, done = n_packs * N;
        const T *rest = residual == nullptr ? nullptr : (const T *)residual + done;
        launch_add_scaled<T, N>(stream, (T *)y, (const T *)residual, (const T *)x, factor, n_packs);
        launch_add_scaled<T, 1>(stream, (T *)y + done, rest, (const T *)x + done, factor, n_elems - done);
        return cudaGetLastError();
    });
}
