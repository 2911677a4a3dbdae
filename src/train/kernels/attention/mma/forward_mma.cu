/* forward_mma.cu - causal self-attention with masks by tensor cores: FlashAttention-2's forward pass (Dao 2023,
 * arXiv:2307.08691) in 16 bits.
 *
 * A block owns some queries of one head, a warp 32 of them, or on Hopper four warps 64. It walks over the tiles of keys
 * that one of its queries sees, in ascending order, and skips what the mask hides: a short document or window costs
 * what it sees. The next tile of keys and values is copied while this one is computed. Scores stay in registers:
 * rounded, they are the left side of the product with the values.
 */
#include "train/kernels/attention/tiles.cuh"

/* What blocks are made of: 16 queries to a warp M times. */
template <bool WIDE> static constexpr int rows_m = WIDE ? 1 : 2;
template <int DIM, bool WIDE> static constexpr int n_warps = !WIDE ? 4 : DIM <= 64 ? 8 : 12;
template <int DIM, bool WIDE> static constexpr int n_own = n_warps<DIM, WIDE> *rows_m<WIDE> * 16;
template <int DIM, bool WIDE> static constexpr int n_threads = n_warps<DIM, WIDE> *ZERO_WARP;
template <int DIM, bool WIDE>
static constexpr int n_blocks = WIDE ? (DIM <= 64 ? 2 : 1) : (DIM <= 64 ? 3 : 2); /* per SM */
template <int DIM> static constexpr int stage_bytes = 2 * tile_bytes<DIM, OTHER>; /* keys and values */

/* A row's running maximum, in units of log 2, and its sum, of this lane's columns. */
template <int M> struct running {
    float max[M][2], sum[M][2];
};

/* Hides the keys that a query does not see; `key` is the first of the tile's, `query` the lane's first. */
template <int M>
static __device__ __forceinline__ void hide(float (&scores)[M][OTHER / 8][4], const int (&hidden)[M][2], int query,
                                            int key, int lane)
{
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int at = key + n * 8 + lane % 4 * 2 + e % 2;
                if (at < hidden[m][e / 2] || at > query + m * 16 + e / 2 * 8)
                    scores[m][n][e] = -INFINITY;
            }
}

/* Turns scores into probabilities times e^shift, and rescales what was added up before if the maximum has grown. */
template <int DIM, int M>
static __device__ __forceinline__ void soften(float (&scores)[M][OTHER / 8][4], running<M> *r,
                                              float (&acc)[M][DIM / 8][4], float scale)
{
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float max = r->max[m][half], tile_max = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int n = 0; n < OTHER / 8; ++n)
                tile_max = fmaxf(tile_max, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
            tile_max = fmaxf(tile_max, __shfl_xor_sync(ZERO_FULL_WARP, tile_max, 1));
            tile_max = fmaxf(tile_max, __shfl_xor_sync(ZERO_FULL_WARP, tile_max, 2));
            float new_max = fmaxf(max, tile_max * scale);
            float shift = new_max > -INFINITY ? new_max : 0.0f; /* else the row has not seen a key so far */
#pragma unroll
            for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    scores[m][n][e] = zero_fast_exp2(fmaf(scores[m][n][e], scale, -shift));
                    sum += scores[m][n][e];
                }
            float rescale = zero_fast_exp2(max - shift);
            r->sum[m][half] = fmaf(r->sum[m][half], rescale, sum);
            r->max[m][half] = new_max;
            if (__any_sync(ZERO_FULL_WARP, rescale != 1.0f)) {
#pragma unroll
                for (int n = 0; n < DIM / 8; ++n) {
                    acc[m][n][2 * half] *= rescale;
                    acc[m][n][2 * half + 1] *= rescale;
                }
            }
        }
}

