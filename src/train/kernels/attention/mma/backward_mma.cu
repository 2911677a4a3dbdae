/* backward_mma.cu - the gradients of attention with masks by tensor cores: FlashAttention-2's backward pass (Dao 2023,
 * arXiv:2307.08691) in 16 bits, with one owner for every element, so without atomics.
 *
 * P = e^(scale Q K^T - logsumexp), masked;  dS = P (dO V^T - delta), delta = rowsum(dO O)
 * dQ = scale dS K;  dV = P^T dO;  dK = scale dS^T Q
 *
 * One kernel, launched twice, in which a block owns rows of one side, a warp 16 of them, and walks over the tiles of
 * the other side that see them or that they see, in ascending order:
 *
 *     own rows     of queries: q, dout     of keys: k, v
 *     other rows   k, v                    q, dout
 *     dots         S, dP                   S^T, dP^T
 *     gradients    dQ = dS K               dV = P^T dO, dK = dS^T Q
 *
 * The keys' block walks over the query heads that share its key/value head in order. The next tile is copied while this
 * one is computed.
 */
#include "train/kernels/attention/tiles.cuh"

/* What blocks are made of. Of queries there is one gradient to hold, of keys two. */
template <int DIM, bool WIDE, bool OF_KEYS>
static constexpr int n_warps = WIDE ? (OF_KEYS ? 8 : 12) : (DIM <= 64 ? 4 : 8);
template <int DIM, bool WIDE, bool OF_KEYS> static constexpr int n_own = n_warps<DIM, WIDE, OF_KEYS> * 16;
template <int DIM, bool WIDE, bool OF_KEYS> static constexpr int n_threads = n_warps<DIM, WIDE, OF_KEYS> *ZERO_WARP;
/* Bytes of the other side's tile: two tensors and, for queries, numbers of each row: logsumexp, delta, start. */
template <int DIM> static constexpr int stage_bytes = 2 * tile_bytes<DIM, OTHER> + 1024;
template <int DIM, int OWN> static constexpr int shared_bytes = 2 * tile_bytes<DIM, OWN> + 2 * stage_bytes<DIM>;

typedef struct tensors {
    const void *qkv, *dout;
    const float *logsumexp, *delta;
} tensors_t;

/* The numbers of queries that pass by, in shared memory. */
typedef struct query_rows {
    float logsumexp[OTHER], delta[OTHER];
    int start[OTHER];
} query_rows_t;

/* Starts copying the numbers of queries first .. first + OTHER of a head. */
static __device__ __forceinline__ void load_query_rows(uint32_t to, const tensors_t &t, mask_t mask, sizes_t s,
                                                       size_t lse_at, int batch, int first)
{
    int row = threadIdx.x;
    if (row >= OTHER)
        return;
    bool valid = first + row < s.seq_len, with_start = valid && mask.starts != nullptr;
    size_t at = valid ? lse_at + first + row : 0;
    zero_copy_4(to + row * 4, t.logsumexp + at, valid);
    zero_copy_4(to + (OTHER + row) * 4, t.delta + at, valid);
    zero_copy_4(to + (2 * OTHER + row) * 4,
                with_start ? (const void *)(mask.starts + (size_t)batch * s.seq_len + first + row) : t.logsumexp,
                with_start);
}

/* Returns the first key that the row-th of the passing queries sees; none, beyond the sequence. */
static __device__ __forceinline__ int passing_first_key(mask_t mask, sizes_t s, const query_rows_t *rows, int first,
                                                        int row)
{
    return first + row < s.seq_len ? first_key_from(mask, rows->start[row], first + row) : INT32_MAX;
}

/* Returns how many tiles of queries see a key of key .. key + n, the tile of the first key first. The block's threads
 * ask for one each. */
template <int THREADS>
static __device__ __forceinline__ int count_tiles(mask_t mask, sizes_t s, int batch, int key, int n)
{
    for (int n_tiles = 0;; n_tiles += THREADS) {
        int query = key + (n_tiles + (int)threadIdx.x) * OTHER;
        int n_seeing = __syncthreads_count(query < s.seq_len && first_key(mask, s, batch, query) < key + n);
        if (n_seeing < THREADS)
            return n_tiles + n_seeing;
    }
}

