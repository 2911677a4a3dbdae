/* simt.cu - causal self-attention on CUDA for every dtype and head size, without tensor cores. It runs if neither cuDNN
 * nor forward_mma.cu and backward_mma.cu serve a shape.
 *
 * As in FlashAttention (Dao et al. 2022, arXiv:2205.14135) no T x T matrix exists. A block owns TILE rows of one head,
 * its own side, and walks over the tiles of the other side (keys for queries, queries for keys) in ascending order,
 * everything in fp32 in shared memory. Forward keeps running maxima and sums; backward recomputes the probabilities
 * from logsumexp. LANES threads share a row: each computes the row's scores with every LANES-th row of the other tile,
 * its partners, and owns every LANES-th column of the row's results, in registers. The threads of a row are neighbours
 * in one warp, so scores need no barrier beyond the warp's.
 *
 * Backward computes dq in one kernel and dk and dv in another. Both recompute the scores, so that every element has one
 * owner and no atomics are needed. The block that owns a key/value head walks over its query heads in order.
 *
 * Since a mask never gives a query fewer hidden keys than the one before, a tile of queries begins with the keys of its
 * first query, and a tile of keys ends before the first tile of queries that sees none of it.
 */
#include "train/kernels/attention/head.cuh"

#define TILE 32
#define LANES 8
#define THREADS (TILE * LANES)
#define PARTNERS (TILE / LANES) /* per thread and tile */

/* Returns the stride of a tile's rows, in fp32 words of shared memory: odd, so that lanes read different banks. */
static __device__ __forceinline__ int tile_stride(int head_dim)
{
    return head_dim | 1;
}

/* Loads rows first .. first + TILE, and zeros beyond the sequence. */
template <typename T>
static __device__ __forceinline__ void load_tile(float *tile, const T *data, size_t offset, size_t width, int first,
                                                 sizes_t s)
{
    for (int i = threadIdx.x; i < TILE * s.head_dim; i += THREADS) {
        int row = i / s.head_dim, d = i % s.head_dim;
        tile[row * tile_stride(s.head_dim) + d] =
            first + row < s.seq_len ? zero_to_float(data[offset + (size_t)(first + row) * width + d]) : 0.0f;
    }
}

/* Computes dots[p] = a[row] . b[lane + p LANES]. */
static __device__ __forceinline__ void tile_dots(float (&dots)[PARTNERS], const float *a, const float *b, int row,
                                                 int lane, int head_dim)
{
    int stride = tile_stride(head_dim);
#pragma unroll
    for (int p = 0; p < PARTNERS; ++p)
        dots[p] = 0.0f;
    for (int d = 0; d < head_dim; ++d) {
        float x = a[row * stride + d];
#pragma unroll
        for (int p = 0; p < PARTNERS; ++p)
            dots[p] = fmaf(x, b[(lane + p * LANES) * stride + d], dots[p]);
    }
}

/* Adds to sums[c] the sum over partners of weights[row][partner] * b[partner][lane + c LANES]. */
template <int COLUMNS>
static __device__ __forceinline__ void tile_accumulate(float (&sums)[COLUMNS], const float *weights, const float *b,
                                                       int row, int lane, int head_dim)
{
    int stride = tile_stride(head_dim);
    for (int partner = 0; partner < TILE; ++partner) {
        float w = weights[row * (TILE + 1) + partner];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            if (lane + c * LANES < head_dim)
                sums[c] = fmaf(w, b[partner * stride + lane + c * LANES], sums[c]);
    }
}

/* Maximum over the LANES threads of a row; each gets the result. */
static __device__ __forceinline__ float lanes_max(float x)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(ZERO_FULL_WARP, x, offset));
    return x;
}

template <typename T, int COLUMNS>
static __device__ __forceinline__ void store_row(T *data, size_t start, const float (&values)[COLUMNS], float factor,
                                                 int lane, int head_dim)
{
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (lane + c * LANES < head_dim)
            data[start + lane + c * LANES] = zero_from_float<T>(values[c] * factor);
}

/* ---- Forward ---- */

