/* backward_causal.cuh - what the kernels of backward_causal_64_mma.cu and backward_causal_128_mma.cu share: the
 * gradients of causal attention on Hopper in one pass over the pairs of keys and queries, in 16 bits, with the same
 * bits in every run.
 *
 * S^T = K Q^T;  P^T = e^(scale S^T - logsumexp);  dP^T = V dO^T;  dS^T = P^T (dP^T - delta), delta = rowsum(dO O)
 * dV = P^T dO;  dK = scale dS^T Q;  dQ = scale dS K
 *
 * A block owns KEYS keys of one key/value head and walks over the tiles of queries that see them, for each query head
 * that shares the key/value head, in order: one tile is a step. Two warpgroups hold dK and dV of half of the keys each,
 * in registers. Further threads load the tiles several steps ahead, and keep the order of what is added to dQ.
 *
 * dQ is summed in fp32 in global memory, always in the same order. A block that has added to a tile raises the tile's
 * count; the next block waits for that. The first block stores, so nothing has to be zeroed. The last writes the
 * rounded sum to dqkv.
 *
 * The order is that of the blocks' numbers, which they take when they start. So a block waits only for blocks that have
 * started. Chunks of neighbouring blocks come in the order of their keys, since the first keys take longest; within a
 * chunk the last block comes first. Each block begins with the tiles of its own keys. If a chunk's blocks start
 * together, each reaches a tile just after the block before it has finished there. A chunk's blocks read the same
 * queries, which stay in the L2 cache.
 */
#ifndef ZERO_ATTENTION_BACKWARD_CAUSAL_CUH
#define ZERO_ATTENTION_BACKWARD_CAUSAL_CUH

#include "train/kernels/attention/hopper/causal.cuh"

#define QUERIES 64  /* of a tile */
#define KEYS 128    /* of a block */
#define OWN_KEYS 64 /* of a warpgroup */
#define DSCORES 2   /* tiles of dS in shared memory */
#define TURNS 2     /* tiles of dQ whose order is being kept */

/* Tiles of queries in shared memory. */
template <int DIM> static constexpr int STAGES = DIM == 64 ? 4 : 3;

template <int DIM> static constexpr int KEY_BYTES = tile_bytes<DIM, KEYS>;
template <int DIM> static constexpr int QUERY_BYTES = tile_bytes<DIM, QUERIES>;
#define DSCORE_BYTES (KEYS * QUERIES * 2)
#define NUMBER_BYTES (2 * QUERIES * 4)

typedef struct causal {
    void *dqkv;
    float *numbers; /* [n_batch, n_heads, n_tiles, 2, QUERIES]: minus logsumexp times log2 e, minus delta */
    float *dq;      /* [n_batch, n_heads, n_tiles, QUERIES * DIM], in the order of the threads that add */
    int *counts;    /* [n_batch, n_heads, n_tiles]: blocks that have added to a tile of dq */
    int *n_started; /* blocks */
    sizes_t s;
    int n_tiles, n_blocks, chunk;
    float scale;
    int zero; /* 0, which the compiler must not know (backward_causal_128_mma.cu) */
} causal_t;

/* What a block's addition to a tile of dQ needs. */
typedef struct turn {
    float *dq;
    void *rows; /* of dqkv: the tile's first */
    int n_rows; /* in the sequence */
    int before; /* blocks that add to it earlier */
    bool last;
} turn_t;

/* Where things are in shared memory. */
#define K_AT 0
template <int DIM> static constexpr int V_AT = KEY_BYTES<DIM>;
template <int DIM> static constexpr int QUERIES_AT = 2 * KEY_BYTES<DIM>; /* of each stage: q, dout */
template <int DIM> static constexpr int DSCORES_AT = QUERIES_AT<DIM> + STAGES<DIM> * 2 * QUERY_BYTES<DIM>;
template <int DIM> static constexpr int NUMBERS_AT = DSCORES_AT<DIM> + DSCORES *DSCORE_BYTES;
template <int DIM> static constexpr int TURNS_AT = NUMBERS_AT<DIM> + STAGES<DIM> *NUMBER_BYTES;
template <int DIM> static constexpr int BARRIERS_AT = TURNS_AT<DIM> + TURNS *(int)sizeof(turn_t);
template <int DIM>
static constexpr int NUMBER_AT = BARRIERS_AT<DIM> + 8 * (1 + 2 * STAGES<DIM> + 2 * DSCORES + 3 * TURNS);
template <int DIM> static constexpr int SHARED_BYTES = NUMBER_AT<DIM> + (int)sizeof(int);