/* What a lane knows of its two own rows, if they are queries. */
typedef struct own_queries {
    int hidden[2];
    float logsumexp[2], delta[2]; /* logsumexp: times log2 e */
} own_queries_t;

/* Turns scores into probabilities. first_query and first_key_row: of the warp's rows and the other tile; row: the
 * lane's first. */
template <bool OF_KEYS>
static __device__ __forceinline__ void probabilities(float (&scores)[1][OTHER / 8][4], bool hides, mask_t mask,
                                                     sizes_t s, const own_queries_t &own, const query_rows_t *passing,
                                                     int row, int other, float scale, int lane)
{
#pragma unroll
    for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int column = n * 8 + lane % 4 * 2 + e % 2, query = OF_KEYS ? other + column : row + e / 2 * 8;
            int key = OF_KEYS ? row + e / 2 * 8 : other + column;
            float lse = OF_KEYS ? passing->logsumexp[column] * LOG2_E : own.logsumexp[e / 2], score = scores[0][n][e];
            if (hides) {
                int first = OF_KEYS ? passing_first_key(mask, s, passing, other, column) : own.hidden[e / 2];
                score = first <= key && key <= query ? score : -INFINITY;
            }
            scores[0][n][e] = zero_fast_exp2(fmaf(score, scale, -lse));
        }
}

/* Turns dP, in dprobs, into dS. */
template <bool OF_KEYS>
static __device__ __forceinline__ void score_gradients(float (&dprobs)[1][OTHER / 8][4],
                                                       const float (&probs)[1][OTHER / 8][4], const own_queries_t &own,
                                                       const query_rows_t *passing, int lane)
{
#pragma unroll
    for (int n = 0; n < OTHER / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float delta = OF_KEYS ? passing->delta[n * 8 + lane % 4 * 2 + e % 2] : own.delta[e / 2];
            dprobs[0][n][e] = probs[0][n][e] * (dprobs[0][n][e] - delta);
        }
}