/* A block's tile of queries is in x, the longest first; its head in y, its sequence in z. */
template <typename T, int COLUMNS>
static __global__ void __launch_bounds__(THREADS)
    attention(T *out, float *logsumexp, const T *qkv, mask_t mask, sizes_t s, float scale)
{
    extern __shared__ float shared[];
    int tile = TILE * tile_stride(s.head_dim);
    float *q = shared, *k = q + tile, *v = k + tile, *probs = v + tile; /* probs [TILE, TILE + 1] */
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * TILE, query = first + row;
    head_t h = head_at(s, blockIdx.z, blockIdx.y);
    int hidden = first_key(mask, s, blockIdx.z, query);
    float max = -INFINITY, sum = 0.0f, acc[COLUMNS] = {};
    load_tile(q, qkv, h.q, h.width, first, s);
    for (int keys = first_key(mask, s, blockIdx.z, first) / TILE * TILE; keys <= first; keys += TILE) {
        __syncthreads(); /* the last tiles have been read */
        load_tile(k, qkv, h.k, h.width, keys, s);
        load_tile(v, qkv, h.v, h.width, keys, s);
        __syncthreads();
        float score[PARTNERS];
        tile_dots(score, q, k, row, lane, s.head_dim);
        float new_max = max;
#pragma unroll
        for (int p = 0; p < PARTNERS; ++p) {
            int key = keys + lane + p * LANES;
            score[p] = hidden <= key && key <= query ? score[p] * scale : -INFINITY;
            new_max = fmaxf(new_max, score[p]);
        }
        new_max = lanes_max(new_max);
        float shift = new_max > -INFINITY ? new_max : 0.0f; /* else the row has not seen a key so far */
        float tile_sum = 0.0f, rescale = expf(max - shift);
#pragma unroll
        for (int p = 0; p < PARTNERS; ++p) {
            float prob = expf(score[p] - shift);
            tile_sum += prob;
            probs[row * (TILE + 1) + lane + p * LANES] = prob;
        }
        sum = fmaf(sum, rescale, zero_lanes_sum<LANES>(tile_sum));
        max = new_max;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            acc[c] *= rescale;
        __syncwarp();
        tile_accumulate(acc, probs, v, row, lane, s.head_dim);
    }
    if (query >= s.seq_len)
        return;
    store_row(out, h.out + query * h.out_width, acc, 1.0f / sum, lane, s.head_dim);
    if (lane == 0)
        logsumexp[h.lse + query] = max + logf(sum);
}

/* ---- Backward ---- */

/* Computes delta[b, h, t] = dout . out of each query's row, one warp per row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    dot_rows(float *delta, const T *dout, const T *out, sizes_t s, size_t n_rows)
{
    size_t row = (size_t)blockIdx.x * (THREADS / ZERO_WARP) + threadIdx.x / ZERO_WARP; /* of [b, t, h] */
    if (row >= n_rows)
        return;
    float sum = 0.0f;
    for (int d = threadIdx.x % ZERO_WARP; d < s.head_dim; d += ZERO_WARP)
        sum = fmaf(zero_to_float(dout[row * s.head_dim + d]), zero_to_float(out[row * s.head_dim + d]), sum);
    sum = zero_warp_sum(sum);
    size_t head = row % s.n_heads, t = row / s.n_heads % s.seq_len, batch = row / s.n_heads / s.seq_len;
    if (threadIdx.x % ZERO_WARP == 0)
        delta[(batch * s.n_heads + head) * s.seq_len + t] = sum;
}

