/* embed.cu - token and position embedding on CUDA.
 *
 * Backward gathers instead of scattering. It sorts positions by token: the positions of one token, in ascending order,
 * form a run, which is summed in fp32 and rounded once. So no two warps write the same element, and the sums are taken
 * in the order of positions. To sort, tokens are counted, and positions are written to their token's bucket in any
 * order (the atomics are on integers, and no sum depends on them). Then each position is ranked within its bucket,
 * which fixes the order. Ranking takes time quadratic in the longest bucket, but on as many threads.
 *
 * Runs are as uneven as words are frequent: most have one position, some a tenth of all. So a warp sums one chunk of a
 * run, and the chunks of longer runs are added afterwards, in order. The kernels are many and short; each is started
 * while the one before it still runs.
 */
#include "train/kernels/cuda/pack.cuh"

#define THREADS 256

/* ---- Forward ---- */

/* A token outside the vocabulary gives NaN instead of reading outside the table. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    embed(T *out, const int32_t *tokens, const int32_t *starts, const T *token_table, const T *position_table,
          size_t seq_len, size_t dim, size_t vocab_size, size_t n_packs)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n_packs)
        return;
    size_t row_packs = dim / N, row = i / row_packs, column = i % row_packs * N;
    int32_t token = tokens[row];
    bool valid = token >= 0 && (size_t)token < vocab_size;
    zero_pack<T, N> x = zero_load<N>(token_table, (size_t)(valid ? token : 0) * dim + column), p = {};
    if (position_table != nullptr)
        p = zero_load<N>(position_table, (row % seq_len - (starts != nullptr ? starts[row] : 0)) * dim + column);
    float sum[N];
#pragma unroll
    for (int k = 0; k < N; ++k)
        sum[k] = !valid ? NAN : position_table != nullptr ? x[k] + p[k] : x[k];
    zero_store(out, i * N, sum);
}

template <int N, typename T>
static cudaError_t launch_embed(cudaStream_t stream, T *out, const int32_t *tokens, const int32_t *starts,
                                const T *token_table, const T *position_table, size_t n_rows, size_t seq_len,
                                size_t dim, size_t vocab_size)
{
    size_t n_packs = n_rows * (dim / N);
    embed<T, N><<<(unsigned)zero_divide_up(n_packs, THREADS), THREADS, 0, stream>>>(
        out, tokens, starts, token_table, position_table, seq_len, dim, vocab_size, n_packs);
    return cudaGetLastError();
}

extern "C" cudaError_t zero_launch_embed(cudaStream_t stream, zero_dtype_t dtype, void *out, const int32_t *tokens,
                                         const int32_t *starts, const void *token_table, const void *position_table,
                                         size_t n_rows, size_t seq_len, size_t dim, size_t vocab_size)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(out) && zero_aligned(token_table) && zero_aligned(position_table) && dim % N == 0)
            return launch_embed<N>(stream, (T *)out, tokens, starts, (const T *)token_table, (const T *)position_table,
                                   n_rows, seq_len, dim, vocab_size);
        return launch_embed<1>(stream, (T *)out, tokens, starts, (const T *)token_table, (const T *)position_table,
                               n_rows, seq_len, dim, vocab_size);
    });
}

/* ---- Backward: the tokens' order ---- */

#define CHUNK ZERO_WARP /* entries that one warp sums in sum_chunks, and searches in add_chunks */

/* One position in sorted order: the entries of a token are next to each other, by ascending position. */
typedef struct __align__(16) zero_embed_entry
{
    uint32_t position, token; /* token: vocab_size if it is outside the vocabulary */
    uint32_t rank, count;     /* positions of the same token before this one, and in all */
}
entry_t;

/* The sort's scratch. Buckets are tokens; the last is for tokens outside the vocabulary. */
typedef struct sort {
    uint32_t *counts;     /* [n_buckets] */
    uint32_t *n_assigned; /* [1], positions that have their range; behind counts, so that one call clears both */
    uint32_t *starts;     /* [n_buckets]: a bucket's first index in `unordered` */
    uint32_t *arrivals;   /* [n_rows]: a position's index in its bucket, in the order of the atomics */
    uint32_t *unordered;  /* [n_rows]: positions by bucket */
} sort_t;

static size_t sort_words(size_t n_rows, size_t vocab_size)
{
    return 2 * (vocab_size + 1) + 1 + 2 * n_rows;
}

static sort_t sort_in(uint32_t *scratch, size_t n_rows, size_t vocab_size)
{
    sort_t sort;
    sort.counts = scratch;
    sort.n_assigned = sort.counts + vocab_size + 1;
    sort.starts = sort.n_assigned + 1;
    sort.arrivals = sort.starts + vocab_size + 1;
    sort.unordered = sort.arrivals + n_rows;
    return sort;
}

