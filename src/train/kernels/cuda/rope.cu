/* rope.cu - rotary position embedding on CUDA (Su et al. 2021, arXiv:2104.09864), as in Hugging Face's Llama.
 *
 * A block owns a row, one position of one sequence, counted from where its document begins. It computes the sines and
 * cosines of the row's angles once, for all heads, into shared memory, while the heads' first elements are being
 * loaded. An angle is the position times the frequency, rounded to fp32 as Hugging Face rounds it; its sine and cosine
 * are accurate at any size.
 */
#include "train/kernels/cuda/maximum.cuh"

#define MAX_THREADS 256
#define PAIRS 2 /* of packs that a thread rotates at a time */

/* Rotates elements i and i + half, for first <= i < first + n of `frequencies`, in heads 0 .. n_heads of each row. The
 * maximum is of these and of the heads behind them, which stay; its kernel is held to the registers of the other. */
template <typename T, int N, typename MAXIMUM>
static __global__ void __launch_bounds__(MAX_THREADS, MAXIMUM::RECORDS ? 5 : 0)
    rope(T *qkv, const __grid_constant__ zero_rope_frequencies_t frequencies, float sign, const int32_t *starts,
         size_t seq_len, unsigned n_heads, size_t row_elems, MAXIMUM maximum)
{
    __shared__ alignas(sizeof(float) * N) float cosine[ZERO_ROPE_FREQUENCIES], sine[ZERO_ROPE_FREQUENCIES];
    unsigned head_packs = frequencies.n / N, n_packs = n_heads * head_packs;
    size_t half = frequencies.half;
    T *row = qkv + blockIdx.x * row_elems;
    zero_pack<T, N> a[PAIRS], b[PAIRS];
    auto start = [&](unsigned pack) {
        return pack / head_packs * frequencies.head_dim + frequencies.first + pack % head_packs * N;
    };
    auto load = [&](unsigned base) {
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) {
            unsigned pack = base + k * blockDim.x;
            if (pack >= n_packs)
                continue;
            a[k] = zero_load<N>(row, start(pack));
            b[k] = zero_load<N>(row, start(pack) + half);
        }
    };
    load(threadIdx.x);
    size_t position = blockIdx.x % seq_len - (starts != nullptr ? starts[blockIdx.x] : 0);
    for (unsigned i = threadIdx.x; i < frequencies.n; i += blockDim.x) {
        float s, c;
        sincosf((float)position * frequencies.of[i], &s, &c);
        cosine[i] = c * frequencies.scale;
        sine[i] = sign * s * frequencies.scale;
    }
    __syncthreads();
    for (unsigned base = threadIdx.x; base < n_packs; base += PAIRS * blockDim.x, load(base)) {
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) {
            unsigned pack = base + k * blockDim.x;
            if (pack >= n_packs)
                continue;
            zero_pack<float, N> c = zero_load<N>(cosine, pack % head_packs * N);
            zero_pack<float, N> s = zero_load<N>(sine, pack % head_packs * N);
            float first[N], second[N], factor = pack / head_packs < frequencies.n_q_heads ? frequencies.q_scale : 1.0f;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                first[i] = fmaf(a[k][i], c[i], -(b[k][i] * s[i])) * factor;
                second[i] = fmaf(b[k][i], c[i], a[k][i] * s[i]) * factor;
            }
            zero_pack<T, N> of_first = zero_packed<T>(first), of_second = zero_packed<T>(second);
            zero_store_pack<N>(row, start(pack), of_first);
            zero_store_pack<N>(row, start(pack) + half, of_second);
            maximum.see(of_first);
            maximum.see(of_second);
        }
    }
    size_t rest = frequencies.head_dim - 2 * half; /* of a head, which stays */
    if (MAXIMUM::RECORDS && rest > 0)
        for (size_t at = (size_t)threadIdx.x * N; at < n_heads * rest; at += (size_t)blockDim.x * N)
            maximum.see(zero_load<N>(row, at / rest * frequencies.head_dim + 2 * half + at % rest));
    if (MAXIMUM::RECORDS)
        for (size_t at = (size_t)n_heads * frequencies.head_dim + (size_t)threadIdx.x * N; at < row_elems;
             at += (size_t)blockDim.x * N)
            maximum.see(zero_load<N>(row, at));
    maximum.finish(true);
}

template <typename T, int N>
static cudaError_t launch(cudaStream_t stream, T *qkv, const zero_rope_frequencies_t *frequencies, bool inverse,
                          const int32_t *starts, size_t n_rows, size_t seq_len, size_t n_heads, size_t row_elems,
                          uint32_t *absmax)
{
    size_t threads = zero_divide_up(n_heads * (frequencies->n / N), PAIRS * ZERO_WARP) * ZERO_WARP;
    return zero_with_maximum<T>(absmax, [&](auto maximum) {
        rope<T, N><<<(unsigned)n_rows, (unsigned)(threads < MAX_THREADS ? threads : MAX_THREADS), 0, stream>>>(
            qkv, *frequencies, inverse ? -1.0f : 1.0f, starts, seq_len, (unsigned)n_heads, row_elems, maximum);
        return cudaGetLastError();
    });
}

extern "C" cudaError_t zero_launch_rope(cudaStream_t stream, zero_dtype_t dtype, void *qkv,
                                        const zero_rope_frequencies_t *frequencies, bool inverse, const int32_t *starts,
                                        size_t n_rows, size_t seq_len, size_t n_heads, size_t row_elems,
                                        uint32_t *absmax)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        bool packs = zero_aligned(qkv) && frequencies->head_dim % N == 0 && frequencies->half % N == 0 &&
                     frequencies->n % N == 0 && frequencies->first % N == 0;
        auto launcher = packs ? launch<T, N> : launch<T, 1>;
        return launcher(stream, (T *)qkv, frequencies, inverse, starts, n_rows, seq_len, n_heads, row_elems, absmax);
    });
}