/* ---- Launching ---- */

/* Queue the kernels, for bf16 or fp16; in backward_causal_64_mma.cu and backward_causal_128_mma.cu. */
extern "C" cudaError_t zero_launch_causal_64(cudaStream_t stream, zero_dtype_t dtype, const CUtensorMap *qkv,
                                             const CUtensorMap *dout, const causal_t *c);
extern "C" cudaError_t zero_launch_causal_128(cudaStream_t stream, zero_dtype_t dtype, const CUtensorMap *qkv,
                                              const CUtensorMap *dout, const causal_t *c);

#if ZERO_HAS_WGMMA /* elsewhere the kernels only trap, and are not launched */

/* ---- Order ---- */

/* What a block computes: block number `block` of the keys. `tiles` tiles of queries, from first_tile on, see them. */
typedef struct place {
    int batch, kv_head, n_members, block, first_tile, tiles, chunk_begin, chunk_end;
} place_t;

/* The block's number is read anew with each call, so that it occupies no register in between. */
template <int DIM> static __device__ __forceinline__ place_t place_of(const causal_t &c, const unsigned char *memory)
{
    /* By the shuffle the compiler knows that it is the same in a warp. */
    const int number = __shfl_sync(ZERO_FULL_WARP, *(const volatile int *)(memory + NUMBER_AT<DIM>), 0);
    const int n_heads = c.s.n_batch * c.s.n_kv_heads, per_chunk = n_heads * c.chunk;
    const int n = number / per_chunk, rest = number % per_chunk;
    place_t p;
    p.chunk_begin = n * c.chunk;
    p.chunk_end = min(p.chunk_begin + c.chunk, c.n_blocks);
    const int length = p.chunk_end - p.chunk_begin, head = rest / length;
    p.block = p.chunk_end - 1 - rest % length;
    p.batch = head / c.s.n_kv_heads;
    p.kv_head = head % c.s.n_kv_heads;
    p.n_members = c.s.n_heads / c.s.n_kv_heads;
    p.first_tile = p.block * (KEYS / QUERIES);
    p.tiles = c.n_tiles - p.first_tile;
    return p;
}

/* Returns how many blocks add to a tile of queries before this one. */
static __device__ __forceinline__ int blocks_before(const place_t &p, int tile)
{
    return p.chunk_begin + min(p.chunk_end - 1, tile / (KEYS / QUERIES)) - p.block;
}

/* Returns the elements of a row of qkv and dqkv. */
template <int DIM> static __device__ __forceinline__ size_t row_width(const causal_t &c)
{
    return (size_t)(c.s.n_heads + 2 * c.s.n_kv_heads) * DIM;
}

/* Returns the number of the first tile of a query head that shares this block's key/value head. */
static __device__ __forceinline__ size_t head_tiles(const causal_t &c, const place_t &p, int member)
{
    return (size_t)(p.batch * c.s.n_heads + p.kv_head * p.n_members + member) * c.n_tiles;
}

template <int DIM>
static __device__ __forceinline__ turn_t turn_of(const causal_t &c, const place_t &p, int member, int tile)
{
    const int head = p.kv_head * p.n_members + member, before = blocks_before(p, tile);
    const size_t width = row_width<DIM>(c);
    turn_t turn;
    turn.dq = c.dq + (head_tiles(c, p, member) + tile) * (QUERIES * DIM);
    turn.rows = (uint16_t *)c.dqkv + ((size_t)p.batch * c.s.seq_len + tile * QUERIES) * width + head * DIM;
    turn.n_rows = min(QUERIES, c.s.seq_len - tile * QUERIES);
    turn.before = before;
    turn.last = before == tile / (KEYS / QUERIES);
    return turn;
}

/* ---- Barriers ---- */

/* Addresses in shared memory. All but `keys` are arrays, with a barrier for each buffer. */
typedef struct barriers {
    uint32_t keys;                        /* K and V are there */
    uint32_t full, empty;                 /* a stage is there; its products have ended */
    uint32_t dscores_full, dscores_empty; /* likewise of dS */
    uint32_t go, added, released;         /* a tile may be added to dQ; has been; and the next block has been told */
} barriers_t;
template <int DIM> static __device__ __forceinline__ barriers_t barriers_at(uint32_t shared)
{
    const uint32_t at = shared + BARRIERS_AT<DIM>, full = at + 8, empty = full + 8 * STAGES<DIM>,
                   first = empty + 8 * STAGES<DIM>;
    const uint32_t turns = first + 16 * DSCORES;
    return {at, full, empty, first, first + 8 * DSCORES, turns, turns + 8 * TURNS, turns + 16 * TURNS};
}