static __device__ __forceinline__ uint32_t bucket_of(int32_t token, size_t vocab_size)
{
    return token >= 0 && (size_t)token < vocab_size ? (uint32_t)token : (uint32_t)vocab_size;
}

static __global__ void __launch_bounds__(THREADS)
    count_tokens(sort_t sort, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    zero_may_launch_next();
    if (i < n_rows)
        sort.arrivals[i] = atomicAdd(&sort.counts[bucket_of(tokens[i], vocab_size)], 1u);
}

/* Assigns each bucket a range of its own, by the thread of the position that arrived first. The ranges are in any
 * order, which does not matter, since runs are summed one by one. A warp takes the ranges of all its buckets at once.
 */
static __global__ void __launch_bounds__(THREADS)
    start_buckets(sort_t sort, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t bucket = 0, count = 0, lane = threadIdx.x % ZERO_WARP, start = 0;
    zero_may_launch_next();
    zero_wait_for_last();
    if (i < n_rows && sort.arrivals[i] == 0) {
        bucket = bucket_of(tokens[i], vocab_size);
        count = sort.counts[bucket];
    }
    uint32_t end = count; /* of this lane's range within the warp's */
    for (uint32_t offset = 1; offset < ZERO_WARP; offset *= 2) {
        uint32_t before = __shfl_up_sync(ZERO_FULL_WARP, end, offset);
        end += lane >= offset ? before : 0;
    }
    if (lane == ZERO_WARP - 1 && end > 0)
        start = atomicAdd(sort.n_assigned, end);
    start = __shfl_sync(ZERO_FULL_WARP, start, ZERO_WARP - 1);
    if (count > 0)
        sort.starts[bucket] = start + end - count;
}

static __global__ void __launch_bounds__(THREADS)
    fill_buckets(sort_t sort, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    zero_may_launch_next();
    zero_wait_for_last();
    if (i < n_rows)
        sort.unordered[sort.starts[bucket_of(tokens[i], vocab_size)] + sort.arrivals[i]] = (uint32_t)i;
}

static __global__ void __launch_bounds__(THREADS)
    rank_buckets(entry_t *entries, sort_t sort, const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    zero_may_launch_next();
    zero_wait_for_last();
    if (i >= n_rows)
        return;
    uint32_t position = sort.unordered[i], bucket = bucket_of(tokens[position], vocab_size);
    uint32_t start = sort.starts[bucket], count = sort.counts[bucket], rank = 0;
#pragma unroll 16
    for (uint32_t j = 0; j < count; ++j)
        rank += sort.unordered[start + j] < position;
    entries[start + rank] = entry_t{position, bucket, rank, count};
}

extern "C" size_t zero_embed_entries_bytes(size_t n_rows)
{
    return n_rows * sizeof(entry_t);
}

extern "C" size_t zero_embed_sort_bytes(size_t n_rows, size_t vocab_size)
{
    return sort_words(n_rows, vocab_size) * sizeof(uint32_t);
}

extern "C" cudaError_t zero_launch_embed_sort(cudaStream_t stream, void *scratch, zero_embed_entry_t *entries,
                                              const int32_t *tokens, size_t n_rows, size_t vocab_size)
{
    sort_t sort = sort_in((uint32_t *)scratch, n_rows, vocab_size);
    unsigned n_blocks = (unsigned)zero_divide_up(n_rows, THREADS);
    cudaError_t error = cudaMemsetAsync(sort.counts, 0, (vocab_size + 2) * sizeof *sort.counts, stream);
    if (error != cudaSuccess)
        return error;
    count_tokens<<<n_blocks, THREADS, 0, stream>>>(sort, tokens, n_rows, vocab_size);
    error = cudaGetLastError();
    if (error == cudaSuccess)
        error = zero_launch_next(stream, start_buckets, n_blocks, THREADS, sort, tokens, n_rows, vocab_size);
    if (error == cudaSuccess)
        error = zero_launch_next(stream, fill_buckets, n_blocks, THREADS, sort, tokens, n_rows, vocab_size);
    if (error == cudaSuccess)
        error = zero_launch_next(stream, rank_buckets, n_blocks, THREADS, entries, sort, tokens, n_rows, vocab_size);
    return error;
}

/* ---- Backward: sums ---- */

#define CHUNK_WARPS 4  /* per block; each takes a chunk */
#define ROWS_AHEAD 4   /* rows whose loads are in flight together */
#define CHUNKS_AHEAD 8 /* likewise, of partial sums */