/* Computes dq of a tile of queries: dS = scale P (dP - delta), dq = dS K. */
template <typename T, int COLUMNS>
static __global__ void __launch_bounds__(THREADS)
    attention_backward_queries(T *dqkv, const float *delta, const T *dout, const T *qkv, const float *logsumexp,
                               mask_t mask, sizes_t s, float scale)
{
    extern __shared__ float shared[];
    int tile = TILE * tile_stride(s.head_dim);
    float *q = shared, *g = q + tile, *k = g + tile, *v = k + tile, *dscores = v + tile;
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * TILE, query = first + row;
    head_t h = head_at(s, blockIdx.z, blockIdx.y);
    bool valid = query < s.seq_len;
    int hidden = first_key(mask, s, blockIdx.z, query);
    float lse = valid ? logsumexp[h.lse + query] : 0.0f, center = valid ? delta[h.lse + query] : 0.0f;
    float acc[COLUMNS] = {};
    load_tile(q, qkv, h.q, h.width, first, s);
    load_tile(g, dout, h.out, h.out_width, first, s);
    for (int keys = first_key(mask, s, blockIdx.z, first) / TILE * TILE; keys <= first; keys += TILE) {
        __syncthreads();
        load_tile(k, qkv, h.k, h.width, keys, s);
        load_tile(v, qkv, h.v, h.width, keys, s);
        __syncthreads();
        float score[PARTNERS], dprob[PARTNERS];
        tile_dots(score, q, k, row, lane, s.head_dim);
        tile_dots(dprob, g, v, row, lane, s.head_dim);
#pragma unroll
        for (int p = 0; p < PARTNERS; ++p) {
            int key = keys + lane + p * LANES;
            bool seen = valid && hidden <= key && key <= query;
            float prob = seen ? expf(fmaf(score[p], scale, -lse)) : 0.0f;
            dscores[row * (TILE + 1) + lane + p * LANES] = scale * prob * (dprob[p] - center);
        }
        __syncwarp();
        tile_accumulate(acc, dscores, k, row, lane, s.head_dim);
    }
    if (valid)
        store_row(dqkv, h.q + query * h.width, acc, 1.0f, lane, s.head_dim);
}

/* Computes dk and dv of a tile of keys: `row` is a key here and partners are queries. blockIdx.y: key/value head. */
template <typename T, int COLUMNS>
static __global__ void __launch_bounds__(THREADS)
    attention_backward_keys(T *dqkv, const float *delta, const T *dout, const T *qkv, const float *logsumexp,
                            mask_t mask, sizes_t s, float scale)
{
    extern __shared__ float shared[];
    int tile = TILE * tile_stride(s.head_dim);
    float *k = shared, *v = k + tile, *q = v + tile, *g = q + tile;
    float *probs = g + tile, *dscores = probs + TILE * (TILE + 1);
    int row = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = s.n_heads / s.n_kv_heads;
    int first = (int)blockIdx.x * TILE, key = first + row;
    head_t h = head_at(s, blockIdx.z, blockIdx.y * group);
    float dk[COLUMNS] = {}, dv[COLUMNS] = {};
    load_tile(k, qkv, h.k, h.width, first, s);
    load_tile(v, qkv, h.v, h.width, first, s);
    for (int member = 0; member < group; ++member) {
        h = head_at(s, blockIdx.z, blockIdx.y * group + member);
        for (int queries = first; queries < s.seq_len; queries += TILE) {
            if (first_key(mask, s, blockIdx.z, queries) >= first + TILE)
                break; /* nor do later ones see these keys */
            __syncthreads();
            load_tile(q, qkv, h.q, h.width, queries, s);
            load_tile(g, dout, h.out, h.out_width, queries, s);
            __syncthreads();
            float score[PARTNERS], dprob[PARTNERS];
            tile_dots(score, k, q, row, lane, s.head_dim);
            tile_dots(dprob, v, g, row, lane, s.head_dim);
#pragma unroll
            for (int p = 0; p < PARTNERS; ++p) {
                int query = queries + lane + p * LANES;
                float prob = 0.0f, dscore = 0.0f;
                if (key <= query && query < s.seq_len && first_key(mask, s, blockIdx.z, query) <= key) {
                    prob = expf(fmaf(score[p], scale, -logsumexp[h.lse + query]));
                    dscore = scale * prob * (dprob[p] - delta[h.lse + query]);
                }
                probs[row * (TILE + 1) + lane + p * LANES] = prob;
                dscores[row * (TILE + 1) + lane + p * LANES] = dscore;
            }
            __syncwarp();
            tile_accumulate(dv, probs, g, row, lane, s.head_dim);
            tile_accumulate(dk, dscores, q, row, lane, s.head_dim);
        }
    }
    if (key >= s.seq_len)
        return;
    store_row(dqkv, h.k + key * h.width, dk, 1.0f, lane, s.head_dim);
    store_row(dqkv, h.v + key * h.width, dv, 1.0f, lane, s.head_dim);
}