/* By a thread, before the block begins. dq_warps: those that compute dQ. */
template <int DIM> static __device__ __forceinline__ void init_barriers(const barriers_t &b, int dq_warps)
{
    constexpr int key_warps = 8;
    zero_barrier_init(b.keys, 1);
    for (int i = 0; i < STAGES<DIM>; ++i) {
        zero_barrier_init(b.full + 8 * i, 1);
        zero_barrier_init(b.empty + 8 * i, key_warps * WARP_ARRIVALS);
    }
    for (int i = 0; i < DSCORES; ++i) {
        zero_barrier_init(b.dscores_full + 8 * i, key_warps * WARP_ARRIVALS);
        zero_barrier_init(b.dscores_empty + 8 * i, dq_warps * WARP_ARRIVALS);
    }
    for (int i = 0; i < TURNS; ++i) {
        zero_barrier_init(b.go + 8 * i, 1);
        zero_barrier_init(b.added + 8 * i, dq_warps * WARP_ARRIVALS);
        zero_barrier_init(b.released + 8 * i, 1);
    }
    zero_barrier_show();
}

/* A step's tile of q, behind which dout's lies, and of dS. */
template <int DIM> static __device__ __forceinline__ uint32_t queries_at(uint32_t shared, int step)
{
    return shared + QUERIES_AT<DIM> + buffer_of<STAGES<DIM>>(step) * 2 * QUERY_BYTES<DIM>;
}
template <int DIM> static __device__ __forceinline__ uint32_t dscores_at(uint32_t shared, int step)
{
    return shared + DSCORES_AT<DIM> + buffer_of<DSCORES>(step) * DSCORE_BYTES;
}

/* Returns minus logsumexp of the lane's first two columns. The next pair is 4 on; minus delta is QUERIES / 2 pairs on.
 */
template <int DIM>
static __device__ __forceinline__ const float2 *numbers_at(const unsigned char *memory, int step, int lane)
{
    return (const float2 *)(memory + NUMBERS_AT<DIM> + buffer_of<STAGES<DIM>>(step) * NUMBER_BYTES) + lane % 4;
}

/* A step's turn. */
template <int DIM> static __device__ __forceinline__ turn_t *turn_at(unsigned char *memory, int step)
{
    return (turn_t *)(memory + TURNS_AT<DIM>)+buffer_of<TURNS>(step);
}

/* ---- Loading: a thread ---- */

template <int DIM>
static __device__ __forceinline__ void load_keys(const CUtensorMap *qkv, const causal_t &c, const place_t &p,
                                                 uint32_t shared, uint32_t barrier)
{
    zero_barrier_expect(barrier, 2 * KEY_BYTES<DIM>);
#pragma unroll
    for (int rows = 0; rows < KEYS; rows += OWN_KEYS) {
        const int column = (c.s.n_heads + p.kv_head) * DIM, row = p.block * KEYS + rows;
        load_64_rows<DIM, KEYS>(shared + K_AT + rows * ROW_BYTES, qkv, column, row, p.batch, barrier);
        load_64_rows<DIM, KEYS>(shared + V_AT<DIM> + rows * ROW_BYTES, qkv, column + c.s.n_kv_heads * DIM, row, p.batch,
                                barrier);
    }
}

template <int DIM>
static __device__ __forceinline__ void load_queries(const CUtensorMap *qkv, const CUtensorMap *dout, const causal_t &c,
                                                    const place_t &p, uint32_t shared, const barriers_t &b)
{
    int step = 0;
    for (int member = 0; member < p.n_members; ++member) {
        const int head = p.kv_head * p.n_members + member;
#pragma unroll 1
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, ++step) {
            const int stage = buffer_of<STAGES<DIM>>(step);
            const uint32_t to = queries_at<DIM>(shared, step), full = b.full + 8 * stage;
            wait_for_room<STAGES<DIM>>(b.empty, step);
            zero_barrier_expect(full, 2 * QUERY_BYTES<DIM> + NUMBER_BYTES);
            load_64_rows<DIM, QUERIES>(to, qkv, head * DIM, tile * QUERIES, p.batch, full);
            load_64_rows<DIM, QUERIES>(to + QUERY_BYTES<DIM>, dout, head * DIM, tile * QUERIES, p.batch, full);
            zero_copy_bytes(shared + NUMBERS_AT<DIM> + stage * NUMBER_BYTES,
                            c.numbers + (head_tiles(c, p, member) + tile) * 2 * QUERIES, NUMBER_BYTES, full);
        }
    }
}

