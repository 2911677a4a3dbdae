/* gelu.cu - elementwise kernels on CUDA: the tanh form of GELU, its gradient, addition.
 *
 * Memory-bound: one 16-byte pack a thread and no loop, which moves more bytes a second than a grid-stride loop does.
 * The formulas are gelu.c's; 16-bit types take the fast exponential and division, whose errors they cannot show.
 */
#include "kernels/pack.cuh"

#define THREADS 256
#define MINUS_TWO_SQRT_2_OVER_PI (-1.59576912f)
#define CUBIC 0.044715f

template <bool FAST> __device__ __forceinline__ float exponential(float x)
{
    return FAST ? __expf(x) : expf(x);
}

template <bool FAST> __device__ __forceinline__ float quotient(float a, float b)
{
    return FAST ? __fdividef(a, b) : a / b;
}

/* -2u of u = sqrt(2/pi) (x + 0.044715 x^3) */
__device__ __forceinline__ float gelu_exponent(float x)
{
    return MINUS_TWO_SQRT_2_OVER_PI * x * fmaf(CUBIC * x, x, 1.0f);
}

/* x (1 + tanh u) / 2 = x / (1 + e^-2u). __fdividef gives 0 for divisors above 2^126: right here, where x / inf is 0. */
template <bool FAST> __device__ __forceinline__ float gelu_value(float x)
{
    return quotient<FAST>(x, 1.0f + exponential<FAST>(gelu_exponent(x)));
}

/* As in gelu.c: with s = 1 / (1 + e), s + x s (1 - s) 2u'; bounded where the second term has died out. */
template <bool FAST> __device__ __forceinline__ float gelu_slope(float x)
{
    float t = gelu_exponent(x);
    float e = exponential<FAST>(t > 80.0f ? 80.0f : t);
    float s = quotient<FAST>(1.0f, 1.0f + e);
    float bounded = x > 10.0f ? 10.0f : x;
    bounded = bounded < -10.0f ? -10.0f : bounded;
    float two_u_slope = -MINUS_TWO_SQRT_2_OVER_PI * fmaf(3.0f * CUBIC * bounded, bounded, 1.0f);
    return fmaf(bounded * two_u_slope, e * s * s, s);
}

template <typename T> struct gelu_op {
    static __device__ __forceinline__ float apply(float, float x)
    {
        return gelu_value<sizeof(T) == 2>(x);
    }
};
template <typename T> struct gelu_backward_op {
    static __device__ __forceinline__ float apply(float dy, float x)
    {
        return dy * gelu_slope<sizeof(T) == 2>(x);
    }
};
template <typename T> struct add_op {
    static __device__ __forceinline__ float apply(float y, float x)
    {
        return y + x;
    }
};

/* out[i] = OP(a[i], b[i]); a NULL where the operation has one operand. out may be a. */
template <typename T, int N, template <typename> class OP>
static __global__ void __launch_bounds__(THREADS) elementwise(T *out, const T *a, const T *b, size_t n_packs)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_packs)
        return;
    zero_pack<T, N> second = zero_load<N>(b, i * N), first = second;
    float result[N];
    if (a != nullptr)
        first = zero_load<N>(a, i * N);
#pragma unroll
    for (int k = 0; k < N; ++k)
        result[k] = OP<T>::apply(first[k], second[k]);
    zero_store(out, i * N, result);
}

/* Packs as far as they go, single elements behind them. */
template <typename T, template <typename> class OP>
static cudaError_t launch(cudaStream_t stream, T *out, const T *a, const T *b, size_t n)
{
    constexpr int N = 16 / sizeof(T);
    size_t n_packs = zero_aligned(out) && zero_aligned(a) && zero_aligned(b) ? n / N : 0, done = n_packs * N;
    if (n_packs > 0)
        elementwise<T, N, OP><<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>(out, a, b, n_packs);
    if (n > done)
        elementwise<T, 1, OP><<<(unsigned)zero_divide_up(n - done, THREADS), THREADS, 0, stream>>>(
            out + done, a == nullptr ? nullptr : a + done, b + done, n - done);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_gelu(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *x, size_t n_elems)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return launch<T, gelu_op>(stream, (T *)y, nullptr, (const T *)x, n_elems);
    });
}

extern "C" cudaError_t zero_launch_gelu_backward(cudaStream_t stream, zero_dtype_t dtype, void *dx, const void *dy,
                                                 const void *x, size_t n_elems)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return launch<T, gelu_backward_op>(stream, (T *)dx, (const T *)dy, (const T *)x, n_elems);
    });
}

extern "C" cudaError_t zero_launch_add(cudaStream_t stream, zero_dtype_t dtype, void *y, const void *x, size_t n_elems)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return launch<T, add_op>(stream, (T *)y, (const T *)y, (const T *)x, n_elems);
    });
}