/* ---- Launching ---- */

/* Calls f with the columns per thread, a compile-time number, that cover head_dim. */
template <typename F> static cudaError_t with_columns(int head_dim, F f)
{
    if (head_dim <= 8 * LANES)
        return f(constant<8>());
    if (head_dim <= 16 * LANES)
        return f(constant<16>());
    return f(constant<ZERO_ATTENTION_MAX_HEAD_DIM / LANES>());
}

static size_t shared_bytes(size_t n_tiles, size_t n_score_tiles, size_t head_dim)
{
    return (n_tiles * TILE * (head_dim | 1) + n_score_tiles * TILE * (TILE + 1)) * sizeof(float);
}

extern "C" cudaError_t zero_launch_attention(cudaStream_t stream, zero_dtype_t dtype, void *out, float *logsumexp,
                                             const void *qkv, const zero_mask_t *mask,
                                             const zero_attention_shape_t *shape)
{
    sizes_t s = sizes_of(shape);
    dim3 grid((unsigned)zero_divide_up(shape->seq_len, TILE), (unsigned)shape->n_heads, (unsigned)shape->n_batch);
    size_t bytes = shared_bytes(3, 1, shape->head_dim);
    float scale = 1.0f / sqrtf((float)shape->head_dim);
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        return with_columns(s.head_dim, [&](auto columns) {
            auto kernel = attention<T, decltype(columns)::value>;
            cudaError_t error = allow_shared((const void *)kernel, bytes);
            if (error != cudaSuccess)
                return error;
            kernel<<<grid, THREADS, bytes, stream>>>((T *)out, logsumexp, (const T *)qkv, mask_of(mask), s, scale);
            return cudaGetLastError();
        });
    });
}

extern "C" cudaError_t zero_launch_attention_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv, float *delta,
                                                      const void *dout, const void *qkv, const void *out,
                                                      const float *logsumexp, const zero_mask_t *mask,
                                                      const zero_attention_shape_t *shape)
{
    sizes_t s = sizes_of(shape);
    unsigned n_tiles = (unsigned)zero_divide_up(shape->seq_len, TILE);
    dim3 query_grid(n_tiles, (unsigned)shape->n_heads, (unsigned)shape->n_batch);
    dim3 key_grid(n_tiles, (unsigned)shape->n_kv_heads, (unsigned)shape->n_batch);
    size_t query_bytes = shared_bytes(4, 1, shape->head_dim), key_bytes = shared_bytes(4, 2, shape->head_dim);
    size_t n_rows = shape->n_batch * shape->seq_len * shape->n_heads;
    float scale = 1.0f / sqrtf((float)shape->head_dim);
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        dot_rows<T><<<(unsigned)zero_divide_up(n_rows, THREADS / ZERO_WARP), THREADS, 0, stream>>>(
            delta, (const T *)dout, (const T *)out, s, n_rows);
        return with_columns(s.head_dim, [&](auto columns) {
            auto queries = attention_backward_queries<T, decltype(columns)::value>;
            auto keys = attention_backward_keys<T, decltype(columns)::value>;
            cudaError_t error = allow_shared((const void *)queries, query_bytes);
            if (error == cudaSuccess)
                error = allow_shared((const void *)keys, key_bytes);
            if (error != cudaSuccess)
                return error;
            queries<<<query_grid, THREADS, query_bytes, stream>>>((T *)dqkv, delta, (const T *)dout, (const T *)qkv,
                                                                  logsumexp, mask_of(mask), s, scale);
            keys<<<key_grid, THREADS, key_bytes, stream>>>((T *)dqkv, delta, (const T *)dout, (const T *)qkv, logsumexp,
                                                           mask_of(mask), s, scale);
            return cudaGetLastError();
        });
    });
}