/* Returns which partial sum belongs to the chunk that starts at `entry`, if its run has several chunks. Among any CHUNK
 * aligned entries, at most one chunk starts that continues a run and at most one that begins a run of several. */
static __device__ __forceinline__ size_t partial_of(size_t entry, bool begins)
{
    return 2 * (entry / CHUNK) + (begins ? 1 : 0);
}

extern "C" size_t zero_embed_partials_bytes(size_t n_rows, size_t dim)
{
    return 2 * zero_divide_up(n_rows, CHUNK) * dim * sizeof(float);
}

/* Sums chunks, their rows in order. There is a warp for each entry, which works if a chunk starts there; blockIdx.y and
 * the lanes take columns. */
template <typename T, int N>
static __global__ void __launch_bounds__(ZERO_WARP *CHUNK_WARPS)
    sum_chunks(zero_grad_t dtokens, float *partials, const T *dout, const entry_t *entries, size_t n_rows, size_t dim,
               size_t vocab_size)
{
    size_t at = (size_t)blockIdx.x * CHUNK_WARPS + threadIdx.y;
    size_t column = ((size_t)blockIdx.y * ZERO_WARP + threadIdx.x) * N;
    zero_may_launch_next();
    zero_wait_for_last();
    if (at >= n_rows)
        return;
    entry_t entry = entries[at];
    if (entry.rank % CHUNK != 0 || entry.token >= vocab_size)
        return;
    uint32_t left = entry.count - entry.rank, n = left < CHUNK ? left : CHUNK, position = entry.position;
    if (threadIdx.x > 0 && threadIdx.x < n)
        position = entries[at + threadIdx.x].position;
    float sum[N] = {};
    for (uint32_t i = 0; i < n; i += ROWS_AHEAD) {
        zero_pack<T, N> rows[ROWS_AHEAD];
#pragma unroll
        for (uint32_t r = 0; r < ROWS_AHEAD; ++r) {
            size_t row = __shfl_sync(ZERO_FULL_WARP, position, i + r);
            if (i + r < n && column < dim)
                rows[r] = zero_load<N>(dout, row * dim + column);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS_AHEAD; ++r)
#pragma unroll
            for (int k = 0; k < N; ++k)
                if (i + r < n)
                    sum[k] += rows[r][k];
    }
    if (column >= dim)
        return;
    if (entry.count <= CHUNK)
        zero_put_grad(dtokens, entry.token * dim + column, sum);
    else
        zero_store(partials, partial_of(at, entry.rank == 0) * dim + column, sum);
}

/* Adds the sums of the chunks of longer runs, in order. There is a warp for each CHUNK entries, among which at most one
 * such run begins. */
template <int N>
static __global__ void __launch_bounds__(ZERO_WARP)
    add_chunks(zero_grad_t dtokens, const float *partials, const entry_t *entries, size_t n_rows, size_t dim,
               size_t vocab_size)
{
    size_t at = (size_t)blockIdx.x * CHUNK + threadIdx.x, column = ((size_t)blockIdx.y * ZERO_WARP + threadIdx.x) * N;
    uint32_t token = 0, count = 0;
    bool begins = false;
    zero_wait_for_last();
    if (at < n_rows) {
        entry_t entry = entries[at];
        begins = entry.rank == 0 && entry.count > CHUNK && entry.token < vocab_size;
        token = entry.token;
        count = entry.count;
    }
    unsigned found = __ballot_sync(ZERO_FULL_WARP, begins);
    if (found == 0)
        return;
    int lane = __ffs(found) - 1;
    token = __shfl_sync(ZERO_FULL_WARP, token, lane);
    count = __shfl_sync(ZERO_FULL_WARP, count, lane);
    at = (size_t)blockIdx.x * CHUNK + lane;
    if (column >= dim)
        return;
    uint32_t n_chunks = (count + CHUNK - 1) / CHUNK;
    float sum[N] = {};
    for (uint32_t i = 0; i < n_chunks; i += CHUNKS_AHEAD) {
        zero_pack<float, N> chunks[CHUNKS_AHEAD];
#pragma unroll
        for (uint32_t c = 0; c < CHUNKS_AHEAD; ++c)
            if (i + c < n_chunks)
                chunks[c] = zero_load<N>(partials, partial_of(at + (size_t)(i + c) * CHUNK, i + c == 0) * dim + column);
#pragma unroll
        for (uint32_t c = 0; c < CHUNKS_AHEAD; ++c)
#pragma unroll
            for (int k = 0; k < N; ++k)
                if (i + c < n_chunks)
                    sum[k] += chunks[c][k];
    }
    zero_put_grad(dtokens, token * dim + column, sum);
}