/* A block's tile is in x, the longest first; its head, for keys its key/value head, in y; its sequence in z. */
template <typename T, int DIM, bool WIDE, bool OF_KEYS>
static __device__ __forceinline__ void backward_block(T *dqkv, const tensors_t &t, mask_t mask, sizes_t s, float scale)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int OWN = n_own<DIM, WIDE, OF_KEYS>, THREADS = n_threads<DIM, WIDE, OF_KEYS>;
    constexpr int OWN_BYTES = tile_bytes<DIM, OWN>, OTHER_BYTES = tile_bytes<DIM, OTHER>;
    constexpr int TOGETHER = WIDE ? 64 : 16; /* rows of the warps that multiply together */
    const T *qkv = (const T *)t.qkv, *dout = (const T *)t.dout;
    const int lane = threadIdx.x % ZERO_WARP, warp_row = (int)threadIdx.x / ZERO_WARP * 16, batch = blockIdx.z;
    const int group = OF_KEYS ? s.n_heads / s.n_kv_heads : 1, head = blockIdx.y * group;
    const int first = (int)(OF_KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * OWN, row = first + warp_row;
    const int together = warp_row / TOGETHER * TOGETHER;
    const uint32_t own = zero_shared_address(shared), stages = own + 2 * OWN_BYTES;
    const head_t h = head_at(s, batch, head);
    const int begin = OF_KEYS ? first / OTHER : first_key(mask, s, batch, first) / OTHER;
    const int n_tiles = OF_KEYS ? count_tiles<THREADS>(mask, s, batch, first, OWN)
                                : (min(first + OWN, s.seq_len) - 1) / OTHER + 1 - begin;
    auto load = [&](int step) { /* of the first member of the group, then of the next */
                                const uint32_t to = stages + (step & 1) * stage_bytes<DIM>;
                                const int at = (begin + step % n_tiles) * OTHER;
                                if (OF_KEYS) {
                                    const head_t member = head_at(s, batch, head + step / n_tiles);
                                    load_rows<DIM, OTHER, THREADS>(to, qkv + member.q, h.width, at, s);
                                    load_rows<DIM, OTHER, THREADS>(to + OTHER_BYTES, dout + member.out, h.out_width, at,
                                                                   s);
                                    load_query_rows(to + 2 * OTHER_BYTES, t, mask, s, member.lse, batch, at);
                                } else {
                                    load_rows<DIM, OTHER, THREADS>(to, qkv + h.k, h.width, at, s);
                                    load_rows<DIM, OTHER, THREADS>(to + OTHER_BYTES, qkv + h.v, h.width, at, s);
                                }
    };
    own_queries_t queries = {};
    int first_seen = 0, last_seen = 0;
    if (!OF_KEYS) {
        first_seen = first_key(mask, s, batch, first + together);
        last_seen = first_key(mask, s, batch, first + together + TOGETHER - 1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int query = row + half * 8 + lane / 4;
            queries.hidden[half] = first_key(mask, s, batch, query);
            queries.logsumexp[half] = query < s.seq_len ? t.logsumexp[h.lse + query] * LOG2_E : 0.0f;
            queries.delta[half] = query < s.seq_len ? t.delta[h.lse + query] : 0.0f;
        }
    }
    load_rows<DIM, OWN, THREADS>(own, qkv + (OF_KEYS ? h.k : h.q), h.width, first, s);
    load_rows<DIM, OWN, THREADS>(own + OWN_BYTES, OF_KEYS ? qkv + h.v : dout + h.out, OF_KEYS ? h.width : h.out_width,
                                 first, s);
    load(0);
    float d_first[1][DIM / 8][4] = {}, d_second[1][DIM / 8][4] = {}; /* dQ, or dK and dV */
    for (int step = 0; step < n_tiles * group; ++step) {
        zero_wait_for_copies();
        if (WIDE)
            zero_wide_show_stores();
        __syncthreads(); /* the tile is there, and the one before has been read */
        if (step + 1 < n_tiles * group)
            load(step + 1);
        const int other = (begin + step % n_tiles) * OTHER;
        const uint32_t at = stages + (step & 1) * stage_bytes<DIM>;
        const query_rows_t *passing =
            (const query_rows_t *)(shared + 2 * OWN_BYTES + (step & 1) * stage_bytes<DIM> + 2 * OTHER_BYTES);
        const sight_t sight =
            OF_KEYS ? sight_of(other, OTHER, first + together, TOGETHER, passing_first_key(mask, s, passing, other, 0),
                               passing_first_key(mask, s, passing, other, OTHER - 1))
                    : sight_of(first + together, TOGETHER, other, OTHER, first_seen, last_seen);
        if (sight == SIGHT_NONE)
            continue;
        float probs[1][OTHER / 8][4], dprobs[1][OTHER / 8][4];
        uint32_t weights[1][OTHER / 16][4], dscores[1][OTHER / 16][4];
        const uint32_t own_second = own + OWN_BYTES, second = at + OTHER_BYTES;
        if constexpr (WIDE) {
            wide_dots<T, DIM, OWN>(probs[0], own + together * ROW_BYTES, at);
            wide_dots<T, DIM, OWN>(dprobs[0], own_second + together * ROW_BYTES, second);
            zero_wide_wait<1>(probs[0]);
        } else {
            tile_dots<T, DIM, OWN>(probs, own + warp_row * ROW_BYTES, at, lane);
        }
        probabilities<OF_KEYS>(probs, sight == SIGHT_SOME, mask, s, queries, passing, row + lane / 4, other,
                               scale * LOG2_E, lane);
        if constexpr (OF_KEYS) {
            round_weights<T>(weights, probs);
            if constexpr (WIDE)
                wide_accumulate<T, DIM>(d_second[0], weights[0], second);
            else
                tile_accumulate<T, DIM>(d_second, weights, second, lane);
        }
        if constexpr (WIDE)
            zero_wide_wait<OF_KEYS>(dprobs[0]);
        else
            tile_dots<T, DIM, OWN>(dprobs, own_second + warp_row * ROW_BYTES, second, lane);
        score_gradients<OF_KEYS>(dprobs, probs, queries, passing, lane);
        round_weights<T>(dscores, dprobs);
        if constexpr (WIDE) {
            wide_accumulate<T, DIM>(d_first[0], dscores[0], at);
            zero_wide_wait<0>(d_first[0]);
            zero_wide_wait<0>(d_second[0]);
        } else {
            tile_accumulate<T, DIM>(d_first, dscores, at, lane);
        }
    }
    __syncthreads(); /* the own tiles have been read */
    unsigned char *staging = shared + warp_row * ROW_BYTES;
    store_rows<T, DIM, OWN>(dqkv + (OF_KEYS ? h.k : h.q), h.width, row, s, staging, d_first, {{scale, scale}}, lane);
    if (OF_KEYS)
        store_rows<T, DIM, OWN>(dqkv + h.v, h.width, row, s, staging + OWN_BYTES, d_second, {{1.0f, 1.0f}}, lane);
}

