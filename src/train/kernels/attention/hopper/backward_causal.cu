/* backward_causal.cu - the gradients of causal attention on Hopper: what precedes the kernels of backward_causal.cuh,
 * and their launch.
 */
#include "train/kernels/attention/hopper/backward_causal.cuh"

/* Blocks of a chunk. Milliseconds that led to them:
 *
 *     blocks                                          4     8    16    32
 *     H100, 4 x 4096, 32/8 heads of 64             1.82  1.73  1.76  1.84
 *     H200, 2 x 4096, 32/8 heads of 128            1.50  1.53  1.63  1.86
 */
#define CHUNK_64 8
#define CHUNK_128 4

/* ---- Queries' numbers ---- */

#define NUMBERS_THREADS 256
template <int DIM> static constexpr int ROW_LANES = DIM / 8; /* lanes to a row, 8 elements each */

/* Computes a tile's numbers and resets the counts. Rows beyond the sequence get -infinity, so that their probabilities
 * are 0. A block's tile is in x, which may be 2^31, its head in y, its sequence in z.
 */
template <typename T, int DIM>
static __global__ void __launch_bounds__(NUMBERS_THREADS)
    causal_numbers(causal_t c, const T *dout, const T *out, const float *logsumexp)
{
    const size_t head = (size_t)blockIdx.z * c.s.n_heads + blockIdx.y, tile = head * c.n_tiles + blockIdx.x;
    float *numbers = c.numbers + tile * 2 * QUERIES;
#pragma unroll
    for (int i = 0; i < QUERIES * ROW_LANES<DIM> / NUMBERS_THREADS; ++i) {
        const int at = i * NUMBERS_THREADS + (int)threadIdx.x, row = at / ROW_LANES<DIM>, lane = at % ROW_LANES<DIM>;
        const int query = blockIdx.x * QUERIES + row;
        const bool valid = query < c.s.seq_len;
        float sum = 0.0f;
        if (valid)
            sum = product_of_8(
                dout, out, (((size_t)blockIdx.z * c.s.seq_len + query) * c.s.n_heads + blockIdx.y) * DIM + lane * 8);
        sum = zero_lanes_sum<ROW_LANES<DIM>>(sum);
        if (lane == 0) {
            numbers[row] = valid ? -logsumexp[head * c.s.seq_len + query] * LOG2_E : -INFINITY;
            numbers[QUERIES + row] = -sum;
        }
    }
    if (threadIdx.x == 0)
        c.counts[tile] = 0;
    if (threadIdx.x == 0 && tile == 0)
        *c.n_started = 0;
}

/* ---- Launching ---- */

extern "C" size_t zero_attention_causal_backward_bytes(const zero_attention_shape_t *shape)
{
    const size_t n_tiles = shape->n_batch * shape->n_heads * zero_divide_up(shape->seq_len, QUERIES);
    return n_tiles * (QUERIES * shape->head_dim + 2 * QUERIES) * sizeof(float) + (n_tiles + 1) * sizeof(int);
}

static cudaError_t launch_numbers(cudaStream_t stream, zero_dtype_t dtype, const causal_t *c, const void *dout,
                                  const void *out, const float *logsumexp)
{
    const dim3 grid((unsigned)c->n_tiles, (unsigned)c->s.n_heads, (unsigned)c->s.n_batch);
    return with_half_type(dtype, [&](auto type) {
        using T = decltype(type);
        if (c->s.head_dim == 64)
            causal_numbers<T, 64><<<grid, NUMBERS_THREADS, 0, stream>>>(*c, (const T *)dout, (const T *)out, logsumexp);
        else
            causal_numbers<T, 128>
                <<<grid, NUMBERS_THREADS, 0, stream>>>(*c, (const T *)dout, (const T *)out, logsumexp);
        return cudaGetLastError();
    });
}

extern "C" cudaError_t zero_launch_attention_causal_backward(cudaStream_t stream, zero_dtype_t dtype, void *dqkv,
                                                             void *workspace, const void *dout, const void *qkv,
                                                             const void *out, const float *logsumexp,
                                                             const zero_attention_shape_t *shape)
{
    const size_t n_tiles = zero_divide_up(shape->seq_len, QUERIES),
                 all_tiles = shape->n_batch * shape->n_heads * n_tiles;
    causal_t c;
    c.dqkv = dqkv;
    c.dq = (float *)workspace;
    c.numbers = c.dq + all_tiles * QUERIES * shape->head_dim;
    c.counts = (int *)(c.numbers + all_tiles * 2 * QUERIES);
    c.n_started = c.counts + all_tiles;
    c.s = sizes_of(shape);
    c.n_tiles = (int)n_tiles;
    c.n_blocks = (int)zero_divide_up(shape->seq_len, KEYS);
    c.chunk = shape->head_dim == 64 ? CHUNK_64 : CHUNK_128;
    c.scale = 1.0f / sqrtf((float)shape->head_dim);
    c.zero = 0;
    CUtensorMap qkv_map, dout_map;
    cudaError_t error = zero_describe_rows(&qkv_map, dtype, qkv, shape->n_batch, shape->seq_len,
                                           (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim);
    if (error == cudaSuccess)
        error = zero_describe_rows(&dout_map, dtype, dout, shape->n_batch, shape->seq_len,
                                   shape->n_heads * shape->head_dim);
    if (error == cudaSuccess)
        error = launch_numbers(stream, dtype, &c, dout, out, logsumexp);
    if (error != cudaSuccess)
        return error;
    return (shape->head_dim == 64 ? zero_launch_causal_64 : zero_launch_causal_128)(stream, dtype, &qkv_map, &dout_map,
                                                                                    &c);
}