/* ---- The order of what is added to dQ: a thread each ---- */

/* Waits for this block's turn at each tile, then lets it be added to dQ. TELL: also leaves the tile's turn_t in shared
 * memory. */
template <int DIM, bool TELL>
static __device__ __forceinline__ void wait_for_turns(const causal_t &c, const place_t &p, unsigned char *memory,
                                                      const barriers_t &b)
{
    int step = 0;
    for (int member = 0; member < p.n_members; ++member) {
        const int *counts = c.counts + head_tiles(c, p, member);
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, ++step) {
            const int before = blocks_before(p, tile);
            wait_for_room<TURNS>(b.released, step);
            if (TELL)
                *turn_at<DIM>(memory, step) = turn_of<DIM>(c, p, member, tile);
            if (before > 0)
                while (zero_load_acquire(counts + tile) != before)
                    ;
            arrive_at<TURNS>(b.go, step);
        }
    }
}

/* Hands a tile on when it has been added. */
static __device__ __forceinline__ void release_turns(const causal_t &c, const place_t &p, const barriers_t &b)
{
    int step = 0;
    for (int member = 0; member < p.n_members; ++member) {
        int *counts = c.counts + head_tiles(c, p, member);
        for (int tile = p.first_tile; tile < c.n_tiles; ++tile, ++step) {
            wait_for_full<TURNS>(b.added, step);
            zero_store_release(counts + tile, blocks_before(p, tile) + 1);
            arrive_at<TURNS>(b.released, step);
        }
    }
}

/* Does the loader warpgroup's work: a thread in each of its first three warps. */
template <int DIM, bool TELL>
static __device__ __forceinline__ void load_and_keep_order(const CUtensorMap *qkv, const CUtensorMap *dout,
                                                           const causal_t &c, const place_t &p, uint32_t shared,
                                                           unsigned char *memory, const barriers_t &b, int thread)
{
    if (thread == 0) {
        load_keys<DIM>(qkv, c, p, shared, b.keys);
        load_queries<DIM>(qkv, dout, c, p, shared, b);
    } else if (thread == ZERO_WARP) {
        wait_for_turns<DIM, TELL>(c, p, memory, b);
    } else if (thread == 2 * ZERO_WARP) {
        release_turns(c, p, b);
    }
}

/* ---- Writing dK and dV ---- */

/* Writes a warpgroup's dK and dV. part: which half of the keys they are of. */
template <typename T, int DIM>
static __device__ __forceinline__ void write_dkv(const causal_t &c, const place_t &p, int part,
                                                 const float (&dk)[DIM / 8][4], const float (&dv)[DIM / 8][4], int warp,
                                                 int lane)
{
    const size_t width = row_width<DIM>(c);
    T *rows = (T *)c.dqkv + (size_t)p.batch * c.s.seq_len * width + (size_t)(c.s.n_heads + p.kv_head) * DIM;
    const int first = p.block * KEYS + part * OWN_KEYS + warp * 16;
    write_rows<T>(rows, width, first, c.s.seq_len, dk, {c.scale, c.scale}, lane);
    write_rows<T>(rows + (size_t)c.s.n_kv_heads * DIM, width, first, c.s.seq_len, dv, {1.0f, 1.0f}, lane);
}

/* ---- dQ: a warpgroup ---- */

/* Adds a block's part of 64 columns of a tile of dQ, from `column` on. The last block writes the sum to dqkv. */
template <typename T, int DIM>
static __device__ __forceinline__ void add_dq(const causal_t &c, const turn_t &turn, float (&sums)[8][4], int column,
                                              int warp, int lane)
{
    const size_t width = row_width<DIM>(c);
    float4 *dq = (float4 *)turn.dq + column * (QUERIES / 4) + warp * ZERO_WARP + lane; /* every 128th is the thread's */
    if (turn.last) {
        if (turn.before > 0)
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float4 sum = zero_load_relaxed(dq + n * 128);
                sums[n][0] += sum.x;
                sums[n][1] += sum.y;
                sums[n][2] += sum.z;
                sums[n][3] += sum.w;
            }
        write_rows<T>((T *)turn.rows + column, width, warp * 16, turn.n_rows, sums, {c.scale, c.scale}, lane);
    } else if (turn.before == 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
            dq[n * 128] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    } else {
#pragma unroll
        for (int n = 0; n < 8; ++n)
            zero_add_relaxed(dq + n * 128, sums[n]);
    }
}