/* Computes dpositions[t] = sum of dout[b, t] over b, in order. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
    sum_positions(zero_grad_t dpositions, const T *dout, size_t n_batch, size_t n_elems)
{
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (at >= n_elems)
        return;
    float sum[N] = {};
#pragma unroll 8
    for (size_t batch = 0; batch < n_batch; ++batch) {
        zero_pack<T, N> pack = zero_load<N>(dout, batch * n_elems + at);
#pragma unroll
        for (int k = 0; k < N; ++k)
            sum[k] += pack[k];
    }
    zero_put_grad(dpositions, at, sum);
}

/* Computes dpositions[t] = sum of the rows of dout that are t behind where their document begins, in order. A thread
 * owns an element, and looks at every row in each sequence that may be so far behind: the threads of a block mostly at
 * the same. In a part of a sequence the first document begins before the first row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    sum_document_positions(zero_grad_t dpositions, const T *dout, const int32_t *starts, size_t n_batch, size_t seq_len,
                           size_t n_positions, size_t dim)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, position = at / dim, column = at % dim;
    if (position >= n_positions)
        return;
    float sum[1] = {};
    for (size_t batch = 0; batch < n_batch; ++batch) {
        int64_t first = (int64_t)position + starts[batch * seq_len];
        for (size_t t = first > 0 ? (size_t)first : 0; t < seq_len; ++t) {
            size_t row = batch * seq_len + t;
            if (starts[row] == (int64_t)t - (int64_t)position)
                sum[0] += zero_to_float(dout[row * dim + column]);
        }
    }
    zero_put_grad(dpositions, at, sum);
}

template <int N, typename T>
static cudaError_t launch_tokens(cudaStream_t stream, zero_grad_t dtokens, float *partials, const T *dout,
                                 const entry_t *entries, size_t n_rows, size_t dim, size_t vocab_size)
{
    dim3 block(ZERO_WARP, CHUNK_WARPS);
    dim3 grid((unsigned)zero_divide_up(n_rows, CHUNK_WARPS), (unsigned)zero_divide_up(dim, ZERO_WARP * N));
    dim3 windows((unsigned)zero_divide_up(n_rows, CHUNK), (unsigned)zero_divide_up(dim, ZERO_WARP * N));
    cudaError_t error = zero_launch_next(stream, sum_chunks<T, N>, grid, block, dtokens, partials, dout, entries,
                                         n_rows, dim, vocab_size);
    if (error != cudaSuccess)
        return error;
    return zero_launch_next(stream, add_chunks<N>, windows, ZERO_WARP, dtokens, (const float *)partials, entries,
                            n_rows, dim, vocab_size);
}

extern "C" cudaError_t zero_launch_embed_tokens_backward(cudaStream_t stream, zero_dtype_t dtype, zero_grad_t dtokens,
                                                         float *partials, const void *dout,
                                                         const zero_embed_entry_t *entries, size_t n_rows, size_t dim,
                                                         size_t vocab_size)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        if (zero_aligned(dout) && dim % N == 0)
            return launch_tokens<N>(stream, dtokens, partials, (const T *)dout, entries, n_rows, dim, vocab_size);
        return launch_tokens<1>(stream, dtokens, partials, (const T *)dout, entries, n_rows, dim, vocab_size);
    });
}

extern "C" cudaError_t zero_launch_embed_positions_backward(cudaStream_t stream, zero_dtype_t dtype,
                                                            zero_grad_t dpositions, const void *dout,
                                                            const int32_t *starts, size_t n_batch, size_t seq_len,
                                                            size_t n_positions, size_t dim)
{
    return zero_with_type(dtype, [&](auto type) {
        using T = decltype(type);
        constexpr int N = 16 / sizeof(T);
        size_t n_elems = n_positions * dim;
        if (starts != nullptr)
            sum_document_positions<T><<<(unsigned)zero_divide_up(n_elems, THREADS), THREADS, 0, stream>>>(
                dpositions, (const T *)dout, starts, n_batch, seq_len, n_positions, dim);
        else if (zero_aligned(dout) && n_elems % N == 0)
            sum_positions<T, N><<<(unsigned)zero_divide_up(n_elems, THREADS * N), THREADS, 0, stream>>>(
                dpositions, (const T *)dout, n_batch, n_elems);
        else
            sum_positions<T, 1><<<(unsigned)zero_divide_up(n_elems, THREADS), THREADS, 0, stream>>>(
                dpositions, (const T *)dout, n_batch, n_elems);
        return cudaGetLastError();
    });
}