template <typename T, int DIM, bool WIDE, bool OF_KEYS>
static __global__ void __launch_bounds__(n_threads<DIM, WIDE, OF_KEYS>, DIM <= 64 && !WIDE ? 3 : 1)
    attention_backward_mma(T *dqkv, tensors_t t, mask_t mask, sizes_t s, float scale)
{
    if constexpr (ZERO_HAS_WGMMA || !WIDE)
        backward_block<T, DIM, WIDE, OF_KEYS>(dqkv, t, mask, s, scale);
    else
        __trap(); /* built without Hopper's instructions (mk/gpu.mk): an error, not an untouched output */
}

/* ---- delta ---- */

#define ROW_LANES 16 /* lanes to a row, 8 elements each */
#define DELTA_THREADS 256

/* Computes delta[b, h, t] = dout . out of each query's row. */
template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS)
    dot_rows(float *delta, const T *dout, const T *out, sizes_t s, size_t n_rows)
{
    size_t row = ((size_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / ROW_LANES; /* of [b, t, h] */
    int lane = threadIdx.x % ROW_LANES;
    float sum = 0.0f;
    if (row < n_rows && lane * 8 < s.head_dim)
        sum = product_of_8(dout, out, row * s.head_dim + lane * 8);
    sum = zero_lanes_sum<ROW_LANES>(sum);
    size_t head = row % s.n_heads, query = row / s.n_heads % s.seq_len, batch = row / s.n_heads / s.seq_len;
    if (row < n_rows && lane == 0)
        delta[(batch * s.n_heads + head) * s.seq_len + query] = sum;
}

/* ---- Launching ---- */

template <typename T, int DIM, bool WIDE, bool OF_KEYS>
static cudaError_t launch(cudaStream_t stream, void *dqkv, tensors_t t, mask_t mask, sizes_t s)
{
    auto kernel = attention_backward_mma<T, DIM, WIDE, OF_KEYS>;
    constexpr int own = n_own<DIM, WIDE, OF_KEYS>, threads = n_threads<DIM, WIDE, OF_KEYS>;
    constexpr int bytes = shared_bytes<DIM, own>;
    const dim3 grid((unsigned)zero_divide_up((size_t)s.seq_len, own), (unsigned)(OF_KEYS ? s.n_kv_heads : s.n_heads),
                    (unsigned)s.n_batch);
    cudaError_t error = allow_shared((const void *)kernel, bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<grid, threads, bytes, stream>>>((T *)dqkv, t, mask, s, 1.0f / sqrtf((float)s.head_dim));
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_attention_mma_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv,
                                                          float *delta, const void *dout, const void *qkv,
                                                          const void *out, const float *logsumexp,
                                                          const zero_mask_t *mask, const zero_attention_shape_t *shape)
{
    const sizes_t s = sizes_of(shape);
    const size_t n_rows = shape->n_batch * shape->seq_len * shape->n_heads;
    const tensors_t t = {qkv, dout, logsumexp, delta};
    return with_half_type(dtype, [&](auto type) {
        using T = decltype(type);
        dot_rows<T><<<(unsigned)zero_divide_up(n_rows, DELTA_THREADS / ROW_LANES), DELTA_THREADS, 0, stream>>>(
            delta, (const T *)dout, (const T *)out, s, n_rows);
        return with_head_dim(s.head_dim, [&](auto dim, auto wide) {
            constexpr int DIM = decltype(dim)::value;
            /* Heads of 64 are slower by four warps together: 0.65 for 0.57 ms, 25 heads, 16 x 1024, window 256. */
            constexpr bool WIDE = decltype(wide)::value && DIM > 64;
            cudaError_t error = launch<T, DIM, WIDE, false>(stream, dqkv, t, mask_of(mask), s);
            return error == cudaSuccess ? launch<T, DIM, WIDE, true>(stream, dqkv, t, mask_of(mask), s) : error;
        });
    });
}