/* ---- P and dS: a warpgroup ---- */

/* Turns S^T into P^T. minus_lse: from the lane's first two columns on. It and scale include the factor log2 e. */
static __device__ __forceinline__ void probabilities(float (&scores)[QUERIES / 8][4], const float2 *minus_lse,
                                                     float scale)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n) {
        const float2 pair = minus_lse[n * 4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            scores[n][e] = zero_fast_exp2(fmaf(scores[n][e], scale, e % 2 ? pair.y : pair.x));
    }
}

/* Sets P to 0 where the key comes after the query. ahead: first key minus first query. */
static __device__ __forceinline__ void hide_later(float (&probs)[QUERIES / 8][4], int ahead, int warp, int lane)
{
#pragma unroll
    for (int n = 0; n < QUERIES / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (ahead + warp * 16 + lane / 4 + e / 2 * 8 > n * 8 + lane % 4 * 2 + e % 2)
                probs[n][e] = 0.0f;
}

/* Computes dS^T of the k-th 16 queries, and rounds it and P^T. minus_delta: from the lane's first two columns on. */
template <typename T>
static __device__ __forceinline__ void round_16(uint32_t (&probs16)[4], uint32_t (&dscores16)[4],
                                                const float (&probs)[QUERIES / 8][4],
                                                const float (&dprobs)[QUERIES / 8][4], const float2 *minus_delta, int k)
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, e = i % 2 * 2;
        const float2 pair = minus_delta[n * 4];
        probs16[i] = zero_pair<T>::of(probs[n][e], probs[n][e + 1]);
        dscores16[i] =
            zero_pair<T>::of(probs[n][e] * (dprobs[n][e] + pair.x), probs[n][e + 1] * (dprobs[n][e + 1] + pair.y));
    }
}

/* Returns where a lane stores its row of the first 16 queries of dS^T. For the k-th 16: that ^ (k << 5). part: which
 * half of the keys. */
template <int DIM>
static __device__ __forceinline__ uint32_t dscore_row(uint32_t shared, int step, int part, int warp, int lane)
{
    return dscores_at<DIM>(shared, step) + (part * OWN_KEYS + warp * 16 + (lane & 15)) * ROW_BYTES +
           (((lane >> 4) ^ (lane & 7)) << 4);
}

#endif

/* ---- A block ---- */

/* WORK: what differs between the kernels. It has DIM; THREADS; DQ_WARPS, those that compute dQ; and run, what the
 * warpgroup `role` of a block does. */
template <typename WORK>
static __global__ void __launch_bounds__(WORK::THREADS, 1)
    attention_backward_causal(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                              const __grid_constant__ causal_t c)
{
#if ZERO_HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32_t shared = zero_shared_address(memory);
    const barriers_t b = barriers_at<WORK::DIM>(shared);
    const int role = __shfl_sync(ZERO_FULL_WARP, threadIdx.x / 128, 0); /* known to be the same in a warp */
    if (threadIdx.x == 0) {
        init_barriers<WORK::DIM>(b, WORK::DQ_WARPS);
        *(int *)(memory + NUMBER_AT<WORK::DIM>) = atomicAdd(c.n_started, 1);
    }
    __syncthreads();
    WORK::run(&qkv, &dout, c, shared, memory, b, role);
#else
    __trap();
#endif
}

/* Queues a kernel. */
template <typename WORK>
static inline cudaError_t launch_causal(cudaStream_t stream, const CUtensorMap *qkv, const CUtensorMap *dout,
                                        const causal_t *c)
{
    auto kernel = attention_backward_causal<WORK>;
    constexpr int bytes = SHARED_BYTES<WORK::DIM>;
    const cudaError_t error = allow_shared((const void *)kernel, bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<(unsigned)(c->s.n_batch * c->s.n_kv_heads * c->n_blocks), WORK::THREADS, bytes, stream>>>(*qkv, *dout, *c);
    return cudaGetLastError();
}

#endif