/* A block's tile of queries is in x, the longest first; its head in y, its sequence in z. */
template <typename T, int DIM, bool WIDE>
static __device__ __forceinline__ void forward_block(T *out, float *logsumexp, const T *qkv, mask_t mask, sizes_t s,
                                                     float scale)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int M = rows_m<WIDE>, OWN = n_own<DIM, WIDE>, THREADS = n_threads<DIM, WIDE>;
    constexpr int TOGETHER = WIDE ? 64 : M * 16; /* rows of the warps that multiply together */
    const int lane = threadIdx.x % ZERO_WARP, warp_row = (int)threadIdx.x / ZERO_WARP * M * 16;
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * OWN, query = first + warp_row;
    const int together = warp_row / TOGETHER * TOGETHER;
    const head_t h = head_at(s, blockIdx.z, blockIdx.y);
    const uint32_t q = zero_shared_address(shared), stages = q + tile_bytes<DIM, OWN>;
    const int begin = first_key(mask, s, blockIdx.z, first) / OTHER, end = (min(first + OWN, s.seq_len) - 1) / OTHER;
    const int first_seen = first_key(mask, s, blockIdx.z, first + together),
              last_seen = first_key(mask, s, blockIdx.z, first + together + TOGETHER - 1);
    auto load = [&](int tile) {
        uint32_t k = stages + (tile & 1) * stage_bytes<DIM>;
        load_rows<DIM, OTHER, THREADS>(k, qkv + h.k, h.width, tile * OTHER, s);
        load_rows<DIM, OTHER, THREADS>(k + stage_bytes<DIM> / 2, qkv + h.v, h.width, tile * OTHER, s);
    };
    int hidden[M][2];
    float acc[M][DIM / 8][4] = {};
    running<M> r;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            hidden[m][half] = first_key(mask, s, blockIdx.z, query + m * 16 + half * 8 + lane / 4);
            r.max[m][half] = -INFINITY;
            r.sum[m][half] = 0.0f;
        }
    load_rows<DIM, OWN, THREADS>(q, qkv + h.q, h.width, first, s);
    load(begin);
    for (int tile = begin; tile <= end; ++tile) {
        zero_wait_for_copies();
        if (WIDE)
            zero_wide_show_stores();
        __syncthreads(); /* the tile is there, and the one before has been read */
        if (tile < end)
            load(tile + 1);
        const sight_t sight = sight_of(first + together, TOGETHER, tile * OTHER, OTHER, first_seen, last_seen);
        if (sight == SIGHT_NONE)
            continue;
        const uint32_t k = stages + (tile & 1) * stage_bytes<DIM>, v = k + stage_bytes<DIM> / 2;
        float scores[M][OTHER / 8][4];
        uint32_t probs[M][OTHER / 16][4];
        if constexpr (WIDE) {
            wide_dots<T, DIM, OWN>(scores[0], q + together * ROW_BYTES, k);
            zero_wide_wait<0>(scores[0]);
        } else {
            tile_dots<T, DIM, OWN>(scores, q + warp_row * ROW_BYTES, k, lane);
        }
        if (sight == SIGHT_SOME)
            hide(scores, hidden, query + lane / 4, tile * OTHER, lane);
        soften<DIM>(scores, &r, acc, scale);
        round_weights<T>(probs, scores);
        if constexpr (WIDE) {
            wide_accumulate<T, DIM>(acc[0], probs[0], v);
            zero_wide_wait<0>(acc[0]);
        } else {
            tile_accumulate<T, DIM>(acc, probs, v, lane);
        }
    }
    float factors[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = r.sum[m][half];
            int row = query + m * 16 + half * 8 + lane / 4;
            sum += __shfl_xor_sync(ZERO_FULL_WARP, sum, 1);
            sum += __shfl_xor_sync(ZERO_FULL_WARP, sum, 2);
            factors[m][half] = 1.0f / sum;
            if (lane % 4 == 0 && row < s.seq_len)
                logsumexp[h.lse + row] = fmaf(r.max[m][half], LN_2, logf(sum));
        }
    __syncthreads(); /* the own tiles have been read */
    store_rows<T, DIM, OWN>(out + h.out, h.out_width, query, s, shared + warp_row * ROW_BYTES, acc, factors, lane);
}

/* scale: times log2 e. */
template <typename T, int DIM, bool WIDE>
static __global__ void __launch_bounds__(n_threads<DIM, WIDE>, n_blocks<DIM, WIDE>)
    attention_mma(T *out, float *logsumexp, const T *qkv, mask_t mask, sizes_t s, float scale)
{
    if constexpr (ZERO_HAS_WGMMA || !WIDE)
        forward_block<T, DIM, WIDE>(out, logsumexp, qkv, mask, s, scale);
    else
        __trap(); /* built without Hopper's instructions (mk/gpu.mk): an error, not an untouched output */
}

template <typename T, int DIM, bool WIDE>
static cudaError_t launch(cudaStream_t stream, void *out, float *logsumexp, const void *qkv, mask_t mask, sizes_t s)
{
    auto kernel = attention_mma<T, DIM, WIDE>;
    const size_t bytes = tile_bytes<DIM, n_own<DIM, WIDE>> + 2 * stage_bytes<DIM>;
    const dim3 grid((unsigned)zero_divide_up((size_t)s.seq_len, n_own<DIM, WIDE>), (unsigned)s.n_heads,
                    (unsigned)s.n_batch);
    cudaError_t error = allow_shared((const void *)kernel, bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<grid, n_threads<DIM, WIDE>, bytes, stream>>>((T *)out, logsumexp, (const T *)qkv, mask, s,
                                                          LOG2_E / sqrtf((float)s.head_dim));
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_attention_mma(cudaStream_t stream, zero_dtype_t dtype, void *out, float *logsumexp,
                                                 const void *qkv, const zero_mask_t *mask,
                                                 const zero_attention_shape_t *shape)
{
    const sizes_t s = sizes_of(shape);
    return with_half_type(dtype, [&](auto type) {
        return with_head_dim(s.head_dim, [&](auto dim, auto wide) {
            return launch<decltype(type), decltype(dim)::value, decltype(wide)::value>(stream, out, logsumexp, qkv,
                                                                                       mask_of(mask), s);
        });
    });
}
